"""The steps of a run as Airflow's tasks call them. Importing this costs neither Spark nor a connection.

What retrying cannot mend (a contract, a record, a gate, a table of another form) fails the task at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
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
    """What is held back: `text` for the person who is asked, `until` when it was read. Skipped if nothing is."""
    import pyarrow.compute as pc
    from airflow.sdk.exceptions import AirflowSkipException

    from hindcast import holds
    from hindcast.contracts import find
    from hindcast.settings import settings

    now, until = settings(), datetime.now(UTC)
    rows = holds.held(now.warehouse, pipeline)
    asked = rows.filter(pc.equal(rows.column("entry"), "held"))
    if not asked.num_rows:
        raise AirflowSkipException("nothing is held back")
    return {"text": holds.text(find(now.schemas, pipeline), asked), "until": until.isoformat()}


def release(pipeline: str, name: str, until: str, by: str, spark: SparkSession) -> None:
    """Publishes what a person has approved, in a run of that name; waits by retries while another run is under way."""
    with _failing_for_good():
        from hindcast import holds, report, runs
        from hindcast.settings import settings

        looked_at = datetime.fromisoformat(until)
        keys = holds.looked_at(settings().warehouse, pipeline, looked_at)
        print(report.text(runs.release(spark, pipeline, name, keys, by, looked_at)))


def reject(pipeline: str, until: str, by: str) -> None:
    """Notes that what is held stays held."""
    from hindcast import holds
    from hindcast.settings import settings

    warehouse = settings().warehouse
    for name, some in holds.looked_at(warehouse, pipeline, datetime.fromisoformat(until)).items():
        holds.reject(warehouse, pipeline, name, some, by)
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
