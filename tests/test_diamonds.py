"""Views that a record reaches on several paths: what contracts make of the vectors of Kafka Streams, in real runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

import diamonds
from hindcast.contract import Contract, load
from hindcast.kafka import produce
from pipelines import Pipeline
from views_as_rows import Tasks

Json = Any
BASE = 1_767_225_600_000


def replayed(
    spark: SparkSession, servers: str, folder: Path, chosen: Mapping[str, list[Json]], cuts: int = 1
) -> dict[str, dict[str, list[Json]]]:
    """What one contract of the views of all shapes emits, by the names of vectors and views, as in `expected`."""
    size = max(map(len, chosen.values()))
    said: Json = {"pipeline": "diamonds", "start": "2026-01-01", "topics": {}, "views": {}}
    for number, vectors in enumerate(chosen.values()):
        its = diamonds.contract(renamed(vectors[0]["operation"], f"v{number}_"), "diamonds", size)
        said["topics"] |= its["topics"]
        said["views"] |= its["views"]
    p = Pipeline(spark, servers, folder, yaml.safe_dump(said, sort_keys=False))
    produce.create_topics(servers, *(p.kafka(name) for name in said["topics"]), partitions=size)
    for cut in range(cuts):
        for number, vectors in enumerate(chosen.values()):
            for topic in vectors[0]["operation"]["topics"]:
                told = [
                    sent(record, partition, size)
                    for partition, vector in enumerate(vectors)
                    for place, record in enumerate(vector["records"])
                    if record["topic"] == topic and place * cuts // len(vector["records"]) == cut
                ]
                produce.send_records(servers, p.kafka(f"v{number}_{topic}"), told)
        p.run()
    found: dict[str, dict[str, list[Json]]] = {}
    for number, vectors in enumerate(chosen.values()):
        for view in vectors[0]["operation"]["views"]:
            rows = sorted(
                p.raw(f"emitted/v{number}_{view['name']}"), key=lambda row: (row["_partition"], row["_offset"])
            )
            for partition, vector in enumerate(vectors):
                its = [row for row in rows if row["_partition"] == partition]
                found.setdefault(vector["name"], {})[view["name"]] = [
                    told_as(row, vector, f"v{number}_") for row in its
                ]
    return found


def renamed(operation: Json, prefix: str) -> Json:
    views = [
        {**view, "name": prefix + view["name"], "of": [prefix + name for name in view["of"]]}
        for view in operation["views"]
    ]
    return {**operation, "topics": {prefix + name: spec for name, spec in operation["topics"].items()}, "views": views}


def sent(record: Json, partition: int, size: int) -> produce.ProducerRecord:
    value = None if record["value"] is None else json.dumps({"n": record["value"]}).encode()
    return produce.ProducerRecord(
        diamonds.key(record["key"], partition, size).encode(), value, BASE + record["timestamp"]
    )


def told_as(row: Mapping[str, Json], vector: Json, prefix: str) -> Json:
    millis = (row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) - BASE
    topic = row["_causeTopic"].removeprefix(prefix)
    places = [number for number, record in enumerate(vector["records"]) if record["topic"] == topic]
    return [row["k"].partition(".")[0], None if row["_tombstone"] else row["n"], millis, places[row["_causeOffset"]]]


def unlike(found: Mapping[str, Json], vectors: Iterable[Json]) -> dict[str, tuple[Json, Json]]:
    """The vectors and views of which something else was emitted than is expected: what was, and what is."""
    return {
        f"{vector['name']}: {view}": (found[vector["name"]][view], wanted)
        for vector in vectors
        for view, wanted in vector["expected"]["emitted"].items()
        if found[vector["name"]][view] != wanted
    }


SOME = ("streams/inner-with-its-count", "tables/left-with-its-own-filter-latest")
GROUPS = {
    "streams": ["streams/"],
    "tables that are not versioned": ["-latest"],
    "versioned tables": ["-versioned"],
    "repartitions": ["repartition/"],
}


def chosen(*parts: str) -> dict[str, list[Json]]:
    """The vectors of the shapes in whose names one of these occurs, but for random ones."""
    every = diamonds.load()
    return {name: every[name] for name in every if not name.startswith("random") and any(p in name for p in parts)}


@pytest.mark.long
@pytest.mark.parametrize("cuts", [pytest.param(1, marks=pytest.mark.ci), 3])
def test_contracts_emit_what_the_vectors_expect(spark: SparkSession, broker: str, tmp_path: Path, cuts: int) -> None:
    vectors = chosen(*SOME)
    found = replayed(spark, broker, tmp_path, vectors, cuts)
    assert unlike(found, [one for its in vectors.values() for one in its]) == {}


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_contracts_of_every_shape_emit_what_the_vectors_expect(
    spark: SparkSession, broker: str, tmp_path: Path, group: str
) -> None:
    vectors = chosen(*GROUPS[group])
    found = replayed(spark, broker, tmp_path, vectors)
    assert unlike(found, [one for its in vectors.values() for one in its]) == {}


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
def test_tasks_emit_what_the_vectors_expect_wherever_runs_are_cut(tmp_path: Path, every: int) -> None:
    shapes = list(diamonds.load().values())
    assert sum(map(len, shapes)) > 350
    for vectors in shapes[::every]:
        tasks, rng = Tasks(vectors[0]["operation"], tmp_path), Random(7)  # noqa: S311
        for one in vectors if every == 1 else vectors[:2]:
            assert unlike({one["name"]: tasks.emitted(one["records"])}, [one]) == {}
        tasks.forget()
        cuts = sorted(rng.choices(range(len(one["records"])), k=2) * 2)  # each twice: some runs have no record
        found = [
            tasks.go_on(one["records"][start:end], start)
            for start, end in zip([0, *cuts], [*cuts, len(one["records"])], strict=True)
        ]
        told = {view: [row for part in found for row in part[view]] for view in found[0]}
        assert unlike({one["name"]: told}, [one]) == {}


CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  s: {read: stream, key: {k: string}, value: {n: bigint}}
  t: {read: table, key: {k: string}, value: {n: bigint}}
views:
  VIEWS
"""


def defined_before(contract: Contract, name: str) -> str:
    """The definition of a view in the notes of a warehouse that was written before there was an order by depth."""
    parts = {**contract.topics, **contract.views}
    left_out = {"expect", "sensitive", "max_record_bytes", "keep"}
    told = {
        part: it.model_dump(mode="json", exclude_defaults=True, exclude=left_out)
        for part, it in parts.items()
        if part in contract.list_upstream(name)
    }
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("views", "found"),
    [
        ("n: {stream: s, aggregate: {n: count(*)}}, s_n: {stream: s, join: {table: n}}, e: {stream: s_n}", "s_n e"),
        ("e: {table: t, where: n > 1}, t_e: {table: t, join: {table: e}}", "t_e"),
        ("e: {table: t, where: n > 1}, t_e: {table: t, join: {table: e, 'on': k}}", "t_e"),
        (
            "n: {stream: s, group_by: {g: n}, aggregate: {n: count(*)}}, s_n: {stream: s, join: {table: n, 'on': n}}",
            "s_n",
        ),
        # one path, or the longer one through a repartition topic
        ("a: {stream: s}, s_t: {stream: a, join: {table: t}}, n: {stream: s_t, aggregate: {n: count(*)}}", ""),
        ("n: {table: t, aggregate: {n: count(*)}}, t_n: {table: t, join: {table: n}}", ""),
        ("n: {stream: s, group_by: {k: string(n)}, aggregate: {n: count(*)}}, s_n: {stream: s, join: {table: n}}", ""),
        (
            (
                "e: {table: t, where: n > 1, semantics: corrected}, "
                "t_e: {table: t, join: {table: e}, semantics: corrected}"
            ),
            "",
        ),
    ],
)
def test_what_is_depth_first_is_defined_anew_and_nothing_else_is(views: str, found: str, tmp_path: Path) -> None:
    told = yaml.safe_load(CONTRACT.replace("VIEWS", f"{{{views}}}"))
    told["views"] = {
        name: {
            "semantics": "kafka",
            "select": {"n": f"{it.get('stream', it.get('table'))}.n"} if "aggregate" not in it else None,
            **it,
        }
        for name, it in told["views"].items()
    }
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump(told), encoding="utf-8")
    contract = load(path)
    now = {name: contract.hash_definition(name, formerly=True) for name in contract.views}
    before = {name: defined_before(contract, name) for name in contract.views}
    assert [name for name in contract.ordered_views if now[name] != before[name]] == found.split()
