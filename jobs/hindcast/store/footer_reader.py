"""The footer of a Parquet file, looked at before Arrow does: Arrow ends the process for what it refuses in a column.

A footer is a struct in Thrift's compact protocol. Of its lists only the items are counted, but for the columns: a
footer of a few bytes can claim millions of items, and a column can be encrypted, of an unknown codec, or have
statistics that do not fit its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import pyarrow as pa

FEW_ITEMS = 1_000
"""A small footer may have so many items in lists, whatever its size."""
BYTES_PER_ITEM, BYTES_PER_COLUMN = 4, 32
"""A footer has at least so many bytes for each item of its lists, and for each column of each row group."""

Value: TypeAlias = "bool | int | bytes | list[Value] | dict[int, Value] | None"
"""A value in a struct; None for a number with a point."""


_Form: TypeAlias = "Mapping[int, tuple[int, _Form | None]]"
"""The kinds of some fields by their numbers, with the form of a struct; of a list the kind of its items, under 0."""


class LargeFooterError(ValueError):
    """A footer takes many times the memory of its size."""


def refuse_many(count: int, least: int, length: int) -> None:
    """Raise LargeFooterError if so many items are more than a footer of `length` has in `least` bytes each."""
    if count > FEW_ITEMS and count * least > length:
        found = f"takes many times the memory of its size: it has {count:,} items in a footer of {length:,} bytes"
        raise LargeFooterError(found)


def refuse_odd_footer(data: bytes) -> None:
    """Raise LargeFooterError if a footer has too many structs in lists, or columns, for its size; ArrowInvalid if it
    does not end, or has a column that Arrow does not read.
    """
    try:
        _FooterReader(data).pass_struct(0, 0, "")
    except IndexError:
        raise pa.ArrowInvalid("has a footer that does not end") from None


class _Leaf(NamedTuple):
    """A column of the schema: its type, the bytes of a value (None: any number), and how deep it is optional or in
    lists, and in lists.
    """

    type: Value
    length: int | None
    definition: int
    repetition: int


class _FooterReader:
    """Passes over a footer, keeping one column at a time and the schema."""

    def __init__(self, data: bytes) -> None:
        self._data, self._items, self._columns = data, 0, 0
        self._schema: list[dict[int, Value]] = []
        self._leaves: list[_Leaf] | None = None

    def pass_struct(self, place: int, depth: int, path: str) -> int:
        """Return the end of a struct. `path`: the numbers of the fields that led to it, down to the columns."""
        if depth > _MAX_DEPTH:
            raise pa.ArrowInvalid("has a footer that is nested too deeply")
        data, number, seen = self._data, 0, set[int]()
        while head := data[place]:
            number, place = self._read_number(head, number, place + 1)
            if number in seen:
                raise pa.ArrowInvalid(f"has a footer with field {number} twice")
            seen.add(number)
            kind = head & 15
            if 4 <= kind <= 6:
                while data[place] > 127:
                    place += 1
                place += 1
            elif kind > 2:
                within = f"{path}.{number}" if kind == _LIST and depth < 2 else ""
                place = self._pass_value(kind, place, depth + 1, within)
        return place + 1

    def _pass_value(self, kind: int, place: int, depth: int, path: str) -> int:
        match kind:
            case 1 | 2 | 3:
                return place + 1
            case 4 | 5 | 6:
                return self._read_varint(place)[1]
            case 7:
                return place + 8
            case 8:
                length, place = self._read_varint(place)
                return place + length
            case 9 | 10:
                return self._pass_list(place, depth, path)
            case 12:
                return self.pass_struct(place, depth, "")
        raise pa.ArrowInvalid(f"has a footer with a field of kind {kind}")

    def _pass_list(self, place: int, depth: int, path: str) -> int:
        kind, count, place = self._read_list_head(place)
        if kind == _STRUCT:
            self._items += count
            refuse_many(self._items, BYTES_PER_ITEM, len(self._data))
        if path == _COLUMNS:
            self._columns += count
            refuse_many(self._columns, BYTES_PER_COLUMN, len(self._data))
        if kind != _STRUCT and count and path in (_SCHEMA, _GROUPS, _COLUMNS):
            raise pa.ArrowInvalid("has no structs where a footer has them")
        for number in range(count):
            if kind != _STRUCT:
                place = self._pass_value(kind, place, depth, "")
            elif path == _SCHEMA:
                element, place = self._read_struct(place, depth, _ELEMENT_FORM)
                self._schema.append(element)
            elif path == _COLUMNS:
                column, place = self._read_struct(place, depth, _COLUMN_FORM)
                self._refuse_odd_column(number, column)
            else:
                place = self.pass_struct(place, depth, path)
        return place

    def _refuse_odd_column(self, number: int, column: dict[int, Value]) -> None:
        leaves = self._leaves = _list_leaves(self._schema) if self._leaves is None else self._leaves
        if number >= len(leaves):
            raise pa.ArrowInvalid("has more columns in a row group than in its schema")
        if 8 in column or 9 in column:
            raise pa.ArrowInvalid("has an encrypted column")
        details, leaf = column.get(3), leaves[number]
        if not isinstance(details, dict):
            raise pa.ArrowInvalid("says nothing of a column")
        if details.get(1) != leaf.type:
            raise pa.ArrowInvalid("has a column of another type than in its schema")
        if details.get(4) not in _CODECS:
            raise pa.ArrowInvalid("has a column of an unknown compression")
        if not (_fit_sizes(details.get(16, {}), leaf) and _fit_statistics(details.get(12, {}), leaf)):
            raise pa.ArrowInvalid("has statistics that do not fit their column")

    def _read_struct(self, place: int, depth: int, form: _Form) -> tuple[dict[int, Value], int]:
        """Return the fields of a struct by their numbers, and its end; ArrowInvalid if one is not of its `form`."""
        if depth > _MAX_DEPTH:
            raise pa.ArrowInvalid("has a footer that is nested too deeply")
        data, number, fields = self._data, 0, dict[int, Value]()
        while head := data[place]:
            if step := head >> 4:
                number, place = number + step, place + 1
            else:
                number, place = self._read_number(head, number, place + 1)
            if number in fields:
                raise pa.ArrowInvalid(f"has a footer with field {number} twice")
            kind = head & 15
            wanted, inner = form.get(number) or (kind, None)
            if kind != wanted:  # Arrow would take it for missing
                raise pa.ArrowInvalid(f"has a footer with a field of kind {kind}, not {wanted}")
            if kind <= 2:
                fields[number] = kind == 1
            elif 4 <= kind <= 6 and (byte := data[place]) < 128:  # most numbers, and lengths of texts, are small
                fields[number], place = (byte >> 1) ^ -(byte & 1), place + 1
            elif kind == 8 and (length := data[place]) < 128:
                fields[number], place = data[place + 1 : place + 1 + length], place + 1 + length
            else:
                fields[number], place = self._read_value(kind, place, depth + 1, inner or {})
        return fields, place + 1

    def _read_value(self, kind: int, place: int, depth: int, form: _Form) -> tuple[Value, int]:
        match kind:
            case 4 | 5 | 6:
                zigzag, place = self._read_varint(place)
                return (zigzag >> 1) ^ -(zigzag & 1), place
            case 8:
                length, place = self._read_varint(place)
                return self._data[place : place + length], place + length
            case 9 | 10:
                of, count, place = self._read_list_head(place)
                if count and of != form.get(0, (of, None))[0]:
                    raise pa.ArrowInvalid(f"has a footer with a list of kind {of}")
                values: list[Value] = []
                for _ in range(count):
                    value, place = self._read_value(of, place, depth, {})
                    values.append(value)
                return values, place
            case 12:
                return self._read_struct(place, depth, form)
        return None, self._pass_value(kind, place, depth, "")

    def _read_number(self, head: int, number: int, place: int) -> tuple[int, int]:
        """Return the number of a field, and the place after it. `number`: that of the field before."""
        if step := head >> 4:
            return number + step, place
        zigzag, place = self._read_varint(place)
        return (zigzag >> 1) ^ -(zigzag & 1), place

    def _read_list_head(self, place: int) -> tuple[int, int, int]:
        """Return the kind and the number of a list's items, and where they begin."""
        kind, count = self._data[place] & 15, self._data[place] >> 4
        place += 1
        if count == 15:
            count, place = self._read_varint(place)
        if count > len(self._data) - place:
            raise pa.ArrowInvalid("has a footer that does not end")
        return kind, count, place

    def _read_varint(self, place: int) -> tuple[int, int]:
        """Return a number, and its end."""
        value = shift = 0
        while (byte := self._data[place]) > 127:
            value |= (byte & 127) << shift
            shift += 7
            place += 1
            if shift > _MAX_SHIFT:
                raise pa.ArrowInvalid("has a footer with a number of more than 64 bits")
        return value | byte << shift, place + 1


def _list_leaves(schema: list[dict[int, Value]]) -> list[_Leaf]:
    """Return the columns of a schema, in order: its elements, of which each is followed by those below it."""
    leaves: list[_Leaf] = []
    open_: list[tuple[int, int, int]] = []
    for place, element in enumerate(schema):
        _, definition, repetition = open_[-1] if open_ else (0, 0, 0)
        if place:
            definition += element.get(3) in (_OPTIONAL, _REPEATED)
            repetition += element.get(3) == _REPEATED
        children = element.get(5, 0)
        if isinstance(children, int) and children > 0:
            open_.append((children, definition, repetition))
            continue
        kind, length = element.get(1), element.get(2)
        of_type = _LENGTHS.get(kind) if isinstance(kind, int) else None
        fixed = length if kind == _FIXED and isinstance(length, int) else of_type
        leaves.append(_Leaf(kind, fixed, definition, repetition))
        while open_:
            left, *levels = open_.pop()
            if left > 1:
                open_.append((left - 1, levels[0], levels[1]))
                break
    return leaves


def _fit_sizes(sizes: Value, leaf: _Leaf) -> bool:
    """Return whether sizes fit a column: a histogram has a number for each level, and only texts have sizes."""
    if not isinstance(sizes, dict):
        return False
    histograms = ((sizes.get(2, []), leaf.repetition), (sizes.get(3, []), leaf.definition))
    fits = all(isinstance(them, list) and len(them) in (0, most + 1) for them, most in histograms)
    return fits and (1 not in sizes or leaf.type == _BYTE_ARRAY)


def _fit_statistics(statistics: Value, leaf: _Leaf) -> bool:
    """Return whether the least and the greatest value of a column are values of its type."""
    if not isinstance(statistics, dict):
        return False
    values = (statistics.get(number, b"") for number in (1, 2, 5, 6))
    return all(isinstance(it, bytes) and (leaf.length is None or len(it) in (0, leaf.length)) for it in values)


_LIST, _STRUCT = 9, 12
_SCHEMA, _GROUPS, _COLUMNS = ".2", ".4", ".4.1"
"""The fields that lead to the elements of the schema, the row groups and their columns."""
_NUMBER, _LONG, _TEXT = (5, None), (6, None), (8, None)
_HISTOGRAM: tuple[int, _Form] = (_LIST, {0: _LONG})
_ELEMENT_FORM: _Form = {1: _NUMBER, 2: _NUMBER, 3: _NUMBER, 5: _NUMBER}
_STATISTICS_FORM: _Form = {1: _TEXT, 2: _TEXT, 5: _TEXT, 6: _TEXT}
_SIZES_FORM: _Form = {1: _LONG, 2: _HISTOGRAM, 3: _HISTOGRAM}
_DETAILS_FORM: _Form = {1: _NUMBER, 4: _NUMBER, 7: _LONG, 12: (_STRUCT, _STATISTICS_FORM), 16: (_STRUCT, _SIZES_FORM)}
_COLUMN_FORM: _Form = {3: (_STRUCT, _DETAILS_FORM)}
"""The kinds of the fields that are looked at, by their numbers, as parquet.thrift has them."""
_MAX_DEPTH, _MAX_SHIFT = 32, 63
_CODECS = range(8)
_BYTE_ARRAY, _FIXED, _OPTIONAL, _REPEATED = 6, 7, 1, 2
_LENGTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
"""The bytes of a value by its type: boolean, int32, int64, int96, float, double."""
