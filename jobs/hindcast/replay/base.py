"""The base of a topic's table: what an adopted table knew before Kafka's records, as records of their own.

The table of a topic is a function of its log. What a plain table had that was put in its place stands in no log: it
becomes records in `base/<topic>`, and the table is a function of both. They come before all of Kafka's: partition and
offset are -1, so of equal timestamps the record of the log wins.

| column | type | |
| --- | --- | --- |
| key, value | struct, struct | decoded, as the contract has them; value null: a tombstone |
| timestamp | timestamp | when it is true; `store_formats.UNKNOWN` where nobody knows |
| run, systemFrom | bigint, timestamp | the run that adopted it, and since when it is believed |
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contracts import Contract, Shape, shapes
from hindcast.corrected import derive, increments
from hindcast.delta import columns, commits, contents, making, tables
from hindcast.delta.store_formats import BASE, Older
from hindcast.delta.tables import Table
from hindcast.planning import journal
from hindcast.planning.plans import Plan
from hindcast.settings import settings

COLUMNS = ("key", "value", "timestamp", "epoch", "partition", "offset", "run")
"""What versions are made of, in records of a log and of a base."""


def table(warehouse: str, pipeline: str, name: str) -> Table:
    """The base of a topic."""
    return Table(warehouse, pipeline, f"base/{name}", "base")


def united(spark: SparkSession, contract: Contract, name: str, decoded: DataFrame, after: int = 0) -> DataFrame:
    """Decoded records of a topic's log, with those of its base that runs after `after` adopted."""
    rows = _records(spark, contract, name, decoded)
    return decoded if rows is None else decoded.select(*COLUMNS).unionByName(rows.where(F.col("run") > after))


def hidden(spark: SparkSession, contract: Contract, name: str, decoded: DataFrame, new: DataFrame) -> DataFrame:
    """Decoded records of a log that are hidden (`increments.hidden`), with those of its base."""
    rows = _records(spark, contract, name, decoded)
    return decoded if rows is None else decoded.select(*COLUMNS).unionByName(increments.hidden(rows, new))


def records(rows: DataFrame, older: Older, shape: Shape) -> DataFrame:
    """The records that rows of a table of an older format amount to: `key`, `value`, `timestamp`.

    versioned   8 [0, 4), 10 [6, null)    ->    8 @0, tombstone @4, 10 @6
    """
    seen = contents.proxied(rows, older)
    key = derive.keyed({column: F.col(f"`{column}`") for column in shape.key})
    value = F.struct(*(F.col(f"`{column}`") for column in shape.value))
    found = seen.select(key.alias("key"), value.alias("value"), F.col("validFrom").alias("timestamp"))
    if older.format != "versioned":
        return found
    ends = seen.where("validTo IS NOT NULL").select(key.alias("key"), F.col("validTo").alias("timestamp"))
    begun = found.select(F.struct("key", "timestamp").alias("_begun"))
    gone = ends.join(begun, F.struct("key", "timestamp") == F.col("_begun"), "left_anti")
    return found.unionByName(gone, allowMissingColumns=True)


def write(made: DataFrame, contract: Contract, todo: Plan, name: str, older: Older) -> None:
    """Puts the records that a run adopts into the base, once, in place of what runs left that did not end."""
    it = table(settings().warehouse, contract.pipeline, name)
    origin = {"run": F.lit(todo.run).cast("long"), "systemFrom": F.lit(older.known_at)}
    rows = made.withColumns(origin)
    making.ensure(it, making.nullable(rows.schema))
    last = max((run.number for run in journal.completed(it.warehouse, it.pipeline)), default=0)
    commits.replace(rows, it, todo.run, {"run": todo.run}, where=f"run > {last}")


def _records(spark: SparkSession, contract: Contract, name: str, decoded: DataFrame) -> DataFrame | None:
    """The records of a base as those of a log; None where there is no base."""
    it = table(settings().warehouse, contract.pipeline, name)
    if shapes(contract)[name].kind != "versions" or tables.opened(it) is None:
        return None
    rows = contents.load(spark, it)
    # The contract's columns may be others since.
    fitted = {
        part: columns.as_type(F.col(part), rows.schema[part].dataType, decoded.schema[part].dataType)
        for part in ("key", "value")
    }
    fixed = {"epoch": F.lit(0), "partition": F.lit(BASE), "offset": F.lit(BASE).cast("long")}
    return rows.withColumns(fitted | fixed).select(*COLUMNS)
