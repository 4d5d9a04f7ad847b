"""Check that tables match their contract: derive them from the log with Spark, and compare with the current rows.

What a gate holds back is left out: it waits for a release, or for a record that fixes it. Of a kafka view only the
table is compared, with what the emitted records amount to.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import plane
from hindcast.common.errors import describe_cause
from hindcast.common.plurals import format_count
from hindcast.common.python_values import list_rows
from hindcast.common.session import fit_to_rows, slice_large_keys
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.sensitive import redact_message
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import initial_rows, schemas, topic_log
from hindcast.ops.verify.findings import Finding, rederive_command, restore_command
from hindcast.plan import horizon, marks
from hindcast.plan.inputs import locate_own_table, locate_source_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.quality import held_changes, held_units
from hindcast.query.key_history import find_cell
from hindcast.runs import derive_whole, emission, topic_records
from hindcast.runs.table_diff import diff_current_rows
from hindcast.store import row_reader, tables
from hindcast.store.tables import Table
from hindcast.store.task_rows import collect_table

SAMPLE_SIZE = 1_000
"""The approximate number of keys of a table that are compared, unless all are."""


def describe_obstacle(contract: Contract, runs: list[Run]) -> str | None:
    """Return why tables may differ now from what the contract makes of the log; None if they may not."""
    if not runs:
        return "no run has been planned yet"
    last = runs[-1]
    if last.state != "completed":
        return f"run {last.number} is {last.state}: the next run finishes what it left"
    if last.plan.contract != contract.hash:
        changed = f"the contract, or a variable of it (--var), was changed since run {last.number}"
        return f"{changed}: the next run derives the tables again"
    return None


def describe_trimmed_input(contract: BoundContract, name: str, last: Run) -> str | None:
    """Return why the inputs of a view from other pipelines are no longer what the last run read; None if they are."""
    as_of = last.plan.as_of_system_times
    for source in contract.views[name].inputs if name in contract.views else ():
        if source not in as_of:
            continue
        trimmed = horizon.read_horizon(locate_source_table(contract, last.plan, source))
        if trimmed is not None and as_of[source] < trimmed.moment:
            known_at, until = as_of[source].isoformat(), trimmed.moment.isoformat()
            return f"{name} reads {source} as known at {known_at}, and that was trimmed up to {until}"
    return None


def check_definition(
    spark: SparkSession, contract: BoundContract, name: str, delta_table: DeltaTable, last: Run, *, whole: bool
) -> Iterator[Finding]:
    """Yield how the table of a topic or view differs from its definition.

    About `SAMPLE_SIZE` keys are compared, or with `whole` all of them.
    """
    try:
        yield from _find_differences(spark, contract, name, delta_table, last, whole=whole)
    except (PySparkException, Py4JJavaError) as error:  # some of the JVM's are not converted
        text = f"cannot be derived from the log: {redact_message(contract, name, describe_cause(error))}"
        fix = f"hindcast preview {contract.pipeline} shows more; schemas and contracts must be those of the last run"
        yield Finding("definition", name, text, fix)


def _find_differences(
    spark: SparkSession, contract: BoundContract, name: str, delta_table: DeltaTable, last: Run, *, whole: bool
) -> Iterator[Finding]:
    plan, table = last.plan, locate_own_table(contract, name)
    sources = contract.views[name].inputs if name in contract.views else ()
    inputs = [locate_source_table(contract, plan, source) for source in sources]
    rows = tables.count_rows(table)
    with (
        fit_to_rows(spark, max(rows, *map(tables.count_rows, inputs), 0) if inputs else rows),
        slice_large_keys(spark, rows),
    ):
        derived, current = _derive_rows(spark, contract, plan, name), row_reader.load_current_rows(spark, table)
        held = held_changes.read_held_units(spark, table.warehouse, table.pipeline, name)
        sampled = F.lit(True)
        if table.key and not whole and rows > SAMPLE_SIZE:
            sampled = F.pmod(F.xxhash64(*map(_quoted_column, table.key)), F.lit(rows // SAMPLE_SIZE)) == 0
        if held is None or table.kind not in held_units.KINDS_WITH_EVENTS:  # else an event's rows have several keys
            derived, current = derived.where(sampled), current.where(sampled)
        change = diff_current_rows(table, current, derived, horizon.find_frozen_until(table.warehouse, contract, name))
        if held is not None:
            change = _exclude_held(change, held, contract, table).where(sampled)
        change = change.localCheckpoint()
        counts = {row["_change"]: row["count"] for row in change.groupBy("_change").count().collect()}
        if not counts:
            return
        hidden = marks.find_marked_columns(contract.settings, contract, [name])[name]
        first = _describe_first_row(change, table, hidden)
        fix = "; or ".join(
            filter(None, [restore_command(table, delta_table), rederive_command(contract.pipeline, name)])
        )
        more, less = format_count(counts.get("close", 0), "row"), counts.get("open", 0)
        text = f"{more} that the log does not have, {less:,} that it has and the table lacks; {first.sides}"
        yield Finding("definition", name, text, fix, first.key, first.partition, first.offset)


def _exclude_held(change: DataFrame, held: DataFrame, contract: Contract, table: Table) -> DataFrame:
    """Return the rows of a change that are not held back; tables with held records are derived without them."""
    if held_units.has_record_hold(contract, table.name):
        return change
    own = held_units.add_units(change, contract, table)
    back = held_units.select_held_rows(own, held.select(F.coalesce("unit", "key").alias("_unit")), table)
    return plane.drop_matching_rows(change, back, [*table.identity, "_change"])


def _derive_rows(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> DataFrame:
    """Return the rows of a table by its definition, from the log or from the current rows of its inputs."""
    if name in contract.topics:
        topic, kafka = contract.topics[name], contract.kafka_topic(name)
        records = topic_log.read_accepted(spark, contract, name, after=0)
        decoded = topic_log.refuse_undecodable(
            decode_records(records, topic, writers=schemas.read_schemas(spark, contract, name)), kafka
        )
        decoded = topic_records.exclude_held(spark, contract, name, decoded)
        if topic.read == "table":
            decoded = initial_rows.add_initial_rows(spark, contract, name, decoded)
        return derive_whole.derive_topic_rows(topic, decoded)
    if contract.views[name].semantics == "kafka":
        return derive_whole.derive_view_rows(contract, name, {}, emission.read_epoch(spark, contract, plan, name))
    inputs = {
        i: row_reader.load_current_rows(spark, locate_source_table(contract, plan, i))
        for i in contract.views[name].inputs
    }
    return derive_whole.derive_view_rows(contract, name, inputs, None)


class _DifferingRow(NamedTuple):
    """What table and log have for a row, in words; its key (JSON), and the place of its record."""

    sides: str
    key: str
    partition: int | None
    offset: int | None


def _describe_first_row(change: DataFrame, table: Table, hidden: Collection[str]) -> _DifferingRow:
    """Return the first row that differs."""
    identity = [c for c in table.identity if c in change.columns]
    first = change.select(*map(_quoted_column, identity)).sort(*map(_quoted_column, identity)).limit(1)
    rows = list_rows(collect_table(plane.keep_matching_rows(change, first, identity)))
    sides = {"close": "nothing", "open": "nothing"}
    for row in rows:
        shown = {c: "***" if c in hidden else v for c, v in row.items() if not c.startswith("_")}
        sides[str(row["_change"])] = json.dumps(shown, default=str)
    key = {c: rows[0][c] for c in table.key}
    key_text = "***" if any(c in hidden for c in table.key) else json.dumps(key, default=str)
    text = f"the table: {sides['close']}; the log: {sides['open']}"
    return _DifferingRow(text, key_text, find_cell(rows[0], "_partition", int), find_cell(rows[0], "_offset", int))


def _quoted_column(name: str) -> Column:
    return F.col(f"`{name}`")
