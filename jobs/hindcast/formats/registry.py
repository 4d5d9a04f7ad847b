"""The schema registry: the Avro schemas that records name by id. Without Spark.

It is read through Confluent's own client (kafka/registry_client.py); Apicurio's and others' registries speak the same
protocol.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hindcast.common.errors import AccessError, RecordError, SettingsError, TopicError
from hindcast.common.json_values import JsonValue
from hindcast.common.login_forms import hide_login
from hindcast.common.settings import Settings
from hindcast.contract.avro import parse_json
from hindcast.contract.avro_references import inline_references
from hindcast.kafka.access_errors import OUTDATED
from hindcast.kafka.bounded_answers import AnswerError
from hindcast.kafka.registry_client import ADDRESS, CA, PASSWORD, USER, open_client

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError

A = TypeVar("A")
MOST_SECONDS = 90.0
"""How long a question may take with all tries, whatever arrives meanwhile."""

MOST_SCHEMA_SECONDS = 300.0
"""How long the questions about one schema and all that it refers to may take together."""

MOST_CHARACTERS = 16 << 20
"""The most characters of one schema and all that it refers to together."""

_MOST_REFERENCES = 500
_UNKNOWN = (40401, 40402, 40403)
"""What a registry says of a subject, a version or a schema that it does not have. A bare 404 is a wrong address."""
_FORBIDDEN = (401, 403)


def fetch_schemas(settings: Settings, ids: Iterable[int], where: str) -> dict[int, str]:
    """Return the schemas with these ids, as JSON with their references inlined; unknown ids are left out.

    `where`: what needs them, for messages. SettingsError if no registry is set or a setting for it is invalid;
    AccessError if it refuses our credentials or its certificate is not trusted; TopicError if it does not answer as a
    schema registry; RecordError for a schema that is not Avro.
    """
    wanted = sorted(ids)
    if not wanted:
        return {}
    if not settings.schema_registry:
        raise SettingsError(
            f"{where} names schema {wanted[0]}, and there is no schema registry",
            fix="set HINDCAST_SCHEMA_REGISTRY to its URL, or name the schema's file in the contract (value_schema:)",
        )
    with open_client(settings) as client:
        found = {id_: _SchemaReader(client, settings, where).fetch(id_) for id_ in wanted}
    return {id_: schema for id_, schema in found.items() if schema is not None}


def refuse_unreachable(settings: Settings) -> None:
    """Raise TopicError if the registry does not answer a request for its subjects, or refuses us."""
    with open_client(settings) as client:
        _ask_registry(client.get_subjects, settings, "its subjects")


class _SchemaReader:
    """A reader of one schema and all that it refers to, which have bounds together: number, characters and time."""

    def __init__(self, client: SchemaRegistryClient, settings: Settings, where: str) -> None:
        self._client, self._settings, self._where = client, settings, where
        self._place = f"{settings.schema_registry}, {where}"
        self._last = time.monotonic() + MOST_SCHEMA_SECONDS
        self._characters = 0
        self._seen: set[tuple[str, int]] = set()

    def fetch(self, id_: int) -> str | None:
        """Return the schema as JSON; None if the registry does not know the id."""
        schema = self._ask(lambda: self._client.get_schema(id_))
        if schema is None:
            return None
        found = f"schema {id_} of {self._settings.schema_registry} is"
        if schema.schema_type != "AVRO":
            fix = "register it as Avro, or leave the topic out: values of other schemas are not read"
            raise RecordError(f"{found} {schema.schema_type}, not Avro", where=self._where, fix=fix)
        try:
            return json.dumps(inline_references(self._parse(schema), self._fetch_references(schema)))
        except (TypeError, ValueError, RecursionError) as error:
            fix = "register it as Avro's JSON"
            raise RecordError(f"{found} not Avro: {error}", where=self._where, fix=fix) from None

    def _fetch_references(self, schema: Schema) -> list[JsonValue]:
        """Return the schemas that a schema refers to, each once, after those that it refers to itself."""
        found: list[JsonValue] = []
        for reference in schema.references or ():
            version = str(reference.subject), reference.version or 0
            if version in self._seen:
                continue
            self._seen.add(version)
            if len(self._seen) > _MOST_REFERENCES:
                raise RecordError(
                    f"a schema refers to more than {_MOST_REFERENCES} others", where=self._place, fix=_FEWER
                )
            its = self._ask(partial(self._client.get_version, *version))
            if its is None:
                raise TopicError(
                    f"a schema refers to {reference.name}, which is not in the registry (subject {reference.subject}, "
                    f"version {reference.version})",
                    where=self._place,
                    fix="register it again",
                )
            parsed = self._parse(its.schema)
            found += [*self._fetch_references(its.schema), parsed]
        return found

    def _parse(self, schema: Schema) -> JsonValue:
        """Return a schema's JSON; TypeError or ValueError if it is not JSON."""
        if not isinstance(schema.schema_str, str):
            raise TypeError("it has no text")
        self._characters += len(schema.schema_str)
        if self._characters > MOST_CHARACTERS:
            found = f"a schema has more than {MOST_CHARACTERS:,} characters, with those that it refers to"
            raise RecordError(found, where=self._place, fix=_FEWER)
        return parse_json(schema.schema_str)

    def _ask(self, question: Callable[[], A]) -> A | None:
        if time.monotonic() > self._last:
            found = f"the schema registry takes more than {MOST_SCHEMA_SECONDS:g} s for a schema and all it refers to"
            raise TopicError(found, where=self._place, fix=f"retry when it is faster, or {_FEWER}")
        return _ask_registry(question, self._settings, self._where)


def _ask_registry(question: Callable[[], A], settings: Settings, where: str) -> A | None:
    """Return the registry's answer; None if it does not know what was asked for."""
    from confluent_kafka.schema_registry import SchemaRegistryError

    place = f"{settings.schema_registry}, {where}"
    try:
        return _await_answer(question)
    except SchemaRegistryError as error:
        if error.error_code in _UNKNOWN:
            return None
        raise _refusal_error(error, place) from None
    except AnswerError as error:
        raise TopicError(f"the schema registry's answer {error}", where=place, fix=_WRONG) from None
    except Exception as error:  # noqa: BLE001  # the client's own HTTP library raises what it likes
        raise _no_answer_error(error, place) from None


def _await_answer(question: Callable[[], A]) -> A:
    """Return the answer to a question; TimeoutError if it takes too long, and nobody waits for it any more."""
    answer: Future[A] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:  # noqa: BLE001  # raised where the answer is awaited
            answer.set_exception(error)

    threading.Thread(target=ask, name="schema registry", daemon=True).start()
    return answer.result(MOST_SECONDS)


def _refusal_error(error: SchemaRegistryError, place: str) -> TopicError:
    """Return the error for an HTTP status other than 200.

    Anything could be behind the address: the message is quoted only if it is a schema registry's.
    """
    status = error.http_status_code
    if status in _FORBIDDEN:
        fix = f"set {USER} and {PASSWORD} to one who may read it"
        return AccessError(f"the schema registry refuses us (HTTP {status})", where=place, fix=fix)
    if not isinstance(error.error_code, int) or error.error_code < 0:
        return TopicError(f"no schema registry answers there (HTTP {status})", where=place, fix=_WRONG)
    user, password = (os.environ.get(name) or "" for name in (USER, PASSWORD))
    message = hide_login(str(error.error_message), user, password)[:_SHOWN]
    return TopicError(f"the schema registry fails (HTTP {status}: {message})", where=place, fix=_WRONG)


def _no_answer_error(error: BaseException, place: str) -> TopicError:
    """Return the error for a request without an answer, or with one that cannot be read."""
    name = type(error).__name__
    if isinstance(error, (ValueError, TypeError, AttributeError, KeyError)):
        return TopicError(f"what answers is no schema registry ({name})", where=place, fix=_WRONG)
    why: BaseException | None = error
    while why is not None and not isinstance(why, ssl.SSLError):
        why = why.__cause__ or why.__context__
    if isinstance(why, ssl.SSLCertVerificationError):
        fix = f"set {CA} to a PEM file of the authority that has signed it, and {ADDRESS} to a name that it is for"
        if why.verify_code in OUTDATED:
            fix = "renew it, or the certificate of its authority; or set this machine's clock"
        found = f"the schema registry's certificate cannot be trusted: {why.verify_message}"
        return AccessError(found, where=place, fix=fix)
    if why is not None:
        fix = f"does it speak TLS? If not, write http:// in {ADDRESS}"
        return AccessError(f"the schema registry cannot be spoken to by TLS ({why.reason})", where=place, fix=fix)
    fix = f"start it, or set {ADDRESS} to its URL"
    return TopicError(f"the schema registry does not answer ({name})", where=place, fix=fix)


_FEWER = "register a schema that needs fewer"
_SHOWN = 200
"""So many characters of what a registry says stand in an error."""
_WRONG = f"is {ADDRESS} its URL, with the path of Confluent's API? If so, retry when it is well"
