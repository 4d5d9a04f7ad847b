"""How far a kafka view has got: the epoch and the runs that have emitted, and whether it has to begin from scratch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from hindcast.common.errors import TableError
from hindcast.contract.bound import BoundContract
from hindcast.ingest import erasure_marks
from hindcast.plan import horizon, journal
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.store import emitted_log as emitted_
from hindcast.store import tables
from hindcast.store.tables import Table


class EmissionProgress(NamedTuple):
    """How far a view had got before a run.

    Its epoch; the runs that last replaced its state and last emitted in this epoch, 0 before the first; with `wait` the
    time before which everything has been processed, in ms. `state_run` is this run if it has replaced the state.
    `sources`: as the run's note has them.
    """

    epoch: int
    state_run: int
    emitted_run: int
    upto: int
    sources: Mapping[str, int]

    @property
    def is_restart(self) -> bool:
        """True if the view has emitted before, and begins from scratch."""
        return self.epoch > 1 and not self.emitted_run


def read_progress(contract: BoundContract, plan: Plan, name: str, previewed: Collection[str] = ()) -> EmissionProgress:
    """Return how far a view had got before a run.

    In a new epoch if its definition, the epoch of a view that it reads or the partition count of a topic has changed
    since, or anything behind it was forgotten; with `wait` also if it got records at offsets before those that it has
    processed. `previewed`: the views that have emitted only in a preview.
    """
    log = emitted_.emitted_table(contract.warehouse, contract, name)
    note = emitted_.read_last_note(log, plan.run - 1)
    past = [run for run in journal.read_runs(log.warehouse, contract.pipeline) if run.number <= plan.run]
    sources = _list_sources(contract, plan, name, previewed)
    restarts = (
        note is None
        or note.definition not in (contract.hash_definition(name), contract.hash_definition(name, formerly=True))
        or note.sources not in (None, sources)
        or erasure_marks.has_forgotten_since(past, contract, name, note.run)
        or (contract.views[name].wait and _has_earlier_records(past, contract, plan, name, note.run))
    )
    epoch = (note.epoch if note else 0) + restarts
    state_run = tables.read_last_run(state_table(contract, name, epoch))
    if note is None or restarts:
        return EmissionProgress(epoch, state_run, 0, -1, sources)
    processed = emitted_.read_last_note(log, min(state_run, plan.run - 1))
    upto = processed.upto if processed and state_run else -1
    return EmissionProgress(epoch, state_run, note.run, upto, sources)


def _has_earlier_records(past: list[Run], contract: BoundContract, plan: Plan, name: str, since: int) -> bool:
    """Return whether a topic behind a view got records from before its start offset after a run, or gets them now.

    An abandoned run may have brought them under a `from` that the contract no longer has.
    """
    plans = [*(run.plan for run in past if since < run.number < plan.run), plan]
    for topic in (source for source in contract.list_upstream(name) if source in contract.topics):
        own = [some for some in plans if topic in some.topics]
        for some, following in zip(own, [*own[1:], None], strict=True):
            has_ingested = following is None or following.topics[topic].after >= some.first_number
            if some.topics[topic].earlier and has_ingested:
                return True
    return False


def needs_restart(contract: BoundContract, plan: Plan, name: str) -> bool:
    """Return whether a view that has emitted has to begin from scratch."""
    return read_progress(contract, plan, name).is_restart


def read_emitted_epoch(contract: BoundContract, name: str, run: int) -> int:
    """Return the epoch in which a view has emitted last, up to a run; 0 if it has not."""
    note = emitted_.read_last_note(emitted_.emitted_table(contract.warehouse, contract, name), run)
    return note.epoch if note is not None else 0


def _list_sources(contract: BoundContract, plan: Plan, name: str, previewed: Collection[str]) -> dict[str, int]:
    """Return the inputs of a view, as its note has them: of a topic the number of partitions, of a view the epoch."""
    sources: dict[str, int] = {}
    for i in contract.views[name].inputs:
        if i in contract.topics:
            sources[i] = len(plan.topics[i].ranges)
        elif i in previewed:
            sources[i] = read_progress(contract, plan, i, previewed).epoch
        else:
            sources[i] = read_emitted_epoch(contract, i, plan.run)
    return sources


def state_table(contract: BoundContract, name: str, epoch: int) -> Table:
    """Return the table of the state that a view keeps from run to run."""
    return Table(contract.warehouse, contract.pipeline, f"kept/{name}/{epoch}", "kept")


def is_between_commits(contract: BoundContract, name: str) -> bool:
    """Return whether a view has emitted in a run that has not replaced its state, and never may: the next will."""
    log = emitted_.emitted_table(contract.warehouse, contract, name)
    note = emitted_.read_last_note(log, tables.read_last_run(log))
    return note is not None and tables.read_last_run(state_table(contract, name, note.epoch)) < note.run


def refuse_restart(contract: BoundContract, name: str) -> None:
    """Raise TableError if a view has to start from scratch but a log behind it was trimmed."""
    for topic in (source for source in contract.list_upstream(name) if source in contract.topics):
        at = horizon.read_horizon(tables.log_table(contract.warehouse, contract.pipeline, topic))
        if at is not None:
            raise TableError(
                f"would start from scratch, but the log of {topic} was trimmed up to {at.moment.isoformat()}: what "
                "it would have emitted before is unknown",
                where=f"{contract.pipeline}.{name}",
                fix="rename the view, so that it starts with what the logs still have; or restore its definition, if "
                "that has changed (a topic with more partitions, a `from` that was moved back, or a view that it "
                "reads, has the same effect)",
            )
