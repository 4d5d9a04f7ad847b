"""The steps of a run as Airflow's tasks call them. Importing this costs neither Spark nor a connection.

What retrying cannot mend (a contract, a record, a gate, a table of another form) fails the task at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hindcast.errors import BusyError, ContractError, GateError, HindcastError, RecordError, TableError

if TYPE_CHECKING:
    from airflow.sdk import PokeReturnValue
    from pyspark.sql import SparkSession

FINAL = (ContractError, GateError, RecordError, TableError)
"""Errors that a retry meets again."""


def plan(
    pipeline: str,
    run_id: str | None = None,
    data_interval_end: datetime | None = None,
    params: dict[str, Any] | None = None,
) -> PokeReturnValue:
    """Stores the run's plan (Airflow gives its run id and interval), as a sensor: done with the run's number.

    Skipped, and so is all that follows it, where only a preview was asked for.

    Not done while another run of the pipeline is under way: a pipeline's runs are serialised, also those of a backfill
    beside the schedule, which Airflow starts at the same time.
    """
    from airflow.sdk import PokeReturnValue
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast import runs

    if params and params["preview"]:
        raise AirflowSkipException("only a preview was asked for")
    end = data_interval_end and datetime.fromisoformat(data_interval_end.isoformat())  # Airflow's is a pendulum
    with _failing_for_good():
        try:
            return PokeReturnValue(is_done=True, xcom_value=runs.plan(pipeline, str(run_id), end))
        except BusyError as busy:
            print(busy)
            return PokeReturnValue(is_done=False)


def replay(pipeline: str, run: str, name: str, spark: SparkSession) -> dict[str, Any]:
    """Replays one topic into its log and its table."""
    with _failing_for_good():
        from hindcast import runs

        return runs.replay(spark, pipeline, int(run), name)


def build(pipeline: str, run: str, name: str, spark: SparkSession) -> dict[str, Any]:
    """Derives, gates and publishes one view."""
    with _failing_for_good():
        from hindcast import runs

        return runs.build(spark, pipeline, int(run), name)


def preview(pipeline: str, until: str, spark: SparkSession) -> None:
    """Says what a run up to a moment (empty: of everything there is) would change; writes nothing."""
    with _failing_for_good():
        from hindcast import preview as previews

        print(previews.text(previews.preview(spark, pipeline, datetime.fromisoformat(until) if until else None)))


def finish(pipeline: str, run: int) -> bool:
    """Makes the run's report and completes the run; whether changes are newly held back."""
    with _failing_for_good():
        from hindcast import report, runs

        told = runs.finish(pipeline, run)
        print(report.text(told))
        return any(table.get("held", {}).get("newly") for table in told["tables"].values())


def held(pipeline: str) -> dict[str, str]:
    """What is held back: `text` for the person who is asked, `keys` by table as JSON. Skipped if nothing is."""
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast import holds
    from hindcast.contracts import find
    from hindcast.settings import settings

    now = settings()
    rows = holds.held(now.warehouse, pipeline)
    keys: dict[str, list[str]] = {}
    for row in rows.to_pylist():
        some = keys.setdefault(row["table"], [])
        if row["entry"] == "held" and row["key"] not in some:
            some.append(row["key"])
    if not any(keys.values()):
        raise AirflowSkipException("nothing is held back")
    return {
        "text": holds.text(find(now.schemas, pipeline), rows),
        "keys": json.dumps({name: some for name, some in keys.items() if some}),
    }


def release(pipeline: str, name: str, keys: str, by: str, spark: SparkSession) -> None:
    """Publishes what a person has approved, in a run of that name; waits by retries while another run is under way."""
    with _failing_for_good():
        from hindcast import report, runs

        print(report.text(runs.release(spark, pipeline, name, json.loads(keys), by)))


def reject(pipeline: str, keys: str, by: str) -> None:
    """Notes that what is held stays held."""
    from hindcast import holds
    from hindcast.settings import settings

    for name, some in json.loads(keys).items():
        holds.reject(settings().warehouse, pipeline, name, some, by)
        print(f"{pipeline}.{name}: {len(some)} held, rejected by {by}")


@contextmanager
def _failing_for_good() -> Iterator[None]:
    try:
        yield
    except HindcastError as error:
        if not isinstance(error, FINAL):
            raise
        from airflow.sdk.exceptions import AirflowFailException

        raise AirflowFailException(str(error)) from None
