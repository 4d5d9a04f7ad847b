"""Upgrades: a table of an older store format becomes one of today's, while it is read, and while runs go on.

| mode | |
| --- | --- |
| `in-place` | a run takes the table over; then its rows get today's form where they lie, in chunks (in_place.py) |
| `roll-over` | the same run; then a table is built beside, and another run swaps it in by one commit (roll_over.py) |
| `offline` | one run takes the table over, derives it from log and base, and writes it anew in one commit |

Whatever is killed is finished by the same command: what was committed is found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast import runs
from hindcast.building import adopting, roll_over
from hindcast.contracts import Contract, shapes
from hindcast.contracts.sensitive import sensitive
from hindcast.contracts.types import column_type
from hindcast.delta import contents, in_place, making, store_formats, tables
from hindcast.delta.store_formats import Older
from hindcast.delta.tables import Table
from hindcast.errors import AskedError, TableError, UnknownError, nearest
from hindcast.planning import journal, notices
from hindcast.planning.inputs import located
from hindcast.settings import settings

MODES = ("in-place", "roll-over", "offline")

DOWNGRADED = "downgraded"
"""What the commit of a downgrade notes: the format."""

RUN = "upgrade__"
"""What the names of runs that upgrade begin with."""


def upgrade(spark: SparkSession, contract: Contract, name: str, mode: str) -> list[str]:
    """Brings a topic's table to today's store format, or goes on with that; what was done, in lines.

    AskedError for what is no topic's table; TableError for a table that cannot be read as one of an older format.
    BusyError if another run of the pipeline has not ended.
    """
    table = of_topic(contract, name)
    told, pipeline = [], contract.pipeline
    mine = [r for r in journal.runs(table.warehouse, pipeline) if r.state == "planned" and r.run_id.startswith(RUN)]
    if mine and mine[-1].plan["upgrade"]["table"] == name:
        runs.upgrade(spark, pipeline, mine[-1].run_id, mine[-1].plan["upgrade"])
        told.append(f"run {mine[-1].number}, which was left behind, is finished")
    asked = beginning(contract, table, mode)
    if asked is not None:
        if "version" in asked:
            _refuse(spark, contract, table, asked)
        done = _run(spark, contract, asked)
        told.append(f"run {done['run']}: {asked['from']} rows are read as today's, and runs go on")
        told += [f"but {other} is to be upgraded too, before runs go on" for other in _others(contract, name)]
    found = tables.opened(table)
    if found is None or tables.older(found) is None:
        return [*told, f"the store format is {store_formats.TODAY}"]
    match mode:
        case "in-place":
            with notices.post_notice(table.warehouse, pipeline, f"the upgrade of {name}"):
                rows = fill(spark, table)
            told.append(f"{rows:,} rows brought to today's form where they lie")
        case "roll-over":
            with notices.post_notice(table.warehouse, pipeline, f"the upgrade of {name}"):
                roll_over.build(spark, table)
            done = _run(spark, contract, {"table": name, "mode": mode, "step": "end"})
            told.append(f"run {done['run']}: swapped by the table that was built beside")
        case _:
            done = _run(spark, contract, {"table": name, "mode": mode, "step": "end"})
            told.append(f"run {done['run']}: written anew")
    return [*told, f"the store format is {store_formats.TODAY}"]


def fill(spark: SparkSession, table: Table) -> int:
    """Brings all rows that are left to today's form, about HINDCAST_CHUNK at a time; how many there were."""
    done = 0
    while left := in_place.pending(spark, table):
        of = -(-left // settings().chunk)
        for number in range(of):
            notices.refuse_forgetting(table.warehouse, table.pipeline, f"the upgrade of {table.name}")
            in_place.chunk(spark, table, number, of)
        done += left
    adopting.finish(spark, table)
    return done


_WRITES = ("WRITE", "MERGE", "UPDATE", "DELETE", "TRUNCATE", "CREATE OR REPLACE TABLE AS SELECT")


def of_topic(contract: Contract, name: str) -> Table:
    """The table of a topic that is read as a table; AskedError for another table, UnknownError for none."""
    if name not in contract.topics and name not in contract.views:
        raise UnknownError(f"no topic '{name}'", where=contract.pipeline, mend=nearest(name, contract.topics))
    if name in contract.views or contract.topics[name].read != "table":
        raise AskedError(
            f"'{name}' is not a topic that is read as a table: only those have store formats",
            where=contract.pipeline,
            mend="streams and views are derived anew: move an old table of theirs away, and run",
        )
    return located(contract, name)


def beginning(contract: Contract, table: Table, mode: str) -> dict[str, Any] | None:
    """What a run is asked that takes a table over (Plan.upgrade); None where that is done, or not needed.

    Of a plain table with the `version` of it that is adopted. TableError where it is none of an older format.
    """
    try:
        found = DeltaTable(table.path)
    except TableNotFoundError:
        raise AskedError("there is no table", where=table.path, mend="run the pipeline: it makes one") from None
    except (DeltaError, OSError) as error:
        raise TableError(f"cannot be read: {error}", where=table.path, mend="check the path and its rights") from None
    asked = {"table": table.name, "mode": mode, "step": "begin"}
    if tables.marked(found) is None:
        return {**asked, "from": _recognised(contract, table, found), "version": found.version()}
    tables.opened(table)
    older = tables.older(found)
    if older is None or older.mode is not None:
        return None
    if not store_formats.cut(older.format, [field.name for field in found.schema().fields]):
        return {**asked, "from": older.format}  # the downgrade was stopped before it took anything away
    _refuse_others(table, found)
    return {**asked, "from": older.format}


def _refuse_others(table: Table, found: DeltaTable) -> None:
    """TableError if another hand has written to a table since we have made it one of an older format."""
    for commit in found.history():
        if DOWNGRADED in json.loads(commit.get("userMetadata") or "{}"):
            return
        if commit["operation"] in _WRITES:
            raise TableError(
                f"was written to by another hand since its downgrade ({commit['operation']} at version "
                f"{commit['version']}): log and base do not have these rows",
                where=table.path,
                mend="send them as records to the topic, then move the table away and run; or restore the version "
                "before",
            )


def _recognised(contract: Contract, table: Table, found: DeltaTable) -> str:
    """The store format of a plain table; TableError where its rows could not be read as the topic's."""
    topic, shape = contract.topics[table.name], shapes(contract)[table.name]
    there = {field.name: _type(field.dataType.simpleString()) for field in tables.spark_schema(found).fields}
    form, wrong = store_formats.recognised(there, shape.key, shape.value)
    if found.metadata().partition_columns:
        wrong.append(f"it has partitions, by {', '.join(found.metadata().partition_columns)}")
    if found.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        wrong.append("its columns are mapped (delta.columnMapping.mode)")
    wrong += _rules(found)
    if topic.ttl is not None:
        wrong.append("the topic has a ttl: rows would end that the table has not ended")
    if wrong:
        raise TableError(
            f"cannot be adopted: {'; '.join(wrong)}",
            where=table.path,
            mend="write its rows as a Delta table with the contract's columns, and put that in its place",
        )
    kafka = [
        n for n, view in contract.views.items() if view.semantics == "kafka" and table.name in contract.upstream(n)
    ]
    if kafka:
        raise AskedError(
            f"the kafka view {kafka[0]} reads the topic's log, in which adopted rows are not",
            where=f"{contract.pipeline}.{table.name}",
            mend="write it with semantics: corrected; or move the table away and let Kafka's records tell",
        )
    return form


def _rules(found: DeltaTable) -> Iterator[str]:
    """What a plain table demands of its rows, or forbids: a later run could not write it."""
    settings, fields = found.metadata().configuration, found.schema().fields
    if settings.get("delta.appendOnly") == "true":
        yield "rows can only be added to it (delta.appendOnly)"
    checks = [name.removeprefix(_CHECK) for name in sorted(settings) if name.startswith(_CHECK)]
    if checks:
        yield f"it has constraints ({', '.join(checks)})"
    if full := [field.name for field in fields if not field.nullable]:
        yield f"columns may not be null ({', '.join(full)})"
    if computed := [field.name for field in fields if {*field.metadata} & _COMPUTED]:
        yield f"columns are computed ({', '.join(computed)})"


_CHECK = "delta.constraints."
_COMPUTED = {"delta.generationExpression", "delta.identity.start"}


def _type(kind: str) -> str:
    try:
        return column_type(kind)
    except ValueError:
        return kind


def _refuse(spark: SparkSession, contract: Contract, table: Table, asked: Mapping[str, Any]) -> None:
    """TableError for rows that no table of this format can have: the first of each kind by its key."""
    stored = spark.read.format("delta").option("versionAsOf", asked["version"]).load(table.path)
    older = Older(asked["from"], datetime.now(UTC))
    wrong = wrong_rows(contents.proxied(stored, older), table.key, older.format)
    row = wrong.groupBy("wrong").agg(F.count("*").alias("n"), F.min("shown").alias("first")).sort("wrong").collect()
    if row:
        hidden = bool(sensitive(contract)[table.name] & {*table.key})
        told = [f"{it['n']:,} {it['wrong']}" + ("" if hidden else f" (key {it['first']})") for it in row]
        raise TableError(
            f"cannot be adopted: {'; '.join(told)}",
            where=table.path,
            mend="mend these rows in the table; nothing was written",
        )


def wrong_rows(rows: DataFrame, key: tuple[str, ...], form: str) -> DataFrame:
    """The rows of a proxy view that are none: `wrong`, in words, and `shown`, the key as JSON."""
    columns = [F.col(f"`{column}`") for column in key]
    of_key = F.struct(*columns)
    absent = F.lit(True)
    for column in columns:
        absent = absent & column.isNull()
    ordered = Window.partitionBy(of_key).orderBy(F.col("validFrom"), F.col("validTo").asc_nulls_last())
    following = F.lead("validFrom").over(ordered)
    unended = F.col("_next").isNotNull() & F.coalesce(F.col("validTo") > F.col("_next"), F.lit(True))
    twice = "rows of a key that has another" if form != "versioned" else "versions that overlap the key's next"
    wrong = (
        F.when(absent, "rows without a key")
        .when(unended, twice)
        .when(F.col("validTo") <= F.col("validFrom"), "versions that end before they begin")
    )
    told = rows.withColumn("_next", following).select(wrong.alias("wrong"), F.to_json(of_key).alias("shown"))
    return told.where("wrong IS NOT NULL")


def _others(contract: Contract, name: str) -> list[str]:
    """The other topics whose tables runs cannot write: each waits for an upgrade of its own."""
    found = []
    for other, topic in contract.topics.items():
        if topic.read != "table" or other == name:
            continue
        try:
            making.writable(located(contract, other))
        except TableError:
            found.append(other)
    return found


def _run(spark: SparkSession, contract: Contract, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A run for the table alone and what is made of it; without tables that wait for their upgrade."""
    without = _others(contract, asked["table"])
    asked = {**asked, **({"without": without} if without else {})}
    return runs.upgrade(spark, contract.pipeline, journal.run_id("upgrade"), asked)
