"""The steps of a run as Airflow's tasks call them. Importing this module needs neither Spark nor a connection.

An error that no retry can fix (a contract, a record, a gate, a table of another form) fails the task at once.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

from hindcast.airflow import run_requests, step_metrics
from hindcast.common import step_events
from hindcast.common.errors import FINAL_ERRORS, BusyError, HindcastError, RequestError
from hindcast.common.json_values import JsonObject
from hindcast.common.plurals import format_count

if TYPE_CHECKING:
    from typing import Unpack

    from airflow.sdk import Context, PokeReturnValue
    from airflow.sdk.types import OutletEventAccessorsProtocol
    from pyspark.sql import SparkSession

    from hindcast.common.json_values import JsonObject
    from hindcast.common.settings import Settings
    from hindcast.runs.table_steps import TableStep


def check_preview(context: Context) -> None:
    """Fail the task of a preview if its form is invalid."""
    with _raise_airflow_errors():
        run_requests.refuse_invalid_preview(context, datetime.now(UTC))


def plan(pipeline: str, **context: Unpack[Context]) -> PokeReturnValue:
    """Store the run's plan, as a sensor, and return the run's number once that is done.

    If only a preview was asked for, the task and all that follow it are skipped. Not done while another run of the
    pipeline is under way: its runs are serialised, though Airflow starts those of a backfill and of the schedule at the
    same time. Nor while a run waits that goes first (`turns.describe_predecessor`). Of an interval to be rehearsed it
    returns the number of the run that has rehearsed it, with the XCom `rehearsed`; or none, and the task `rehearse`
    stores the plan.
    """
    from airflow.sdk import PokeReturnValue
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast.airflow import connections, turns
    from hindcast.common.settings import read_settings
    from hindcast.contract import find
    from hindcast.plan import journal, rehearsals
    from hindcast.plan.purposes import Replay
    from hindcast.runs import run_steps

    ti, run_id = context["ti"], context["run_id"]
    with _raise_airflow_errors():
        connections.apply_connection()
        request = run_requests.read_run_request(context, datetime.now(UTC))
        ti.xcom_push("only", request.only or "")
        if context["params"]["preview"]:
            ti.xcom_push("until", request.until.isoformat() if request.until else "")
            raise AirflowSkipException("this run is only a preview")
        settings = read_settings()
        past = journal.read_runs(settings.warehouse, pipeline)
        if request.rehearsed and (done := rehearsals.find_completed_run(past, request.rehearsed)):
            print(f"the interval was rehearsed before, by run {done.number} ({done.run_id}); nothing is done")
            ti.xcom_push("rehearsed", str(done.number))
            return PokeReturnValue(is_done=True, xcom_value=done.number)
        own = [run for run in past if run.run_id == run_id and isinstance(run.plan.purpose, Replay)]
        contract = find(settings.schemas, pipeline, settings.choice)
        begun = any(not run.is_finished for run in own)
        if not begun and (waiting := turns.describe_predecessor(context, contract, past, request)):
            print(waiting)
            return PokeReturnValue(is_done=False)
        if request.rehearsed:
            rehearsals.refuse_rehearsal(contract, past)
            rehearsals.refuse_future(pipeline, request.rehearsed.until)
            if (
                other := next((run for run in past if run.state == "planned" and run.run_id != run_id), None)
            ) is not None:
                print(f"run {other.number} ({other.run_id}) has not ended")
                return PokeReturnValue(is_done=False)
            interval = request.rehearsed.as_json()
            asked = {**interval, "earlier": request.earlier, "reason": request.reason}
            ti.xcom_push("rehearses", json.dumps(asked))
            return PokeReturnValue(is_done=True)
        try:
            options = (request.until, request.only, request.reason)
            number = run_steps.plan_run(settings, pipeline, run_id, *options, ends_rehearsal=True)
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=number)


def plan_release(pipeline: str, name: str, until: str, by: str, labels: str) -> PokeReturnValue:
    """Store the plan of the release `name`, as a sensor, and return its run's number once that is done.

    Not done while another run of the pipeline is under way; no other begins before this one (`plan`). It fails if
    nobody (`by`) has answered, or not about any keys (`labels`, a JSON list).
    """
    from airflow.sdk import PokeReturnValue

    from hindcast.airflow import connections
    from hindcast.common.settings import read_settings
    from hindcast.runs import special_runs

    with _raise_airflow_errors():
        connections.apply_connection()
        settings = read_settings()
        keys = _read_chosen_keys(settings, pipeline, until, by, labels)
        try:
            number = special_runs.plan_release(settings, pipeline, name, keys, by, datetime.fromisoformat(until))
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=number)


def skip_unconcerned(pipeline: str, name: str, context: Context) -> None:
    """Skip the task of table `name` if its run is limited to another table and what is downstream of that."""
    only = context["ti"].xcom_pull(task_ids="plan", key="only")
    from airflow.sdk.exceptions import AirflowSkipException

    if context["ti"].xcom_pull(task_ids="plan", key="rehearsed"):
        raise AirflowSkipException("the interval was rehearsed before")
    if not only:
        return

    from hindcast.common.settings import read_settings
    from hindcast.contract import find

    with _raise_airflow_errors():
        settings = read_settings()
        if name not in find(settings.schemas, pipeline, settings.choice).list_tables_below(only):
            raise AirflowSkipException(f"the run is limited to {only} and everything downstream")


def skip_rehearsal(context: Context) -> None:
    """Skip the task that plans a rehearsed run where the run is none, or its interval was rehearsed before."""
    from airflow.sdk.exceptions import AirflowSkipException

    if context["params"]["replay"] != run_requests.REHEARSAL:
        raise AirflowSkipException("the run is no rehearsal")
    if context["ti"].xcom_pull(task_ids="plan", key="rehearsed"):
        raise AirflowSkipException("the interval was rehearsed before")


def rehearse(pipeline: str, name: str, request: str, spark: SparkSession) -> int:
    """Store the plan of the rehearsed run `name` and return its number (`rehearsal.plan_requested_run`)."""
    with _raise_airflow_errors():
        from hindcast.airflow import connections
        from hindcast.common.settings import read_settings
        from hindcast.runs import rehearsal

        connections.apply_connection()
        return rehearsal.plan_requested_run(spark, read_settings(), pipeline, name, request)


def table_callable(step: TableStep) -> Callable[..., JsonObject]:
    """Return a function, with the step's name, that does the step for one table and returns the commit's note."""

    def execute(pipeline: str, run: str, name: str, spark: SparkSession) -> JsonObject:
        with _raise_airflow_errors():
            if step.per == "topic":
                from hindcast.airflow import connections

                connections.apply_connection()
            from hindcast.common.settings import read_settings
            from hindcast.runs import run_steps

            return run_steps.execute_step(spark, read_settings(), pipeline, int(run), step, name).as_json()

    execute.__name__ = execute.__qualname__ = step.name
    return execute


def preview(pipeline: str, until: str, only: str, spark: SparkSession) -> None:
    """Print what a run would change, up to a moment or limited to one table (empty: no limit); write no table."""
    with _raise_airflow_errors():
        from hindcast.airflow import connections
        from hindcast.common.settings import read_settings
        from hindcast.query import read
        from hindcast.runs import preview as previews
        from hindcast.runs import run_preview

        connections.apply_connection()
        settings = read_settings()
        end = read.moment_of(settings.warehouse, pipeline, until) if until else None
        print(run_preview.format_preview(previews.preview_run(spark, settings, pipeline, end, only or None)))


def pipelines() -> list[list[str]]:
    """Return the names of the pipelines whose contracts load, each as the arguments of a task.

    Of very many several are those of one: Airflow maps a task at most 1,024 times (`max_map_length`).
    """
    from hindcast.common.settings import read_settings
    from hindcast.contract import Contract, try_load_all

    settings, names = read_settings(), set()
    for contract in try_load_all(settings.schemas, settings.choice).values():
        if isinstance(contract, Contract):
            names.add(contract.pipeline)
        else:
            print(f"left out: {contract}")
    groups = min(len(names), _MOST_MAPPED)
    return [sorted(names)[first::groups] for first in range(groups)]


_MOST_MAPPED = 1_000


def maintain(*pipelines: str, spark: SparkSession) -> None:
    """Compact, cluster and vacuum the tables of pipelines, and print what was done (`maintain_pipelines`)."""
    with _raise_airflow_errors():
        from hindcast.common.settings import read_settings
        from hindcast.ops import maintenance

        maintenance.maintain_pipelines(lambda: spark, read_settings(), pipelines)


def finish(
    pipeline: str, run: int | str, rehearsed: str = "", outlet_events: OutletEventAccessorsProtocol | None = None
) -> bool:
    """Write the run's report, complete the run and send the events of what it published (assets.py).

    Of a run that has `rehearsed` the same interval before only the report is printed. Return whether keys are newly
    held back, or hold more than before: then a person has to be asked.
    """
    with _raise_airflow_errors():
        from hindcast.airflow import assets
        from hindcast.common.settings import read_settings
        from hindcast.report import report_text
        from hindcast.runs import run_steps

        settings = read_settings()
        report = run_steps.finish_run(settings, pipeline, int(run))
        print(report_text.format_report(report))
        if rehearsed:
            return False
        if report.rehearsed is not None:  # a pipeline below would run by the clock, and could not be rehearsed
            return any(held.newly or held.grown for held in report.held_keys.values())
        assert outlet_events is not None  # noqa: S101  # Airflow passes it
        assets.send_asset_events(settings.warehouse, outlet_events, report)
        return any(held.newly or held.grown for held in report.held_keys.values())


def finish_release(pipeline: str, name: str, outlet_events: OutletEventAccessorsProtocol | None = None) -> None:
    """Finish the run of the release `name`: its report, and the events of what it published."""
    from hindcast.common.settings import read_settings
    from hindcast.runs import special_runs

    with _raise_airflow_errors():
        release = special_runs.find_release(read_settings().warehouse, pipeline, name)
    finish(pipeline, release.number, outlet_events=outlet_events)  # earlier ones of this name were abandoned


class HeldChanges(TypedDict):
    """What is held back: `text` for the person who decides, the `keys` to choose from, `until` when it was read."""

    text: str
    keys: list[str]
    until: str


def read_held_changes(pipeline: str) -> HeldChanges:
    """Return what is held back.

    The task is skipped if nothing is held.
    """
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast.common.settings import read_settings
    from hindcast.plan.marks import find_bound_contract
    from hindcast.quality import approval, failing_rows

    settings = read_settings()
    # Before the rows: what comes in between was not shown.
    until = failing_rows.read_last_entry_time(settings.warehouse, pipeline)
    contract = find_bound_contract(settings, pipeline)
    keys = approval.read_held_keys(contract)
    if not keys:
        raise AirflowSkipException("nothing is held back")
    text, labels = approval.describe_keys(contract, keys)
    return {"text": text, "keys": labels, "until": until.isoformat()}


def release(pipeline: str, name: str, spark: SparkSession) -> None:
    """Publish what a person has approved, in the planned run `name`, and print its report."""
    with _raise_airflow_errors():
        from hindcast.airflow import connections
        from hindcast.common.settings import read_settings
        from hindcast.report import report_text
        from hindcast.runs import special_runs

        connections.apply_connection()
        report = special_runs.run_planned_release(spark, read_settings(), pipeline, name)
        print(report_text.format_report(report))


def reject(pipeline: str, until: str, by: str, labels: str) -> PokeReturnValue:
    """Record that what is held stays held, as a sensor; not done while `held_changes.reject_keys` has to wait.

    It fails as `plan_release` does.
    """
    from airflow.sdk import PokeReturnValue

    with _raise_airflow_errors():
        from hindcast.common.settings import read_settings
        from hindcast.quality import held_changes

        settings = read_settings()
        keys = _read_chosen_keys(settings, pipeline, until, by, labels)
        try:
            rejected = held_changes.reject_keys(settings.warehouse, pipeline, keys, by, datetime.fromisoformat(until))
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        for name, keys_of_table in rejected.items():
            print(f"{pipeline}.{name}: {format_count(len(keys_of_table), 'key')} held, rejected by {by}")
        if not rejected:
            print(f"{pipeline}: what was held has changed meanwhile; nothing was rejected")
        return PokeReturnValue(is_done=True)


def _read_chosen_keys(settings: Settings, pipeline: str, until: str, by: str, labels: str) -> dict[str, list[str]]:
    """Return the keys (as JSON) by table that a person chose (`approval.choose_keys`).

    RequestError if nobody has answered (`by`): Airflow lets its users mark the task that asks as success.
    """
    from hindcast.plan.marks import find_bound_contract
    from hindcast.quality import approval

    if not by:
        found = "nobody has answered whether to publish what is held"
        raise RequestError(found, where=pipeline, fix=approval.ASK_AGAIN)
    return approval.choose_keys(find_bound_contract(settings, pipeline), datetime.fromisoformat(until), labels)


@contextmanager
def _raise_airflow_errors() -> Iterator[None]:
    """Raise a HindcastError of the block as Airflow's, so that its message ends the task's log, after Spark's own.

    Events of the block go to Airflow (step_metrics.py).
    """
    try:
        with step_events.send_events_to(step_metrics.send_event):
            yield
    except HindcastError as error:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException

        if error.__cause__ is not None:
            # Logged, not printed: printed text takes another way, and may arrive after the error.
            _LOG.info("".join(traceback.format_exception(error.__cause__)).rstrip())
        raise (AirflowFailException if isinstance(error, FINAL_ERRORS) else AirflowException)(str(error)) from None


_LOG = logging.getLogger(__name__)
