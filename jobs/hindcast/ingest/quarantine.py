"""The quarantine: the records that a pipeline refused; and which of them are still refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.common.column_values import ColumnValue
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.ingest import requeued_records
from hindcast.kafka import gaps
from hindcast.plan import definitions, journal
from hindcast.store import commit_history, commits, duckdb_reader, row_reader, table_creation, tables
from hindcast.store.commit_notes import FatesNote
from hindcast.store.tables import Table

QUARANTINE_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "fate",
    "reason",
    "run",
    "systemFrom",
)
"""Columns of a pipeline's quarantine."""


REQUEUED_REASON = "requeued: it decodes by the contract of this run"
"""The reason in the quarantine of a record that is no longer refused."""


NOT_REFUSED = ("accepted", "no_change")
"""The fates of records that are not in the quarantine."""


_LISTED = """
    WITH latest AS (
        SELECT *, row_number() OVER (PARTITION BY topic, "partition", "offset" ORDER BY run DESC) AS nth,
               bool_or(fate = 'accepted') OVER (PARTITION BY topic, "partition", "offset") AS requeued
        FROM refused
    ), decided AS (
        SELECT topic, "partition", "offset", arg_max(fate, run) AS fate FROM entered GROUP BY ALL
    )
    SELECT latest.topic, latest."partition", latest."offset", "timestamp", latest.fate, reason, key, run,
           CASE WHEN coalesce(decided.fate, latest.fate) <> 'accepted' THEN 'refused'
                WHEN requeued THEN 'requeued' ELSE 'accepted' END AS now
    FROM latest LEFT JOIN decided USING (topic, "partition", "offset") WHERE nth = 1
    ORDER BY topic, "partition", "offset"
"""


def update_quarantine(
    spark: SparkSession, contract: BoundContract, name: str, decided: Table, part: str, limit: int = 100
) -> None:
    """Append to the quarantine what was refused, each record once, and what of it was requeued.

    Also catches up on abandoned runs. `decided`: the table with the fates of a topic's records; `part` names its
    commits to the quarantine. `limit`: how many of the last commits to `decided` to look at.
    """
    table = quarantine_table(contract.warehouse, contract.pipeline)
    done = tables.read_last_run(table, part=part)
    notes = commit_history.read_notes(decided, FatesNote.from_json, limit)
    new = [run for run, note in notes.items() if run > done and note.refused]
    if not new:
        return
    rows = row_reader.load_rows(spark, decided).where(F.col("run") > done)
    kafka = F.lit(contract.kafka_topic(name))
    place = {"partition": F.col("topicPartition")} if "topicPartition" in rows.columns else {"topic": kafka}
    again = F.expr(requeued_records.requeued_sql(rows.columns)) if "was" in rows.columns else F.lit(False)
    since = {"reason": F.coalesce("reason", F.when(again, F.lit(REQUEUED_REASON)))}
    refused = rows.where(~F.col("fate").isin(*NOT_REFUSED, *gaps.GAP_FATES) | again).withColumns(since)
    refused = refused.withColumns(place).select(*QUARANTINE_COLUMNS)
    table_creation.ensure_table(table, table_creation.make_nullable(refused.schema))
    commits.append_rows(refused, table, max(new), {"run": max(new)}, part=part, after=done)


def quarantine_table(warehouse: str, pipeline: str) -> Table:
    """Return the table of the records that a pipeline refused."""
    return Table(warehouse, pipeline, "quarantine", "quarantine")


def list_refused(warehouse: str, contract: Contract, topic: str | None = None, *, everything: bool = False) -> pa.Table:
    """Return a row for each record that is refused by its latest fate.

    Columns: topic (in Kafka), partition, offset, timestamp, fate, reason, key (text), run, now (`refused`).
    `everything`: also records that are no longer refused; their `now` is `requeued` or `accepted`. `topic` is a name in
    the contract; another entry of the same topic in Kafka has the same rows. Keys and reasons are masked if an entry
    of their topic has sensitive columns.
    """
    return mask_refused(warehouse, contract, read_refused(warehouse, contract, topic, everything=everything))


def read_refused(warehouse: str, contract: Contract, topic: str | None = None, *, everything: bool = False) -> pa.Table:
    """Return the rows of `list_refused`, with keys as bytes and nothing masked."""
    quarantine = tables.open_table(quarantine_table(warehouse, contract.pipeline))
    with duckdb_reader.open_arrow_engine() as engine:
        engine.execute(
            'CREATE TEMP TABLE entered (topic VARCHAR, "partition" INT, "offset" BIGINT, fate VARCHAR, run BIGINT)'
        )
        for name in contract.topics:
            entered = tables.open_table(tables.fates_table(warehouse, contract.pipeline, name))
            if entered is not None:
                engine.register("one", row_reader.open_dataset(entered))
                several = contract.topics[name].pattern is not None
                place = "coalesce(topic, ?), topicPartition" if several else '?, "partition"'
                engine.execute(
                    f'INSERT INTO entered SELECT {place}, "offset", fate, run FROM one',  # noqa: S608  # our own columns
                    [contract.kafka_topic(name)],
                )
        if quarantine is None:
            engine.execute(_NONE)
        else:
            engine.register("refused", row_reader.open_dataset(quarantine))
        rows = engine.sql(_LISTED).to_arrow_table()
    if not everything:
        rows = rows.filter(pc.equal(rows.column("now"), "refused"))
    if topic is None:
        return rows
    own = [kafka for kafka in rows.column("topic").unique().to_pylist() if topic in contract.find_entries(kafka)]
    return rows.filter(pc.is_in(rows.column("topic"), pa.array(own, pa.string())))


def mask_refused(warehouse: str, contract: Contract, rows: pa.Table) -> pa.Table:
    """Return rows of `read_refused` as `list_refused` has them: what today's contract or that of its run marks of a
    record's topic hides its key and reason, and so does a topic that the contract no longer has.
    """
    is_hidden = find_marks(warehouse, contract)
    masked = []
    for row in rows.to_pylist():
        hidden = is_hidden(row["topic"], row["run"])
        masked.append(mask_key(row, hidden=hidden) | {"reason": "***" if hidden else row["reason"]})
    return pa.Table.from_pylist(masked, schema=_SCHEMA)


def find_marks(warehouse: str, contract: Contract) -> Callable[[str, int], bool]:
    """Return what says of a topic in Kafka and a run whether the keys of its records are hidden."""
    past = journal.read_runs(warehouse, contract.pipeline)
    contracts = {run.number: run.plan.contract for run in past}
    was_marked = cache(partial(definitions.has_marked_entry, past))

    def is_hidden(kafka: str, run: int) -> bool:
        is_marked = contract.has_sensitive_entry(kafka) or not contract.find_entries(kafka)
        return is_marked or was_marked(contracts.get(run, ""), kafka)

    return is_hidden


def mask_key(row: dict[str, ColumnValue], *, hidden: bool) -> dict[str, ColumnValue]:
    """Return a row with its key as text, masked if it is hidden."""
    key = row["key"]
    text = key.decode("utf-8", "replace") if isinstance(key, bytes) else None
    return row | {"key": "***" if hidden and text else text}


_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("fate", pa.string()),
        ("reason", pa.string()),
        ("key", pa.string()),
        ("run", pa.int64()),
        ("now", pa.string()),
    ]
)
_NONE = """
    CREATE TEMP TABLE refused (topic VARCHAR, "partition" INT, "offset" BIGINT, "timestamp" TIMESTAMPTZ,
                               key BLOB, "value" BLOB, fate VARCHAR, reason VARCHAR, run BIGINT)
"""
