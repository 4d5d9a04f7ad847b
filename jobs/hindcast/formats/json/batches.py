"""Many records at once: Arrow's bytes into Arrow's columns.

Plain records are read by msgspec, column after column (`columns`), which takes only what `records` would read in the
same way. All others are left to that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from hindcast.contract.avro import ArrayType, FieldType, RecordType
from hindcast.formats.json.columns import arrow_type, build_column
from hindcast.formats.json.records import RecordReader, RecordShape
from hindcast.formats.json.syntax import MAX_DEPTH, MAX_DIGITS, MAX_NAME, MAX_TEXT, is_deep
from hindcast.formats.json.values import BITS, decimal_digits

if TYPE_CHECKING:
    from numpy.typing import NDArray

Places: TypeAlias = "NDArray[np.int64]"

_SLICE = 32 << 20
"""About so many bytes are read at a time: Python's objects of them take several times as many."""
_LONG_NUMBERS = r"[0-9.]{16}|[0-9.][eE][-+]?[0-9]{3}"
"""Numbers that a double does not keep, or with an exponent that no decimal has; and texts that look like it."""
_MANY_DIGITS = re.compile(f"(?<![-+0-9.eE])[-+0-9.eE]{{{MAX_DIGITS}}}")
_LONG_NAME = re.compile(f'"[^"]{{{MAX_NAME}}}[^"]*+"[ \\t\\n\\r]*+:')
_FIELDS = ("struct", "problem")
_MOST_DIGITS = 18
"""Of a decimal with more digits few values are such that a double keeps them."""


class BatchReader:
    """Reads batches of records of a shape."""

    def __init__(self, shape: RecordShape) -> None:
        types: dict[str, FieldType] = {column.name: column.type for column in shape.columns}
        self._exact = RecordReader(shape)
        self._type = arrow_type(RecordType(types))
        tries = () if shape.mode == "lenient" else (False, True) if _has_decimals(RecordType(types)) else (True,)
        try:
            self._plain = [_PlainReader(shape, self._type, exact=exact) for exact in tries]
        except ValueError:  # of a name that JSON writes with an escape, which msgspec cannot read
            self._plain = []

    def read(self, raw: pa.Array) -> pa.Array:
        """Return a struct for each record: `struct`, its columns, and `problem`, what is wrong with it."""
        ends = np.cumsum(pc.binary_length(raw).fill_null(0).to_numpy())
        starts = np.flatnonzero(np.diff(ends // _SLICE, prepend=-1)).tolist()
        if len(starts) <= 1:
            return self._read_slice(raw)
        slices = zip(starts, [*starts[1:], len(raw)], strict=True)
        return pa.concat_arrays([self._read_slice(raw[start:end]) for start, end in slices])

    def _read_slice(self, raw: pa.Array) -> pa.Array:
        records = raw.to_pylist()
        texts = decode_texts(raw)
        left: Places = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))
        places, structs = [], []
        for reader in self._plain:
            struct, done = reader.read(records, texts, left)
            if len(done) == len(records):
                return pa.StructArray.from_arrays([struct, pa.nulls(len(done), pa.string())], _FIELDS)
            left = np.setdiff1d(left, done, assume_unique=True)
            places.append(done)
            structs.append(struct)
        others = [self._exact.read(records[place]) for place in left.tolist()]
        places.append(left)
        structs.append(pa.array([struct for struct, _ in others], self._type))
        order = np.full(len(records), -1)
        order[np.concatenate(places)] = np.arange(sum(map(len, places)))
        problems = np.full(len(records), None)
        problems[left] = [problem for _, problem in others]
        columns = pa.concat_arrays(structs).take(pa.array(order, mask=order < 0))
        return pa.StructArray.from_arrays([columns, pa.array(problems, pa.string())], _FIELDS)


class _PlainReader:
    """Reads plain records; unless `exact`, only those with numbers that doubles keep, which is faster."""

    def __init__(self, shape: RecordShape, type_: pa.StructType, *, exact: bool) -> None:
        self._type, self._width, self._exact = type_, len(shape.columns), exact
        self._strict = shape.mode == "strict"
        fields = {field: column.type for column in shape.columns for field in column.fields}
        self._knows_absent = self._strict or len(fields) > self._width
        absent = msgspec.UNSET if self._knows_absent else None
        struct = _define_struct(fields, absent, exact=exact, strict=self._strict)
        self._decode = msgspec.json.Decoder(struct).decode
        getters = {field: attrgetter(f"f{n}") for n, field in enumerate(fields)}
        self._columns = [([getters[field] for field in column.fields], column.type) for column in shape.columns]

    def read(self, records: Sequence[Any], texts: pa.Array, places: Places) -> tuple[pa.Array, Places]:
        """Return the columns of those of the records at some places that it can read, and their places."""
        columns, wrong = [], set[int]()
        taken, objects = self._decode_records(records, places[self._are_plain(texts)[places]].tolist())
        for (first, *others), type_ in self._columns:
            values = list(map(first, objects))
            for getter in others:
                found = map(getter, objects)
                values = [it if value is msgspec.UNSET else value for value, it in zip(values, found, strict=True)]
            if self._strict:
                wrong.update(n for n, value in enumerate(values) if value is msgspec.UNSET)
            if self._knows_absent and msgspec.UNSET in values:
                values = [None if value is msgspec.UNSET else value for value in values]
            column, misfits = build_column(values, type_)
            columns.append(column)
            wrong.update(misfits)
        struct, done = pa.StructArray.from_arrays(columns, fields=list(self._type)), np.array(taken, dtype=np.int64)
        if not wrong:
            return struct, done
        right = np.ones(len(taken), dtype=bool)
        right[list(wrong)] = False
        return struct.filter(pa.array(right)), done[right]

    def _decode_records(self, records: Sequence[bytes], places: list[int]) -> tuple[list[int], list[Struct]]:
        """Return the objects of those of the records at some places that msgspec can read, and their places."""
        decode = self._decode
        try:
            return places, [decode(records[place]) for place in places]
        except (ValueError, RecursionError):  # of one of them
            taken: list[int] = []
            objects: list[Struct] = []
        for place in places:
            try:
                objects.append(decode(records[place]))
            except (ValueError, RecursionError):
                continue
            taken.append(place)
        return taken, objects

    def _are_plain(self, texts: pa.Array) -> NDArray[np.bool_]:
        """Return which texts it may read."""
        plain = texts.is_valid()
        if not self._exact:
            plain = pc.and_(plain, pc.invert(pc.match_substring_regex(texts, _LONG_NUMBERS)))
        if self._strict:  # so many names as columns: none is there twice
            plain = pc.and_(plain, pc.equal(pc.count_substring_regex(texts, r'"\s*:'), self._width))
        found = np.array(plain.fill_null(False).to_numpy(zero_copy_only=False))
        large = pc.greater(pc.binary_length(texts), min(MAX_DIGITS, MAX_DEPTH)).fill_null(False)
        for place in np.flatnonzero(found & large.to_numpy(zero_copy_only=False)).tolist():
            found[place] = _is_within_limits(texts[place].as_py())
        return found


def _is_within_limits(text: str) -> bool:
    """Return whether a text has no more of anything than it may have; false also if that takes parsing it."""
    return (
        not is_deep(text)
        and not _MANY_DIGITS.search(text)
        and (len(text) <= MAX_NAME or (len(text) <= MAX_TEXT and "\\" not in text and not _LONG_NAME.search(text)))
    )


def decode_texts(raw: pa.Array) -> pa.Array:
    """Return records as texts; null where they are not UTF-8."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        right = [it is not None and it == it.decode(errors="ignore").encode() for it in raw.to_pylist()]
        return pc.if_else(pa.array(right), raw, pa.scalar(None, raw.type)).cast(pa.string())


def _has_decimals(type_: FieldType) -> bool:
    match type_:
        case ArrayType(element):
            return _has_decimals(element)
        case RecordType(fields):
            return any(map(_has_decimals, fields.values()))
    return str(type_).startswith("decimal")


def _define_struct(types: Mapping[str, FieldType], default: Any, *, exact: bool, strict: bool = False) -> Any:
    """Return msgspec's class for an object, with the attributes f0, f1 and so on."""
    names = {f"f{n}": name for n, name in enumerate(types)}
    kinds = {attribute: _value_type(types[name], exact=exact) for attribute, name in names.items()}
    fields = [(it, kind if kind is msgspec.Raw else kind | type(default), default) for it, kind in kinds.items()]
    return msgspec.defstruct("Fields", fields, rename=names, forbid_unknown_fields=strict, gc=False)


def _value_type(type_: FieldType, *, exact: bool) -> Any:
    """Return msgspec's type for a value, or for null."""
    match type_:
        case RecordType(types):
            return _define_struct(types, None, exact=exact) | None
        case ArrayType(element):
            return list[_value_type(element, exact=exact)] | None  # type: ignore[misc]  # a type made as it runs
    match str(type_):
        case "boolean":
            return bool | None
        case "float" | "double":
            return float | None
        case "timestamp":
            return int | str | None
        case name if name in BITS:
            most = 1 << BITS[name] - 1
            return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)] | None
        case name if name.startswith("decimal") and not exact and decimal_digits(name)[0] <= _MOST_DIGITS:
            return float | str | None
        case name if name.startswith("decimal") or name == "variant":
            return msgspec.Raw
    return str | None
