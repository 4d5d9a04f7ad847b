"""`avro`: a record of the columns, by the schema that wrote it.

Plain Avro has its schema in a file beside the contract. In the schema registry's wire format each value names its own:
a byte 0, the schema's id in four bytes, then Avro. `contract.avro` says which types fit which columns.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from hindcast.contract import avro, avro_compatibility
from hindcast.contract.avro import ArrayType, FieldType, MapType, RecordType, ScalarType
from hindcast.formats.record_part import PartName, RecordPart

COLUMN = "_avro"
HEADER_SIZE = 5
"""The bytes before the Avro of a value that names its schema."""

_END = secrets.token_bytes(16)
"""What nobody who sends a record can know."""

_FEW = 8
"""Up to so many columns a step is compiled together with what is around it."""

_OPTIONS = {"mode": "PERMISSIVE", "enableStableIdentifiersForUnionType": "true"}


def list_parts(*parts: RecordPart) -> list[PartName]:
    """Return the names of those parts of a record that are Avro."""
    return [part.name for part in parts if part.format == "avro"]


def read_parts(records: DataFrame, parts: Sequence[RecordPart], limit: int | None = None) -> DataFrame:
    """Return records with a struct `COLUMN`: of each part that is Avro its columns (`struct`) and what is wrong with it
    (`problem`); as they came if none is. Bytes beyond the `limit` are not read.
    """
    ours = {part.name: part for part in parts if part.format == "avro"}
    if not ours:
        return records
    raw = {name: F.when(F.octet_length(name) <= limit, F.col(name)) if limit else F.col(name) for name in ours}
    found = dict.fromkeys(ours, F.lit(None))
    for n, step in enumerate((parse_bytes, build_record, read_value)):
        struct = F.struct(
            *(step(raw[name], found[name], part).alias(name) for name, part in ours.items()), *_barrier(ours)
        )
        # Computed in a projection of its own and exploded of one: else Spark would compute a step again for each use.
        records = records.withColumn(f"_step{n}", struct).withColumn(f"_step{n}", F.explode(F.array(f"_step{n}")))
        found = {name: F.col(f"_step{n}.{name}") for name in ours}
    return records.withColumn(COLUMN, F.struct(*(it.alias(name) for name, it in found.items()))).drop(
        "_step0", "_step1", "_step2"
    )


def _barrier(parts: Mapping[PartName, RecordPart]) -> list[Column]:
    """Return a column, a higher-order function, that keeps a step with many columns out of whole-stage code.

    There all columns would be one method, which would soon be too large for Java to compile.
    """
    if sum(len(part.columns) for part in parts.values()) <= _FEW:
        return []
    return [F.exists(F.array(F.col(next(iter(parts)))), lambda it: it.isNull()).alias("_apart")]


def schema_id(raw: Column) -> Column:
    """Return the schema id in a value (bigint); null if it is not in the schema registry's wire format."""
    wire = (F.length(raw) >= HEADER_SIZE) & (F.hex(F.substring(raw, 1, 1)) == "00")
    return F.when(wire, F.conv(F.hex(F.substring(raw, 2, 4)), 16, 10).cast("bigint"))


def parse_bytes(raw: Column, _: Column, part: RecordPart) -> Column:
    """Return the result of parsing the bytes with each schema that they may name.

    The bytes are read as a record of the value and what follows it, so that the value must take all of them: from_avro
    alone ignores what comes after it, and returns a record of nulls for bytes that are not Avro.
    """
    if part.schema is not None:
        return F.struct(_parse_whole(raw, part.schema).alias("w0"))
    id_ = schema_id(raw)
    body = F.substring(raw, HEADER_SIZE + 1, F.length(raw))
    named = [
        F.when(id_.isin(*ids), _parse_whole(body, schema)).alias(f"w{n}")
        for n, (schema, ids) in enumerate(_group_schemas(part))
    ]
    return F.struct(id_.alias("id"), *named)


def build_record(_: Column, parsed: Column, part: RecordPart) -> Column:
    """Return a struct of `record` (columns or null), `wrong` (what does not fit, or null) and `id` (of the schema)."""
    none = F.lit(None).cast(f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in part.columns.items())}>")
    schemas = [part.schema] if part.schema is not None else [schema for schema, _ in _group_schemas(part)]
    structs = [_build_struct(parsed[f"w{n}"], schema, part) for n, schema in enumerate(schemas)]
    wrong = [_describe_misfits(parsed[f"w{n}"], schema, part) for n, schema in enumerate(schemas)]
    id_ = F.lit(None).cast("bigint") if part.schema is not None else parsed["id"]
    misfit = F.coalesce(*wrong, F.lit(None).cast("string"))
    return F.struct(F.coalesce(*structs, none).alias("record"), misfit.alias("wrong"), id_.alias("id"))


def read_value(raw: Column, record: Column, part: RecordPart) -> Column:
    """Return a struct of the columns (`struct`) and what is wrong (`problem`) for a result of `build_record`."""
    if part.schema is not None:
        message = F.lit(f"the {part.name} is not Avro of the contract's {part.name}_schema: ")
    else:
        id_, known = record["id"], [id_ for _, ids in _group_schemas(part) for id_ in ids]
        message = (
            F.when(id_.isNull(), f"the {part.name} is not in the schema registry's wire format (0, schema id, Avro): ")
            .when(
                ~id_.isin(*known) if known else F.lit(True),
                F.concat(F.lit(f"the {part.name} names schema "), id_, F.lit(", which the schema registry has not: ")),
            )
            .otherwise(F.concat(F.lit(f"the {part.name} is not Avro of schema "), id_, F.lit(": ")))
        )
    found, wrong = record["record"], F.concat(F.lit(f"the {part.name}'s "), record["wrong"])
    problem = F.when(found.isNull(), F.concat(message, _show_hex(raw))).otherwise(wrong)
    struct, reason = F.when(record["wrong"].isNull(), found), F.when(raw.isNotNull(), problem)
    return F.struct(struct.alias("struct"), reason.alias("problem"))


def _group_schemas(part: RecordPart) -> list[tuple[str, list[int]]]:
    """Return the writers' schemas, each once, with the ids that name it."""
    found: dict[str, list[int]] = {}
    for id_, schema in sorted(part.writers.items()):
        found.setdefault(schema, []).append(id_)
    return list(found.items())


def _parse_whole(raw: Column, schema: str) -> Column:
    end = {"type": "fixed", "name": "hindcast_end", "size": len(_END)}
    parts = [{"name": "value", "type": avro.reader_schema(json.loads(schema))}, {"name": "end", "type": end}]
    record = {"type": "record", "name": "hindcast_whole", "fields": parts}
    return from_avro(F.concat(raw, F.lit(bytearray(_END))), json.dumps(record), _OPTIONS)


def _build_struct(whole: Column, schema: str, part: RecordPart) -> Column:
    """Return the columns of a record by a schema; null if the bytes are not of it or their text is not UTF-8."""
    right = [whole["end"] == F.lit(bytearray(_END))]
    if isinstance(_spark_type(schema), RecordType):
        right.append(whole["value"].isNotNull())
    taken = {column: F.lit(None).cast(kind) for column, kind in part.columns.items()}
    for column, (field, given, wanted) in _match_fields(whole, schema, part).items():
        taken[column] = _convert_field(field, given, wanted)
        right += [_is_utf8(taken[column], wanted)] if _has_text(wanted) else []
    struct = F.struct(*(it.alias(column) for column, it in taken.items()))
    return F.when(F.coalesce(reduce(and_, right), F.lit(False)), struct)


def _describe_misfits(whole: Column, schema: str, part: RecordPart) -> Column:
    """Return what of a record written by a schema does not fit its column; null if all fits."""
    taken = _match_fields(whole, schema, part).items()
    return F.coalesce(
        F.lit(None).cast("string"), *(_describe_misfit(*it, column) for column, it in taken if _can_misfit(*it[1:]))
    )


def _spark_type(schema: str) -> FieldType:
    """Return the type that Spark reads for a schema."""
    return avro.parse_schema(avro.reader_schema(json.loads(schema)))


def _match_fields(whole: Column, schema: str, part: RecordPart) -> dict[str, tuple[Column, FieldType, FieldType]]:
    """Return, for each column that a schema has a field for: the field, its type and the column's."""
    given, taken = _spark_type(schema), {}
    offered = avro_compatibility.offered_fields(given, list(part.columns))
    for column, kind in part.columns.items():
        if (name := avro_compatibility.find_source_field(column, part.renamed, offered)) is not None:
            field = whole["value"].getField(name) if isinstance(given, RecordType) else whole["value"]
            taken[column] = field, offered[name], avro_compatibility.parse_declared_type(kind)
    return taken


def _convert_field(field: Column, given: FieldType, wanted: FieldType) -> Column:
    """Return a field as a column's type: parts of nested ones by their names, a map's in the order of its keys.

    A decimal that has more digits than the column's type is null (`_describe_misfit`).
    """
    match given, wanted:
        case ArrayType(), ArrayType() if given != wanted:
            return F.transform(field, lambda it: _convert_field(it, given.element, wanted.element))
        case MapType(), ArrayType(RecordType(parts)):
            pair = F.transform(
                F.map_entries(field),
                lambda it: F.struct(
                    it["key"].alias("key"), _convert_field(it["value"], given.element, parts["value"]).alias("value")
                ),
            )
            return F.array_sort(pair, lambda a, b: F.when(a["key"] < b["key"], -1).otherwise(1))
        case RecordType(), RecordType():
            fields = [
                _convert_part(field, name, given.fields, kind).alias(name) for name, kind in wanted.fields.items()
            ]
            return F.when(field.isNotNull(), F.struct(*fields))
        case _:
            return field if given == wanted else field.try_cast(str(wanted))


def _convert_part(field: Column, name: str, given: Mapping[str, FieldType], wanted: FieldType) -> Column:
    return _convert_field(field.getField(name), given[name], wanted) if name in given else F.lit(None).cast(str(wanted))


def _can_misfit(given: FieldType, wanted: FieldType) -> bool:
    """Return whether a field can have values that do not fit the column: distant dates or moments, long decimals."""
    match given, wanted:
        case ScalarType(), ScalarType():
            return wanted.name in ("date", "timestamp") or (given != wanted and given.name.startswith("decimal"))
        case ArrayType(), ArrayType():
            return _can_misfit(given.element, wanted.element)
        case MapType(), ArrayType(RecordType(parts)):
            return _can_misfit(given.element, parts["value"])
        case RecordType(), RecordType():
            return any(
                _can_misfit(given.fields[name], it) for name, it in wanted.fields.items() if name in given.fields
            )
    return False


def _describe_misfit(field: Column, given: FieldType, wanted: FieldType, path: str) -> Column:
    """Return, as text, what in a field (`_can_misfit`) does not fit the column; null if all fits."""
    match given, wanted:
        case ArrayType(), ArrayType():
            each = F.transform(field, lambda it: _describe_misfit(it, given.element, wanted.element, f"{path}[]"))
            return F.get(F.filter(each, lambda it: it.isNotNull()), F.lit(0))
        case MapType(), ArrayType(RecordType(parts)):
            return _describe_misfit(F.map_values(field), ArrayType(given.element), ArrayType(parts["value"]), path)
        case RecordType(), RecordType():
            misfits = (
                _describe_misfit(field.getField(name), given.fields[name], it, f"{path}.{name}")
                for name, it in wanted.fields.items()
                if name in given.fields and _can_misfit(given.fields[name], it)
            )
            return F.coalesce(*misfits)
    kind = str(wanted)
    value = field.try_cast(kind)
    fits = _is_in_years(value, kind) if kind in ("date", "timestamp") else value.isNotNull()
    return F.when(field.isNotNull() & ~fits, F.concat(F.lit(f"{path} is not a {kind}: "), field.cast("string")))


def _has_text(kind: FieldType) -> bool:
    match kind:
        case ScalarType():
            return kind.name == "string"
        case ArrayType() | MapType():
            return _has_text(kind.element)
        case RecordType():
            return any(_has_text(it) for it in kind.fields.values())


def _is_utf8(value: Column, kind: FieldType) -> Column:
    """Return whether all text in a value is UTF-8; true for null."""
    match kind:
        case ArrayType():
            right = F.forall(value, lambda it: _is_utf8(it, kind.element))
        case RecordType():
            parts = {name: it for name, it in kind.fields.items() if _has_text(it)}
            right = reduce(and_, (_is_utf8(value.getField(name), it) for name, it in parts.items()))
        case _:
            right = F.is_valid_utf8(value)
    return F.coalesce(right, F.lit(True))


def _show_hex(raw: Column) -> Column:
    """Return the beginning of bytes in hex (`primitive.show_hex`)."""
    more = F.when(F.length(raw) > 50, F.lit("...")).otherwise(F.lit(""))
    return F.concat(F.lit("0x"), F.hex(F.substring(raw, 1, 50)), more)


def _is_in_years(value: Column, kind: str) -> Column:
    """Return whether a date or a timestamp is in the years 1 to 9999, as Python requires."""
    return value.between(F.lit("0001-01-01 00:00:00").cast(kind), F.lit("9999-12-31 23:59:59.999999").cast(kind))
