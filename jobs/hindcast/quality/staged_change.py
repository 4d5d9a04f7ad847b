"""Candidates: a table as a run would change it, for gates to judge before it is visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, joins, ties
from hindcast.bitemporal.plane import drop_matching_rows, keep_matching_rows
from hindcast.contract import Expectation, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.ingest import requeued_records
from hindcast.plan import closes, inputs, journal
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import Erasure, Release
from hindcast.plan.requested_changes import changes_only_what_was_asked
from hindcast.plan.runs import last_included_run
from hindcast.quality import entry_rows, expectations, gate_results, held_changes
from hindcast.quality.expectations import GateFacts
from hindcast.store import row_reader, schema_evolution, tables
from hindcast.store.change_reader import LAST_MOMENT, ChangeReader, PeriodSpan, filter_touching


class StagedChange:
    """A change of a table that is not published yet, usable until its `with` block ends.

    `change`: flat rows with `_change`, open or close (`plane.diff_rows`), persisted by the caller; `opened` and
    `closed`: the number of each. `previewed`: in a preview, the tables as they would be, by name; a preview ingests
    nothing, so it has no records to judge. `find_ties`: for a topic's table, returns the new records and those that
    they tie with (`ties.find_ties`). `span`: that of the rows of the change, if it is known.
    """

    def __init__(
        self,
        contract: BoundContract,
        plan: Plan,
        name: str,
        change: DataFrame,
        opened: int,
        closed: int,
        previewed: Mapping[str, DataFrame] | None = None,
        find_ties: Callable[[], DataFrame] | None = None,
        span: PeriodSpan | None = None,
    ) -> None:
        self.contract, self.plan, self.name, self.change = contract, plan, name, change
        self.opened, self.closed, self._previewed, self.find_ties = opened, closed, previewed, find_ties
        self._span = span
        self.table = inputs.locate_own_table(contract, name)
        self._sources = ChangeReader(change.sparkSession)
        self._rows: dict[str, DataFrame] = {}
        self._sizes = {"change": opened}
        self._views: list[str] = []
        self._earlier: dict[tuple[str, str], list[float]] | None = None

    def __enter__(self) -> StagedChange:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Unpersist the rows and drop the views that gates used."""
        self._sources.close()
        for rows in self._rows.values():
            rows.unpersist()
        for view in self._views:
            self.change.sparkSession.catalog.dropTempView(view)

    def is_empty(self, which: str) -> bool:
        """Return whether the rows `which` are known to be empty without counting them."""
        match which:
            case "change":
                return not self.opened
            case "near" | "keys" | "plane":
                return not self.opened + self.closed
            case "records" | "unpublished" | "events" if self._previewed is not None:
                return True
            case "ties":
                return self.find_ties is None
            case "records":
                return self.name not in self.contract.topics or not self.plan.topics[self.name].parts
            case "unpublished":
                return self.name not in self.contract.topics
            case _:
                return False

    def rows(self, which: str) -> DataFrame:
        """Return the rows that a gate looks at; except those of the log they have the table's columns and `systemFrom`.

        - change: rows that would be opened
        - keys: all rows of the changing keys as they would be; near: those of them in the span of the change
        - plane: current rows near the change, and rows that would be opened
        - table: all rows as they would be
        - records: the run's rows of the topic's log; unpublished: also those of earlier runs that did not publish
        - ties: the topic's new records, and whether they tie
        - events: the stream's events since the last completed run, and whether they `matched` (stream-table joins)
        """
        if which not in self._rows:
            rows = self._build_rows(which)
            self._rows[which] = rows if which in ("change", "table") else rows.persist()
        return self._rows[which]

    def count_rows(self, which: str) -> int:
        """Return the number of the rows `which`."""
        if which not in self._sizes:
            self._sizes[which] = self.rows(which).count()
        return self._sizes[which]

    def known_size(self, which: str) -> int | None:
        """Return the number of the rows `which` if they have been counted, else None."""
        return self._sizes.get(which)

    def gate_facts(self, gate: Expectation) -> GateFacts:
        """Return the facts that rules of ours have parameters for: from the contract, the plan and earlier runs."""
        facts = expectations.contract_facts(self.contract, self.name, gate)
        if other := facts.get("found_in"):
            if self._previewed is not None:
                current = self._previewed[other]
            else:
                referred = inputs.locate_source_table(self.contract, self.plan, other)
                current = row_reader.load_current_rows(self.change.sparkSession, referred)
            facts["found_in"] = self.create_view(current)
        if self.name in self.plan.topics:
            ranges: dict[int, list[tuple[int, int]]] = {}
            for partition, offsets in ((p, r) for part in self.plan.topics[self.name].parts for p, r in part.items()):
                ranges.setdefault(partition, []).append((offsets.start, offsets.end))
            facts["planned"] = ranges
        until = self.plan.interval_end or self.plan.known_at
        facts |= {"known_at": self.plan.known_at.isoformat(), "until": until.isoformat()}
        rule = expectations.find_rule(gate.type)
        if rule is not None and "closed" in rule.__fields__:
            facts |= self._describe_closed()
        if rule is not None and "earlier" in rule.__fields__:
            facts["earlier"] = self._read_measurements().get(gate_results.measurement_key(gate.type, gate.kwargs), [])
        return facts

    def _describe_closed(self) -> GateFacts:
        """Return the closed periods that the run may change, and what tells how it would change them.

        Not those that were closed before the table began. `judged`: a view of the keys that are judged, empty for all;
        where a run changes only what a person has asked for, these are the keys of which something was held before.
        """
        opened, shape = tables.open_table(self.table), list_shapes(self.contract)[self.name]
        place = self.table.warehouse, self.contract.pipeline
        began = None if opened is None else tables.read_beginning(opened)
        kept = closes.list_kept(*place) if opened is not None else ()
        judged = ""
        if kept and changes_only_what_was_asked(self.contract, journal.read_runs(*place), self.plan, self.name):
            waiting = held_changes.read_held_units(self.change.sparkSession, *place, self.name, before=self.plan.run)
            kept = () if waiting is None else kept
            judged = "" if waiting is None else self.create_view(self._select_keys(waiting))
        closing = self.create_view(self.change.where("_change = 'close'"))
        periods = [[it.start.isoformat(), it.end.isoformat()] for it in kept if began is None or began <= it.known_at]
        shown = [it for it in shape.columns if it not in self.table.identity]
        content = shown if shape.kind == "versions" else list(dict.fromkeys((*shown, *self.table.identity)))
        maps = [it.name for it in self.change.schema if it.name in content and "map<" in it.dataType.simpleString()]
        by = [*self.table.closing_columns]
        facts: GateFacts = {"closed": periods, "closing": closing, "closing_by": by, "content": content, "maps": maps}
        return facts | {"judged": judged}

    def _select_keys(self, held: DataFrame) -> DataFrame:
        """Return the keys of the change's rows that are among those of held units, by column and as the text `_key`."""
        keys = self.change.select(
            entry_rows.format_row_key(self.table.key).alias("_key"), *(F.col(f"`{name}`") for name in self.table.key)
        )
        return keys.join(held.select(F.col("key").alias("_key")), "_key", "left_semi").distinct()

    def _read_measurements(self) -> dict[tuple[str, str], list[float]]:
        """Return what gates measured in completed runs (`gate_results.read_measurements`).

        Runs that release or forget are compared with no others.
        """
        if self._earlier is None:
            place = self.table.warehouse, self.contract.pipeline
            is_special = isinstance(self.plan.purpose, Release | Erasure)
            completed = [] if is_special else journal.read_completed_runs(*place)
            comparable = [run.number for run in completed if not isinstance(run.plan.purpose, Release | Erasure)]
            self._earlier = gate_results.read_measurements(*place, self.name, comparable)
        return self._earlier

    def create_view(self, rows: DataFrame) -> str:
        """Create a temporary view of these rows; return its unique name."""
        name = f"candidate_{uuid4().hex}"  # Spark Connect looks a name up whenever a query over it is run
        rows.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    @property
    def sensitive(self) -> frozenset[str]:
        """The columns that must not be shown."""
        return find_sensitive_columns(self.contract)[self.name]

    def leave_out_rows(self, rows: DataFrame) -> StagedChange:
        """Return the candidate without some rows of its change, which are held back."""
        alike = (*self.table.identity, "_change")
        return self.replace_change(drop_matching_rows(self.change, rows, alike).persist(), rows, self.table.key)

    def replace_change(self, change: DataFrame, held: DataFrame, by: Sequence[str]) -> StagedChange:
        """Return a candidate with another change of the same table, which the caller persists.

        Records that equal a row of `held` in the columns `by` do not count as tied.
        """
        find_all, find_left = self.find_ties, None
        if find_all is not None:
            find_left = partial(_find_ties_without, find_all, held.select(*by).distinct())
        row = change.agg(*(F.count_if(F.col("_change") == which) for which in ("open", "close"))).first()
        opened, closed = row or (0, 0)
        return StagedChange(self.contract, self.plan, self.name, change, opened, closed, self._previewed, find_left)

    def _build_rows(self, which: str) -> DataFrame:
        opened = self._opened_rows()
        match which:
            case "change":
                return opened
            case "near" | "keys":
                current = self._current_key_rows(near=which == "near")
                return self._leave_out_closed(current).unionByName(opened, allowMissingColumns=True)
            case "plane":
                return self._current_key_rows(near=True).unionByName(opened, allowMissingColumns=True)
            case "table":
                return self._leave_out_closed(self._current_rows()).unionByName(opened, allowMissingColumns=True)
            case "records":
                return self._new_records().where(F.col("run") == self.plan.run)
            case "unpublished":
                return self._new_records()
            case "ties" if self.find_ties is not None:
                return ties.flatten_ties(self.find_ties()).withColumn("systemFrom", F.lit(self.plan.known_at))
            case _:
                return self._new_events()

    def _opened_rows(self) -> DataFrame:
        rows = self.change.where("_change = 'open'").drop("_change")
        return rows.withColumn("systemFrom", F.lit(self.plan.known_at))

    def _current_rows(self) -> DataFrame:
        """Return the current rows in the columns of the change; none if the table does not exist yet."""
        opened = self._opened_rows()
        if tables.open_table(self.table) is None:
            return opened.where("false")
        return schema_evolution.fit_rows(
            row_reader.load_current_rows(self.change.sparkSession, self.table), opened.schema
        )

    def _current_key_rows(self, *, near: bool) -> DataFrame:
        """Return the current rows of the keys that change: all, or those in the span of the change."""
        rows = self._current_rows()
        if near:
            start, end = tables.period_columns(self.table)
            periods = self.change.select(F.col(start).alias("start"), F.coalesce(end, F.expr(LAST_MOMENT)).alias("end"))
            rows = filter_touching(rows, self._span or self._sources.find_span(periods), start, end)
        return keep_matching_rows(rows, self.change.select(*self.table.key).distinct(), self.table.key)

    def _leave_out_closed(self, rows: DataFrame) -> DataFrame:
        """Return rows without those that would be closed."""
        columns = self.table.closing_columns
        closed = self.change.where("_change = 'close'").select(*(F.col(f"`{column}`") for column in columns))
        return drop_matching_rows(rows, closed, columns)

    def _new_records(self) -> DataFrame:
        """Return the topic's records of runs after the last that published the table or was completed."""
        past = journal.read_runs(self.table.warehouse, self.contract.pipeline)
        seen = last_included_run(past, tables.read_last_run(self.table))
        spark, table = self.change.sparkSession, self.table
        return requeued_records.read_records(spark, table.warehouse, table.pipeline, self.name).where(
            F.col("run") > seen
        )

    def _new_events(self) -> DataFrame:
        """Return `matched` for each event of the stream since the last completed run: whether the table had its key."""
        view, shapes = self.contract.views[self.name], list_shapes(self.contract)
        first, second = (inputs.locate_source_table(self.contract, self.plan, name) for name in view.inputs)
        past = journal.read_runs(self.table.warehouse, self.contract.pipeline)
        completed = [run for run in past if run.has_done_all_tables]
        since = None
        if completed:
            since = completed[-1].plan.as_of_system_times.get(view.first_input, completed[-1].known_at)
        events = row_reader.load_current_rows(self.change.sparkSession, first)
        events = events if since is None else events.where(F.col("systemFrom") > F.lit(since))
        versions = row_reader.load_current_rows(self.change.sparkSession, second)
        left = derivation.as_relation(events, shapes[view.first_input])
        on = derivation.lookup_key(view, shapes)
        right = derivation.as_relation(versions, shapes[view.second_input or ""])
        right = derivation.align_join_key(right, left) if on is None else right
        joined = joins.join_stream_table(left, right, "left", on)
        return joined.select(F.col("right").isNotNull().alias("matched"))


def _find_ties_without(find_ties: Callable[[], DataFrame], held: DataFrame) -> DataFrame:
    """Return the ties that are left without held records."""
    return ties.exclude_held_records(find_ties(), held)
