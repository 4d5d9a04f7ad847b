"""Forgetting: one key of a topic, or single records, taken out of everything that a pipeline has, with proof.

    plan -> remove rows, from the last views up to the topic -> take bytes out of the log -> purge files
         -> derive what is made of the topic -> prove -> report

It is a run of its own. What it forgets stands in no table, so not in the journal either, which has its sha256: whoever
repeats the command says it again, and the run goes on. Rows go from below upwards, and the log comes last, because what
a row was made of tells which rows go; records that have lost their bytes are known by their mark.

The run brings no offsets. Records of the same key that come later are new ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import runs
from hindcast.building import counted, emitting
from hindcast.contracts import Contract
from hindcast.contracts.load import load_all
from hindcast.delta import contents, emitted, making, tables
from hindcast.delta.folder import Folder
from hindcast.delta.tables import Table
from hindcast.errors import AskedError, HindcastError, RunError, escape_controls
from hindcast.planning import journal, notices, planner
from hindcast.planning.inputs import located
from hindcast.planning.plans import Plan
from hindcast.quality import holds, verdicts
from hindcast.quality.units import RECORD
from hindcast.replay import base, logs
from hindcast.reports import page
from hindcast.settings import settings
from hindcast.upkeep.forgetting import erase, proof, purge, records
from hindcast.upkeep.forgetting.lineage import Lineage
from hindcast.upkeep.forgetting.records import Asked
from hindcast.upkeep.forgetting.texts import Texts


def forget(spark: SparkSession, contract: Contract, what: Asked, reason: str | None = None) -> dict[str, Any]:
    """Forgets, and returns the proof, which is also among the reports (`forget-RUN.json`).

    What was forgotten before and has not come again, gives the proof of then, unless that found something left.
    AskedError if there was never anything like that; if the contract was changed since the last run: tables have to be
    what it says; amid an upgrade of the topic's table; or if a kafka view would have to begin anew that cannot.
    """
    now, pipeline = settings(), contract.pipeline
    past, digest = journal.runs(now.warehouse, pipeline), what.digest(spark, contract)
    same = [run for run in past if run.plan.get("forgets", {}).get("sha256") == digest]
    begun = next((run for run in same if run.state == "planned"), None)
    if past and past[-1].plan["contract"] != contract.hash:
        mend = f"hindcast run {pipeline}, then forget"
        raise AskedError(f"the contract was changed since run {past[-1].number}", where=pipeline, mend=mend)
    if begun is None and not any(_counts(spark, contract, what, past).values()):
        if not same:
            raise _unknown(contract, what)
        if same[-1].state == "completed":
            runs.finish(pipeline, same[-1].number)  # it may have died before its report was written
            proven = _proof(pipeline, same[-1].number)
            if proven["proven"]:
                return proven
    if begun is None:
        _refuse(contract, what.topic)
    run_id = begun.run_id if begun else journal.run_id("forget")
    told = {"topic": what.topic, "sha256": digest}
    todo = planner.plan(now.warehouse, now.kafka, contract, run_id, reason=reason, instead={"forgets": told})
    notices.wait_for_others(now.warehouse, pipeline)
    step = _Step(spark, contract, what, todo, past)
    step.remove()
    step.purge()
    try:
        runs.bring(spark, pipeline, todo.run)
    except HindcastError:  # what stops it, is none of the key's
        step.remove_unheld()
        step.prove()
        raise
    step.remove_unheld()
    proven = step.prove()
    runs.finish(pipeline, todo.run)
    return proven


def preview(spark: SparkSession, contract: Contract, what: Asked) -> dict[str, int]:
    """Count the rows of each table that would go, and the records whose bytes the log would lose; write nothing.

    All are 0 for what a run has forgotten. AskedError if there was never anything like that.
    """
    past, digest = journal.runs(settings().warehouse, contract.pipeline), what.digest(spark, contract)
    counts = _counts(spark, contract, what, past)
    if not any(counts.values()) and not any(run.plan.get("forgets", {}).get("sha256") == digest for run in past):
        raise _unknown(contract, what)
    return counts


def text(pipeline: str, told: Mapping[str, Any]) -> str:
    """A proof in words."""
    lines = [f"{pipeline}, run {told['run']}: {told['table']}, key of sha256 {told['sha256']}", ""]
    lines += [f"  {name:<28} {n:>8,} rows" for name, n in told["rows"].items()]
    lines += ["", f"  searched: {told['files']:,} files, {told['bytes']:,} bytes, {told['texts']:,} texts"]
    lines += [f"  of the texts other records have {told['shared']:,} too"] if told["shared"] else []
    if told["proven"]:
        lines.append("  found: nothing")
    lines += [f"  left: a text of sha256 {it['sha256'][:12]} in {', '.join(it['files'])}" for it in told["left"]]
    lines += [f"  left: {told['rowsLeft']:,} rows of it"] if told["rowsLeft"] else []
    lines += [f"  left: {path} belongs to no table" for path in told["old"]]
    return escape_controls("\n".join([*lines, "", *(f"  {line}" for line in (*BESIDES, *besides(told["readers"])))]))


BESIDES = (
    "Kafka still has the records, until its retention or a tombstone takes them; this pipeline has passed them.",
    "What was taken elsewhere stays there: backups, clones, Airflow's XComs and task logs of keys that were held back.",
)
"""What this cannot reach."""


def readers(contract: Contract, names: Sequence[str]) -> list[str]:
    """The views of other pipelines that are made of some tables of this one: they have rows of their own."""
    places = {f"{contract.pipeline}.{name}" for name in names}
    return sorted(
        f"{other.pipeline}.{view}"
        for other in load_all(settings().schemas).values()
        for name, it in other.inputs.items()
        if it.table in places
        for view in other.ordered
        if name in other.upstream(view)
    )


def besides(views: Sequence[str]) -> list[str]:
    """What is to be done about views of other pipelines, in words."""
    if not views:
        return []
    return [
        f"Made of it in other pipelines: {', '.join(views)}. Remove their folders; their next runs derive them whole."
    ]


def _unknown(contract: Contract, what: Asked) -> AskedError:
    """Return the refusal to forget a key, or records, that no run has ever brought."""
    table = f"{contract.pipeline}.{what.topic}"
    if what.places:
        mend = f"hindcast ledger {contract.pipeline} lists the offsets of each partition"
        return AskedError(f"there is no record at {what.text}; nothing was written", where=table, mend=mend)
    mend = f"look at how its keys are written: hindcast query {table}"
    return AskedError(f"there is no such key: {what.text}; nothing was written", where=table, mend=mend)


def _refuse(contract: Contract, topic: str) -> None:
    """AskedError where not all can be taken out now, or not put right afterwards."""
    found = tables.opened(located(contract, topic))
    if found is not None and tables.older(found) is not None:
        raise AskedError(
            "its table is not of today's store format yet, or any more",
            where=f"{contract.pipeline}.{topic}",
            mend=f"hindcast upgrade {contract.pipeline}.{topic}, then forget",
        )
    for name in contract.below(topic):
        if name in contract.views and contract.views[name].semantics == "kafka":
            emitting.refuse_anew(contract, name)


class _Step:
    """One forgetting under way."""

    def __init__(
        self, spark: SparkSession, contract: Contract, what: Asked, todo: Plan, past: list[journal.Run]
    ) -> None:
        self._spark, self._contract, self._what, self._todo = spark, contract, what, todo
        same = {run.number for run in past if run.plan.get("forgets", {}).get("sha256") == todo.forgets["sha256"]}
        self._again = todo.run in same
        self._records = records.records(spark, contract, what, {*same, todo.run}).localCheckpoint()
        self.lineage = Lineage(spark, contract, what.topic, records.gone(contract, what), todo)
        adopted = records.adopted(spark, contract, what)
        self._adopted = adopted.localCheckpoint() if adopted is not None else None
        self.texts = records.texts(contract, what, self._records, self._adopted)
        self._readers = readers(contract, self.lineage.tables)
        self._rows: dict[str, int] = {}

    def remove(self) -> None:
        """Rows, from below upwards; texts about them; at last the bytes in the log."""
        warehouse, pipeline, run = settings().warehouse, self._contract.pipeline, self._todo.run
        touched = [name for name in self.lineage.tables if self.lineage.there(name)]
        for name in touched:
            self.lineage.rows(name)  # all is looked at before anything goes
        self._rows["failing"] = self._failing(touched)
        for name in reversed(touched):
            table = tables.located(warehouse, self._contract, name)
            if name in self._contract.views and self._contract.views[name].semantics == "kafka":
                self._rows[name] = self._anew(name)
            else:
                self._rows[name] = erase.remove(self.lineage.rows(name), table, [*table.identity, "systemFrom"], run)
            if self._rows[name] or self._again:  # it may have died between the two
                counted.note(self._spark, table, self._todo.known_at - timedelta(microseconds=1))
        self._told()
        if self._adopted is not None:
            its = base.table(warehouse, pipeline, self._what.topic)
            self._rows[its.name] = erase.remove(self._adopted, its, ["key", "timestamp"], run)
        places = {"partition": "partition", "offset": "offset"}
        erase.blank(self._records, tables.fates(warehouse, pipeline, self._what.topic), places, run)
        in_kafka = {"topic": "topic", "partition": "topicPartition", "offset": "offset"}
        erase.blank(self._records, logs.quarantine(warehouse, pipeline), in_kafka, run)
        log = tables.log(warehouse, pipeline, self._what.topic)
        erase.blank(self._records, log, places, run)
        self._rows[log.name] = self._records.count()

    def _anew(self, name: str) -> int:
        """A kafka view begins anew: what it has emitted goes, and what it keeps, and its table."""
        warehouse, run = settings().warehouse, self._todo.run
        log = emitted.log(warehouse, self._contract, name)
        kept = [it for it in self._folder.tables if it.startswith(f"kept/{name}/")]
        count = sum(erase.empty(self._spark, Table(warehouse, log.pipeline, it, "kept"), run) for it in kept)
        for table in (log, tables.located(warehouse, self._contract, name)):
            count += erase.empty(self._spark, table, run) if tables.opened(table) else 0
        return count

    def _failing(self, touched: Sequence[str]) -> int:
        """Remove what gates found, and held back, of the records and of the keys of rows that go; return how much.

        Of other keys the entries stay, without the rows that say what is to be forgotten.
        """
        table = holds.table(settings().warehouse, self._contract.pipeline)
        if tables.opened(table) is None:
            return 0
        rows = contents.load(self._spark, table)
        at = self._records.select("topic", F.col("topicPartition").alias("partition"), "offset")
        found = [rows.join(at.distinct(), ["topic", "partition", "offset"], "left_semi").select(*rows.columns)]
        for name in touched:
            own = tables.located("", self._contract, name).key
            keys = self.lineage.rows(name).select(F.lit(name).alias("table"), holds.key_of(own).alias("key")).distinct()
            found.append(rows.join(keys, ["table", "key"], "left_semi").select(*rows.columns))
        if "unit" in rows.columns:  # what became of a record that was held names its place alone
            place = F.col("partition").alias(RECORD[0]), F.col("offset").alias(RECORD[1])
            units = self._records.select(*place).select(holds.key_of(RECORD).alias("unit")).distinct()
            of_these = rows.where(F.col("table").isin(self._what.topic, *touched))
            found.append(of_these.join(units, "unit", "left_semi").select(*rows.columns))
        every = reduce(DataFrame.unionByName, found).distinct().localCheckpoint()
        count = erase.remove(every, table, rows.columns, self._todo.run)
        if self.texts.sought:  # an entry about another key says that this is held, whatever its row says
            said = F.array(*(F.lit(way) for way in sorted(self.texts.sought)))
            named = F.exists(said, lambda way: F.contains("row", way))
            others = contents.load(self._spark, table).where(F.col("table").isin(*touched) & named).localCheckpoint()
            count += erase.clear(others, table, "row", self._todo.run)
        return count

    def remove_unheld(self) -> None:
        """Remove what was held of these records and stands in no table, now that all is derived without them.

        What of a key is not held as it was any more was made of them. What is known of a key that has ended before,
        goes if the key says what they said and no row has it.
        """
        failing = holds.table(settings().warehouse, self._contract.pipeline)
        if tables.opened(failing) is None:
            return
        entries = contents.load(self._spark, failing)
        unit = F.col("unit") if "unit" in entries.columns else F.lit(None).cast("string")
        entries = entries.withColumn("_unit", unit)
        found = [self._unheld(name, entries.where(F.col("table") == name)) for name in self.lineage.tables]
        every = reduce(DataFrame.unionByName, found).drop("_unit").distinct().localCheckpoint()
        self._rows["failing"] += erase.remove(every, failing, every.columns, self._todo.run)

    def _unheld(self, name: str, entries: DataFrame) -> DataFrame:
        """Return of the entries of a table those that go (`remove_unheld`)."""
        now, before = (self._held(name, upto) for upto in (None, self._todo.run))
        own, was = F.struct("key", "_unit"), F.col("run") < self._todo.run
        there = own.eqNullSafe(F.struct("_heldKey", "_heldUnit"))
        anew = entries.where(~was & (F.col("entry") == "held")).select(own.alias("_own")).distinct()
        ended = entries.join(F.broadcast(before), there, "left_semi").join(F.broadcast(now), there, "left_anti")
        changed = entries.where(was).join(F.broadcast(before), there, "left_semi")
        changed = changed.join(F.broadcast(anew), own.eqNullSafe(F.col("_own")), "left_semi")
        settled = entries.join(F.broadcast(now), F.col("key") == F.col("_heldKey"), "left_anti").where(
            "key IS NOT NULL"
        )
        keys = [row[0] for row in settled.select("key").distinct().collect() if self.texts.said_in(row[0])]
        said = self._spark.createDataFrame([[key] for key in keys], "_key string")
        table = tables.located(settings().warehouse, self._contract, name)
        if keys and tables.opened(table) is not None:
            rows = contents.load(self._spark, table).select(holds.key_of(table.key).alias("_key"))
            said = said.join(rows, "_key", "left_anti")
        gone = settled.join(F.broadcast(said), F.col("key") == F.col("_key"), "left_semi")
        return reduce(DataFrame.unionByName, (ended, changed, gone))

    def _held(self, name: str, before: int | None) -> DataFrame:
        """Return what is held of a table, or was before a run: `_heldKey`, `_heldUnit`."""
        place = settings().warehouse, self._contract.pipeline
        found = holds.waiting(self._spark, *place, name, before=before)
        if found is None:
            return self._spark.createDataFrame([], "_heldKey string, _heldUnit string")
        return found.select(F.col("key").alias("_heldKey"), F.col("unit").alias("_heldUnit"))

    def _told(self) -> None:
        """What the journal, the gates and the reports say of it."""
        warehouse, pipeline, run, spark = settings().warehouse, self._contract.pipeline, self._todo.run, self._spark
        entries = journal.table(warehouse, pipeline)
        making.ensure(entries, journal.SCHEMA)
        erase.rewrite(
            spark,
            entries,
            ["run", "entry", "at", "sequence"],
            "detail",
            run,
            lambda row: _json(self.texts, str(row["detail"])),
        )
        gates = verdicts.table(warehouse, pipeline)
        erase.rewrite(
            spark,
            gates,
            ["run", "at", "table", "gate"],
            "detail",
            run,
            lambda row: self.texts.detail(row["detail"] or "", row["table"]),
        )
        page.remove_unfinished(self._reports)
        for path in sorted(self._reports.glob("run-*.json")):
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                path.unlink()  # cut off: nobody can tell what is in it
                continue
            if (kept := self.texts.told(told)) != told:
                page.write(settings().reports, kept)

    @property
    def _folder(self) -> Folder:
        return Folder(f"{settings().warehouse}/{self._contract.pipeline}")

    @property
    def _reports(self) -> Path:
        return settings().reports / self._contract.pipeline

    def purge(self) -> None:
        """No file says any more what rows do not."""
        folder = self._folder
        for name in folder.tables:
            path = f"{settings().warehouse}/{self._contract.pipeline}/{name}"
            purge.purge(self._spark, folder, name, path, self.texts.text)

    def _left(self) -> int:
        """How many rows of the topic's table, and records of its log, still are of what was to be forgotten."""
        what, table = self._what, tables.located(settings().warehouse, self._contract, self._what.topic)
        left = records.records(self._spark, self._contract, what, set()).count()
        if tables.opened(table) is not None:
            left += contents.load(self._spark, table).where(records.gone(self._contract, what)).count()
        adopted = records.adopted(self._spark, self._contract, what)
        return left + (adopted.count() if adopted is not None else 0)

    def prove(self) -> dict[str, Any]:
        """Purges what deriving has left, then reads everything once more; the proof, put among the reports."""
        self.purge()
        folder, pipeline = self._folder, self._contract.pipeline
        paths = {name: f"{settings().warehouse}/{pipeline}/{name}" for name in folder.tables}
        live = {f"{name}/{it}" for name, path in paths.items() for it in purge.live(DeltaTable(path))}
        found = proof.search(folder, live, self._reports, self.texts.sought)
        described = " ".join(DeltaTable(path).schema().to_json() for path in paths.values())
        vocabulary = " ".join((proof.WORDS, self._contract.model_dump_json(), *paths, described))
        told = {
            "pipeline": pipeline,
            "run": self._todo.run,
            "knownAt": self._todo.known_at.isoformat(),
            "table": f"{pipeline}.{self._what.topic}",
            "sha256": self._todo.forgets["sha256"],
            "rows": {name: n for name, n in self._rows.items() if n},
            "readers": self._readers,
            **proof.told(found, live, self.texts.sought, vocabulary, self._left()),
        }
        place = _proof_of(pipeline, self._todo.run)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(told, indent=2), encoding="utf-8")
        return told


def _proof_of(pipeline: str, run: int) -> Path:
    """Where a proof is put."""
    return settings().reports / pipeline / f"forget-{run}.json"


def _proof(pipeline: str, run: int) -> dict[str, Any]:
    """A proof that was made; RunError if it is not among the reports any more."""
    place = _proof_of(pipeline, run)
    if not place.is_file():
        raise RunError(f"it was forgotten in run {run}; the proof is gone", where=str(place))
    told: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return told


def _counts(spark: SparkSession, contract: Contract, what: Asked, past: list[journal.Run]) -> dict[str, int]:
    if not past:
        return {}
    lineage = Lineage(spark, contract, what.topic, records.gone(contract, what), Plan.from_json(past[-1].plan))
    found = {name: lineage.rows(name).count() for name in lineage.tables if lineage.there(name)}
    if (adopted := records.adopted(spark, contract, what)) is not None:
        found[base.table(settings().warehouse, contract.pipeline, what.topic).name] = adopted.count()
    return {**found, f"logs/{what.topic}": records.records(spark, contract, what, set()).count()}


def _json(texts: Texts, detail: str) -> str:
    told = json.loads(detail)
    kept = texts.told(told)
    return detail if kept == told else json.dumps(kept)
