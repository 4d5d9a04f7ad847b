"""Bytes into keys and values, and the fate of what cannot be decoded, in Arrow's batches.

This is what `decode.decode_records` says of a record, and `limits.decode_within_limit`, for topics that need no
expression of Spark: keys and values are JSON or text, and Kafka's timestamp or a column dates the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast import formats
from hindcast.bitemporal import valid_time
from hindcast.bitemporal.intervals import LAST_MICROS, format_micros, to_micros
from hindcast.contract import Topic
from hindcast.contract import valid_time as expression
from hindcast.contract.valid_time import TimeColumn
from hindcast.formats import json, text_batches
from hindcast.formats.decode import FATES, NO_KEY
from hindcast.formats.header_batches import HeaderReader, measure_records
from hindcast.formats.json.batches import BatchReader
from hindcast.formats.limits import OVERSIZED
from hindcast.formats.record_part import RecordPart

PartReader: TypeAlias = BatchReader | text_batches.TextReader

_MOMENT = pa.timestamp("us", "UTC")


class Dating(NamedTuple):
    """The column by which `valid_time` dates records, or only those with a value; and the reason if it dates none."""

    column: TimeColumn
    needs_value: bool
    missing: str


class ArrowDecoding(NamedTuple):
    """How to decode records of a topic: their parts, the columns of a value with those from `headers`, what dates them,
    how many bytes a record may have, whether it needs a key, and the times that a run accepts.
    """

    key: RecordPart
    value: RecordPart
    columns: Mapping[str, str]
    headers: Mapping[str, str]
    dating: Dating | None
    max_bytes: int | None
    needs_key: bool
    latest: datetime
    earliest: datetime

    def open_decoder(self) -> ArrowDecoder:
        """Return what decodes records so, in the process that needs it."""
        return ArrowDecoder(self)


def plan_decoding(topic: Topic, known_at: datetime) -> ArrowDecoding | None:
    """Return how a run that is known at a moment decodes a topic's records; None if only Spark can."""
    key, value = formats.record_part(topic, "key", None), formats.record_part(topic, "value", None)
    if topic.envelope is not None or not {key.format, value.format} <= {"json", "string"}:
        return None
    dating = None
    if topic.valid_time is not None:
        if (column := expression.find_time_column(topic)) is None:
            return None
        dating = Dating(column, expression.needs_value(topic), valid_time.describe_no_time(topic))
    bounds = (valid_time.latest_within_skew(topic, known_at), valid_time.earliest_within_skew(topic, known_at))
    limits = (topic.max_record_bytes, topic.read == "table", *bounds)
    return ArrowDecoding(key, value, topic.value, topic.headers, dating, *limits)


class ArrowDecoder:
    """Decodes batches of records."""

    def __init__(self, how: ArrowDecoding) -> None:
        self._key, self._value = open_reader(how.key), open_reader(how.value)
        self._headers = HeaderReader(how.columns, how.headers) if how.headers else None
        self._dating, self._max_bytes, self._needs_key = how.dating, how.max_bytes, how.needs_key
        self._bounds = to_micros(how.latest), to_micros(how.earliest)

    def decode_batch(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return Kafka's records (`record_batches.SCHEMA`) with what `decode.decode_records` adds to them.

        `timestamp` and `recordTimestamp` are those that it returns, `_key` and `_value` its `key` and `value`.
        """
        oversized, raw_key, raw_value = self._refuse_oversized(records)
        key, value = self._key.read(raw_key), self._value.read(raw_value)
        columns, problem = value.field("struct"), value.field("problem")
        if self._headers is not None:
            columns, of_headers = self._headers.add_columns(columns, records.column("headers"))
            problem = pc.coalesce(problem, of_headers)
        problem = pc.coalesce(oversized, key.field("problem"), problem)
        sent = records.column("timestamp").cast(pa.int64())
        # rule: Kafka's -1 is no time
        own = pc.if_else(pc.greater_equal(sent, 0), sent, pa.scalar(None, pa.int64()))
        valid, missing = self._date_records(own, key.field("struct"), columns)
        if self._dating is not None:  # what does not decode cannot be asked for its valid time
            missing = pc.if_else(problem.is_null(), missing, pa.scalar(None, pa.string()))
        at, kafkas = _clamp_moments(pc.coalesce(valid, sent)), _clamp_moments(sent)
        keyless = pc.and_(key.field("struct").is_null(), self._needs_key)
        reasons = {
            "no_timestamp": missing,
            "malformed": problem,
            "null_key": _state(keyless, NO_KEY),
            "time_skew": self._describe_skew(valid),
        }
        decided = [name for name in FATES if name in reasons]
        decoded = {
            **{name: records.column(name) for name in records.schema.names},
            "timestamp": at.view(_MOMENT),
            "recordTimestamp": pc.if_else(pc.not_equal(at, kafkas), kafkas, pa.scalar(None, pa.int64())).view(_MOMENT),
            "fate": pc.coalesce(*(_state(reasons[name].is_valid(), name) for name in decided)),
            "reason": pc.coalesce(*(reasons[name] for name in decided)),
            "_key": key.field("struct"),
            "_value": columns,
        }
        return pa.RecordBatch.from_pydict(decoded)

    def _refuse_oversized(self, records: pa.RecordBatch) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return why records have too many bytes, null for those that have not; and the keys and values of these."""
        parts = [records.column(name) for name in ("key", "value")]
        if self._max_bytes is None or not (sizes := measure_records(records)).size:
            return pa.nulls(records.num_rows, pa.string()), *parts
        large = sizes > self._max_bytes
        reasons = np.full(len(sizes), None)
        reasons[large] = [
            f"{OVERSIZED[0]}{size}{OVERSIZED[1]}{self._max_bytes}{OVERSIZED[2]}" for size in sizes[large].tolist()
        ]
        return pa.array(reasons, pa.string()), *(pc.if_else(pa.array(large), None, part) for part in parts)

    def _date_records(self, own: pa.Array, key: pa.Array, value: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the valid times of records, null for none, and why they have none. `own`: Kafka's timestamps."""
        if self._dating is None:
            return own, _state(own.is_null(), valid_time.NO_TIMESTAMP)
        column, needs_value, missing = self._dating
        if column.part is None:
            return own, _state(own.is_null(), missing)
        struct = key if column.part == "key" else value
        found = pc.struct_field(struct, struct.type.get_field_index(column.name)).cast(pa.int64())
        most = ((1 << 63) - 1) // column.micros
        # rule: a time that overflows is none
        held = pc.and_(pc.less_equal(found, most), pc.greater_equal(found, -most - (column.micros == 1)))
        found = pc.if_else(held, pc.multiply(pc.if_else(held, found, 0), column.micros), pa.scalar(None, pa.int64()))
        if not needs_value:
            return found, _state(found.is_null(), missing)
        # rule: a tombstone has Kafka's timestamp
        found = pc.if_else(value.is_null(), own, found)
        reason = pc.if_else(value.is_null(), pa.scalar(valid_time.NO_TIMESTAMP), pa.scalar(missing))
        return found, pc.if_else(found.is_null(), reason, pa.scalar(None, pa.string()))

    def _describe_skew(self, at: pa.Array) -> pa.Array:
        """Return the reason why the time of a record is not accepted; null if it is (`valid_time.describe_skew`)."""
        latest, earliest = self._bounds
        # rule: both bounds of the time skew are taken
        reasons = [
            _state(pc.greater(at, LAST_MICROS), valid_time.AFTER_LAST_DAY),
            _state(pc.less(at, to_micros(valid_time.FIRST_MOMENT)), valid_time.BEFORE_FIRST_DAY),
            _state(pc.greater(at, latest), _describe_bound(latest, valid_time.AFTER_LATEST)),
            _state(pc.less(at, earliest), _describe_bound(earliest, valid_time.BEFORE_EARLIEST)),
        ]
        return pc.coalesce(*reasons)


def open_reader(part: RecordPart) -> PartReader:
    return BatchReader(json.record_shape(part)) if part.format == "json" else text_batches.TextReader(part)


def _state(is_so: pa.Array, text: str) -> pa.Array:
    """Return a text where something is so, and null elsewhere."""
    return pc.if_else(is_so.fill_null(False), pa.scalar(text), pa.scalar(None, pa.string()))


def _describe_bound(micros: int, words: tuple[str, str]) -> str:
    return format_micros(micros).replace(" ", "T").join(words)


def _clamp_moments(micros: pa.Array) -> pa.Array:
    """Return moments, moved to the bounds of what tables hold."""
    first, last = map(to_micros, (valid_time.FIRST_MOMENT, valid_time.LATEST_CLAMPED))
    return pc.min_element_wise(pc.max_element_wise(micros, first, skip_nulls=False), last, skip_nulls=False)
