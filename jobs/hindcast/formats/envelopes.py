"""Change events of Debezium: a record's envelope as a change of a row, in Arrow's batches.

    {"op": "u", "before": ..., "after": {"id": 1, "price": 8}, "source": {"ts_us": 1767225600000000, "lsn": 7}, ...}

| op | the record is |
| --- | --- |
| c, u, r | a version: the row `after` an insert, an update, or as a snapshot has read it |
| d | a tombstone: the row is gone |
| t, m, any other | malformed: a truncated table, a message: no change of one row |
| (no value) | no change: Debezium's own tombstone, which follows a delete so that compaction can forget the key |

A format reads the `value_parser_columns` of an envelope; `EnvelopeReader` turns them into the value that the contract
describes. With `schemas.enable` the envelope is the `payload` beside its `schema`; both forms are read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.column_values import ColumnValue
from hindcast.contract import Topic
from hindcast.formats import encodings
from hindcast.formats.encodings import FieldSchema
from hindcast.formats.json.columns import column_type
from hindcast.formats.reasons import state, state_each
from hindcast.formats.record_part import take_field

PLACEHOLDER = "__debezium_unavailable_value"
"""What Debezium writes for a value that the database did not send: one stored apart (TOAST) that did not change."""

_TIMES = {"ts_us": "MicroTimestamp", "ts_ns": "NanoTimestamp", "ts_ms": "Timestamp"}
_PAYLOAD, _SCHEMA = "payload", "schema"
_SHOWN = 200
_NO_TEXT = pa.scalar(None, pa.string())
_NOT_SENT = "did not come: it was not changed, and the database sends only what was (REPLICA IDENTITY FULL sends all)"


class EnvelopeShape(NamedTuple):
    """What to read of a topic's envelopes: the contract's columns, those `metadata` has from outside the row, and how
    others are `encoded`. `has_json_key`, `has_json_value`: the formats of the parts.
    """

    key: Mapping[str, str]
    value: Mapping[str, str]
    metadata: Mapping[str, str]
    encoded: Mapping[str, str]
    has_json_key: bool
    has_json_value: bool


def shape_envelope(topic: Topic) -> EnvelopeShape:
    """Return what to read of a topic's envelopes."""
    formats = (topic.effective_key_format == "json", topic.value_format == "json")
    return EnvelopeShape(topic.key, topic.value, topic.metadata, topic.encoded, *formats)


def value_parser_columns(shape: EnvelopeShape) -> dict[str, str]:
    """Return the columns of the value, with types, that a parser must read."""
    own = {"op": "string", **dict.fromkeys(_TIMES, "bigint")}
    structs = {"source": dict.fromkeys(_TIMES, "bigint"), "after": _row_columns(shape)}
    for column, path in shape.metadata.items():
        struct, _, field = path.rpartition(".")
        fields = structs.setdefault(struct, {}) if struct else own
        fields.setdefault(field, "bigint" if field in _TIMES else shape.value[column])
    columns = {**own, **{name: _struct_type(fields) for name, fields in structs.items()}}
    if not shape.has_json_value:
        return columns
    schema = _struct_type({"fields": f"array<struct<field: string, fields: array<{encodings.FIELD}>>>"})
    return _add_payload_columns(columns, schema if _has_encodable(shape) else None)


def key_parser_columns(topic: Topic) -> dict[str, str]:
    """Return the columns of the key, with types, that a JSON parser must read; other formats read the contract's."""
    return _add_payload_columns(topic.key, None)


class EnvelopeReader:
    """Reads batches of parsed envelopes."""

    def __init__(self, shape: EnvelopeShape) -> None:
        self._shape, self._row = shape, _row_columns(shape)
        self._type = pa.struct([(name, column_type(kind)) for name, kind in shape.value.items()])

    def read_changes(
        self, key: pa.StructArray, parsed: pa.StructArray, problem: pa.Array
    ) -> tuple[pa.StructArray, pa.StructArray, pa.Array, pa.Array]:
        """Return parsed records as changes of rows: `key` and `value` as the contract types them, `problem`, also with
        what is wrong with the envelope, and the time of the change in microseconds since 1970, null if unknown.

        `key`, `parsed`: as parsed (`value_parser_columns`; null: none, or malformed).
        """
        if self._shape.has_json_key:
            key = _unwrap(key, [*self._shape.key])
        keyless = reduce(pc.or_, (take_field(key, name).is_null() for name in self._shape.key))
        without = f"the key has not all of its columns: {', '.join(self._shape.key)}"
        envelope = _unwrap(parsed, _names(parsed)) if self._shape.has_json_value else parsed
        row, wrong = self._read_row(envelope, self._read_schemas(parsed))
        at, is_bad = _find_times(envelope)
        op, after = take_field(envelope, "op"), take_field(envelope, "after")
        kept = pc.is_in(op, pa.array(["c", "u", "r"]))
        gone = pc.equal(op, "d").fill_null(False)
        shown = pc.utf8_slice_codeunits(op, 0, _SHOWN)
        problems = [
            state(op.is_null(), "the value is no change event of Debezium: it has no op"),
            state(pc.equal(op, "t"), "op t: the table was truncated, which ends every row; no key tells which"),
            pc.if_else(pc.or_(kept, gone), _NO_TEXT, _join("op ", shown, " is no change of a row")),
            pc.if_else(
                pc.and_(kept, after.is_null()), _join("op ", op, " has no after: the row is not there"), _NO_TEXT
            ),
            state(is_bad, "the time of its source is not in the years 1 to 9999"),
            pc.if_else(kept, wrong, _NO_TEXT),
        ]
        of_change = pc.if_else(envelope.is_valid(), pc.coalesce(*problems), _NO_TEXT)
        problem = pc.coalesce(problem, state(pc.and_(key.is_valid(), keyless), without), of_change)
        taken = pc.and_(pc.and_(problem.is_null(), envelope.is_valid()), kept)
        value = pa.StructArray.from_arrays(row, fields=list(self._type), mask=pc.invert(taken))
        return key, value, problem, pc.if_else(problem.is_null(), at, pa.scalar(None, pa.int64()))

    def _read_row(
        self, envelope: pa.StructArray, schemas: Mapping[str, list[FieldSchema]]
    ) -> tuple[list[pa.Array], pa.Array]:
        """Return the contract's columns of each row, null also where they do not fit, and what is wrong with it."""
        columns, problems = [], [pa.nulls(len(envelope), pa.string())]
        after = take_field(envelope, "after")
        for name, kind in self._shape.value.items():
            type_ = self._type.field(name).type
            if name in self._shape.metadata:
                found, problem = _read_metadata(envelope, name, self._shape.metadata[name], kind)
                columns.append(found.cast(type_))
                problems.append(problem)
                continue
            raw = take_field(after, name)
            found = self._decode(name, kind, raw, schemas).cast(type_)
            columns.append(found)
            if encodings.is_encodable(kind):
                problems.append(self._describe_misfits(name, kind, raw, found))
            if (missing := _is_placeholder(raw, kind)) is not None:
                problems.append(state(missing, f"column {name} {_NOT_SENT}"))
        return columns, pc.coalesce(*problems)

    def _decode(self, name: str, kind: str, raw: pa.Array, schemas: Mapping[str, list[FieldSchema]]) -> pa.Array:
        if not encodings.is_encodable(kind):
            return raw
        declared = self._shape.encoded.get(name)
        if not self._shape.has_json_value:
            return encodings.decode_typed_values(raw, kind, declared)
        return encodings.decode_values(raw, kind, declared, schemas.get(name) or [FieldSchema()] * len(raw))

    def _describe_misfits(self, name: str, kind: str, raw: pa.Array, found: pa.Array) -> pa.Array:
        """Return what is wrong with the values of a column that were not found in its type."""
        how = _describe_encoding(self._shape.encoded, name) or ", or no one says how it is encoded"

        def describe(place: int) -> str:
            value = raw[place].as_py()
            is_text = self._row[name] == "variant"
            text = encodings.show_variant(value) if is_text else _show_value(name, value)
            return f"column {name} is no {kind}{how}: {text[:_SHOWN]}"

        return state_each(pc.and_(raw.is_valid(), found.is_null()), describe)

    def _read_schemas(self, parsed: pa.StructArray) -> dict[str, list[FieldSchema]]:
        """Return, by column, what the schema of each record says of it; nothing for columns of which none does."""
        if not self._shape.has_json_value or not _has_encodable(self._shape):
            return {}
        structs = take_field(take_field(parsed, _SCHEMA), "fields")
        fields = _take_first(structs, "after")
        found = {}
        for name, kind in self._shape.value.items():
            if name in self._shape.metadata or not encodings.is_encodable(kind):
                continue
            of_field = _take_first(take_field(fields, "fields"), name)
            names, scales = take_field(of_field, "name"), take_field(take_field(of_field, "parameters"), "scale")
            if names.null_count < len(names) or scales.null_count < len(scales):
                found[name] = list(map(FieldSchema, names.to_pylist(), scales.to_pylist()))
        return found


def describe_expected(topic: Topic, name: str) -> str:
    """Return, in words, what a JSON key or value must be; for a value also what the contract requires of it."""
    if name == "key":
        return f"a JSON object of {', '.join(f'{column} {kind}' for column, kind in topic.key.items())}"
    kinds = {column: kind for column, kind in topic.value.items() if column not in topic.metadata}
    described = (f"{column} {kind}{_describe_encoding(topic.encoded, column)}" for column, kind in kinds.items())
    return f"a change event of Debezium of a row with {', '.join(described)}"


def _describe_encoding(encoded: Mapping[str, str], column: str) -> str:
    declared = encoded.get(column)
    return f" encoded as {declared}" if declared else ""


def _row_columns(shape: EnvelopeShape) -> dict[str, str]:
    """Return the row's own columns, with the types that a parser must read."""
    own = {name: kind for name, kind in shape.value.items() if name not in shape.metadata}
    asked = encodings.parser_type if shape.has_json_value else encodings.typed_parser_type
    return {name: asked(kind, shape.encoded.get(name)) for name, kind in own.items()}


def _add_payload_columns(columns: Mapping[str, str], schema: str | None) -> dict[str, str]:
    """Return columns with and without the `payload` around them."""
    return {**columns, _PAYLOAD: _struct_type(columns), **({_SCHEMA: schema} if schema else {})}


def _struct_type(fields: Mapping[str, str]) -> str:
    return f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in fields.items())}>"


def _has_encodable(shape: EnvelopeShape) -> bool:
    return any(encodings.is_encodable(kind) for name, kind in shape.value.items() if name not in shape.metadata)


def _names(parsed: pa.StructArray) -> list[str]:
    return [field.name for field in parsed.type if field.name not in (_PAYLOAD, _SCHEMA)]


def _unwrap(parsed: pa.StructArray, names: list[str]) -> pa.StructArray:
    """Return what is in the `payload` of records that have one, and in the others themselves."""
    payload = take_field(parsed, _PAYLOAD)
    if not payload.null_count:
        return payload
    wrapped = payload.is_valid()
    own = [take_field(parsed, name) for name in names]
    if payload.null_count < len(parsed):
        own = [pc.if_else(wrapped, take_field(payload, name), it) for name, it in zip(names, own, strict=True)]
    return pa.StructArray.from_arrays(own, names, mask=parsed.is_null())


def _take_first(lists: pa.ListArray, name: str) -> pa.Array:
    """Return the first struct whose `field` is a name, of each list; null without one."""
    flat, parents = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    named = np.flatnonzero(pc.equal(take_field(flat, "field"), name).fill_null(False).to_numpy(zero_copy_only=False))
    places = np.full(len(lists), -1)
    places[parents[named][::-1]] = named[::-1]  # of several the first
    return flat.take(pa.array(places, mask=places < 0))


def _read_metadata(envelope: pa.StructArray, name: str, path: str, kind: str) -> tuple[pa.Array, pa.Array]:
    """Return a column of metadata, null also where it is no moment, and what is wrong with it."""
    parts, raw = path.split("."), envelope
    for part in parts:
        raw = take_field(raw, part)
    if kind != "timestamp":
        return raw, _NO_TEXT
    found = encodings.count_micros(raw, _TIMES[parts[-1]])
    text = f"column {name}: {path} is beyond the years 1 to 9999"
    return found, state(pc.and_(raw.is_valid(), found.is_null()), text)


def _find_times(envelope: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """Return when rows were changed, in microseconds since 1970, null if unknown; and whether no table has that time.

    The source's own time, the finest first; else when Debezium processed it. A number of 0 or less is none.
    """
    at, is_bad = pa.nulls(len(envelope), pa.int64()), pa.repeat(pa.scalar(False), len(envelope))
    for place in (take_field(envelope, "source"), envelope):
        for name, unit in _TIMES.items():
            numbers = take_field(place, name)
            open_ = pc.and_(pc.and_(at.is_null(), pc.invert(is_bad)), pc.greater(numbers, 0).fill_null(False))
            found = encodings.count_micros(numbers, unit)
            at = pc.coalesce(at, pc.if_else(open_, found, pa.scalar(None, pa.int64())))
            is_bad = pc.or_(is_bad, pc.and_(open_, found.is_null()))
    return at, is_bad


def _is_placeholder(raw: pa.Array, kind: str) -> pa.Array | None:
    """Return whether values are the placeholder; None for a type that cannot have it."""
    match kind:
        case "string":
            return pc.match_substring(raw, PLACEHOLDER)
        case "binary":
            return pc.equal(raw, pa.scalar(PLACEHOLDER.encode()))
        case _ if kind.upper() == "ARRAY<STRING>":
            named = pc.list_parent_indices(raw).filter(pc.equal(raw.flatten(), PLACEHOLDER).fill_null(False))
            return pc.is_in(pa.array(range(len(raw)), pa.int64()), named.cast(pa.int64()))
    return None


def _join(before: str, texts: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, texts, after, "")


def _show_value(name: str, value: ColumnValue) -> str:
    fields = {it: part for it, part in value.items() if part is not None} if isinstance(value, dict) else value
    return json.dumps({name: fields}, separators=(",", ":"), default=lambda it: base64.b64encode(it).decode())
