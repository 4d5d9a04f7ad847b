"""How many records of a run each partition has, and whether more are malformed than the contract allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from hindcast.common.errors import RecordError, show_briefly
from hindcast.contract import Topic
from hindcast.contract.sensitive import REDACTED
from hindcast.formats import limits, mismatch
from hindcast.ingest.quarantine import NOT_REFUSED
from hindcast.ingest.stream_times import StreamTimes
from hindcast.store import files

MAX_REASON_LENGTH = 1_000
"""Characters kept of the reason why a record does not decode."""


class RecordCounts(NamedTuple):
    """How many records each partition has, how many bytes they take, and the latest timestamps of accepted ones."""

    by_partition: dict[int, int]
    bytes: int
    latest: StreamTimes


def count_records(
    judged: DataFrame,
    place: Callable[[int], str],
    topic: Topic,
    field: str,
    before: Counter[str],
    to_come: int,
    written: str,
    *,
    hidden: bool,
    weigh: bool = False,
) -> RecordCounts:
    """Return how many records each partition has, and how many bytes they take in all (0 without `weigh`).

    Raises RecordError if more records of the run are malformed than the contract allows. `place` describes a partition.
    `before`: how many `records` earlier commits of the run added, how many they `refused`, and how many were
    `malformed`; this adds to it. `to_come`: how many offsets later commits will add: a share is one of the whole run.
    `written`: what was written before, for the error; if `hidden`, it shows nothing of a record. Bytes as in
    `files.text_size_column`.
    """
    rows = (
        judged.groupBy("partition", "fate")
        .agg(
            F.count("*").alias("n"),
            F.min("offset").alias("first"),
            F.unix_micros(F.max("timestamp")).alias("latest"),
            (files.text_size_column(judged.select("key", "value", "headers")) if weigh else F.lit(0)).alias("bytes"),
        )
        .collect()
    )
    bad = sorted((row for row in rows if row["fate"] == "malformed"), key=lambda row: (row["partition"], row["first"]))
    before["records"] += sum(row["n"] for row in rows)
    before["malformed"] += sum(row["n"] for row in bad)
    before["refused"] += sum(row["n"] for row in rows if row["fate"] not in NOT_REFUSED)
    total, allowed = before["malformed"], limits.malformed_limit(topic, before["records"] + to_come)
    if bad and total > allowed:
        first = _read_record(judged, bad[0]["partition"], bad[0]["first"])
        key = "no key" if first["key"] is None else f"key {'***' if hidden else first['key']}"
        reason = REDACTED if hidden else show_briefly(first["reason"], MAX_REASON_LENGTH)
        reason += "" if hidden else mismatch.describe_mismatch(topic, first["value"])
        ways = "" if first["reason"].startswith("op ") else "fix the columns in the contract, or "
        raise RecordError(
            f"{total} of the run's records do not decode, and the limit is {allowed}; the first: {reason}",
            where=f"{place(bad[0]['partition'])}, offset {bad[0]['first']}, {key}",
            fix=f"{ways}let them into quarantine with {field}: {total}; {written}",
        )
    counts = Counter[int]()
    for row in rows:
        counts[row["partition"]] += row["n"]
    latest = {row["partition"]: row["latest"] for row in rows if row["fate"] == "accepted"}
    return RecordCounts(counts, sum(row["bytes"] or 0 for row in rows), latest)


def _read_record(judged: DataFrame, partition: int, offset: int) -> Row:
    """Return the reason, the beginning of the key as text, and the value of a record."""
    key = F.substring(F.make_valid_utf8(F.col("key").cast("string")), 1, 200).alias("key")
    own = judged.where((F.col("partition") == partition) & (F.col("offset") == offset))
    (record,) = own.select("reason", key, "value").collect()
    return record
