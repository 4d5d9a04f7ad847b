"""Whether tables are what their contract makes of the log: derived anew with Spark, and compared with what is believed.

What a gate holds back is left out: it waits for a release, or for a record that mends it. Of a kafka view it is asked
whether its table is what the records amount to that it has emitted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any, Literal

from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import horizon
from hindcast.building import amounts, topic_records
from hindcast.building.comparing import compared
from hindcast.contracts import Contract, shapes
from hindcast.contracts.sensitive import discreet, sensitive
from hindcast.corrected import derive, plane
from hindcast.delta import contents, emitted, tables
from hindcast.delta.tables import Table
from hindcast.errors import cause
from hindcast.formats.decode import decode
from hindcast.planning.inputs import located, source
from hindcast.planning.journal import Run
from hindcast.planning.plans import Plan
from hindcast.quality import holds, units
from hindcast.replay import base, logs, schemas
from hindcast.session import sized, sliced
from hindcast.upkeep.verifying.findings import Finding, rederive, restore
from hindcast.words import counted

SAMPLE = 1_000
"""About so many keys of a table are compared, unless all are asked for."""


def unanswerable(contract: Contract, runs: list[Run]) -> str | None:
    """Why tables need not be what the contract makes of the log now; None if they must."""
    if not runs:
        return "no run was planned yet"
    last = runs[-1]
    if last.state != "completed":
        return f"run {last.number} is {last.state}: the next run brings what it left"
    if last.plan["contract"] != contract.hash:
        return f"the contract was changed since run {last.number}: the next run derives the tables anew"
    return None


def trimmed(contract: Contract, name: str, last: Run) -> str | None:
    """Why what a view reads of another pipeline does not tell any more what the last run read; None if it does."""
    pins = Plan.from_json(last.plan).pins
    for it in contract.views[name].inputs if name in contract.views else ():
        at = horizon.of(source(contract, Plan.from_json(last.plan), it)) if it in pins else None
        if at is not None and pins[it] < at.at:
            return (
                f"{name} reads {it} as known at {pins[it].isoformat()}, and that was trimmed up to {at.at.isoformat()}"
            )
    return None


def check(
    spark: SparkSession, contract: Contract, name: str, found: DeltaTable, last: Run, *, whole: bool
) -> Iterator[Finding]:
    """What a topic's or view's table has otherwise than its definition: of about `SAMPLE` keys, or of the `whole`."""
    try:
        yield from _differences(spark, contract, name, found, last, whole=whole)
    except (PySparkException, Py4JJavaError) as error:  # some of the JVM's come as they are
        told = f"cannot be derived from the log: {discreet(contract, name, cause(error))}"
        mend = f"hindcast preview {contract.pipeline} tells more; schemas and contracts must be those of the last run"
        yield Finding("definition", name, told, mend)


def _differences(
    spark: SparkSession, contract: Contract, name: str, found: DeltaTable, last: Run, *, whole: bool
) -> Iterator[Finding]:
    todo, table = Plan.from_json(last.plan), located(contract, name)
    inputs = [source(contract, todo, it) for it in contract.views[name].inputs] if name in contract.views else []
    rows = tables.size(table)
    with sized(spark, max(rows, *map(tables.size, inputs), 0) if inputs else rows), sliced(spark, rows):
        derived, believed = _derived(spark, contract, todo, name), contents.believed(spark, table)
        if table.key and not whole and rows > SAMPLE:
            some = F.pmod(F.xxhash64(*map(_quoted, table.key)), F.lit(rows // SAMPLE)) == 0
            derived, believed = derived.where(some), believed.where(some)
        change = compared(table, believed, derived, horizon.frozen(table.warehouse, contract, name))
        if (held := holds.waiting(spark, table.warehouse, table.pipeline, name)) is not None:
            change = _without_held(change, held, contract, table)
        change = change.localCheckpoint()
        counts = {row["change"]: row["count"] for row in change.groupBy("change").count().collect()}
        if not counts:
            return
        sides = _sides(change, table, sensitive(contract)[name])
        mend = restore(table, found)
        mend = f"{mend}; or {rederive(contract.pipeline, name)}" if mend else rederive(contract.pipeline, name)
        more, less = counted(counts.get("close", 0), "row"), counts.get("open", 0)
        told = f"{more} that the log does not say, {less:,} that it says and the table lacks; {sides[0]}"
        yield Finding("definition", name, told, mend, *sides[1:])


def _without_held(change: DataFrame, held: DataFrame, contract: Contract, table: Table) -> DataFrame:
    """Return the rows of a change that are not held back; of records that are, a table is derived without them."""
    if units.holds_records(contract, table.name):
        return change
    own = units.with_units(change, contract, table)
    back = units.rows_held_back(own, held.select(F.coalesce("unit", "key").alias("_unit")), contract, table)
    return plane.without(change, back, [*table.identity, "change"])


def _derived(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> DataFrame:
    """The rows of a table by its definition, from the log or from its inputs as they are believed."""
    if name in contract.topics:
        topic, kafka = contract.topics[name], contract.kafka_topic(name)
        records = logs.accepted(spark, contract, name, after=0)
        decoded = logs.undisputed(decode(records, topic, writers=schemas.known(spark, contract, name)), kafka)
        decoded = topic_records.without_held(spark, contract, name, decoded)
        if topic.read == "stream":
            return derive.events(decoded)
        return derive.versions(base.united(spark, contract, name, decoded), topic.ttl)
    if contract.views[name].semantics == "kafka":
        rows = contents.load(spark, emitted.log(located(contract, name).warehouse, contract, name))
        last = rows.agg(F.max("_epoch").alias("_last"))
        of_last = rows.join(F.broadcast(last), F.col("_epoch") == F.col("_last")).drop("_last")
        return amounts.whole(of_last, shapes(contract)[name])
    inputs = {i: contents.believed(spark, source(contract, todo, i)) for i in contract.views[name].inputs}
    return derive.view(contract, name, inputs)


def _sides(change: DataFrame, table: Table, hidden: Collection[str]) -> tuple[Any, ...]:
    """What the table and the log say of the first row that differs, in words; its key, partition and offset."""
    identity = [c for c in table.identity if c in change.columns]
    first = change.select(*map(_quoted, identity)).sort(*map(_quoted, identity)).limit(1)
    rows = [row.asDict(recursive=True) for row in plane.matching(change, first, identity).collect()]
    by: dict[Literal["close", "open"], Any] = {row["change"]: row for row in rows}

    def told(row: dict[str, Any]) -> str:
        shown = {c: "***" if c in hidden else v for c, v in row.items() if not c.startswith("_") and c != "change"}
        return json.dumps(shown, default=str)

    text = f"the table: {told(by['close']) if 'close' in by else 'nothing'}"
    text += f"; the log: {told(by['open']) if 'open' in by else 'nothing'}"
    key = {c: rows[0][c] for c in table.key}
    key_told = "***" if any(c in hidden for c in table.key) else json.dumps(key, default=str)
    return text, key_told, rows[0].get("_partition"), rows[0].get("_offset")


def _quoted(name: str) -> Column:
    return F.col(f"`{name}`")
