"""Generated histories: random operations and logs, with what the vectors lack (partitions, ttl, re-keying, chains).

A history is a conformance vector whose `expected` is computed by the plain-Python reference, so that thousands run as a
few Spark jobs, and a failing one is shown as vectors are: records and drawn planes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import SparkSession

import reference
from hindcast_conformance import Outcome, Vector, run_vectors

Json = Any
_UNLIMITED = 10**9


def histories(seed: int, count: int, *, expiring: bool = True) -> list[Vector]:
    """`count` histories, the same for the same seed. Without `expiring` nothing is too old for a table or a window.

    The first are those that chance seldom finds (`_RARE`).
    """
    generated = [history(f"{seed}/{number}", expiring=expiring) for number in range(count - len(_RARE))]
    return [*(vector(f"{seed}/{name}", *rare) for name, rare in _RARE.items()), *generated]


def history(seed: str, *, expiring: bool = True) -> Vector:
    """One history: an operation, and a log of up to 14 records on two partitions in up to five runs."""
    dice = random.Random(seed)  # noqa: S311 - histories, not secrets
    operation = {**dice.choice(_OPERATIONS)(dice, expiring), "semantics": "corrected"}
    return vector(seed, operation, _log(dice, operation))


def vector(name: str, operation: Json, records: Sequence[Json]) -> Vector:
    """A history as a vector, with what the reference expects of it."""
    return Vector(operation["type"], name, operation, tuple(records), reference.expected(operation, records))


def shrunk(spark: SparkSession, failing: Vector, tries: int = 6) -> Outcome:
    """A smaller history that still fails: leaves out what it can do without, all candidates of a round in one go."""
    smallest = run_vectors(spark, [failing])[0]
    for _ in range(tries):
        records = smallest.vector.records
        halves = [records[: len(records) // 2], records[len(records) // 2 :]] if len(records) > 3 else []
        fewer = [*halves, *(records[:n] + records[n + 1 :] for n in range(len(records)))]
        candidates = [vector(f"{failing.name} #{n}", failing.operation, log) for n, log in enumerate(fewer)]
        smaller = next((one for one in run_vectors(spark, candidates) if one.state == "failed"), None)
        if smaller is None:
            break
        smallest = smaller
    return smallest


def recut(dice: random.Random, records: Sequence[Json]) -> list[Json]:
    """The same log, cut into runs in another way."""
    runs = sorted(dice.randint(1, 5) for _ in records)
    return [{**record, "run": run} for record, run in zip(records, runs, strict=True)]


def shuffled(dice: random.Random, records: Sequence[Json]) -> list[Json]:
    """The same records in another order of arrival; records of equal timestamps keep theirs."""
    moments = sorted({record["timestamp"] for record in records}, key=lambda _: dice.random())
    order = [record for moment in moments for record in records if record["timestamp"] == moment]
    return recut(dice, order)


# --- operations ----------------------------------------------------------------------------------------------------


def _table(dice: random.Random, expiring: bool) -> Json:
    retention = dice.choice([0, 3, 8, 20]) if expiring and dice.random() < 0.6 else _UNLIMITED
    table: Json = {"versioned": True, "historyRetentionMs": retention}
    if dice.random() < 0.3:
        table["ttlMs"] = dice.choice([1, 4, 9])
    return table


def _numbers(dice: random.Random, expiring: bool) -> Json:
    """A table of numbers, maybe transformed."""
    steps = [
        {"op": "filter", "predicate": {"type": "even"}},
        {"op": "filter", "predicate": {"type": "gte", "value": 3}},
        {"op": "mapValues", "multiplyBy": 3},
    ]
    return {**_table(dice, expiring), "transforms": dice.sample(steps, dice.choice([0, 0, 1, 2]))}


def _objects(dice: random.Random, expiring: bool, rekeyed: float = 0.4) -> Json:
    """A table of objects, maybe with another key."""
    steps = [{"op": "rekey", "field": "g"}] if dice.random() < rekeyed else []
    return {**_table(dice, expiring), "transforms": steps}


def _pair(dice: random.Random, expiring: bool, nested: bool = False) -> Json:
    """A join of two tables of objects; nested ones are of two kinds only, each a Spark job."""
    if dice.random() < 0.5:
        sides = {side: _objects(dice, expiring, 0.0) for side in ("left", "right")}
        if dice.random() < 0.5:
            sides["left"]["transforms"] = sides["right"]["transforms"] = [{"op": "rekey", "field": "g"}]
        return {
            "type": "table_table_join",
            "join": "outer" if nested else dice.choice(["inner", "left", "outer"]),
            **sides,
        }
    left, right = _objects(dice, expiring), _objects(dice, expiring, 0.0)
    how = "left" if nested else dice.choice(["inner", "left"])
    return {"type": "foreign_key_join", "join": how, "foreignKeyField": "fk", "left": left, "right": right}


def _table_transform(dice: random.Random, expiring: bool) -> Json:
    table = _numbers(dice, expiring) if dice.random() < 0.6 else _objects(dice, expiring)
    return {"type": "table_transform", "table": table}


def _stream_table_join(dice: random.Random, expiring: bool) -> Json:
    operation = {"type": "stream_table_join", "join": dice.choice(["inner", "left"])}
    if dice.random() < 0.3:
        return {**operation, "join": "left", "table": {"join": _pair(dice, expiring, nested=True)}}
    if dice.random() < 0.4:
        return {**operation, "table": _numbers(dice, expiring), "onField": "fk"}
    return {**operation, "table": _numbers(dice, expiring)}


def _table_aggregate(dice: random.Random, expiring: bool) -> Json:
    aggregation = dice.choice(["count", "sum", "min", "max", "avg"])
    if dice.random() < 0.4:
        group = {"keyField": dice.choice(["left.g", "right.g"]), "valueField": "left.n"}
        table = {"join": _pair(dice, expiring, nested=True)}
    else:
        group, table = {"keyField": "g", "valueField": "n"}, _objects(dice, expiring)
    return {"type": "table_aggregate", "aggregation": aggregation, "groupBy": group, "table": table}


def _stream_aggregate(dice: random.Random, expiring: bool) -> Json:  # noqa: ARG001 - like the others
    return {"type": "stream_aggregate", "aggregation": dice.choice(["count", "sum", "min", "max", "avg"])}


def _windowed_aggregate(dice: random.Random, expiring: bool) -> Json:
    grace = dice.choice([0, 2, 6]) if expiring else _UNLIMITED
    window = dice.choice(
        [
            {"kind": "tumbling", "sizeMs": dice.choice([1, 4, 7])},
            {"kind": "hopping", "sizeMs": dice.choice([2, 5]), "advanceMs": dice.choice([1, 2, 3])},
            {"kind": "sliding", "timeDifferenceMs": dice.choice([0, 3, 6])},
            {"kind": "session", "inactivityGapMs": dice.choice([0, 2, 4])},
            {"kind": "session", "inactivityGapMs": dice.choice([1, 3, 5])},
        ]
    )
    aggregation = dice.choice(["count", "sum", "min", "max"])
    return {"type": "windowed_aggregate", "aggregation": aggregation, "window": {**window, "graceMs": grace}}


def _stream_stream_join(dice: random.Random, expiring: bool) -> Json:  # noqa: ARG001 - like the others
    window = {"beforeMs": dice.choice([0, 1, 4]), "afterMs": dice.choice([0, 2, 5]), "graceMs": 0}
    return {"type": "stream_stream_join", "join": dice.choice(["inner", "left", "outer"]), "window": window}


_OPERATIONS: list[Callable[[random.Random, bool], Json]] = [
    _table_transform,
    _pair,
    _stream_table_join,
    _table_aggregate,
    _stream_aggregate,
    _windowed_aggregate,
    _windowed_aggregate,
    _stream_stream_join,
]


# --- what chance seldom finds ------------------------------------------------------------------------------------


def _records(*rows: tuple[int, str, Json, int, int], topic: str = "table") -> tuple[Json, ...]:
    """Records of `run, key, value, timestamp, partition`."""
    names = "run", "key", "value", "timestamp", "partition"
    return tuple({"topic": topic, **dict(zip(names, row, strict=True))} for row in rows)


_COUNTED: Json = {
    "type": "table_aggregate",
    "aggregation": "count",
    "groupBy": {"keyField": "g", "valueField": "n"},
    "table": {"versioned": True, "historyRetentionMs": _UNLIMITED, "transforms": []},
    "semantics": "corrected",
}
_RARE: dict[str, tuple[Json, tuple[Json, ...]]] = {
    "a rival of equal timestamp that does not show": (
        {
            "type": "table_transform",
            "table": {"versioned": True, "historyRetentionMs": _UNLIMITED, "transforms": []},
            "semantics": "corrected",
        },
        _records((1, "a", 2, 5, 0), (2, "a", 2, 5, 1), (3, "a", 3, 5, 0)),
    ),
    "two islands within one believed row": (
        _COUNTED,
        _records(
            (1, "a", {"g": "x", "n": 1}, 0, 0),
            (2, "b", {"g": "x", "n": 1}, 1, 0),
            (2, "b", None, 2, 0),
            (2, "a", {"g": "x", "n": 7}, 3, 0),
            (2, "a", {"g": "x", "n": 1}, 4, 0),
        ),
    ),
}
"""Histories with which a wrong reading was found that 1,500 others had passed (mutations.py)."""


# --- logs ------------------------------------------------------------------------------------------------------------


def _log(dice: random.Random, operation: Json) -> list[Json]:
    horizon = dice.choice([6, 15, 30])
    records = []
    for _ in range(dice.randint(1, 14)):
        topic = dice.choice(reference.topics(operation))
        records.append(
            {
                "topic": topic,
                "partition": dice.randrange(2),
                "key": None if dice.random() < 0.05 else dice.choice("abc"),
                "value": _value(dice, operation, topic),
                "timestamp": dice.randint(0, horizon),
                "run": 1,
            }
        )
    return recut(dice, records)


def _value(dice: random.Random, operation: Json, topic: str) -> Json:
    if dice.random() < 0.12:
        return None
    if not _of_objects(operation, topic):
        return dice.randint(0, 9)
    maybe = [None, "x", "y"] if dice.random() < 0.5 else ["x", "y"]
    return {"g": dice.choice(maybe), "fk": dice.choice(["a", "b", "c", None]), "n": dice.choice([1, 2, 2, 5, None])}


def _of_objects(operation: Json, topic: str) -> bool:
    """Whether a topic's values are objects; otherwise they are numbers."""
    if topic == "stream":
        return "onField" in operation
    table = dict(reference.tables(operation)).get(topic)
    if table is None:
        return False
    of_a_pair = operation["type"] in {"table_table_join", "foreign_key_join"} or "join" in operation["table"]
    return of_a_pair or operation["type"] == "table_aggregate" or "rekey" in str(table)
