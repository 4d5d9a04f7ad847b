"""The base of a topic's table: what an adopted table knew before Kafka's records, as records of its own.

The table of a topic is a function of its log. The rows of an adopted plain table are in no log: they become records in
`base/<topic>`, and the table is a function of both. They precede all of Kafka's: partition and offset are -1, so the
log's record wins at equal timestamps.

| column | type | |
| --- | --- | --- |
| key, value | struct, struct | decoded, as the contract has them; value null: a tombstone |
| timestamp | timestamp | when it is true; `store_formats.UNKNOWN_TIME` where nobody knows |
| run, systemFrom | bigint, timestamp | the run that adopted it, and since when it is believed |
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, incremental
from hindcast.contract import Shape, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.plan import journal
from hindcast.plan.plans import Plan
from hindcast.store import columns, commits, row_reader, table_creation, tables
from hindcast.store.store_formats import INITIAL_ROW_PLACE, OlderFormat
from hindcast.store.tables import Table

RECORD_COLUMNS = ("key", "value", "timestamp", "epoch", "partition", "offset", "run")
"""The columns of records of a log and of a base that versions are made of."""


def initial_rows_table(warehouse: str, pipeline: str, name: str) -> Table:
    """Return the base table of a topic."""
    return Table(warehouse, pipeline, f"base/{name}", "base")


def add_initial_rows(
    spark: SparkSession, contract: BoundContract, name: str, decoded: DataFrame, after: int = 0
) -> DataFrame:
    """Return decoded records of a topic's log, and those of its base that runs after `after` adopted."""
    rows = _read_records(spark, contract, name, decoded)
    return decoded if rows is None else decoded.select(*RECORD_COLUMNS).unionByName(rows.where(F.col("run") > after))


def has_initial_rows(contract: BoundContract, name: str) -> bool:
    """Return whether a topic's table has a base."""
    return _find_table(contract, name) is not None


def find_hidden_records(
    spark: SparkSession, contract: BoundContract, name: str, decoded: DataFrame, new: DataFrame
) -> DataFrame:
    """Return decoded records of a log, and those of its base that are hidden (`incremental.find_hidden_records`)."""
    rows = _read_records(spark, contract, name, decoded)
    if rows is None:
        return decoded
    return decoded.select(*RECORD_COLUMNS).unionByName(incremental.find_hidden_records(rows, new))


def derive_records(rows: DataFrame, older: OlderFormat, shape: Shape) -> DataFrame:
    """Return the records that rows of a table of an older format amount to: `key`, `value`, `timestamp`.

    versioned 8 [0, 4), 10 [6, null) -> 8 @0, tombstone @4, 10 @6
    """
    versions = row_reader.convert_older_rows(rows, older)
    key = derivation.key_struct({column: F.col(f"`{column}`") for column in shape.key})
    value = F.struct(*(F.col(f"`{column}`") for column in shape.value))
    records = versions.select(key.alias("key"), value.alias("value"), F.col("validFrom").alias("timestamp"))
    if older.format != "versioned":
        return records
    ends = versions.where("validTo IS NOT NULL").select(key.alias("key"), F.col("validTo").alias("timestamp"))
    begun = records.select(F.struct("key", "timestamp").alias("_begun"))
    tombstones = ends.join(begun, F.struct("key", "timestamp") == F.col("_begun"), "left_anti")
    return records.unionByName(tombstones, allowMissingColumns=True)


def write_initial_rows(records: DataFrame, contract: BoundContract, plan: Plan, name: str, older: OlderFormat) -> None:
    """Write the records that a run adopts to the base once, replacing what unfinished runs left."""
    table = initial_rows_table(contract.warehouse, contract.pipeline, name)
    origin = {"run": F.lit(plan.run).cast("long"), "systemFrom": F.lit(older.known_at)}
    rows = records.withColumns(origin)
    table_creation.ensure_table(table, table_creation.make_nullable(rows.schema))
    past = journal.read_runs(table.warehouse, table.pipeline)
    last = max((run.number for run in past if run.state == "completed"), default=0)
    abandoned = [run.number for run in past if run.state == "abandoned"]
    unfinished = " OR ".join([f"run > {last}", *(f"run = {number}" for number in abandoned)])
    commits.replace_rows(rows, table, plan.run, {"run": plan.run}, where=unfinished)


def _read_records(spark: SparkSession, contract: BoundContract, name: str, decoded: DataFrame) -> DataFrame | None:
    """Return the records of a base as those of a log; None if there is no base."""
    if (table := _find_table(contract, name)) is None:
        return None
    rows = row_reader.load_rows(spark, table)
    # The contract's columns may have changed since.
    fitted = {
        part: columns.cast_value(F.col(part), rows.schema[part].dataType, decoded.schema[part].dataType)
        for part in ("key", "value")
    }
    fixed = {"epoch": F.lit(0), "partition": F.lit(INITIAL_ROW_PLACE), "offset": F.lit(INITIAL_ROW_PLACE).cast("long")}
    return rows.withColumns(fitted | fixed).select(*RECORD_COLUMNS)


def _find_table(contract: BoundContract, name: str) -> Table | None:
    """Return the base table of a topic, None if it has none."""
    table = initial_rows_table(contract.warehouse, contract.pipeline, name)
    has_base = list_shapes(contract)[name].kind == "versions" and tables.open_table(table) is not None
    return table if has_base else None
