"""The steps of an upgrade in a run: a table of an older store format becomes one that runs write.

    initial rows -> name -> columns -> mark -> (what else the log has is published) -> rewrite -> finish

Each step is a commit, skipped if it was already made. Until the mark a plain table is not one of Hindcast's; after it,
everyone including runs reads it through the proxy view (store_formats.py). `rewrite_table` converts all rows to the
current form in one commit; only then is the proxy view dropped.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from hindcast.common.errors import RunError, TableError
from hindcast.contract import list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.ingest import initial_rows
from hindcast.plan import journal
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.runs import row_counts, shadow_table
from hindcast.store import commit_once, commits, row_reader, store_formats, table_columns, table_creation, tables
from hindcast.store.commit_ids import CONVERTING
from hindcast.store.commit_notes import TableNote
from hindcast.store.store_formats import ADDED_COLUMNS, FORMAT_PROPERTY, OlderFormat
from hindcast.store.tables import Table

_ALWAYS = "0001-01-01T00:00:00+00:00"
"""The time since which an older format's own columns count as dropped, so that nobody sees them."""


def refuse_unready(contract: BoundContract) -> None:
    """Raise, before a run is planned, what its steps would raise: TableError for a table that runs cannot write.

    Raise RunError for a kafka view of a topic with adopted rows: it reads logs, which do not have these rows.
    """
    for name, topic in contract.topics.items():
        if topic.read == "table":
            table_creation.refuse_older_format(locate_own_table(contract, name))
    for name, view in contract.views.items():
        if view.semantics == "kafka":
            adopted = [source for source in contract.list_upstream(name) if _has_initial_rows(contract, source)]
            if adopted:
                raise RunError(
                    f"a kafka view reads logs, but {adopted[0]} has adopted rows that no log has",
                    where=f"{contract.pipeline}.{name}",
                    fix="write it with semantics: corrected",
                )


def refuse_downgrade(contract: BoundContract, plan: Plan, name: str) -> None:
    """Raise TableError if a downgrade has marked the table of a topic, perhaps after a run was planned."""
    is_upgrade = plan.upgrade is not None and plan.upgrade.table == name
    if name in contract.topics and contract.topics[name].read == "table" and not is_upgrade:
        table_creation.refuse_older_format(locate_own_table(contract, name))


def begin_upgrade(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> None:
    """Convert the table of a topic to one that runs write, if the run is an upgrade of it."""
    if plan.upgrade is None or plan.upgraded_table != name:
        return
    table = locate_own_table(contract, name)
    delta_table = DeltaTable(table.path)
    marks = tables.read_marks(delta_table)
    if marks is not None and marks["hindcast"] == tables.FORMAT_NUMBER:
        return
    mode = plan.upgrade.mode
    if marks is not None and (current := tables.read_older_format(delta_table)) is not None:
        older = OlderFormat(current.format, current.known_at, mode)
    else:
        older = OlderFormat(plan.upgrade.from_format or "", _adopted_known_at(contract, plan, name), mode)
        rows = spark.read.format("delta").option("versionAsOf", plan.upgrade.version).load(table.path)
        initial_rows.write_initial_rows(
            initial_rows.derive_records(rows, older, list_shapes(contract)[name]), contract, plan, name, older
        )
        _refuse_changed_table(table, plan.upgrade.version)
        set_own_name(table)
    add_columns(spark, table)
    mark_table(spark, table, older)


def end_upgrade(spark: SparkSession, contract: BoundContract, plan: Plan, name: str, note: TableNote) -> TableNote:
    """Finish the upgrade of a table once a run has published it; return the table's note."""
    if plan.upgrade is None or plan.upgrade.table != name:
        return note
    table = locate_own_table(contract, name)
    if plan.upgraded_table:
        if tables.read_last_run(table) < plan.run:
            adopted = tables.count_rows(table) if plan.upgrade.version is not None else 0
            note = replace(note, opened=note.opened + adopted)
            commits.append_rows(
                row_reader.load_stored_rows(spark, table).where("false"), table, plan.run, note.as_json()
            )
        row_counts.write_row_counts(spark, table, plan.known_at)
    swaps = plan.upgrade.mode == "roll-over" and not plan.upgraded_table
    delta_table = tables.open_table(table)
    if (
        delta_table is not None
        and tables.read_older_format(delta_table) is not None
        and (swaps or plan.upgrade.mode == "offline")
    ):
        if tables.read_last_run(table, CONVERTING) < plan.run:
            after = tables.read_last_run(table)
            with (
                shadow_table.catch_up_shadow(spark, table)
                if swaps
                else nullcontext(row_reader.load_rows(spark, table)) as rows
            ):
                rewrite_table(rows, table, plan.run, after)
        drop_proxy_view(spark, table)
    if swaps:
        shadow_table.clear_shadow(spark, table)
    return note


def set_own_name(table: Table) -> None:
    """Set the name `pipeline.table` in Delta's metadata, if it is another one."""
    delta_table, name = DeltaTable(table.path), f"{table.pipeline}.{table.name}"
    if delta_table.metadata().name != name:
        try:
            delta_table.alter.set_table_name(name)
        except (DeltaError, OSError) as error:
            raise table_creation.explain_write_error(error, table.path) from None


def add_columns(spark: SparkSession, table: Table) -> None:
    """Add the columns of the current store format that a table lacks, all null."""
    existing = {field.name for field in DeltaTable(table.path).schema().fields}
    missing = ", ".join(f"`{name}` {kind}" for name, kind in ADDED_COLUMNS.items() if name not in existing)
    if missing:
        _alter_table(spark, table, f"ADD COLUMNS ({missing})")


def mark_table(spark: SparkSession, table: Table, older: OlderFormat) -> None:
    """Commit the table properties by which runs write a table that has rows of an older format."""
    delta_table = DeltaTable(table.path)
    own = [name for name in store_formats.FORMATS[older.format] if name not in ADDED_COLUMNS]
    dropped = {
        **{n: at.isoformat() for n, at in table_columns.read_dropped_columns(delta_table).items()},
        **dict.fromkeys(own, _ALWAYS),
    }
    properties = {
        "comment": table.description,
        FORMAT_PROPERTY: older.as_json(),
        tables.EVOLUTION: json.dumps({"dropped": dropped} if dropped else {}),
        tables.STATISTICS: ",".join(table_creation.statistics_columns(table, table_columns.spark_schema(delta_table))),
    }
    commits.set_properties(spark, table, properties)


def rewrite_table(rows: DataFrame, table: Table, run: int, after: int) -> None:
    """Replace all rows of a table by `rows`, which have the current form, as `commits.rewrite_table` does."""
    commits.rewrite_table(rows, table, run, {"rewritten": run}, CONVERTING, ("_belief",), after)


def drop_proxy_view(spark: SparkSession, table: Table) -> None:
    """Drop the proxy view of a table, all rows of which have the current form."""
    delta_table = DeltaTable(table.path)
    existing = {field.name for field in delta_table.schema().fields}
    dropped = {
        name: at.isoformat() for name, at in table_columns.read_dropped_columns(delta_table).items() if name in existing
    }
    commits.set_properties(spark, table, {tables.EVOLUTION: json.dumps({"dropped": dropped} if dropped else {})})
    _alter_table(spark, table, f"UNSET TBLPROPERTIES IF EXISTS ('{FORMAT_PROPERTY}')")


def _alter_table(spark: SparkSession, table: Table, change: str) -> None:
    """Commit a change of a table's metadata."""
    commit_once.commit_repeatable(lambda: spark.sql(f"ALTER TABLE delta.`{table.path}` {change}").collect())


def _has_initial_rows(contract: BoundContract, name: str) -> bool:
    return (
        name in contract.topics
        and tables.open_table(initial_rows.initial_rows_table(contract.warehouse, contract.pipeline, name)) is not None
    )


def _adopted_known_at(contract: BoundContract, plan: Plan, name: str) -> datetime:
    """Return the known-at of adopted rows: that of the run, or of the run before if the topic already has a log."""
    warehouse, pipeline = contract.warehouse, contract.pipeline
    earlier = [run.known_at for run in journal.read_runs(warehouse, pipeline) if run.number < plan.run]
    logged = tables.read_last_run(tables.log_table(warehouse, pipeline, name))
    return earlier[-1] if logged and earlier else plan.known_at


def _refuse_changed_table(table: Table, version: int | None) -> None:
    """Raise TableError if the files of a table have changed since the version that was adopted."""
    then, current = DeltaTable(table.path, version=version), DeltaTable(table.path)
    if {*then.file_uris()} != {*current.file_uris()}:
        raise TableError(
            f"was written to while it was adopted, after version {version}",
            where=table.path,
            fix=f"stop what writes to it; hindcast abandon {table.pipeline}, and upgrade again",
        )
