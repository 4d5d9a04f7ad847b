"""Load the output topic of a Kafka Streams application into DuckDB, typed as a view's columns are.

A value is a JSON object, null is a tombstone. A key is the text of its one column, or a JSON object. The key of a
window is what Kafka's own serdes write, or `{"key": ..., "start": ..., "end": ...}` in milliseconds:

| serde | bytes |
| --- | --- |
| TimeWindowedSerde | the key, start (8 bytes, big-endian, ms) |
| SessionWindowedSerde | the key, end, start (8 bytes each) |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import duckdb
import pyarrow as pa
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from hindcast.common import step_events
from hindcast.common.errors import RecordError
from hindcast.contract.sensitive import REDACTED
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.topics import OffsetRange, count_offsets

Windows = Literal["time", "session"] | None

PARTITION_SHIFT = 44
"""A record's place has its offset in so many low bits, and its partition above them."""


@dataclass(frozen=True)
class OutputFormat:
    """What a record must be: its columns with DuckDB's types, how its key is written, the kind of its windows.

    `discreet`: errors do not show what was sent.
    """

    key: Mapping[str, str]
    value: Mapping[str, str]
    keyed_as: str
    windows: Windows = None
    discreet: bool = False


@dataclass(frozen=True)
class TopicExtent:
    """What a topic held: its offsets, whether its timestamps are the broker's, and fields without a column."""

    offsets: Mapping[int, OffsetRange]
    broker_times: bool
    extra_fields: tuple[str, ...]


def load_output(engine: duckdb.DuckDBPyConnection, cluster: Cluster, topic: str, form: OutputFormat) -> TopicExtent:
    """Create the table `live` of the committed records that a topic holds now; return their extent.

    Its columns: `place`; `k`, the key; `w0` and `w1`, the window's bounds in ms (w1 only of sessions: the size of other
    windows gives their end); `t`, the timestamp in ms; `v`, the value, null for a tombstone.

    Raises RecordError for the first record that does not have the format.
    """
    engine.execute(
        f"CREATE TABLE live (place BIGINT, k {_struct_type(form.key)}, w0 BIGINT, w1 BIGINT, t BIGINT, "
        f"v {_struct_type(form.value)}, bad VARCHAR); CREATE TABLE fields (name VARCHAR)"
    )
    offsets, broker_times, decoded = cluster.read_offset_ranges(topic), False, _decoding_query(form)
    step_events.add_fields(offsets_planned=count_offsets([offsets]))
    reached = {partition: part.start for partition, part in offsets.items()}
    for messages in _merge_batches(cluster.read_committed_records(topic, offsets)):
        broker_times |= messages[0].timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
        engine.register("batch", _arrow_table(messages))
        reached |= {m.partition() or 0: (m.offset() or 0) + 1 for m in messages}
        step_events.add_fields(offsets_done=sum(end - offsets[partition].start for partition, end in reached.items()))
        engine.execute(f"INSERT INTO live {decoded}")
        engine.execute("INSERT INTO fields SELECT DISTINCT unnest(try(json_keys(try(decode(value))))) FROM batch")
    _refuse_malformed(engine, topic, form)
    names = engine.execute("SELECT DISTINCT name FROM fields ORDER BY name").fetchall()
    return TopicExtent(offsets, broker_times, tuple(name for (name,) in names if name not in {*form.value, *form.key}))


def struct_expression(columns: Mapping[str, str]) -> str:
    """Return columns as one struct, in SQL; without columns, a struct that is not null as a tombstone is."""
    fields = ", ".join(
        f"{_quote_text(name)}: {_cast_expression(_quote_name(name), kind)}" for name, kind in columns.items()
    )
    return f"{{{fields or _EMPTY_STRUCT}}}"


_BATCH_SIZE = 100_000
_EMPTY_STRUCT = "'_': true"
_MAX_DIGITS = 38


def _struct_type(columns: Mapping[str, str]) -> str:
    return f"STRUCT({', '.join(f'{_quote_name(n)} {_exact_type(kind)}' for n, kind in columns.items()) or '_ BOOLEAN'})"


def _exact_type(kind: str) -> str:
    """Return a decimal type with as many more digits after the point as possible; other types as they are."""
    if not kind.startswith("DECIMAL("):
        return kind
    digits, scale = map(int, kind[8:-1].split(","))
    return f"DECIMAL({_MAX_DIGITS},{_MAX_DIGITS - digits + scale})"


def _cast_expression(column: str, kind: str) -> str:
    return f"CAST({column} AS {_exact_type(kind)})" if kind.startswith("DECIMAL(") else column


def _merge_batches(batches: Iterator[list[Message]]) -> Iterator[list[Message]]:
    """Yield the same records in larger batches: each is one insert."""
    pending: list[list[Message]] = []
    for batch in batches:
        pending.append(batch)
        if sum(map(len, pending)) >= _BATCH_SIZE:
            yield list(chain(*pending))
            pending = []
    if pending:
        yield list(chain(*pending))


def _arrow_table(messages: list[Message]) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([m.partition() for m in messages], pa.int64()),
            "offset": pa.array([m.offset() for m in messages], pa.int64()),
            "t": pa.array([m.timestamp()[1] for m in messages], pa.int64()),
            "key": pa.array([m.key() for m in messages], pa.binary()),
            "value": pa.array([m.value() for m in messages], pa.binary()),
        }
    )


def _decoding_query(form: OutputFormat) -> str:
    """Return the query that makes rows of `live` from those of `batch`."""
    inner, start, end, short = _window_expressions(form)
    texts = (
        f'SELECT (partition << {PARTITION_SHIFT}) + "offset" AS place, t, key, value, inner_key, w0, w1, short, '  # noqa: S608  # names of columns
        f"try(decode(inner_key)) AS key_text, try(decode(value)) AS value_text FROM "
        f"(SELECT *, {inner} AS inner_key, {start} AS w0, {end} AS w1, {short} AS short FROM ({_batch_query(form)}))"
    )
    value, value_bad, value_parts = _json_expressions("value", form.value)
    key, key_bad, key_parts = (
        _json_expressions("key", form.key) if form.keyed_as == "json" else _text_expressions(form.key)
    )
    parsed = f"SELECT *, {', '.join([*value_parts, *key_parts])} FROM ({texts})"  # noqa: S608
    shown = "left(coalesce(try(decode({0})), '0x' || hex({0})), 200)"
    bad = (
        f"CASE WHEN key IS NOT NULL AND (short OR {key_bad}) THEN 'key: ' || {shown.format('key')} "
        f"WHEN value IS NOT NULL AND ({value_bad}) THEN 'value: ' || {shown.format('value')} END"
    )
    return (
        f"SELECT place, CASE WHEN inner_key IS NOT NULL THEN {key} END, w0, w1, t, "  # noqa: S608
        f"CASE WHEN value IS NOT NULL THEN {value} END, {bad} FROM ({parsed})"
    )


def _batch_query(form: OutputFormat) -> str:
    """Return the rows of `batch` as SQL; for windows, with the fields of keys that are JSON."""
    if form.windows is None:
        return "SELECT * FROM batch"
    fields = json.dumps({"key": "JSON", "start": "BIGINT", "end": "BIGINT"})
    parsed = f"try(json_transform(try(decode(key)), {_quote_text(fields)})) AS parsed"
    return f"SELECT *, {parsed}, hex(key) AS hexed FROM batch"  # noqa: S608


def _window_expressions(form: OutputFormat) -> tuple[str, str, str, str]:
    """Return as SQL: the key without its window, the bounds of the window, and whether there is none."""
    if form.windows is None:
        return "key", "NULL::BIGINT", "NULL::BIGINT", "false"
    session = form.windows == "session"
    digits = 32 if session else 16
    key = "json_extract_string(parsed.key, '$')" if form.keyed_as == "string" else "parsed.key::VARCHAR"
    is_json = " AND ".join(f"parsed.{name} IS NOT NULL" for name in ("key", "start", *(["end"] if session else [])))
    inner = f"CASE WHEN {is_json} THEN encode({key}) ELSE unhex(left(hexed, -{digits})) END"
    start = f"CASE WHEN {is_json} THEN parsed.start ELSE TRY_CAST('0x' || right(hexed, 16) AS BIGINT) END"
    end = f"CASE WHEN {is_json} THEN parsed.end ELSE TRY_CAST('0x' || left(right(hexed, 32), 16) AS BIGINT) END"
    short = f"NOT coalesce({is_json}, false) AND (length(hexed) < {digits} OR w0 IS NULL)"
    return inner, start, end if session else "NULL::BIGINT", short


def _text_expressions(columns: Mapping[str, str]) -> tuple[str, str, list[str]]:
    """Return as SQL a key that is the text of its one column: value, what is wrong, the columns of both."""
    name, kind = next(iter(columns.items()))
    typed = "inner_key" if kind == "BLOB" else f"TRY_CAST(key_text AS {_exact_type(kind)})"
    return (
        f"{{{_quote_text(name)}: key_typed}}",
        _mistyped_condition("key_typed", "key_text", kind),
        [f"{typed} AS key_typed"],
    )


def _json_expressions(part: str, columns: Mapping[str, str]) -> tuple[str, str, list[str]]:
    """Return the same for a JSON object."""
    types = {name: "VARCHAR" if kind == "BLOB" else _exact_type(kind) for name, kind in columns.items()} or {
        "_": "JSON"
    }
    texts = dict.fromkeys(types, "JSON")
    parts = [
        f"try(json_transform({part}_text, {_quote_text(json.dumps(fields))})) AS {part}_{of}"
        for of, fields in (("typed", types), ("sent", texts))
    ]
    assigned = ", ".join(
        f"{_quote_text(name)}: {_base64_expression(f'{part}_typed.{_quote_name(name)}', kind)}"
        for name, kind in columns.items()
    )
    wrong = [
        f"({sent} IS NOT NULL AND ({_mistyped_condition(_base64_expression(typed, kind), sent, kind)}))"
        for typed, sent, kind in (
            (f"{part}_typed.{_quote_name(name)}", f"{part}_sent.{_quote_name(name)}", kind)
            for name, kind in columns.items()
        )
    ]
    bad = " OR ".join([f"{part}_typed IS NULL", f"NOT starts_with(ltrim({part}_text), '{{')", *wrong])
    return f"{{{assigned or _EMPTY_STRUCT}}}", bad, parts


def _mistyped_condition(typed: str, text: str, kind: str) -> str:
    """Return the condition that a text does not have its type: DuckDB would round 5.7 to an integer."""
    whole = f" OR NOT regexp_full_match({text}, '-?[0-9]+')" if kind in _INTEGERS else ""
    return f"{typed} IS NULL{whole}"


def _base64_expression(column: str, kind: str) -> str:
    return f"try(from_base64({column}))" if kind == "BLOB" else column


_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")


def _refuse_malformed(engine: duckdb.DuckDBPyConnection, topic: str, form: OutputFormat) -> None:
    """Raise RecordError if a record does not have the format."""
    count = engine.execute("SELECT count(*) FROM live WHERE bad IS NOT NULL").fetchall()[0][0]
    if not count:
        return
    place, bad = engine.execute("SELECT place, bad FROM live WHERE bad IS NOT NULL ORDER BY place LIMIT 1").fetchall()[
        0
    ]
    part, _, text = bad.partition(": ")
    columns = form.key if part == "key" else form.value
    expected = ", ".join(f"{name} {kind.lower()}" for name, kind in columns.items())
    window = f" with a {form.windows} window" if form.windows and part == "key" else ""
    what = "the text of" if part == "key" and form.keyed_as == "string" else "a JSON object of"
    raise RecordError(
        f"{count} of the topic's records do not have the view's format; the first: the {part} is not {what} "
        f"{expected}{window}: {REDACTED if form.discreet else text}",
        where=f"topic {topic}, partition {place >> PARTITION_SHIFT}, offset {place & (1 << PARTITION_SHIFT) - 1}",
        fix="name the topic that the application writes this view's results to, as docs/compare.md says they are "
        "written; --key-format says how keys are written",
    )


def _quote_name(name: str) -> str:
    return f'"{name}"'


def _quote_text(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))
