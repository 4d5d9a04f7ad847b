"""Conformance vectors: reading them, and understanding the operation that each describes.

A vector is never recognised by its name, its file or its records: what to do is read from `operation` alone. Its knobs
(retention, grace, window sizes, fields, transforms) become data, so that vectors of one shape run as one Spark job.

Beyond the documented format we understand, for tests of our own: a record's `partition`, a table's `ttlMs`, a
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


class Declined(Exception):  # noqa: N818 - a finding, not a fault
    """Why a vector is not run."""


class Refused(Exception):  # noqa: N818  # a finding, not a fault
    """What Kafka Streams answers instead: `phase`, and the class and message of its exception."""

    def __init__(self, name: str, message: str, **more: Json) -> None:
        super().__init__(message)
        self.error = {"phase": "build", "class": name, "message": message, **more}


@contextmanager
def understanding() -> Iterator[None]:
    """Declines an operation that lacks what is read from it, or has something else there."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as wrong:
        raise Declined(f"operation not understood: {type(wrong).__name__} {wrong}") from wrong


@dataclass(frozen=True)
class Vector:
    """One scenario of a file: its operation and records as they stand there."""

    family: str
    name: str
    operation: Mapping[str, Json]
    records: tuple[Mapping[str, Json], ...]
    expected: Mapping[str, Json]

    @property
    def semantics(self) -> str:
        """The reading that it is of."""
        with understanding():
            return str(self.operation.get("semantics", "kafka"))

    @property
    def runs(self) -> int:
        """Runs are all integers from 1 to this."""
        return max((record["run"] for record in self.records), default=0)


@dataclass(frozen=True)
class Table:
    """A table as an operation reads it: from a topic, or a join of two tables. `path` begins the names of its knobs."""

    path: str
    topic: str = ""
    join: str = ""
    how: str = ""
    sides: tuple[Table, ...] = ()

    def topics(self) -> Iterator[str]:
        """The topics that the table is read from, in order."""
        if self.topic:
            yield self.topic
        for side in self.sides:
            yield from side.topics()


@dataclass(frozen=True)
class Shape:
    """What a Spark plan depends on. Vectors of equal shapes run as one job."""

    type: str
    how: str = ""
    tables: tuple[Table, ...] = ()
    streams: tuple[str, ...] = ()
    window: str = ""
    on_field: bool = False

    def topics(self) -> tuple[str, ...]:
        """Every topic of the operation, once."""
        return tuple(dict.fromkeys((*self.streams, *(topic for table in self.tables for topic in table.topics()))))


@dataclass(frozen=True)
class Understood:
    """An operation as a shape and knobs. `retentions` has the history retention of each topic read as a table, in
    ms.
    """

    shape: Shape
    knobs: Mapping[str, Json] = field(hash=False)
    retentions: Mapping[str, int] = field(hash=False)


def load(directory: Path) -> list[Vector]:
    """The vectors of all files of a directory, by file and in the order of each; other JSON files are passed over."""
    return [
        Vector(path.stem, it["name"], it["operation"], tuple(it.get("records", ())), it.get("expected", {}))
        for path in sorted(directory.glob("*.json"))
        for it in json.loads(path.read_text(encoding="utf-8"))
        if isinstance(it, dict) and {"name", "operation"} <= set(it)
    ]


def understand(vector: Vector) -> Understood:
    """The shape and the knobs of a `corrected` vector's operation; Declined, with the reason, if it has what we do not
    know.
    """
    if vector.semantics != "corrected":
        raise Declined(f"no reading {vector.semantics!r}")
    with understanding():
        understood = _Reader().read(vector.operation)
    for number, record in enumerate(vector.records):
        if not {"topic", "key", "value", "timestamp", "run"} <= set(record):
            raise Declined(f"record {number} lacks a field: {json.dumps(dict(record))}")
    return understood


class _Reader:
    """Gathers knobs and retentions while it goes down an operation."""

    def __init__(self) -> None:
        self.knobs: dict[str, Json] = {}
        self.retentions: dict[str, int] = {}

    def read(self, operation: Mapping[str, Json]) -> Understood:
        return Understood(self.shape(operation), self.knobs, self.retentions)

    def shape(self, operation: Mapping[str, Json]) -> Shape:
        kind = operation["type"]
        match kind:
            case "table_transform":
                return Shape(kind, tables=(self.table(operation["table"], "table"),))
            case "table_table_join" | "foreign_key_join":
                return Shape(kind, tables=(self.join(operation, ""),))
            case "stream_table_join":
                table = self.table(operation["table"], "table")
                if "onField" in operation:
                    self.knobs["onField"] = _path(operation["onField"])
                on_field = "onField" in operation
                return Shape(kind, how=join_of(operation), tables=(table,), streams=("stream",), on_field=on_field)
            case "table_aggregate":
                self.aggregation(operation["aggregation"])
                self.knobs["group"] = _path(operation["groupBy"]["keyField"])
                self.knobs["counted"] = _path(operation["groupBy"]["valueField"])
                return Shape(kind, tables=(self.table(operation["table"], "table"),))
            case "stream_aggregate":
                self.aggregation(operation["aggregation"])
                return Shape(kind, streams=("stream",))
            case "windowed_aggregate":
                self.aggregation(operation["aggregation"])
                return Shape(kind, streams=("stream",), window=self.window(operation["window"]))
            case "stream_stream_join":
                self.knobs.update({name: operation["window"][name] for name in ("beforeMs", "afterMs")})
                return Shape(kind, how=join_of(operation), streams=("left", "right"))
        raise Declined(f"no operator for {kind!r}")

    def aggregation(self, name: str) -> None:
        if name not in AGGREGATIONS:
            raise Declined(f"no aggregation {name!r}")
        self.knobs["aggregation"] = name

    def window(self, window: Mapping[str, Json]) -> str:
        kind = window["kind"]
        if kind not in _WINDOWS:
            raise Declined(f"no window {kind!r}")
        self.knobs.update({name: window[name] for name in _WINDOWS[kind]})
        if kind == "tumbling":
            self.knobs["advanceMs"] = window["sizeMs"]
            return "hopping"
        return str(kind)

    def table(self, table: Mapping[str, Json], topic: str, path: str = "") -> Table:
        steps = [_step(step) for step in table.get("transforms") or ()]
        path = path or topic
        if steps:
            self.knobs[f"{path}.steps"] = steps
        if "join" in table:
            return self.join(table["join"], path)
        if not table.get("versioned", True):
            raise Declined("a table that is not versioned has no corrected reading")
        retention = table["historyRetentionMs"]
        if self.retentions.setdefault(topic, retention) != retention:
            raise Declined(f"topic {topic!r} is read with different retentions")
        if "ttlMs" in table:
            self.knobs[f"{path}.ttlMs"] = table["ttlMs"]
        return Table(path, topic=topic)

    def join(self, join: Mapping[str, Json], path: str) -> Table:
        kind = join["type"]
        if kind not in {"table_table_join", "foreign_key_join"}:
            raise Declined(f"{kind!r} does not make a table")
        if kind == "foreign_key_join":
            self.knobs[f"{path}.foreignKeyField"] = _path(join["foreignKeyField"])
        sides = tuple(self.table(join[side], side, f"{path}.{side}") for side in ("left", "right"))
        return Table(path, join=kind, how=join_of(join), sides=sides)


def join_of(operation: Mapping[str, Json]) -> Json:
    """Which join it is: inner, left or outer."""
    how = str(operation["join"])
    if how not in _JOINS[operation["type"]]:
        raise Declined(f"no {how} {operation['type']}")
    return how


def _path(dotted: str) -> str:
    """`left.g` as a JSON path."""
    return "$" + "".join(f"['{name}']" for name in dotted.split("."))


def _step(step: Mapping[str, Json]) -> dict[str, Json]:
    """A transform as `op` (even, gte, times or rekey) and `operand`."""
    match step:
        case {"op": "filter", "predicate": {"type": "even"}}:
            return {"op": "even", "operand": None}
        case {"op": "filter", "predicate": {"type": "gte", "value": number}}:
            return {"op": "gte", "operand": str(number)}
        case {"op": "mapValues", "multiplyBy": number}:
            return {"op": "times", "operand": str(number)}
        case {"op": "rekey", "field": str(name)}:
            return {"op": "rekey", "operand": _path(name)}
    raise Declined(f"no transform {json.dumps(dict(step))}")


def plain(value: Json) -> Json:
    """Numbers that are equal get one text."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case list():
            return [plain(one) for one in value]
    return value
