"""Random vectors, without what is expected, of every family and by seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from drawing import FURTHEST, Records, digit, drawn, few_keys, length, member, number, reference, timestamps

Json = Any
Operation = dict[str, Json]

RETENTIONS = (5, 10, 20, 30, 50, FURTHEST)
LONG = 1_000_000


def vectors(family: str, count: int, seed: int = 0) -> Iterator[dict[str, Json]]:
    """Vectors without what is expected; those of one family and seed are always the same."""
    for place in range(count):
        name = f"{family}/random-{seed}-{place:05d}"
        rng = Random(zlib.crc32(name.encode()))  # noqa: S311
        operation, records = FAMILIES[family](rng)
        yield {"name": name, "description": "Random records.", "operation": operation, "records": records}


def scaled(vector: dict[str, Json], factor: int) -> dict[str, Json]:
    """The same with all durations and timestamps multiplied, so that they span more than a store's segment."""

    def longer(value: Json, name: str = "") -> Json:
        if isinstance(value, dict):
            return {field: longer(inner, field) for field, inner in value.items()}
        if isinstance(value, list):
            return [longer(inner) for inner in value]
        return value * factor if name.endswith("Ms") or name in _TIMES else value

    return {**vector, "operation": longer(vector["operation"]), "records": longer(vector["records"])}


_TIMES = ("timestamp", "asOf", "from", "to")


# Families


def _store(rng: Random) -> tuple[Operation, Records]:
    operation = {"type": "store", **_versioned(rng, (0, *RETENTIONS[:-1]))}
    keys, times = few_keys(rng), timestamps(rng, operation, length(rng))
    steps: Records = []
    for place, time in enumerate(times):
        key = rng.choice(keys)
        if rng.random() < 0.08:
            steps.append({"op": "delete", "key": key, "timestamp": time})
        elif rng.random() < 0.2:
            steps.append(_question(rng, key, time))
        else:
            value = None if rng.random() < 0.25 else place + 1
            steps.append({"op": "put", "key": key, "value": value, "timestamp": time})
    for key in sorted(set(keys)):
        steps += [{"op": "get", "key": key}]
        steps += [{"op": "get", "key": key, "asOf": time} for time in rng.sample(times, min(3, len(times)))]
        steps += [_question(rng, key, rng.choice(times)) for _ in range(rng.choice((0, 1)))]
    return operation, steps


def _question(rng: Random, key: str, time: int) -> dict[str, Json]:
    op = rng.choice(("get", "get", "queryAsOf", "query", "query"))
    step: dict[str, Json] = {"op": op, "key": key}
    if op != "query":
        return {**step, "asOf": time} if rng.random() < 0.8 else step
    if rng.random() < 0.8:
        step["from"] = time
    if rng.random() < 0.8:
        step["to"] = time + rng.choice((0, 1, 3, 10))
    return {**step, "order": rng.choice(("asc", "desc"))} if rng.random() < 0.5 else step


def _stream_table_join(rng: Random) -> tuple[Operation, Records]:
    operation = {"type": "stream_table_join", "join": _join(rng), "table": _table(rng, versioned=0.67)}
    return operation, drawn(rng, operation, {"table": number, "stream": number}, null_key=0.02)


def _stream_table_join_grace(rng: Random) -> tuple[Operation, Records]:
    table = _table(rng, versioned=1, retentions=RETENTIONS[:-1])
    retention = table["historyRetentionMs"]
    grace = rng.choice([grace for grace in (0, 1, 2, 5, 10, 20, retention // 2, retention) if grace <= retention])
    operation = {"type": "stream_table_join", "join": _join(rng), "table": table, "graceMs": grace}
    null_key = 0.02 if operation["join"] == "inner" or rng.random() < 0.1 else 0
    return operation, drawn(rng, operation, {"table": number, "stream": number}, null_key=null_key)


def _table_table_join(rng: Random) -> tuple[Operation, Records]:
    operation = {"type": "table_table_join", "join": _join(rng, "outer"), "left": _table(rng), "right": _table(rng)}
    operation |= _result(rng, 0.1)
    return operation, drawn(rng, operation, {"left": number, "right": number}, null_key=0.01)


def _foreign_key_join(rng: Random) -> tuple[Operation, Records]:
    sides = {"left": _table(rng), "right": _table(rng)}
    operation = {"type": "foreign_key_join", "join": _join(rng), "foreignKeyField": "fk", **sides, **_result(rng, 0.12)}
    return operation, _foreign_key_records(rng, operation)


def _foreign_key_records(rng: Random, operation: Operation) -> Records:
    foreign = rng.sample(("x", "y", "z"), rng.choice((1, 2, 2, 3)))
    makes = {"left": reference(foreign), "right": number}
    return drawn(rng, operation, makes, null_key=0.01, keys={"right": foreign})


def _table_aggregate(rng: Random) -> tuple[Operation, Records]:
    operation = {
        "type": "table_aggregate",
        "aggregation": _aggregation(rng),
        "groupBy": {"keyField": "g", "valueField": "n"},
        "table": _table(rng),
        **_result(rng, 0.25),
    }
    return operation, drawn(rng, operation, {"table": member}, null_key=0.01)


def _stream_aggregate(rng: Random) -> tuple[Operation, Records]:
    operation = {"type": "stream_aggregate", "aggregation": _aggregation(rng), **_result(rng, 0.5)}
    return operation, drawn(rng, operation, {"stream": digit}, null_key=0.03)


def _to_table(rng: Random) -> tuple[Operation, Records]:
    operation = {"type": "to_table", "materialized": _table(rng)}
    return operation, drawn(rng, operation, {"stream": number}, null_key=0.03)


def _table_transform(rng: Random) -> tuple[Operation, Records]:
    table = {"versioned": False, "materialized": False} if rng.random() < 0.33 else _table(rng, versioned=0.5)
    table["transforms"] = _transforms(rng, ("filter", "filter", "mapValues", "toStreamToTable", "count"), 3)
    operation = {"type": "table_transform", "table": table}
    return operation, drawn(rng, operation, {"table": number}, null_key=0.01)


def _table_suppress(rng: Random) -> tuple[Operation, Records]:
    suppress = {"op": "suppressUntilTimeLimit", "timeLimitMs": rng.choice((1, 5, 10))}
    operation = {"type": "table_transform", "table": {"versioned": False, "transforms": [suppress]}}
    return operation, drawn(rng, operation, {"table": number}, null_key=0.01)


def _derived_tables(rng: Random) -> tuple[Operation, Records]:
    if rng.random() < 0.5:
        operation, _ = _stream_table_join(rng)
        operation["table"]["transforms"] = _transforms(rng, _DERIVING, 2)
        return operation, drawn(rng, operation, {"table": number, "stream": number}, null_key=0.01)
    operation, _ = _table_table_join(rng)
    for side in rng.choice((["left"], ["left"], ["right"], ["left", "right"])):
        operation[side]["transforms"] = _transforms(rng, _DERIVING, 2)
    return operation, drawn(rng, operation, {"left": number, "right": number}, null_key=0.01)


_DERIVING = ("filter", "filter", "mapValues", "toStreamToTable", "count")


def _derived_further(rng: Random) -> tuple[Operation, Records]:
    """What the vectors do not have, and the rules do: sources without a store under every operation, and suppression
    beside other transforms."""
    kind = rng.choice(("join", "foreign_key", "aggregate", "suppress"))
    if kind == "join":
        operation, _ = _derived_tables(rng)
        for side in ("table", "left", "right"):
            if not operation.get(side, {}).get("versioned", True):
                operation[side]["materialized"] = False
        topics = ("table", "stream") if "table" in operation else ("left", "right")
        return operation, drawn(rng, operation, dict.fromkeys(topics, number), null_key=0.01)
    if kind == "suppress":
        operation, _ = _table_suppress(rng)
        transforms = _transforms(rng, ("filter", "mapValues", "toStreamToTable", "count"), 2)
        transforms.insert(rng.randint(0, len(transforms)), operation["table"]["transforms"][0])
        store = _table(rng, versioned=0.3) if rng.random() < 0.6 else {"versioned": False, "materialized": False}
        operation["table"] = {**store, "transforms": transforms}
        return operation, drawn(rng, operation, {"table": number}, null_key=0.01)
    operation, records = _foreign_key_join(rng) if kind == "foreign_key" else _table_aggregate(rng)
    for side in ("table", "left", "right"):
        if side in operation and rng.random() < 0.5:
            operation[side]["transforms"] = _transforms(rng, ("toStreamToTable",), 2)
        if side in operation and not operation[side]["versioned"] and rng.random() < 0.7:
            operation[side]["materialized"] = False
    return operation, records


def _invalid_topology(rng: Random) -> tuple[Operation, Records]:
    """Some of them are refused, and some are not."""
    operation, records = _derived_tables(rng)
    kind = rng.choice(("grace", "suppress", "retention", "global"))
    if kind == "grace" and "table" in operation:
        return {**operation, "graceMs": rng.choice((-1, 0, 5, 10, 20, 50))}, records
    if kind == "suppress":
        side = "left" if "left" in operation else "table"
        transform = {"op": "suppressUntilTimeLimit", "timeLimitMs": rng.choice((1, 5, 10))}
        operation[side]["transforms"] = [*operation[side].get("transforms", []), transform]
        return operation, records
    if kind == "global" and "table" in operation:
        return {"type": "stream_global_table_join", "join": "inner", "table": _table(rng, versioned=1)}, []
    side = rng.choice([side for side in ("table", "left", "right") if side in operation])
    operation[side] = {**operation[side], **_versioned(rng, (-1, -5, 0))}
    return operation, records


def _stream_stream_join(rng: Random) -> tuple[Operation, Records]:
    window = {"beforeMs": rng.choice((0, 3, 5, 10)), "afterMs": rng.choice((0, 5, 8, 10))}
    window["graceMs"] = rng.choice((0, 3, 5, 10))
    operation = {"type": "stream_stream_join", "join": _join(rng, "outer"), "window": window}
    return operation, drawn(rng, operation, {"left": number, "right": number}, null_key=0.03, null=0.04)


def _windowed(kind: str) -> Callable[[Random], tuple[Operation, Records]]:
    def draw(rng: Random) -> tuple[Operation, Records]:
        window, _ = _window(rng, kind)
        emit = rng.choice(_EMITS)
        if emit == "on_window_close" or (kind in ("sliding", "session") and rng.random() < 0.5):
            window["storeRetentionMs"] = LONG
        return _windowed_aggregate(rng, window, emit)

    return draw


def _windowed_reach(rng: Random) -> tuple[Operation, Records]:
    """Windows that get out of the reach of their store while they still matter."""
    window, least = _window(rng, rng.choice(("tumbling", "hopping", "sliding", "session")))
    if rng.random() < 0.6:
        window["storeRetentionMs"] = least + rng.choice((0, 1, 3, 10, 50))
    return _windowed_aggregate(rng, window, rng.choice((*_EMITS, "on_window_close")))


_EMITS = ("update", "suppress_until_window_closes", "on_window_close")


def _window(rng: Random, kind: str) -> tuple[dict[str, Json], int]:
    """A window, and the least retention that its store can have."""
    grace = rng.choice((0, 0, 3, 5, 10, 20))
    if kind == "sliding":
        difference = rng.choice((1, 3, 5, 10))
        return {"kind": kind, "timeDifferenceMs": difference, "graceMs": grace}, 2 * difference + grace
    if kind == "session":
        gap = rng.choice((0, 2, 5, 10))
        return {"kind": kind, "inactivityGapMs": gap, "graceMs": grace}, gap + grace
    size = rng.choice((5, 10, 12, 20))
    advance = {} if kind == "tumbling" else {"advanceMs": rng.choice([n for n in (1, 2, 3, 4, 5, 7) if n <= size])}
    return {"kind": kind, "sizeMs": size, **advance, "graceMs": grace}, size + grace


def _windowed_aggregate(rng: Random, window: dict[str, Json], emit: str) -> tuple[Operation, Records]:
    operation = {"type": "windowed_aggregate", "aggregation": _aggregation(rng), "window": window, "emit": emit}
    return operation, drawn(rng, operation, {"stream": digit}, null_key=0.015, null=0.03)


FAMILIES: dict[str, Callable[[Random], tuple[Operation, Records]]] = {
    "derived_tables": _derived_tables,
    "derived_further": _derived_further,
    "foreign_key_join": _foreign_key_join,
    "invalid_topology": _invalid_topology,
    "store": _store,
    "stream_aggregate": _stream_aggregate,
    "stream_stream_join": _stream_stream_join,
    "stream_table_join": _stream_table_join,
    "stream_table_join_grace": _stream_table_join_grace,
    "table_aggregate": _table_aggregate,
    "table_suppress": _table_suppress,
    "table_table_join": _table_table_join,
    "table_transform": _table_transform,
    "to_table": _to_table,
    "windowed_hopping": _windowed("hopping"),
    "windowed_reach": _windowed_reach,
    "windowed_session": _windowed("session"),
    "windowed_sliding": _windowed("sliding"),
    "windowed_tumbling": _windowed("tumbling"),
}
"""The families of the vectors, and two more: `derived_further`, `windowed_reach`."""


# Parts of operations


def _join(rng: Random, *further: str) -> str:
    return rng.choice(("inner", "left", *further))


def _aggregation(rng: Random) -> str:
    return rng.choice(("count", "sum", "trace"))


def _table(rng: Random, versioned: float = 0.5, retentions: Sequence[int] = RETENTIONS) -> dict[str, Json]:
    return _versioned(rng, retentions) if rng.random() < versioned else {"versioned": False}


def _versioned(rng: Random, retentions: Sequence[int]) -> dict[str, Json]:
    retention = rng.choice(retentions)
    store: dict[str, Json] = {"versioned": True, "historyRetentionMs": retention}
    if rng.random() < 0.4:
        store["segmentIntervalMs"] = rng.choice((1, 3, 7, max(retention // 2, 1)))
    return store


def _result(rng: Random, chance: float) -> dict[str, Json]:
    return (
        {"materialized": {"versioned": True, "historyRetentionMs": rng.choice((0, 5, 10, 20))}}
        if (rng.random() < chance)
        else {}
    )


def _transforms(rng: Random, ops: Sequence[str], most: int) -> list[dict[str, Json]]:
    return [_transform(rng, rng.choice(ops)) for _ in range(rng.randint(1, most))]


def _transform(rng: Random, op: str) -> dict[str, Json]:
    transform: dict[str, Json] = {"op": op}
    if op == "filter":
        transform["predicate"] = rng.choice(({"type": "even"}, {"type": "gte", "value": rng.choice((4, 5))}))
    if op == "mapValues":
        transform["multiplyBy"] = rng.choice((3, 10))
    if rng.random() < 0.45:
        transform["materialized"] = _table(rng, versioned=0.5, retentions=(5, 10, 20, 50))
    return transform
