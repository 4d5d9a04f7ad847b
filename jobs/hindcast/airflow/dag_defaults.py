"""What the tasks of a pipeline's DAGs have in common, and what its contract asks for them (`airflow:`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.task_options import TaskOptions

SPARK_TIMEOUT = timedelta(hours=12)
"""A step in Spark is stopped and retried after this time: the first replay of a large topic may take hours."""

DEFAULT_ARGS: Mapping[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "retry_exponential_backoff": True,
    "execution_timeout": timedelta(minutes=15),
    "weight_rule": "hindcast.airflow.priority.FreshFirst",
}
PATIENCE: Mapping[str, Any] = {"mode": "reschedule", "poke_interval": 10, "timeout": 3600}
"""How a run waits for another one: it checks every 10 s, occupies no worker, and gives up after an hour."""

LONG_PATIENCE: Mapping[str, Any] = {"timeout": timedelta(days=30).total_seconds()}
"""Where a backfill can rehearse: its runs begin together and wait for each other, and runs by the clock for all."""

PLAN = "Plans the run: its known-at and the offsets of each topic. It waits while another run is under way."
REHEARSE = "Plans a rehearsed run: reads where its interval of arrival ends in each topic. Any other run skips it."
REPORT = "Reports what the run did, completes it, and sends an asset event for each published table."


def list_dag_options(contract: Contract, *kinds: str) -> Mapping[str, Any]:
    """Return the default arguments and the tags of a DAG of a pipeline; its `kinds` are tags of ours."""
    tags = dict.fromkeys(("hindcast", *kinds, *contract.airflow.tags))
    return {"default_args": {**DEFAULT_ARGS, **_list_options(contract.airflow)}, "tags": [*tags]}


def list_step_options(settings: Settings, contract: Contract, table: str | None = None) -> Mapping[str, Any]:
    """Return the options of a task in Spark: of a topic or view of a pipeline, or of none."""
    options = contract.airflow if table is None else contract.airflow.find_table_options(table)
    pool, timeout = options.pool or settings.pool, options.timeout or SPARK_TIMEOUT
    return {"pool": pool, "execution_timeout": timeout, **_list_options(options)}


def _list_options(options: TaskOptions) -> Mapping[str, Any]:
    """Return what is given of the options that tasks without Spark have too."""
    given = {name: getattr(options, name) for name in ("owner", "retries", "queue")}
    return {name: value for name, value in given.items() if value is not None}
