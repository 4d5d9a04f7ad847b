"""Topics of every format through whole runs, from the real broker; and again from their logs, without the registry."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import reports
from hindcast.common.errors import RecordError, SettingsError, TopicError
from hindcast.ingest import schemas
from hindcast.plan import journal, planner
from pipelines import Pipeline, pipeline
from registries import apicurio, peer, register
from test_formats import named, record, wrote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

SIMPLE = """
pipeline: simple
start: 2026-01-01
topics:
  notes:
    read: table
    key_format: primitive
    key: {id: int}
    value_format: string
    value: {day: date, source: string, hops: int}
    headers: {source: src, hops: hops}
  plain:
    {read: table, key: {id: string}, value_format: avro, value_schema: plain.avsc, value: {n: bigint}}
"""
CONTRACT = """
pipeline: formats
start: 2026-01-01
topics:
  places:
    read: table
    key_format: avro
    key: {country: string, city: string}
    value_format: avro
    value: {people: bigint, at: "struct<x: double>"}
    renamed: {people: [inhabitants]}
    max_malformed: 4
"""
VIEWS = """
views:
  large:
    semantics: kafka
    table: places
    where: people > 100
"""
KEY = {**record(country="string", city="string"), "name": "Key"}
POINT = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "float"}]}
OLD = record(inhabitants="int", at="geo.Point")
NEW = {**record(people="long", note=["null", "string"]), "name": "New"}
WRONG = {**record(people="string"), "name": "Wrong"}
BERN, ROME = {"country": "ch", "city": "bern"}, {"country": "it", "city": "rome"}


@pytest.fixture(
    scope="module",
    params=[pytest.param("peer", marks=pytest.mark.ci), pytest.param("apicurio", marks=pytest.mark.long)],
)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("registry")
    with peer() if request.param == "peer" else apicurio(folder) as found:
        yield found


@pytest.mark.slow
def test_text_numbers_headers_and_avro_files_in_a_whole_run(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "plain.avsc").write_text(json.dumps(record(n="int", more="string")), encoding="utf-8")
    with pipeline(spark, broker, tmp_path, SIMPLE) as p:
        seven = struct.pack(">i", 7)
        p.send("notes", (struct.pack(">i", -1), b"2026-01-01", 1, ("src", b"a"), ("hops", b"2"), ("src", b"b")))
        p.send("notes", (seven, b"2026-01-02", 1), (seven, None, 2, ("hops", b"no number")))
        p.send("plain", (b"a", wrote(record(n="int", more="string"), {"n": 5, "more": "x"}), 1))
        p.run()
        assert p.believed("notes") == [
            (-1, date(2026, 1, 1), "b", 2, 1, None),
            (7, date(2026, 1, 2), None, None, 1, 2),
        ]
        assert p.believed("plain") == [("a", 5, 1, None)]


@pytest.mark.long
def test_a_registry_s_avro_in_whole_runs(
    spark: SparkSession, broker: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY", url)
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        key, old = _first(p, url)
        p.run()
        assert [row[:3] for row in p.believed("places")] == [("ch", "bern", 120)]
        assert p.raw("places")[0]["at"] == {"x": 1.5}
        assert [fate for _, fate in p.fates("places")] == ["accepted", *["malformed"] * 4]
        refused_ = sorted(p.raw("quarantine"), key=lambda row: row["offset"])
        reasons = [row["reason"].partition(": ")[0] for row in refused_]
        assert reasons == [
            f"the value is not Avro of schema {old}",
            "the value is not in the schema registry's wire format (0, schema id, Avro)",
            "the value names schema 9999, which the schema registry has not",
            f"the value is not Avro of schema {old}",
        ]

        # Another schema in the next run: values of both are read, old ones without asking again.
        new = _second(p, url, key)
        p.run()
        assert [(*row[:3], *row[-2:]) for row in p.believed("places")] == [
            ("ch", "bern", 120, 1, 4),
            ("ch", "bern", 2**33, 4, None),
            ("it", "rome", 99, 3, None),
        ]
        assert {(row["part"], row["id"]) for row in p.raw("schemas/places")} == {
            ("key", key),
            ("value", old),
            ("value", new),
        }

        # A changed contract decodes all of the log again, and needs no registry.
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY", "")
        believed, log = p.believed("places"), p.versions()["logs/places"]
        p.write(CONTRACT.replace("    renamed:", "    history_retention: 30 days\n    renamed:"))
        p.run()
        assert p.believed("places") == believed

        # A schema that the columns cannot take stops the topic; the log stays as it is.
        wrong = register(url, "wrong", WRONG)
        fine = named(key, KEY, ROME), named(new, NEW, {"people": 98, "note": None}), 5
        p.send("places", fine, (named(key, KEY, BERN), named(wrong, WRONG, {"people": "many"}), 5))
        with pytest.raises(SettingsError, match=f"names schema {wrong}, and there is no schema registry"):
            p.run("wrong")
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY", "http://127.0.0.1:9")
        with pytest.raises(TopicError, match="the schema registry does not answer"):
            p.run("wrong")
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY", url)
        with pytest.raises(RecordError) as refused:
            p.run("wrong")
        place, columns, schema, fix = str(refused.value).splitlines()
        assert place == (
            f"topic {p.kafka('places')}, partition 0, offset 8: schema {wrong} of the value does not fit the contract: "
            "`people` is string, which is not bigint"
        )
        assert columns == "  the contract's columns: `people` bigint, `at` STRUCT<x: DOUBLE>"
        assert schema == "  the schema's: `people` string"
        assert fix.endswith("in the contract fit the schema; nothing was written")
        assert p.versions()["logs/places"] == log
        assert wrong not in {row["id"] for row in p.raw("schemas/places")}

        # In the second chunk of a run it says what was written.
        planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "by a test")
        monkeypatch.setenv("HINDCAST_CHUNK", "1")
        with pytest.raises(RecordError, match="offset 8: schema") as refused:
            p.run("in chunks")
        assert "; 1 of its 2 chunks are in the log and stay: the next run continues after them" in refused.value.fix
        assert [offset for offset, _ in p.fates("places")] == list(range(8))

        # Columns that the schemas of the log cannot fill any more: the same.
        p.write(CONTRACT.replace("people: bigint", "people: int"))
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY", "")
        with p.here(), pytest.raises(RecordError, match=f"partition 0, offset 5: schema {new} of") as refused:
            schemas.read_schemas(spark, p.contract, "places")
        assert "its records are in the log and stay" in refused.value.fix


@pytest.mark.long
def test_previews_and_kafka_views_read_a_registry_s_avro(
    spark: SparkSession, broker: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY", url)
    with pipeline(spark, broker, tmp_path, CONTRACT + VIEWS) as p:
        key, old = _first(p, url)
        p.run()
        _second(p, url, key)
        with p.here():
            would = reports.preview_run(spark, p.name)["tables"]["places"]
        assert (would["opened"], would["closed"]) == (3, 1)
        assert {row["id"] for row in p.raw("schemas/places")} == {key, old}, "a preview keeps nothing"
        p.run()
        emitted = sorted((row for row in p.raw("emitted/large") if not row["_tombstone"]), key=lambda it: it["_offset"])
        assert [(row["city"], row["people"]) for row in emitted] == [("bern", 120), ("bern", 2**33)]


def _first(p: Pipeline, url: str) -> tuple[int, int]:
    """A place of one schema, and four values that are none of it; the ids of its key's and its value's schema."""
    register(url, "point", POINT)
    key, old = register(url, "places-key", KEY), register(url, "old", OLD, ("geo.Point", "point"))
    bern = named(key, KEY, BERN)
    oldest = named(old, record(inhabitants="int", at=POINT), {"inhabitants": 120, "at": {"x": 1.5}})
    bad = [oldest[:-1], b"{}", b"\0\0\0\x27\x0f\0", named(old, "int", 1)]
    p.send("places", (bern, oldest, 1), *((bern, it, 2) for it in bad))
    return key, old


def _second(p: Pipeline, url: str, key: int) -> int:
    """Values of another schema, whose id it returns."""
    new = register(url, "new", NEW)
    p.send("places", (named(key, KEY, ROME), named(new, NEW, {"people": 99, "note": None}), 3))
    p.send("places", (named(key, KEY, BERN), named(new, NEW, {"people": 2**33, "note": "x"}), 4))
    return new
