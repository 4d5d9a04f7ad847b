"""Columns for Avro of a schema registry: exact, by the schemas that wrote the records. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hindcast.common.errors import RecordError
from hindcast.common.json_values import JsonObject, JsonValue, list_objects
from hindcast.contract.avro import ArrayType, FieldType, MapType, RecordType, ScalarType, SchemaError, parse_schema
from hindcast.formats.encodings import LOGICAL
from hindcast.ops.infer.field_types import can_name_fields


class AvroColumn(NamedTuple):
    """A field's column type, empty if the schemas do not agree on one; the reason; and its encoding, else empty."""

    kind: str
    reason: str
    encoding: str = ""


def find_columns(topic: str, writers: Mapping[int, str], field: str = "") -> dict[str, AvroColumn]:
    """Return the columns of records that these schemas write, by field, or of those in their field of this name.

    A schema that is not a record gives one column, with an empty name. RecordError for a schema that no column can
    have.
    """
    found: dict[str, dict[int, AvroColumn]] = {}
    unnamed: set[str] = set()
    for id_, text in sorted(writers.items()):
        schema = json.loads(text)
        try:
            kind = parse_schema(schema)
        except SchemaError as error:
            fix = "leave the topic out: no contract can read it"
            raise RecordError(f"schema {id_} {error}", where=f"topic {topic}", fix=fix) from None
        if field and isinstance(kind, RecordType):
            schema, kind = _find_field_schema(schema, field), kind.fields.get(field, ScalarType("void"))
        fields = kind.fields if isinstance(kind, RecordType) else {} if field else {"": kind}
        named = dict(_find_encodings(schema)) if field else {}
        for name, its in fields.items():
            unnamed |= set() if _has_usable_names(its) else {name}
            found.setdefault(name, {})[id_] = _choose_column(its, named.get(name, ""), id_)
    return {
        name: AvroColumn("", _UNNAMED) if name in unnamed else _merge_columns(columns, len(writers))
        for name, columns in found.items()
    }


def format_type(kind: FieldType) -> str:
    """Return a type as the contract writes it."""
    match kind:
        case ArrayType():
            return f"array<{format_type(kind.element)}>"
        case MapType():
            return f"array<struct<key: string, value: {format_type(kind.element)}>>"
        case RecordType():
            return f"struct<{', '.join(f'`{name}`: {format_type(its)}' for name, its in kind.fields.items())}>"
        case _:
            return {"timestamp_ntz": "timestamp", "void": "string"}.get(kind.name, kind.name)


def _has_usable_names(kind: FieldType) -> bool:
    """Return whether a contract can show all names within a type: they may be secrets, and differ in case alone."""
    match kind:
        case ArrayType() | MapType():
            return _has_usable_names(kind.element)
        case RecordType():
            return can_name_fields(kind.fields) and all(map(_has_usable_names, kind.fields.values()))
    return True


_UNNAMED = "a name within it is one that no struct can have, or looks like a secret"


def _choose_column(kind: FieldType, encoding: str, id_: int) -> AvroColumn:
    if kind == ScalarType("void"):
        return AvroColumn("", f"always null by schema {id_}")
    if encoding == "Date":
        return AvroColumn("date", f"{encoding} by schema {id_}", encoding)
    if encoding:
        return AvroColumn("timestamp", f"{encoding} by schema {id_}", encoding)
    zone = ", without a zone: read as UTC" if kind == ScalarType("timestamp_ntz") else ""
    return AvroColumn(format_type(kind), f"by schema {id_}{zone}")


def _merge_columns(columns: Mapping[int, AvroColumn], schemas: int) -> AvroColumn:
    """Return the column that takes what all these schemas write."""
    kinds = {column.kind: column for column in columns.values() if column.kind}
    missing = f"; not in {schemas - len(columns)} of {schemas} schemas" if len(columns) < schemas else ""
    ids = ", ".join(map(str, columns))
    if not kinds:
        return AvroColumn("string", f"always null by schema {ids}: the type is a guess")
    if len(kinds) == 1:
        (column,) = kinds.values()
        return AvroColumn(column.kind, f"by schema {ids}{missing}", column.encoding)
    for wide, narrow in _WIDER.items():
        if {*kinds} <= {wide, *narrow}:
            return AvroColumn(wide, f"by schema {ids}, of which some write {' and '.join(narrow)}{missing}")
    return AvroColumn("", "; ".join(f"{column.kind} by schema {id_}" for id_, column in columns.items()))


_WIDER = {"bigint": ("int",), "double": ("float",)}


def _find_field_schema(schema: JsonValue, field: str) -> JsonValue:
    """Return the schema of the record in a record's field, which may be in a union with null."""
    fields = list_objects(schema["fields"]) if isinstance(schema, Mapping) else []
    kind = next((part["type"] for part in fields if part.get("name") == field), None)
    record = next((part for part in _list_branches(kind) if part.get("type") == "record"), None)
    if record is None:  # named before, as `before` is
        name = next((part for part in kind if part != "null"), None) if isinstance(kind, list) else kind
        records = (branch for part in fields for branch in _list_branches(part["type"]))
        record = next((it for it in records if str(it.get("name")) == str(name).rpartition(".")[2]), None)
    return record


def _list_branches(kind: JsonValue) -> Iterable[JsonObject]:
    return list_objects(kind) if isinstance(kind, list) else [kind] if isinstance(kind, Mapping) else []


def _find_encodings(record: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield the fields that are plain numbers of an encoding, by the names that Connect gives their types."""
    for part in list_objects(record["fields"]) if isinstance(record, Mapping) else []:
        for branch in _list_branches(part.get("type")):
            encoding = LOGICAL.get(str(branch.get("connect.name")))
            if encoding is not None and branch.get("type") in ("int", "long") and "logicalType" not in branch:
                yield str(part["name"]), encoding
