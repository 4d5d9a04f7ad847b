"""Conformance vectors: reads them, and parses the operation that each describes.

A vector is never recognised by its name, its file or its records: only `operation` says what to do. Its knobs
(retention, grace, window sizes, fields, transforms) become data, so that vectors of one shape run as one Spark job.

For tests of our own we also read, beyond the documented format: a record's `partition`, a table's `ttlMs`, a
stream-table join's `onField` (the field of the event's value that names the table's key), and the transform `rekey` of
a table with `field` (the new key is that field of the value and the old key, joined by a slash).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = Any
"""A value as `json` reads it."""

AGGREGATIONS = ("count", "sum", "min", "max", "avg")
_JOINS = {
    "stream_table_join": ("inner", "left"),
    "table_table_join": ("inner", "left", "outer"),
    "foreign_key_join": ("inner", "left"),
    "stream_stream_join": ("inner", "left", "outer"),
}
_WINDOWS = {
    "tumbling": ("sizeMs", "graceMs"),
    "hopping": ("sizeMs", "advanceMs", "graceMs"),
    "sliding": ("timeDifferenceMs", "graceMs"),
    "session": ("inactivityGapMs", "graceMs"),
}


class DeclinedVector(Exception):  # noqa: N818 - a finding, not a fault
    """A vector is not run; the message is the reason."""


class KafkaStreamsError(Exception):  # a finding, not a fault
    """Kafka Streams fails here: `error` has its `phase`, and the `class` and `message` of its exception."""

    def __init__(self, name: str, message: str, **more: Json) -> None:
        super().__init__(message)
        self.error = {"phase": "build", "class": name, "message": message, **more}


@contextmanager
def decline_unreadable() -> Iterator[None]:
    """Raise DeclinedVector if the block fails to read an operation: a field is missing or has another type."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DeclinedVector(f"operation not understood: {type(error).__name__} {error}") from error


@dataclass(frozen=True)
class Vector:
    """One scenario of a file, with its operation and records as in the file."""

    family: str
    name: str
    operation: Mapping[str, Json]
    records: tuple[Mapping[str, Json], ...]
    expected: Mapping[str, Json]

    @property
    def semantics(self) -> str:
        """The reading: `kafka` or `corrected`."""
        with decline_unreadable():
            return str(self.operation.get("semantics", "kafka"))

    @property
    def runs(self) -> int:
        """The last run; runs are numbered from 1."""
        return max((record["run"] for record in self.records), default=0)


@dataclass(frozen=True)
class TableSpec:
    """A table that an operation reads: from a topic, or a join of two tables. Names of its knobs begin with `path`."""

    path: str
    topic: str = ""
    join: str = ""
    how: str = ""
    sides: tuple[TableSpec, ...] = ()

    def topics(self) -> Iterator[str]:
        """Yield the topics that the table is read from, in order."""
        if self.topic:
            yield self.topic
        for side in self.sides:
            yield from side.topics()


@dataclass(frozen=True)
class OperationShape:
    """The part of an operation that the Spark plan depends on. Vectors of equal shapes run as one job."""

    type: str
    how: str = ""
    tables: tuple[TableSpec, ...] = ()
    streams: tuple[str, ...] = ()
    window: str = ""
    on_field: bool = False

    def topics(self) -> tuple[str, ...]:
        """Return every topic of the operation, once."""
        return tuple(dict.fromkeys((*self.streams, *(topic for table in self.tables for topic in table.topics()))))


@dataclass(frozen=True)
class ParsedOperation:
    """An operation as a shape and knobs; `retentions`: by topic read as a table, the history retention in ms."""

    shape: OperationShape
    knobs: Mapping[str, Json] = field(hash=False)
    retentions: Mapping[str, int] = field(hash=False)


def load_vectors(directory: Path) -> list[Vector]:
    """Return the vectors of all files of a directory, by file and in the order of each; other JSON is ignored."""
    return [
        Vector(path.stem, item["name"], item["operation"], tuple(item.get("records", ())), item.get("expected", {}))
        for path in sorted(directory.glob("*.json"))
        for item in json.loads(path.read_text(encoding="utf-8"))
        if isinstance(item, dict) and {"name", "operation"} <= set(item)
    ]


def parse_operation(vector: Vector) -> ParsedOperation:
    """Return the shape and the knobs of a `corrected` vector's operation; DeclinedVector if we do not support it."""
    if vector.semantics != "corrected":
        raise DeclinedVector(f"no reading {vector.semantics!r}")
    with decline_unreadable():
        operation = _OperationParser().read(vector.operation)
    for number, record in enumerate(vector.records):
        if not {"topic", "key", "value", "timestamp", "run"} <= set(record):
            raise DeclinedVector(f"record {number} lacks a field: {json.dumps(dict(record))}")
    return operation


class _OperationParser:
    """A parser that collects knobs and retentions while it descends an operation."""

    def __init__(self) -> None:
        self.knobs: dict[str, Json] = {}
        self.retentions: dict[str, int] = {}

    def read(self, operation: Mapping[str, Json]) -> ParsedOperation:
        return ParsedOperation(self.shape(operation), self.knobs, self.retentions)

    def shape(self, operation: Mapping[str, Json]) -> OperationShape:
        kind = operation["type"]
        match kind:
            case "table_transform":
                return OperationShape(kind, tables=(self.table(operation["table"], "table"),))
            case "table_table_join" | "foreign_key_join":
                return OperationShape(kind, tables=(self.join(operation, ""),))
            case "stream_table_join":
                table = self.table(operation["table"], "table")
                if "onField" in operation:
                    self.knobs["onField"] = _json_path(operation["onField"])
                on_field = "onField" in operation
                return OperationShape(
                    kind, how=join_kind(operation), tables=(table,), streams=("stream",), on_field=on_field
                )
            case "table_aggregate":
                self.aggregation(operation["aggregation"])
                self.knobs["group"] = _json_path(operation["groupBy"]["keyField"])
                self.knobs["counted"] = _json_path(operation["groupBy"]["valueField"])
                return OperationShape(kind, tables=(self.table(operation["table"], "table"),))
            case "stream_aggregate":
                self.aggregation(operation["aggregation"])
                return OperationShape(kind, streams=("stream",))
            case "windowed_aggregate":
                self.aggregation(operation["aggregation"])
                return OperationShape(kind, streams=("stream",), window=self.window(operation["window"]))
            case "stream_stream_join":
                self.knobs.update({name: operation["window"][name] for name in ("beforeMs", "afterMs")})
                return OperationShape(kind, how=join_kind(operation), streams=("left", "right"))
        raise DeclinedVector(f"no operator for {kind!r}")

    def aggregation(self, name: str) -> None:
        if name not in AGGREGATIONS:
            raise DeclinedVector(f"no aggregation {name!r}")
        self.knobs["aggregation"] = name

    def window(self, window: Mapping[str, Json]) -> str:
        kind = window["kind"]
        if kind not in _WINDOWS:
            raise DeclinedVector(f"no window {kind!r}")
        self.knobs.update({name: window[name] for name in _WINDOWS[kind]})
        if kind == "tumbling":
            self.knobs["advanceMs"] = window["sizeMs"]
            return "hopping"
        return str(kind)

    def table(self, table: Mapping[str, Json], topic: str, path: str = "") -> TableSpec:
        steps = [_parse_step(step) for step in table.get("transforms") or ()]
        path = path or topic
        if steps:
            self.knobs[f"{path}.steps"] = steps
        if "join" in table:
            return self.join(table["join"], path)
        if not table.get("versioned", True):
            raise DeclinedVector("a table that is not versioned has no corrected reading")
        retention = table["historyRetentionMs"]
        if self.retentions.setdefault(topic, retention) != retention:
            raise DeclinedVector(f"topic {topic!r} is read with different retentions")
        if "ttlMs" in table:
            self.knobs[f"{path}.ttlMs"] = table["ttlMs"]
        return TableSpec(path, topic=topic)

    def join(self, join: Mapping[str, Json], path: str) -> TableSpec:
        kind = join["type"]
        if kind not in {"table_table_join", "foreign_key_join"}:
            raise DeclinedVector(f"{kind!r} does not make a table")
        if kind == "foreign_key_join":
            self.knobs[f"{path}.foreignKeyField"] = _json_path(join["foreignKeyField"])
        sides = tuple(self.table(join[side], side, f"{path}.{side}") for side in ("left", "right"))
        return TableSpec(path, join=kind, how=join_kind(join), sides=sides)


def join_kind(operation: Mapping[str, Json]) -> Json:
    """Return the kind of join: inner, left or outer; DeclinedVector if the operation has no such join."""
    how = str(operation["join"])
    if how not in _JOINS[operation["type"]]:
        raise DeclinedVector(f"no {how} {operation['type']}")
    return how


def _json_path(dotted: str) -> str:
    """Return a dotted path, such as `left.g`, as a JSON path."""
    return "$" + "".join(f"['{name}']" for name in dotted.split("."))


def _parse_step(step: Mapping[str, Json]) -> dict[str, Json]:
    """Return a transform as `op` (even, gte, times or rekey) and `operand`."""
    match step:
        case {"op": "filter", "predicate": {"type": "even"}}:
            return {"op": "even", "operand": None}
        case {"op": "filter", "predicate": {"type": "gte", "value": number}}:
            return {"op": "gte", "operand": str(number)}
        case {"op": "mapValues", "multiplyBy": number}:
            return {"op": "times", "operand": str(number)}
        case {"op": "rekey", "field": str(name)}:
            return {"op": "rekey", "operand": _json_path(name)}
    raise DeclinedVector(f"no transform {json.dumps(dict(step))}")


def normalize_numbers(value: Json) -> Json:
    """Return a JSON value in which equal numbers are written alike: 2.0 becomes 2."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: normalize_numbers(member) for name, member in value.items()}
        case list():
            return [normalize_numbers(item) for item in value]
    return value
