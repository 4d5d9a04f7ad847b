"""Avro schemas: the Spark type of each field.

Pure, without Spark. `formats/avro.py` decodes by it, `avro_compatibility.py` compares it with a contract's columns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from hindcast.common.json_values import JsonObject, JsonValue, list_objects
from hindcast.contract import avro_rules, avro_sizes, bounds


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


@dataclass(frozen=True, eq=False)
class RecordType:
    """Fields by name, in order: the same fields in another order are another type, as in Spark."""

    fields: dict[str, FieldType]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordType) and list(self.fields.items()) == list(other.fields.items())

    def __hash__(self) -> int:
        return hash(tuple(self.fields.items()))

    def __str__(self) -> str:
        return f"struct<{format_columns(self.fields, ': ')}>"


FieldType = ScalarType | ArrayType | MapType | RecordType


class SchemaError(ValueError):
    """An Avro schema that cannot be read as columns."""


def parse_json(text: str) -> JsonValue:
    """Return the JSON of a schema; raise SchemaError for a number that Java refuses, ValueError for no JSON."""
    schema: JsonValue = json.loads(
        text, parse_int=_parse_whole_number, parse_float=_parse_number, parse_constant=_refuse_constant
    )
    return schema


def _parse_whole_number(text: str) -> int:
    _refuse_long_number(text)
    return int(text)


def _parse_number(text: str) -> float:
    _refuse_long_number(text)
    number = float(text)
    if math.isinf(number):
        raise SchemaError(f"has the number {text[:20]}, which is too large")
    return number


def _refuse_long_number(text: str) -> None:
    if len(text) > _LONGEST_NUMBER:
        raise SchemaError(f"has a number of {len(text):,} digits; at most {_LONGEST_NUMBER:,} are supported")


def _refuse_constant(name: str) -> NoReturn:
    raise SchemaError(f"has {name}, which is not JSON")


_LONGEST_NUMBER = 1_000
"""The most characters of a number that Avro's parser in Java reads."""


def parse_schema(schema: JsonValue) -> FieldType:
    """Return the type of what a schema (parsed JSON) writes, as Spark's from_avro gives it; raise SchemaError.

    A union with null is the other type; int with long is bigint, float with double is double. Another union is a struct
    with a field for each of its types, named after it: struct<member_int: int, member_string: string>.
    """
    _refuse_deep(schema)
    read = _SchemaReader().parse_type(schema, None)
    _refuse_wide(read)
    for check in (avro_rules.check_schema, avro_sizes.check_items):
        if wrong := next(check(schema), None):
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
    of a decimal of up to 18 digits Spark would read only the last 8 bytes. What is for Java is left out: in a String of
    Java, text that is not UTF-8 would be altered.
    """
    if isinstance(schema, list):
        return [reader_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: reader_schema(schema[name]) for name in ("type", "items", "values", "fields") if name in schema}
    fields = {
        name: value
        for name, value in schema.items()
        if name not in _FOR_JAVA and (name, value) != ("logicalType", "time-micros")
    }
    if schema.get("logicalType") == "decimal":
        fields["precision"] = _count_digits(schema)
    return {**fields, **parts}


_FOR_JAVA = ("avro.java.string", "java-class", "java-key-class", "java-element-class")
"""The properties of a schema that tell Avro's Java library which classes to make."""


def format_columns(columns: Mapping[str, str | FieldType], between: str = " ") -> str:
    """Return columns with their types, as messages show them."""
    return ", ".join(f"`{name}`{between}{kind}" for name, kind in columns.items())


class _SchemaReader:
    """A reader of one schema, with the named types that it has met."""

    def __init__(self) -> None:
        self._named: dict[str, FieldType | None] = {}
        self._details: dict[str, tuple[JsonValue, ...]] = {}

    def parse_type(self, schema: JsonValue, namespace: str | None) -> FieldType:
        if isinstance(schema, list):
            return self._parse_union(schema, namespace)
        if isinstance(schema, str):
            return ScalarType(PRIMITIVES[schema]) if schema in PRIMITIVES else self._find_named_type(schema, namespace)
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError("is not an Avro schema")
        kind = schema["type"]
        if kind == "record":
            return self._parse_record(schema, namespace)
        if kind in ("enum", "fixed"):
            field_type = self._parse_logical(schema) or ScalarType("string" if kind == "enum" else "binary")
            name = avro_rules.full_name(schema, namespace)[0]
            return self._define(name, field_type, (kind, schema.get("symbols"), schema.get("size")))
        if kind == "array":
            return ArrayType(self.parse_type(schema.get("items"), namespace))
        if kind == "map":
            return MapType(self.parse_type(schema.get("values"), namespace))
        return self._parse_logical(schema) or self.parse_type(kind, namespace)

    def _find_named_type(self, name: str, namespace: str | None) -> FieldType:
        full = self._find_full_name(name, namespace)
        if full not in self._named:
            raise SchemaError(f"has no type '{name}'")
        field_type = self._named[full]
        if field_type is None:
            raise SchemaError(f"has the type '{name}' inside itself, which no column can have")
        return field_type

    def _find_full_name(self, name: str, namespace: str | None) -> str:
        """Return the full name of a type that is named within a namespace."""
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        return full if full in self._named and name not in PRIMITIVES else name

    def _parse_record(self, schema: JsonObject, namespace: str | None) -> FieldType:
        name, inner = avro_rules.full_name(schema, namespace)
        known = self._named.get(name)
        if name in self._named and known is None:
            raise SchemaError(f"has the type '{name}' inside itself, which no column can have")
        self._named[name] = None
        parts = schema.get("fields")
        fields = [part for part in list_objects(parts) if isinstance(part.get("name"), str)]
        if not isinstance(parts, list) or len(fields) < len(parts):
            raise SchemaError(f"has a record '{name}' without fields")
        record = RecordType({str(part["name"]): self.parse_type(part.get("type"), inner) for part in fields})
        if known is None:
            del self._named[name]
        else:
            self._named[name] = known
        return self._define(name, record, ("record",))

    def _define(self, name: str, field_type: FieldType, details: tuple[JsonValue, ...]) -> FieldType:
        """Return a named type; raise SchemaError if another one has its name."""
        if name in PRIMITIVES:
            raise SchemaError(f"has a type named '{name}', which is Avro's own: rename it, or give it a namespace")
        first, known = self._named.setdefault(name, field_type), self._details.setdefault(name, details)
        if first is None or first != field_type or known != details:
            raise SchemaError(f"has two types named '{name}' that differ: rename one of the two")
        return first

    def _parse_union(self, schema: Sequence[JsonValue], namespace: str | None) -> FieldType:
        parts = [(self.parse_type(part, namespace), self._name_member(part, namespace)) for part in schema]
        for name in avro_rules.find_duplicates([name for _, name in parts]):
            raise SchemaError(f"has '{name}' twice in a union")
        members = {name: kind for kind, name in parts if name != "null"}
        types = [*members.values()]
        if not types:
            return ScalarType("void")
        if len(types) == 1:
            return types[0]
        for wide, both in (("bigint", {"int", "bigint"}), ("double", {"float", "double"})):
            if {str(kind) for kind in types} == both:
                return ScalarType(wide)
        _refuse_similar_names([*members])
        return RecordType({f"member_{_last_part(name)}": kind for name, kind in members.items()})

    def _name_member(self, schema: JsonValue, namespace: str | None) -> str:
        """Return the full name of a type in a union; that of its kind if it has none."""
        if not isinstance(schema, dict):
            return self._find_full_name(str(schema), namespace)
        if schema["type"] in avro_rules.NAMED:
            return avro_rules.full_name(schema, namespace)[0]
        kind = schema["type"]
        return str(kind) if kind in ("array", "map") else self._name_member(kind, namespace)

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


PRIMITIVES = {
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

_MOST, _BYTES = 38, 16


def _count_digits(schema: JsonObject) -> JsonValue:
    """Return the digits that a decimal's bytes have room for, if these are more than 8; else those that it declares."""
    size = schema.get("size", _BYTES)
    if not isinstance(size, int) or size > _BYTES:
        return _MOST
    return min(len(str(2 ** (8 * size - 1))) - 1, _MOST) if size > 8 else schema.get("precision")


def _refuse_similar_names(names: Sequence[str]) -> None:
    """Raise SchemaError for types of a union that Spark would give columns of one name."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(_last_part(name).lower(), name)) != name:
            found = f"has '{other}' and '{name}' in a union, which Spark would read as columns of one name"
            raise SchemaError(f"{found}: rename one of the two")


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]
