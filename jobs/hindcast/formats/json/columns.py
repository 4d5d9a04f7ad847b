"""Columns of Arrow from values of msgspec; and the places of those that must be read exactly, or are misfits.

What is read here in another way than by `values`, for its speed, is only what gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.contract.avro import ArrayType, FieldType, RecordType
from hindcast.contract.avro_compatibility import parse_declared_type
from hindcast.formats.json.syntax import parse_json, read_number
from hindcast.formats.json.values import BITS, decimal_digits, parse_scalar

_UTC = pa.timestamp("us", "UTC")
_TYPES = {
    **{name: getattr(pa, f"int{bits}")() for name, bits in BITS.items()},
    **dict.fromkeys(("string", "variant"), pa.string()),
    **dict(float=pa.float32(), double=pa.float64(), boolean=pa.bool_(), binary=pa.binary()),  # noqa: C408
    **dict(date=pa.date32(), timestamp=_UTC),  # noqa: C408
}
_DAY = r"^[12][0-9]{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_MOMENT = _DAY + r"[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_PLAIN: dict[str, tuple[tuple[str, pa.DataType], ...]] = {
    "date": ((f"{_DAY}$", pa.date32()),),
    "timestamp": ((f"{_MOMENT}(?:Z|[-+](?:0[0-9]|1[0-7]):[0-5][0-9])$", _UTC), (f"{_MOMENT}$", pa.timestamp("us"))),
}
"""Texts that Arrow reads rightly, and the types as which it does."""
_DOUBLE_DIGITS = 15
"""A decimal of so many digits is the only one that its double stands for."""

_UNREAD, _FEW_LEVELS = object(), 50

Column: TypeAlias = tuple[pa.Array, Iterable[int]]
"""A column, and the places of what it does not have."""


def arrow_type(type_: FieldType) -> pa.DataType:
    """Return the type of Arrow in which Spark takes a column type."""
    match type_:
        case RecordType(fields):
            return pa.struct([pa.field(name, arrow_type(it)) for name, it in fields.items()])
        case ArrayType(element):
            return pa.list_(arrow_type(element))
    name = str(type_)
    return pa.decimal128(*decimal_digits(name)) if name.startswith("decimal") else _TYPES[name]


def column_type(kind: str) -> pa.DataType:
    """Return `arrow_type` of a type as a contract writes it."""
    return arrow_type(parse_declared_type(kind))


def build_column(values: list[Any], type_: FieldType) -> Column:
    """Return values of the types of msgspec for a column type as a column of that type."""
    match type_:
        case RecordType():
            return _build_structs(values, type_)
        case ArrayType():
            return _build_arrays(values, type_)
    match str(type_):
        case "date" | "timestamp":
            return _build_texts(values, type_)
        case "float":
            return _round_doubles(pa.array(values, pa.float64()))
        case "variant":
            return _build_variants(values, type_)
        case "binary":
            return _build_each(values, type_)
        case name if name.startswith("decimal"):
            return _build_decimals(values, type_)
    return pa.array(values, arrow_type(type_)), ()


def _build_structs(values: list[Any], type_: RecordType) -> Column:
    columns, misfits = [], set[int]()
    for n, it in enumerate(type_.fields.values()):
        attribute = f"f{n}"
        column, places = build_column([None if value is None else getattr(value, attribute) for value in values], it)
        columns.append(column)
        misfits.update(places)
    null = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(arrow_type(type_)), mask=null), misfits


def _build_arrays(values: list[Any], type_: ArrayType) -> Column:
    elements, misfits = build_column([it for value in values if value for it in value], type_.element)
    ends = np.cumsum([0, *(len(value) if value else 0 for value in values)]).astype(np.int32)
    null = pa.array([value is None for value in values], pa.bool_())
    column = pa.ListArray.from_arrays(pa.array(ends), elements, type=arrow_type(type_), mask=null)
    return column, np.searchsorted(ends, np.array([*misfits], dtype=np.int32), side="right") - 1


def _build_decimals(values: list[Any], type_: FieldType) -> Column:
    try:
        return _scale_doubles(pa.array(values, pa.float64()), type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        doubles = pa.array([it if type(it) is float else None for it in values], pa.float64())
        column, misfits = _scale_doubles(doubles, type_)
        others, more = _build_texts([None if type(it) is float else it for it in values], type_)
        return pc.coalesce(column, others), {*misfits, *more}


def _scale_doubles(doubles: pa.Array, type_: FieldType) -> Column:
    """Return doubles as the decimals that they stand for, if those have few digits."""
    digits, scale = decimal_digits(str(type_))
    numbers, known = doubles.fill_null(0).to_numpy(), doubles.is_valid().to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        unscaled = np.rint(numbers * 10.0**scale)
        right = (unscaled / 10.0**scale == numbers) & (np.abs(unscaled) < 10.0 ** min(digits, _DOUBLE_DIGITS))
    words = np.empty((len(numbers), 2), dtype="<i8")
    words[:, 0] = np.where(right, unscaled, 0)
    words[:, 1] = words[:, 0] >> 63
    buffers = [pa.py_buffer(np.packbits(known, bitorder="little")), pa.py_buffer(words)]
    return pa.Array.from_buffers(arrow_type(type_), len(numbers), buffers), np.flatnonzero(known & ~right)


def _round_doubles(doubles: pa.Array) -> Column:
    """Return doubles as floats, but not those halfway between two floats: the number may be nearer to one of them."""
    numbers, null = doubles.fill_null(0).to_numpy(), doubles.is_null().to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        below, above = (np.nextafter(numbers, it).astype(np.float32) for it in (-np.inf, np.inf))
        doubtful = (below != above) | ~np.isfinite(above)
        return pa.array(numbers.astype(np.float32), mask=null), np.flatnonzero(doubtful)


def _build_texts(values: list[msgspec.Raw | str | int | None], type_: FieldType) -> Column:
    """Return texts and numbers as a column; all at once if Arrow reads them rightly."""
    sent = [_read_raw(it) if isinstance(it, msgspec.Raw) else str(it) if type(it) is int else it for it in values]
    try:
        column = parse_plain_texts(pa.array(sent, pa.string()), type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        column = None
    return _build_each(sent, type_) if column is None else (column, ())


def parse_plain_texts(texts: pa.Array, type_: FieldType) -> pa.Array | None:
    """Return texts as decimals, dates or timestamps; None if one of them is none, or is one that Arrow misreads."""
    for pattern, read in _plain_texts(str(type_)):
        if match_all(texts, pattern):
            try:
                return texts.cast(read).cast(arrow_type(type_))
            except pa.ArrowInvalid:
                return None  # a 30th of February
    return None


def match_all(texts: pa.Array, pattern: str) -> bool:
    """Return whether a pattern matches all texts that are not null."""
    return bool(pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


def _build_variants(values: list[msgspec.Raw | str | None], type_: FieldType) -> Column:
    """Return JSON values as text; all at once if none of them is written otherwise than it reads."""
    try:
        texts = pa.array([bytes(it) if isinstance(it, msgspec.Raw) else it for it in values], pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return _build_each(values, type_)
    longest = pc.max(pc.utf8_length(texts)).as_py() or 0
    if longest <= _PLAIN_LENGTH and match_all(texts, _PLAIN_VARIANT):
        pointed = pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.")  # as `values` writes whole numbers
        return pc.utf8_trim(pointed, characters='"'), ()
    return _build_each(values, type_)


_PLAIN_VARIANT = r'^(?:"[^"\\\x00-\x1f]*"|-?[0-9]+\.[0-9]+|[0-9]+|-[1-9][0-9]*)$'
_PLAIN_LENGTH = 100


def _plain_texts(name: str) -> tuple[tuple[str, pa.DataType], ...]:
    """Return patterns of texts of a type that Arrow reads rightly, each with the type as which it does."""
    if name in _PLAIN:
        return _PLAIN[name]
    digits, scale = decimal_digits(name)
    fraction = rf"(?:\.[0-9]{{1,{scale}}})?" if scale else ""
    pattern = rf"^-?[0-9]{{1,{digits - scale}}}{fraction}$"
    return ((pattern, pa.decimal128(digits, scale)),) if digits > scale else ()


def _build_each(values: list[Any], type_: FieldType) -> Column:
    """Return values as a column, one after the other."""
    name = str(type_)
    sent = [_read_raw(it) if isinstance(it, msgspec.Raw) else it for it in values]
    parsed = [None if it is None or it is _UNREAD else parse_scalar(it, name) for it in sent]
    misfits = [n for n, (it, value) in enumerate(zip(sent, parsed, strict=True)) if value is None and it is not None]
    return pa.array(parsed, arrow_type(type_)), misfits


def _read_raw(raw: msgspec.Raw) -> Any:
    """Return the value of a JSON text, `_UNREAD` if it may be nested deeply."""
    text = bytes(raw).decode()
    if text[0] in "-0123456789":
        return read_number(text)
    return parse_json(text) if text.count("[") + text.count("{") <= _FEW_LEVELS else _UNREAD
