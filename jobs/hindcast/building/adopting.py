"""The steps of an upgrade that a run makes: a table of an older store format becomes one that runs write.

    base -> name -> columns -> mark -> (what the log says besides is published) -> rewrite -> finish

Each is a commit, or finds that it was made. Until the mark a plain table is not ours; from the mark on it is read
through the proxy view (store_formats.py), by runs too. `rewrite` puts all rows in today's form, in one commit; only
then the proxy view is put away.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from hindcast.building import counted, roll_over
from hindcast.contracts import Contract, shapes
from hindcast.delta import attempts, commits, contents, making, store_formats, tables
from hindcast.delta.store_formats import OURS, PROPERTY, Older
from hindcast.delta.tables import Table
from hindcast.errors import RunError, TableError
from hindcast.planning import journal
from hindcast.planning.inputs import located
from hindcast.planning.plans import Plan
from hindcast.replay import base
from hindcast.settings import settings

REWRITE = "rewrite"
"""The part of a table's commits by which it is written anew."""

_ALWAYS = "0001-01-01T00:00:00+00:00"
"""Since when an older format's own columns are dropped: nobody is shown them."""


def ready(contract: Contract) -> None:
    """Refuses, before a run is planned, what its steps would: TableError for a table that runs cannot write.

    RunError for a kafka view of a topic with a base: it reads logs, in which the base is not.
    """
    for name, topic in contract.topics.items():
        if topic.read == "table":
            making.writable(located(contract, name))
    for name, view in contract.views.items():
        if view.semantics == "kafka":
            based = [it for it in contract.upstream(name) if _based(contract, it)]
            if based:
                raise RunError(
                    f"a kafka view reads logs, and rows of {based[0]} were adopted that no log has",
                    where=f"{contract.pipeline}.{name}",
                    mend="write it with semantics: corrected",
                )


def begin(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> None:
    """Makes the table of a topic one that runs write, if that is what the run is for."""
    if todo.upgraded != name:
        return
    table = located(contract, name)
    found = DeltaTable(table.path)
    marks = tables.marked(found)
    if marks is not None and marks["hindcast"] == tables.FORMAT:
        return
    mode = todo.upgrade["mode"]
    if marks is not None and (it := tables.older(found)) is not None:
        older = Older(it.format, it.known_at, mode)
    else:
        older = Older(todo.upgrade["from"], _known_at(contract, todo, name), mode)
        rows = spark.read.format("delta").option("versionAsOf", todo.upgrade["version"]).load(table.path)
        base.write(base.records(rows, older, shapes(contract)[name]), contract, todo, name, older)
        _unchanged(table, todo.upgrade["version"])
        own_name(table)
    add_columns(spark, table)
    mark(spark, table, older)


def end(spark: SparkSession, contract: Contract, todo: Plan, name: str, note: dict[str, Any]) -> dict[str, Any]:
    """What a run that upgrades a table does once it is published; the note of the table."""
    if todo.upgrade.get("table") != name:
        return note
    table = located(contract, name)
    if todo.upgraded:
        if tables.published(table) < todo.run:
            adopted = tables.size(table) if "version" in todo.upgrade else 0
            note = {**note, "opened": note["opened"] + adopted}
            commits.append(contents.stored(spark, table).where("false"), table, todo.run, note)
        counted.note(spark, table, todo.known_at)
    swaps = todo.upgrade["mode"] == "roll-over" and not todo.upgraded
    found = tables.opened(table)
    if found is not None and tables.older(found) is not None and (swaps or todo.upgrade["mode"] == "offline"):
        if tables.published(table, REWRITE) < todo.run:
            with roll_over.caught_up(spark, table) if swaps else nullcontext(contents.load(spark, table)) as rows:
                rewrite(rows, table, todo.run)
        finish(spark, table)
    if swaps:
        roll_over.clear(spark, table)
    return note


def own_name(table: Table) -> None:
    """The name by which we know a table, in Delta's metadata."""
    found, name = DeltaTable(table.path), f"{table.pipeline}.{table.name}"
    if found.metadata().name != name:
        try:
            found.alter.set_table_name(name)
        except (DeltaError, OSError) as error:
            raise making.unwritten(error, table.path) from None


def add_columns(spark: SparkSession, table: Table) -> None:
    """The columns of today's format that a table lacks, all null."""
    there = {field.name for field in DeltaTable(table.path).schema().fields}
    lacking = ", ".join(f"`{name}` {kind}" for name, kind in OURS.items() if name not in there)
    if lacking:
        _altered(spark, table, f"ADD COLUMNS ({lacking})")


def mark(spark: SparkSession, table: Table, older: Older) -> None:
    """One commit by which runs write a table that has rows of an older format."""
    found = DeltaTable(table.path)
    own = [name for name in store_formats.FORMATS[older.format] if name not in OURS]
    gone = {**{n: at.isoformat() for n, at in tables.dropped(found).items()}, **dict.fromkeys(own, _ALWAYS)}
    properties = {
        "comment": table.description,
        PROPERTY: older.as_json(),
        tables.EVOLUTION: json.dumps({"dropped": gone} if gone else {}),
        tables.STATISTICS: ",".join(making.sought(table, tables.spark_schema(found))),
    }
    commits.describe(spark, table, properties)


def rewrite(rows: DataFrame, table: Table, run: int) -> None:
    """One commit by which a table has only rows of today's form, laid out as today; readers see it before or after."""
    commits.rewrite(rows, table, run, {"rewritten": run}, REWRITE, ("_belief",))


def finish(spark: SparkSession, table: Table) -> None:
    """Puts the proxy view away: all rows are of today's form."""
    found = DeltaTable(table.path)
    there = {field.name for field in found.schema().fields}
    gone = {name: at.isoformat() for name, at in tables.dropped(found).items() if name in there}
    commits.describe(spark, table, {tables.EVOLUTION: json.dumps({"dropped": gone} if gone else {})})
    _altered(spark, table, f"UNSET TBLPROPERTIES IF EXISTS ('{PROPERTY}')")


def _altered(spark: SparkSession, table: Table, change: str) -> None:
    """One commit of metadata."""
    attempts.repeatable(lambda: spark.sql(f"ALTER TABLE delta.`{table.path}` {change}").collect())


def _based(contract: Contract, name: str) -> bool:
    return (
        name in contract.topics and tables.opened(base.table(settings().warehouse, contract.pipeline, name)) is not None
    )


def _known_at(contract: Contract, todo: Plan, name: str) -> datetime:
    """Since when adopted rows are believed: the run; or the one before, if the log may tell better in this one."""
    earlier = [it.known_at for it in journal.runs(settings().warehouse, contract.pipeline) if it.number < todo.run]
    logged = tables.published(tables.log(settings().warehouse, contract.pipeline, name))
    return earlier[-1] if logged and earlier else todo.known_at


def _unchanged(table: Table, version: int) -> None:
    """TableError if another hand has written to the table since the version that was adopted."""
    then, now = DeltaTable(table.path, version=version), DeltaTable(table.path)
    if {*then.file_uris()} != {*now.file_uris()}:
        raise TableError(
            f"was written to while it was adopted, after version {version}",
            where=table.path,
            mend=f"stop what writes to it; hindcast abandon {table.pipeline}, and upgrade again",
        )
