"""Records that were forgotten (ops/erase/forget.py): their places stay in the log, their bytes do not.

A forgotten record keeps its offset, time, fate and the run that ingested it, so that the ledger does not change. Its
key, value and headers are null, and `forgotten` in the log is the run that forgot it. No table is made of it.

A forgotten key is recognized by its `key_digest`. If `from` moves back, offsets before those that its run had passed
belong to the past that was to be forgotten: records of that key are forgotten as they are ingested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Contract, Topic
from hindcast.formats import WriterSchemas
from hindcast.formats.spark_decoding import decode_records
from hindcast.kafka.topics import OffsetRange
from hindcast.plan.runs import Run
from hindcast.store import table_columns

MARK = "forgotten"
"""The column of a log with the run that forgot the record; null for one that is not forgotten."""

REPLACEMENT_TEXT = "forgotten"
"""The replacement of a text that revealed the key."""


def is_forgotten(rows: DataFrame) -> Column:
    """Return whether a row of a log is forgotten; the log lacks the column until something is."""
    return F.col(MARK).isNotNull() if MARK in rows.columns else F.lit(False)


def not_forgotten_sql(log: DeltaTable | None) -> str:
    """Return the SQL condition of rows of a log that are not forgotten."""
    return f"{MARK} IS NULL" if log is not None and MARK in table_columns.column_types(log) else "true"


def exclude_forgotten(rows: DataFrame) -> DataFrame:
    """Return the rows of a log that are not forgotten."""
    return rows.where(~is_forgotten(rows)) if MARK in rows.columns else rows


def has_forgotten_since(past: Iterable[Run], contract: Contract, name: str, after: int) -> bool:
    """Return whether a run after the run `after`, finished or not, forgot something that a table is, or was, made of.

    Then rows were deleted without a trace on the system axis: what is made of them has to be derived whole.
    """
    erasures = (run.plan.erasure for run in past if run.number > after)
    return any(erasure is not None and erasure.removes_rows_of(contract, name) for erasure in erasures)


def key_digest(topic: str, key: Column) -> Column:
    """Return a sha256 that identifies a topic's key without revealing it. `key`: a struct of the contract's columns."""
    return F.sha2(F.concat(F.lit(f"{topic}\n"), F.to_json(key, {"ignoreNullFields": "false"})), 256)


def mark_forgotten(
    records: DataFrame,
    past: Iterable[Run],
    topic: Topic,
    name: str,
    writers: WriterSchemas | None,
    ranges: Mapping[int, OffsetRange] | None = None,
) -> DataFrame:
    """Return Kafka's records of a topic with `MARK`: the run that forgot their key, if they are older than that run.

    The key is the one by which `hindcast forget` finds a record: also of a record that is larger than the contract
    allows, and of one whose bytes are the text of a key, though it does not decode. Without such runs the records are
    as they came. `records` has the bytes also as `_rawKey` and `_rawValue`; `ranges`: its offsets, all by default.
    """
    if not (passed := _list_passed(past, name, ranges)):
        return records
    decoded = decode_records(records, topic, writers=writers)
    digests = F.array(*(key_digest(name, key) for key in (F.col("key"), *_keys_of_text(topic))))
    forgotten_by = [
        F.when(
            F.array_contains("_digests", sha256) & (F.col("partition") == partition) & (F.col("offset") < start), run
        )
        for run, sha256, partition, start in passed
    ]
    marked = decoded.withColumn("_digests", digests).withColumn(MARK, F.coalesce(*forgotten_by).cast("long"))
    return marked.withColumns({"key": F.col("_rawKey"), "value": F.col("_rawValue")}).drop("fate", "reason", "_digests")


def has_passed(past: Iterable[Run], name: str, ranges: Mapping[int, OffsetRange]) -> bool:
    """Return whether a run that forgot a key of a topic had passed some of these offsets (`mark_forgotten`)."""
    return bool(_list_passed(past, name, ranges))


def _list_passed(
    past: Iterable[Run], name: str, ranges: Mapping[int, OffsetRange] | None
) -> list[tuple[int, str, int, int]]:
    """Return the runs that forgot a key: number, the key's digest, and up to which offset of which partition."""
    return [
        (run.number, run.plan.erasure.digest, partition, planned.start)
        for run in past
        if run.plan.erasure and run.plan.erasure.topic == name and name in run.plan.topics
        for partition, planned in run.plan.topics[name].ranges.items()
        if ranges is None or (partition in ranges and ranges[partition].start < planned.start)
    ]


def _keys_of_text(topic: Topic) -> list[Column]:
    """Return the key that a user would write as the text of `_rawKey`, if it has one column."""
    if len(topic.key) != 1:
        return []
    ((column, kind),) = topic.key.items()
    if str(kind).startswith(("array", "map", "struct")):
        return []
    text = F.try_validate_utf8(F.col("_rawKey").cast("string"))
    value = text.try_cast(str(kind))
    return [F.when(value.cast("string") == text, F.struct(value.alias(column)))]


def clear_forgotten(judged: DataFrame) -> DataFrame:
    """Return judged records without the bytes (`key`, `value`, `headers`) and values (`_key`, `_value`) of those that
    are marked as forgotten.
    """
    if MARK not in judged.columns:
        return judged
    cleared = ("key", "value", "headers", "_key", "_value")
    columns = {name: F.when(~is_forgotten(judged), F.col(name)) for name in cleared}
    reason = F.when(~is_forgotten(judged), F.col("reason")).otherwise(
        F.when(F.col("reason").isNotNull(), REPLACEMENT_TEXT)
    )
    return judged.withColumns({**columns, "reason": reason})
