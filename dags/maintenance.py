"""One DAG that keeps the tables of all pipelines in order: hindcast_maintenance, which has a mapped task for each.

Its tasks are in the pool of the pipelines' own, after theirs, and safe beside runs (upkeep/maintenance.py).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from hindcast.contracts.names import MAINTENANCE
from hindcast.scheduling import steps
from hindcast.scheduling.operators import SharedSpark, SubmittedSpark
from hindcast.session import home
from hindcast.settings import settings

DOC = """\
Joins small files, sorts files by time, and removes what no version of the last days needs (docs/maintenance.md). No row
changes. The log of each task says what it did to each table. `hindcast maintain PIPELINE` does the same by hand.
"""


def maintenance_dag() -> DAG:
    """The DAG: which pipelines there are, then a task for each."""
    schedule = settings().maintenance
    with DAG(
        MAINTENANCE,
        description="Compacts, clusters and vacuums the tables of all pipelines",
        doc_md=DOC,
        schedule=None if schedule == "never" else CronDataIntervalTimetable(schedule, timezone="UTC"),
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args={"retries": 1, "retry_delay": timedelta(minutes=5), "execution_timeout": timedelta(hours=12)},
        tags=["hindcast", "maintenance"],
    ) as dag:
        _maintain(task(steps.pipelines)())
    return dag


def _maintain(pipelines: Any) -> Any:
    """A task for each pipeline, in the shared Spark Connect session or by spark-submit; one at a time."""
    now = settings()
    # A priority that is less than that of any task of a run: runs go first.
    options: dict[str, Any] = {"task_id": "maintain", "pool": now.pool, "priority_weight": 0, "weight_rule": "absolute"}
    options |= {"max_active_tis_per_dag": 1, "doc_md": DOC}
    if now.spark == "submit":
        return SubmittedSpark.partial(
            conn_id="spark_default",
            application=str(now.root / "jobs" / "maintain.py"),
            properties_file=str(home() / "spark-conf" / "spark-defaults.conf"),
            name="hindcast maintenance",
            map_index_template="{{ task.application_args[0] }}",
            **options,
        ).expand(application_args=pipelines)
    return SharedSpark.partial(
        conn_id="hindcast_spark",
        python_callable=steps.maintain,
        map_index_template="{{ task.op_args[0] }}",
        **options,
    ).expand(op_args=pipelines)


dag = maintenance_dag()
