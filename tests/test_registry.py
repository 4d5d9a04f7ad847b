"""Schemas from a registry: complete, or a refusal that says what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hindcast import registry
from hindcast.contracts import avro
from hindcast.errors import HindcastError, RecordError, SettingsError, TopicError
from hindcast.settings import settings
from registries import peer, register

POINT = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "float"}]}
LINE = {
    "type": "record",
    "name": "Line",
    "namespace": "geo",
    "fields": [{"name": "from", "type": "Point"}, {"name": "to", "type": ["null", "geo.Point"]}],
}
MAP = {
    "type": "record",
    "name": "Map",
    "fields": [
        {"name": "lines", "type": {"type": "array", "items": "geo.Line"}},
        {"name": "marks", "type": {"type": "map", "values": "geo.Point"}},
    ],
}


def fetch(url: str, *ids: int) -> dict[int, str]:
    return registry.fetch(settings({"HINDCAST_SCHEMA_REGISTRY": url}), ids, "topic t")


def test_a_schema_comes_with_all_that_it_refers_to() -> None:
    with peer() as url:
        register(url, "point", POINT)
        register(url, "line", LINE, ("geo.Point", "point"))
        id_ = register(url, "map", MAP, ("geo.Line", "line"), ("geo.Point", "point"))
        found = fetch(url, id_, 99)
    assert found.keys() == {id_}, "one that is not there is left out"
    line = "struct<`from`: struct<`x`: float>, `to`: struct<`x`: float>>"
    told = f"struct<`lines`: array<{line}>, `marks`: map<string, struct<`x`: float>>>"
    assert str(avro.written(json.loads(found[id_]))) == told


def test_a_name_is_written_out_once() -> None:
    pair: Any = {"type": "record", "name": "P", "fields": [{"name": n, "type": "geo.Point"} for n in "ab"]}
    first, second = registry.complete(pair, [POINT])["fields"]
    assert first["type"]["name"] == second["type"] == "geo.Point"


def test_one_with_a_login_is_read_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(login="ann:secret") as url:
        id_ = register(url, "point", POINT)
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_USER", "ann")
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_PASSWORD", "secret")
        assert fetch(url, id_)
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY_PASSWORD", "wrong-one")
        with pytest.raises(TopicError) as refused:
            fetch(url, id_)
    assert "refuses us (HTTP 401)" in str(refused.value)
    assert "HINDCAST_SCHEMA_REGISTRY_PASSWORD" in refused.value.mend
    assert "wrong-one" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "error", "found", "mend"),
    [
        ("", SettingsError, "topic t names schema 1, and there is no schema registry", "HINDCAST_SCHEMA_REGISTRY"),
        ("http://127.0.0.1:9", TopicError, "the schema registry does not answer", "start it"),
        ("ann:x@127.0.0.1", SettingsError, "not the URL of a schema registry without credentials", "_PASSWORD"),
        ("http://ann:x@host", SettingsError, "not the URL of a schema registry without credentials", "_PASSWORD"),
    ],
)
def test_without_one_it_says_what_to_do(url: str, error: type[HindcastError], found: str, mend: str) -> None:
    with pytest.raises(error) as refused:
        fetch(url, 1)
    assert found in refused.value.found
    assert mend in refused.value.mend
    assert "ann" not in str(refused.value)


def test_another_kind_of_schema_is_refused() -> None:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

    with peer() as url:
        with SchemaRegistryClient({"url": url}) as client:
            id_ = client.register_schema("js", Schema('{"type": "object"}', "JSON"))
        with pytest.raises(RecordError, match="is JSON, not Avro"):
            fetch(url, id_)


def test_nothing_asked_needs_no_registry() -> None:
    assert fetch("") == {}
