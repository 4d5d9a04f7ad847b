"""How the columns of a table and those that a contract gives it differ, and which differences a table can take. Pure.

| the contract's columns, beside the table's | |
| --- | --- |
| one more, or one more field in a struct | added: null in the rows that are there |
| a type that holds all that the old one does (`wider`) | widened |
| one less | dropped: the table keeps it |
| any other type, another key; in a struct a field less, or a new one before an old one | refused |

Delta's type widening says what `wider` is: another type of Spark's is read from the old files as it is.
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
    TimestampType,
)

from hindcast.contracts import avro


class Difference(NamedTuple):
    """What a contract makes of a table's columns; the paths of fields in structs are written `place.city`.

    `added`: with their types. `widened`: from which type to which. `dropped`: columns that the table keeps.
    `refused`: what no table can take, by path, in words.
    """

    added: dict[str, str]
    widened: dict[str, tuple[str, str]]
    dropped: tuple[str, ...]
    refused: dict[str, str]

    @property
    def grows(self) -> bool:
        """Whether the table has to take something."""
        return bool(self.added or self.widened)

    def __str__(self) -> str:
        told = [f"added {name} {kind}" for name, kind in self.added.items()]
        told += [f"widened {name} from {old} to {new}" for name, (old, new) in self.widened.items()]
        told += [f"dropped {name}" for name in self.dropped]
        return "; ".join([*told, *self.refused.values()])


def difference(there: StructType, wanted: StructType, fixed: Collection[str] = ()) -> Difference:
    """What the `wanted` columns change in a table that has those that are `there`.

    Of `fixed` columns (the key) only integers can be widened, to integers: other types would tell a key otherwise.
    """
    steps = list(_fields(there, wanted, ""))
    known, named = {name.lower(): name for name in there.names}, {name.lower() for name in wanted.names}
    missing = tuple(name for name in there.names if name.lower() not in named)
    refused = {path: told for kind, path, told in steps if kind == "refused"}
    for name in wanted.names:
        if name not in there.names and name.lower() in known:
            refused[name] = f"{known[name.lower()]} differs from {name} by case alone, which Delta does not tell apart"
    widened = {path: (old, new) for kind, path, told in steps if kind == "widened" for old, new in [told.split(" -> ")]}
    for name in fixed:
        if name in widened and not {*widened[name]} <= {*_INTEGERS}:
            old, new = widened.pop(name)
            refused[name] = f"the key column {name} changed from {old} to {new}"
    added = {path: told for kind, path, told in steps if kind == "added" and path not in refused}
    return Difference(added, widened, missing, refused)


def declared_type(kind: str) -> DataType:
    """Return a column's type as a contract writes it, as Spark's own.

    >>> declared_type("decimal(8,2)"), declared_type("array<int>").simpleString()
    (DecimalType(8,2), 'array<int>')
    """
    return _spark_type(avro.declared(kind))


def _spark_type(kind: avro.Type) -> DataType:
    match kind:
        case avro.Array(of):
            return ArrayType(_spark_type(of))
        case avro.Record(fields):
            return StructType([StructField(name, _spark_type(it)) for name, it in fields.items()])
    name = str(kind)
    if name.startswith("decimal("):
        digits, _, scale = name.removeprefix("decimal(").removesuffix(")").partition(",")
        return DecimalType(int(digits), int(scale or 0))
    return _SCALARS[name]


def wider(old: DataType, new: DataType) -> bool:
    """Whether Delta widens a column of the old type to the new one.

    >>> wider(IntegerType(), LongType()), wider(LongType(), DoubleType()), wider(DecimalType(8, 2), DecimalType(9, 4))
    (True, False, False)
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


def shown(schema: StructType) -> str:
    """Columns with their types, as a contract has them, in one line."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def as_type(value: Column, old: DataType, new: DataType) -> Column:
    """A value of a table's type as the type that it is to have: wider, and with null for fields that are new."""
    if old.simpleString() == new.simpleString():
        return value
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        before, after = old.elementType, new.elementType
        return F.transform(value, lambda element: as_type(element, before, after))
    if isinstance(old, StructType) and isinstance(new, StructType):
        kinds = {field.name: field.dataType for field in old.fields}
        parts = (
            as_type(value.getField(f.name), kinds[f.name], f.dataType) if f.name in kinds else _null(f)
            for f in new.fields
        )
        named = (part.alias(field.name) for part, field in zip(parts, new.fields, strict=True))
        return F.when(value.isNotNull(), F.struct(*named))
    return value.cast(new)


def selected(there: StructType, wanted: StructType) -> list[Column]:
    """The wanted columns of rows that have the columns that are `there`; null for one that these lack."""
    kinds = {field.name: field.dataType for field in there.fields}
    return [
        (as_type(F.col(f"`{f.name}`"), kinds[f.name], f.dataType) if f.name in kinds else _null(f)).alias(f.name)
        for f in wanted.fields
    ]


_SCALARS: dict[str, DataType] = {
    kind.simpleString(): kind
    for kind in (
        *(StringType(), BooleanType(), ByteType(), ShortType(), IntegerType(), LongType()),
        *(FloatType(), DoubleType(), DateType(), TimestampType(), BinaryType()),
    )
}
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_INTEGERS = tuple(kind().simpleString() for kind in _WHOLE)


def _null(field: StructField) -> Column:
    return F.lit(None).cast(field.dataType)


def _fields(there: StructType, wanted: StructType, path: str) -> Iterator[tuple[str, str, str]]:
    """What each field is: (added, its path, its type), (widened, .., `int -> bigint`) or (refused, .., why)."""
    known: Mapping[str, DataType] = {field.name: field.dataType for field in there.fields}
    for field in wanted.fields:
        if field.name in known:
            yield from _types(known[field.name], field.dataType, f"{path}{field.name}")
        else:
            yield "added", f"{path}{field.name}", field.dataType.simpleString()
    if path:
        for name in [name for name in there.names if name not in wanted.names]:
            yield "refused", f"{path}{name}", f"the field {path}{name} is missing"
        if [name for name in wanted.names if name in known] != wanted.names[: len(known)]:
            yield "refused", path, f"new fields of {path[:-1]} must come last"


def _types(there: DataType, wanted: DataType, path: str) -> Iterator[tuple[str, str, str]]:
    old, new = there.simpleString(), wanted.simpleString()
    if old == new:
        return
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        yield from _fields(there, wanted, f"{path}.")
    elif isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        yield from _types(there.elementType, wanted.elementType, f"{path}.element")
    elif wider(there, wanted):
        yield "widened", path, f"{old} -> {new}"
    else:
        yield "refused", path, f"{path} changed from {old} to {new}"
