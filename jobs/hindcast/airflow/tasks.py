"""The steps of a run as Airflow's tasks call them. Importing this module needs neither Spark nor a connection.

An error that no retry can fix (a contract, a record, a gate, a table of another form) fails the task at once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hindcast.airflow import run_requests
from hindcast.airflow.task_errors import raise_airflow_errors
from hindcast.common.errors import BusyError
from hindcast.common.json_values import JsonObject

if TYPE_CHECKING:
    from typing import Unpack

    from airflow.sdk import Context, PokeReturnValue
    from airflow.sdk.types import OutletEventAccessorsProtocol
    from pyspark.sql import SparkSession

    from hindcast.runs.table_steps import TableStep


def check_preview(context: Context) -> None:
    """Fail the task of a preview if its form is invalid."""
    with raise_airflow_errors():
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
    with raise_airflow_errors():
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
            if others := [run for run in past if run.state == "planned" and run.run_id != run_id]:
                print(f"run {others[0].number} ({others[0].run_id}) has not ended")
                return PokeReturnValue(is_done=False)
            ti.xcom_push("rehearses", request.format_rehearsal())
            return PokeReturnValue(is_done=True)
        try:
            options = (request.until, request.only, request.reason)
            number = run_steps.plan_run(settings, pipeline, run_id, *options, ends_rehearsal=True)
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=number)


def skip_unconcerned(pipeline: str, name: str, context: Context) -> None:
    """Skip the task of table `name` if its run is limited to another table and what is downstream of that."""
    from airflow.sdk.exceptions import AirflowSkipException

    if context["ti"].xcom_pull(task_ids="plan", key="rehearsed"):
        raise AirflowSkipException(_REHEARSED)
    if not (only := context["ti"].xcom_pull(task_ids="plan", key="only")):
        return
    from hindcast.common.settings import read_settings
    from hindcast.contract import find

    with raise_airflow_errors():
        settings = read_settings()
        if name not in find(settings.schemas, pipeline, settings.choice).list_tables_below(only):
            raise AirflowSkipException(f"the run is limited to {only} and everything downstream")


def skip_rehearsal(context: Context) -> None:
    """Skip the task that plans a rehearsed run where the run is none, or its interval was rehearsed before."""
    from airflow.sdk.exceptions import AirflowSkipException

    if context["params"]["replay"] != run_requests.REHEARSAL:
        raise AirflowSkipException("the run is no rehearsal")
    if context["ti"].xcom_pull(task_ids="plan", key="rehearsed"):
        raise AirflowSkipException(_REHEARSED)


_REHEARSED = "the interval was rehearsed before"


def rehearse(pipeline: str, name: str, request: str, spark: SparkSession) -> int:
    """Store the plan of the rehearsed run `name` and return its number (`rehearsal.plan_requested_run`)."""
    with raise_airflow_errors():
        from hindcast.airflow import connections
        from hindcast.common.settings import read_settings
        from hindcast.runs import rehearsal

        connections.apply_connection()
        return rehearsal.plan_requested_run(spark, read_settings(), pipeline, name, request)


def table_callable(step: TableStep) -> Callable[..., JsonObject]:
    """Return a function, with the step's name, that does the step for one table and returns the commit's note."""

    def execute(pipeline: str, run: str, name: str, spark: SparkSession) -> JsonObject:
        with raise_airflow_errors():
            if step.per == "topic":
                from hindcast.airflow import connections

                connections.apply_connection()
            from hindcast.common.settings import read_settings
            from hindcast.runs import run_steps

            return run_steps.execute_step(spark, read_settings(), pipeline, int(run), step, name).as_json()

    execute.__name__ = execute.__qualname__ = step.name
    return execute


def preview(pipeline: str, until: str, only: str, shown_by: str, spark: SparkSession) -> None:
    """Print what a run would change, up to a moment or limited to one table (empty: no limit); write no table.

    The report tab of the DAG run `shown_by` shows the same. Airflow has a name of its own for `run_id`.
    """
    with raise_airflow_errors():
        from hindcast.airflow import connections
        from hindcast.common.settings import read_settings
        from hindcast.query import read
        from hindcast.runs import preview as previews

        connections.apply_connection()
        settings = read_settings()
        end = read.moment_of(settings.warehouse, pipeline, until) if until else None
        print(previews.report_preview(spark, settings, pipeline, end, only or None, shown_by))


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
    with raise_airflow_errors():
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
    with raise_airflow_errors():
        from hindcast.airflow import assets
        from hindcast.common.settings import read_settings
        from hindcast.report import report_text
        from hindcast.runs import run_steps

        settings = read_settings()
        report = run_steps.finish_run(settings, pipeline, int(run))
        print(report_text.format_report(report))
        if rehearsed:
            return False
        assert outlet_events is not None  # noqa: S101  # Airflow passes it
        assets.send_asset_events(settings.warehouse, outlet_events, report)
        return any(held.newly or held.grown for held in report.held_keys.values())
