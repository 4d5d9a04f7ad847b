"""Operations of the vectors' format as views of a contract, and what these emit as an output topic has it.

The views of one contract are replayed by one run; each has topics of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from drawing import TOPICS
from oracle import Row
from pipelines import Pipeline

Json = Any


def contract(operations: Mapping[str, tuple[Json, str]]) -> str:
    """A contract with a view for each operation, of the topics whose names in Kafka begin with the prefix beside it."""
    topics: dict[str, Json] = {}
    for name, (operation, prefix) in operations.items():
        for topic in inputs(operation):
            topics[_topic(name, topic)] = {"topic": f"{prefix}{topic}", **_read(operation, topic)}
    views = {view(name): {"semantics": "kafka", **_said(name, it)} for name, (it, _) in operations.items()}
    said = {"pipeline": "live", "start": "2026-01-01", "topics": topics, "views": views}
    return yaml.safe_dump(said, sort_keys=False)


def inputs(operation: Json) -> list[str]:
    """The topics of an operation in the order of a contract, the first input before the second."""
    return sorted(TOPICS[operation["type"]])


def view(name: str) -> str:
    """What an operation is called in a contract."""
    return re.sub(r"\W+", "_", name)


def emitted(p: Pipeline, name: str) -> list[Row]:
    """What the view of an operation has emitted, as the application writes it."""
    return sorted((_row(told) for told in p.raw(f"emitted/{view(name)}")), key=lambda row: (row.partition, row.offset))


def _topic(name: str, topic: str) -> str:
    return f"{view(name)}_{topic}"


def _read(operation: Json, topic: str) -> Json:
    """How a topic is read."""
    entry = {"read": "stream", "key": {"k": "string"}, "value": _fields(operation, topic)}
    if topic not in operation:
        return entry
    entry |= {"read": "table", "versioned": operation[topic]["versioned"]}
    if operation[topic]["versioned"]:
        entry["history_retention"] = _length(operation[topic]["historyRetentionMs"])
    return entry


def _fields(operation: Json, topic: str) -> dict[str, str]:
    """The fields of a topic's values; the last one is null only where the value is."""
    match operation["type"], topic:
        case "foreign_key_join", "left":
            return {"fk": "string", "v": "int"}
        case "table_aggregate", _:
            return {"g": "string", "n": "int"}
    return {"n": "int"}


def _said(name: str, operation: Json) -> Json:
    """A view that says what an operation does."""
    first, second = (_topic(name, topic) for topic in [*inputs(operation), ""][:2])
    join = {"table": second, "how": operation.get("join")}
    total = {"aggregate": {"total": "sum(n)"}}
    match operation:
        case {"type": "stream_table_join"}:
            grace = {"grace": _length(operation["graceMs"])} if "graceMs" in operation else {}
            said = {"stream": first, "join": {**join, **grace}}
        case {"type": "table_table_join"}:
            said = {"table": first, "join": join}
        case {"type": "foreign_key_join"}:
            said = {"table": first, "join": {**join, "on": operation["foreignKeyField"]}}
        case {"type": "stream_stream_join", "window": span}:
            lengths = {name: _length(span[f"{name}Ms"]) for name in ("before", "after", "grace")}
            said = {"stream": first, "join": {"stream": second, "how": operation["join"], **lengths}}
        case {"type": "table_aggregate"}:
            return {"table": first, "group_by": {"k": operation["groupBy"]["keyField"]}, **total}
        case {"type": "stream_aggregate"}:
            return {"stream": first, **total}
        case {"type": "windowed_aggregate", "window": window, "emit": emit}:
            size = window["sizeMs" if window["kind"] == "tumbling" else "inactivityGapMs"]
            lengths = {window["kind"]: _length(size), "grace": _length(window["graceMs"])}
            return {"stream": first, **total, "window": {**lengths, "emit": emit}}
        case _:
            raise ValueError(f"no view says {operation}")
    sides = zip(("left", "right"), inputs(operation), strict=True)
    return {**said, "select": {side: _whole(_topic(name, topic), _fields(operation, topic)) for side, topic in sides}}


def _whole(topic: str, fields: Mapping[str, str]) -> str:
    """The value of a topic as one column."""
    told = ", ".join(f"'{field}', {topic}.{field}" for field in fields)
    return f"CASE WHEN {topic}.{list(fields)[-1]} IS NOT NULL THEN named_struct({told}) END"


def _length(millis: int) -> str:
    return f"{millis} ms"


def _row(told: Mapping[str, Json]) -> Row:
    value = told["total"] if "total" in told else {side: told[side] for side in ("left", "right")}
    bounds = {edge: told.get(f"window{edge.capitalize()}") for edge in ("start", "end")}
    return Row(
        {"key": told["k"], **{edge: _millis(at) for edge, at in bounds.items()}} if bounds["start"] else told["k"],
        None if told["_tombstone"] else value,
        _millis(told["timestamp"]),
        told["_partition"],
        told["_offset"],
    )


def _millis(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
