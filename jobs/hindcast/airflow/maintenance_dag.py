"""The DAG hindcast_maintenance, which maintains the tables of a folder's pipelines with a mapped task for each.

Its tasks share the pool of the pipelines' tasks, with a lower priority, and are safe during runs (ops/maintenance.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from hindcast.airflow import tasks
from hindcast.airflow.operators import SharedSpark, SubmittedSpark
from hindcast.airflow.spark_tasks import list_submit_options, read_contracts_of
from hindcast.common.settings import Settings
from hindcast.contract.names import MAINTENANCE

DOC = """\
Joins small files, sorts files by time, and removes files that no recent version needs (docs/maintenance.md). No row
changes. The log of each task reports what it did to each table. `hindcast maintain PIPELINE` does the same by hand.
"""


def create_maintenance_dag(settings: Settings, dag_id: str = MAINTENANCE) -> DAG:
    """Return the DAG: a task that lists the pipelines, then a maintenance task for each."""
    schedule = settings.maintenance
    with DAG(
        dag_id,
        description="Compacts, clusters and vacuums the tables of all pipelines",
        doc_md=DOC,
        schedule=None if schedule == "never" else CronDataIntervalTimetable(schedule, timezone="UTC"),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args={"retries": 1, "retry_delay": timedelta(minutes=5), "execution_timeout": timedelta(hours=12)},
        tags=["hindcast", "maintenance"],
    ) as dag:
        _maintain(settings, task(read_contracts_of(settings, tasks.pipelines))())
    return dag


def _maintain(settings: Settings, pipelines: Any) -> Any:
    """Return the task mapped over pipelines, in the shared Spark Connect session or by spark-submit; one at a time."""
    # The priority is lower than that of any task of a run, so runs go first.
    options: Mapping[str, Any] = {
        "task_id": "maintain",
        "priority_weight": 0,
        "weight_rule": "absolute",
        "pool": settings.pool,
        "max_active_tis_per_dag": 1,
        "doc_md": DOC,
    }
    if settings.spark == "submit":
        return SubmittedSpark.partial(
            name="hindcast maintenance",
            map_index_template="{{ task.application_args[1] }}",
            **list_submit_options(settings),
            **options,
        ).expand(application_args=pipelines.map(_name_step))
    return SharedSpark.partial(
        conn_id="hindcast_spark",
        python_callable=read_contracts_of(settings, tasks.maintain),
        map_index_template="{{ task.op_args[0] }}",
        **options,
    ).expand(op_args=pipelines)


def _name_step(arguments: list[str]) -> list[str]:
    return ["maintain", *arguments]
