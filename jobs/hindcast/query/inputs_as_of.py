"""Rows of a view's inputs as known at a moment: those that a row of the view was made of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

import duckdb
import pyarrow as pa

from hindcast.bitemporal import predicates
from hindcast.bitemporal.predicates import ColumnBound, sql_literal
from hindcast.common.column_values import ColumnValue, Row
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.python_values import list_rows
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.shapes import PERIODS
from hindcast.kafka import topic_patterns
from hindcast.plan import inputs, journal, marks
from hindcast.plan.runs import find_last_derived
from hindcast.query import cut_values, explain_limits, first_rows, key_history, read
from hindcast.query.explain_limits import NotExplainedError
from hindcast.query.first_rows import WideRowsError
from hindcast.query.key_history import RowSample, find_cell, read_moment
from hindcast.query.late_members import WindowMembers
from hindcast.query.row_expressions import RowExpressions
from hindcast.store import duckdb_reader, table_columns, tables
from hindcast.store.tables import Table

MAX_ROWS, MAX_BYTES = 20, 8 << 20
"""How many rows of an input are shown, and how many bytes they may take; if there are more, their number is shown."""


RecordPlace: TypeAlias = dict[str, str | int | None]
"""The `topic` of a record in Kafka (or another pipeline's table), its `partition` and its `offset`."""


@dataclass(frozen=True)
class InputRows:
    """The first of `total` rows of an input; `open` if they may be shown; `marked` are the sensitive columns.

    `hidden`: they were found by a sensitive value, so nothing may tell which rows they are.
    """

    name: str
    source: Table
    known_at: datetime
    open: bool
    marked: frozenset[str]
    rows: list[Row] = field(default_factory=list)
    total: int = 0
    late: int = 0
    """How many events a window left out because they came too late; they are not among the rows."""
    hidden: bool = False

    @property
    def has_sensitive_key(self) -> bool:
        """True if a column of the key is sensitive."""
        return bool(self.marked & set(self.source.key))

    def hides_lookup(self, texts: Sequence[str]) -> bool:
        """Return whether a lookup by expressions of these rows, without any by their key, is by a sensitive value."""
        return any(column in text for text in texts for column in self.marked) if texts else self.has_sensitive_key

    def as_json(self, warehouse: str, contract: Contract) -> JsonObject:
        """Return the part as JSON; `rows` is None if they may not be shown."""
        start = PERIODS[self.source.kind][0]
        rows: list[JsonValue] = []
        for row in self.rows:
            values = {column: value for column, value in row.items() if not column.startswith("_")}
            if self.hidden:
                masked = key_history.mask_row(values, frozenset(values))
                rows.append({"key": None, "from": None, "values": masked, "records": []})
                continue
            rows.append(
                {
                    "key": None if self.has_sensitive_key else format_row_key(self.source, row),
                    "from": read_moment(row, start).isoformat(),
                    "values": key_history.mask_row(values, self.marked),
                    "records": find_records(warehouse, contract, self.name, row),
                }
            )
        return {
            "name": self.name,
            "pipeline": self.source.pipeline,
            "table": self.source.name,
            "knownAt": self.known_at.isoformat(),
            "rows": rows if self.open else None,
            "total": self.total,
        }


def format_row_key(table: Table, row: Row) -> str | None:
    """Return a row's key as an address has it; None if it has a null, which no address can have, or is cut."""
    key = [row[column] for column in table.key]
    return None if None in key or any(map(cut_values.is_cut, key)) else read.format_key(table, key)


def describe_rows(part: InputRows) -> str:
    """Return how many rows an input had, in words."""
    if not part.open:
        return f"what {part.source.pipeline}.{part.source.name} had at that time (you may not read that pipeline)"
    noun = "version" if part.source.kind == "versions" else "event" if part.source.kind == "events" else "row"
    count = {0: "no", 1: "one"}.get(part.total, f"{part.total:,}")
    return f"{count} {noun}{'s' if part.total > 1 else ''} of {part.name}"


def find_records(warehouse: str, contract: Contract, name: str, row: Row) -> list[RecordPlace]:
    """Return the places of the records that a row comes from.

    For a version of a kafka view it is the record that the view emitted. A row made of several rows has none.
    """
    view = contract.views.get(name)
    emits = view and view.semantics == "kafka" and not (view.stream and view.aggregate is None)
    places = [(name, "_partition", "_offset")]
    if view and view.second_input:
        places.append((view.second_input, "_rightPartition", "_rightOffset"))
    records: list[RecordPlace] = []
    for source, *columns in places:
        partition, offset = (find_cell(row, column, int) for column in columns)
        if partition is not None:
            topic, number = f"emitted/{name}", partition
            if not (emits and source == name):
                topic, number = _find_kafka_partition(warehouse, contract, source, partition)
            records.append({"topic": topic, "partition": number, "offset": offset})
    return records


def _find_kafka_partition(warehouse: str, contract: Contract, source: str, partition: int) -> tuple[str, int]:
    """Return the topic and partition in Kafka of a partition in a row's lineage."""
    while source in contract.views:
        source = contract.views[source].first_input
    if source not in contract.topics:
        return contract.inputs[source].table, partition
    members = journal.read_members(warehouse, contract, source)
    return topic_patterns.kafka_partition(contract.kafka_topic(source), members, partition)


@dataclass(frozen=True)
class InputReader:
    """Reads the inputs of a `view` as known at a moment, for a user who may read the pipelines `readable`.

    `since`: read only rows that became known after it, the oldest first: a record that came late is among these.
    """

    settings: Settings
    contract: Contract
    view: str
    known_at: datetime
    readable: frozenset[str]
    since: datetime | None = None

    def read_event(self, name: str, place: tuple[int | None, int | None], span: tuple[datetime, datetime]) -> InputRows:
        """Return the event of a place (partition, offset), whose timestamp lies within the span."""
        if None in place:
            return self.build_part(name)
        condition = f'"_partition" = {place[0]} AND "_offset" = {place[1]}'
        return self.read_rows(name, condition, [ColumnBound("timestamp", *span)])

    def read_record(self, name: str, partition: int, offset: int) -> tuple[Row | None, InputRows]:
        """Return a record as the topic's log has it, None if it is not there, and its row in the topic's table."""
        log = tables.open_table(tables.log_table(self.settings.warehouse, self.contract.pipeline, name))
        record, part = None, self.build_part(name)
        if log is not None:
            bounds = [ColumnBound("partition", partition, partition), ColumnBound("offset", offset, offset)]
            with explain_limits.open_limited_engine(log) as engine:
                duckdb_reader.register_rows(engine, log, bounds)
                condition, columns = (
                    f'"partition" = {partition} AND "offset" = {offset}',
                    cut_values.cut_columns(engine),
                )
                record = next(iter(key_history.sample_rows(engine, condition, "run", 1, columns).rows), None)
        if record is not None:
            start, moment = PERIODS[part.source.kind][0], read_moment(record, "timestamp")
            condition = f'"_partition" = {partition} AND "_offset" = {offset}'
            # With valid_time the row's timestamp may differ from the log's.
            is_same = self.contract.topics[name].valid_time is None and record.get("recordTimestamp") is None
            part = self.read_rows(name, condition, [ColumnBound(start, moment, moment)] if is_same else [])
        return record, part

    def hides_cause(self, topic: str) -> bool:
        """Return whether a record of a topic can only have made the view emit a row as that looked it up by a sensitive
        value, which the record would tell.
        """
        for name in self.contract.list_upstream(self.view):
            view = self.contract.views.get(name)
            if view is None or view.join is None or view.join.table is None:
                continue
            is_looked_up = topic in self.contract.list_upstream(view.second_input or "")
            if is_looked_up and self.build_part(view.first_input).hides_lookup(view.join.keys):
                return True
        return False

    def read_version(
        self, name: str, key: Sequence[ColumnValue], moment: datetime, *, matches_null: bool = True
    ) -> InputRows:
        """Return the version of a key that was valid at a moment.

        A null in a key is a value like any other, unless the key was computed to look something up (`matches_null`).
        """
        explain_limits.refuse_unfit(key)
        part = self.build_part(name)
        if not key or (None in key and not matches_null):
            return part
        columns = dict(zip(part.source.key, key, strict=True))
        conditions = [f'"{column}" IS NOT DISTINCT FROM {sql_literal(value)}' for column, value in columns.items()]
        conditions.append(predicates.as_of_condition("versions", sql_literal(moment)))
        bounds = [ColumnBound(column, v, v) for column, v in columns.items() if isinstance(v, int | str | datetime)]
        bounds += [ColumnBound("validFrom", most=moment), ColumnBound("validTo", least=moment, or_null=True)]
        return self.read_rows(name, " AND ".join(conditions), bounds)

    def read_schema(self, name: str) -> pa.Schema | None:
        """Return the columns of an input, as its table has them; None if it has no rows that may be read."""
        part = self.build_part(name)
        delta_table = tables.open_table(part.source) if part.open else None
        return None if delta_table is None else pa.schema(delta_table.schema().to_arrow())

    def read_members(self, name: str, members: WindowMembers, expressions: RowExpressions) -> InputRows:
        """Return the events of a window, the latest first, without those that came too late for it."""
        bounds = [ColumnBound("timestamp", members.earliest)]
        return self.read_rows(name, members.condition, bounds, members, expressions)

    def read_rows(
        self,
        name: str,
        condition: str,
        bounds: Sequence[ColumnBound],
        members: WindowMembers | None = None,
        expressions: RowExpressions | None = None,
    ) -> InputRows:
        """Return the rows that meet a condition, the latest first (but see `since`), cut (cut_values.py).

        The condition may qualify columns by `name`, and call functions of the `expressions`. With `members` events that
        came too late are left out.
        """
        part = self.build_part(name)
        delta_table = tables.open_table(part.source) if part.open else None
        if delta_table is None:
            return part
        system = [
            ColumnBound("systemFrom", most=part.known_at),
            ColumnBound("systemTo", least=part.known_at, or_null=True),
        ]
        with (
            explain_limits.open_limited_engine(delta_table) as engine,
            nullcontext() if expressions is None else expressions.register(engine),
        ):
            duckdb_reader.register_rows(engine, delta_table, [*bounds, *system])
            known, late = predicates.known_at_condition(sql_literal(part.known_at)), 0
            condition = f"{known} AND {condition}"
            if self.since is not None:
                condition += f' AND "{name}"."systemFrom" > {sql_literal(self.since)}'
            if members is not None:
                places = members.find_late(engine, name, known)
                late = places.num_rows
                engine.register("_late", places)
                condition += f' AND ("{name}"."_partition", "{name}"."_offset") NOT IN (FROM _late)'
            order = [(PERIODS[part.source.kind][0], self.since is None)]
            sample = _sample_rows(engine, condition, order, name)
        marked = part.marked | table_columns.read_dropped_columns(delta_table).keys()  # they may have been sensitive
        return InputRows(name, part.source, part.known_at, part.open, marked, sample.rows, sample.total, late)

    def build_part(self, name: str) -> InputRows:
        """Return an input without rows.

        Another pipeline's is known at the moment that was pinned by the last run then that derived the view.
        """
        marked = marks.find_hidden_columns(self.settings, self.contract, name)
        if name not in self.contract.inputs:
            source = tables.locate_table(self.settings.warehouse, self.contract, name)
            return InputRows(name, source, self.known_at, True, marked)
        past = journal.read_runs(self.settings.warehouse, self.contract.pipeline)
        last = find_last_derived(past, self.view, self.known_at)
        source = inputs.locate_input_table(self.settings.warehouse, self.contract, name)
        is_open = source.pipeline in self.readable
        moment = last.plan.as_of_system_times.get(name, self.known_at) if last else self.known_at
        return InputRows(name, source, moment, is_open, marked)


def _sample_rows(
    engine: duckdb.DuckDBPyConnection, condition: str, order: Sequence[tuple[str, bool]], name: str
) -> RowSample:
    """Return the rows of an input that are shown, with long texts cut, and how many meet the condition.

    Raise NotExplainedError if the shown ones take more than `MAX_BYTES`.
    """
    try:
        chosen = first_rows.choose_first_rows(engine, condition, order, MAX_ROWS, name)
    except WideRowsError as error:
        raise NotExplainedError(f"the rows of {name} are too large for a page: {error}") from None
    names = engine.sql("FROM rows").columns
    if cut_values.measure_rows(engine, names, chosen) > MAX_BYTES:
        raise NotExplainedError(f"the rows of {name} have more than {MAX_BYTES >> 20} MiB, which a page does not read")
    rows = first_rows.read_chosen_rows(engine, chosen, names, order, MAX_ROWS)
    ((total,),) = engine.sql(f'SELECT count(*) FROM rows AS "{name}" WHERE {condition}').fetchall()  # noqa: S608
    return RowSample(list_rows(rows), total)
