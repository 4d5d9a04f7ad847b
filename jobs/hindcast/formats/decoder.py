"""Bytes into keys and values, and the fate of what cannot be decoded, in Arrow's batches.

Tasks that read a topic decode its records so where they read them; `spark_decoding.decode_records` does for any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from hindcast import formats
from hindcast.contract import Topic
from hindcast.contract.valid_time import TimeColumn, TimeField
from hindcast.formats import avro, dating, json, primitive
from hindcast.formats.dating import MOMENT, ArrivalSource, Dating, TimeBounds
from hindcast.formats.envelopes import EnvelopeReader, EnvelopeShape, shape_envelope
from hindcast.formats.headers import HeaderReader, measure_records, read_time_header
from hindcast.formats.json.batches import BatchReader
from hindcast.formats.json.columns import column_type
from hindcast.formats.reasons import state, state_each
from hindcast.formats.record_part import RecordPart
from hindcast.formats.text import TextReader
from hindcast.kafka.record_batches import HEADERS

DECODING_FATES = ("no_timestamp", "malformed", "null_key", "no_change", "time_skew")
"""The fates that decoding decides, by precedence."""

NO_KEY = "a table's record needs a key"
NO_CHANGE = "Debezium's tombstone: the change event before it has ended the row"
OVERSIZED = "oversized: ", " bytes, ", " may be"
"""The reason of a record with too many bytes: between these are how many it has, and how many it may have."""

PartReader: TypeAlias = BatchReader | TextReader | primitive.PrimitiveReader


class Decoding(NamedTuple):
    """How to decode records of a topic: their parts, the columns of a value with those from `headers`, the envelope,
    what dates them, how many bytes a record may have, whether it needs a key, and what says when it arrived.
    """

    key: RecordPart
    value: RecordPart
    columns: Mapping[str, str]
    headers: Mapping[str, str]
    envelope: EnvelopeShape | None
    dating: Dating
    max_bytes: int | None
    needs_key: bool
    arrival: ArrivalSource | None = None

    @property
    def computed_times(self) -> list[TimeField]:
        """The times of records that Spark has to compute."""
        found: dict[TimeField, Dating | ArrivalSource | None] = {"valid_time": self.dating, "arrival": self.arrival}
        return [field for field, source in found.items() if source is not None and source.is_computed]

    @property
    def needs_spark(self) -> bool:
        """Whether Spark has to read a part (Avro), or compute times."""
        return "avro" in (self.key.format, self.value.format) or bool(self.computed_times)


class RecordFacts(NamedTuple):
    """What decides the fates of records: what is wrong with them, the time of a change event in microseconds since 1970
    (`at`), whether they have a key, a value, and bytes of a value.
    """

    problem: pa.Array
    at: pa.Array
    has_key: pa.Array
    has_value: pa.Array
    has_bytes: pa.Array


class RecordTimes(NamedTuple):
    """The times of records by `valid_time` and by `arrival`, in microseconds since 1970, null for none.

    None for a topic without.
    """

    valid: pa.Array | None
    arrival: pa.Array | None


class ParsedRecords(NamedTuple):
    """Keys and values of records, null for none or a wrong one, and what decides their fates."""

    key: pa.StructArray
    value: pa.StructArray
    facts: RecordFacts


def plan_decoding(
    topic: Topic,
    writers: formats.WriterSchemas | None = None,
    *,
    within_limit: bool = True,
    with_arrival: bool = False,
) -> Decoding:
    """Return how to decode a topic's records. `writers`: the schemas that keys and values name by id.

    `within_limit`: records of more than `max_record_bytes` are malformed, and not decoded. That is so where a record is
    replayed or requeued; a new limit makes no accepted record malformed. `with_arrival`: of records that are replayed,
    the topic's `arrival` is read too.
    """
    parts = formats.record_part(topic, "key", writers), formats.record_part(topic, "value", writers)
    envelope = None if topic.envelope is None else shape_envelope(topic)
    limit = topic.max_record_bytes if within_limit else None
    how, arrival = dating.plan_dating(topic), dating.plan_arrival(topic) if with_arrival else None
    return Decoding(*parts, topic.value, topic.headers, envelope, how, limit, topic.read == "table", arrival)


class Decoder:
    """Decodes batches of records."""

    def __init__(self, how: Decoding) -> None:
        self._how = how
        self._readers: dict[str, PartReader] = {
            part.name: open_reader(part) for part in (how.key, how.value) if part.format != "avro"
        }
        self._headers = HeaderReader(how.columns, how.headers) if how.headers else None
        self._envelope = EnvelopeReader(how.envelope) if how.envelope else None

    def decode_batch(self, records: pa.RecordBatch, bounds: TimeBounds) -> pa.RecordBatch:
        """Return Kafka's records (`record_batches.SCHEMA`, `avro.read_parts`) with what `decode_records` adds.

        `timestamp` and `recordTimestamp` are those that it returns, `_key` and `_value` its `key` and `value`.
        """
        columns = {name: records.column(name) for name in records.schema.names}
        given = columns.pop(avro.COLUMN, None)
        read = {} if given is None else {field.name: given.field(field.name) for field in given.type}
        parsed = self.parse(columns["key"], columns["value"], columns["headers"], read)
        times = self.read_times(parsed, columns["timestamp"], columns["headers"])
        verdict = self.judge(parsed.facts, columns["timestamp"], times, bounds)
        return pa.RecordBatch.from_pydict(columns | verdict | {"_key": parsed.key, "_value": parsed.value})

    def parse(
        self,
        key: pa.Array,
        value: pa.Array,
        headers: pa.ListArray | None,
        given: Mapping[str, pa.StructArray],
    ) -> ParsedRecords:
        """Return the keys and values in these bytes. `given`: what Spark has read of Avro (`avro.read_parts`)."""
        headers = pa.nulls(len(key), HEADERS) if headers is None else headers
        oversized, raw_key, raw_value = self._refuse_oversized(key, value, headers)
        read = {
            name: given[name] if reader is None else reader.read(raw)
            for name, raw in (("key", raw_key), ("value", raw_value))
            for reader in (self._readers.get(name),)
        }
        problem = read["value"].field("problem")
        keys, values = (read[name].field("struct") for name in ("key", "value"))
        if oversized.null_count < len(oversized):
            keys, values = (pc.if_else(oversized.is_null(), it, None) for it in (keys, values))
        if self._headers is not None:
            values, of_headers = self._headers.add_columns(values, headers)
            problem = pc.coalesce(problem, of_headers)
        problem, at = pc.coalesce(oversized, read["key"].field("problem"), problem), pa.nulls(len(key), pa.int64())
        if self._envelope is not None:
            keys, values, problem, at = self._envelope.read_changes(keys, values, problem)
        facts = RecordFacts(problem, at, keys.is_valid(), values.is_valid(), value.is_valid())
        return ParsedRecords(keys, values, facts)

    def judge(
        self, facts: RecordFacts, timestamp: pa.Array, given: RecordTimes, bounds: TimeBounds | None
    ) -> dict[str, pa.Array]:
        """Return the columns `fate` and `reason` of records, null for what is decided later.

        Without `bounds` no fate depends on time; with them there are also `timestamp`, the valid time or Kafka's if
        there is none, and `recordTimestamp`, Kafka's if that differs. Records with an `arrival`, which is a column
        then, are not judged by the bounds (`ingest.arrivals`).
        """
        found = given.valid
        reasons = {
            "malformed": facts.problem,
            "null_key": state(pc.and_(pc.invert(facts.has_key), self._how.needs_key), NO_KEY),
            "no_change": state(pc.and_(pc.invert(facts.has_bytes), self._envelope is not None), NO_CHANGE),
        }
        times = dict[str, pa.Array]()
        if bounds is not None:
            sent = timestamp.cast(pa.int64())
            valid, missing = dating.date_records(self._how.dating, found, sent, facts.at, facts.has_value)
            if found is not None:  # what does not decode cannot be asked for its valid time
                missing = pc.if_else(facts.problem.is_null(), missing, pa.scalar(None, pa.string()))
            if given.arrival is not None:
                times["arrival"] = dating.clamp_moments(given.arrival).view(MOMENT)
                bounds = dating.WITHOUT_SKEW
            reasons |= {"no_timestamp": missing, "time_skew": dating.describe_skew(valid, *bounds)}
            at, kafkas = dating.clamp_moments(pc.coalesce(valid, sent)), dating.clamp_moments(sent)
            differing = pc.if_else(pc.not_equal(at, kafkas), kafkas, pa.scalar(None, pa.int64()))
            times |= {"timestamp": at.view(MOMENT), "recordTimestamp": differing.view(MOMENT)}
        decided = [name for name in DECODING_FATES if name in reasons]
        fate = pc.coalesce(*(state(reasons[name].is_valid(), name) for name in decided))
        return {"fate": fate, "reason": pc.coalesce(*(reasons[name] for name in decided)), **times}

    def read_times(self, parsed: ParsedRecords, timestamp: pa.Array, headers: pa.ListArray | None) -> RecordTimes:
        """Return the times of records by columns and headers: what Spark computes comes with its columns."""
        sent = timestamp.cast(pa.int64())

        def read(column: TimeColumn | None) -> pa.Array | None:
            return None if column is None else dating.read_time_column(column, sent, parsed.key, parsed.value)

        source = self._how.arrival
        if source is not None and source.header is not None:
            headers = pa.nulls(len(timestamp), HEADERS) if headers is None else headers
            return RecordTimes(read(self._how.dating.column), read_time_header(headers, source.header))
        return RecordTimes(read(self._how.dating.column), None if source is None else read(source.column))

    def select_times(self, times: Mapping[str, pa.Array]) -> RecordTimes:
        """Return those of the fields of `RecordTimes` that the topic has."""
        is_dated = self._how.dating.is_computed or self._how.dating.column is not None
        return RecordTimes(
            times["valid"] if is_dated else None, times["arrival"] if self._how.arrival is not None else None
        )

    def _refuse_oversized(
        self, key: pa.Array, value: pa.Array, headers: pa.ListArray
    ) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return why records have too many bytes, null for those that have not; and the keys and values of these."""
        sizes, most = measure_records(key, value, headers), self._how.max_bytes
        if most is None or not (sizes > most).any():
            return pa.nulls(len(key), pa.string()), key, value
        large = pa.array(sizes > most)
        reasons = state_each(large, lambda place: f"{OVERSIZED[0]}{sizes[place]}{OVERSIZED[1]}{most}{OVERSIZED[2]}")
        return reasons, *(pc.if_else(large, None, part) for part in (key, value))


def open_reader(part: RecordPart) -> PartReader:
    """Return what reads a part of records that is not Avro."""
    match part.format:
        case "json":
            return BatchReader(json.record_shape(part))
        case "primitive":
            return primitive.open_reader(part)
    return TextReader(part)


def part_type(part: RecordPart) -> pa.StructType:
    """Return the type of what is read of a part: `struct`, its columns, and `problem`."""
    columns = {name: column_type(kind) for name, kind in part.columns.items()}
    return pa.struct({"struct": pa.struct(columns), "problem": pa.string()})
