"""`avro`: a record of the columns, by the schema that wrote it.

Plain Avro has its schema in a file beside the contract. In the schema registry's wire format each value names its own:
a byte 0, the schema's id in four bytes, then Avro. `contracts.avro` says which types fit which columns.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from hindcast.contracts import avro
from hindcast.contracts.avro import Array, Map, Record, Scalar, Type
from hindcast.formats import exact
from hindcast.formats.part import Part, result, shown_bytes

HEADER = 5
"""The bytes before the Avro of a value that names its schema."""

_END = secrets.token_bytes(16)
"""What nobody who sends a record can know."""

_OPTIONS = {"mode": "PERMISSIVE", "enableStableIdentifiersForUnionType": "true"}


def schema_id(raw: Column) -> Column:
    """The id of the schema that a value names; null if it is not in the schema registry's wire format."""
    wire = (F.length(raw) >= HEADER) & (F.hex(F.substring(raw, 1, 1)) == "00")
    return F.when(wire, F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("bigint"))


def parsed(raw: Column, _: Column, part: Part) -> Column:
    """What each schema makes of the bytes that name it.

    The bytes are read as a record of the value and what follows it, so that the value takes all of them: from_avro
    alone passes over what comes after it, and of bytes that are no Avro it gives a record of nulls.
    """
    if part.schema is not None:
        return F.struct(_whole(raw, part.schema).alias("w0"))
    id_ = schema_id(raw)
    body = F.substring(raw, HEADER + 1, F.length(raw))
    named = [
        F.when(id_.isin(*ids), _whole(body, schema)).alias(f"w{n}") for n, (schema, ids) in enumerate(_schemas(part))
    ]
    return F.struct(id_.alias("id"), *named)


def record(_: Column, parsed: Column, part: Part) -> Column:
    """The `record` as a struct of the columns, null where there is none, what in it does not fit them (`wrong`), and
    the `id` that the bytes name, if any.
    """
    none = F.lit(None).cast(f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in part.columns.items())}>")
    schemas = [part.schema] if part.schema is not None else [schema for schema, _ in _schemas(part)]
    structs = [_struct(parsed[f"w{n}"], schema, part) for n, schema in enumerate(schemas)]
    wrong = [_wrong(parsed[f"w{n}"], schema, part) for n, schema in enumerate(schemas)]
    id_ = F.lit(None).cast("bigint") if part.schema is not None else parsed["id"]
    told = F.coalesce(*wrong, F.lit(None).cast("string"))
    return F.struct(F.coalesce(*structs, none).alias("record"), told.alias("wrong"), id_.alias("id"))


def read(raw: Column, record: Column, part: Part) -> Column:
    """The record, and what is wrong with it."""
    if part.schema is not None:
        told = F.lit(f"the {part.name} is not Avro of the contract's {part.name}_schema: ")
    else:
        id_, known = record["id"], [id_ for _, ids in _schemas(part) for id_ in ids]
        told = (
            F.when(id_.isNull(), f"the {part.name} is not in the schema registry's wire format (0, schema id, Avro): ")
            .when(
                ~id_.isin(*known) if known else F.lit(True),
                F.concat(F.lit(f"the {part.name} names schema "), id_, F.lit(", which the schema registry has not: ")),
            )
            .otherwise(F.concat(F.lit(f"the {part.name} is not Avro of schema "), id_, F.lit(": ")))
        )
    found, wrong = record["record"], F.concat(F.lit(f"the {part.name}'s "), record["wrong"])
    problem = F.when(found.isNull(), F.concat(told, shown_bytes(raw))).otherwise(wrong)
    return result(F.when(record["wrong"].isNull(), found), F.when(raw.isNotNull(), problem))


STEPS = (parsed, record, read)


def _schemas(part: Part) -> list[tuple[str, list[int]]]:
    """The writers' schemas, each once, with the ids that name it."""
    found: dict[str, list[int]] = {}
    for id_, schema in sorted(part.writers.items()):
        found.setdefault(schema, []).append(id_)
    return list(found.items())


def _whole(raw: Column, schema: str) -> Column:
    end = {"type": "fixed", "name": "hindcast_end", "size": len(_END)}
    parts = [{"name": "value", "type": avro.read_as(json.loads(schema))}, {"name": "end", "type": end}]
    record = {"type": "record", "name": "hindcast_whole", "fields": parts}
    return from_avro(F.concat(raw, F.lit(bytearray(_END))), json.dumps(record), _OPTIONS)


def _struct(whole: Column, schema: str, part: Part) -> Column:
    """The columns of what a schema wrote; null if the bytes are not of it, or hold text that is not UTF-8."""
    right = [whole["end"] == F.lit(bytearray(_END))]
    if isinstance(_given(schema), Record):
        right.append(whole["value"].isNotNull())
    taken = {column: F.lit(None).cast(kind) for column, kind in part.columns.items()}
    for column, (field, given, wanted) in _taken(whole, schema, part).items():
        taken[column] = _as(field, given, wanted)
        right += [_utf8(taken[column], wanted)] if _has_text(wanted) else []
    struct = F.struct(*(it.alias(column) for column, it in taken.items()))
    return F.when(F.coalesce(reduce(and_, right), F.lit(False)), struct)


def _wrong(whole: Column, schema: str, part: Part) -> Column:
    """What does not fit its column of what a schema wrote; null: nothing."""
    taken = _taken(whole, schema, part).items()
    return F.coalesce(F.lit(None).cast("string"), *(_misfit(*it, column) for column, it in taken if _limited(*it[1:])))


def _given(schema: str) -> Type:
    """What Spark reads of a schema."""
    return avro.written(avro.read_as(json.loads(schema)))


def _taken(whole: Column, schema: str, part: Part) -> dict[str, tuple[Column, Type, Type]]:
    """Of each column that a schema has a field for: the field, its type and the column's."""
    given, taken = _given(schema), {}
    offered = avro.fields(given, list(part.columns))
    for column, kind in part.columns.items():
        if (name := avro.source(column, part.renamed, offered)) is not None:
            field = whole["value"].getField(name) if isinstance(given, Record) else whole["value"]
            taken[column] = field, offered[name], avro.declared(kind)
    return taken


def _as(field: Column, given: Type, wanted: Type) -> Column:
    """What a field holds as a column's type: parts of nested ones by their names, a map's in the order of its keys.

    A decimal that has more digits than the column's type is null (`_misfit`).
    """
    match given, wanted:
        case Array(), Array() if given != wanted:
            return F.transform(field, lambda it: _as(it, given.of, wanted.of))
        case Map(), Array(Record(parts)):
            pair = F.transform(
                F.map_entries(field),
                lambda it: F.struct(it["key"].alias("key"), _as(it["value"], given.of, parts["value"]).alias("value")),
            )
            return F.array_sort(pair, lambda a, b: F.when(a["key"] < b["key"], -1).otherwise(1))
        case Record(), Record():
            fields = [_part(field, name, given.fields, kind).alias(name) for name, kind in wanted.fields.items()]
            return F.when(field.isNotNull(), F.struct(*fields))
        case _:
            return field if given == wanted else field.try_cast(str(wanted))


def _part(field: Column, name: str, given: Mapping[str, Type], wanted: Type) -> Column:
    return _as(field.getField(name), given[name], wanted) if name in given else F.lit(None).cast(str(wanted))


def _limited(given: Type, wanted: Type) -> bool:
    """Whether a field can hold what does not fit the column: a date or moment far away, a decimal of more digits."""
    match given, wanted:
        case Scalar(), Scalar():
            return wanted.name in ("date", "timestamp") or (given != wanted and given.name.startswith("decimal"))
        case Array(), Array():
            return _limited(given.of, wanted.of)
        case Map(), Array(Record(parts)):
            return _limited(given.of, parts["value"])
        case Record(), Record():
            return any(_limited(given.fields[name], it) for name, it in wanted.fields.items() if name in given.fields)
    return False


def _misfit(field: Column, given: Type, wanted: Type, path: str) -> Column:
    """What a field that is `_limited` holds that does not fit the column, as text; null: nothing."""
    match given, wanted:
        case Array(), Array():
            each = F.transform(field, lambda it: _misfit(it, given.of, wanted.of, f"{path}[]"))
            return F.get(F.filter(each, lambda it: it.isNotNull()), F.lit(0))
        case Map(), Array(Record(parts)):
            return _misfit(F.map_values(field), Array(given.of), Array(parts["value"]), path)
        case Record(), Record():
            told = (
                _misfit(field.getField(name), given.fields[name], it, f"{path}.{name}")
                for name, it in wanted.fields.items()
                if name in given.fields and _limited(given.fields[name], it)
            )
            return F.coalesce(*told)
    kind = str(wanted)
    value = field.try_cast(kind)
    fits = exact.in_years(value, kind) if kind in ("date", "timestamp") else value.isNotNull()
    return F.when(field.isNotNull() & ~fits, F.concat(F.lit(f"{path} is not a {kind}: "), field.cast("string")))


def _has_text(kind: Type) -> bool:
    match kind:
        case Scalar():
            return kind.name == "string"
        case Array() | Map():
            return _has_text(kind.of)
        case Record():
            return any(_has_text(it) for it in kind.fields.values())


def _utf8(value: Column, kind: Type) -> Column:
    """Whether all text in a value is UTF-8; of null it is."""
    match kind:
        case Array():
            right = F.forall(value, lambda it: _utf8(it, kind.of))
        case Record():
            parts = {name: it for name, it in kind.fields.items() if _has_text(it)}
            right = reduce(and_, (_utf8(value.getField(name), it) for name, it in parts.items()))
        case _:
            right = F.is_valid_utf8(value)
    return F.coalesce(right, F.lit(True))
