"""Close a period of a pipeline, or those that are due by its contract: name what is believed of it (plan/closes.py)."""

from __future__ import annotations

from datetime import datetime, timedelta

from hindcast.common import clock
from hindcast.common.errors import HindcastError, RequestError
from hindcast.contract.bound import BoundContract
from hindcast.plan import closes, horizon, journal
from hindcast.plan.closes import Close
from hindcast.plan.purposes import Replay
from hindcast.query import read
from hindcast.store import tables


def close_period(
    contract: BoundContract, name: str, start: datetime | None, end: datetime, known_at: datetime | None, by: str
) -> Close:
    """Close [start, end) under a name and return the close; one that is stored already if it is the same.

    `start`: by default the end of the last close; `known_at`: by default that of the last completed run, or that of a
    close which has this name and period. RequestError for a name, a period or a close that cannot be (`add_close`), and
    for a pipeline whose first close has no start; QueryError for a known-at that cannot be answered yet, and for what a
    table no longer has, also of a close that is stored: its process may have died before it could look.
    """
    warehouse, pipeline = contract.warehouse, contract.pipeline
    past = closes.list_kept(warehouse, pipeline)
    same = next((it for it in past if it.name == name), None)
    if start is None:
        if not past:
            found, fix = "the pipeline has no close yet, at whose end this one could begin", "add --from TIME"
            raise RequestError(found, where=pipeline, fix=fix)
        start = same.start if same is not None else past[-1].end
    if known_at is None:
        is_repeated = same is not None and (same.start, same.end) == (start, end)
        known_at = same.known_at if same is not None and is_repeated else read.read_last_known_at(warehouse, pipeline)
    read.refuse_unanswerable(warehouse, pipeline, known_at)
    close = Close(name, start, end, known_at, clock.now(), by)
    if same is None and start < end:
        _refuse_trimmed_close(contract, close, is_stored=False)
    stored = closes.add_close(warehouse, pipeline, close)
    is_new = stored == close
    try:  # a trim that has not seen it has written its horizons by now
        _refuse_trimmed_close(contract, stored, is_stored=not is_new)
    except BaseException:
        if is_new:
            closes.take_back_close(warehouse, pipeline, close)
        raise
    return stored


def close_due_periods(contract: BoundContract) -> list[str]:
    """Close the periods that are due by the contract and not closed yet; return what was closed or not, as lines.

    Due are those from that of the first run on, once a run of all tables, for all of the period, is so long after its
    end as the contract says. The close has what the first such run knew. A name that was used is left alone.
    """
    if (closing := contract.close) is None:
        return []
    warehouse, pipeline = contract.warehouse, contract.pipeline
    completed = journal.read_completed_runs(warehouse, pipeline)
    past = [run for run in completed if isinstance(run.plan.purpose, Replay) and run.plan.only is None]
    used = {close.name for close in closes.read_closes(warehouse, pipeline)}
    wait, lines = closing.after or timedelta(0), []
    for name, start, end in closing.list_periods(past[0].known_at, past[-1].known_at) if past else ():
        runs = (run for run in past if run.known_at - wait >= end and (run.plan.interval_end or end) >= end)
        known_at = next((run.known_at for run in runs), None)
        if name in used or known_at is None:
            continue
        try:
            close = close_period(contract, name, start, end, known_at, _BY_SCHEDULE)
            lines.append(f"closed {name}: {closes.describe_close(close)}")
        except HindcastError as error:
            lines.append(f"not closed: {name}: {error}")
    return lines


_BY_SCHEDULE = "hindcast maintain"


def _refuse_trimmed_close(contract: BoundContract, close: Close, *, is_stored: bool) -> None:
    """Raise QueryError if a trim may have removed what a table had of a close."""
    for name in (*contract.topics, *contract.views):
        table = tables.locate_table(contract.warehouse, contract, name)
        horizon.refuse_trimmed_close(table, horizon.read_horizon(table), close, is_stored=is_stored)
        if (delta_table := tables.open_table(table)) is not None:
            horizon.refuse_dropped(table, delta_table, close.known_at)
