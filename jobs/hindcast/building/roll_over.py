"""Building a table of today's store format beside one of an older format, while runs go on with that one.

`rollover/<table>` gets the rows of one version of the table, as the proxy view shows them, in chunks that a retry goes
on after. Then a run puts them in the table's place (`caught_up`): the rows that were built, and of the keys that runs
have changed meanwhile those of the table. Both sides are compared before that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.delta import commits, contents, making, tables, widened
from hindcast.delta.tables import Table
from hindcast.errors import TableError
from hindcast.planning import journal, notices
from hindcast.settings import settings

BUILD = "hindcast.rollover"
"""The table property of one that is built beside another, JSON: of which `version`, `knownAt`; its chunks from `after`
on, `chunks` of them.
"""


def beside(table: Table) -> Table:
    """Where the new table is built."""
    return Table(table.warehouse, table.pipeline, f"rollover/{table.name}", table.kind, table.key, widens=table.widens)


def build(spark: SparkSession, table: Table) -> None:
    """Builds the new table, or goes on where that was left; a commit for about HINDCAST_CHUNK rows each.

    If VACUUM has taken the version that it was built from, it begins anew from the one there is.
    """
    new, found = beside(table), tables.opened(table)
    if found is None or (older := tables.older(found)) is None:
        return
    told = _begun(new)
    if told is None or not _readable(table, told["version"]):
        told = _begin(spark, table, new)
    version = spark.read.format("delta").option("versionAsOf", told["version"]).load(table.path)
    rows = contents.proxied(version, older)
    share = F.pmod(F.xxhash64(*(F.col(f"`{column}`") for column in table.key)), F.lit(told["chunks"]))
    for number in range(told["chunks"]):
        notices.refuse_forgetting(table.warehouse, table.pipeline, f"the upgrade of {table.name}")
        chunk(rows.where(share == number), new, told["after"] + number + 1)


def chunk(rows: DataFrame, new: Table, number: int) -> None:
    """One commit of a table that is built; nothing if it was made before."""
    if tables.published(new) < number:
        commits.append(rows, new, number, {"run": number})


@contextmanager
def caught_up(spark: SparkSession, table: Table) -> Iterator[DataFrame]:
    """The rows to put in a table's place: those that were built, brought up to what runs have changed since.

    TableError if they are not what the table answers now.
    """
    new = beside(table)
    told = _begun(new)
    if told is None or tables.published(new) < told["after"] + told["chunks"]:
        raise TableError("the new table has not been built yet", where=new.path, mend="hindcast upgrade builds it")
    now, since = contents.load(spark, table), F.lit(datetime.fromisoformat(told["knownAt"]))
    key = F.struct(*(F.col(f"`{column}`") for column in table.key))
    touched = (
        now.where((F.col("systemFrom") > since) | (F.col("systemTo") > since)).select(key.alias("_key")).distinct()
    )
    built = contents.stored(spark, new).join(touched, key == F.col("_key"), "left_anti")
    rows = built.unionByName(now.join(touched, key == F.col("_key"), "left_semi"), allowMissingColumns=True).persist()
    try:
        there, here = (_sum(side.select(*now.columns)) for side in (now, rows))
        if there != here:
            raise TableError(
                f"the table that was built has {here[0]:,} rows, the table answers with {there[0]:,}; or they differ",
                where=new.path,
                mend="nothing was swapped: hindcast upgrade builds it anew" if _cleared(spark, new) else "",
            )
        yield rows
    finally:
        rows.unpersist()


def clear(spark: SparkSession, table: Table) -> None:
    """Empties the table that was built: another one begins anew."""
    if tables.opened(beside(table)) is not None:
        _cleared(spark, beside(table))


def _begin(spark: SparkSession, table: Table, new: Table) -> dict[str, Any]:
    """Fixes what is built: of which version, in how many chunks."""
    found = DeltaTable(table.path)
    runs = [run.known_at for run in journal.runs(table.warehouse, table.pipeline) if run.finished]
    rows = contents.load(spark, table)
    made = making.ensure(new, making.nullable(rows.schema))
    _cleared(spark, new)
    told = {
        "version": found.version(),
        "knownAt": max(runs, default=datetime.min.replace(tzinfo=UTC)).isoformat(),
        "chunks": max(1, -(-tables.size(table) // settings().chunk)),
        "after": tables.published(new),
    }
    _noted(DeltaTable(made.table_uri), new, told)
    return told


def _readable(table: Table, version: int) -> bool:
    """Whether all files of a version are still there: VACUUM removes those that later versions do not have."""
    try:
        then = DeltaTable(table.path, version=version)
    except (DeltaError, OSError):
        return False
    found = widened.files(then).get_file_info(widened.paths(then))
    return all(info.type != FileType.NotFound for info in found)


def _begun(new: Table) -> dict[str, Any] | None:
    """What `_begin` fixed; None if nothing is being built."""
    found = tables.opened(new)
    told = json.loads(found.metadata().configuration.get(BUILD, "{}")) if found is not None else {}
    return told or None


def _cleared(spark: SparkSession, new: Table) -> bool:
    found = tables.opened(new)
    if found is not None:
        _noted(found, new, {})
        spark.sql(f"DELETE FROM delta.`{new.path}`").collect()  # noqa: S608  # a path of ours
    return True


def _noted(found: DeltaTable, new: Table, told: dict[str, Any]) -> None:
    try:
        found.alter.set_table_properties({BUILD: json.dumps(told)}, raise_if_not_exists=False)
    except (DeltaError, OSError) as error:
        raise making.unwritten(error, new.path) from None


def _sum(rows: DataFrame) -> tuple[int, int]:
    """How many rows, and a sum that tells them from others, in whatever order."""
    # Decimals: a sum of hashes as long integers would wrap round, or fail.
    hashed = F.sum(F.xxhash64(*(F.col(f"`{column}`") for column in rows.columns)).cast("decimal(20,0)"))
    row = rows.agg(F.count("*").alias("n"), F.coalesce(hashed, F.lit(0)).alias("sum")).first()
    return (row["n"], int(row["sum"])) if row else (0, 0)
