"""The statistics of a change: rows opened and closed, past answers corrected, and how old these are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal.intervals import to_micros
from hindcast.store import commits, files, tables
from hindcast.store.change_reader import LAST_MOMENT
from hindcast.store.commit_notes import AGES
from hindcast.store.tables import Table

CountedRow: TypeAlias = Mapping[str, Any]
"""The fields of a row of counts, as Spark gives them."""


def read_counts(rows: DataFrame) -> CountedRow:
    """Return the fields of the only row."""
    (row,) = rows.collect()
    fields: CountedRow = row.asDict(recursive=True)
    return fields


def total_columns(table: Table, known_at: datetime, change: DataFrame) -> tuple[Column, ...]:
    """Return `statistics_columns`, what gates and commits need to know, and `bytes`, the size of the texts.

    `span`: the fields `low` and `high` of `change_reader.PeriodSpan`, in microseconds since 1970; `high` is that of the
    last moment where a row has no end. `closing`: see `commits.closing_summary`; `bytes`: `files.text_size_column`.
    """
    start, end = tables.period_columns(table)
    ends = {"low": f"min(unix_micros(`{start}`))", "high": f"max(unix_micros(coalesce(`{end}`, {LAST_MOMENT})))"}
    span = ", ".join(f"'{name}', {end} FILTER (WHERE _change IN ('open', 'close'))" for name, end in ends.items())
    return (
        *statistics_columns(table, known_at),
        F.expr(f"named_struct({span})").alias("span"),
        commits.closing_summary(table),
        files.text_size_column(change).alias("bytes"),
    )


def statistics_columns(table: Table, known_at: datetime) -> tuple[Column, ...]:
    """Return aggregate columns over the rows of a change (table_diff.py) of `table` by a run that is `known_at`.

    The bigints `opened`, `closed` and, of the closed rows, `corrected` (past answers); `ages`, a struct of their number
    by age.
    """
    past, began = tables.correction_sql(table), tables.period_columns(table)[0]
    counts = {"opened": "_change = 'open'", "closed": "_change = 'close'", "corrected": past}
    return (
        *(F.expr(f"count_if({condition})").alias(name) for name, condition in counts.items()),
        _count_ages(past, began, known_at).alias("ages"),
    )


class ChangeStatistics(NamedTuple):
    """How many rows a change opens and closes, how many of the closed ones are past answers, and these by age."""

    opened: int
    closed: int
    corrected: int
    ages: Mapping[str, int]


def parse_statistics(row: CountedRow) -> ChangeStatistics:
    """Return the values of `statistics_columns` in a row with more; `ages` without zeros."""
    ages = {age: n for age, n in row["ages"].items() if n}
    return ChangeStatistics(row["opened"], row["closed"], row["corrected"], ages)


def _count_ages(past: str, began: str, known_at: datetime) -> Column:
    """Return a struct column: for each of `AGES` how many rows are `past` answers of that age, as a bigint.

    The age of a row is how long before the run it `began` to be true.
    """
    fields, older = list[str](), "true"
    for age, bound in AGES.items():
        least = f"timestamp_micros({to_micros(known_at - bound)})" if bound else None
        younger = f"`{began}` > {least}" if least else "true"
        fields.append(f"'{age}', count_if({past} AND {older} AND {younger})")
        older = f"`{began}` <= {least}"
    return F.expr(f"named_struct({', '.join(fields)})")
