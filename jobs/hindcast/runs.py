"""The steps of a run, each safe to repeat: what was committed under the run's number is not committed again.

    plan -> replay each topic -> derive each table, gate it, publish it -> report

`STEPS` lists them; `run` does them all in one process, the DAG does each as a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from hindcast import analysis, derive, gaps, gates, journal, logs, plane, plans, report, tables
from hindcast.contracts import Contract, find
from hindcast.decode import decode
from hindcast.errors import GateError, PlatformError, RecordError, RunError, TopicError
from hindcast.plans import Plan
from hindcast.session import sized, sliced
from hindcast.settings import settings
from hindcast.tables import Table


def plan(pipeline: str, run_id: str, interval_end: datetime | None = None) -> int:
    """Stores the plan of a run, or finds that of an earlier try; returns the run's number."""
    contract, now = find(settings().schemas, pipeline), settings()
    past = journal.runs(now.warehouse, pipeline)
    if not past or past[-1].plan["contract"] != contract.hash:
        for name in (*contract.topics, *contract.views):
            gates.known(contract.expectations(name), f"{pipeline}.{name}")
    return plans.plan(now.warehouse, now.kafka, contract, run_id, interval_end).run


def replay(spark: SparkSession, pipeline: str, run: int, topic: str) -> dict[str, Any]:
    """Appends a topic's planned records to its log, each with its fate, then publishes the topic's table.

    Raises RecordError, before anything is written, if more records do not decode than `max_malformed` allows.
    """
    contract, todo = _planned(pipeline, run)
    log = plans.log(settings().warehouse, pipeline, topic)
    rows = tables.size(log) + sum(todo.topics[topic].planned.values())
    with _told(f"{pipeline}.{topic}"), sized(spark, rows):
        logs.claim(spark, contract, todo, topic)
        if _settled(contract, log):
            return _note(todo)
        return _publish(contract, todo, topic, _topic_changes(spark, contract, todo, topic))


def build(spark: SparkSession, pipeline: str, run: int, view: str) -> dict[str, Any]:
    """Derives a view from its inputs as this run has them, gates what changed and publishes it in one commit.

    Returns what the commit notes. Raises ContractError for an expression that Spark refuses or that fails on a record,
    GateError if a gate stopped it; then nothing of it is published.
    """
    contract, todo = _planned(pipeline, run)
    sources = {name: _table(contract, name) for name in contract.views[view].inputs}
    if _settled(contract, *sources.values()):
        return _note(todo)
    rows = sum(map(tables.size, sources.values()))
    with _told(f"{pipeline}.{view}"), analysis.told(settings().schemas, contract, view), sized(spark, rows):
        inputs = {name: tables.believed(spark, table) for name, table in sources.items()}
        analysis.check(spark, contract, view, inputs)
        with sliced(spark, rows):
            derived = derive.view(contract, view, inputs)
        left_out = derive.left_out(contract, view, inputs)
        return _publish(contract, todo, view, _changes(spark, _table(contract, view), derived), left_out)


def finish(pipeline: str, run: int) -> dict[str, Any]:
    """Makes the run's report, checks that every offset has a fate, and completes the run; its report if it did."""
    for entry in journal.runs(settings().warehouse, pipeline):
        if (entry.number, entry.state) == (run, "completed"):
            return entry.detail
    contract, todo = _planned(pipeline, run)
    told = report.make(settings().warehouse, contract, todo)
    entry = plans.current(settings().warehouse, pipeline, run)
    journal.write(settings().warehouse, replace(entry, state="completed", detail=told))
    return told


def run(spark: SparkSession, pipeline: str, run_id: str, interval_end: datetime | None = None) -> dict[str, Any]:
    """All steps of one run, in order; returns its report."""
    return carry_out(spark, pipeline, plan(pipeline, run_id, interval_end))


def carry_out(spark: SparkSession, pipeline: str, number: int) -> dict[str, Any]:
    """All steps of a planned run, in order; returns its report."""
    contract = find(settings().schemas, pipeline)
    for topic in contract.topics:
        replay(spark, pipeline, number, topic)
    for view in contract.ordered:
        build(spark, pipeline, number, view)
    return finish(pipeline, number)


STEPS: tuple[Callable[..., Any], ...] = (plan, replay, build, finish)
"""The steps in the order of a run: `replay` once per topic, `build` once per view."""


def _planned(pipeline: str, run: int) -> tuple[Contract, Plan]:
    now = settings()
    contract = find(now.schemas, pipeline)
    todo = Plan.from_json(plans.current(now.warehouse, pipeline, run).plan)
    if todo.contract != contract.hash:
        raise RunError(
            "the contract was changed after the run was planned",
            where=f"{pipeline}, run {run} ({todo.run_id})",
            mend="run its plan step again (in Airflow: clear the run from its plan task on)",
        )
    return contract, todo


def _table(contract: Contract, name: str) -> Table:
    return tables.located(settings().warehouse, contract, name)


def _topic_changes(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> DataFrame:
    """What the log changes in the topic's table: of a stream the records not yet in it, of a table the whole."""
    topic, table = contract.topics[name], _table(contract, name)
    accepted = logs.accepted(spark, contract, name, after=tables.published(table) if topic.read == "stream" else 0)
    decoded = logs.undisputed(decode(accepted, topic, logs.latest(topic, todo)), contract.kafka_topic(name))
    if topic.read == "stream":
        derived = derive.events(decoded)
        tables.ensure(table, _schema(derived))
        return derived.withColumn("change", F.lit("open"))
    return _changes(spark, table, derive.versions(decoded, topic.ttl))


def _changes(spark: SparkSession, table: Table, derived: DataFrame) -> DataFrame:
    """What makes the rows believed now into the derived ones; the table is made if it is not there."""
    tables.ensure(table, _schema(derived))
    if not tables.size(table):
        return derived.withColumn("change", F.lit("open"))
    content = [c for c in derived.columns if c not in table.identity and not c.startswith("_")]
    return plane.changes(tables.believed(spark, table).select(*derived.columns), derived, table.identity, content)


def _publish(
    contract: Contract, todo: Plan, name: str, changes: DataFrame, left_out: DataFrame | None = None
) -> dict[str, Any]:
    """Counts a change, gates what it opens, commits it; nothing is written where nothing changed.

    `left_out` (derive.left_out) goes into the note. If that alone has changed, the commit has no rows.
    """
    table = _table(contract, name)
    before = tables.published(table)
    if before >= todo.run:
        return tables.notes(table).get(todo.run, _note(todo))
    note = _note(todo)
    changes = changes.persist()
    try:
        ended = "validTo IS NOT NULL" if table.kind == "versions" else "true"
        counted = changes.agg(
            F.count_if(F.col("change") == "open").alias("opened"),
            F.count_if(F.col("change") == "close").alias("closed"),
            F.count_if(F.expr(f"change = 'close' AND {ended}")).alias("corrected"),
        )
        row = (counted if left_out is None else counted.crossJoin(left_out)).first()
        note |= row.asDict(recursive=True) if row else {}
        if not note["opened"] + note["closed"]:
            told = report.before(table.warehouse, contract.pipeline).get(name, {})
            if report.besides(note) != report.besides(told):
                tables.publish(changes, table, todo.run, todo.known_at, closing=False, note=note)
            return note
        verdicts = gates.check(changes.where("change = 'open'").drop("change"), contract.expectations(name))
        note["gates"] = [v._asdict() for v in verdicts]
        try:
            gates.refuse(f"{contract.pipeline}.{name}, run {todo.run}", verdicts)
        except GateError:
            entry = plans.current(table.warehouse, contract.pipeline, todo.run)
            journal.write(table.warehouse, replace(entry, state="stopped", detail={"table": name, **note}))
            raise
        tables.publish(changes, table, todo.run, todo.known_at, closing=note["closed"] > 0, note=note, after=before)
        return note
    finally:
        changes.unpersist()


def _settled(contract: Contract, *sources: Table) -> bool:
    """Whether a completed run of this very contract has seen these sources as they are: nothing can have changed."""
    completed = [run for run in journal.runs(settings().warehouse, contract.pipeline) if run.state == "completed"]
    if not completed or completed[-1].plan["contract"] != contract.hash:
        return False
    return all(tables.published(source) <= completed[-1].number for source in sources)


def _note(todo: Plan) -> dict[str, Any]:
    """What a commit notes, of a run that changes nothing."""
    return {"run": todo.run, "opened": 0, "closed": 0, "corrected": 0, "gates": []}


def _schema(derived: DataFrame) -> StructType:
    """The columns of a table of these rows."""
    fields = tables.nullable(derived.schema).fields
    moments = [StructField(name, TimestampType()) for name in ("systemFrom", "systemTo")]
    own = [field for field in fields if not field.name.startswith("_")]
    lineage = [field for field in fields if field.name.startswith("_")]
    return StructType([*own, *moments, *lineage, StructField("_belief", StringType())])


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Spark's failures in one line of our own, and a full disk as what it is."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # some of the JVM's come as they are
        text = str(error)
        if logs.DISPUTED in text:
            found = text[text.index(logs.DISPUTED) :].split("SQLSTATE", maxsplit=1)[0].strip()
            raise RecordError(found, where=where, mend=logs.DISPUTE_MEND) from None
        if gaps.LOST in text:
            raise TopicError("Kafka lost offsets while they were read", where=where, mend=gaps.LOST_MEND) from None
        told = tables.unwritten(error, where)
        if isinstance(told, PlatformError):
            raise told from None
        lines = [line.removeprefix(": ") for line in text.strip().splitlines()]
        cause = next(line for line in lines if not line.startswith("An error occurred while calling"))
        raise RunError(f"Spark failed: {cause}", where=where) from error
