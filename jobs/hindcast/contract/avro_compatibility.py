"""Whether a contract's columns can take what an Avro schema writes. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from sqlglot import expressions as exp

from hindcast.contract.avro import ArrayType, FieldType, MapType, RecordType, ScalarType


def parse_declared_type(kind: str) -> FieldType:
    """Return a column's type, given as the contract writes it."""
    return _parse_data_type(exp.DataType.build(kind, dialect="spark"))


def offered_fields(schema: FieldType, columns: Sequence[str]) -> Mapping[str, FieldType]:
    """Return the fields that a schema offers: those of a record, or its one value under the name of the one column."""
    return schema.fields if isinstance(schema, RecordType) else dict.fromkeys(columns[:1], schema)


def check_columns(schema: FieldType, columns: Mapping[str, str], names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield why columns cannot take what a schema writes; nothing if they can.

    A column is read from the first of its `names` that the schema has, and is null where it has none.

        int into bigint fits    string into int: "`n` is string, which is not int"
    """
    offered = offered_fields(schema, list(columns))
    if not isinstance(schema, RecordType) and len(columns) != 1:
        yield f"it writes {schema}, not a record"
        return
    sources = {column: find_source_field(column, names, offered) for column in columns}
    if not any(sources.values()):
        yield "it has none of the columns"
    for column, field in sources.items():
        if field is not None:
            if same := [name for name in offered if name != field and name.lower() == field.lower()]:
                yield f"`{field}` and `{same[0]}` differ only in case, which Spark cannot distinguish"
            yield from _check_field(f"`{field}`", offered[field], parse_declared_type(columns[column]))


def find_source_field(column: str, names: Mapping[str, Sequence[str]], offered: Container[str]) -> str | None:
    """Return the field that a column is read from: the first of its names that is offered, or None."""
    return next((name for name in (column, *names.get(column, ())) if name in offered), None)


_WIDER = {
    "int": ("bigint", "double"),
    "float": ("double",),
    "timestamp_ntz": ("timestamp",),
}
"""The types that a scalar fits into without loss. A local timestamp is read as UTC, as all moments here."""

_DIGITS = {"int": (10, 0), "bigint": (19, 0)}


def _parse_data_type(kind: exp.DataType) -> FieldType:
    if kind.this is exp.DataType.Type.ARRAY and kind.expressions:
        return ArrayType(_parse_data_type(kind.expressions[0]))
    if kind.this is exp.DataType.Type.STRUCT:
        return RecordType({part.name: _parse_data_type(part.args["kind"]) for part in kind.expressions})
    name = kind.sql(dialect="spark").lower().replace(" ", "")
    return ScalarType("decimal(10,0)" if name == "decimal" else name)


def _check_field(place: str, given: FieldType, expected: FieldType) -> Iterator[str]:
    """Yield why a field's type does not fit a column's, part by part if they are nested."""
    match given, expected:
        case ArrayType(), ArrayType():
            yield from _check_field(f"{place}[]", given.element, expected.element)
        case MapType(), ArrayType(RecordType(parts)) if [*parts] == ["key", "value"]:
            yield from _check_field(f"{place}.key", ScalarType("string"), parts["key"])
            yield from _check_field(f"{place}.value", given.element, parts["value"])
        case RecordType(), RecordType():
            if not given.fields.keys() & expected.fields.keys():
                yield f"{place} is {given}, which is not {expected}"
            for name in [name for name in expected.fields if name in given.fields]:
                yield from _check_field(f"{place}.`{name}`", given.fields[name], expected.fields[name])
        case ScalarType("void"), _:
            return
        case ScalarType(), ScalarType() if given == expected or expected.name in _WIDER.get(given.name, ()):
            return
        case ScalarType(), ScalarType() if _has_more_digits(given.name, expected.name):
            return
        case _:
            yield f"{place} is {given}, which is not {expected}"


def _has_more_digits(given: str, expected: str) -> bool:
    """Return whether a decimal type has room for every number of another type, before and after the point."""
    if not expected.startswith("decimal"):
        return False
    source = _parse_decimal(given) if given.startswith("decimal") else _DIGITS.get(given)
    digits, scale = _parse_decimal(expected)
    return source is not None and source[1] <= scale and source[0] - source[1] <= digits - scale


def _parse_decimal(kind: str) -> tuple[int, int]:
    parts = exp.DataType.build(kind, dialect="spark").expressions
    digits, scale = [*(int(part.name) for part in parts), 0, 0][:2]
    return digits, scale
