"""Upgrade a table of an older store format to today's, while it is read and runs go on.

| mode | |
| --- | --- |
| `in-place` | a run takes the table over; then its rows are migrated in place, in chunks (lazy_migration.py) |
| `roll-over` | the same run; then a table is built beside it, and another run swaps it in (shadow_table.py) |
| `offline` | one run takes the table over, derives it from log and base, and rewrites it in one commit |

The same command finishes what was killed: it finds what was committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast.common.errors import RequestError, TableError, UnknownError, suggest_nearest
from hindcast.contract import Contract, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.contract.types import parse_column_type
from hindcast.plan import journal, notices
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.purposes import Upgrade, UpgradeMode
from hindcast.report.run_report import RunReport
from hindcast.runs import shadow_table, special_runs, store_migration
from hindcast.store import (
    delta_log,
    file_listing,
    lazy_migration,
    own_files,
    row_reader,
    store_formats,
    table_columns,
    table_creation,
    table_metadata,
    tables,
)
from hindcast.store.commit_notes import parse_note
from hindcast.store.store_formats import OlderFormat
from hindcast.store.tables import Table

MODES = ("in-place", "roll-over", "offline")

DOWNGRADE_NOTE = "downgraded"
"""The field in the note of a downgrade's commit that has the format."""

RUN_PREFIX = "upgrade__"
"""The prefix of the names of runs that upgrade."""


def upgrade_table(spark: SparkSession, contract: BoundContract, name: str, mode: UpgradeMode) -> list[str]:
    """Upgrade a topic's table to today's store format, or go on with that; return what was done, as lines.

    Raises RequestError for a table that is not a topic's; TableError for one that cannot be read as one of an older
    format; BusyError if another run of the pipeline has not ended.
    """
    table = locate_topic_table(contract, name)
    lines, pipeline = [], contract.pipeline
    own_runs = [
        r
        for r in journal.read_runs(table.warehouse, pipeline)
        if r.state == "planned" and r.run_id.startswith(RUN_PREFIX)
    ]
    if own_runs and (own := own_runs[-1].plan.upgrade) is not None and own.table == name:
        if own.mode == "roll-over" and own.step == "end":
            _build_shadow(spark, contract, table)  # it was cleared if the run found other rows in it
        special_runs.run_upgrade(spark, contract.settings, pipeline, own_runs[-1].run_id, own)
        lines.append(f"finished run {own_runs[-1].number}, which an earlier upgrade left open")
    takeover = plan_takeover(contract, table, mode)
    if takeover is not None:
        if takeover.version is not None:
            _refuse_wrong_rows(spark, contract, table, takeover)
        result = _run_upgrade(spark, contract, takeover)
        lines.append(f"run {result.run}: {takeover.from_format} rows are now read as today's, and runs go on")
        lines += [
            f"but {other} has to be upgraded too, before runs go on" for other in _list_waiting_topics(contract, name)
        ]
    delta_table = tables.open_table(table)
    if delta_table is None or tables.read_older_format(delta_table) is None:
        return [*lines, f"the store format is {store_formats.CURRENT_FORMAT}"]
    match mode:
        case "in-place":
            with notices.post_notice(table.warehouse, pipeline, f"the upgrade of {name}"):
                rows = migrate_rows(spark, table, contract.settings.chunk)
            lines.append(f"{rows:,} rows migrated in place")
        case "roll-over":
            _build_shadow(spark, contract, table)
            result = _run_upgrade(spark, contract, Upgrade(name, mode, "end"))
            lines.append(f"run {result.run}: replaced by the table that was built beside it")
        case _:
            result = _run_upgrade(spark, contract, Upgrade(name, mode, "end"))
            lines.append(f"run {result.run}: rewritten")
    return [*lines, f"the store format is {store_formats.CURRENT_FORMAT}"]


def _build_shadow(spark: SparkSession, contract: BoundContract, table: Table) -> None:
    with notices.post_notice(table.warehouse, table.pipeline, f"the upgrade of {table.name}"):
        shadow_table.build_shadow(spark, table, contract.settings.chunk)


def migrate_rows(spark: SparkSession, table: Table, chunk_rows: int) -> int:
    """Migrate all rows that are left to today's format, about `chunk_rows` at a time; return how many there were."""
    done = 0
    while pending := lazy_migration.count_pending_rows(spark, table):
        chunks = -(-pending // chunk_rows)
        for number in range(chunks):
            notices.refuse_forgetting(table.warehouse, table.pipeline, f"the upgrade of {table.name}")
            lazy_migration.migrate_chunk(spark, table, number, chunks)
        done += pending
    store_migration.drop_proxy_view(spark, table)
    return done


_WRITE_OPERATIONS = ("WRITE", "MERGE", "UPDATE", "DELETE", "TRUNCATE", "CREATE OR REPLACE TABLE AS SELECT")


def locate_topic_table(contract: BoundContract, name: str) -> Table:
    """Return the table of a topic that is read as a table; raise RequestError for another, UnknownError for none."""
    if name not in contract.topics and name not in contract.views:
        raise UnknownError(f"no topic '{name}'", where=contract.pipeline, fix=suggest_nearest(name, contract.topics))
    if name in contract.views or contract.topics[name].read != "table":
        raise RequestError(
            f"'{name}' is not a topic that is read as a table: only these have store formats",
            where=contract.pipeline,
            fix="streams and views can be derived again: move their old table away, and run",
        )
    return locate_own_table(contract, name)


def plan_takeover(contract: Contract, table: Table, mode: UpgradeMode) -> Upgrade | None:
    """Return the purpose of a run that takes a table over; None if that is done, or not necessary.

    For a plain table that includes the `version` that is adopted. Raises TableError if it has no older format.
    """
    try:
        delta_table = DeltaTable(table.path)
    except TableNotFoundError:
        raise RequestError("there is no table", where=table.path, fix="run the pipeline: it creates one") from None
    except (DeltaError, OSError) as error:
        raise TableError(f"cannot be read: {error}", where=table.path, fix="check the path and its rights") from None
    takeover = Upgrade(table.name, mode, "begin")
    if tables.read_marks(delta_table) is None:
        older = _recognise_format(contract, table, delta_table)
        return replace(takeover, from_format=older, version=delta_table.version())
    tables.open_table(table)
    older_format = tables.read_older_format(delta_table)
    if older_format is None or older_format.mode is not None:
        return None
    if not store_formats.is_within_format(older_format.format, [field.name for field in delta_table.schema().fields]):
        return replace(
            takeover, from_format=older_format.format
        )  # the downgrade was stopped before it removed anything
    _refuse_foreign_writes(table, delta_table)
    return replace(takeover, from_format=older_format.format)


def _refuse_foreign_writes(table: Table, delta_table: DeltaTable) -> None:
    """Raise TableError if somebody else has written to a table since its downgrade."""
    for commit in delta_log.list_commits(delta_table):
        if DOWNGRADE_NOTE in parse_note(commit):
            return
        if commit["operation"] in _WRITE_OPERATIONS:
            raise TableError(
                f"was written to by others since its downgrade ({commit['operation']} at version "
                f"{commit['version']}): log and base do not have these rows",
                where=table.path,
                fix="send them as records to the topic, then move the table away and run; or restore the version "
                "before",
            )


def _recognise_format(contract: Contract, table: Table, delta_table: DeltaTable) -> str:
    """Return the store format of a plain table; raise TableError if its rows cannot be read as the topic's."""
    if file_listing.has_files_elsewhere(delta_table):
        raise TableError(
            "cannot be adopted: it has files of another table, as a shallow clone has",
            where=table.path,
            fix="copy that table (DEEP CLONE, or CREATE TABLE AS SELECT) and put the copy in its place; "
            "nothing was written",
        )
    if "://" not in table.path:
        own_files.refuse_odd_log(Path(table.path))
    topic, shape = contract.topics[table.name], list_shapes(contract)[table.name]
    fields = table_columns.spark_schema(delta_table).fields
    types = {field.name: _normalise_type(field.dataType.simpleString()) for field in fields}
    store_format, problems = store_formats.recognise_format(types, shape.key, shape.value)
    if delta_table.metadata().partition_columns:
        problems.append(f"it has partitions, by {', '.join(delta_table.metadata().partition_columns)}")
    if table_metadata.find_mapping(delta_table) is not None:
        problems.append(f"its columns are mapped ({table_metadata.MAPPING})")
    problems += _list_constraints(delta_table)
    if topic.ttl is not None:
        problems.append("the topic has a ttl: it would end rows that the table has not ended")
    if problems:
        raise TableError(
            f"cannot be adopted: {'; '.join(problems)}",
            where=table.path,
            fix="write its rows to a Delta table with the contract's columns, and put that in its place",
        )
    kafka = [
        n for n, view in contract.views.items() if view.semantics == "kafka" and table.name in contract.list_upstream(n)
    ]
    if kafka:
        raise RequestError(
            f"the kafka view {kafka[0]} reads the topic's log, which does not have adopted rows",
            where=f"{contract.pipeline}.{table.name}",
            fix="use semantics: corrected; or move the table away and replay Kafka's records",
        )
    return store_format


def _list_constraints(delta_table: DeltaTable) -> Iterator[str]:
    """Yield what a plain table demands of its rows, or forbids: a later run could not write it."""
    properties, fields = delta_table.metadata().configuration, delta_table.schema().fields
    if properties.get("delta.appendOnly") == "true":
        yield "rows can only be added to it (delta.appendOnly)"
    yield from table_metadata.list_table_risks(delta_table)
    if required := [field.name for field in fields if not field.nullable]:
        yield f"columns may not be null ({', '.join(required)})"


def _normalise_type(kind: str) -> str:
    try:
        return parse_column_type(kind)
    except ValueError:
        return kind


def _refuse_wrong_rows(spark: SparkSession, contract: Contract, table: Table, takeover: Upgrade) -> None:
    """Raise TableError for rows that no table of this format can have, with the first key of each kind."""
    stored = spark.read.format("delta").option("versionAsOf", takeover.version).load(table.path)
    older = OlderFormat(takeover.from_format or "", datetime.now(UTC))
    wrong = find_wrong_rows(row_reader.convert_older_rows(stored, older), table.key, older.format)
    kinds = wrong.groupBy("wrong").agg(F.count("*").alias("n"), F.min("shown").alias("first")).sort("wrong")
    counts = kinds.collect()
    if counts:
        hidden = bool(find_sensitive_columns(contract)[table.name] & {*table.key})
        problems = [f"{row['n']:,} {row['wrong']}" + ("" if hidden else f" (key {row['first']})") for row in counts]
        raise TableError(
            f"cannot be adopted: {'; '.join(problems)}",
            where=table.path,
            fix="fix these rows in the table; nothing was written",
        )


def find_wrong_rows(rows: DataFrame, key: tuple[str, ...], store_format: str) -> DataFrame:
    """Return the invalid rows of a proxy view: `wrong`, in words, and `shown`, the key as JSON."""
    columns = [F.col(f"`{column}`") for column in key]
    of_key = F.struct(*columns)
    absent = F.lit(True)
    for column in columns:
        absent = absent & column.isNull()
    ordered = Window.partitionBy(of_key).orderBy(F.col("validFrom"), F.col("validTo").asc_nulls_last())
    next_start = F.lead("validFrom").over(ordered)
    unended = F.col("_next").isNotNull() & F.coalesce(F.col("validTo") > F.col("_next"), F.lit(True))
    twice = "rows of a key that has another" if store_format != "versioned" else "versions that overlap the key's next"
    wrong = (
        F.when(absent, "rows without a key")
        .when(unended, twice)
        .when(F.col("validTo") <= F.col("validFrom"), "versions that end before they begin")
    )
    judged = rows.withColumn("_next", next_start).select(wrong.alias("wrong"), F.to_json(of_key).alias("shown"))
    return judged.where("wrong IS NOT NULL")


def _list_waiting_topics(contract: BoundContract, name: str) -> list[str]:
    """Return the other topics whose tables runs cannot write: each needs an upgrade of its own."""
    waiting = []
    for other, topic in contract.topics.items():
        if topic.read != "table" or other == name:
            continue
        try:
            table_creation.refuse_older_format(locate_own_table(contract, other))
        except TableError:
            waiting.append(other)
    return waiting


def _run_upgrade(spark: SparkSession, contract: BoundContract, request: Upgrade) -> RunReport:
    """Run the upgrade for the table and what is made of it, without tables that wait for theirs; return the report."""
    request = replace(request, without=tuple(_list_waiting_topics(contract, request.table)))
    return special_runs.run_upgrade(spark, contract.settings, contract.pipeline, journal.new_run_id("upgrade"), request)
