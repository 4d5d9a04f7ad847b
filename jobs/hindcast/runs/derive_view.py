"""What a run has to change in a view, found incrementally or by deriving it whole.

A table is derived whole the first time, after the contract has changed, if the run is about this table alone
(`Plan.only`), and if its inputs are so small (`incremental_state.is_quicker_whole`) that finding the affected rows
would take longer. A kernel finds them where there is one (derive_by_kernel.py), else Spark's plan. All give the same
result; `bitemporal/incremental.py` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hindcast.bitemporal import derivation, incremental_views
from hindcast.bitemporal.incremental_views import AffectedRows
from hindcast.common.session import slice_large_keys
from hindcast.contract import list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.engine import eligibility
from hindcast.engine.staged_files import stage_view
from hindcast.plan import journal
from hindcast.plan.inputs import locate_own_table, locate_source_table, refuse_lost_inputs
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.quality import entry_rows, held_changes, hold_decisions
from hindcast.quality.held_units import has_moved_rows, has_row_hold
from hindcast.quality.hold_decisions import HoldInputs
from hindcast.runs import (
    derive_by_kernel,
    emission,
    emitted_table,
    expression_checks,
    incremental_state,
    table_diff,
)
from hindcast.runs.derive_by_kernel import OpenedView
from hindcast.runs.derive_whole import (
    DerivedChange,
    derive_whole_view,
    find_derivable_from,
)
from hindcast.store import commit_history, emitted_log, row_reader, table_columns, tables
from hindcast.store.change_reader import ChangeReader
from hindcast.store.commit_notes import LeftOut, TableNote
from hindcast.store.tables import Table


class InputRows(Mapping[str, DataFrame]):
    """The current rows of some tables, by name; each is loaded when it is asked for, which a kernel need not do."""

    def __init__(self, spark: SparkSession, inputs: Mapping[str, Table]) -> None:
        self._spark, self._inputs = spark, inputs
        self._loaded: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._loaded:
            self._loaded[name] = row_reader.load_current_rows(self._spark, self._inputs[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    def list_columns(self, name: str) -> StructType:
        """Return the columns of a table's rows."""
        found = tables.open_table(self._inputs[name])
        if found is None or tables.read_older_format(found) is not None:
            return self[name].schema
        return table_columns.spark_schema(found)


def load_inputs(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> InputRows:
    """Return the current rows of a view's inputs, as they are now or as the plan pins them.

    Raise ContractError for an expression of the view that Spark refuses, TableError for an input of which what the
    plan pins is gone.
    """
    refuse_lost_inputs(contract, plan, name)
    current = InputRows(spark, {i: locate_source_table(contract, plan, i) for i in contract.views[name].inputs})
    expression_checks.refuse_unfit_expressions(spark, contract, name, {i: current.list_columns(i) for i in current})
    return current


def derive_view_change(
    spark: SparkSession,
    sources: ChangeReader,
    contract: BoundContract,
    plan: Plan,
    name: str,
    current: Mapping[str, DataFrame],
) -> DerivedChange:
    """Return what the inputs of a view change in its table; of a kafka view, what it has emitted.

    `current`: the inputs' current rows (`load_inputs`).
    """
    table = locate_own_table(contract, name)
    after = tables.read_last_run(table)
    inputs = {i: locate_source_table(contract, plan, i) for i in contract.views[name].inputs}
    if contract.views[name].semantics == "kafka":
        return _derive_emitted_change(spark, sources, contract, plan, name, current)
    view = OpenedView(spark, sources, contract, plan, table, inputs, current)
    frozen = find_derivable_from(contract, plan, name)
    held_units = held_changes.read_held_units(spark, table.warehouse, table.pipeline, name, before=plan.run)
    seen = incremental_state.find_last_run(contract, table, *inputs.values(), by_kernel=contract.settings.kernels)
    if name == plan.only or plan.upgraded_table or (seen and incremental_state.has_trimmed_input(seen, inputs)):
        seen = None
    if frozen is not None and _is_in_sessions(contract, name):
        seen = None  # one that was trimmed away goes on: only all of its events tell where it began

    is_alone = held_units is None and frozen is None  # the change is all that becomes of the table
    if seen is not None and is_alone:
        by_kernel = derive_by_kernel.derive_view(view, seen, read_left_out(table, seen), after)
        if by_kernel is not None:
            return by_kernel
    affected, rejudged = None if seen is None else _refresh_view(view, seen, by_arrow=not is_alone), None
    if seen is not None and affected is not None and held_units is not None:
        affected, rejudged = _add_held_keys(view, affected, held_units, seen)
    if seen is None or affected is None:
        return _derive_whole(view, is_held=held_units is not None)
    change = DerivedChange(
        table_diff.diff_increment(table, affected, frozen),
        after,
        frozen=frozen,
        judged=HoldInputs(rejudged),
        kernel=affected.kernel,
    )
    before = read_left_out(table, seen)
    if affected.left_out is None or before is None:
        return change._replace(left_out=derivation.count_left_out_of_view(contract, name, current))
    return change._replace(left_out=affected.left_out, before=before)


def _is_in_sessions(contract: BoundContract, name: str) -> bool:
    window = contract.views[name].window
    return window is not None and window.session is not None


def _derive_whole(view: OpenedView, *, is_held: bool) -> DerivedChange:
    """Return what a view's change is if it is derived whole, by a kernel if the table has no rows yet."""
    spark, contract, plan, table, inputs = view.spark, view.contract, view.plan, view.table, view.inputs
    rows = sum(map(tables.count_rows, inputs.values()))

    def derive_in_slices() -> DerivedChange:
        with slice_large_keys(spark, rows):
            return derive_whole_view(spark, contract, plan, table.name, view.current)

    is_first = not is_held and not tables.count_rows(table)
    if is_first and eligibility.is_worthwhile(rows, contract.settings):
        whole = derive_whole_view(spark, contract, plan, table.name, view.current)
        if whole.frozen is None:
            columns = tuple(whole.changes.columns[:-1])
            place = contract, table.name, inputs, view.current, table, plan.known_at
            # Looking for keys with many rows reads the inputs: only Spark's plan needs it.
            return whole._replace(stage=partial(stage_view, spark, columns, *place), derive_in_slices=derive_in_slices)
    whole = derive_in_slices()
    since = None if whole.frozen is None or is_held else _derive_left_out_since(view)
    return whole if since is None else whole._replace(left_out=since[0], before=since[1])


def _refresh_view(view: OpenedView, since: Run, *, by_arrow: bool = True) -> AffectedRows | None:
    """Return the rows of a view that changes of its inputs since a run affect; None if it must be derived whole.

    `by_arrow`: whether Arrow may evaluate its expressions.
    """
    if (by_kernel := derive_by_kernel.refresh_view(view, since, by_arrow=by_arrow)) is not None:
        return by_kernel
    contract, sources, table, inputs = view.contract, view.sources, view.table, view.inputs
    if incremental_state.is_quicker_whole(*inputs.values()):
        return None
    pins = since.plan.as_of_system_times
    changed = {i: sources.read_source(source, pins.get(i, since.known_at)) for i, source in inputs.items()}
    inserted = incremental_state.has_inserted_records(contract, table.name, since.number)
    return incremental_views.refresh_view(
        contract, table.name, changed, sources.read_near(table), sources.cache_rows, inserted=inserted
    )


def _add_held_keys(
    view: OpenedView, affected: AffectedRows, held: DataFrame, seen: Run
) -> tuple[AffectedRows | None, DataFrame]:
    """Return the rows affected since the run `seen`, with all changes of held keys since they are held, and the held
    units of these keys, even if none of their rows is left. No rows (None) if the view must be derived whole, as it is
    where an event of a held key has moved to another key or from one: the two may be held since different runs.

    Each key has what has changed since it is held: before that its rows were published. With `hold: row` others of its
    rows were published meanwhile, too. What changes them since the run `seen` may be no change since the key is held,
    so both count. But parts of versions that are clipped apart cannot be put together; a session that is held is in no
    table, so that only a part of it is found around a new event; and of a view that only selects it is not known which
    rows were published meanwhile.
    """
    sources, contract, plan, table = view.sources, view.contract, view.plan, view.table
    current, derived = sources.cache_rows(affected.current), sources.cache_rows(affected.derived)
    affected = affected._replace(current=current, derived=derived)
    rejudged, key = held, entry_rows.format_row_key(table.key)
    if not incremental_state.has_changed_for_gates(contract, plan, table, seen.number):
        keys = current.select(key.alias("key")).unionByName(derived.select(key.alias("key"))).distinct()
        touched = [held.join(keys, "key", "left_semi"), hold_decisions.find_released_units(plan, table.name, held)]
        if affected.units is not None:  # a held key may have no rows, now or before
            touched.append(held_changes.filter_concerned(held, affected.units))
        if table.kind in ("events", "pairs"):
            rows = current.select(*table.identity).unionByName(derived.select(*table.identity))
            touched.append(hold_decisions.find_units_of_events(contract, table, held, rows, plan.run))
        unit = F.coalesce("unit", "key")
        units = reduce(DataFrame.unionByName, touched).select(unit.alias("_unit")).distinct()
        # An event that moves from one key to another is one unit with two keys.
        rejudged = held.join(units, F.col("_unit") == unit, "left_semi").localCheckpoint()
    holds = rejudged.groupBy(F.col("key").alias("_held")).agg(F.min("since").alias("since"))
    by_row, it = has_row_hold(contract, table.name), contract.views[table.name]
    # Each row that is held has a run of its own since which it is.
    runs = (rejudged if by_row else holds).select("since").distinct()
    moments = sorted(row["since"] for row in runs.collect())
    if not moments:
        return affected, rejudged
    in_parts = table.kind == "versions" or _is_in_sessions(contract, table.name)
    only_selects = it.join is None and it.aggregate is None
    if len(moments) > MAX_HOLDS or (by_row and (in_parts or only_selects)):
        return None, rejudged
    sides = [(current, derived)] if by_row else [_select_keys((current, derived), key, holds, "left_anti")]
    every = [current, derived]
    for since in moments:
        run = incremental_state.find_last_run_of_any_size(contract, table, since)
        if run is None or incremental_state.has_trimmed_input(run, view.inputs):
            return None, rejudged
        if (earlier := _refresh_view(view, run)) is None:
            return None, rejudged
        found = sources.cache_rows(earlier.current), sources.cache_rows(earlier.derived)
        affected, every = affected._replace(kernel=earlier.kernel), [*every, *found]
        own = holds if by_row else holds.where(F.col("since") == since)
        sides.append(_select_keys(found, key, own, "left_semi"))
    if has_moved_rows(rejudged, every, table):
        return None, rejudged
    combined = (reduce(DataFrame.unionByName, parts) for parts in zip(*sides, strict=True))
    current, derived = (rows.dropDuplicates([*table.identity]) if by_row else rows for rows in combined)
    return AffectedRows(current, derived, affected.left_out, kernel=affected.kernel), rejudged


MAX_HOLDS = 8
"""If keys that are judged again are held since more runs than these, all rows of a view are derived."""


def _select_keys(
    sides: tuple[DataFrame, DataFrame], key: Column, holds: DataFrame, how: str
) -> tuple[DataFrame, DataFrame]:
    """Return the current and the derived rows with the keys of some holds, or without (`how` they are joined)."""
    held = F.broadcast(holds.select("_held"))
    current, derived = (rows.join(held, key == F.col("_held"), how) for rows in sides)
    return current, derived


def _derive_emitted_change(
    spark: SparkSession,
    sources: ChangeReader,
    contract: BoundContract,
    plan: Plan,
    name: str,
    current: Mapping[str, DataFrame],
) -> DerivedChange:
    """Return what the records that a kafka view has emitted up to this run change in its table."""
    table, shape = locate_own_table(contract, name), list_shapes(contract)[name]
    every = emission.read_epoch(spark, contract, plan, name)
    log = emitted_log.emitted_table(table.warehouse, contract, name)
    seen = incremental_state.find_last_run(contract, table, log)
    if seen is None or name == plan.only or not _has_same_epoch(log, seen.number, plan.run):
        return derive_whole_view(spark, contract, plan, name, current, every)
    new = every.where(F.col("_run") > seen.number)
    affected = emitted_table.derive_increment(new, every.where(F.col("_run") <= seen.number), shape, sources, table)
    return DerivedChange(table_diff.diff_increment(table, affected, None), tables.read_last_run(table))


def _has_same_epoch(log: Table, *runs: int) -> bool:
    """Return whether a kafka view had the same epoch, so the same definition, in all of these runs."""
    notes = [emitted_log.read_last_note(log, run) for run in runs]
    return len({note and note.epoch for note in notes}) == 1


def list_sources(contract: BoundContract, plan: Plan, name: str) -> list[Table]:
    """Return the tables by which to tell whether a view has anything new to process.

    For a kafka view these are logs, because a record that changes no table can make it emit; and its own emitted log,
    because what it emitted by another definition is no longer valid.
    """
    view, warehouse = contract.views[name], contract.warehouse
    if view.semantics == "corrected":
        return [locate_source_table(contract, plan, i) for i in view.inputs]
    topics = [i for i in view.inputs if i in contract.topics]
    return [
        *(of(warehouse, contract.pipeline, i) for i in topics for of in (tables.log_table, tables.fates_table)),
        *(emitted_log.emitted_table(warehouse, contract, i) for i in (*view.inputs, name) if i not in topics),
    ]


def _derive_left_out_since(view: OpenedView) -> tuple[DataFrame, LeftOut] | None:
    """Return what an aggregate of trimmed rows newly leaves out, and what it left out before; None if unknown."""
    contract, table = view.contract, view.table
    seen = incremental_state.find_last_run_of_any_size(contract, table)
    if (
        seen is None
        or contract.views[table.name].aggregate is None
        or incremental_state.has_trimmed_input(seen, view.inputs)
    ):
        return None
    affected, before = _refresh_view(view, seen), read_left_out(table, seen)
    return None if affected is None or affected.left_out is None or before is None else (affected.left_out, before)


def read_left_out(table: Table, seen: Run) -> LeftOut | None:
    """Return what an aggregate left out up to a run, by the note of its commit or by the journal; None if unknown."""
    note = commit_history.read_notes(table, TableNote.from_json).get(seen.number)
    if note is not None and note.left_out is not None:
        return note.left_out
    return journal.read_last_result(table.warehouse, table.pipeline, table.name).left_out
