"""Which input records caused a change of a row, and how late they came.

A row of a topic comes from its own record. Of a row of a view it is the input rows that became known between the two
moments: those of which it is made at the later one (explain.py). A kafka view stores what caused each of its rows.

Not known is what only ended an input row (a tombstone, a record that left an aggregate's group), and which change in
another pipeline's table it was.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from hindcast.bitemporal import predicates
from hindcast.bitemporal.predicates import ColumnBound, sql_literal
from hindcast.common.column_values import ColumnValue, Row
from hindcast.common.errors import HindcastError
from hindcast.common.lengths import format_length
from hindcast.common.python_values import list_rows
from hindcast.common.settings import Settings
from hindcast.contract import Contract, View, list_shapes
from hindcast.contract.expressions import resolve
from hindcast.contract.shapes import PERIODS
from hindcast.query import cut_values
from hindcast.query.changes import ChangeQuestion
from hindcast.query.explain import find_input_rows
from hindcast.query.explain_limits import EngineLimitError, open_limited_engine
from hindcast.query.inputs_as_of import InputReader, RecordPlace, find_records
from hindcast.query.key_history import find_cell, read_moment
from hindcast.query.row_expressions import RowExpressions
from hindcast.store import duckdb_reader, emitted_log, tables
from hindcast.store.odd_tables import refuse_unreadable_rows
from hindcast.store.tables import Table

SECONDS, LINE_SECONDS = 1.5, 0.8
"""How long finding the causes of the lines of a page may take, and those that are found line by line; lines after that
have none.
"""
COMMAND_SECONDS, COMMAND_LINES = 3600.0, 1_000
"""The time that a command has, and how many lines it looks at together."""
_Place: TypeAlias = tuple[str, int, int]
"""The topic of a record in the contract, with its partition and offset as tables have them."""

MAX_ROWS = 20_000
"""How many new versions of a table that is looked up in are read: other causes are not known."""
MAX_RECORDS = 3
"""How many records of a line are named: those that came latest."""


class Cause(NamedTuple):
    """A record that caused a change: its topic in the contract, its place in Kafka, and by how much it was late (None:
    not known).
    """

    name: str
    place: RecordPlace
    late: timedelta | None

    def __str__(self) -> str:
        """Return the place of the record, and by how much it was late, for people."""
        late = f" ({format_length(self.late)} late)" if self.late else ""
        return f"{self.format_place()}{late}"

    def format_place(self) -> str:
        """Return the place of the record for people."""
        return f"{self.place['topic']}, partition {self.place['partition']}, offset {self.place['offset']}"


class _Logged(NamedTuple):
    """Whether a record was ingested between the two moments, and by how much it was late."""

    is_new: bool
    late: timedelta


@dataclass(frozen=True)
class CauseFinder:
    """Finds the causes of lines of changes (changes.py) of one table, as far as `SECONDS` allow those of a page."""

    settings: Settings
    contract: Contract
    table: Table
    question: ChangeQuestion
    readable: Collection[str]
    is_page: bool = True
    begun: float = field(default_factory=time.monotonic)

    def find_causes(self, lines: Sequence[Row]) -> list[list[Cause]]:
        """Return for each line the records that caused it, none if they are not known or there was no time left."""
        try:
            found = self._find_places(lines)
            logged = self._read_log({place for places in found for place in places})
        except Exception as error:  # an input may be damaged, or need expressions that only Spark evaluates
            if isinstance(error, HindcastError) and not self.is_page:
                raise
            return [[] for _ in lines]
        return [self._name_causes(places, logged) for places in found]

    def _find_places(self, lines: Sequence[Row]) -> list[list[_Place]]:
        name, view = self.table.name, self.contract.views.get(self.table.name)
        rows = [_restore_row(self.table, line) for line in lines]
        if view is None:
            return [[*_read_place(name, row)] if line["after"] else [] for line, row in zip(lines, rows, strict=True)]
        inputs = {view.first_input, view.second_input}
        is_lookup = view.join is not None and view.join.table is not None
        if (
            is_lookup
            and view.semantics != "kafka"
            and inputs <= {*self.contract.topics}
            and self.table.kind == "events"
        ):
            return self._find_lookups(view, rows)
        found = []
        for line, row in zip(lines, rows, strict=True):
            try:
                places = [] if self._is_late() else [*dict.fromkeys(self._find_inputs(view, line, row))]
            except Exception:  # noqa: BLE001  # as of `explain_row`
                places = []
            found.append(places)
        return found

    def _is_late(self) -> bool:
        return time.monotonic() - self.begun > (LINE_SECONDS if self.is_page else COMMAND_SECONDS)

    def _find_inputs(self, view: View, line: Row, row: Row) -> Iterator[_Place]:
        """Yield the places of the input rows of one row that became known between the two moments."""
        if view.semantics == "kafka":
            log = emitted_log.emitted_table(self.settings.warehouse, self.contract, self.table.name)
            cause = emitted_log.find_cause(log, self.table.kind, row) if line["after"] is not None else None
            reader = InputReader(self.settings, self.contract, self.table.name, self.question.later, frozenset())
            if cause is not None and not reader.hides_cause(cause.topic):
                yield cause.topic, cause.cause_partition, cause.cause_offset
            return
        asked = self.question.later, self.readable, self.question.earlier
        for part in find_input_rows(self.settings, self.contract, self.table.name, row, *asked):
            if part.open and not part.hidden and part.name in self.contract.topics:
                for own in part.rows:
                    yield from _read_place(part.name, own) if self._is_new(own) else ()

    def _find_lookups(self, view: View, rows: Sequence[Row]) -> list[list[_Place]]:
        """Return the places of what is new of the events of a join's rows, and of the versions that they look up."""
        first, second = view.first_input, view.second_input or ""
        reader = InputReader(self.settings, self.contract, self.table.name, self.question.later, frozenset())
        schema, shapes = reader.read_schema(first), list_shapes(self.contract)
        places = [next(_read_place(first, row), None) for row in rows]
        times = [read_moment(row, "timestamp") for row in rows]
        if schema is None or view.join is None or not rows or _is_hidden(view.join.keys, reader, first, second):
            return [[] for _ in rows]
        listed = ", ".join(f"({place[1]}, {place[2]})" for place in places if place) or "(-1, -1)"
        events = {
            place: event
            for event in self._read_rows(
                first, f"(_partition, _offset) IN ({listed})", [ColumnBound("timestamp", min(times), max(times))]
            )
            for place in _read_place(first, event)
        }
        versions: dict[tuple[ColumnValue, ...], list[Row]] = {}
        for version in self._read_rows(
            second,
            f'"systemFrom" > {sql_literal(self.question.earlier)}',
            [ColumnBound("systemFrom", self.question.earlier, self.question.later)],
        ):
            versions.setdefault(tuple(version[column] for column in shapes[second].key), []).append(version)
        names, expressions = {first: list(shapes[first].columns)}, RowExpressions(first, schema)
        texts = [resolve(text, names) for text in view.join.keys]
        found: list[list[_Place]] = []
        for place, moment in zip(places, times, strict=True):
            own = events.get(place) if place else None
            if own is None or place is None:
                found.append([])
                continue
            key = [expressions.evaluate(text, own) for text in texts] or [own[it] for it in shapes[first].key]
            valid = [it for it in versions.get(tuple(key), ()) if _is_valid(it, moment)]
            found.append(
                [*([place] if self._is_new(own) else []), *(it for v in valid for it in _read_place(second, v))]
            )
        return found

    def _is_new(self, row: Row) -> bool:
        """Return whether a row of an input became known between the two moments."""
        return self.question.earlier < read_moment(row, "systemFrom") <= self.question.later

    def _read_rows(self, name: str, condition: str, bounds: Sequence[ColumnBound]) -> list[Row]:
        """Return the first rows of an input, as known at the later moment, that meet a condition."""
        known = predicates.known_at_condition(sql_literal(self.question.later))
        located = tables.locate_table(self.settings.warehouse, self.contract, name)
        return self._query_rows(located, f"{known} AND {condition}", bounds, None)

    def _query_rows(
        self, located: Table, condition: str, bounds: Sequence[ColumnBound], columns: str | None
    ) -> list[Row]:
        limit = SECONDS if self.is_page else COMMAND_SECONDS
        delta_table, left = tables.open_table(located), limit - (time.monotonic() - self.begun)
        if left <= 0:
            raise EngineLimitError("finding causes took too long")
        if delta_table is None:
            return []
        with refuse_unreadable_rows(located), open_limited_engine(delta_table, left) as engine:
            duckdb_reader.register_rows(engine, delta_table, bounds)
            shown = columns or cut_values.cut_columns(engine)
            return list_rows(
                engine.sql(f"SELECT {shown} FROM rows WHERE {condition} LIMIT {MAX_ROWS}").to_arrow_table()  # noqa: S608  # numbers and literals
            )

    def _read_log(self, places: Collection[_Place]) -> dict[_Place, _Logged]:
        """Return what the logs of topics have of records, without those that are gone."""
        logged: dict[_Place, _Logged] = {}
        for name in dict.fromkeys(name for name, _, _ in places):
            own = [(partition, offset) for topic, partition, offset in places if topic == name]
            bounds = [
                ColumnBound(column, min(numbers), max(numbers))
                for column, numbers in zip(("partition", "offset"), zip(*own, strict=True), strict=True)
            ]
            log = tables.log_table(self.settings.warehouse, self.contract.pipeline, name)
            condition = f'("partition", "offset") IN ({", ".join(map(str, own))})'
            for row in self._query_rows(log, condition, bounds, _LOG_COLUMNS):
                moment, reached = read_moment(row, "timestamp"), find_cell(row, "streamTime", datetime)
                partition, offset = find_cell(row, "partition", int), find_cell(row, "offset", int)
                if partition is not None and offset is not None:
                    late = max((reached or moment) - moment, timedelta(0))
                    logged[name, partition, offset] = _Logged(self._is_new(row), late)
        return logged

    def _name_causes(self, places: Sequence[_Place], logged: Mapping[_Place, _Logged]) -> list[Cause]:
        """Return the records of these places that are new, those that came latest first."""
        new = [place for place in places if place not in logged or logged[place].is_new]
        lates = {place: logged[place].late if place in logged else timedelta(0) for place in new}
        return [self._name_cause(place, logged) for place in sorted(new, key=lambda it: -lates[it])[:MAX_RECORDS]]

    def _name_cause(self, place: _Place, logged: Mapping[_Place, _Logged]) -> Cause:
        name, partition, offset = place
        lineage: Row = {"_partition": partition, "_offset": offset}
        (own,) = find_records(self.settings.warehouse, self.contract, name, lineage)
        return Cause(name, own, logged[place].late if place in logged else None)


def find_all_causes(
    settings: Settings, contract: Contract, table: Table, question: ChangeQuestion, lines: pa.Table
) -> list[list[Cause]]:
    """Return for each line of changes the records that caused it, however long that takes (`CauseFinder`)."""
    readable = {contract.pipeline, *(input_.table.partition(".")[0] for input_ in contract.inputs.values())}
    found: list[list[Cause]] = []
    for first in range(0, lines.num_rows, COMMAND_LINES):
        finder = CauseFinder(settings, contract, table, question, readable, is_page=False)
        found += finder.find_causes(list_rows(lines.slice(first, COMMAND_LINES)))
    return found


_LOG_COLUMNS = '"partition", "offset", "timestamp", streamTime, systemFrom'


def _is_hidden(texts: Sequence[str], reader: InputReader, first: str, second: str) -> bool:
    """Return whether a join looks up by a sensitive value, so that a record that was found would tell it."""
    events, versions = (reader.build_part(name) for name in (first, second))
    return events.hides_lookup(texts) or versions.has_sensitive_key


def _is_valid(version: Row, moment: datetime) -> bool:
    ended = find_cell(version, "validTo", datetime)
    return read_moment(version, "validFrom") <= moment and (ended is None or moment < ended)


def _read_place(name: str, row: Row) -> Iterator[_Place]:
    partition, offset = find_cell(row, "_partition", int), find_cell(row, "_offset", int)
    if partition is not None and offset is not None and offset >= 0:
        yield name, partition, offset


def _restore_row(table: Table, line: Row) -> Row:
    """Return the row of a line as its table has it: the new one, else the one that is gone."""
    parts: Sequence[object] = (line["key"], line["after"] or line["before"], line["source"] or line["former"])
    row: dict[str, object] = {}
    for part in parts:
        row |= part if isinstance(part, dict) else {}
    moments = {name: line[name] for name in PERIODS[table.kind]} | {"systemFrom": line["changedAt"]}
    return {**row, **moments}  # type: ignore[dict-item]  # cells of a row
