"""The types of values of columns, as Arrow, Spark and DuckDB give them to Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import TypeAlias

ColumnValue: TypeAlias = (
    bool | int | float | Decimal | str | bytes | date | Sequence["ColumnValue"] | Mapping[str, "ColumnValue"] | None
)
"""A value of any type that a contract can give a column. A timestamp is a datetime, which is a date."""

Row: TypeAlias = Mapping[str, ColumnValue]
"""A row of a table, by column name."""
