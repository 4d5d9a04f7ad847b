"""The output topic of a Kafka Streams application as rows of DuckDB, typed as a view's columns are.

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
from typing import Any, Literal

import duckdb
import pyarrow as pa
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from hindcast.contracts.sensitive import NOT_TOLD
from hindcast.errors import RecordError
from hindcast.kafka.topics import Cluster, Offsets

Windows = Literal["time", "session"] | None

PARTITION = 44
"""A record's place is its partition above these bits, and its offset in them."""


@dataclass(frozen=True)
class Form:
    """What a record must be: its columns with DuckDB's types, how its key is written, the kind of its windows.

    `discreet`: no error shows what was sent.
    """

    key: Mapping[str, str]
    value: Mapping[str, str]
    keyed_as: str
    windows: Windows = None
    discreet: bool = False


@dataclass(frozen=True)
class Extent:
    """What a topic held: its offsets, whether its timestamps are the broker's, and fields that the form has not."""

    offsets: Mapping[int, Offsets]
    broker_times: bool
    beyond: tuple[str, ...]


def load(engine: duckdb.DuckDBPyConnection, cluster: Cluster, topic: str, form: Form) -> Extent:
    """Makes the table `live` of the committed records that a topic holds now.

    Its columns: `place`; `k`, the key; `w0` and `w1`, the window's bounds in ms (w1 of sessions alone: another window's
    size tells its end); `t`, the timestamp in ms; `v`, the value, null for a tombstone.

    RecordError names the first record that is not of the form.
    """
    engine.execute(
        f"CREATE TABLE live (place BIGINT, k {_struct(form.key)}, w0 BIGINT, w1 BIGINT, t BIGINT, "
        f"v {_struct(form.value)}, bad VARCHAR); CREATE TABLE fields (name VARCHAR)"
    )
    offsets, broker_times, decoded = cluster.available(topic), False, _decoded(form)
    for messages in _gathered(cluster.committed(topic, offsets)):
        broker_times |= messages[0].timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
        engine.register("batch", _arrow(messages))
        engine.execute(f"INSERT INTO live {decoded}")
        engine.execute("INSERT INTO fields SELECT DISTINCT unnest(try(json_keys(try(decode(value))))) FROM batch")
    _refuse(engine, topic, form)
    names = engine.execute("SELECT DISTINCT name FROM fields ORDER BY name").fetchall()
    return Extent(offsets, broker_times, tuple(name for (name,) in names if name not in {*form.value, *form.key}))


def packed(columns: Mapping[str, str]) -> str:
    """Columns as one value; of none a value all the same, which a tombstone is not."""
    told = ", ".join(f"{_text(name)}: {_cast(_name(name), kind)}" for name, kind in columns.items())
    return f"{{{told or _NONE}}}"


_BATCH = 100_000
_NONE = "'_': true"
_DIGITS = 38


def _struct(columns: Mapping[str, str]) -> str:
    return f"STRUCT({', '.join(f'{_name(n)} {_exact(kind)}' for n, kind in columns.items()) or '_ BOOLEAN'})"


def _exact(kind: str) -> str:
    """A decimal with as many more digits after the point as there can be: what was sent is not rounded."""
    if not kind.startswith("DECIMAL("):
        return kind
    digits, scale = map(int, kind[8:-1].split(","))
    return f"DECIMAL({_DIGITS},{_DIGITS - digits + scale})"


def _cast(column: str, kind: str) -> str:
    return f"CAST({column} AS {_exact(kind)})" if kind.startswith("DECIMAL(") else column


def _gathered(batches: Iterator[list[Message]]) -> Iterator[list[Message]]:
    """The same records in larger batches: each is an insert of its own."""
    kept: list[list[Message]] = []
    for batch in batches:
        kept.append(batch)
        if sum(map(len, kept)) >= _BATCH:
            yield list(chain(*kept))
            kept = []
    if kept:
        yield list(chain(*kept))


def _arrow(messages: list[Message]) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([m.partition() for m in messages], pa.int64()),
            "offset": pa.array([m.offset() for m in messages], pa.int64()),
            "t": pa.array([m.timestamp()[1] for m in messages], pa.int64()),
            "key": pa.array([m.key() for m in messages], pa.binary()),
            "value": pa.array([m.value() for m in messages], pa.binary()),
        }
    )


def _decoded(form: Form) -> str:
    """The query that makes rows of `live` of those of `batch`."""
    inner, start, end, short = _window(form)
    texts = (
        f'SELECT (partition << {PARTITION}) + "offset" AS place, t, key, value, inner_key, w0, w1, short, '  # noqa: S608  # names of columns
        f"try(decode(inner_key)) AS key_text, try(decode(value)) AS value_text FROM "
        f"(SELECT *, {inner} AS inner_key, {start} AS w0, {end} AS w1, {short} AS short FROM ({_windowed(form)}))"
    )
    value, value_bad, value_parts = _object("value", form.value)
    key, key_bad, key_parts = _object("key", form.key) if form.keyed_as == "json" else _plain(form.key)
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


def _windowed(form: Form) -> str:
    """The rows of `batch`; of windows with what their keys say, if they are JSON."""
    if form.windows is None:
        return "SELECT * FROM batch"
    fields = json.dumps({"key": "JSON", "start": "BIGINT", "end": "BIGINT"})
    return f"SELECT *, try(json_transform(try(decode(key)), {_text(fields)})) AS told, hex(key) AS hexed FROM batch"  # noqa: S608


def _window(form: Form) -> tuple[str, str, str, str]:
    """The key without its window, the window's bounds, and whether there is none."""
    if form.windows is None:
        return "key", "NULL::BIGINT", "NULL::BIGINT", "false"
    session = form.windows == "session"
    digits = 32 if session else 16
    told = "json_extract_string(told.key, '$')" if form.keyed_as == "string" else "told.key::VARCHAR"
    as_json = "told.key IS NOT NULL AND told.start IS NOT NULL" + (" AND told.end IS NOT NULL" if session else "")
    inner = f"CASE WHEN {as_json} THEN encode({told}) ELSE unhex(left(hexed, -{digits})) END"
    start = f"CASE WHEN {as_json} THEN told.start ELSE TRY_CAST('0x' || right(hexed, 16) AS BIGINT) END"
    end = f"CASE WHEN {as_json} THEN told.end ELSE TRY_CAST('0x' || left(right(hexed, 32), 16) AS BIGINT) END"
    short = f"NOT coalesce({as_json}, false) AND (length(hexed) < {digits} OR w0 IS NULL)"
    return inner, start, end if session else "NULL::BIGINT", short


def _plain(columns: Mapping[str, str]) -> tuple[str, str, list[str]]:
    """A key that is the text of its one column: as a value, what is wrong with it, and what both are made of."""
    name, kind = next(iter(columns.items()))
    typed = "inner_key" if kind == "BLOB" else f"TRY_CAST(key_text AS {_exact(kind)})"
    return f"{{{_text(name)}: key_typed}}", _untyped("key_typed", "key_text", kind), [f"{typed} AS key_typed"]


def _object(part: str, columns: Mapping[str, str]) -> tuple[str, str, list[str]]:
    """The same of a JSON object."""
    types = {name: "VARCHAR" if kind == "BLOB" else _exact(kind) for name, kind in columns.items()} or {"_": "JSON"}
    texts = dict.fromkeys(types, "JSON")
    made = [
        f"try(json_transform({part}_text, {_text(json.dumps(fields))})) AS {part}_{of}"
        for of, fields in (("typed", types), ("sent", texts))
    ]
    told = ", ".join(
        f"{_text(name)}: {_of_base64(f'{part}_typed.{_name(name)}', kind)}" for name, kind in columns.items()
    )
    wrong = [
        f"({part}_sent.{_name(name)} IS NOT NULL AND "
        f"({_untyped(_of_base64(f'{part}_typed.{_name(name)}', kind), f'{part}_sent.{_name(name)}', kind)}))"
        for name, kind in columns.items()
    ]
    bad = " OR ".join([f"{part}_typed IS NULL", f"NOT starts_with(ltrim({part}_text), '{{')", *wrong])
    return f"{{{told or _NONE}}}", bad, made


def _untyped(typed: str, text: str, kind: str) -> str:
    """Whether a text that is there is not of its type: DuckDB would round 5.7 to an integer."""
    whole = f" OR NOT regexp_full_match({text}, '-?[0-9]+')" if kind in _INTEGERS else ""
    return f"{typed} IS NULL{whole}"


def _of_base64(column: str, kind: str) -> str:
    return f"try(from_base64({column}))" if kind == "BLOB" else column


_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")


def _refuse(engine: duckdb.DuckDBPyConnection, topic: str, form: Form) -> None:
    """RecordError if a record is not of the form."""
    count = engine.execute("SELECT count(*) FROM live WHERE bad IS NOT NULL").fetchall()[0][0]
    if not count:
        return
    place, bad = engine.execute("SELECT place, bad FROM live WHERE bad IS NOT NULL ORDER BY place LIMIT 1").fetchall()[
        0
    ]
    part, _, text = bad.partition(": ")
    columns: Mapping[str, Any] = form.key if part == "key" else form.value
    wanted = ", ".join(f"{name} {kind.lower()}" for name, kind in columns.items())
    window = f" with a {form.windows} window" if form.windows and part == "key" else ""
    what = "the text of" if part == "key" and form.keyed_as == "string" else "a JSON object of"
    raise RecordError(
        f"{count} of the topic's records are not of the view's form; the first: the {part} is not {what} "
        f"{wanted}{window}: {NOT_TOLD if form.discreet else text}",
        where=f"topic {topic}, partition {place >> PARTITION}, offset {place & (1 << PARTITION) - 1}",
        mend="name the topic that the application writes this view's results to, as docs/compare.md says they are "
        "written; --key-format tells how keys are",
    )


def _name(name: str) -> str:
    return f'"{name}"'


def _text(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))
