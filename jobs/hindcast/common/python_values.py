"""The values of Arrow's columns in Python, whose dates and moments end at the year 9999; those of Arrow do not.

list_rows(rows)    [{"item": "soup", "ends": date(9999, 12, 31)}, {"item": "naan", "ends": "+10000-01-01"}]
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hindcast.common.column_values import ColumnValue, Row


def list_rows(rows: pa.Table) -> list[Row]:
    """Return rows by column name; a date or moment beyond the years 1 to 9999 as text, in ISO 8601."""
    names, columns = rows.column_names, [list_values(column) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def list_values(column: pa.Array | pa.ChunkedArray) -> list[ColumnValue]:
    """Return the values of a column; a date or moment beyond the years 1 to 9999, at any depth, as text."""
    try:
        values: list[ColumnValue] = column.to_pylist()
    except OverflowError:
        return list(map(_read_value, column))
    return values


def _read_value(scalar: pa.Scalar) -> ColumnValue:
    """Return a value in Python."""
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    try:
        value: ColumnValue = scalar.as_py()
    except OverflowError:
        match scalar:
            case pa.StructScalar():
                return {name: _read_value(part) for name, part in scalar.items()}
            case pa.ListScalar() | pa.LargeListScalar():
                return list(map(_read_value, scalar.values))
            case _:
                return _format_moment(scalar)
    return value


def _format_moment(scalar: pa.Scalar) -> str:
    """Return a date, or a moment in microseconds, as text in ISO 8601: beyond four digits years have a sign."""
    if pa.types.is_date(scalar.type):
        return _format_year(np.datetime64(scalar.value, "D"), len("-01-01"))
    seconds, micros = divmod(scalar.value, 1_000_000)
    text = _format_year(np.datetime64(seconds, "s"), len("-01-01T00:00:00"))
    return f"{text}{f'.{micros:06}' if micros else ''}+00:00"


def _format_year(moment: np.datetime64, rest: int) -> str:
    text = str(moment)
    return f"{int(text[:-rest]):+05}{text[-rest:]}"
