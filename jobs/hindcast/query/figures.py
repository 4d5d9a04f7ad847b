"""The figures of a period: how many events or windows it has, and the sums of its columns of numbers; and by how much
each run has changed them.

Whole numbers and decimals are added exactly; doubles by compensated sums, which lose what is small beside numbers that
cancel each other. What a run closes and opens again with the same number changes no sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from decimal import Context, Decimal
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import duckdb
import pyarrow as pa

from hindcast.bitemporal.predicates import ColumnBound, known_at_condition, sql_literal
from hindcast.contract import Contract
from hindcast.query import changes
from hindcast.query.changes import ChangeQuestion
from hindcast.store import duckdb_reader, row_reader
from hindcast.store.duckdb_reader import EngineFactory, quote_name

Number: TypeAlias = Decimal | int | float
ROWS = "_rows"
"""The number of rows, beside columns of values, none of which begins so."""
_EXACT = Context(prec=100)
_SUMMED_DIGITS = 28
"""The most digits of a decimal of which DuckDB adds ten billion."""
_HALF = 18
"""A number with more digits is added as two: its last so many digits, and the others."""


class Measure(NamedTuple):
    """A column that is summed, or `ROWS`, of the rows of a group: a value as text, None for null or without groups."""

    column: str
    group: str | None


class PeriodFigures(NamedTuple):
    """Figures as known at the `earlier` and the `later` moment, and by how much runs have changed them, by their
    known-ats.
    """

    earlier: Mapping[Measure, Number]
    later: Mapping[Measure, Number]
    steps: Mapping[datetime, Mapping[Measure, Number]]


def sum_figures(
    warehouse: str,
    contract: Contract,
    name: str,
    question: ChangeQuestion,
    open_engine: EngineFactory = duckdb_reader.open_engine,
    group_by: str | None = None,
) -> PeriodFigures:
    """Return the figures of a table's events or windows between two moments of knowledge: their number (`ROWS`), and
    the sum of each column of numbers; with `group_by` of the rows of each value of a column. Of windows those count
    that begin in the period.

    Runs whose rows a trim has removed are left out: what they did counts for those that ended or followed these rows.
    """
    table, delta_table, form = changes.open_compared(warehouse, contract, name, question)
    since, until = sql_literal(question.earlier), sql_literal(question.later)
    numbers = form.number_columns
    columns = ", ".join(["1 AS _sign", "_group", *map(quote_name, numbers)])
    ended = columns.replace("1", "-1", 1)
    with row_reader.refuse_broken_files(table), open_engine(delta_table) as engine:
        duckdb_reader.register_rows(engine, delta_table, [ColumnBound("systemFrom", most=question.later)])
        group = quote_name(group_by) if group_by in engine.sql("FROM rows").columns else "NULL"
        needed = ", ".join(['"systemFrom"', '"systemTo"', f"{group}::VARCHAR AS _group", *map(quote_name, numbers)])
        engine.execute(f"CREATE TEMP TABLE kept AS SELECT {needed} FROM rows WHERE {form.kept_condition}")  # noqa: S608
        engine.execute(
            f"""
            CREATE TEMP VIEW signed AS
            SELECT NULL::TIMESTAMPTZ AS _at, false AS _later, {columns} FROM kept WHERE {known_at_condition(since)}
            UNION ALL SELECT NULL, true, {columns} FROM kept WHERE {known_at_condition(until)}
            UNION ALL SELECT "systemFrom", false, {columns} FROM kept
                WHERE "systemFrom" > {since} AND "systemFrom" <= {until}
            UNION ALL SELECT "systemTo", false, {ended} FROM kept WHERE "systemTo" > {since} AND "systemTo" <= {until}
            """  # noqa: S608  # literals, quoted names
        )
        sums: dict[_Moment, dict[Measure, Number]] = {(None, False): {}, (None, True): {}}
        queries = [(ROWS, 0, f"SELECT {_PLACE}, sum(_sign), NULL FROM signed GROUP BY {_PLACE}")]  # noqa: S608  # ours
        queries += [_sum_column(column, kind) for column, kind in numbers.items()]
        for column, scale, query in queries:
            of_column: dict[_Moment, dict[Measure, Number]] = {}
            for at, is_later, value, high, low in engine.sql(query).fetchall():
                of_column.setdefault((at, is_later), {})[Measure(column, value)] = _join_halves(high, low, scale)
            if not all(math.isfinite(it) for found in of_column.values() for it in found.values()):
                for moment, value, total in _add_doubles(engine, column):
                    of_column[moment][Measure(column, value)] = total
            for moment, found in of_column.items():
                sums.setdefault(moment, {}).update(found)
    steps = {at: found for (at, _), found in sums.items() if at is not None}
    return PeriodFigures(sums[None, False], sums[None, True], steps)


_Moment: TypeAlias = tuple[datetime | None, bool]
"""The known-at of a run, or None and whether it is as known at the later moment."""
_PLACE = "_at, _later, _group"


def _sum_column(name: str, kind: pa.DataType) -> tuple[str, int, str]:
    """Return the query of a column's sums by run, each in two halves, and how many digits are behind its point."""
    column = quote_name(name)
    if pa.types.is_floating(kind):
        terms = _count_values(name)
        return name, 0, f"SELECT {_PLACE}, coalesce(fsum(_times * _n), 0), NULL FROM ({terms}) GROUP BY {_PLACE}"  # noqa: S608
    if pa.types.is_integer(kind) or kind.precision <= _SUMMED_DIGITS:
        signed = f"CASE WHEN _sign > 0 THEN {column} ELSE -{column} END"
        signed = f"_sign * {column}::HUGEINT" if pa.types.is_integer(kind) else signed
        return name, 0, f"SELECT {_PLACE}, coalesce(sum({signed}), 0), NULL FROM signed GROUP BY {_PLACE}"  # noqa: S608
    whole = f"replace({column}::VARCHAR, '.', '')::HUGEINT"
    halves = (f"coalesce(sum(_sign * ({whole} {part})), 0)" for part in (f"// 1{'0' * _HALF}", f"% 1{'0' * _HALF}"))
    return name, kind.scale, f"SELECT {_PLACE}, {', '.join(halves)} FROM signed GROUP BY {_PLACE}"  # noqa: S608


def _count_values(name: str) -> str:
    """Return the query of a column's values by run, and how often more each was opened than closed."""
    column = quote_name(name)
    return f"SELECT {_PLACE}, {column} AS _n, sum(_sign) AS _times FROM signed GROUP BY ALL HAVING _times <> 0"  # noqa: S608


def _add_doubles(engine: duckdb.DuckDBPyConnection, name: str) -> list[tuple[_Moment, str | None, float]]:
    """Return a column's sums of doubles by run and group; on the way a sum may be larger than any double."""
    exact: dict[tuple[_Moment, str | None], Fraction] = defaultdict(Fraction)
    others: dict[tuple[_Moment, str | None], float] = defaultdict(float)
    for at, is_later, value, number, times in engine.sql(_count_values(name)).fetchall():
        place, is_finite = ((at, is_later), value), number is None or math.isfinite(number)
        exact[place] += Fraction(number or 0) * times if is_finite else 0
        if not is_finite:
            others[place] += number * times
    return [(*place, others[place] if place in others else _round(total)) for place, total in exact.items()]


def _round(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _join_halves(high: Number, low: int | None, scale: int) -> Number:
    if low is None:
        return high
    whole = int(high) * 10**_HALF + low
    return _EXACT.scaleb(Decimal(whole), -scale) if scale else whole


def add_numbers(first: Number, second: Number) -> Number:
    """Return the sum of two numbers of one column."""
    if isinstance(first, Decimal) or isinstance(second, Decimal):
        return _EXACT.add(Decimal(first), Decimal(second))
    return first + second


def negate_number(number: Number) -> Number:
    """Return a number with the other sign."""
    return _EXACT.minus(number) if isinstance(number, Decimal) else -number
