"""Tasks: vectors as rows through the operators that the jobs run, whole and cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import oracle
import topologies
from hindcast.streams.join_processors import NULL_KEY
from hindcast.streams.spec import ProcessorSpec
from hindcast.streams.task import process_task
from hindcast_conformance.topology import VectorTask, build_row_schema
from hindcast_conformance.translator import translate_operation
from hindcast_conformance.vectors import DeclinedVector, KafkaStreamsError

VECTORS = Path(__file__).parent / "conformance"
SCHEMA = build_row_schema(pa.int64())
Json = Any


def form(operation: Json) -> ProcessorSpec | None:
    """The specification of an operation that is one view of a contract alone, else None."""
    try:
        built = translate_operation(operation)
        contract, specs = built.checked
    except (KafkaStreamsError, DeclinedVector, KeyError):
        return None
    is_one = built.reason is None and not built.fed and contract.topics.keys() >= {*contract.views[built.result].inputs}
    maps = any(step["op"] == "mapValues" for step in built.steps.values())
    return specs[built.result] if is_one and not maps else None


def rows(vector: Json) -> list[Json]:
    """A vector's records as rows of a task, each with a header that has its number."""
    task = VectorTask(vector["operation"], vector["records"])
    return [
        {**row, "headers": [{"key": "n", "value": str(row["order"]["offset"]).encode()}]}
        for row in task.build_rows(task.built.result)
    ]


def run(form: ProcessorSpec, given: list[Json], kept: pa.Table) -> tuple[list[Json], pa.Table]:
    """What rows emit, and what is kept then."""
    new = pa.Table.from_pylist(given, schema=SCHEMA)
    done = process_task(form, pa.concat_tables([kept, new]))
    of_kept = pa.compute.is_valid(done.column("part"))
    return done.filter(pa.compute.invert(of_kept)).to_pylist(), done.filter(of_kept)


def shown(operation: Json, row: Json) -> Json:
    """An emitted row as the vector tells it."""
    key = row["key"]["json"] if row["key"] else None
    if operation["type"] == "windowed_aggregate":
        key = {"key": key, "start": row["start"], "end": row["end"]}
    if not row["put"]:
        value = None
    elif "aggregate" in operation["type"]:
        value = row["measures"]["m0"]
    else:
        sides = [None if row[name] is None else json.loads(row[name]["json"]) for name in ("first", "second")]
        value = {"left": sides[0], "right": sides[1]} if "join" in operation["type"] else sides[0]
    return {"key": key, "value": value, "timestamp": row["time"], "cause": row["order"]["offset"]}


@cache
def vectors() -> list[tuple[Json, ProcessorSpec]]:
    return list(_translate_vectors())


def _translate_vectors() -> Iterator[tuple[Json, ProcessorSpec]]:
    for path in sorted(VECTORS.glob("*.json")):
        for vector in json.loads(path.read_text(encoding="utf-8")):
            if "error" in vector.get("expected", {}) or vector["operation"].get("semantics") == "corrected":
                continue
            its = form(vector["operation"])
            if its is not None:
                yield vector, its


NONE = SCHEMA.empty_table()


@pytest.mark.long
@pytest.mark.ci
def test_the_vectors_pass_as_rows() -> None:
    passed = 0
    for vector, its in vectors():
        emitted, _ = run(its, rows(vector), NONE)
        assert [shown(vector["operation"], row) for row in emitted] == vector["expected"]["emitted"], vector["name"]
        assert [row["n"] for row in emitted] == list(range(len(emitted))), vector["name"]
        causes = [row["order"]["offset"] for row in emitted]
        turns = [causes[:number].count(cause) for number, cause in enumerate(causes)]
        assert [row["order"]["turn"] for row in emitted] == [[turn] for turn in turns], vector["name"]
        passed += 1
    assert passed > 800


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
def test_where_runs_are_cut_changes_nothing(every: int) -> None:
    numbers = np.random.default_rng(8)
    for vector, its in vectors()[::every]:
        given = rows(vector)
        whole, left = run(its, given, NONE)
        cuts = np.sort(numbers.integers(0, len(given) + 1, 3)).tolist()
        kept, emitted = NONE, []
        for start, end in zip([0, *cuts], [*cuts, len(given)], strict=True):
            some, kept = run(its, given[start:end], kept)
            emitted += some
        assert emitted == whole, (vector["name"], cuts)
        assert sorted(map(str, kept.to_pylist())) == sorted(map(str, left.to_pylist())), (vector["name"], cuts)


def test_a_key_that_both_sides_of_a_foreign_key_join_have_keeps_its_results() -> None:
    table = {"versioned": False}
    operation = {"type": "foreign_key_join", "join": "left", "foreignKeyField": "fk", "left": table, "right": table}
    log = [("left", {"fk": "a"}), ("right", {"n": 1}), ("left", None), ("right", {"n": 2}), ("left", {"fk": "a"})]
    records = [{"topic": it, "key": "a", "value": value, "timestamp": n} for n, (it, value) in enumerate(log)]
    given, its = rows({"operation": operation, "records": records}), form(operation)
    assert its is not None
    whole, _ = run(its, given, NONE)
    assert [row["key"] for row in whole] == [{"json": "a"}] * 4
    kept, emitted = NONE, []
    for one in given:
        some, kept = run(its, [one], kept)
        emitted += some
    assert emitted == whole


def headers(row: Json) -> list[int]:
    """The numbers of the records whose headers an emitted row has."""
    return [int(header["value"]) for header in row["headers"] or ()]


def operation(kind: str, **more: Json) -> Json:
    plain = {"versioned": False}
    match kind:
        case "stream_table_join":
            table = {"versioned": True, "historyRetentionMs": 100} if "graceMs" in more else plain
            return {"type": kind, "join": "left", "table": table, **more}
        case "table_table_join":
            return {"type": kind, "join": "outer", "left": plain, "right": plain}
        case "foreign_key_join":
            return {"type": kind, "join": "left", "left": plain, "right": plain, "foreignKeyField": "fk"}
        case "table_aggregate":
            group = {"keyField": "g", "valueField": "n"}
            return {"type": kind, "aggregation": "sum", "table": plain, "groupBy": group}
        case "suppress":
            limit = {"op": "suppressUntilTimeLimit", "timeLimitMs": 5}
            return {"type": "table_transform", "table": {**plain, "transforms": [limit]}}
        case "stream_stream_join":
            return {"type": kind, "join": "outer", "window": {"beforeMs": 5, "afterMs": 5, "graceMs": 0}}
        case "stream_aggregate":
            return {"type": kind, "aggregation": "count"}
    return {"type": "windowed_aggregate", "aggregation": "count", "window": {"kind": kind, "graceMs": 0, **more}}


def windowed(kind: str, emit: str) -> Json:
    length = {"tumbling": "sizeMs", "sliding": "timeDifferenceMs", "session": "inactivityGapMs"}[kind]
    return {**operation(kind, **{length: 10}, storeRetentionMs=100), "emit": emit}


LATER, CLOSES = "suppress_until_window_closes", "on_window_close"
MEMBERS = [("table", "a", {"g": "x", "n": 1}, 0), ("table", "a", {"g": "y", "n": 1}, 1)]
THREE = [("stream", "a", 1, 0), ("stream", "a", 2, 5), ("stream", "b", 3, 50)]
"""Two records of one window or session of ten milliseconds, and one that closes it."""

HAS_HEADERS_OF = [
    # what; records: topic, key, value, timestamp; the record that causes each result, and those whose headers it has
    (operation("stream_table_join"), [("table", "a", 1, 0), ("stream", "a", 2, 0)], [(1, [1])]),
    (operation("stream_table_join", graceMs=5), [("stream", "a", 1, 0), ("stream", "b", 2, 1), ("stream", "b", 3, 9),
                                                 ("stream", "c", 4, 0)], [(2, [0]), (2, [1]), (3, [3])]),
    (operation("table_table_join"), [("left", "a", 1, 0), ("right", "a", 2, 0), ("left", "a", None, 1)],
     [(0, [0]), (1, [1]), (2, [2])]),
    (operation("foreign_key_join"), [("left", "a", {"fk": "x"}, 0), ("left", "b", {"fk": "x"}, 0),
                                     ("right", "x", 1, 0)], [(0, [0]), (1, [1]), (2, [2]), (2, [2])]),
    (operation("table_aggregate"), MEMBERS, [(0, [0]), (1, [1]), (1, [1])]),
    (operation("stream_aggregate"), THREE, [(0, [0]), (1, [1]), (2, [2])]),
    (operation("suppress"), [("table", "a", 1, 0), ("table", "b", 2, 1), ("table", "a", None, 2), ("table", "c", 3, 6)],
     [(3, [2]), (3, [1])]),
    (operation("stream_stream_join"), [("left", "a", 1, 0), ("right", "a", 2, 1), ("left", "b", 3, 2),
                                       ("left", "c", 4, 20), ("right", None, 5, 21)],
     [(1, [1]), (3, [3]), (4, [4])]),
    *((windowed(kind, "update"), THREE[:2], [(0, [0]), *[(1, [1])] * results])
      for kind, results in (("tumbling", 1), ("sliding", 2))),
    (windowed("tumbling", LATER), THREE, [(2, [1])]),
    (windowed("sliding", LATER), THREE, [(2, [1]), (2, [1]), (2, [2])]),
    (windowed("tumbling", CLOSES), THREE, [(2, [2])]),
    (windowed("session", "update"), THREE[:2], [(0, []), (1, []), (1, [])]),
    (windowed("session", LATER), THREE, [(2, [])]),
    (windowed("session", CLOSES), THREE, [(2, [2])]),
]  # fmt: skip


def told_by_hand(operation: Json, records: list[tuple[Any, ...]]) -> Json:
    names = ("topic", "key", "value", "timestamp")
    found = [dict(zip(names, record, strict=True)) for record in records]
    return {"name": str(records), "operation": operation, "records": found}


@pytest.mark.parametrize(("operation", "records", "wanted"), HAS_HEADERS_OF)
def test_a_result_has_the_headers_of_one_record_wherever_runs_are_cut(
    operation: Json, records: list[tuple[Any, ...]], wanted: list[tuple[int, list[int]]]
) -> None:
    given, its = rows(told_by_hand(operation, records)), form(operation)
    assert its is not None
    for cut in range(len(given) + 1):
        before, kept = run(its, given[:cut], NONE)
        after, _ = run(its, given[cut:], kept)
        assert [(row["order"]["offset"], headers(row)) for row in (*before, *after)] == wanted, cut


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
def test_only_what_waits_keeps_headers(every: int) -> None:
    for vector, its in vectors()[::every]:
        _, kept = run(its, rows(vector), NONE)
        waits = {row["part"] for row in kept.to_pylist() if row["headers"] is not None}
        assert waits <= {"buffer", "suppressed", "waiting"}, vector["name"]


@pytest.mark.long
def test_every_result_has_the_headers_that_kafka_streams_gives_it() -> None:
    more = [vector for family in topologies.FAMILIES for vector in topologies.vectors(family, 30)]
    more += [told_by_hand(operation, records) for operation, records, _ in HAS_HEADERS_OF]
    every = [*(vector for vector, _ in vectors()), *(vector for vector in more if form(vector["operation"]))]
    asked = [
        {**vector, "records": [{**record, "headers": [["n", str(n)]]} for n, record in enumerate(vector["records"])]}
        for vector in every
    ]
    compared = 0
    for vector, told in zip(every, oracle.expected(asked), strict=True):
        its = form(vector["operation"])
        assert its is not None
        if "error" not in told["expected"]:
            wanted = [[int(value) for _, value in result["headers"]] for result in told["expected"]["emitted"]]
            assert [headers(row) for row in run(its, rows(vector), NONE)[0]] == wanted, vector["name"]
            compared += len(wanted)
    assert compared > 5000


def test_partitions_of_one_task_do_not_see_each_other() -> None:
    alike: dict[str, list[Json]] = {}
    for vector, its in vectors():
        alike.setdefault(repr(its), []).append(vector)
    pairs = [(one, two) for some in alike.values() for one, two in zip(some[::2], some[1::2], strict=False)]
    assert len(pairs) > 100
    for pair in pairs:
        its = form(pair[0]["operation"])
        assert its is not None
        given = [
            {**row, "partition": p, "home": p, "order": {**row["order"], "reached": number, "partition": p}}
            for number, turn in enumerate(zip_longest(*map(rows, pair)))
            for p, row in enumerate(turn)
            if row is not None
        ]
        emitted, _ = run(its, given, NONE)
        orders = [(row["order"]["reached"], row["order"]["partition"], row["order"]["turn"]) for row in emitted]
        assert orders == sorted(orders)
        for p, vector in enumerate(pair):
            found = [shown(vector["operation"], row) for row in emitted if row["partition"] == p]
            assert found == vector["expected"]["emitted"], vector["name"]


def test_a_null_key_in_a_left_join_with_grace_stops_at_its_record() -> None:
    path = VECTORS / "stream_table_join_grace.json"
    vector = next(v for v in json.loads(path.read_text(encoding="utf-8")) if v["name"].endswith("/null-key-left"))
    its = form(vector["operation"])
    assert its is not None
    with pytest.raises(ValueError, match=f"{NULL_KEY}: 0, 0, 2"):
        run(its, rows(vector), NONE)
