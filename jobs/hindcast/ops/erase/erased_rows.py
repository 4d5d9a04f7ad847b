"""Find the rows of a pipeline's tables that hold what some records said, also rows that are no longer current.

The records are those of one topic, by key or by place. A row holds what they said if it was made of a row that does
(lineage.py), by today's definition of its view or by that of an earlier contract (redefinitions.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contract import View
from hindcast.contract.bound import BoundContract
from hindcast.contract.names import FOLDERS
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.ops.erase import records, redefinitions
from hindcast.ops.erase.lineage import ViewLineage
from hindcast.ops.erase.records import ErasureRequest
from hindcast.ops.erase.redefinitions import Definition
from hindcast.plan import closes, definitions, horizon
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.store import row_reader, tables
from hindcast.store.folder import WarehouseFolder
from hindcast.store.tables import Table


class ErasedRows:
    """The rows of a pipeline's tables that hold what records of `topic` said, as the tables are now.

    `condition`: which rows of the topic's own table go. `records`: those that go (`records.read_records`). `plan`: the
    last one under the contract. Rows are found from the topic down, so find all before removing any, and remove from
    below upwards.
    """

    def __init__(
        self,
        spark: SparkSession,
        contract: BoundContract,
        topic: str,
        condition: Column,
        records: DataFrame,
        plan: Plan,
        past: Sequence[Run],
    ) -> None:
        self._spark, self._contract, self._topic, self._condition = spark, contract, topic, condition
        places = zip(("partition", "offset"), PLACE_COLUMNS, strict=True)
        self._past, self.records = past, records
        self._places = records.select(*(F.col(name).alias(column) for name, column in places))
        self._definitions, self._lost = redefinitions.list_definitions(past, contract, plan)
        self._upstream = _find_upstream(self._definitions, topic)
        self.names = _sort_tables(self._upstream)
        self._rows: dict[str, DataFrame] = {}
        self._not_followed: set[str] = set()

    @cached_property
    def tables(self) -> list[str]:
        """The topic and all views that are, or were, made of it, inputs before what is made of them.

        Views that the contract no longer has are among them if they have a table.
        """
        return [name for name in self.names if self._find_owner(name) is not None]

    @cached_property
    def formerly(self) -> list[str]:
        """The views of the contract with rows that only an earlier one derived from the topic."""
        own = [name for name in self.names if name in self._contract.views]
        own = [name for name in own if self._topic not in self._contract.list_upstream(name)]
        return [name for name in own if self._list_derivations(name)]

    @cached_property
    def restarting(self) -> list[str]:
        """The views of the kafka reading that start from scratch."""
        own = [name for name in self.names if self._is_kafka(self._definitions[0], name)]
        return [name for name in own if name in self.formerly or self._topic in self._contract.list_upstream(name)]

    @property
    def formerly_emitting(self) -> list[str]:
        """The views that only an earlier contract had in the kafka reading."""
        today, *earlier = self._definitions
        names = (name for name in self.names if not self._is_kafka(today, name))
        return [name for name in names if any(self._is_kafka(d, name) for d in earlier)]

    def table(self, name: str) -> Table:
        """Return one of `tables`."""
        owner = self._find_owner(name)
        if owner is None:
            raise KeyError(name)
        return owner.locate_table(name)

    def has_records_of_topic(self, name: str) -> bool:
        """Return whether the places in a table's rows can be those of the topic's records, by any definition."""
        return any(definition.contract.find_first_source(name) == self._topic for definition in self._definitions)

    def has_table(self, name: str) -> bool:
        """Return True if a table has been created."""
        return tables.open_table(self.table(name)) is not None

    def find_rows(self, name: str) -> DataFrame:
        """Return the rows of a table that go, whole, as a checkpoint of their own."""
        if name not in self._rows:
            rows = row_reader.load_rows(self._spark, self.table(name))
            if name == self._topic:
                parts = [rows.where(self._condition)]
            else:
                found = (self._find_derived(name, definition) for definition in self._list_derivations(name))
                parts = [part for part in found if part is not None] or [rows.where(F.lit(False))]
            every = reduce(DataFrame.unionByName, parts)
            self._rows[name] = (every.distinct() if len(parts) > 1 else every).localCheckpoint()
        return self._rows[name]

    def find_redefined(self) -> list[str]:
        """Return the tables that can have rows which could not be looked for: an earlier contract derived them, or they
        were derived from rows that are gone. A topic that had another name is one of them, with its log.
        """
        for name in self.tables:
            if self.has_table(name):
                self.find_rows(name)
        return sorted({*self._not_followed, *self._find_renamed(), *self._find_lost()})

    def _is_kafka(self, definition: Definition, name: str) -> bool:
        return name in definition.contract.views and definition.contract.views[name].semantics == "kafka"

    def _find_owner(self, name: str) -> Definition | None:
        """Return the definition that has a table of this name: today's, or the last one that had the existing table."""
        today, *earlier = self._definitions
        if name in today.shapes:
            return today
        return next((d for d in earlier if name in d.shapes and d.has_table(name)), None)

    def _list_derivations(self, name: str) -> list[Definition]:
        """Return the definitions by which rows of a view can have been derived from rows that go."""
        own = [d for d in self._definitions if name in d.contract.views and self._list_sources(d, name)]
        return [d for d in redefinitions.merge_definitions(name, own) if d.has_rows(name)]

    def _list_sources(self, definition: Definition, name: str) -> list[str]:
        return [i for i in definition.contract.list_inputs(name) if i in self._upstream]

    def _find_derived(self, name: str, definition: Definition) -> DataFrame | None:
        """Return the rows of a view that go by one definition; None if it cannot be followed."""
        view, sources = definition.contract.views[name], self._list_sources(definition, name)
        found: dict[str, DataFrame] = {}
        if view.semantics == "corrected":
            needed = {*sources, view.first_input}
            if not all(map(definition.has_table, needed)) or any(self._precedes(name, source) for source in sources):
                self._not_followed.add(name)
                return None
            if any(self._has_lost_rows(definition, source, name) for source in needed):
                self._not_followed.add(name)
            found = {source: self._find_source_rows(source, view) for source in sources}
        try:
            rows = ViewLineage(self._spark, definition).find_rows(name, found)
            _ = rows.schema  # Spark Connect checks expressions only when it is asked
        except AnalysisException:
            if not definition.periods:
                raise
            self._not_followed.add(name)  # its expressions no longer fit the columns
            return None
        return rows

    def _find_source_rows(self, source: str, view: View) -> DataFrame:
        """Return the rows of a source that go; of events also those that only the log has any more, as places."""
        rows = self.find_rows(source)
        return rows.unionByName(self._places, allowMissingColumns=True) if self._by_log(source, view) else rows

    def _by_log(self, source: str, view: View) -> bool:
        """Return whether the rows of a view are found by the places of records that the log has."""
        is_stream = source in self._contract.topics and self._contract.topics[source].read == "stream"
        return source == self._topic and is_stream and view.aggregate is None

    def _has_lost_rows(self, definition: Definition, source: str, name: str) -> bool:
        """Return whether rows of a view can have been derived from rows of a source that are gone: trimmed, or removed
        with its folder.
        """
        table, view = definition.locate_table(source), definition.locate_table(name)
        delta_table, view_table = tables.open_table(table), tables.open_table(view)
        if delta_table is None or view_table is None:
            return False
        by_log = self._by_log(source, definition.contract.views[name])
        log = tables.log_table(self._contract.warehouse, self._contract.pipeline, source)
        trimmed, kept = horizon.read_horizon(log if by_log else table), horizon.read_horizon(view)
        has_closes = bool(closes.read_closes(view.warehouse, view.pipeline))  # whose rows a trim has left
        if trimmed is not None and (kept is None or has_closes or kept.moment < trimmed.moment):
            first, _ = tables.period_columns(view)
            if redefinitions.has_rows_until(view_table, trimmed.moment, (first, "systemFrom")):
                return True
        beginning = tables.read_beginning(delta_table)
        if beginning is None or by_log:
            return False
        earlier = [run.known_at for run in self._past if run.known_at < beginning and self._had_table(run, source)]
        if not earlier or not redefinitions.has_rows_until(view_table, beginning):
            return False
        without = [run.known_at for run in self._past if run.known_at < min(earlier)]
        known = F.col("systemFrom")  # of the rows, because statistics have milliseconds
        suspect = (known < F.lit(beginning)) & (known > F.lit(max(without)) if without else F.lit(True))
        return not row_reader.load_rows(self._spark, view).where(suspect).isEmpty()

    def _had_table(self, run: Run, name: str) -> bool:
        """Return whether a run's contract had a table, or may have had it."""
        fields = definitions.find_fields(self._past, run.plan.contract)
        return fields is None or any(place.split(".")[1:2] == [name] for place in fields)

    def _precedes(self, name: str, other: str) -> bool:
        """Return whether a table comes before another; not if two definitions made each of the other."""
        return self.names.index(name) < self.names.index(other)

    def _find_renamed(self) -> set[str]:
        """Return the tables of a topic's earlier names, and what was made of them."""
        kafka, found = self._contract.kafka_topic(self._topic), set[str]()
        for definition in self._definitions[1:]:
            for name in {*definition.contract.find_entries(kafka)}.difference(self._contract.topics):
                below = {view for view in definition.contract.views if name in definition.contract.list_upstream(view)}
                found |= {table for table in (name, *below) if definition.has_rows(table)}
                logs = (f(self._contract.warehouse, self._contract.pipeline, name) for f in _RECORD_TABLES)
                found |= {log.name for log in logs if tables.open_table(log)}
        return found

    def _find_lost(self) -> set[str]:
        """Return the views with rows that were derived by definitions that nobody can read any more."""
        found: set[str] = set()
        place = self._contract.warehouse, self._contract.pipeline
        for lost in self._lost:
            if lost.fields is None:
                others = {*FOLDERS, *(topic for d in self._definitions for topic in d.contract.topics)}
                names = {path for path in WarehouseFolder("/".join(place)).tables if "/" not in path} - others
            else:
                names = {*lost.list_views(self._topic, self._definitions)}
            for name in names.difference(self.restarting):
                delta_table = tables.open_table(Table(*place, name, "versions"))
                if delta_table is not None and redefinitions.has_rows_until(delta_table, lost.last):
                    found.add(name)
        return found


_RECORD_TABLES = (tables.log_table, tables.fates_table)


def _find_upstream(definitions: Sequence[Definition], topic: str) -> dict[str, set[str]]:
    """Return a topic and all views that any definition makes of it, each with its inputs that are among them."""
    upstream: dict[str, set[str]] = {topic: set()}
    views = [(name, view) for d in definitions for name, view in d.contract.views.items() if name != topic]
    while more := {name for name, view in views if name not in upstream and upstream.keys() & {*view.inputs}}:
        upstream |= {name: set() for name in more}
    for name, view in views:
        if name in upstream:
            upstream[name] |= upstream.keys() & {*view.inputs}
    return upstream


def _sort_tables(upstream: Mapping[str, set[str]]) -> list[str]:
    """Return tables in an order in which each comes after its inputs, as far as the definitions agree about it."""
    ordered: list[str] = []
    while left := [name for name in upstream if name not in ordered]:
        ordered += [name for name in left if upstream[name] <= {*ordered}] or left[:1]
    return ordered


def find_erased_rows(
    spark: SparkSession,
    contract: BoundContract,
    request: ErasureRequest,
    erased_records: DataFrame,
    plan: Plan,
    past: list[Run],
) -> ErasedRows:
    """Return the rows that a request is about, and its records (`records.read_records`)."""
    condition = records.erased_condition(contract, request)
    return ErasedRows(spark, contract, request.topic, condition, erased_records, plan, past)
