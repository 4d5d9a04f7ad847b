"""The schema registry: the Avro schemas that records name by id. Without Spark.

It is read through Confluent's own client; Apicurio's and others' registries speak the same protocol. Credentials come
from the environment alone: HINDCAST_SCHEMA_REGISTRY_USER and HINDCAST_SCHEMA_REGISTRY_PASSWORD, and the certificate
authority of one with https from HINDCAST_SCHEMA_REGISTRY_CA (a PEM file).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from hindcast.errors import RecordError, SettingsError, TopicError
from hindcast.settings import Settings

TIMEOUT = 20.0
"""Seconds after which a registry that does not answer is an error."""

_UNKNOWN = 404
_FORBIDDEN = (401, 403)


def fetch(now: Settings, ids: Iterable[int], where: str) -> dict[int, str]:
    """The schemas of these ids, each complete: what it refers to is written out in it. One that is not there is left
    out.

    `where`: what needs them, for messages. SettingsError if no registry is set, TopicError if it does not answer,
    RecordError for a schema that is not Avro.
    """
    wanted = sorted(ids)
    if not wanted:
        return {}
    if not now.schema_registry:
        raise SettingsError(
            f"{where} names schema {wanted[0]}, and there is no schema registry",
            mend="set HINDCAST_SCHEMA_REGISTRY to its URL, or name the schema's file in the contract (value_schema:)",
        )
    with _client(now) as client:
        found = {id_: _fetched(client, now, id_, where) for id_ in wanted}
    return {id_: schema for id_, schema in found.items() if schema is not None}


def reach(now: Settings) -> None:
    """Asks the registry for its subjects; TopicError if it does not answer, or refuses us."""
    with _client(now) as client:
        _asked(client.get_subjects, now, "its subjects")


def _client(now: Settings) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient  # its import takes a second

    config: dict[str, Any] = {"url": now.schema_registry, "timeout": TIMEOUT, "max.retries": 2}
    if user := os.environ.get("HINDCAST_SCHEMA_REGISTRY_USER"):
        config["basic.auth.user.info"] = f"{user}:{os.environ.get('HINDCAST_SCHEMA_REGISTRY_PASSWORD', '')}"
    if authority := os.environ.get("HINDCAST_SCHEMA_REGISTRY_CA"):
        config["ssl.ca.location"] = authority
    return SchemaRegistryClient(config)


def _fetched(client: Any, now: Settings, id_: int, where: str) -> str | None:
    """One schema as JSON, None if the registry does not know the id."""
    told = _asked(lambda: client.get_schema(id_), now, where)
    if told is None:
        return None
    if told.schema_type != "AVRO":
        raise RecordError(
            f"schema {id_} of {now.schema_registry} is {told.schema_type}, not Avro",
            where=where,
            mend="replay topics of Avro; nothing was written",
        )
    return json.dumps(complete(json.loads(told.schema_str), _referred(client, now, told, where)))


def _referred(client: Any, now: Settings, told: Any, where: str) -> list[Any]:
    """The schemas that a schema refers to, each after those that it refers to itself."""
    found: list[Any] = []
    for reference in told.references or ():
        its = _asked(lambda r=reference: client.get_version(r.subject, r.version), now, where)
        if its is None:
            raise TopicError(
                f"a schema refers to {reference.name}, which is not in the registry (subject {reference.subject}, "
                f"version {reference.version})",
                where=f"{now.schema_registry}, {where}",
                mend="register it again",
            )
        found += [*_referred(client, now, its.schema, where), json.loads(its.schema.schema_str)]
    return found


def complete(schema: Any, referred: Iterable[Any]) -> Any:
    """A schema with the named types of others written out where it first names them.

    >>> complete({"type": "array", "items": "x.Item"}, [{"type": "fixed", "name": "x.Item", "size": 4}])
    {'type': 'array', 'items': {'type': 'fixed', 'name': 'x.Item', 'size': 4}}
    """
    known = {_full(it, None): it for it in referred if isinstance(it, dict)}
    done: set[str] = set()

    def within(it: Any, namespace: str | None) -> Any:
        if isinstance(it, str):
            full = next((n for n in (f"{namespace}.{it}", it) if n in known), None)
            if full is None or full in done:
                return it
            done.add(full)
            return within({**known[full], "name": full}, None)
        if isinstance(it, list):
            return [within(part, namespace) for part in it]
        if not isinstance(it, dict):
            return it
        inner = _full(it, namespace).rpartition(".")[0] if "name" in it and "type" in it else namespace
        parts = {name: within(it[name], inner) for name in ("type", "items", "values") if name in it}
        if isinstance(it.get("fields"), list):
            parts["fields"] = [{**field, "type": within(field.get("type"), inner)} for field in it["fields"]]
        return {**it, **parts}

    return within(schema, None)


def _full(schema: dict[str, Any], namespace: str | None) -> str:
    name, own = str(schema.get("name", "")), schema.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"


def _asked(question: Any, now: Settings, where: str) -> Any:
    """What the registry answers, None if it does not know what was asked for."""
    from confluent_kafka.schema_registry import SchemaRegistryError

    place = f"{now.schema_registry}, {where}"
    try:
        return question()
    except SchemaRegistryError as error:
        if error.http_status_code == _UNKNOWN and str(error.error_code).startswith(str(_UNKNOWN)):
            return None
        if error.http_status_code in _FORBIDDEN:
            mend = "set HINDCAST_SCHEMA_REGISTRY_USER and HINDCAST_SCHEMA_REGISTRY_PASSWORD to one who may read it"
            raise TopicError(
                f"the schema registry refuses us (HTTP {error.http_status_code})", where=place, mend=mend
            ) from None
        raise TopicError(
            f"the schema registry fails (HTTP {error.http_status_code}: {error.error_message})",
            where=place,
            mend="is HINDCAST_SCHEMA_REGISTRY its URL, with the path of Confluent's API? If so, retry when it is well",
        ) from None
    except Exception as error:  # noqa: BLE001  # the client's own HTTP library raises what it likes
        raise TopicError(
            f"the schema registry does not answer ({type(error).__name__})",
            where=place,
            mend="start it, or set HINDCAST_SCHEMA_REGISTRY to its URL",
        ) from None
