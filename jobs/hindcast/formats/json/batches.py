"""Many records at once: Arrow's bytes into Arrow's columns.

Plain records are read by msgspec, column after column; it takes nothing that `records.read_record` would read in
another way. Whatever it does not take is left to that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, TypeAlias, Union

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.formats.json.records import RecordShape, parse_scalar, read_record
from hindcast.formats.json.syntax import MAX_DEPTH, MAX_DIGITS, JsonValue, Number
from hindcast.formats.json.types import WHOLE_BITS, FieldType

_LARGE = 50_000
"""Records of more bytes may have names that are too long."""
_FLOAT_DIGITS = 15
"""A decimal of so many digits is the only one that its double stands for."""
_FLOAT_COLUMN = 18
"""A decimal with more digits than that is rarely so short."""

_LONG_NUMBERS = r"[0-9.]{16}|[0-9.][eE][-+]?[0-9]{3}"
"""Numbers that a double does not keep, or with an exponent that decimals do not have; and texts that look like it."""
_MANY_DIGITS = re.compile(rb"[-+0-9.eE]{%d}" % MAX_DIGITS)

_DAY = r"[12][0-9]{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_MOMENT = _DAY + r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_ZONE = "(?:Z|[-+](?:0[0-9]|1[0-7]):[0-5][0-9])"
_UTC = pa.timestamp("us", "UTC")
_PLAIN_TEXTS = {
    "date": ((f"^{_DAY}$", pa.date32()),),
    "timestamp": ((f"^{_MOMENT}{_ZONE}$", _UTC), (f"^{_MOMENT}$", pa.timestamp("us"))),
}
"""Texts that Arrow reads as `scalars` does, with the type as which it reads them."""

_ARROW = {
    **{kind: getattr(pa, f"int{bits}")() for kind, bits in WHOLE_BITS.items()},
    **{"float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(), "binary": pa.binary()},
    **{"string": pa.string(), "variant": pa.string(), "date": pa.date32(), "timestamp": _UTC},
}

Built: TypeAlias = tuple[pa.Array, Iterable[int]]
"""Values of a column, and the places of those that must be read exactly."""


def read_batch(raw: pa.Array, shape: RecordShape) -> pa.Array:
    """Return for each record a struct of `struct`, its columns, and `problem`, what is wrong with it; null if null."""
    records = raw.to_pylist()
    texts = _decode_texts(raw, records)
    left = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))
    places, structs = [], []
    for reader in _list_readers(shape):
        array, taken, left = reader.read(records, texts, left)
        places.append(taken)
        structs.append(array)
    exact = [read_record(records[place], shape) for place in left]
    places.append(left)
    structs.append(pa.array([struct for struct, _ in exact], _struct_type(shape)))
    problems = dict(zip(left.tolist(), (problem for _, problem in exact), strict=True))
    order = np.full(len(records), -1)
    order[np.concatenate(places)] = np.arange(sum(map(len, places)))
    columns = pa.concat_arrays(structs).take(pa.array(order, mask=order < 0))
    reasons = pa.array([problems.get(n) for n in range(len(records))] if problems else [None] * len(records), pa.string())
    return pa.StructArray.from_arrays([columns, reasons], ["struct", "problem"])


class _Reader:
    """Reads plain records; `exact`: those also whose decimals a double does not keep."""

    def __init__(self, shape: RecordShape, *, exact: bool) -> None:
        self._shape, self._exact = shape, exact
        fields = {name: type_ for _, names, type_ in shape.fields for name in names}
        struct = _define_struct(fields, exact=exact, default=msgspec.UNSET, forbid=shape.mode == "strict")
        self._decode = msgspec.json.Decoder(struct).decode
        attributes = dict(zip(fields, struct.__struct_fields__, strict=True))
        self._columns = [([attrgetter(attributes[it]) for it in names], type_) for _, names, type_ in shape.fields]

    def read(
        self, records: Sequence[bytes], texts: pa.Array, places: np.ndarray[Any, Any]
    ) -> tuple[pa.Array, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the columns of plain records among those at `places`, their places, and the other places."""
        plain = places[self._are_plain(texts)[places]]
        taken, objects = [], []
        for place in plain.tolist():
            try:
                objects.append(self._decode(records[place]))
            except (ValueError, RecursionError):
                continue
            taken.append(place)
        columns, wrong = [], set[int]()
        for getters, type_ in self._columns:
            values = list(map(getters[0], objects))
            for getter in getters[1:]:
                values = [getter(it) if value is msgspec.UNSET else value for it, value in zip(objects, values, strict=True)]
            if self._shape.mode == "strict":
                wrong.update(n for n, value in enumerate(values) if value is msgspec.UNSET)
            column, places_ = _build_column([None if it is msgspec.UNSET else it for it in values], type_)
            columns.append(column)
            wrong.update(places_)
        found = pa.StructArray.from_arrays(columns, fields=list(_struct_type(self._shape)))
        done = np.array(taken, dtype=np.int64)
        if wrong:
            right = np.ones(len(taken), dtype=bool)
            right[list(wrong)] = False
            found, done = found.filter(pa.array(right)), done[right]
        return found, done, np.setdiff1d(places, done, assume_unique=True)

    def _are_plain(self, texts: pa.Array) -> np.ndarray[Any, Any]:
        """Return which records msgspec may read."""
        size = pc.binary_length(texts)
        plain = pc.less_equal(size, _LARGE)
        if not self._exact and any(_has_kind(type_, "decimal") for _, _, type_ in self._shape.fields):
            plain = pc.and_(plain, pc.invert(pc.match_substring_regex(texts, _LONG_NUMBERS)))
        if self._shape.mode == "strict":  # it has as many names as columns, so that none is repeated
            plain = pc.and_(plain, pc.equal(pc.count_substring_regex(texts, r'"\s*:'), len(self._shape.fields)))
        found = plain.fill_null(False).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(found & (size.fill_null(0).to_numpy() > min(MAX_DIGITS, MAX_DEPTH))):
            text = texts[place].as_py()
            if _MANY_DIGITS.search(text.encode()) or text.count("[") + text.count("{") > MAX_DEPTH:
                found[place] = False
        return found


@cache
def _list_readers(shape: RecordShape) -> list[_Reader]:
    """Return the readers of plain records, the fastest first."""
    if shape.mode == "lenient":
        return []
    decimals = any(_has_kind(type_, "decimal") for _, _, type_ in shape.fields)
    return [_Reader(shape, exact=exact) for exact in ((False, True) if decimals else (False,))]


def _decode_texts(raw: pa.Array, records: Sequence[bytes | None]) -> pa.Array:
    """Return records as texts; null where they are not UTF-8."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([it if it is not None and _is_utf8(it) else None for it in records]).cast(pa.string())


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_kind(type_: FieldType, kind: str) -> bool:
    return type_.kind == kind or any(_has_kind(it, kind) for it in (*type_.element, *(it for _, it in type_.fields)))


def _define_struct(fields: Mapping[str, FieldType], *, exact: bool, default: Any, forbid: bool = False) -> Any:
    """Return a class for msgspec with an attribute for each field."""
    attributes = {f"f{n}": name for n, name in enumerate(fields)}
    typed = [(it, _field_type(fields[name], exact=exact, default=default), default) for it, name in attributes.items()]
    return msgspec.defstruct("Fields", typed, rename=attributes, forbid_unknown_fields=forbid, gc=False)


def _field_type(type_: FieldType, *, exact: bool, default: Any = None) -> Any:
    match type_.kind:
        case "struct":
            found = _define_struct(dict(type_.fields), exact=exact, default=None)
        case "array":
            found = list[_field_type(type_.element[0], exact=exact)]  # type: ignore[misc]  # a type made as it runs
        case "variant":
            return msgspec.Raw
        case "decimal":
            if exact or type_.digits > _FLOAT_COLUMN:
                return msgspec.Raw
            found = Union[float, str]
        case "timestamp":
            found = Union[int, str]
        case "boolean":
            found = bool
        case "float" | "double":
            found = float
        case kind if kind in WHOLE_BITS:
            most = 1 << WHOLE_BITS[kind] - 1
            found = Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
        case _:
            found = str
    return Union[found, None, msgspec.UnsetType] if default is msgspec.UNSET else Union[found, None]


def _struct_type(shape: RecordShape) -> pa.StructType:
    return pa.struct([pa.field(column, _arrow_type(type_)) for column, _, type_ in shape.fields])


def _arrow_type(type_: FieldType) -> pa.DataType:
    match type_.kind:
        case "struct":
            return pa.struct([pa.field(name, _arrow_type(it)) for name, it in type_.fields])
        case "array":
            return pa.list_(_arrow_type(type_.element[0]))
        case "decimal":
            return pa.decimal128(type_.digits, type_.scale)
    return _ARROW[type_.kind]


def _build_column(values: list[Any], type_: FieldType) -> Built:
    """Return values of msgspec as a column."""
    match type_.kind:
        case "struct":
            return _build_structs(values, type_)
        case "array":
            return _build_arrays(values, type_)
        case "decimal":
            return _build_decimals(values, type_)
        case "date" | "timestamp":
            return _build_moments(values, type_)
        case "float":
            wide = pa.array(values, pa.float64())
            return _round_floats(wide)
        case "binary" | "variant":
            return _build_each(values, type_)
    return pa.array(values, _arrow_type(type_)), ()


def _build_structs(values: list[Any], type_: FieldType) -> Built:
    columns, wrong = [], set[int]()
    for n, (_, it) in enumerate(type_.fields):
        attribute = f"f{n}"
        column, places = _build_column([None if value is None else getattr(value, attribute) for value in values], it)
        columns.append(column)
        wrong.update(places)
    null = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(_arrow_type(type_)), mask=null), wrong


def _build_arrays(values: list[Any], type_: FieldType) -> Built:
    sizes = np.array([0 if it is None else len(it) for it in values], dtype=np.int64)
    ends = np.cumsum(sizes)
    elements, places = _build_column([it for value in values if value is not None for it in value], type_.element[0])
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    null = pa.array([value is None for value in values], pa.bool_())
    found = pa.ListArray.from_arrays(offsets, elements, type=_arrow_type(type_), mask=null)
    return found, np.searchsorted(ends, np.array(list(places), dtype=np.int64), side="right").tolist()


def _build_decimals(values: list[Any], type_: FieldType) -> Built:
    try:
        return _scale_floats(pa.array(values, pa.float64()), type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        numbers = [it if type(it) is float else None for it in values]
        floats, wrong = _scale_floats(pa.array(numbers, pa.float64()), type_)
        texts, also = _build_each([None if type(it) is float else it for it in values], type_)
        return pc.coalesce(floats, texts), {*wrong, *also}


def _scale_floats(floats: pa.Array, type_: FieldType) -> Built:
    """Return doubles as the decimals that they stand for."""
    numbers, there = floats.fill_null(0).to_numpy(), floats.is_valid().to_numpy(zero_copy_only=False)
    by = 10.0**type_.scale if type_.scale <= _FLOAT_COLUMN else np.inf
    with np.errstate(all="ignore"):
        unscaled = np.rint(numbers * by)
        right = (unscaled / by == numbers) & (np.abs(unscaled) < 10.0 ** min(type_.digits, _FLOAT_DIGITS))
    words = np.empty((len(numbers), 2), dtype="<i8")
    words[:, 0] = np.where(right, unscaled, 0)
    words[:, 1] = words[:, 0] >> 63
    valid = np.packbits(there, bitorder="little")
    found = pa.Array.from_buffers(_arrow_type(type_), len(numbers), [pa.py_buffer(valid), pa.py_buffer(words)])
    return found, np.flatnonzero(there & ~right).tolist()


def _round_floats(wide: pa.Array) -> Built:
    """Return doubles as floats; a double that is halfway between two, or beyond them, is read exactly."""
    numbers = wide.fill_null(0).to_numpy()
    with np.errstate(all="ignore"):
        below, above = (np.nextafter(numbers, it).astype(np.float32) for it in (-np.inf, np.inf))
    doubtful = (below != above) | ~np.isfinite(above) | ~np.isfinite(below)
    found = pa.array(np.where(doubtful, 0, numbers).astype(np.float32), mask=~wide.is_valid().to_numpy(zero_copy_only=False))
    return found, np.flatnonzero(doubtful).tolist()


def _build_moments(values: list[Any], type_: FieldType) -> Built:
    wanted = _arrow_type(type_)
    try:
        texts = pa.array(values, pa.string())
    except pa.ArrowTypeError:
        texts = pa.array([None if it is None else str(it) for it in values], pa.string())
    for pattern, arrow in _PLAIN_TEXTS[type_.kind]:
        if pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
            try:
                return texts.cast(arrow).cast(wanted), ()
            except pa.ArrowInvalid:
                break  # such as a 30th of February
    return _build_each(texts.to_pylist(), type_)


def _build_each(values: list[Any], type_: FieldType) -> Built:
    """Return values as a column, one after the other."""
    found = [_read_raw(it) if type(it) is msgspec.Raw else it for it in values]
    parsed = [None if it is None else parse_scalar(it, type_) for it in found]
    wrong = [n for n, it in enumerate(parsed) if it is None and found[n] is not None]
    return pa.array(parsed, _arrow_type(type_)), wrong


def _read_raw(raw: msgspec.Raw) -> JsonValue:
    """Return the value of a JSON text; of an object or an array an empty one, which no number or text is."""
    text = bytes(raw)
    if text[0] in b"-0123456789":
        return Number(text.decode())
    return msgspec.json.decode(text) if text[0] in b'"ntf' else []  # type: ignore[no-any-return]  # no number
