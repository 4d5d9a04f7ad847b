"""Find what is held back of single keys and rows of a table, for explanations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial

import duckdb

from hindcast.bitemporal.predicates import sql_literal
from hindcast.common.column_values import ColumnValue, Row
from hindcast.common.errors import QueryError
from hindcast.contract import Contract, list_shapes
from hindcast.contract.shapes import PERIODS, Shape
from hindcast.plan import journal
from hindcast.quality import failing_rows, held_changes, held_units
from hindcast.query import explain_limits
from hindcast.query.holds import Hold
from hindcast.store.duckdb_reader import EngineFactory

MEMORY = 320 << 20
"""The memory that finding a hold may take; the time is that of an explanation."""


@dataclass(frozen=True)
class HeldKeys:
    """Finds what was held of a table, as known at a moment (`query.holds.HoldFinder`)."""

    warehouse: str
    contract: Contract
    name: str
    known_at: datetime

    def find_of_key(self, key: Sequence[ColumnValue]) -> Hold | None:
        """Return the change of a key, or of single rows of it, that is held back; None if there is none."""
        return self._find_hold(_match_columns("key", dict(zip(self._shape.key, key, strict=True))))

    def find_of_row(self, row: Row) -> Hold | None:
        """Return the change that is held back and would replace a row, or other rows of its key; None if none would.

        With `hold: row` other rows of its key do not count. A row that is held with another key is found by what the
        held change closes: entries show no sensitive columns, but its record, and when it begins.
        """
        key = {column: row[column] for column in self._shape.key}
        shown = {**key, **{column: row[column] for column in PERIODS[self._shape.kind] if column != "validTo"}}
        closes = [
            "\"change\" = 'close'",
            *(f"(NOT json_exists(\"row\", '/{c}') OR {_match_column('row', c, value)})" for c, value in shown.items()),
        ]
        if isinstance(offset := row.get("_offset"), int):
            closes.append(f'"offset" = {offset}')
        ways = [f"({' AND '.join(closes)})"]
        if not held_units.has_row_hold(self.contract, self.name):
            ways.append(f"({_match_columns('key', key)})")
        return self._find_hold(" OR ".join(ways))

    def find_failing_runs(self, key: Sequence[ColumnValue]) -> list[tuple[int, str]]:
        """Return the runs that found rows of a key which are not published now (`held_changes.find_failing_runs`)."""
        completed = journal.read_completed_runs(self.warehouse, self.contract.pipeline)
        after = max((run.number for run in completed), default=0)
        condition = _match_columns("key", dict(zip(self._shape.key, key, strict=True)))
        place = self.warehouse, self.contract.pipeline
        with self._refuse_slow_search() as engine:
            return held_changes.find_failing_runs(*place, self.name, condition, after, engine)

    @property
    def _shape(self) -> Shape:
        return list_shapes(self.contract)[self.name]

    def _find_hold(self, condition: str) -> Hold | None:
        """Return the hold of the held rows that meet a condition over the table of failing rows."""
        runs = journal.read_runs(self.warehouse, self.contract.pipeline)
        upto = max((run.number for run in runs if run.known_at <= self.known_at), default=0)
        place = self.warehouse, self.contract.pipeline
        with self._refuse_slow_search() as engine:
            found = held_changes.find_beginning(*place, self.name, condition, upto, engine)
        if found is None:
            return None
        began, since = found
        return Hold(began, since, next((run.known_at for run in runs if run.number == since), None))

    @contextmanager
    def _refuse_slow_search(self) -> Iterator[EngineFactory]:
        """Give what opens the engine of a search; QueryError if the search takes too long, or too much memory."""
        try:
            yield partial(explain_limits.open_limited_engine, memory=MEMORY)
        except (explain_limits.EngineLimitError, duckdb.OutOfMemoryException):
            limit = f"{explain_limits.MAX_SECONDS:g} s, or {MEMORY >> 20} MiB of memory"
            raise QueryError(
                f"finding out whether a change of the key is held back takes more than {limit}",
                where=failing_rows.failing_table(self.warehouse, self.contract.pipeline).path,
                fix=f"hindcast failing {self.contract.pipeline} --held lists what is held back",
            ) from None


def _match_columns(source: str, columns: Row) -> str:
    """Return the condition that a JSON object has these values."""
    return " AND ".join(_match_column(source, column, value) for column, value in columns.items())


def _match_column(source: str, column: str, value: ColumnValue) -> str:
    """Return the condition that a JSON object, as entries have it (entry_rows.py), has a value in a column."""
    text = f"json_extract_string(\"{source}\", '/{column}')"  # a name has no quotes
    match value:
        case None:
            return f"{text} IS NULL"
        case bool():
            return f"{text} = '{json.dumps(value)}'"
        case Decimal():
            kind = f"DECIMAL(38, {max(0, -int(value.as_tuple().exponent))})"
        case float():
            kind = "DOUBLE"
        case datetime():
            kind = "TIMESTAMPTZ" if value.tzinfo else "TIMESTAMP"
        case date():
            kind = "DATE"
        case int() | str():
            return f"{text} = {sql_literal(str(value))}"
        case _:
            return "false"  # bytes and nested values are no keys of a question
    return f"TRY_CAST({text} AS {kind}) = {sql_literal(value)}"
