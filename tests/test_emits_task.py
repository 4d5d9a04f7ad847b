"""Tasks: vectors as rows through the operators that the jobs run, whole and cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hindcast.conformance.topology import windows_of
from hindcast.emits.closing import Emit
from hindcast.emits.stream_stream import Window
from hindcast.emits.task import NULL_KEY, Form, Store, process

VECTORS = Path(__file__).parent / "conformance"
TEXT = pa.struct([("json", pa.string())])
ORDER = pa.struct(
    [
        ("run", pa.int64()),
        ("reached", pa.int64()),
        ("topic", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("turn", pa.list_(pa.int32())),
    ]
)
SCHEMA = pa.schema(
    [
        ("part", pa.string()),
        ("side", pa.int32()),
        ("partition", pa.int32()),
        ("id", pa.binary()),
        ("other", pa.binary()),
        ("home", pa.int32()),
        ("time", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("put", pa.bool_()),
        ("passes", pa.bool_()),
        ("n", pa.int64()),
        ("order", ORDER),
        ("key", TEXT),
        ("first", TEXT),
        ("second", TEXT),
        ("numbers", pa.struct([("m0", pa.int64())])),
        ("measures", pa.struct([("m0", pa.int64())])),
    ]
)
Json = Any


def told(table: Json) -> Store:
    return Store(table["versioned"], table.get("historyRetentionMs"))


def form(operation: Json) -> Form | None:
    """The form of an operation; None for what a contract cannot say."""
    sides = [operation[name] for name in ("left", "right", "table") if isinstance(operation.get(name), dict)]
    steps = [step for side in sides for step in side.get("transforms") or ()]
    plain = {"op": "filter", "predicate": {"type": "even"}}
    if any(not side.get("materialized", True) for side in sides):
        return None
    filters = operation["type"] == "table_transform" and steps == [plain]
    if steps and not filters and [step["op"] for step in steps] != ["suppressUntilTimeLimit"]:
        return None
    result = told(operation["materialized"]) if "materialized" in operation else None
    measure = {"count": "rows", "sum": "sum"}.get(operation.get("aggregation", ""))
    if "aggregation" in operation and measure is None:
        return None
    match operation["type"]:
        case "stream_table_join":
            grace = operation.get("graceMs")
            return Form("stream_table", operation["join"], {1: told(operation["table"])}, grace=grace)
        case "table_table_join":
            stores = {0: told(operation["left"]), 1: told(operation["right"])}
            return Form("table_table", operation["join"], stores, result=result)
        case "foreign_key_join":
            stores = {0: told(operation["left"]), 1: told(operation["right"])}
            return Form("foreign_key", operation["join"], stores, result=result)
        case "table_transform":
            limit = steps[0]["timeLimitMs"] if steps and not filters else None
            return Form("table", stores={0: told(operation["table"])}, filters=filters, suppress=limit)
        case "table_aggregate":
            return Form("aggregate", stores={0: told(operation["table"])}, result=result, measures=(str(measure),))
        case "stream_aggregate":
            return Form("aggregate", result=result, measures=(str(measure),))
        case "windowed_aggregate" if operation["aggregation"] == "count":
            its = windows_of(operation["window"])
            return Form("windows", windows=its, emit=Emit(operation["emit"]), measures=("rows",))
        case "stream_stream_join":
            its = operation["window"]
            span = Window(its["beforeMs"], its["afterMs"], its["graceMs"])
            return Form("pairs", operation["join"], span=span)
    return None


def rows(vector: Json) -> list[Json]:
    """A vector's records as rows of a task."""
    operation = vector["operation"]
    side = {"left": 0, "stream": 0, "right": 1, "table": 1 if "stream" in operation["type"] else 0}
    found = []
    for number, record in enumerate(vector["records"]):
        key, value = record["key"], record["value"]
        id_ = None if key is None else str(key).encode()
        row = {"side": side[record["topic"]], "partition": 0, "id": id_, "time": record["timestamp"]}
        text = None if value is None else {"json": json.dumps(value)}
        keyless = key is None or (operation["type"] == "foreign_key_join" and record["topic"] == "right")
        row |= {"put": value is not None, "passes": True, "key": None if keyless else {"json": key}}
        row |= {"first" if row["side"] == 0 else "second": text}
        row["order"] = {"run": 1, "reached": 0, "topic": 0, "partition": 0, "offset": number, "turn": []}
        if operation["type"] == "foreign_key_join" and record["topic"] == "left" and isinstance(value, dict):
            named = value.get(operation["foreignKeyField"])
            row |= {"other": None if named is None else str(named).encode(), "home": 0}
        if operation["type"] == "table_aggregate" and isinstance(value, dict):
            group, counted = (value.get(operation["groupBy"][field]) for field in ("keyField", "valueField"))
            there = group is not None and counted is not None
            row |= {"other": str(group).encode() if there else None, "home": 0, "numbers": {"m0": counted}}
            row["key"] = {"json": group} if there else None
        steps = operation["table"].get("transforms") if operation["type"] == "table_transform" else None
        if steps and steps[0]["op"] == "filter":
            row["passes"] = value is not None and value % 2 == 0
        if operation["type"] in ("stream_aggregate", "windowed_aggregate"):
            row["numbers"] = {"m0": value}
        found.append(row)
    return found


def run(form: Form, given: list[Json], kept: pa.Table) -> tuple[list[Json], pa.Table]:
    """What rows emit, and what is kept then."""
    new = pa.Table.from_pylist(given, schema=SCHEMA)
    done = process(form, pa.concat_tables([kept, new]))
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


def vectors() -> Iterator[tuple[Json, Form]]:
    for path in sorted(VECTORS.glob("*.json")):
        for vector in json.loads(path.read_text(encoding="utf-8")):
            if "error" in vector.get("expected", {}) or vector["operation"].get("semantics") == "corrected":
                continue
            its = form(vector["operation"])
            if its is not None:
                yield vector, its


NONE = SCHEMA.empty_table()


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


def test_where_runs_are_cut_changes_nothing() -> None:
    numbers = np.random.default_rng(8)
    for vector, its in vectors():
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
    with pytest.raises(ValueError, match=f"{NULL_KEY}: input 0, partition 0, offset 2"):
        run(its, rows(vector), NONE)
