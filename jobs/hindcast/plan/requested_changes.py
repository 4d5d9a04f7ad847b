"""What a person has asked a run to change: to release or to forget something, with what follows in other tables.

Such a run ingests nothing, but reads the contract as it is now and inputs as they are now: what these change, nobody
has asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from hindcast.contract import Contract
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import Erasure, Release, Replay
from hindcast.plan.runs import Run


def changes_only_what_was_asked(contract: Contract, past: Sequence[Run], plan: Plan, name: str) -> bool:
    """Return whether a run releases or forgets, and what it changes in a table follows from that alone.

    It does if, since the last run about all tables, every run was completed, by the same contract, with the inputs
    above the table as known at the same moments.
    """
    if not isinstance(plan.purpose, Release | Erasure):
        return False
    above = contract.list_upstream(name)

    def read_pins(of: Plan) -> dict[str, object]:
        return {name: moment for name, moment in of.as_of_system_times.items() if name in above}

    for run in reversed([run for run in past if run.number < plan.run]):
        if run.state != "completed" or run.plan.contract != plan.contract or read_pins(run.plan) != read_pins(plan):
            return False
        if isinstance(run.plan.purpose, Replay) and run.plan.only is None:
            return True
    return False
