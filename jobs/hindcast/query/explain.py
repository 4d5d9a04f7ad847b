"""Why a row is what it is: a sentence, and the rows of its inputs that it was made of, as known then."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hindcast.common.column_values import ColumnValue, Row
from hindcast.common.errors import describe_cause
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract, Join, Shape, View, list_shapes
from hindcast.contract.expressions import resolve
from hindcast.contract.sensitive import redact_message
from hindcast.contract.shapes import PERIODS, resolve_all
from hindcast.plan import definitions, horizon, journal, marks
from hindcast.plan.runs import find_last_derived
from hindcast.query import key_history, value_sentences
from hindcast.query.explain_aggregate import explain_aggregate
from hindcast.query.explain_limits import NotExplainedError, limit_explanations, refuse_unfit
from hindcast.query.holds import Hold, HoldFinder
from hindcast.query.inputs_as_of import InputReader, InputRows, describe_rows, find_records
from hindcast.query.key_history import find_cell, read_moment
from hindcast.query.row_expressions import RowExpressions
from hindcast.query.show import format_cell, format_moment
from hindcast.store import emitted_log
from hindcast.store.emitted_log import EmitCause


def explain_row(
    settings: Settings,
    contract: Contract,
    name: str,
    row: Row,
    known: datetime,
    readable: Collection[str],
    holds: HoldFinder | None = None,
) -> JsonObject:
    """Return why a row (with lineage) was what it was, as known at `known`: `text`, and `parts`, the input rows;
    `sentences`: how its values came about, where that can be said.

    Rows of other pipelines are included only if those are `readable`. If a change of the row is held back (`holds`),
    the inputs are those that it was made of before.
    """
    try:
        hold = holds.find_of_row(row) if holds is not None else None
        text, parts = _explain_found_row(settings, contract, name, row, known, readable, hold)
        shown: list[JsonValue] = [part.as_json(settings.warehouse, contract) for part in parts]
        notes = _describe_hold(hold, has_inputs=bool(parts))
        if parts:
            notes += _describe_redefinition(settings.warehouse, contract, name, _find_known_at(row, known, hold))
        sentences: list[JsonValue] = [*_describe_values(settings, contract, name, row, parts)]
        return {"sentences": sentences, "text": text[:1].upper() + text[1:] + notes, "parts": shown}
    except NotExplainedError as error:
        cause = str(error)
    except Exception as error:  # noqa: BLE001  # sqlglot and DuckDB do not know all of Spark's SQL; a table may be damaged
        cause = redact_message(contract, name, describe_cause(error) if str(error).strip() else type(error).__name__)
    return {"text": f"The row cannot be explained: {cause}", "parts": []}


def find_input_rows(
    settings: Settings,
    contract: Contract,
    name: str,
    row: Row,
    known: datetime,
    readable: Collection[str],
    since: datetime | None = None,
) -> Sequence[InputRows]:
    """Return the input rows that a row of a view (with lineage) is made of, as known at `known`; NotExplainedError if
    that takes too long.

    Of an aggregate's group only those that became known after `since`.
    """
    return _explain_found_row(settings, contract, name, row, known, readable, None, since)[1]


def _describe_values(
    settings: Settings, contract: Contract, name: str, row: Row, parts: Sequence[InputRows]
) -> list[str]:
    """Return how the values of a row came about (value_sentences.py); none for one of a topic or of a group."""
    view = contract.views.get(name)
    if view is None or view.aggregate is not None or not parts:
        return []
    hidden = marks.find_hidden_columns(settings, contract, name)
    expressions = resolve_all(view.select, view, list_shapes(contract))
    return value_sentences.describe_values(settings.warehouse, contract, row, expressions, parts, hidden)


def _describe_hold(hold: Hold | None, *, has_inputs: bool) -> str:
    """Return a sentence about a change that is held back; nothing without one."""
    if hold is None:
        return ""
    known = f": these are the inputs as known at run {hold.since}" if has_inputs else ""
    return f" A change of this key has been held back since run {hold.began}{known}."


def _describe_redefinition(warehouse: str, contract: Contract, name: str, known: datetime) -> str:
    """Return a sentence if a view was defined otherwise in the last run that was known; nothing if it was not.

    Of a kafka view the record that caused a row is shown, whatever defines it today.
    """
    view, past = contract.views[name], journal.read_runs(warehouse, contract.pipeline)
    last = find_last_derived(past, name, known)
    if last is None or last.plan.contract == contract.hash or view.semantics == "kafka":
        return ""
    former = definitions.find_contract(past, last.plan.contract)
    before = former.views.get(name) if former is not None else None
    if before is None or all(getattr(before, field) == getattr(view, field) for field in _DEFINING_FIELDS):
        return ""
    changed = f"today's definition of {name}, which has changed since run {last.number}"
    return f" That is by {changed}: the row may have been made otherwise."


_DEFINING_FIELDS = ("stream", "table", "join", "where", "select", "key", "group_by", "aggregate", "window", "semantics")
"""The fields of a view that decide which input rows a row is made of."""


def _find_known_at(row: Row, known: datetime, hold: Hold | None) -> datetime:
    """Return when the inputs were known that a row was made of: before its change was held back."""
    return known if hold is None else hold.known_at or find_cell(row, "systemFrom", datetime) or known


def _explain_found_row(
    settings: Settings,
    contract: Contract,
    name: str,
    row: Row,
    known: datetime,
    readable: Collection[str],
    hold: Hold | None,
    since: datetime | None = None,
) -> tuple[str, Sequence[InputRows]]:
    """Return why a row was what it was, in words without a capital, and the input rows that it was made of."""
    warehouse = settings.warehouse
    if name in contract.topics:
        (record,) = find_records(warehouse, contract, name, row)
        place = f"{record['topic']}, partition {record['partition']}, offset {record['offset']}"
        return f"it comes from the record in {place}.", []
    since = None if contract.views[name].aggregate is None else since
    reader = InputReader(settings, contract, name, _find_known_at(row, known, hold), frozenset(readable), since)
    with limit_explanations(contract.pipeline):
        return _explain_view_row(warehouse, contract, name, row, reader)


def _explain_view_row(
    warehouse: str, contract: Contract, name: str, row: Row, reader: InputReader
) -> tuple[str, Sequence[InputRows]]:
    """Return why a row of a view was what it was, in words, and the input rows that it was made of."""
    view, shape = contract.views[name], list_shapes(contract)[name]
    refuse_unfit(row.get(column) for column in shape.key)
    if view.semantics == "kafka":
        cause = emitted_log.find_cause(emitted_log.emitted_table(warehouse, contract, name), shape.kind, row)
        if cause is not None:
            return _explain_emission(contract, reader, cause)
    frozen = horizon.find_frozen_until(warehouse, contract, name)
    if frozen is not None and not _is_derivable(shape.kind, row, reader.known_at, frozen):
        return f"Its input rows are no longer kept: the inputs were trimmed up to {format_moment(frozen)}.", []
    return _RowExplainer(view, list_shapes(contract), row, reader, frozen).explain()


def _explain_emission(contract: Contract, reader: InputReader, cause: EmitCause) -> tuple[str, list[InputRows]]:
    """Return when a row of a kafka view was emitted, and the record that caused it, unless that would tell a sensitive
    value.
    """
    output = f"offset {cause.offset} of partition {cause.partition} of its output"
    text = f"It was emitted in run {cause.run}, as {output}, when"
    if reader.hides_cause(cause.topic):
        topic = contract.kafka_topic(cause.topic)
        return f"{text} a record of {topic} was processed, which was looked up by a sensitive value.", []
    record, part = reader.read_record(cause.topic, cause.cause_partition, cause.cause_offset)
    place = f"{contract.kafka_topic(cause.topic)}, partition {cause.cause_partition}, offset {cause.cause_offset}"
    text = f"{text} {place}"
    if record is None:
        return f"{text} was processed.", [part]
    moment, stream_time = read_moment(record, "timestamp"), find_cell(record, "streamTime", datetime)
    is_late = stream_time is not None and moment < stream_time
    note = "; it was late" if is_late else ""
    if record["fate"] != "accepted" and not part.total:  # another history retention may have accepted it since
        note = f"; it is {record['fate']!s}, so {cause.topic} does not have it"
    return f"{text}, dated {format_moment(moment)}, was processed{note}.", [part]


@dataclass(frozen=True)
class _RowExplainer:
    """Explains a row of a view from the view's inputs."""

    view: View
    known: Mapping[str, Shape]
    row: Row
    reader: InputReader
    horizon: datetime | None = None

    @property
    def moment(self) -> datetime:
        """The moment at which the row begins to be true, but not before its inputs are kept."""
        starts = ("timestamp", "windowStart", "validFrom")
        start = read_moment(self.row, next(name for name in starts if name in self.row))
        return start if self.horizon is None else max(start, self.horizon)

    def explain(self) -> tuple[str, list[InputRows]]:
        """Return how the row was made, in words without a capital, and the input rows that it was made of."""
        if self.view.aggregate is not None:
            return explain_aggregate(self.view, self.known, self.row, self.moment, self.reader)
        first, join = self._read_first(), self.view.join
        if join is None:
            return f"it comes from {describe_rows(first)}.", [first]
        if join.stream:
            return self._explain_stream_join(first)
        return self._explain_lookup(first, join)

    def _read_first(self) -> InputRows:
        """Return the row of the first input."""
        name = self.view.first_input
        if self.known[name].kind != "versions":
            return self.reader.read_event(name, self._find_place("_partition", "_offset"), self._span)
        keys = resolve_all(self.view.key, self.view, self.known)
        by_text = {text: self.row.get(column) for column, text in keys.items()}
        key = [by_text.get(f"{name}.{column}", self.row.get(column)) for column in self.known[name].key]
        return self.reader.read_version(name, key, self.moment)

    def _find_place(self, partition: str, offset: str) -> tuple[int | None, int | None]:
        """Return the partition and offset in these columns of the row."""
        return find_cell(self.row, partition, int), find_cell(self.row, offset, int)

    @property
    def _span(self) -> tuple[datetime, datetime]:
        """The span of the events that the row is made of: a pair has the timestamp of the later one."""
        join = self.view.join
        length = max(join.before or timedelta(0), join.after or timedelta(0)) if join else timedelta(0)
        return self.moment - length, self.moment

    def _explain_stream_join(self, first: InputRows) -> tuple[str, list[InputRows]]:
        """Explain a pair of events of two streams."""
        place = self._find_place("_rightPartition", "_rightOffset")
        second = self.reader.read_event(self.view.second_input or "", place, self._span)
        return f"{describe_rows(first)} was joined with {describe_rows(second)} within the window.", [first, second]

    def _explain_lookup(self, first: InputRows, join: Join) -> tuple[str, list[InputRows]]:
        """Explain a lookup in a table: the version of the key that was valid then."""
        name, by = self.view.second_input or "", ""
        row = first.rows[0] if first.rows else self.row
        key: Sequence[ColumnValue] = [row.get(column) for column in self.known[self.view.first_input].key]
        if join.keys:
            key, by = self._evaluate_keys(first, join.keys), f" by {', '.join(join.keys)}"
        second = self.reader.read_version(name, key, self.moment, matches_null=not join.keys)
        hidden = first.hides_lookup(join.keys)
        second = replace(second, hidden=hidden)
        hidden |= second.has_sensitive_key
        values = ", ".join(
            f"{column} = {key_history.MASK if hidden else format_cell(value)}"
            for column, value in zip(second.source.key, key, strict=False)
        )
        when = f"valid at {format_moment(self.moment)}, as known at {format_moment(second.known_at)}"
        return f"{describe_rows(first)} looked up {name}{by}: {values}, {when}. It found {describe_rows(second)}.", [
            first,
            second,
        ]

    def _evaluate_keys(self, first: InputRows, texts: Sequence[str]) -> list[ColumnValue]:
        """Return the values of the expressions of `on` over the first input's row; none without a row."""
        schema = self.reader.read_schema(first.name)
        if not first.rows or schema is None:
            return []
        names, expressions = {first.name: list(self.known[first.name].columns)}, RowExpressions(first.name, schema)
        return [expressions.evaluate(resolve(text, names), first.rows[0]) for text in texts]


def _is_derivable(kind: str, row: Row, known: datetime, frozen: datetime) -> bool:
    """Return True if a row's inputs are still kept, so that they say what it was made of, as known at `known`."""
    if known < frozen:
        return False
    if kind == "versions":
        end = find_cell(row, "validTo", datetime)
        return end is None or end > frozen
    return read_moment(row, PERIODS[kind][0]) >= frozen
