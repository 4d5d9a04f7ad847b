"""Runs that do something else than replay: they release held changes, requeue malformed records, or upgrade a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from hindcast.common import step_events
from hindcast.common.errors import RequestError, RunError
from hindcast.common.settings import Settings
from hindcast.contract.bound import BoundContract
from hindcast.ingest import requeue as requeues
from hindcast.plan import horizon, journal, planner
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.purposes import Release, ReleasedKeys, Requeue, Upgrade
from hindcast.plan.runs import Run
from hindcast.report.run_report import RunReport
from hindcast.runs import run_steps
from hindcast.store import tables


def run_release(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    run_id: str,
    keys: Mapping[str, Sequence[str]],
    by: str,
    until: datetime,
    reason: str | None = None,
) -> RunReport:
    """Do a run that ingests nothing and publishes changes that were held back; return its report.

    What is new in tables of other pipelines is published too, like in any run.

    `keys`: by table the keys to release, as `held_changes.find_held_keys` returns them; `by`: who releases them now,
    and for what `reason`; `until`: when that person looked at them. What has changed since then is held again.
    """
    number = plan_release(settings, pipeline, run_id, keys, by, until, datetime.now(UTC), reason)
    return run_steps.execute_run(spark, settings, pipeline, number)


def run_planned_release(spark: SparkSession, settings: Settings, pipeline: str, run_id: str) -> RunReport:
    """Do a release whose plan is stored (`plan_release`), by the name of its run; return its report.

    The journal has the keys: command lines, which others can read, do not. If the plan was abandoned, or the contract
    has changed since, the release is planned again. Raise RunError if there is no plan of a release.
    """
    plan = find_release(settings.warehouse, pipeline, run_id).plan
    number = _plan_checked_release(settings, pipeline, run_id, Release(plan.released_keys), plan.reason)
    return run_steps.execute_run(spark, settings, pipeline, number)


def find_release(warehouse: str, pipeline: str, run_id: str) -> Run:
    """Return the last release of this name; RunError if none is planned. A run for something else can have its name."""
    named = (run for run in reversed(journal.read_runs(warehouse, pipeline)) if run.run_id == run_id)
    release = next((run for run in named if isinstance(run.plan.purpose, Release)), None)
    if release is None:
        raise RunError(f"the release {run_id} has no plan", where=pipeline, fix="clear the task plan, which stores it")
    return release


def plan_release(
    settings: Settings,
    pipeline: str,
    run_id: str,
    keys: Mapping[str, Sequence[str]],
    by: str,
    until: datetime,
    at: datetime | None = None,
    reason: str | None = None,
) -> int:
    """Store the plan of a release, or find that of an earlier attempt; return the run's number.

    `at`: when the person answered; the others as for `run_release`. Raise RequestError for a table that the contract
    does not have.
    """
    released = {name: ReleasedKeys(until, tuple(some), by, at) for name, some in keys.items() if some}
    return _plan_checked_release(settings, pipeline, run_id, Release(released), reason, keys)


def _plan_checked_release(
    settings: Settings,
    pipeline: str,
    run_id: str,
    purpose: Release,
    reason: str | None,
    tables_asked: Iterable[str] = (),
) -> int:
    """Store the plan of a release and return the run's number; RequestError for a table that the contract lacks."""
    contract = find_bound_contract(settings, pipeline)
    if gone := sorted({*purpose.tables, *tables_asked} - {*contract.topics, *contract.views}):
        fix = "put it back into the contract, or release only changes of other tables"
        raise RequestError(f"the contract has no table {', '.join(gone)}", where=pipeline, fix=fix)
    return _plan_special_run(contract, run_id, purpose, reason)


def run_requeue(spark: SparkSession, settings: Settings, pipeline: str, run_id: str, request: Requeue) -> RunReport:
    """Do a run that decodes malformed records again (`requeue.build_request`), and nothing else; return its report.

    Raise RequestError if there are none, unless the run `run_id` is still unfinished.
    """
    contract = find_bound_contract(settings, pipeline)
    counts = requeues.count_waiting(settings.warehouse, contract, request)
    past = journal.read_runs(settings.warehouse, pipeline)
    if not counts and not any(run.run_id == run_id and run.plan.requeue and not run.is_finished for run in past):
        fix = f"hindcast quarantine {pipeline} lists what is refused, and why"
        trimmed = {
            name: horizon.read_horizon(tables.log_table(settings.warehouse, pipeline, name)) for name in request.topics
        }
        moments = [
            f"{at.refused_before.isoformat()} of {name}" for name, at in trimmed.items() if at and at.refused_before
        ]
        fix += f"; what was refused before {', '.join(moments)} was trimmed" if moments else ""
        raise RequestError("no malformed record like that is left", where=pipeline, fix=fix)
    return run_steps.execute_run(
        spark, settings, pipeline, _plan_special_run(contract, run_id, replace(request, topics=tuple(counts)))
    )


def run_upgrade(spark: SparkSession, settings: Settings, pipeline: str, run_id: str, request: Upgrade) -> RunReport:
    """Do a run that only converts a table to the current store format (ops/upgrade/); return its report."""
    contract = find_bound_contract(settings, pipeline)
    return run_steps.execute_run(spark, settings, pipeline, _plan_special_run(contract, run_id, request))


def _plan_special_run(
    contract: BoundContract, run_id: str, instead: Release | Requeue | Upgrade, reason: str | None = None
) -> int:
    """Store the plan of a run that does something `instead` of replaying (`planner.ensure_plan`); return its number.

    Raise ContractError as `run_steps.plan_run` does, except for an upgrade.
    """
    with step_events.record_step("plan", contract.pipeline):
        step_events.record_begin(run_id=run_id)
        if not isinstance(instead, Upgrade):  # it may adopt a table that is nobody's yet
            run_steps.refuse_unfit_contract(contract)
        run_steps.write_missing_page(contract.settings, contract.pipeline)
        plan = planner.ensure_plan(contract, run_id, reason=reason, instead=instead)
        run_steps.record_plan(plan)
    return plan.run
