"""Entries of the table of failing rows (failing_rows.py), built with Spark, and keys as their text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Contract
from hindcast.kafka import topic_patterns
from hindcast.plan import journal
from hindcast.quality.failing_rows import SCHEMA
from hindcast.store.tables import Table

_JSON_OPTIONS = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def format_key(*columns: Column) -> Column:
    """Return a key as JSON text: an object with all of its columns, nulls included; -0.0 is 0.0, as in tables."""
    text = F.to_json(F.struct(*columns), _JSON_OPTIONS)
    return F.regexp_replace(text, r'(?<!\\)":-0\.0(?=[,}])', '":0.0')  # an unescaped quote and a colon: after a name


def format_row_key(names: Sequence[str]) -> Column:
    """Return the key of a flat row as JSON text, given the names of its key columns."""
    return format_key(*(F.col(f"`{name}`") for name in names))


_AT_HORIZON = datetime(1, 1, 1, tzinfo=UTC)


def digest_units(change: DataFrame, frozen: datetime | None) -> DataFrame:
    """Return a hash of the whole change of each unit: `key`, `unit`, `digest`. `change` has `_key` and `_unit`.

    A unit has one key: that of its opened row, if the change moves an event from one key to another. Rows that begin or
    end at the horizon of a trim (`frozen`) have the same hash at a later horizon.
    """

    def read_column(name: str) -> Column:
        column = F.col(f"`{name}`")
        if frozen is None or name not in ("validFrom", "validTo"):
            return column
        return F.when(column == F.lit(frozen), F.lit(_AT_HORIZON)).otherwise(column).alias(name)

    content = [read_column(name) for name in change.columns if not name.startswith("_")]
    content.append(F.col("_change").alias("change"))
    rows = F.sort_array(F.collect_list(F.to_json(F.struct(*content), _JSON_OPTIONS)))
    opened = F.max(F.when(F.col("_change") == "open", F.col("_key")))
    return change.groupBy(F.col("_unit").alias("unit")).agg(
        F.coalesce(opened, F.max("_key")).alias("key"), F.xxhash64(rows).alias("digest")
    )


def build_entries(
    rows: DataFrame,
    table: Table,
    entry: str,
    *,
    run: int,
    at: datetime,
    place: Mapping[str, Column],
    shown: Collection[str],
) -> DataFrame:
    """Return rows of a table, or of a change of it, as entries with the columns of `SCHEMA`.

    `gate`, `expectation`, `reason`, `since`, `digest` and `unit` come from the columns `_gate`, `_expectation`, ... of
    `rows`; they are null where `rows` lacks them. `key` comes from `_key`, else from the key columns, or is null.
    `place`: the topic and partition of a record, as expressions over `_partition`; `shown`: the columns that go into
    `row`.
    """
    columns = {
        "run": F.lit(run),
        "at": F.lit(at),
        "table": F.lit(table.name),
        "entry": F.lit(entry),
        "key": _find_entry_key(rows, table),
        "change": F.col("_change") if "_change" in rows.columns else F.lit("open"),
        "row": F.to_json(F.struct(*(F.col(f"`{c}`") for c in rows.columns if c in shown)), _JSON_OPTIONS),
    }
    if "_offset" in rows.columns:
        columns |= {**place, "offset": F.col("_offset")}
    columns |= {name: F.col(f"_{name}") for name in _OPTIONAL_COLUMNS if f"_{name}" in rows.columns}
    return _fill_columns(rows, columns)


def _find_entry_key(rows: DataFrame, table: Table) -> Column:
    if "_key" in rows.columns:  # the key that they are held with
        return F.col("_key")
    return format_row_key(table.key) if {*table.key} <= {*rows.columns} else F.lit(None)


def build_end_entries(
    units: DataFrame, table: Table, entry: str, *, run: int, at: datetime, by: str | None
) -> DataFrame:
    """Return an entry (`SCHEMA`) for each unit that is no longer held (rows of `read_held_units`)."""
    columns = {
        "run": F.lit(run),
        "at": F.lit(at),
        "table": F.lit(table.name),
        "entry": F.lit(entry),
        **{name: F.col(name) for name in ("key", "unit", "since", "digest")},
        "by": F.lit(by),
    }
    return _fill_columns(units, columns)


def _fill_columns(rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Return rows with all columns of `SCHEMA`; those that `columns` lacks are null."""
    return rows.select(
        *(columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in SCHEMA.fields)
    )


_OPTIONAL_COLUMNS = ("gate", "expectation", "reason", "since", "digest", "unit")


def find_record_place(contract: Contract, warehouse: str, name: str) -> dict[str, Column]:
    """Return the Kafka topic and partition of a row's record as expressions over `_partition`.

    The topic is null where the table comes from another pipeline.
    """
    name = contract.find_first_source(name)
    kafka = contract.kafka_topic(name) if name in contract.topics else None
    members = journal.read_members(warehouse, contract, name) if name in contract.topics else {}
    known = topic_patterns.member_columns(members, "_partition")
    topic, partition = known.get("topic", F.lit(kafka)), known.get("topicPartition", F.col("_partition"))
    return {"topic": topic, "partition": partition}
