"""Compare the rows that a test expects with those of a table: as values of its columns, in any order, each once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC
from decimal import Decimal, InvalidOperation, localcontext
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from hindcast.common.column_values import ColumnValue
from hindcast.common.plurals import format_count
from hindcast.common.python_values import list_rows
from hindcast.contract.contract_tests import Rows
from hindcast.contract.types import ContractValue, format_value, parse_date, parse_moment
from hindcast.ops.contract_test_index import RowIndex
from hindcast.query.show import format_cell

MOST_SHOWN = 50
"""How many rows a difference shows."""

_MOST_DIGITS = 38
"""The most digits of a decimal column."""

_Row = Sequence[ColumnValue]


def compare_rows(name: str, expected: Rows, found: pa.Table) -> str | None:
    """Return the expected and the found rows of a table side by side, as text; None if they are the same.

    Only the columns that the expected rows name are compared; without expected rows, whether there are any.
    """
    names = [*expected[0]] if expected else [column for column in found.column_names if not column.startswith("system")]
    types = {field.name: field.type for field in found.schema}
    rows: list[_Row] = [tuple(row[column] for column in names) for row in list_rows(found.select(names))]
    try:
        wanted: list[_Row] = [tuple(convert_value(row[n], types[n], n) for n in names) for row in expected]
    except ValueError as error:
        return f"{name}: {error}"
    pairs = _pair_rows(wanted, rows)
    missing, extra = ([pair for pair in pairs if pair[n] is None] for n in (1, 0))
    if not missing and not extra:
        return None
    parts = [(missing, "expected row"), (extra, "found row")]
    counts = " and ".join(format_count(len(some), what) for some, what in parts if some)
    return f"{name}: {counts} without a match\n{_format_side_by_side(names, pairs)}"


def _pair_rows(expected: list[_Row], found: list[_Row]) -> list[tuple[_Row | None, _Row | None]]:
    """Return each expected row with an equal row that was found, each once; None stands for one that has no match."""
    left = RowIndex(found, is_equal)
    pairs: list[tuple[_Row | None, _Row | None]] = [(row, left.take_equal(row)) for row in expected]
    return [*pairs, *((None, row) for row in left.rows.values())]


def is_equal(one: ColumnValue, other: ColumnValue) -> bool:
    """Return whether two values of a column are equal; numbers with a fraction may differ by a billionth of them."""
    match one, other:
        case float(), float():
            return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))
        case Mapping(), Mapping():
            return one.keys() == other.keys() and all(is_equal(value, other[name]) for name, value in one.items())
        case ((list() | tuple()), (list() | tuple())):
            return len(one) == len(other) and all(map(is_equal, one, other))
        case _:
            return one == other


def convert_value(value: ContractValue, type_: pa.DataType, place: str) -> ColumnValue:
    """Return a value of a test as one of a column of this type; raise ValueError, which names `place`, if it is none.

    A field of a struct that is left out is null.
    """
    if value is None:
        return None
    if pa.types.is_struct(type_) and isinstance(value, Mapping):
        fields = {field.name: field.type for field in type_}
        if unknown := value.keys() - fields.keys():
            raise ValueError(f"{place} has no field '{min(unknown)}'")
        return {name: convert_value(value.get(name), kind, f"{place}.{name}") for name, kind in fields.items()}
    if (pa.types.is_list(type_) or pa.types.is_large_list(type_)) and isinstance(value, list):
        return [convert_value(part, type_.value_type, place) for part in value]
    try:
        return _convert_scalar(value, type_)
    except (TypeError, ValueError, OverflowError, InvalidOperation):
        hint = "; put it in quotes" if pa.types.is_string(type_) or pa.types.is_large_string(type_) else ""
        raise ValueError(f"{format_value(value)} is not a value of column {place}, which is {type_}{hint}") from None


def _convert_scalar(value: ContractValue, type_: pa.DataType) -> ColumnValue:
    """Return a scalar of a test as one of this type; raise an error for another value."""
    if pa.types.is_timestamp(type_):
        return parse_moment(value).replace(tzinfo=UTC if type_.tz else None)
    if pa.types.is_date(type_):
        return parse_date(value)
    if pa.types.is_decimal(type_) and not isinstance(value, bool):
        number = Decimal(str(value))
        with localcontext(prec=2 * _MOST_DIGITS):
            exact = number.quantize(Decimal(1).scaleb(-type_.scale))
        return exact if exact == number else number
    if pa.types.is_floating(type_) and isinstance(value, int | float) and not isinstance(value, bool):
        return float(np.float32(value)) if pa.types.is_float32(type_) else float(value)
    if pa.types.is_integer(type_) and isinstance(value, int) and not isinstance(value, bool):
        return value
    if pa.types.is_boolean(type_) and isinstance(value, bool):
        return value
    if (pa.types.is_string(type_) or pa.types.is_large_string(type_)) and isinstance(value, str):
        return value
    if (pa.types.is_binary(type_) or pa.types.is_large_binary(type_)) and isinstance(value, str):
        return value.encode()
    raise TypeError


def _format_side_by_side(names: Sequence[str], pairs: Sequence[tuple[_Row | None, _Row | None]]) -> str:
    """Return expected rows on the left and found ones on the right; those without a match below, after `!`."""
    equal = [pair for pair in pairs if None not in pair]
    missing = [row for row, other in pairs if other is None]
    extra = [other for row, other in pairs if row is None]
    lines: list[tuple[str, _Row | None, _Row | None]] = [(" ", *pair) for pair in equal]
    lines += [("!", *pair) for pair in zip_longest(missing, extra)]
    hidden = len(lines) - MOST_SHOWN
    lines = lines[max(hidden, 0) :]  # what differs is at the end
    sides = [_align_cells(names, [line[side] for line in lines]) for side in (1, 2)]
    left, right = (["expected", *sides[0]], ["found", *sides[1]])
    width = max(map(len, left))
    marks = [" ", " ", " ", *(mark for mark, _, _ in lines)]
    text = [
        f"{mark} {one.ljust(width)}    {other}".rstrip() for mark, one, other in zip(marks, left, right, strict=True)
    ]
    return "\n".join([*text, *([f"  ({format_count(hidden, 'equal row')} left out)"] if hidden > 0 else [])])


def _align_cells(names: Sequence[str], rows: Sequence[_Row | None]) -> list[str]:
    """Return a header, a rule and a line for each row, of equal widths; an empty line for None."""
    cells = [[] if row is None else [*map(format_cell, row)] for row in rows]
    widths = [max(len(name), *(len(row[n]) for row in cells if row), 0) for n, name in enumerate(names)]
    lines = [names, ["-" * width for width in widths], *cells]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines]
