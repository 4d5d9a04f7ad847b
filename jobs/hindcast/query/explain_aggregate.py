"""Why a row of an aggregate is what it is: the rows of its group that count, without events too late for a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import duckdb
from sqlglot import expressions as exp

from hindcast.bitemporal import predicates
from hindcast.bitemporal.predicates import ColumnBound, sql_literal
from hindcast.common.column_values import Row
from hindcast.contract import Shape, View
from hindcast.contract.expressions import parse_aggregate
from hindcast.contract.parsing import parse_resolved
from hindcast.contract.shapes import PERIODS, resolve_all, view_scope
from hindcast.query import key_history
from hindcast.query.explain_limits import EngineLimitError, NotExplainedError
from hindcast.query.inputs_as_of import InputReader, InputRows, describe_rows
from hindcast.query.key_history import read_moment
from hindcast.query.late_members import WindowMembers, find_time_condition
from hindcast.query.row_expressions import RowExpressions
from hindcast.query.show import format_cell, format_moment


def explain_aggregate(
    view: View, known: Mapping[str, Shape], row: Row, moment: datetime, reader: InputReader
) -> tuple[str, list[InputRows]]:
    """Return what a row of an aggregate was made of, in words without a capital, and the rows of its group then.

    `moment`: when the row begins to be true.
    """
    group = _AggregateGroup(view, known, row, moment)
    part, hedge = group.read_rows(reader)
    hidden = any(column in text for text in group.texts.values() for column in part.marked)
    values = ", ".join(f"{c} = {key_history.MASK if hidden else format_cell(row[c])}" for c in group.texts)
    if view.window is not None:
        start, end = (format_moment(read_moment(row, column)) for column in PERIODS["windows"])
        when = f"from {start} to {end}"
    else:
        when = f"{_MOMENT_WORDS[group.kind]} {format_moment(moment)}"
    late = f", and leaves out {'one' if part.late == 1 else f'{part.late:,}'} that came too late" if part.late else ""
    return f"it aggregates {describe_rows(part)} with {values}, {when}{late}.{hedge if part.total else ''}", [part]


_MOMENT_WORDS = {"versions": "valid at", "events": "up to", "pairs": "up to", "windows": "started by"}


@dataclass(frozen=True)
class _AggregateGroup:
    """The group of an aggregate's row, as conditions over the view's input."""

    view: View
    known: Mapping[str, Shape]
    row: Row
    moment: datetime

    @property
    def kind(self) -> str:
        """The kind of the input's rows."""
        return self.known[self.view.first_input].kind

    @cached_property
    def texts(self) -> dict[str, str]:
        """The expressions of the groups by their columns; those of the key without `group_by`."""
        name = self.view.first_input
        return resolve_all(self.view.group_by, self.view, self.known) or {
            c: f"{name}.{c}" for c in self.known[name].key
        }

    def read_rows(self, reader: InputReader) -> tuple[InputRows, str]:
        """Return the rows that the row was made of, and a sentence to add if others may be among them."""
        name = self.view.first_input
        if (schema := reader.read_schema(name)) is None:
            return reader.build_part(name), ""
        expressions = RowExpressions(name, schema)
        columns = {c: f"({expressions.write_sql(text)})" for c, text in self.texts.items()}
        # Rules 13 and 14: an event without a group counts nowhere, and moves no stream time.
        joined = " AND " if self.view.group_by else " OR "
        counts = f"({joined.join(f'{text} IS NOT NULL' for text in columns.values())})"
        own = [f"{text} IS NOT DISTINCT FROM {sql_literal(self.row[c])}" for c, text in columns.items()]
        where = resolve_all({"": self.view.where}, self.view, self.known).values() if self.view.where else ()
        passed = [f"({expressions.write_sql(text)})" for text in where]
        try:
            with_value = [counts, self._write_value_condition(expressions)]
            return self._read_exact_rows(reader, expressions, own, passed, with_value), ""
        except EngineLimitError:
            raise
        except (NotExplainedError, duckdb.Error):
            part = self._read_all_rows(reader, expressions, _join_conditions(passed, [*own, counts]))
        late = " or that came too late" if self.view.window is not None else ""
        return part, f" Some of these may not count: those without a value to aggregate{late}."

    def _write_value_condition(self, expressions: RowExpressions) -> str:
        """Return the condition that a row has a value to aggregate: an argument of an aggregate that is not null."""
        scope = view_scope(self.view, self.known)
        arguments = [parse_aggregate(text, scope)[1] for text in (self.view.aggregate or {}).values()]
        if any(_is_never_null(parse_resolved(text)) for text in arguments):
            return "true"
        return f"({' OR '.join(f'({expressions.write_sql(text)}) IS NOT NULL' for text in arguments)})"

    def _read_exact_rows(
        self,
        reader: InputReader,
        expressions: RowExpressions,
        own: Sequence[str],
        passed: Sequence[str],
        with_value: Sequence[str],
    ) -> InputRows:
        """Return the rows of the group that count, without the events that came too late for the window."""
        group = _join_conditions(passed, [*own, *with_value])
        if self.view.window is None:
            return self._read_all_rows(reader, expressions, group)
        start, end = (read_moment(self.row, column) for column in PERIODS["windows"])
        members = WindowMembers(self.view.window, start, end, _join_conditions(passed, with_value), group)
        return reader.read_members(self.view.first_input, members, expressions)

    def _read_all_rows(self, reader: InputReader, expressions: RowExpressions, condition: str) -> InputRows:
        """Return the rows that meet the condition and were true when the row began, or lie in its window."""
        window, kind = self.view.window, self.kind
        if window is None:
            period = predicates.as_of_condition(kind, sql_literal(self.moment))
            bounds = [ColumnBound(PERIODS[kind][0], most=self.moment)]
        else:
            start, end = (read_moment(self.row, column) for column in PERIODS["windows"])
            period, bounds = find_time_condition(window, start, end), [ColumnBound("timestamp", start, end)]
        return reader.read_rows(self.view.first_input, f"{condition} AND {period}", bounds, expressions=expressions)


def _join_conditions(passed: Sequence[str], others: Sequence[str]) -> str:
    """Return all conditions as one; `others` are not evaluated for rows that a `where` leaves out, as in a run."""
    joined = " AND ".join(others)
    return f"CASE WHEN {' AND '.join(passed)} THEN {joined} ELSE false END" if passed else f"({joined})"


def _is_never_null(tree: exp.Expr) -> bool:
    """Return whether an argument is a literal, as of count(*), or a struct."""
    is_struct = isinstance(tree, exp.Anonymous) and str(tree.this).lower() == "struct"
    return is_struct or isinstance(tree, exp.Literal)
