"""Why a row is what it is: a sentence, and the rows of its inputs that it was made of, as known then."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb
import sqlglot
from sqlglot import expressions as exp
from sqlglot.errors import SqlglotError

from hindcast import horizon, questions
from hindcast.contracts import Contract, Join, Shape, View, shapes
from hindcast.contracts.expressions import resolve
from hindcast.contracts.sensitive import discreet
from hindcast.contracts.shapes import PERIODS, resolved
from hindcast.delta import emitted, scan
from hindcast.delta.emitted import Cause
from hindcast.errors import cause
from hindcast.pages import histories
from hindcast.pages.drawing import label
from hindcast.pages.made_of import Part, Reader, Row, records
from hindcast.questions import Bound, literal
from hindcast.show import cell


def explain(
    warehouse: str, contract: Contract, name: str, row: Row, known: datetime, readable: Collection[str]
) -> dict[str, Any]:
    """Why a row of a table, with its lineage, was what it was known to be: `text`, and `parts` of its inputs.

    Rows of other pipelines are shown only if those are `readable`.
    """
    if name in contract.topics:
        (place,) = records(warehouse, contract, name, row)
        text = f"It is the record of {place['topic']}, partition {place['partition']}, offset {place['offset']}."
        return {"text": text, "parts": []}
    reader = Reader(warehouse, contract, known, frozenset(readable))
    view, shape = contract.views[name], shapes(contract)[name]
    if view.semantics == "kafka":
        by = emitted.cause(emitted.log(warehouse, contract, name), shape.kind, row)
        if by is not None:
            text, part = _emitted(contract, reader, by)
            return {"text": text, "parts": [part.told(warehouse, contract)]}
    frozen = horizon.frozen(warehouse, contract, name)
    if frozen is not None and not _derivable(shape.kind, row, known, frozen):
        text = f"What it was made of is not kept: the history of its inputs was trimmed up to {label(frozen)}."
        return {"text": text, "parts": []}
    try:
        text, parts = _Row(view, shapes(contract), row, reader, frozen).made()
    except (SqlglotError, duckdb.Error) as error:
        # Spark's SQL is not all DuckDB's: what cannot be asked here is said, not guessed.
        text, parts = f"This page cannot tell: {discreet(contract, name, cause(error))}", []
    return {"text": text[:1].upper() + text[1:], "parts": [part.told(warehouse, contract) for part in parts]}


def _emitted(contract: Contract, reader: Reader, by: Cause) -> tuple[str, Part]:
    """A row of a kafka view: the record that made the view emit it, and when that was processed."""
    found, part = reader.record(by.topic, by.cause_partition, by.cause_offset)
    place = f"{contract.kafka_topic(by.topic)}, partition {by.cause_partition}, offset {by.cause_offset}"
    told = f"It was emitted in run {by.run}, as offset {by.offset} of partition {by.partition} of its output, when"
    if found is None:
        return f"{told} {place} was processed.", part
    late = found["streamTime"] is not None and found["timestamp"] < found["streamTime"]
    fate = "; it was late" if late else ""
    if found["fate"] != "accepted" and not part.total:  # another history retention may have accepted it since
        fate = f"; it is {found['fate']}, so {by.topic} does not have it"
    return f"{told} {place}, dated {label(found['timestamp'])}, was processed{fate}.", part


@dataclass(frozen=True)
class _Row:
    """A row of a view, and who reads the view's inputs."""

    view: View
    known: Mapping[str, Shape]
    row: Row
    reader: Reader
    frozen: datetime | None = None

    @property
    def moment(self) -> datetime:
        """When the row begins to be true; at the earliest when its inputs begin to be kept."""
        found: datetime = next(self.row[name] for name in ("timestamp", "windowStart", "validFrom") if name in self.row)
        return found if self.frozen is None else max(found, self.frozen)

    def made(self) -> tuple[str, list[Part]]:
        """How the row was made, and of what."""
        if self.view.aggregate is not None:
            return self._summed_up()
        first, join = self._first(), self.view.join
        if join is None:
            return f"it is made of {_told(first)}.", [first]
        if join.stream:
            return self._met(first)
        return self._looked_up(first, join)

    def _first(self) -> Part:
        """The row of the first input."""
        name = self.view.first
        if self.known[name].kind != "versions":
            return self.reader.event(name, (self.row.get("_partition"), self.row.get("_offset")), self._span)
        new = {text: self.row.get(column) for column, text in resolved(self.view.key, self.view, self.known).items()}
        key = [new.get(f"{name}.{column}", self.row.get(column)) for column in self.known[name].key]
        return self.reader.version(name, key, self.moment)

    @property
    def _span(self) -> tuple[datetime, datetime]:
        """When the events were that the row is made of: a pair is dated as the later one."""
        join = self.view.join
        length = max(join.before or timedelta(0), join.after or timedelta(0)) if join else timedelta(0)
        return self.moment - length, self.moment

    def _met(self, first: Part) -> tuple[str, list[Part]]:
        """Two streams: the other event."""
        place = (self.row.get("_rightPartition"), self.row.get("_rightOffset"))
        second = self.reader.event(self.view.second or "", place, self._span)
        return f"{_told(first)} met {_told(second)} within the window.", [first, second]

    def _looked_up(self, first: Part, join: Join) -> tuple[str, list[Part]]:
        """A table: the version of the key that was looked up, valid then."""
        name, by = self.view.second or "", ""
        met = first.rows[0] if first.rows else self.row
        key: Sequence[Any] = [met.get(column) for column in self.known[self.view.first].key]
        if join.keys:
            key, by = self._evaluated(first, join.keys), f" by {', '.join(join.keys)}"
        second = self.reader.version(name, key or [None], self.moment)
        hidden = second.secret or any(column in text for text in join.keys for column in first.marked)
        asked = ", ".join(
            f"{column} = {histories.HIDDEN if hidden else cell(value)}"
            for column, value in zip(second.source.key, key, strict=False)
        )
        when = f"valid at {label(self.moment)}, as known at {label(second.known)}"
        return f"{_told(first)} looked up {name}{by}: {asked}, {when}. There was {_told(second)}.", [first, second]

    def _evaluated(self, first: Part, texts: Sequence[str]) -> list[Any]:
        """The expressions of `on` over the first input's row; none where there is no row."""
        if not first.rows:
            return []
        names = {first.name: list(self.known[first.name].columns)}
        shown = ", ".join(_duckdb(resolve(text, names)) for text in texts)
        plain = {column: value for column, value in first.rows[0].items() if not isinstance(value, list | dict)}
        values = ", ".join(f'{_or_null(value)} AS "{column}"' for column, value in plain.items())
        with scan.engine() as engine:
            found = engine.execute(f'SELECT {shown} FROM (SELECT {values}) AS "{first.name}"').fetchone()  # noqa: S608
        return list(found or ())

    def _summed_up(self) -> tuple[str, list[Part]]:
        """An aggregate: the rows of its group that were true then."""
        name, window = self.view.first, self.view.window
        kind = self.known[name].kind
        groups = resolved(self.view.group_by, self.view, self.known) or {c: f"{name}.{c}" for c in self.known[name].key}
        told = [f"({_duckdb(text)}) IS NOT DISTINCT FROM {_or_null(self.row[c])}" for c, text in groups.items()]
        if self.view.where:
            told += [f"({_duckdb(text)})" for text in resolved({"": self.view.where}, self.view, self.known).values()]
        if window is not None:
            start, end = self.row["windowStart"], self.row["windowEnd"]
            sign = "<" if window.tumbling or window.hopping else "<="
            told.append(f'"timestamp" >= {literal(start)} AND "timestamp" {sign} {literal(end)}')
            bounds, when = [Bound("timestamp", start, end)], f"from {label(start)} to {label(end)}"
        else:
            told.append(questions.as_of(kind, literal(self.moment)))
            bounds, when = [Bound(PERIODS[kind][0], most=self.moment)], f"{_WHEN[kind]} {label(self.moment)}"
        part = self.reader.asked(name, " AND ".join(told), bounds)
        hidden = any(column in text for text in groups.values() for column in part.marked)
        of = ", ".join(f"{c} = {histories.HIDDEN if hidden else cell(self.row[c])}" for c in groups)
        return f"it sums up {_told(part)} with {of}, {when}.", [part]


_WHEN = {"versions": "valid at", "events": "up to", "pairs": "up to", "windows": "begun by"}


def _derivable(kind: str, row: Row, known: datetime, frozen: datetime) -> bool:
    """Whether a row's inputs still tell what it was made of, as known at a moment."""
    if known < frozen:
        return False
    if kind == "versions":
        return row["validTo"] is None or row["validTo"] > frozen
    return bool(row[PERIODS[kind][0]] >= frozen)


def _told(part: Part) -> str:
    """How many rows an input had, in words."""
    if not part.open:
        return f"what the table {part.source.pipeline}.{part.source.name} had (you may not read that pipeline)"
    noun = "version" if part.source.kind == "versions" else "event" if part.source.kind == "events" else "row"
    count = {0: "no", 1: "one"}.get(part.total, f"{part.total:,}")
    return f"{count} {noun}{'' if part.total == 1 else 's'} of {part.name}"


def _or_null(value: Any) -> str:
    return "NULL" if value is None else literal(value)


def _duckdb(text: str) -> str:
    """An expression of the contract (`input.column`) for DuckDB."""
    parsed = sqlglot.parse_one(text, dialect="spark")
    for column in parsed.find_all(exp.Column):
        for part in column.parts:
            part.set("quoted", True)
    return parsed.sql(dialect="duckdb")
