"""The tables that a view is derived from; those of other pipelines are read as known at a moment that a plan fixes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache

from deltalake import DeltaTable

from hindcast.common.errors import RunError, TableError, suggest_nearest
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.contract.shapes import topic_shape
from hindcast.contract.types import parse_column_type
from hindcast.plan import definitions, journal, rehearsals
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import ArrivalInterval
from hindcast.plan.runs import Run
from hindcast.store import table_columns, tables
from hindcast.store.tables import Table


def locate_input_table(warehouse: str, contract: Contract, name: str, pin: datetime | None = None) -> Table:
    """Return the table of a contract's input, to be read as known at `pin` (None: now)."""
    source = contract.inputs[name]
    pipeline, _, table = source.table.partition(".")
    return Table(warehouse, pipeline, table, topic_shape(source).kind, tuple(source.key), pin)


def read_as_of_system_time(warehouse: str, contract: Contract, name: str, upto: datetime | None = None) -> datetime:
    """Return the known-at of the last completed run of an input's pipeline; of those known at `upto`, if that is given.

    Raise RunError if there is none, or if what was known then is gone: a later run has created the table again, or
    forgotten something. TableError if the table has another kind, key or column types than the contract, or a column
    that its own pipeline marked as sensitive, by the last contract that had the table, and the contract does not; also
    if that is not known.
    """
    source = contract.inputs[name]
    where, pipeline = f"{contract.pipeline}, inputs.{name}: {source.table}", source.table.partition(".")[0]
    past = journal.read_runs(warehouse, pipeline)
    completed = [run for run in past if run.state == "completed" and (upto is None or run.known_at <= upto)]
    delta_table = tables.open_table(locate_input_table(warehouse, contract, name))
    if not completed or delta_table is None:
        fix, then = f"hindcast run {pipeline}, or name another table", ""
        if upto is not None:
            fix, then = f"rehearse {pipeline} first", f" that is known at {upto.isoformat()}"
        raise RunError(f"no completed run{then} has published the table", where=where, fix=fix)
    marks = tables.read_marks(delta_table) or tables.NO_MARKS
    if marks["kind"] != topic_shape(source).kind or list(marks["key"]) != list(source.key):
        found = f"holds {marks['kind']} with the key {', '.join(marks['key'])}"
        raise TableError(found, where=where, fix=_FIXES.get(marks["kind"], "windows and pairs cannot be inputs yet"))
    moment = max(run.known_at for run in completed)
    types = table_columns.column_types(delta_table, moment)
    for column, kind in {**source.key, **source.value}.items():
        if column not in types or parse_column_type(types[column]) != kind:
            found = f"column '{column}' is {types[column]}" if column in types else f"no column '{column}'"
            fix = f"write its actual type, not {kind}" if column in types else suggest_nearest(column, types)
            raise TableError(found, where=where, fix=fix)
    if definitions.find_fields(past, completed[-1].plan.contract) is None:
        found = f"the contract of {pipeline}'s last completed run is not stored, so its sensitive columns are not known"
        raise TableError(found, where=where, fix=f"hindcast run {pipeline}")
    hidden = find_stored_marks(past, source.table.partition(".")[2])
    columns = (*source.key, *source.value)
    marked = columns if source.sensitive is True else source.sensitive or ()
    unmarked = [c for c in columns if (hidden is None or c in hidden) and c not in marked]
    if unmarked and hidden is None:
        found = f"the last contract of {pipeline} that had the table is not stored, or is not valid today and has marks"
        listed = ", ".join(unmarked)
        fix = (
            f"write sensitive: [{listed}] in this input; or hindcast run {pipeline}, with a valid contract that has it"
        )
        raise TableError(f"{found}: whether {listed} are sensitive is not known", where=where, fix=fix)
    if unmarked:
        found = f"{', '.join(unmarked)}: sensitive in pipeline {pipeline}, not marked here"
        raise TableError(found, where=where, fix=f"write sensitive: [{', '.join(unmarked)}] in this input")
    later = _list_later_runs(past, moment, only_open=upto is not None)
    if (change := _find_later_change(past, later, source.table.partition(".")[2], delta_table, moment)) is not None:
        found = f"what was known at {moment.isoformat()}, after its last completed run, is gone: {change}"
        raise RunError(
            found, where=where, fix=f"wait until that run has ended, or finish it; then hindcast run {pipeline}"
        )
    return moment


def _list_later_runs(past: Sequence[Run], moment: datetime, *, only_open: bool) -> list[Run]:
    """Return the runs that are known after a moment; `only_open`: without those that are completed, for a moment that
    later runs were completed after anyway.
    """
    return [run for run in past if run.known_at > moment and not (only_open and run.state == "completed")]


def _find_later_change(
    past: Sequence[Run], later: Sequence[Run], name: str, delta_table: DeltaTable, moment: datetime
) -> str | None:
    """Return why a table's rows can no longer be read as known at a moment, in words; None if they can.

    `past`: the runs of the table's pipeline; `later`: those whose erasures count.
    """
    beginning = tables.read_beginning(delta_table)
    if beginning is not None and beginning > moment:
        return f"the table has only rows known from {beginning.isoformat()} on"
    erasing = (run for run in later if _erases(past, run, name))
    run = next(erasing, None)
    return f"run {run.number} has forgotten something of it" if run is not None else None


def refuse_unrehearsed(contract: BoundContract, interval: ArrivalInterval) -> None:
    """Raise RunError if an input's pipeline may still be rehearsed for what a rehearsed run reads of it."""
    for name, source in contract.inputs.items():
        pipeline = source.table.partition(".")[0]
        past = journal.read_runs(contract.warehouse, pipeline)
        end = rehearsals.find_end(past)
        if rehearsals.is_open(past) and (end is None or end < interval.until):
            upto = "nothing" if end is None else f"what arrived up to {end.isoformat()}"
            where = f"{contract.pipeline}, inputs.{name}"
            fix = f"rehearse {pipeline} to {interval.until.isoformat()} first"
            raise RunError(f"of {pipeline} {upto} was rehearsed", where=where, fix=fix)
        read_as_of_system_time(contract.warehouse, contract, name, interval.until)


def _erases(past: Sequence[Run], run: Run, name: str) -> bool:
    """Return whether a run that forgets may have removed rows of a table."""
    if (erasure := run.plan.erasure) is None:
        return False
    contract = definitions.find_contract(past, run.plan.contract)
    return contract is None or erasure.removes_rows_of(contract, name)


def find_stored_marks(past: Sequence[Run], name: str) -> Collection[str] | None:
    """Return what `list_stored_marks` does of one table."""
    return list_stored_marks(past, [name])[name]


def list_stored_marks(past: Sequence[Run], names: Iterable[str]) -> dict[str, Collection[str] | None]:
    """Return the sensitive columns of tables, by the last contract that had them whose run completed or published them.

    `past`: the runs of their pipeline. None if the columns are not known: the contract, or a later one, is not stored,
    or its fields make no contract today, and mark something.
    """
    left = {*names}
    found: dict[str, Collection[str] | None] = dict.fromkeys(left)
    known: dict[str, _StoredMarks | None] = {}
    for run in reversed(past):
        own = {name for name in left if run.state == "completed" or run.had_published(name)}
        if not own:
            continue
        if run.plan.contract not in known:
            fields = definitions.find_fields(past, run.plan.contract)
            known[run.plan.contract] = None if fields is None else _StoredMarks(fields)
        if (stored := known[run.plan.contract]) is not None:
            own &= stored.tables
            found |= {name: stored.find(name) for name in own}
        left -= own
    return found


class _StoredMarks:
    """The topics and views of a stored contract, which is parsed only for the marks of one that it has."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        places = (place.split(".") for place in fields)
        self.tables = frozenset(path[1] for path in places if path[0] in ("topics", "views") and len(path) > 2)
        self._fields = fields

    @cached_property
    def _columns(self) -> Mapping[str, frozenset[str]] | None:
        """The sensitive columns by table; None if they are not known."""
        columns = _find_sensitive_columns(tuple(self._fields.items()))
        return {} if columns is None and not definitions.has_marks(self._fields) else columns

    def find(self, name: str) -> frozenset[str] | None:
        """Return the sensitive columns of a table; None if they are not known."""
        return None if self._columns is None else self._columns.get(name, frozenset())


@lru_cache(maxsize=64)
def _find_sensitive_columns(fields: tuple[tuple[str, str], ...]) -> Mapping[str, frozenset[str]] | None:
    """Return what is sensitive by a contract with these stored fields; None if it is none today."""
    contract = definitions.parse_stored_fields(fields)
    return None if contract is None else find_sensitive_columns(contract)


def locate_source_table(contract: BoundContract, plan: Plan, name: str) -> Table:
    """Return a table that a view is derived from: of a topic, of a view, or of another pipeline as the plan pins it."""
    if name in contract.inputs:
        return locate_input_table(contract.warehouse, contract, name, plan.as_of_system_times[name])
    return locate_own_table(contract, name)


def refuse_lost_inputs(contract: BoundContract, plan: Plan, name: str) -> None:
    """Raise TableError if an input of a view can no longer be read as of the moment that the plan pins.

    Its folder was removed since, its pipeline begun again, or something was forgotten.
    """
    for i in contract.views[name].inputs:
        source = locate_source_table(contract, plan, i)
        delta_table = tables.open_table(source) if source.as_of_system_time is not None else None
        if source.as_of_system_time is None or delta_table is None:
            continue
        past, pin = journal.read_runs(source.warehouse, source.pipeline), source.as_of_system_time
        later = _list_later_runs(past, pin, only_open=plan.rehearsed_interval is not None)
        if (change := _find_later_change(past, later, source.name, delta_table, pin)) is not None:
            raise TableError(
                f"reads {i} ({source.pipeline}.{source.name}) as known at {source.as_of_system_time.isoformat()}, but "
                f"{change}",
                where=f"{contract.pipeline}.{name}, run {plan.run}",
                fix=f"let {source.pipeline} complete a run, abandon this one (hindcast abandon "
                f"{contract.pipeline}), then run the pipeline without `only`",
            )


def locate_own_table(contract: BoundContract, name: str) -> Table:
    """Return the table of a topic or view in the configured warehouse."""
    return tables.locate_table(contract.warehouse, contract, name)


_FIXES = {
    "versions": "read it as a table (read: table), and write its key as it is",
    "events": "read it as a stream (read: stream), and write its key as it is",
}
