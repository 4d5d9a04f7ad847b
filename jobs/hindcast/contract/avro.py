"""Avro schemas: the Spark type of each field, and whether a contract's columns can take it.

Pure, without Spark. `formats/avro.py` decodes by it, and the contract's own check looks at schemas in files.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, NamedTuple

import sqlglot
from pydantic import ValidationInfo, WithJsonSchema, model_validator
from sqlglot import expressions as exp

from hindcast.common.json_values import JsonObject, JsonValue, list_objects
from hindcast.contract import avro_rules, bounds
from hindcast.contract.bounds import FileState
from hindcast.contract.types import ContractModel, ContractValue, format_value


class ScalarType(NamedTuple):
    """A type without parts, as Spark names it; `void` has only null."""

    name: str

    def __str__(self) -> str:
        return self.name


class ArrayType(NamedTuple):
    """Any number of one type."""

    element: FieldType

    def __str__(self) -> str:
        return f"array<{self.element}>"


class MapType(NamedTuple):
    """Avro's map: values by text keys."""

    element: FieldType

    def __str__(self) -> str:
        return f"map<string, {self.element}>"


class RecordType(NamedTuple):
    """Fields by name, in order."""

    fields: dict[str, FieldType]

    def __str__(self) -> str:
        return f"struct<{format_columns(self.fields, ': ')}>"


FieldType = ScalarType | ArrayType | MapType | RecordType


class SchemaError(ValueError):
    """An Avro schema that cannot be read as columns."""


class AvroFile(ContractModel):
    """An Avro schema in a file beside the contract. Its content is part of the contract."""

    file: str
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, value: ContractValue, info: ValidationInfo) -> ContractValue:
        if isinstance(value, dict) and value.keys() == cls.model_fields.keys():
            return value
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004  # pydantic would not catch a TypeError
                f"{format_value(value)} is not the name of a file; write for example orders.avsc"
            )
        folder = (info.context or {}).get("folder")
        if folder is None:
            raise ValueError(f"'{value}' is a file beside a contract, but this contract was not read from a file")
        if Path(value).name != value:
            raise ValueError(f"'{value}' is not the name of a file; put the schema beside the contract")
        path = Path(folder) / value
        if (states := _NAMED_FILES.get()) is not None:
            states.setdefault(path, bounds.find_state(path))
        try:
            text = bounds.read_text(path)
            schema = json.loads(text)
            _refuse_surrogates(schema)
            parse_schema(schema)
        except OSError as error:
            raise ValueError(f"'{value}' cannot be read: {error.strerror}; put the file beside the contract") from None
        except SchemaError as error:
            raise ValueError(f"'{value}' {error}; fix the schema") from None
        except bounds.ExcessError as error:
            raise ValueError(f"'{value}' {error}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"'{value}' is not JSON: {error}; fix the file") from None
        return {"file": value, "text": json.dumps(schema)}


@contextmanager
def record_named_files() -> Iterator[dict[Path, FileState]]:
    """Return a dictionary that gets each file that a contract names while the block reads it, also if it is not there.

    The values are the states of the files before they were read.
    """
    states: dict[Path, FileState] = {}
    token = _NAMED_FILES.set(states)
    try:
        yield states
    finally:
        _NAMED_FILES.reset(token)


_NAMED_FILES: ContextVar[dict[Path, FileState] | None] = ContextVar("_NAMED_FILES", default=None)


def _refuse_surrogates(schema: JsonValue) -> None:
    r"""Raise SchemaError for an unpaired surrogate, as the escape \ud800 is in JSON without the other half."""
    try:
        json.dumps(schema, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise SchemaError(f"has U+{ord(half):04X} in a text, which is an unpaired surrogate") from None


SchemaFile = Annotated[AvroFile, WithJsonSchema({"type": "string", "examples": ["orders.avsc"]})]


def parse_schema(schema: JsonValue) -> FieldType:
    """Return the type of what a schema (parsed JSON) writes, as Spark's from_avro gives it; raise SchemaError.

    A union with null is the other type; int with long is bigint, float with double is double. Another union is a struct
    with a field for each of its types, named after it: struct<member_int: int, member_string: string>.
    """
    _refuse_deep(schema)
    read = _SchemaReader().parse_type(schema, None)
    _refuse_wide(read)
    if wrong := next(avro_rules.check_schema(schema), None):
        raise SchemaError(wrong)
    return read


def _refuse_deep(schema: JsonValue) -> None:
    """Raise SchemaError for a schema that is nested too deeply to recurse into."""
    level, depth = [schema], 0
    while level := [part for parent in level for part in _list_parts(parent)]:
        depth += 1
        if depth > 3 * bounds.SCHEMA_DEPTH:  # a type is up to three steps: fields, field, type
            raise SchemaError(f"has more than {bounds.SCHEMA_DEPTH} nested types")


def _list_parts(schema: JsonValue) -> Iterable[JsonValue]:
    return schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()


def _refuse_wide(read: FieldType) -> None:
    """Raise SchemaError for a type of too many parts: a named type counts wherever it is used, as in Spark."""
    sizes: dict[int, tuple[int, int]] = {}

    def measure(kind: FieldType) -> tuple[int, int]:
        if id(kind) not in sizes:
            inner = (
                kind.fields.values()
                if isinstance(kind, RecordType)
                else ()
                if isinstance(kind, ScalarType)
                else (kind.element,)
            )
            below = [measure(part) for part in inner]
            size, depth = 1 + sum(size for size, _ in below), 1 + max((depth for _, depth in below), default=0)
            if size > bounds.SCHEMA_PARTS or depth > bounds.SCHEMA_DEPTH:
                found = (
                    f"has more than {bounds.SCHEMA_PARTS:,} parts, or is nested more than {bounds.SCHEMA_DEPTH} deep"
                )
                raise SchemaError(f"{found}, with each named type expanded where it is used")
            sizes[id(kind)] = size, depth
        return sizes[id(kind)]

    measure(read)


def reader_schema(schema: JsonValue) -> JsonValue:
    """Return the schema (parsed JSON) that Spark should read with.

    It has no `time-micros`, which is read as the number that it is written in. Decimals have room for all their bytes:
    of a decimal of up to 18 digits Spark would read only the last 8 bytes.
    """
    if isinstance(schema, list):
        return [reader_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: reader_schema(schema[name]) for name in ("type", "items", "values", "fields") if name in schema}
    fields = {name: value for name, value in schema.items() if (name, value) != ("logicalType", "time-micros")}
    if schema.get("logicalType") == "decimal":
        fields["precision"] = _count_digits(schema)
    return {**fields, **parts}


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


def format_columns(columns: Mapping[str, str | FieldType], between: str = " ") -> str:
    """Return columns with their types, as messages show them."""
    return ", ".join(f"`{name}`{between}{kind}" for name, kind in columns.items())


class _SchemaReader:
    """A reader of one schema, with the named types that it has met."""

    def __init__(self) -> None:
        self._named: dict[str, FieldType | None] = {}

    def parse_type(self, schema: JsonValue, namespace: str | None) -> FieldType:
        if isinstance(schema, list):
            return self._parse_union(schema, namespace)
        if isinstance(schema, str):
            return (
                ScalarType(_PRIMITIVES[schema]) if schema in _PRIMITIVES else self._find_named_type(schema, namespace)
            )
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError("is not an Avro schema")
        kind = schema["type"]
        if kind == "record":
            return self._parse_record(schema, namespace)
        if kind in ("enum", "fixed"):
            field_type = self._parse_logical(schema) or ScalarType("string" if kind == "enum" else "binary")
            self._named[_full_name(schema, namespace)[0]] = field_type
            return field_type
        if kind == "array":
            return ArrayType(self.parse_type(schema.get("items"), namespace))
        if kind == "map":
            return MapType(self.parse_type(schema.get("values"), namespace))
        return self._parse_logical(schema) or self.parse_type(kind, namespace)

    def _find_named_type(self, name: str, namespace: str | None) -> FieldType:
        full = f"{namespace}.{name}" if namespace and "." not in name and f"{namespace}.{name}" in self._named else name
        if full not in self._named:
            raise SchemaError(f"has no type '{name}'")
        field_type = self._named[full]
        if field_type is None:
            raise SchemaError(f"has the type '{name}' inside itself, which no column can have")
        return field_type

    def _parse_record(self, schema: JsonObject, namespace: str | None) -> FieldType:
        name, inner = _full_name(schema, namespace)
        self._named[name] = None
        parts = schema.get("fields")
        fields = [part for part in list_objects(parts) if isinstance(part.get("name"), str)]
        if not isinstance(parts, list) or len(fields) < len(parts):
            raise SchemaError(f"has a record '{name}' without fields")
        record = RecordType({str(part["name"]): self.parse_type(part.get("type"), inner) for part in fields})
        self._named[name] = record
        return record

    def _parse_union(self, schema: Sequence[JsonValue], namespace: str | None) -> FieldType:
        kinds = [(part, self.parse_type(part, namespace)) for part in schema if part not in ("null", {"type": "null"})]
        types = [kind for _, kind in kinds]
        if not types:
            return ScalarType("void")
        if len(types) == 1:
            return types[0]
        for wide, both in (("bigint", {"int", "bigint"}), ("double", {"float", "double"})):
            if {str(kind) for kind in types} == both:
                return ScalarType(wide)
        return RecordType({f"member_{_member_name(part)}": kind for part, kind in kinds})

    def _parse_logical(self, schema: JsonObject) -> FieldType | None:
        logical, kind = str(schema.get("logicalType")), str(schema["type"])
        if logical == "decimal" and kind in ("bytes", "fixed"):
            digits, scale = schema.get("precision"), schema.get("scale", 0)
            if not (isinstance(digits, int) and isinstance(scale, int) and 0 <= scale <= digits <= _MOST):
                raise SchemaError(
                    f"has a decimal of {digits} digits, {scale} of them after the point; at most {_MOST} are supported"
                )
            return ScalarType(f"decimal({digits},{scale})")
        return ScalarType(_LOGICAL[logical, kind]) if (logical, kind) in _LOGICAL else None


_PRIMITIVES = {
    "null": "void",
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    ("date", "int"): "date",
    ("timestamp-millis", "long"): "timestamp",
    ("timestamp-micros", "long"): "timestamp",
    ("local-timestamp-millis", "long"): "timestamp_ntz",
    ("local-timestamp-micros", "long"): "timestamp_ntz",
}
"""All others are read as what they are written in: uuid as string, time-millis as int, timestamp-nanos as bigint; so is
time-micros, of which Spark would make a time (`reader_schema`): no column can have that.
"""

_WIDER = {
    "int": ("bigint", "double"),
    "float": ("double",),
    "timestamp_ntz": ("timestamp",),
}
"""The types that a scalar fits into without loss. A local timestamp is read as UTC, as all moments here."""

_MOST, _BYTES = 38, 16
_DIGITS = {"int": (10, 0), "bigint": (19, 0)}


def _count_digits(schema: JsonObject) -> JsonValue:
    """Return the digits that a decimal's bytes have room for, if these are more than 8; else those that it declares."""
    size = schema.get("size", _BYTES)
    if not isinstance(size, int) or size > _BYTES:
        return _MOST
    return min(len(str(2 ** (8 * size - 1))) - 1, _MOST) if size > 8 else schema.get("precision")


def _full_name(schema: JsonObject, namespace: str | None) -> tuple[str, str | None]:
    """Return the full name of a named type, and the namespace inside it."""
    name = str(schema.get("name", ""))
    if "." in name:
        return name, name.rpartition(".")[0]
    inner = str(schema.get("namespace", namespace) or "") or None
    return (f"{inner}.{name}" if inner else name), inner


def _member_name(schema: JsonValue) -> str:
    """Return the name of a type in a union: its own, without the namespace, or that of its kind."""
    if isinstance(schema, dict):
        return str(schema.get("name") or schema["type"]).rpartition(".")[2]
    return str(schema).rpartition(".")[2]


def _parse_data_type(kind: exp.DataType) -> FieldType:
    if kind.this is exp.DataType.Type.ARRAY:
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
    parts = sqlglot.exp.DataType.build(kind, dialect="spark").expressions
    digits, scale = [*(int(part.name) for part in parts), 0, 0][:2]
    return digits, scale
