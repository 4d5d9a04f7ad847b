"""Bytes into keys and values, and the fate of what cannot be decoded, in Arrow's batches.

This is what `decode.decode_records` says of a record, for topics that need no expression of Spark: keys and values are
JSON or text, no column comes from a header, and Kafka's timestamp dates the record.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from hindcast import formats
from hindcast.bitemporal import valid_time
from hindcast.bitemporal.intervals import LAST_MICROS, format_micros
from hindcast.contract import Topic
from hindcast.formats import json, text_batches
from hindcast.formats.decode import FATES, NO_KEY
from hindcast.formats.json.batches import BatchReader
from hindcast.formats.record_part import RecordPart

PartReader: TypeAlias = BatchReader | text_batches.TextReader

_MOMENT = pa.timestamp("us", "UTC")


class ArrowDecoding(NamedTuple):
    """How to decode records of a topic: their parts, whether they need a key, and the times that a run accepts."""

    key: RecordPart
    value: RecordPart
    needs_key: bool
    latest: datetime
    earliest: datetime

    def open_decoder(self) -> ArrowDecoder:
        """Return what decodes records so, in the process that needs it."""
        return ArrowDecoder(self)


def plan_decoding(topic: Topic, known_at: datetime) -> ArrowDecoding | None:
    """Return how a run that is known at a moment decodes a topic's records; None if only Spark can."""
    key, value = formats.record_part(topic, "key", None), formats.record_part(topic, "value", None)
    is_plain = topic.valid_time is None and topic.envelope is None and topic.max_record_bytes is None
    if not is_plain or topic.headers or not {key.format, value.format} <= {"json", "string"}:
        return None
    latest = valid_time.latest_within_skew(topic, known_at)
    earliest = valid_time.earliest_within_skew(topic, known_at)
    return ArrowDecoding(key, value, topic.read == "table", latest, earliest)


class ArrowDecoder:
    """Decodes batches of records."""

    def __init__(self, how: ArrowDecoding) -> None:
        self._key, self._value = open_reader(how.key), open_reader(how.value)
        self._needs_key = how.needs_key
        self._bounds = _count_micros(how.latest), _count_micros(how.earliest)

    def decode_batch(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return Kafka's records (`record_batches.SCHEMA`) with what `decode.decode_records` adds to them.

        `timestamp` and `recordTimestamp` are those that it returns, `_key` and `_value` its `key` and `value`.
        """
        key, value = self._key.read(records.column("key")), self._value.read(records.column("value"))
        sent = records.column("timestamp").cast(pa.int64())
        # rule: Kafka's -1 is no time
        own = pc.if_else(pc.greater_equal(sent, 0), sent, pa.scalar(None, pa.int64()))
        keyless = pc.and_(key.field("struct").is_null(), self._needs_key)
        reasons = {
            "no_timestamp": _state(own.is_null(), valid_time.NO_TIMESTAMP),
            "malformed": pc.coalesce(key.field("problem"), value.field("problem")),
            "null_key": _state(keyless, NO_KEY),
            "time_skew": self._describe_skew(own),
        }
        decided = [name for name in FATES if name in reasons]
        columns = {
            **{name: records.column(name) for name in records.schema.names},
            "timestamp": _clamp_moments(sent).view(_MOMENT),
            "recordTimestamp": pa.nulls(len(sent), _MOMENT),
            "fate": pc.coalesce(*(_state(reasons[name].is_valid(), name) for name in decided)),
            "reason": pc.coalesce(*(reasons[name] for name in decided)),
            "_key": key.field("struct"),
            "_value": value.field("struct"),
        }
        return pa.RecordBatch.from_pydict(columns)

    def _describe_skew(self, at: pa.Array) -> pa.Array:
        """Return the reason why the time of a record is not accepted; null if it is (`valid_time.describe_skew`)."""
        latest, earliest = self._bounds
        # rule: both bounds of the time skew are taken
        reasons = [
            _state(pc.greater(at, LAST_MICROS), valid_time.AFTER_LAST_DAY),
            _state(pc.less(at, _count_micros(valid_time.FIRST_MOMENT)), valid_time.BEFORE_FIRST_DAY),
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
    first, last = map(_count_micros, (valid_time.FIRST_MOMENT, valid_time.LATEST_CLAMPED))
    return pc.min_element_wise(pc.max_element_wise(micros, first, skip_nulls=False), last, skip_nulls=False)


def _count_micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
