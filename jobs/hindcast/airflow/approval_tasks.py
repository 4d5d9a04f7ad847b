"""The tasks by which a person decides about held changes (release_dag.py). Importing this module needs no Spark."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from hindcast.airflow import tasks
from hindcast.airflow.task_errors import raise_airflow_errors
from hindcast.common.errors import BusyError, RequestError
from hindcast.common.plurals import format_count

if TYPE_CHECKING:
    from airflow.sdk import PokeReturnValue
    from airflow.sdk.types import OutletEventAccessorsProtocol
    from pyspark.sql import SparkSession

    from hindcast.common.settings import Settings


class HeldChanges(TypedDict):
    """What is held back: `text` for the person who decides, the `keys` to choose from, `until` when it was read.

    `table`: of which table (`approval.identify_table`); another pipeline may take the name before there is an answer.
    """

    text: str
    keys: list[str]
    until: str
    table: str


def read_held_changes(pipeline: str) -> HeldChanges:
    """Return what is held back.

    The task is skipped if nothing is held.
    """
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast.airflow.links import find_airflow_root
    from hindcast.common.settings import read_settings
    from hindcast.plan.marks import find_bound_contract
    from hindcast.quality import approval, failing_rows, gate_words

    settings = read_settings()
    # Before the rows: what comes in between was not shown.
    until = failing_rows.read_last_entry_time(settings.warehouse, pipeline)
    contract = find_bound_contract(settings, pipeline)
    keys = approval.read_held_keys(contract)
    if not keys:
        raise AirflowSkipException("nothing is held back")
    text, labels = approval.describe_keys(contract, keys, gate_words.locate_gates(settings.schemas, contract))
    text += f"\n\n[Quality of {pipeline}]({find_airflow_root()}/dags/{pipeline}/plugin/hindcast-dag-quality)"
    return {"text": text, "keys": labels, "until": until.isoformat(), "table": approval.identify_table(contract)}


def release(pipeline: str, name: str, spark: SparkSession) -> None:
    """Publish what a person has approved, in the planned run `name`, and print its report."""
    with raise_airflow_errors():
        from hindcast.airflow import connections
        from hindcast.common.settings import read_settings
        from hindcast.report import report_text
        from hindcast.runs import special_runs

        connections.apply_connection()
        report = special_runs.run_planned_release(spark, read_settings(), pipeline, name)
        print(report_text.format_report(report))


def reject(pipeline: str, until: str, by: str, labels: str, reason: str = "", asked_table: str = "") -> PokeReturnValue:
    """Record that what is held stays held, and why, as a sensor; not done while `held_changes.reject_keys` has to wait.

    It fails as `plan_release` does.
    """
    from airflow.sdk import PokeReturnValue

    with raise_airflow_errors():
        from hindcast.common.settings import read_settings
        from hindcast.quality import held_changes

        settings = read_settings()
        keys = _read_chosen_keys(settings, pipeline, until, by, labels, asked_table)
        try:
            moment = datetime.fromisoformat(until)
            rejected = held_changes.reject_keys(settings.warehouse, pipeline, keys, by, moment, reason or None)
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        for name, keys_of_table in rejected.items():
            print(f"{pipeline}.{name}: {format_count(len(keys_of_table), 'key')} held, rejected by {by}")
        if not rejected:
            print(f"{pipeline}: what was held has changed meanwhile; nothing was rejected")
        return PokeReturnValue(is_done=True)


def _read_chosen_keys(
    settings: Settings, pipeline: str, until: str, by: str, labels: str, asked_table: str
) -> dict[str, list[str]]:
    """Return the keys (as JSON) by table that a person chose (`approval.choose_keys`).

    RequestError if nobody has answered (`by`): Airflow lets its users mark the task that asks as success.
    """
    from hindcast.plan.marks import find_bound_contract
    from hindcast.quality import approval

    if not by:
        found = "nobody has answered whether to publish what is held"
        raise RequestError(found, where=pipeline, fix=approval.ASK_AGAIN)
    contract = find_bound_contract(settings, pipeline)
    approval.refuse_other_table(contract, asked_table)
    return approval.choose_keys(contract, datetime.fromisoformat(until), labels)


def plan_release(
    pipeline: str, name: str, until: str, by: str, labels: str, at: str = "", reason: str = "", asked_table: str = ""
) -> PokeReturnValue:
    """Store the plan of the release `name`, as a sensor, and return its run's number once that is done.

    Not done while another run of the pipeline is under way; no other begins before this one (`plan`). It fails if
    nobody (`by`) has answered, or not about any keys (`labels`, a JSON list), or about those of another table than
    `asked_table` (HeldChanges). `at`, `reason`: when that was, and why.
    """
    from airflow.sdk import PokeReturnValue

    from hindcast.airflow import connections
    from hindcast.common.settings import read_settings
    from hindcast.runs import special_runs

    with raise_airflow_errors():
        connections.apply_connection()
        settings = read_settings()
        keys = _read_chosen_keys(settings, pipeline, until, by, labels, asked_table)
        looked_at, answered = datetime.fromisoformat(until), datetime.fromisoformat(at) if at else None
        answer = keys, by, looked_at, answered, reason or None
        try:
            number = special_runs.plan_release(settings, pipeline, name, *answer)
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=number)


def finish_release(pipeline: str, name: str, outlet_events: OutletEventAccessorsProtocol | None = None) -> None:
    """Finish the run of the release `name`: its report, and the events of what it published."""
    from hindcast.common.settings import read_settings
    from hindcast.runs import special_runs

    with raise_airflow_errors():
        release = special_runs.find_release(read_settings().warehouse, pipeline, name)
    tasks.finish(pipeline, release.number, outlet_events=outlet_events)  # earlier ones of this name were abandoned
