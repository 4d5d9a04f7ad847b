"""Candidates: what a run would make of a table, as gates look at it before it is visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Contract, Expectation, shapes
from hindcast.contracts.sensitive import sensitive
from hindcast.corrected import derive, joins, ties
from hindcast.corrected.plane import matching, without
from hindcast.delta import contents, evolution, tables
from hindcast.delta.sources import Sources
from hindcast.planning import inputs, journal
from hindcast.planning.plans import Plan
from hindcast.quality import expectations, verdicts
from hindcast.replay import requeued


class Candidate:
    """A change of a table that is not published yet, as long as the block lasts.

    `change`: flat rows with `change`, open or close (plane.changes), kept in memory by the caller; `opened` and
    `closed`: how many of each. `previewed`: of a preview the tables as they would be, by name; it has brought no
    records, so that nothing can be told of these. `tied`: of a topic's table the records that came, with what they tie
    with (`ties.find_ties`).
    """

    def __init__(
        self,
        contract: Contract,
        todo: Plan,
        name: str,
        change: DataFrame,
        opened: int,
        closed: int,
        previewed: Mapping[str, DataFrame] | None = None,
        tied: DataFrame | None = None,
    ) -> None:
        self.contract, self.todo, self.name, self.change = contract, todo, name, change
        self.opened, self.closed, self._previewed, self.ties = opened, closed, previewed, tied
        self.table = inputs.located(contract, name)
        self._sources = Sources(change.sparkSession)
        self._rows: dict[str, DataFrame] = {}
        self._sizes = {"change": opened}
        self._views: list[str] = []
        self._earlier: dict[tuple[str, str], list[float]] | None = None

    def __enter__(self) -> Candidate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Frees what was kept for the gates."""
        self._sources.close()
        for rows in self._rows.values():
            rows.unpersist()
        for view in self._views:
            self.change.sparkSession.catalog.dropTempView(view)

    def empty(self, which: str) -> bool:
        """Whether it is clear that there is nothing to look at."""
        match which:
            case "change":
                return not self.opened
            case "near" | "keys" | "plane":
                return not self.opened + self.closed
            case "records" | "unpublished" | "events" if self._previewed is not None:
                return True
            case "ties":
                return self.ties is None
            case "records":
                return self.name not in self.contract.topics or not self.todo.topics[self.name].parts
            case "unpublished":
                return self.name not in self.contract.topics
            case _:
                return False

    def rows(self, which: str) -> DataFrame:
        """The rows that a gate looks at; but for the log's they have the table's columns, periods and `systemFrom`.

        - change: what would be opened
        - keys: of the keys that change all rows as they would be; near: those that lie in the span of the change
        - plane: those near the change that are believed now, and what would be opened
        - table: all rows as they would be
        - records: the run's rows of the topic's log; unpublished: those of earlier runs too that could not publish
        - ties: the topic's records that came, and whether they tie
        - events: the stream's events since the last completed run, and whether they have `matched` (stream-table joins)
        """
        if which not in self._rows:
            rows = self._made(which)
            self._rows[which] = rows if which in ("change", "table") else rows.persist()
        return self._rows[which]

    def size(self, which: str) -> int:
        """How many rows that are."""
        if which not in self._sizes:
            self._sizes[which] = self.rows(which).count()
        return self._sizes[which]

    def known_size(self, which: str) -> int | None:
        """How many rows that are, if they have been counted."""
        return self._sizes.get(which)

    def facts(self, gate: Expectation) -> dict[str, Any]:
        """What a rule of ours may ask: of the contract, of the plan, of what it measured in earlier runs."""
        told = expectations.facts(self.contract, self.name, gate)
        if "found_in" in told:
            other = gate.kwargs["table"]
            if self._previewed is not None:
                believed = self._previewed[other]
            else:
                referred = inputs.source(self.contract, self.todo, other)
                believed = contents.believed(self.change.sparkSession, referred)
            told["found_in"] = self.view(believed)
        if self.name in self.todo.topics:
            ranges: dict[int, list[tuple[int, int]]] = {}
            for partition, offsets in ((p, r) for part in self.todo.topics[self.name].parts for p, r in part.items()):
                ranges.setdefault(partition, []).append((offsets.start, offsets.end))
            told["planned"] = ranges
        until = self.todo.interval_end or self.todo.known_at
        told |= {"known_at": self.todo.known_at.isoformat(), "until": until.isoformat()}
        if "earlier" in getattr(expectations.implementation(gate.type), "__fields__", {}):
            told["earlier"] = self._measured().get(verdicts.identity(gate.type, gate.kwargs), [])
        return told

    def _measured(self) -> dict[tuple[str, str], list[float]]:
        """What gates have measured in completed runs; what releases or forgets is not compared with them, nor they with
        it.
        """
        if self._earlier is None:
            place = self.table.warehouse, self.contract.pipeline
            own = self.todo.releases or self.todo.forgets
            plans = {run.number: Plan.from_json(run.plan) for run in ([] if own else journal.completed(*place))}
            alike = [number for number, plan in plans.items() if not (plan.releases or plan.forgets)]
            self._earlier = verdicts.measured(*place, self.name, alike)
        return self._earlier

    def view(self, rows: DataFrame) -> str:
        """The name of a temporary view of these rows, which no other has."""
        name = f"candidate_{uuid4().hex}"  # Spark Connect looks a name up whenever a query over it is run
        rows.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    def sensitive(self, columns: Sequence[str]) -> bool:
        """Whether one of these columns must not be shown."""
        return bool(sensitive(self.contract)[self.name].intersection(columns))

    def without(self, rows: DataFrame) -> Candidate:
        """What is left where some rows of the change are held back."""
        alike = (*self.table.identity, "change")
        return self.replaced(without(self.change, rows, alike).persist(), rows, self.table.key)

    def replaced(self, change: DataFrame, held: DataFrame, by: Sequence[str]) -> Candidate:
        """Return the candidate of another change of the same table, which is kept in memory by the caller.

        What is `held` does not tie with anything: records that are like it in some columns.
        """
        left = None if self.ties is None else ties.leave_out(self.ties, held.select(*by).distinct())
        row = change.agg(*(F.count_if(F.col("change") == which) for which in ("open", "close"))).first()
        opened, closed = row or (0, 0)
        return Candidate(self.contract, self.todo, self.name, change, opened, closed, self._previewed, left)

    def _made(self, which: str) -> DataFrame:
        opened = self._opened()
        match which:
            case "change":
                return opened
            case "near" | "keys":
                believed = self._believed(near=which == "near")
                return self._closed(believed).unionByName(opened, allowMissingColumns=True)
            case "plane":
                return self._believed(near=True).unionByName(opened, allowMissingColumns=True)
            case "table":
                return self._closed(self._all()).unionByName(opened, allowMissingColumns=True)
            case "records":
                return self._records().where(F.col("run") == self.todo.run)
            case "unpublished":
                return self._records()
            case "ties" if self.ties is not None:
                return ties.flatten(self.ties).withColumn("systemFrom", F.lit(self.todo.known_at))
            case _:
                return self._events()

    def _opened(self) -> DataFrame:
        rows = self.change.where("change = 'open'").drop("change")
        return rows.withColumn("systemFrom", F.lit(self.todo.known_at))

    def _all(self) -> DataFrame:
        """What is believed now, in the columns of the change; nothing where the table is not there yet."""
        opened = self._opened()
        if tables.opened(self.table) is None:
            return opened.where("false")
        return evolution.fitted(contents.believed(self.change.sparkSession, self.table), opened.schema)

    def _believed(self, *, near: bool) -> DataFrame:
        """What is believed now of the keys that change, all of it or what lies in the span of the change."""
        rows = self._all()
        if near:
            start, end = tables.period(self.table)
            periods = self.change.select(F.col(start).alias("start"), F.col(end).alias("end"))
            forever = F.lit("9999-12-31 23:59:59.999999").cast("timestamp")
            rows = self._sources.within(rows, periods.withColumn("end", F.coalesce("end", forever)), start, end)
        return matching(rows, self.change.select(*self.table.key).distinct(), self.table.key)

    def _closed(self, rows: DataFrame) -> DataFrame:
        """Rows without those that would be closed."""
        closed = self.change.where("change = 'close'").select(*self.table.identity)
        return without(rows, closed, self.table.identity)

    def _records(self) -> DataFrame:
        """The topic's records since a run has published the table, or was completed."""
        past = journal.runs(self.table.warehouse, self.contract.pipeline)
        seen = journal.settled(past, tables.published(self.table))
        spark, table = self.change.sparkSession, self.table
        return requeued.records(spark, table.warehouse, table.pipeline, self.name).where(F.col("run") > seen)

    def _events(self) -> DataFrame:
        """The stream's events that have come since the last completed run; of each whether the table had its key."""
        it, known = self.contract.views[self.name], shapes(self.contract)
        first, second = (inputs.source(self.contract, self.todo, name) for name in it.inputs)
        completed = journal.completed(self.table.warehouse, self.contract.pipeline)
        since = None
        if completed:
            since = Plan.from_json(completed[-1].plan).pins.get(it.first, completed[-1].known_at)
        events = contents.believed(self.change.sparkSession, first)
        events = events if since is None else events.where(F.col("systemFrom") > F.lit(since))
        versions = contents.believed(self.change.sparkSession, second)
        left = derive.relation(events, known[it.first])
        on, right = derive.looked_up(it, known), derive.relation(versions, known[it.second or ""])
        right = derive.alike(right, left) if on is None else right
        joined = joins.stream_table(left, right, "left", on)
        return joined.select(F.col("right").isNotNull().alias("matched"))
