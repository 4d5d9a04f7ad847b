"""`hindcast verify`: the invariants of tables (docs/verify.md), checked on the tables themselves.

    format -> files -> journal -> published -> tiling, system periods, belief -> offsets, stream time, quarantine
    -> emitted -> definition

Nothing is written. All but `definition` does without Spark. A table of which something was found is not looked at any
further: what else is wrong with it may come of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from hindcast.building import inventory
from hindcast.contracts import Contract
from hindcast.contracts.sensitive import sensitive
from hindcast.delta import emitted, tables
from hindcast.delta.tables import Table
from hindcast.errors import HindcastError, TableError, UnknownError, escape_controls, nearest
from hindcast.planning import journal
from hindcast.planning.journal import Run
from hindcast.replay import base, logs, trimmed
from hindcast.upkeep.verifying import conservation, definition, outputs, rectangles, refused, standing, stored
from hindcast.upkeep.verifying.findings import Finding, backup
from hindcast.words import counted

Spark = Callable[[], SparkSession]


@dataclass
class Verified:
    """What was found, how many `tables` and `files` were looked at, and what was `left` unasked, with the reason."""

    pipeline: str
    tables: int = 0
    files: int = 0
    findings: list[Finding] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        told = {"pipeline": self.pipeline, "tables": self.tables, "files": self.files}
        return {**told, "findings": [it.as_json() for it in self.findings], "notChecked": self.left}


def verify(
    warehouse: str, contract: Contract, name: str | None = None, spark: Spark | None = None, *, whole: bool = False
) -> Verified:
    """What is wrong with the tables of a pipeline, or with that of the topic or view `name` and what stands behind it.

    Without `spark` it is not asked whether tables are what the log makes of them; with `whole` that is asked of all
    keys. UnknownError for a `name` that is none, and where there is no table at all.
    """
    names = [*contract.topics, *contract.views]
    if name is not None and name not in names:
        raise UnknownError(f"no table '{name}'", where=contract.pipeline, mend=nearest(name, names))
    return _Verification(warehouse, contract, names if name is None else [name]).done(spark, whole=whole)


def text(told: Verified) -> str:
    """What was found, as lines for a terminal."""
    looked_at = f"{counted(told.tables, 'table')}, {counted(told.files, 'file')}"
    lines = [f"{told.pipeline}: {looked_at} looked at, {_many(told)}"]
    for it in told.findings:
        lines += ["", f"{it.check}: {it.where}", f"  found: {it.found}", f"  what to do: {it.mend}"]
    lines += [f"not checked: {why}" for why in told.left]
    return escape_controls("\n".join(lines))


def _many(told: Verified) -> str:
    return counted(len(told.findings), "finding") if told.findings else "nothing wrong"


class _Verification:
    """One pass over a pipeline's tables."""

    def __init__(self, warehouse: str, contract: Contract, names: list[str]) -> None:
        self._warehouse, self._contract, self._names = warehouse, contract, names
        self._told = Verified(contract.pipeline)
        self._found: dict[Table, DeltaTable] = {}
        self._lacks_runs = False
        self._broken: set[Table] = set()
        self._runs: list[Run] = []

    def done(self, spark: Spark | None, *, whole: bool) -> Verified:
        warehouse, pipeline = self._warehouse, self._contract.pipeline
        book, *others = every = list(inventory.behind(warehouse, self._contract, self._names))
        self._open(book)
        self._look(book)
        self._order(book)
        self._runs = before = [] if book in self._broken else journal.runs(warehouse, pipeline)
        if before and before[-1].state == "planned" and "forgets" in before[-1].plan:
            self._told.left.append(
                f"all else, until run {before[-1].number} has forgotten: hindcast forget finishes it"
            )
            return self._told
        for table in others:
            self._open(table)
        for name in self._names:
            self._open_kept(name)
        if not (self._found or self._told.findings or self._told.left):
            raise UnknownError(
                "there is no table: nothing can be told",
                where=f"{warehouse}/{pipeline}",
                mend=f"set HINDCAST_WAREHOUSE to where the tables are; hindcast run {pipeline} makes them",
            )
        for table in [table for table in self._found if table != book]:
            self._look(table)
            self._older(table)
        if book in self._broken:
            self._told.left.append("all else, until the journal of runs can be read")
            return self._told
        self._runs = standing.as_of(before, journal.runs(warehouse, pipeline))
        moments = self._standing(every)
        self._rows(moments)
        self._logs()
        self._emitted(moments)
        self._defined(spark, whole=whole)
        return self._told

    def _order(self, book: Table) -> None:
        """Looks at the order of the journal's entries; without the plan of each run it says nothing of tables."""
        if book in self._broken:
            return
        pipeline = self._contract.pipeline
        damage = journal.damage(self._warehouse, pipeline)
        self._told.findings += standing.disordered(damage, journal.repair(pipeline))
        if journal.planned_runs(self._warehouse, pipeline)[1]:
            self._broken.add(book)

    def _open(self, table: Table) -> None:
        try:
            found = tables.opened(table)
        except TableError as error:
            last = self._runs[-1] if self._runs else None
            if last is not None and last.state == "planned" and last.plan.get("upgrade", {}).get("table") == table.name:
                self._aside(table, f"run {last.number} adopts it")
            else:
                self._add(table, [stored.unopened(table, error)])
            return
        if found is not None:
            self._found[table] = found
            self._told.tables += 1
            self._told.files += len(found.file_uris())

    def _look(self, table: Table) -> None:
        """Looks at a table's marks and files."""
        if (found := self._found.get(table)) is not None:
            self._add(table, stored.marks(table, found))
            if table not in self._broken:
                self._add(table, stored.files(table, found))

    def _older(self, table: Table) -> None:
        """Puts a table aside that runs refuse until it is upgraded, and what is made of it."""
        older = tables.older(self._found[table])
        if older is not None and older.mode is None:
            upgrade = f"hindcast upgrade {table.pipeline}.{table.name}"
            self._aside(table, f"it has the older store format {older.format}, until {upgrade}")

    def _aside(self, table: Table, why: str) -> None:
        """A table that nothing is asked of, though nothing is wrong with it."""
        self._told.left.append(f"{table.name}, and whether what is made of it is right: {why}")
        self._broken.add(table)

    def _open_kept(self, name: str) -> None:
        if name in self._contract.views and self._contract.views[name].semantics == "kafka":
            log = emitted.log(self._warehouse, self._contract, name)
            if log in self._found and (its := inventory.kept(self._warehouse, self._contract, name)):
                self._open(its)

    def _add(self, table: Table, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._told.findings.append(finding)
            self._broken.add(table)

    def _whole(self, *some: Table) -> bool:
        """Whether tables are there, and nothing was found that makes it useless to look into them."""
        return all(table in self._found and table not in self._broken for table in some)

    def _standing(self, every: list[Table]) -> standing.Moments:
        logged = {
            table: conservation.runs(found)
            for table, found in self._found.items()
            if table.kind == "log" and self._whole(table)
        }
        found = {table: delta for table, delta in self._found.items() if table not in self._broken}
        missing = standing.missed(self._runs, found, logged)
        self._told.findings += standing.journal(self._contract, self._runs, missing)
        if missing:
            self._lacks_runs = True
            self._told.left.append("whether tables are what the log makes of them: the journal lacks runs")
        for table in every:
            if table not in self._broken and table.kind not in ("runs", "gates", "failing", "schemas"):
                self._add(table, standing.published(self._runs, table, self._found.get(table)))
        return standing.moments(self._runs, missing)

    def _rows(self, moments: standing.Moments) -> None:
        hidden = sensitive(self._contract)
        for name in self._names:
            table = tables.located(self._warehouse, self._contract, name)
            if self._whole(table):
                masked = any(column in hidden[name] for column in table.key)
                findings = rectangles.check(table, self._found[table], self._runs, moments, hidden=masked)
                self._add(table, findings)

    def _logs(self) -> None:
        contract, pipeline = self._contract, self._contract.pipeline
        topics = [name for name in self._names if name in contract.topics]
        for name in topics:
            log = tables.log(self._warehouse, pipeline, name)
            counts = trimmed.table(log)
            if not self._whole(log) or counts in self._broken:
                continue
            removed = trimmed.counts(log)
            trims = self._found[log].transaction_version(log.app(trimmed.PART)) or 0
            if tables.published(log, trimmed.PART) != trims:
                self._told.left.append(f"{log.name}: it was trimmed meanwhile; verify again")
                self._broken.add(log)
                continue
            if trims and not removed.num_rows:
                told = f"has nothing of trim {trims}, which has removed records from {log.name}"
                self._add(counts, [Finding("published", counts.name, told, backup(counts))])
                continue
            given = contract, name, log, self._found[log], self._runs, removed
            self._add(log, conservation.offsets(*given))
            if self._whole(log):
                self._add(log, conservation.stream_time(*given))
        sources = [of(self._warehouse, pipeline, name) for name in topics for of in (tables.log, tables.fates)]
        sources += [trimmed.table(tables.log(self._warehouse, pipeline, name)) for name in topics]
        quarantine = logs.quarantine(self._warehouse, pipeline)
        if topics and not self._broken.intersection([quarantine, *sources]):
            self._add(quarantine, refused.check(contract, topics, self._runs, quarantine, self._found))

    def _emitted(self, moments: standing.Moments) -> None:
        for name in self._names:
            log = emitted.log(self._warehouse, self._contract, name) if name in self._contract.views else None
            if log is not None and self._whole(log):
                its = inventory.kept(self._warehouse, self._contract, name)
                if its not in self._broken:
                    self._add(log, outputs.check(self._contract, name, log, self._found[log], self._runs, moments))

    def _defined(self, spark: Spark | None, *, whole: bool) -> None:
        if self._lacks_runs or not self._found:
            return
        what = "whether tables are what the log makes of them"
        if spark is None:
            self._told.left.append(f"{what}: that takes Spark")
            return
        if why := definition.unanswerable(self._contract, self._runs):
            self._told.left.append(f"{what}: {why}")
            return
        try:
            session = spark()
        except HindcastError as error:  # what was found without Spark is told all the same
            self._told.left.append(f"{what}: {error}")
            return
        for name in self._names:
            table = tables.located(self._warehouse, self._contract, name)
            if not self._whole(table, *self._sources(name)):
                continue
            if why := definition.trimmed(self._contract, name, self._runs[-1]):
                self._told.left.append(f"{what}: {why}")
            else:
                given = self._contract, name, self._found[table], self._runs[-1]
                self._add(table, definition.check(session, *given, whole=whole))

    def _sources(self, name: str) -> Iterator[Table]:
        """The tables of the pipeline that a table is derived from; others' are taken as they are."""
        if name in self._contract.topics:
            yield tables.log(self._warehouse, self._contract.pipeline, name)
            its = base.table(self._warehouse, self._contract.pipeline, name)
            yield from [its] if its in {*self._found, *self._broken} else []
        elif self._contract.views[name].semantics == "kafka":
            yield emitted.log(self._warehouse, self._contract, name)
        else:
            own = (i for i in self._contract.views[name].inputs if i not in self._contract.inputs)
            yield from (tables.located(self._warehouse, self._contract, i) for i in own)
