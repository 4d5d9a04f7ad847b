"""What a run would change, said before anything is written: which past answers, how old they are, and examples.

A preview derives every table whole, from the log and from what Kafka has for it now, and compares that with what is
believed. It writes nothing, claims nothing, and is in nobody's way: no run has to wait for it. All tables are read as
they were when it began, also while a run commits to them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import horizon, show
from hindcast.building import (
    amounts,
    analysis,
    emitting,
    failures,
    inventory,
    tally,
    tie_counts,
    topic_records,
    widening,
)
from hindcast.building.comparing import compared, table_schema
from hindcast.building.topic_records import TopicRecords
from hindcast.contracts import Contract, Topic, complain, find, shapes
from hindcast.contracts.definition import list_fields
from hindcast.contracts.sensitive import sensitive
from hindcast.contracts.shapes import PERIODS
from hindcast.corrected import derive, ties
from hindcast.corrected.plane import without
from hindcast.delta import contents, evolution, making, pinning, tables
from hindcast.delta.tables import Table
from hindcast.errors import RecordError, escape_controls
from hindcast.formats.decode import decode
from hindcast.kafka import members
from hindcast.planning import definitions, inputs, journal, planner
from hindcast.planning.inputs import located
from hindcast.planning.plans import Plan
from hindcast.quality import holding, units
from hindcast.quality.candidates import Candidate
from hindcast.quality.expectations import named
from hindcast.quality.holding import Judged
from hindcast.quality.row_holds import Records
from hindcast.replay import base, logs, schemas
from hindcast.reports import report
from hindcast.session import sized
from hindcast.settings import settings
from hindcast.words import counted, listed

EXAMPLES = 3
"""Of so many keys the changed rows are shown."""


def preview(
    spark: SparkSession, pipeline: str, interval_end: datetime | None = None, only: str | None = None
) -> dict[str, Any]:
    """What a run up to `interval_end` (UTC; without it: of everything there is) would change, by table; or one that is
    about `only` one (planner.proposed).

    Of each table: rows it would open, close, and how many of those are past answers (`corrected`), by age in `ages`;
    `examples`, rows with `change`, before (close) and after (open); the verdicts of its `gates`. What changes of keys
    that quarantine gates would hold back (`held`: how many) is not among it, nor in what is made of the table. Of each
    topic: the `offsets` that it would bring, the `fates` of its records, and under `stops` why the run would stop, null
    if it would not: more are malformed than may be; `ties` where there are any. All else is told as if they were let
    pass. `underWay`: the run that had not ended when the preview began, with its `run` and `runId`; null if none.
    `contract`: what has changed in it since the last run (definitions.py); null if nothing has.

    Raises what the run would: ContractError for an expression that Spark refuses or that fails on a record, and for a
    column that must not be widened, TableError for other columns, RecordError for a record of the log that does not
    decode any more.
    """
    warehouse, contract = settings().warehouse, find(settings().schemas, pipeline)
    with pinning.pin_versions(lambda: _open_tables(warehouse, contract)):
        return _preview_pinned(spark, contract, interval_end, only)


def _open_tables(warehouse: str, contract: Contract) -> None:
    """Open every table that a preview can read: the pipeline's own, its inputs and the journals of theirs."""
    for table in inventory.every(warehouse, contract):
        tables.opened(table)
    for name in contract.inputs:
        table = inputs.table(warehouse, contract, name)
        tables.opened(table)
        tables.opened(journal.table(warehouse, table.pipeline))


def _preview_pinned(
    spark: SparkSession, contract: Contract, interval_end: datetime | None, only: str | None
) -> dict[str, Any]:
    """Return what `preview` does, in a block in which no table changes."""
    now, pipeline = settings(), contract.pipeline
    for complaint in widening.find_complaints(now.warehouse, contract):
        raise complain(now.schemas, pipeline, complaint)
    past = journal.runs(now.warehouse, pipeline)
    todo = planner.proposed(now.warehouse, now.kafka, contract, "preview", interval_end, past, only)
    candidates: dict[str, DataFrame] = {}
    emitted: dict[str, DataFrame] = {}
    topics: dict[str, Any] = {}
    told: dict[str, Any] = {}
    stored = sum(tables.size(tables.located(now.warehouse, contract, name)) for name in contract.topics)
    planned = sum(sum(share.planned.values()) for share in todo.topics.values())
    with sized(spark, stored + planned):
        for name, pin in todo.pins.items():
            candidates[name] = contents.believed(spark, inputs.table(now.warehouse, contract, name, pin)).persist()
        for name in (*contract.topics, *contract.ordered):
            records: TopicRecords | None = None
            tied: DataFrame | None = None
            if not todo.concerns(contract, name):
                candidates[name] = contents.believed(spark, located(contract, name)).persist()
                continue
            line = analysis.told(now.schemas, contract, name) if name in contract.views else nullcontext()
            with failures.told(contract, name), line:
                if name in contract.topics:
                    analysis.check_valid_time(spark, now.schemas, contract, name)
                    new = logs.to_come(spark, contract, todo, name)
                    topics[name] = _fates(contract, todo, name, new)
                    records = _records(spark, contract, todo, name, new.where("fate = 'accepted'"))
                    every = records.all()
                    candidates[name] = _of_topic(contract.topics[name], every).persist()
                    tied = _ties(contract, todo, name, every, records)
                else:
                    candidates[name] = _of_view(spark, contract, todo, name, candidates, emitted).persist()
                told[name], left = _difference(spark, contract, todo, name, candidates, records, tied)
                if left:
                    topics[name]["ties"] = left
        for candidate in candidates.values():
            candidate.unpersist()
    end = interval_end.isoformat() if interval_end else None
    about = {"pipeline": pipeline, "knownAt": todo.known_at.isoformat(), "intervalEnd": end}
    under_way = next(({"run": run.number, "runId": run.run_id} for run in past if run.state == "planned"), None)
    changed = definitions.describe_change(past, contract.hash, list_fields(contract))
    return {**about, "underWay": under_way, "contract": changed, "topics": topics, "tables": told}


def text(told: dict[str, Any]) -> str:
    """A preview as lines for a terminal or a task's log."""
    lines = [f"{told['pipeline']}: what a run would change; nothing was written"]
    if run := told["underWay"]:
        lines.append(f"run {run['run']} ({run['runId']}) is under way: what it had not published yet is counted here")
    lines += definitions.list_lines(told["contract"])
    for name, topic in told["topics"].items():
        lines.append(f"{name}: {counted(topic['offsets'], 'offset')}: {listed(topic['fates']) or 'nothing new'}")
        lines += [f"  {line}" for line in report.of_ties(topic)]
        if topic["stops"]:
            lines += [f"the run would stop: {topic['stops']}", "what follows is as if they were let pass"]
    for name, table in told["tables"].items():
        lines += ["", f"{name}: {counted(table['opened'], 'row')} to open, {table['closed']:,} to close"]
        if widened := table.get("widened"):
            lines.append(f"{widening.describe(name, widened)}. {making.LOCKED_OUT}.")
        if table["held"]:
            lines.append(f"{counted(table['held'], 'key')} held back: what changes of them is not in these rows")
        if table["corrected"]:
            changed = counted(table["corrected"], "past answer")
            lines.append(f"{changed} would change: {listed(table['ages'])}")
        if table["examples"]:
            lines.append(show.aligned(pa.Table.from_pylist(table["examples"])))
        lines += [
            f"gate ({v['on_failure']}) {v['outcome']}: {named(v['expectation'], v['kwargs'])}: {v['detail']}"
            for v in table["gates"]
            if v["outcome"] != "passed"
        ]
    return escape_controls("\n".join(lines))


def _fates(contract: Contract, todo: Plan, name: str, new: DataFrame) -> dict[str, Any]:
    """What a run would bring of a topic, by fate, and why it would stop."""
    topic, share = contract.topics[name], todo.topics[name]
    fates = {row["fate"]: row["count"] for row in new.groupBy("fate").count().sort("fate").collect()}
    stops = None
    if fates.get("malformed"):
        place = partial(members.place, contract.kafka_topic(name), share.members)
        field, nothing = f"topics.{name}.max_malformed", "nothing was written"
        try:
            logs.account(new, place, topic, field, before=Counter(), to_come=0, written=nothing)
        except RecordError as error:
            stops = str(error)
    return {"offsets": sum(share.planned.values()), "fates": fates, "stops": stops}


def _of_view(
    spark: SparkSession,
    contract: Contract,
    todo: Plan,
    name: str,
    candidates: dict[str, DataFrame],
    emitted: dict[str, DataFrame],
) -> DataFrame:
    """A view's table as the run would have it: flat rows. What a kafka view would have emitted goes into `emitted`."""
    made_of = {i: candidates[i] for i in contract.views[name].inputs}
    analysis.check(spark, contract, name, made_of)
    if contract.views[name].semantics == "kafka":
        emitted[name] = emitting.previewed(spark, contract, todo, name, emitted)
        return amounts.whole(emitted[name], shapes(contract)[name])
    return derive.view(contract, name, made_of)


def _records(spark: SparkSession, contract: Contract, todo: Plan, name: str, new: DataFrame) -> TopicRecords:
    """The records that a topic's log has accepted, with these `new` ones."""
    topic = contract.topics[name]
    there = logs.accepted(spark, contract, name, after=0)
    columns = [column for column in new.columns if column in there.columns]
    both = there.select(columns).unionByName(new.select(columns))
    records = decode(both, topic, writers=schemas.of(contract, name, both))
    decoded = logs.undisputed(records, contract.kafka_topic(name))
    decoded = decoded if topic.read == "stream" else base.united(spark, contract, name, decoded)
    return TopicRecords(spark, contract, todo, name, coming=decoded)


def _of_topic(topic: Topic, records: DataFrame) -> DataFrame:
    """A topic's table as the run would have it, of its records."""
    return derive.events(records) if topic.read == "stream" else derive.versions(records, topic.ttl)


def _ties(contract: Contract, todo: Plan, name: str, every: DataFrame, records: TopicRecords) -> DataFrame | None:
    """Return the ties of what a run would bring to a topic (tie_counts.py); None where nobody looks for them."""
    table = located(contract, name)
    log = tables.log(table.warehouse, contract.pipeline, name)
    if contract.topics[name].read == "stream" or not tie_counts.are_looked_for(contract, todo, name, tables.size(log)):
        return None
    return tie_counts.find_in_whole(todo, name, records.unpublished(every, whole=True), records.published(every))


def _counted_ties(contract: Contract, todo: Plan, name: str, tied: DataFrame | None) -> dict[str, Any]:
    """Return the counts of ties as a report has them; nothing where there are none."""
    row = None if tied is None else ties.count_ties(tied).first()
    counts = tie_counts.note(row.asDict(recursive=True)["ties"]) if row else {}
    return report.locate_ties(contract.kafka_topic(name), todo.topics[name], counts) if counts else {}


def _difference(
    spark: SparkSession,
    contract: Contract,
    todo: Plan,
    name: str,
    candidates: dict[str, DataFrame],
    records: TopicRecords | None,
    tied: DataFrame | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the run would change in a table, and the ties of what it would publish of a topic."""
    candidate = candidates[name]
    table = located(contract, name)
    changes = _changes(spark, contract, table, candidate).persist()
    widened: widening.Widened = {}
    if (found := tables.opened(table)) is not None and not tables.is_widened(found):
        widened = making.fit(found, table, table_schema(candidate)).widened
    whole = _numbers(changes, table, todo)
    hidden, expected = sensitive(contract)[name], contract.expectations(name)
    judged = None
    if records is not None and units.holds_records(contract, name):
        every = records.all()
        own = records.judged(every)

        def derive_without(places: DataFrame) -> DataFrame:
            left = _of_topic(contract.topics[name], topic_records.left(every, places))
            return _changes(spark, contract, table, left)

        judged = Judged(records.again, Records(own, derive_without, records.released(own)))
    with (
        Candidate(contract, todo, name, changes, whole["opened"], whole["closed"], candidates, tied) as looked_at,
        holding.sifted(looked_at, expected, tables.published(table), judged) as (passed, held, verdicts),
    ):
        numbers = whole if passed is looked_at else _numbers(passed.change, table, todo)
        examples = []
        if numbers["corrected"]:
            examples = _examples(passed.change, table, hidden)
        if passed is not looked_at:
            candidates[name] = _left(spark, candidate, passed.change, table).localCheckpoint()
            candidate.unpersist()
        left = _counted_ties(contract, todo, name, passed.ties)
    changes.unpersist()
    told = {
        **numbers,
        **({"widened": widened} if widened else {}),
        "held": held.keys if held is not None else 0,
        "examples": examples,
        "gates": [v._asdict() for v in verdicts],
    }
    return told, left


def _changes(spark: SparkSession, contract: Contract, table: Table, candidate: DataFrame) -> DataFrame:
    """What a run would change in a table, given its rows as the run would have them."""
    frozen = horizon.frozen(table.warehouse, contract, table.name)
    if (found := tables.opened(table)) is not None:
        making.fit(found, table, table_schema(candidate))
        return compared(table, contents.believed(spark, table), candidate, frozen)
    return horizon.begun(candidate, table.kind, frozen).withColumn("change", F.lit("open"))


def _numbers(changes: DataFrame, table: Table, todo: Plan) -> dict[str, Any]:
    """How many rows would be opened and closed, and how many of these are past answers, by age."""
    row = changes.agg(*tally.aggregates(table, todo.known_at)).first()
    return row.asDict(recursive=True) if row else {}


def _left(spark: SparkSession, candidate: DataFrame, change: DataFrame, table: Table) -> DataFrame:
    """A table as the run would leave it that holds something back: what is believed, changed by what passes."""
    opened = change.where("change = 'open'").drop("change")
    if tables.opened(table) is None:
        return opened
    believed = evolution.fitted(contents.believed(spark, table), candidate.schema)
    kept = without(believed, change.where("change = 'close'"), table.identity)
    return kept.unionByName(opened, allowMissingColumns=True)


def _examples(changes: DataFrame, table: Table, hidden: Collection[str]) -> list[dict[str, Any]]:
    """All that changes of the first keys of which a past answer does, before and after it; not `hidden` columns."""
    there = [column for column in table.key if column in changes.columns]
    keys = changes.where(tables.corrects(table)).select(*there).distinct().sort(*there).limit(EXAMPLES)
    shown = changes.join(keys, there, "left_semi").sort(*there, *PERIODS[table.kind], "change").limit(20)
    columns = ["change", *(c for c in changes.columns if c != "change" and not c.startswith("_"))]
    rows = [row.asDict(recursive=True) for row in shown.select(*columns).collect()]
    plain: list[dict[str, Any]] = json.loads(show.as_json(pa.Table.from_pylist(rows)))
    return [{column: "***" if column in hidden else value for column, value in row.items()} for row in plain]
