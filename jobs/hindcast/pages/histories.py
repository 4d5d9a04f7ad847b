"""The history of one key in one table, as the pages ask about it: what was ever believed, and what of it answers.

A key's history is read once for each version of its table: moving a cursor reads nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any

import duckdb
import pyarrow as pa

from hindcast import questions, read
from hindcast.contracts import Contract
from hindcast.contracts.sensitive import sensitive
from hindcast.contracts.shapes import PERIODS
from hindcast.delta import scan, tables
from hindcast.delta.tables import Table
from hindcast.errors import QueryError, UnknownError
from hindcast.questions import literal
from hindcast.show import plain

HIDDEN = "***"
"""In place of the value of a sensitive column."""

SUGGESTED = 20
_KEPT = 32
_LARGEST = 200_000


@dataclass(frozen=True)
class Some:
    """Rows of a table, the first ones of `total`."""

    rows: list[dict[str, Any]]
    total: int


@dataclass(frozen=True)
class History:
    """All rows ever believed about a key, with lineage."""

    table: Table
    rows: pa.Table

    @property
    def start(self) -> str:
        """The column that says from when a row is true."""
        return PERIODS[self.table.kind][0]

    def at(self, as_of: datetime, known: datetime, limit: int) -> Some:
        """What was true at a moment as known at another: of versions and windows those that it lies in, the latest

        first; of events those up to it.
        """
        true = true_at(self.table.kind, as_of)
        return self._some(f"{questions.known_at(literal(known))} AND {true}", f'"{self.start}" DESC', limit)

    def changed(self, known: datetime, other: datetime, limit: int) -> Some:
        """What was believed at one moment and not at another, by valid time."""
        here, there = (f"({questions.known_at(literal(moment))})" for moment in (known, other))
        return self._some(f"{here} AND NOT coalesce{there}", f'"{self.start}"', limit)

    def near(self, as_of: datetime, limit: int) -> Some:
        """The rows nearest to a moment of valid time; all if there are not more than `limit`."""
        end = PERIODS[self.table.kind][-1]
        at = literal(as_of)
        away = f'abs(epoch_us("{self.start}") - epoch_us({at}))'
        true = f'CASE WHEN "{self.start}" <= {at} AND ("{end}" IS NULL OR "{end}" >= {at}) THEN 0 ELSE 1 END'
        return self._some("true", f"{true}, {away}", limit)

    def _some(self, condition: str, order: str, limit: int) -> Some:
        with scan.engine() as engine:
            engine.register("rows", self.rows)
            return some(engine, condition, order, limit)


def some(engine: duckdb.DuckDBPyConnection, condition: str, order: str, limit: int, of: str = "rows") -> Some:
    """The first `limit` of the `rows` that meet a condition, and how many do."""
    meet = f'FROM rows AS "{of}" WHERE {condition}'
    text = f"SELECT *, count(*) OVER () AS _total {meet} ORDER BY {order} LIMIT {limit}"
    found = engine.sql(text).to_arrow_table().to_pylist()
    total = found[0]["_total"] if found else 0
    return Some([{name: value for name, value in row.items() if name != "_total"} for row in found], total)


def true_at(kind: str, moment: datetime) -> str:
    """The condition of what the crosshair is in: versions and windows that hold a moment, events up to it."""
    at = literal(moment)
    return questions.during(kind, at, at) if kind == "windows" else questions.as_of(kind, at)


def history(table: Table, key: Sequence[Any]) -> History:
    """Everything ever believed about a key; UnknownError if that is nothing."""
    found = tables.opened(table)
    if found is None:
        raise UnknownError("the table has not been published yet", where=table.path, mend="run the pipeline first")
    place = (str(found.metadata().id), found.version(), tuple(map(str, key)))
    with _LOCK:
        rows = _KEEPS.get(place)
        if rows is not None:
            _KEEPS.move_to_end(place)
    if rows is None:
        rows = read.of_key(table, found, key)
        if rows.num_rows <= _LARGEST:
            with _LOCK:
                _KEEPS[place] = rows
                while len(_KEEPS) > _KEPT:
                    _KEEPS.popitem(last=False)
    if not rows.num_rows:
        raise UnknownError("nothing was ever believed about this key", where=table.path, mend="pick another key")
    return History(table, rows)


def suggested(table: Table, beginning: str) -> list[str]:
    """A few keys of a table whose first column begins so, as they are written in an address; not all there are."""
    found = tables.opened(table)
    if found is None:
        return []
    columns = ", ".join(f'"{column}"' for column in table.key)
    condition = f'starts_with(CAST("{table.key[0]}" AS VARCHAR), {literal(beginning)})'
    with scan.engine() as engine:
        scan.register(engine, found)
        text = f"SELECT DISTINCT {columns} FROM rows WHERE {condition} LIMIT {SUGGESTED}"  # noqa: S608  # literals
        rows = engine.sql(text).to_arrow_table().to_pylist()
    return sorted(read.key_text(table, list(row.values())) for row in rows)


def secret(contract: Contract, name: str) -> frozenset[str]:
    """The sensitive columns of a table; QueryError where its key is: then nobody may ask by it."""
    marked = sensitive(contract)[name]
    if marked & set(tables.located("", contract, name).key):
        raise QueryError(f"the key of {name} is sensitive", where=contract.pipeline, mend="no page shows its rows")
    return marked


def told(row: dict[str, Any], marked: frozenset[str]) -> dict[str, Any]:
    """A row as JSON has it, without what is sensitive."""
    return {name: HIDDEN if name in marked else plain(value) for name, value in row.items()}


_KEEPS: OrderedDict[tuple[str, int, tuple[str, ...]], pa.Table] = OrderedDict()
_LOCK = Lock()
