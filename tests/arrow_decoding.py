"""What Arrow's decoder makes of records, held to what Spark's expressions do."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row

from hindcast.bitemporal.valid_time import FIRST_MOMENT
from hindcast.contract import Topic
from hindcast.formats import RecordPart, arrow_decode
from hindcast.kafka import record_batches

_DECODED = {"key": "_key", "value": "_value"} | {
    name: name for name in ("timestamp", "recordTimestamp", "fate", "reason")
}


def assert_arrow_decodes(
    topic: Topic, sent: DataFrame, decoded: DataFrame, latest: datetime, earliest: datetime = FIRST_MOMENT
) -> None:
    """Of records with a number `n`, as they were `sent`; nothing if only Spark can decode the topic's records."""
    if (how := arrow_decode.plan_decoding(topic, latest)) is None:
        return
    given, expected = (frame.toArrow().sort_by("n").combine_chunks() for frame in (sent, decoded))
    has = {*given.column_names}
    columns = {
        field.name: given.column(field.name).cast(field.type) if field.name in has else pa.nulls(len(given), field.type)
        for field in record_batches.SCHEMA
    }
    decoder = how._replace(latest=latest, earliest=earliest).open_decoder()
    (batch,) = pa.table(columns, schema=record_batches.SCHEMA).combine_chunks().to_batches()
    found = pa.Table.from_batches([decoder.decode_batch(batch)])
    for name, own in _DECODED.items():
        column, theirs = found.column(own).cast(expected.schema.field(name).type), expected.column(name)
        if pa.types.is_timestamp(column.type):  # of which Python may have no moment
            column, theirs = column.cast(pa.int64()), theirs.cast(pa.int64())
        assert column.to_pylist() == theirs.to_pylist(), name


def assert_arrow_reads(part: RecordPart, cases: Iterable[tuple[bytes | None, Row]]) -> None:
    """Of the bytes of a part, and what Spark made of each (`struct` and `problem`)."""
    if part.format not in ("json", "string"):
        return
    raw, expected = zip(*cases, strict=True)
    found = arrow_decode.open_reader(part).read(pa.array(raw, pa.binary())).to_pylist()
    for bytes_, row, own in zip(raw, expected, found, strict=True):
        assert repr(_plain(own)) == repr(_plain(row.asDict(recursive=True))), (part, bytes_)


def _plain(value: Any) -> Any:
    """Bytes as such, and moments without zone, as Spark returns them."""
    if isinstance(value, dict):
        return {name: _plain(it) for name, it in value.items()}
    if isinstance(value, list):
        return [_plain(it) for it in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return bytes(value) if isinstance(value, bytearray) else value
