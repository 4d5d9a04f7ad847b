"""How the columns of a table differ from those in its contract, and which differences a table can take. Pure.

| the contract has | the column is |
| --- | --- |
| one more column, or one more field in a struct | added: null in existing rows |
| a type that holds all values of the old one (`is_wider`) | widened |
| one column less | dropped: the table keeps it |
| any other type, another key; in a struct a field less, or a new one before an old one | refused |

`is_wider` follows Delta's type widening: the old files are read with the new type as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from hindcast.contract import avro, avro_compatibility


class ColumnDifference(NamedTuple):
    """The difference between a contract's columns and a table's; fields in structs are written `place.city`.

    `added`: with their types. `widened`: from which type to which. `dropped`: columns that the table keeps. `refused`:
    changes that no table can take, by path, in words.
    """

    added: dict[str, str]
    widened: dict[str, tuple[str, str]]
    dropped: tuple[str, ...]
    refused: dict[str, str]

    @property
    def needs_change(self) -> bool:
        """Whether the columns of the table have to change."""
        return bool(self.added or self.widened)

    def __str__(self) -> str:
        changes = [f"added {name} {kind}" for name, kind in self.added.items()]
        changes += [f"widened {name} from {old} to {new}" for name, (old, new) in self.widened.items()]
        changes += [f"dropped {name}" for name in self.dropped]
        return "; ".join([*changes, *self.refused.values()])


def find_difference(current: StructType, wanted: StructType, fixed: Collection[str] = ()) -> ColumnDifference:
    """Return how the `wanted` columns differ from the `current` ones of a table.

    Of `fixed` columns (the key) only integers can be widened, to integers: other types would write a key differently.
    """
    steps = list(_compare_fields(current, wanted, ""))
    known, named = {name.lower(): name for name in current.names}, {name.lower() for name in wanted.names}
    missing = tuple(name for name in current.names if name.lower() not in named)
    refused = {path: detail for kind, path, detail in steps if kind == "refused"}
    for name in wanted.names:
        if name not in current.names and name.lower() in known:
            refused[name] = f"{known[name.lower()]} differs from {name} only in case, which Delta ignores"
    widened = {
        path: (old, new) for kind, path, detail in steps if kind == "widened" for old, new in [detail.split(" -> ")]
    }
    for name in fixed:
        if name in widened and not {*widened[name]} <= {*_INTEGERS}:
            old, new = widened.pop(name)
            refused[name] = f"the key column {name} changed from {old} to {new}"
    added = {path: detail for kind, path, detail in steps if kind == "added" and path not in refused}
    return ColumnDifference(added, widened, missing, refused)


def parse_type(kind: str) -> DataType | None:
    """Return a column's type, as a contract or a cast writes it, as Spark's; None if only Spark knows what it means.

    >>> parse_type("decimal(8,2)"), parse_type("array<int>").simpleString(), parse_type("map<string,int>")
    (DecimalType(8,2), 'array<int>', None)
    """
    try:
        return _spark_type(avro_compatibility.parse_declared_type(kind))
    except _UnknownTypeError:
        return None


class _UnknownTypeError(Exception):
    """A type that no column of a contract can have, only a cast."""


def _spark_type(kind: avro.FieldType) -> DataType:
    match kind:
        case avro.ArrayType(of):
            return ArrayType(_spark_type(of))
        case avro.RecordType(fields):
            return StructType([StructField(name, _spark_type(field)) for name, field in fields.items()])
    name = str(kind)
    if name.startswith("decimal("):
        digits, _, scale = name.removeprefix("decimal(").removesuffix(")").partition(",")
        return DecimalType(int(digits), int(scale or 0))
    if name not in _SCALARS:
        raise _UnknownTypeError
    return _SCALARS[name]


def is_wider(old: DataType, new: DataType) -> bool:
    """Return whether Delta widens a column of the old type to the new one.

    >>> is_wider(IntegerType(), LongType()), is_wider(LongType(), DoubleType())
    (True, False)
    """
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    if isinstance(old, FloatType):
        return isinstance(new, DoubleType)
    if not isinstance(old, _WHOLE):
        return False
    if isinstance(new, _WHOLE):
        return _WHOLE.index(type(new)) > _WHOLE.index(type(old))
    if isinstance(new, DecimalType):
        return new.precision - new.scale >= (20 if isinstance(old, LongType) else 10)
    return isinstance(new, DoubleType) and not isinstance(old, LongType)


def has_local_moments(kind: DataType) -> bool:
    """Return whether a type, or a part of it, is timestamp_ntz, which a Delta table has to name in its protocol."""
    match kind:
        case StructType():
            return any(has_local_moments(field.dataType) for field in kind.fields)
        case ArrayType():
            return has_local_moments(kind.elementType)
        case _:
            return isinstance(kind, TimestampNTZType)


def format_columns(schema: StructType) -> str:
    """Return columns with their types in one line, as a contract writes them."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def cast_value(value: Column, old: DataType, new: DataType) -> Column:
    """Return a value of type `old` as type `new`, which is wider; new fields of structs are null."""
    if old.simpleString() == new.simpleString():
        return value
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        before, after = old.elementType, new.elementType
        return F.transform(value, lambda element: cast_value(element, before, after))
    if isinstance(old, StructType) and isinstance(new, StructType):
        kinds = {field.name: field.dataType for field in old.fields}
        parts = (
            cast_value(value.getField(f.name), kinds[f.name], f.dataType) if f.name in kinds else _null_column(f)
            for f in new.fields
        )
        named = (part.alias(field.name) for part, field in zip(parts, new.fields, strict=True))
        return F.when(value.isNotNull(), F.struct(*named))
    return value.cast(new)


def select_columns(current: StructType, wanted: StructType) -> list[Column]:
    """Return the wanted columns of rows that have the `current` ones; null for one that they lack."""
    kinds = {field.name: field.dataType for field in current.fields}
    return [
        (cast_value(F.col(f"`{f.name}`"), kinds[f.name], f.dataType) if f.name in kinds else _null_column(f)).alias(
            f.name
        )
        for f in wanted.fields
    ]


_SCALARS: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        *(StringType(), BooleanType(), ByteType(), ShortType(), IntegerType(), LongType()),
        *(FloatType(), DoubleType(), DateType(), TimestampType(), TimestampNTZType(), BinaryType()),
    )
}
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_INTEGERS = tuple(kind().simpleString() for kind in _WHOLE)


def _null_column(field: StructField) -> Column:
    return F.lit(None).cast(field.dataType)


def _compare_fields(current: StructType, wanted: StructType, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield each difference: (added, path, type), (widened, path, `int -> bigint`) or (refused, path, reason)."""
    known: Mapping[str, DataType] = {field.name: field.dataType for field in current.fields}
    for field in wanted.fields:
        if field.name in known:
            yield from _compare_types(known[field.name], field.dataType, f"{path}{field.name}")
        else:
            yield "added", f"{path}{field.name}", field.dataType.simpleString()
    if path:
        for name in [name for name in current.names if name not in wanted.names]:
            yield "refused", f"{path}{name}", f"the field {path}{name} is missing"
        if [name for name in wanted.names if name in known] != wanted.names[: len(known)]:
            yield "refused", path, f"new fields of {path[:-1]} must come last"


def _compare_types(current: DataType, wanted: DataType, path: str) -> Iterator[tuple[str, str, str]]:
    old, new = current.simpleString(), wanted.simpleString()
    if old == new:
        return
    if isinstance(current, StructType) and isinstance(wanted, StructType):
        yield from _compare_fields(current, wanted, f"{path}.")
    elif isinstance(current, ArrayType) and isinstance(wanted, ArrayType):
        yield from _compare_types(current.elementType, wanted.elementType, f"{path}.element")
    elif is_wider(current, wanted):
        yield "widened", path, f"{old} -> {new}"
    else:
        yield "refused", path, f"{path} changed from {old} to {new}"
