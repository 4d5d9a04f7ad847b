"""Whose turn it is: which run of a pipeline's DAGs goes before one that is not planned yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hindcast.airflow import priority
from hindcast.common.errors import RequestError
from hindcast.contract import Contract
from hindcast.contract.names import RELEASE
from hindcast.plan import rehearsals
from hindcast.plan.runs import Run

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from hindcast.airflow.run_requests import RunRequest

_MOST_NAMED = 50
"""So many runs are named in one question to Airflow."""


def describe_predecessor(context: Context, contract: Contract, past: Sequence[Run], request: RunRequest) -> str | None:
    """Return which waiting run goes before one that is not planned yet, in a sentence; None if there is none.

    `past`: the runs in the pipeline's journal. A release that a person has approved goes first, then fresh runs, then
    backfills; but while the pipeline can be rehearsed, backfills, of which a rehearsed interval waits for the earlier
    ones. If no gate can hold changes back, Airflow has no DAG of approvals: one that still waits will never begin, and
    the run publishes what was held.
    """
    ti, dag_run, run_id = context["ti"], context["dag_run"], context["run_id"]
    if contract.can_hold and (waiting := _find_approval(ti)):
        return f"{waiting} goes first: a person has approved it"
    is_backfill = dag_run.run_type == "backfill"
    if contract.has_arrivals and rehearsals.find_run_by_clock(past) is None:
        if request.rehearsed:
            return _find_earlier_interval(ti, contract.pipeline, past)
        if not is_backfill and _has_backfill(ti, run_id, is_open=rehearsals.is_open(past)):
            return "a backfill goes first: it may rehearse the pipeline, which only runs by the clock may follow"
    elif is_backfill and ti.get_dr_count(ti.dag_id, states=["running"]) > 1:
        states = ti.get_task_states(ti.dag_id, task_ids=[ti.task_id])
        fresh = priority.find_fresh_run(run_id, {run: state.get(ti.task_id) for run, state in states.items()})
        if fresh:
            return f"{fresh} goes first: it is not a backfill"
    return None


def _find_approval(ti: RuntimeTaskInstanceProtocol) -> str | None:
    """Return the run that waits to publish what a person has approved; None if there is none."""
    release = f"{ti.dag_id}{RELEASE}"
    if not ti.get_dr_count(release, states=["running"]):
        return None
    states = ti.get_task_states(release, task_ids=["plan"])
    waiting = priority.find_waiting_run({run: state.get("plan") for run, state in states.items()})
    return None if ti.get_dag(release).is_paused else waiting


def _find_earlier_interval(ti: RuntimeTaskInstanceProtocol, pipeline: str, past: Sequence[Run]) -> str | None:
    """Return that the run of the interval before goes first, while it is running.

    RequestError if it waits behind this one, or has ended without rehearsing its interval.
    """
    before = ti.get_previous_dagrun()
    if before is None or before.run_type != "backfill":
        return None
    if before.state == "running":
        return f"{before.run_id} goes first: its interval is an earlier one"
    if before.state == "queued":
        fix = "create the backfill forwards; of runs that you clear, the earliest goes first, then this one"
        raise RequestError(f"{before.run_id} goes first, and waits until this run has ended", where=pipeline, fix=fix)
    end, until = rehearsals.find_end(past), before.data_interval_end
    if until is not None and (end is None or end < until):
        fix = "clear it, then this one; or delete it, if nothing is to be rehearsed for it"
        raise RequestError(f"{before.run_id} goes first, and has not rehearsed its interval", where=pipeline, fix=fix)
    return None


def _has_backfill(ti: RuntimeTaskInstanceProtocol, run_id: str, *, is_open: bool) -> bool:
    """Return whether a run of a backfill of the DAG has not ended.

    Of a rehearsal that is open, whether any run has not that is of an earlier moment: a backfill can take over other
    runs, which keep their ids.
    """
    runs, own = ti.get_task_states(ti.dag_id, task_ids=["report"]), priority.parse_moment(run_id)
    asked = [run for run in runs if run.startswith(priority.BACKFILL_PREFIX)]
    if is_open and own is not None:
        moments = {run: priority.parse_moment(run) for run in runs}
        asked += [run for run, at in moments.items() if at is not None and at < own and run not in asked]
    return any(
        ti.get_dr_count(ti.dag_id, run_ids=asked[first : first + _MOST_NAMED], states=["queued", "running"])
        for first in range(0, len(asked), _MOST_NAMED)
    )
