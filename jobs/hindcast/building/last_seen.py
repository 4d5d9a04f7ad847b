"""The run in which a table last saw what it is made of, and what was done since that increments cannot tell."""

from __future__ import annotations

from hindcast import horizon
from hindcast.contracts import Contract
from hindcast.delta import tables
from hindcast.delta.tables import Table
from hindcast.planning import journal
from hindcast.planning.inputs import located
from hindcast.planning.journal import Run
from hindcast.planning.plans import Plan
from hindcast.replay import forgotten
from hindcast.settings import settings

WHOLE = 500_000
"""Up to so many rows of its inputs a table is derived whole: 360,000 took 15 s, by increments 24 s."""


def run(contract: Contract, table: Table, *inputs: Table) -> Run | None:
    """The last run that brought a table up to what it is made of; None if it is to be derived whole.

    That is the last one that published it, or that was completed; but only of this very contract, and if nothing of its
    inputs was forgotten since.
    """
    if tables.opened(table) is None or sum(map(tables.size, inputs)) <= WHOLE:
        return None
    return of_any_size(contract, table)


def of_any_size(contract: Contract, table: Table, since: int | None = None) -> Run | None:
    """The same, however few rows there are; or an earlier one, `since`."""
    past = journal.runs(table.warehouse, table.pipeline)
    last = journal.settled(past, tables.published(table))
    last = last if since is None else min(last, since)
    run = next((run for run in past if run.number == last), None)
    if run is None or run.plan["contract"] != contract.hash or forgotten.since(past, contract, table.name, last):
        return None
    return run


def changed_for_gates(contract: Contract, todo: Plan, table: Table, settled: int) -> bool:
    """Return whether gates may judge otherwise what they judged up to the run `settled`: by another contract, beside
    another table that they look into, or after something was forgotten.
    """
    past = journal.runs(table.warehouse, table.pipeline)
    run = next((run for run in past if run.number == settled), None)
    if run is None or run.plan["contract"] != contract.hash or forgotten.since(past, contract, table.name, settled):
        return True
    others = {gate.refers_to for gate in contract.expectations(table.name) if gate.refers_to}
    return any(
        todo.pins[other] != Plan.from_json(run.plan).pins.get(other)
        if other in todo.pins
        else tables.published(located(contract, other)) > settled
        for other in others
    )


def decoded_anew(contract: Contract, table: Table, name: str, since: int | None = None) -> bool:
    """Whether the records of a stream's table were brought by another contract, which decodes them otherwise; or were
    so up to an earlier run, `since`.
    """
    past = journal.runs(table.warehouse, table.pipeline)
    last = journal.settled(past, tables.published(table)) if since is None else since
    run = next((run for run in past if run.number == last), None)
    if run is None or run.plan["contract"] == contract.hash:
        return False
    return Plan.from_json(run.plan).decodings.get(name) != contract.topics[name].decoding


def redefined(contract: Contract, table: Table, name: str, since: int) -> bool:
    """Whether more than the records that came since the run `since` can have changed rows of a topic's table: another
    definition, or something that was forgotten. Before the first run (0) there are no rows.
    """
    if contract.topics[name].read == "stream":
        return decoded_anew(contract, table, name, since)
    return since > 0 and of_any_size(contract, table, since) is None


def requeued(contract: Contract, name: str, since: int) -> bool:
    """Whether records of a stream that a view is made of were requeued after a run."""
    streams = [n for n in contract.upstream(name) if n in contract.topics and contract.topics[n].read == "stream"]
    warehouse = settings().warehouse
    return any(tables.published(tables.fates(warehouse, contract.pipeline, n)) > since for n in streams)


def trimmed_since(seen: Run, inputs: dict[str, Table]) -> bool:
    """Whether an input does not tell any more what was believed of it in a run."""
    pins = Plan.from_json(seen.plan).pins
    horizons = {i: horizon.of(it) for i, it in inputs.items()}
    return any(at is not None and pins.get(i, seen.known_at) < at.at for i, at in horizons.items())
