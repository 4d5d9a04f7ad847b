"""Change events of Debezium: a record's envelope as a change of a row. Pure: columns in, columns out.

    {"op": "u", "before": ..., "after": {"id": 1, "price": 8}, "source": {"ts_us": 1767225600000000, "lsn": 7}, ...}

| op | the record is |
| --- | --- |
| c, u, r | a version: the row `after` an insert, an update, or as a snapshot has read it |
| d | a tombstone: the row is gone |
| t, m, any other | malformed: a truncated table, a message: no change of one row |
| (no value) | no change: Debezium's own tombstone, which follows a delete so that compaction can forget the key |

A format reads the `value_parser_columns` of an envelope; `read_changes` turns them into the value that the contract
describes. With `schemas.enable` the envelope is the `payload` beside its `schema`; both forms are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Topic
from hindcast.formats import encodings

PLACEHOLDER = "__debezium_unavailable_value"
"""What Debezium writes for a value that the database did not send: one stored apart (TOAST) that did not change."""

_TIMES = {"ts_us": "MicroTimestamp", "ts_ns": "NanoTimestamp", "ts_ms": "Timestamp"}
_PAYLOAD, _SCHEMA = "payload", "schema"


class EnvelopeChange(NamedTuple):
    """The content of an envelope; `value`: struct, null if the row is gone.

    `problem`: what is wrong (string, null: nothing); `timestamp`: when the row was changed (null: unknown).
    """

    value: Column
    problem: Column
    timestamp: Column


def read_changes(records: DataFrame, topic: Topic) -> DataFrame:
    """Return parsed records as changes of rows.

    In: `_key` and `_value` as parsed (`value_parser_columns`; null: none, or malformed), `_problem` (string, null:
    none). Out: the same, but `_key` and `_value` as the contract types them, `_problem` also with what is wrong with
    the envelope, and `_at`: the time of the change (timestamp), null if unknown.
    """
    json = topic.value_format == "json"
    # Exploded of one: else Spark would compute each part again wherever it is named.
    envelope = records.withColumn("_envelope", F.explode(F.array(unwrap_envelope(F.col("_value"), topic, json=json))))
    row = F.struct(*(_read_column(F.col("_envelope"), name, topic, json=json).alias(name) for name in topic.value))
    read = envelope.withColumn("_row", F.explode(F.array(row)))
    it = read_change(F.col("_envelope"), F.col("_row"), topic, json=json)
    parts = F.struct(it.value.alias("value"), it.problem.alias("problem"), it.timestamp.alias("timestamp"))
    found = read.withColumn("_change", F.explode(F.array(parts)))
    if topic.effective_key_format == "json":
        found = found.withColumn("_key", read_key(F.col("_key"), topic))
    keyless = F.when(
        F.col("_key").isNotNull() & reduce(or_, (F.col("_key")[name].isNull() for name in topic.key)),
        f"the key has not all of its columns: {', '.join(topic.key)}",
    )
    found = found.withColumn("_problem", F.coalesce("_problem", keyless, "_change.problem"))
    right = F.col("_problem").isNull()
    columns = {"_at": F.when(right, F.col("_change.timestamp")), "_value": F.when(right, F.col("_change.value"))}
    return found.withColumns(columns).drop("_envelope", "_row", "_change")


def value_parser_columns(topic: Topic, *, json: bool = True) -> dict[str, str]:
    """Return the columns of the value, with types, that a parser must read.

    `json`: false for a format with its own types (Avro).
    """
    own = {"op": "string", **dict.fromkeys(_TIMES, "bigint")}
    structs = {"source": dict.fromkeys(_TIMES, "bigint"), "after": _row_columns(topic, json=json)}
    for column, path in topic.metadata.items():
        struct, _, field = path.rpartition(".")
        fields = structs.setdefault(struct, {}) if struct else own
        fields.setdefault(field, "bigint" if field in _TIMES else topic.value[column])
    columns = {**own, **{name: _struct_type(fields) for name, fields in structs.items()}}
    if not json:
        return columns
    schema = _struct_type({"fields": f"array<struct<field: string, fields: array<{encodings.FIELD}>>>"})
    return _add_payload_columns(columns, schema if _has_encodable(topic) else None)


def key_parser_columns(topic: Topic) -> dict[str, str]:
    """Return the columns of the key, with types, that a JSON parser must read; other formats read the contract's."""
    return _add_payload_columns(topic.key, None)


def read_key(parsed: Column, topic: Topic) -> Column:
    """Return a parsed JSON key as a struct of the contract's key columns, null where `parsed` is."""
    own = F.when(parsed[_PAYLOAD].isNotNull(), parsed[_PAYLOAD]).otherwise(F.struct(*_select_fields(parsed, topic.key)))
    return F.when(parsed.isNotNull(), own)


def unwrap_envelope(parsed: Column, topic: Topic, *, json: bool = True) -> Column:
    """Return the envelope of a parsed value, with its `schema` if required: a struct, null where `parsed` is."""
    if not json:
        return parsed
    wrapped = parsed[_PAYLOAD].isNotNull()
    found = {
        name: F.when(wrapped, parsed[_PAYLOAD][name]).otherwise(parsed[name])
        for name in value_parser_columns(topic)
        if name not in (_PAYLOAD, _SCHEMA)
    }
    parts = [column.alias(name) for name, column in found.items()]
    fields = [_field_schemas(parsed).alias(_SCHEMA)] if _has_encodable(topic) else []
    return F.when(parsed.isNotNull(), F.struct(*parts, *fields))


def read_change(envelope: Column, row: Column, topic: Topic, *, json: bool = True) -> EnvelopeChange:
    """Return the change in an envelope (`unwrap_envelope`) with its `row`, as the contract types it; nulls if null."""
    op, after = envelope["op"], envelope["after"]
    kept, gone = op.isin("c", "u", "r"), op == "d"
    at = _change_micros(envelope)
    problem = (
        F.when(op.isNull(), "the value is no change event of Debezium: it has no op")
        .when(op == "t", "op t: the table was truncated, which ends every row; no key tells which")
        .when(~(kept | gone), F.concat(F.lit("op "), _shorten_text(op), F.lit(" is no change of a row")))
        .when(kept & after.isNull(), F.concat(F.lit("op "), op, F.lit(" has no after: the row is not there")))
        .when(
            at.isNotNull() & encodings.timestamp_from_micros(at).isNull(),
            "the time of its source is not in the years 1 to 9999",
        )
        .when(kept, F.coalesce(*_find_problems(envelope, row, topic, json=json), F.lit(None).cast("string")))
    )
    return EnvelopeChange(
        F.when(envelope.isNotNull() & problem.isNull() & kept, row),
        F.when(envelope.isNotNull(), problem),
        encodings.timestamp_from_micros(at),
    )


def describe_expected(topic: Topic, name: str) -> str:
    """Return, in words, what a JSON key or value must be; for a value also what the contract requires of it."""
    if name == "key":
        return f"a JSON object of {', '.join(f'{column} {kind}' for column, kind in topic.key.items())}"
    kinds = {column: kind for column, kind in topic.value.items() if column not in topic.metadata}
    described = (f"{column} {kind}{_describe_encoding(topic, column)}" for column, kind in kinds.items())
    return f"a change event of Debezium of a row with {', '.join(described)}"


def _describe_encoding(topic: Topic, column: str) -> str:
    declared = topic.encoded.get(column)
    return f" encoded as {declared}" if declared else ""


def _row_columns(topic: Topic, *, json: bool) -> dict[str, str]:
    """Return the row's own columns, with the types that a parser must read."""
    own = {name: kind for name, kind in topic.value.items() if name not in topic.metadata}
    asked = encodings.parser_type if json else encodings.typed_parser_type
    return {name: asked(kind, topic.encoded.get(name)) for name, kind in own.items()}


def _add_payload_columns(columns: dict[str, str], schema: str | None) -> dict[str, str]:
    """Return columns with and without the `payload` around them."""
    return {**columns, _PAYLOAD: _struct_type(columns), **({_SCHEMA: schema} if schema else {})}


def _struct_type(fields: dict[str, str]) -> str:
    return f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in fields.items())}>"


def _select_fields(parsed: Column, columns: dict[str, str]) -> list[Column]:
    return [parsed[name].alias(name) for name in columns]


def _has_encodable(topic: Topic) -> bool:
    return any(encodings.is_encodable(kind) for name, kind in topic.value.items() if name not in topic.metadata)


def _field_schemas(parsed: Column) -> Column:
    """Return the schemas of the fields of `after`; null without schemas."""
    return F.get(F.filter(parsed[_SCHEMA]["fields"], lambda field: field["field"] == "after"), F.lit(0))["fields"]


def _read_column(envelope: Column, name: str, topic: Topic, *, json: bool) -> Column:
    """Return a column of the contract; null also where it does not fit."""
    kind = topic.value[name]
    if name in topic.metadata:
        path = topic.metadata[name].split(".")
        found = envelope
        for part in path:
            found = found[part]
        return (
            encodings.timestamp_from_micros(encodings.micros(found, _TIMES[path[-1]])) if kind == "timestamp" else found
        )
    raw = envelope["after"][name]
    if not encodings.is_encodable(kind):
        return raw
    if not json:
        return encodings.decode_typed_value(raw, kind, topic.encoded.get(name))
    field = F.get(F.filter(envelope[_SCHEMA], lambda it: it["field"] == name), F.lit(0))
    return encodings.decode_value(raw, kind, topic.encoded.get(name), field["name"], field["parameters"]["scale"])


def _find_problems(envelope: Column, row: Column, topic: Topic, *, json: bool) -> Iterator[Column]:
    """Yield what is wrong with each of the row's columns; null where nothing is."""
    for name, kind in topic.value.items():
        if name in topic.metadata:
            continue
        raw = envelope["after"][name]
        if encodings.is_encodable(kind):
            text = raw if _row_columns(topic, json=json)[name] == "variant" else F.to_json(F.struct(raw.alias(name)))
            how = _describe_encoding(topic, name) or ", or no one says how it is encoded"
            problem = F.concat(F.lit(f"column {name} is no {kind}{how}: "), _shorten_text(text))
            yield F.when(raw.isNotNull() & row[name].isNull(), problem)
        if (missing := _is_placeholder(raw, kind)) is not None:
            yield F.when(
                missing,
                f"column {name} did not come: it was not changed, and the database sends only what was (REPLICA "
                "IDENTITY FULL sends all)",
            )


def _is_placeholder(raw: Column, kind: str) -> Column | None:
    """Return whether a value is the placeholder; None for a type that cannot have it."""
    match kind:
        case "string":
            return raw.contains(PLACEHOLDER)
        case "binary":
            return raw == F.lit(PLACEHOLDER).cast("binary")
        case _ if kind.upper() == "ARRAY<STRING>":
            return F.array_contains(raw, PLACEHOLDER)
        case _:
            return None


def _change_micros(envelope: Column) -> Column:
    """Return when the row was changed: microseconds since 1970 as decimal(38,0); null if the envelope does not say.

    The source's own time, the finest first; else when Debezium processed it. A number of 0 or less is none.
    """
    times = [(place[name], unit) for place in (envelope["source"], envelope) for name, unit in _TIMES.items()]
    return F.coalesce(*(F.when(number > 0, encodings.micros(number, unit)) for number, unit in times))


def _shorten_text(text: Column) -> Column:
    return F.substring(F.make_valid_utf8(text), 1, 200)
