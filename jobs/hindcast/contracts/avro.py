"""What an Avro schema gives: the Spark type of each of its fields, and whether a contract's columns can take them.

Pure, without Spark. `formats/avro.py` decodes by it, and the contract's own check looks at schemas in files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import sqlglot
from pydantic import ValidationInfo, WithJsonSchema, model_validator
from sqlglot import expressions as exp

from hindcast.contracts import avro_rules, bounds
from hindcast.contracts.types import Model, shown


class Scalar(NamedTuple):
    """A type without parts, as Spark names it; `void` has only null."""

    name: str

    def __str__(self) -> str:
        return self.name


class Array(NamedTuple):
    """Any number of one type."""

    of: Type

    def __str__(self) -> str:
        return f"array<{self.of}>"


class Map(NamedTuple):
    """Avro's map: values by text keys."""

    of: Type

    def __str__(self) -> str:
        return f"map<string, {self.of}>"


class Record(NamedTuple):
    """Fields by name, in order."""

    fields: dict[str, Type]

    def __str__(self) -> str:
        return f"struct<{told(self.fields, ': ')}>"


Type = Scalar | Array | Map | Record


class SchemaError(ValueError):
    """An Avro schema that gives no columns."""


class AvroFile(Model):
    """An Avro schema in a file beside the contract. Its content is part of the contract."""

    file: str
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, dict) and value.keys() == cls.model_fields.keys():
            return value
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004  # pydantic would not catch a TypeError
                f"{shown(value)} is not the name of a file; write for example orders.avsc"
            )
        folder = (info.context or {}).get("folder")
        if folder is None:
            raise ValueError(f"'{value}' is a file beside a contract, and this contract is in no file")
        if Path(value).name != value:
            raise ValueError(f"'{value}' is not the name of a file; put the schema beside the contract")
        try:
            text = bounds.read_text(Path(folder) / value)
            schema = json.loads(text)
            _refuse_surrogates(schema)
            written(schema)
        except OSError as error:
            raise ValueError(f"'{value}' cannot be read: {error.strerror}; put the file beside the contract") from None
        except SchemaError as error:
            raise ValueError(f"'{value}' {error}; mend the schema") from None
        except bounds.ExcessError as error:
            raise ValueError(f"'{value}' {error}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"'{value}' is not JSON: {error}; mend the file") from None
        return {"file": value, "text": json.dumps(schema)}


def _refuse_surrogates(schema: Any) -> None:
    r"""Raise SchemaError for half a character, as the escape \ud800 is in JSON without the other half."""
    try:
        json.dumps(schema, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise SchemaError(f"has U+{ord(half):04X} in a text, which is half a character") from None


SchemaFile = Annotated[AvroFile, WithJsonSchema({"type": "string", "examples": ["orders.avsc"]})]


def written(schema: Any) -> Type:
    """The type of what a schema (parsed JSON) writes, as Spark's from_avro gives it; SchemaError says what is wrong.

    A union with null is the other type; int with long is bigint, float with double is double. Another union is a struct
    with a field for each of its types, named after it: struct<member_int: int, member_string: string>.
    """
    _refuse_deep(schema)
    read = _Reader().type(schema, None)
    _refuse_wide(read)
    if wrong := next(avro_rules.broken(schema), None):
        raise SchemaError(wrong)
    return read


def _refuse_deep(schema: Any) -> None:
    """Raise SchemaError for a schema with more in each other than anybody should recurse into."""
    level, depth = [schema], 0
    while level := [it for one in level for it in _below(one)]:
        depth += 1
        if depth > 3 * bounds.SCHEMA_DEPTH:  # a type is up to three steps: fields, field, type
            raise SchemaError(f"has more than {bounds.SCHEMA_DEPTH} types in each other")


def _below(schema: Any) -> Iterable[Any]:
    return schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()


def _refuse_wide(read: Type) -> None:
    """Raise SchemaError for a type of too many parts: each named type counts wherever it is used, as Spark has it."""
    sizes: dict[int, tuple[int, int]] = {}

    def measured(kind: Type) -> tuple[int, int]:
        if id(kind) not in sizes:
            inner = kind.fields.values() if isinstance(kind, Record) else () if isinstance(kind, Scalar) else (kind.of,)
            below = [measured(it) for it in inner]
            size, depth = 1 + sum(size for size, _ in below), 1 + max((depth for _, depth in below), default=0)
            if size > bounds.SCHEMA_PARTS or depth > bounds.SCHEMA_DEPTH:
                found = f"has more than {bounds.SCHEMA_PARTS:,} parts, or more than {bounds.SCHEMA_DEPTH} in each other"
                raise SchemaError(f"{found}, with each named type written out where it is used")
            sizes[id(kind)] = size, depth
        return sizes[id(kind)]

    measured(read)


def read_as(schema: Any) -> Any:
    """The schema (parsed JSON) as Spark is to read it.

    Without `time-micros`, which is read as the number that it is written in. Decimals have room for all their bytes:
    of one of up to 18 digits Spark would read the last 8 bytes only.
    """
    if isinstance(schema, list):
        return [read_as(it) for it in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: read_as(schema[name]) for name in ("type", "items", "values", "fields") if name in schema}
    kept = {name: it for name, it in schema.items() if (name, it) != ("logicalType", "time-micros")}
    if schema.get("logicalType") == "decimal":
        kept["precision"] = _room(schema)
    return {**kept, **parts}


def declared(kind: str) -> Type:
    """A column's type as the contract has it."""
    return _declared(exp.DataType.build(kind, dialect="spark"))


def fields(schema: Type, columns: Sequence[str]) -> Mapping[str, Type]:
    """What a schema offers to columns: the fields of a record; of another schema the one value, for the one column."""
    return schema.fields if isinstance(schema, Record) else dict.fromkeys(columns[:1], schema)


def unfit(schema: Type, columns: Mapping[str, str], names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Why columns cannot take what a schema writes: nothing if they can.

    A column is read from the first of its `names` that the schema has, and is null where it has none.

        int into bigint fits    string into int: "`n` is string, which is not int"
    """
    offered = fields(schema, list(columns))
    if not isinstance(schema, Record) and len(columns) != 1:
        yield f"it writes {schema}, not a record"
        return
    found = {column: source(column, names, offered) for column in columns}
    if not any(found.values()):
        yield "it has none of the columns"
    for column, field in found.items():
        if field is not None:
            if same := [name for name in offered if name != field and name.lower() == field.lower()]:
                yield f"`{field}` and `{same[0]}` differ in case alone, which Spark cannot tell"
            yield from _unfit(f"`{field}`", offered[field], declared(columns[column]))


def source(column: str, names: Mapping[str, Sequence[str]], offered: Mapping[str, Any]) -> str | None:
    """The field that a column is read from: the first of its names that there is."""
    return next((name for name in (column, *names.get(column, ())) if name in offered), None)


def told(columns: Mapping[str, Any], between: str = " ") -> str:
    """Columns with their types, as messages show them."""
    return ", ".join(f"`{name}`{between}{kind}" for name, kind in columns.items())


class _Reader:
    """Reads a schema; knows the named types that it has met."""

    def __init__(self) -> None:
        self._named: dict[str, Type | None] = {}

    def type(self, schema: Any, namespace: str | None) -> Type:
        if isinstance(schema, list):
            return self._union(schema, namespace)
        if isinstance(schema, str):
            return Scalar(_PRIMITIVES[schema]) if schema in _PRIMITIVES else self._known(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError("is not an Avro schema")
        kind = schema["type"]
        if kind == "record":
            return self._record(schema, namespace)
        if kind in ("enum", "fixed"):
            given = self._logical(schema) or Scalar("string" if kind == "enum" else "binary")
            self._named[_full(schema, namespace)[0]] = given
            return given
        if kind == "array":
            return Array(self.type(schema.get("items"), namespace))
        if kind == "map":
            return Map(self.type(schema.get("values"), namespace))
        return self._logical(schema) or self.type(kind, namespace)

    def _known(self, name: str, namespace: str | None) -> Type:
        full = f"{namespace}.{name}" if namespace and "." not in name and f"{namespace}.{name}" in self._named else name
        if full not in self._named:
            raise SchemaError(f"has no type '{name}'")
        found = self._named[full]
        if found is None:
            raise SchemaError(f"has the type '{name}' within itself, which no column can have")
        return found

    def _record(self, schema: dict[str, Any], namespace: str | None) -> Type:
        name, inner = _full(schema, namespace)
        self._named[name] = None
        parts = schema.get("fields")
        if not isinstance(parts, list) or not all(
            isinstance(it, dict) and isinstance(it.get("name"), str) for it in parts
        ):
            raise SchemaError(f"has a record '{name}' without fields")
        self._named[name] = made = Record({it["name"]: self.type(it.get("type"), inner) for it in parts})
        return made

    def _union(self, schema: list[Any], namespace: str | None) -> Type:
        kinds = [(it, self.type(it, namespace)) for it in schema if it not in ("null", {"type": "null"})]
        types = [kind for _, kind in kinds]
        if not types:
            return Scalar("void")
        if len(types) == 1:
            return types[0]
        for wide, both in (("bigint", {"int", "bigint"}), ("double", {"float", "double"})):
            if {str(kind) for kind in types} == both:
                return Scalar(wide)
        return Record({f"member_{_named(it)}": kind for it, kind in kinds})

    def _logical(self, schema: dict[str, Any]) -> Type | None:
        logical, kind = str(schema.get("logicalType")), str(schema["type"])
        if logical == "decimal" and kind in ("bytes", "fixed"):
            digits, scale = schema.get("precision"), schema.get("scale", 0)
            if not (isinstance(digits, int) and isinstance(scale, int) and 0 <= scale <= digits <= _MOST):
                raise SchemaError(
                    f"has a decimal of {digits} digits, {scale} of them after the point; {_MOST} are most"
                )
            return Scalar(f"decimal({digits},{scale})")
        return Scalar(_LOGICAL[logical, kind]) if (logical, kind) in _LOGICAL else None


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
time-micros, of which Spark would make a time (`read_as`): no column can have that.
"""

_WIDER = {
    "int": ("bigint", "double"),
    "float": ("double",),
    "timestamp_ntz": ("timestamp",),
}
"""What a scalar can become without losing anything. A local timestamp is read as UTC, as all moments here."""

_MOST, _BYTES = 38, 16
_DIGITS = {"int": (10, 0), "bigint": (19, 0)}


def _room(schema: dict[str, Any]) -> Any:
    """The digits that a decimal's bytes have room for, if these are more than 8; else those that it declares."""
    size = schema.get("size", _BYTES)
    if not isinstance(size, int) or size > _BYTES:
        return _MOST
    return min(len(str(2 ** (8 * size - 1))) - 1, _MOST) if size > 8 else schema.get("precision")


def _full(schema: dict[str, Any], namespace: str | None) -> tuple[str, str | None]:
    """The full name of a named type, and the namespace inside of it."""
    name = str(schema.get("name", ""))
    if "." in name:
        return name, name.rpartition(".")[0]
    inner = schema.get("namespace", namespace) or None
    return (f"{inner}.{name}" if inner else name), inner


def _named(schema: Any) -> str:
    """What a type of a union is called: its own name, without the namespace, or that of its kind."""
    if isinstance(schema, dict):
        return str(schema.get("name") or schema["type"]).rpartition(".")[2]
    return str(schema).rpartition(".")[2]


def _declared(kind: exp.DataType) -> Type:
    if kind.this is exp.DataType.Type.ARRAY:
        return Array(_declared(kind.expressions[0]))
    if kind.this is exp.DataType.Type.STRUCT:
        return Record({part.name: _declared(part.args["kind"]) for part in kind.expressions})
    name = kind.sql(dialect="spark").lower().replace(" ", "")
    return Scalar("decimal(10,0)" if name == "decimal" else name)


def _unfit(place: str, given: Type, wanted: Type) -> Iterator[str]:
    """Why what a field gives is not what a column takes, of nested ones part by part."""
    match given, wanted:
        case Array(), Array():
            yield from _unfit(f"{place}[]", given.of, wanted.of)
        case Map(), Array(Record(parts)) if [*parts] == ["key", "value"]:
            yield from _unfit(f"{place}.key", Scalar("string"), parts["key"])
            yield from _unfit(f"{place}.value", given.of, parts["value"])
        case Record(), Record():
            if not given.fields.keys() & wanted.fields.keys():
                yield f"{place} is {given}, which is not {wanted}"
            for name in [name for name in wanted.fields if name in given.fields]:
                yield from _unfit(f"{place}.`{name}`", given.fields[name], wanted.fields[name])
        case Scalar("void"), _:
            return
        case Scalar(), Scalar() if given == wanted or wanted.name in _WIDER.get(given.name, ()):
            return
        case Scalar(), Scalar() if _more_digits(given.name, wanted.name):
            return
        case _:
            yield f"{place} is {given}, which is not {wanted}"


def _more_digits(given: str, wanted: str) -> bool:
    """Whether a decimal has room for every number of another type, before the point and after it."""
    if not wanted.startswith("decimal"):
        return False
    of = _decimal(given) if given.startswith("decimal") else _DIGITS.get(given)
    digits, scale = _decimal(wanted)
    return of is not None and of[1] <= scale and of[0] - of[1] <= digits - scale


def _decimal(kind: str) -> tuple[int, int]:
    parts = sqlglot.exp.DataType.build(kind, dialect="spark").expressions
    digits, scale = [*(int(part.name) for part in parts), 0, 0][:2]
    return digits, scale
