"""The tasks of a pipeline's steps in Spark, and the contracts that a task's process loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hindcast.airflow import approval_tasks, tasks
from hindcast.airflow.operators import SharedSpark, SubmittedSpark
from hindcast.common.session import conf_folder
from hindcast.common.settings import Settings, use_environment
from hindcast.runs.table_steps import TABLE_STEPS

P = ParamSpec("P")
T = TypeVar("T")


def read_contracts_of(settings: Settings, call: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls another one, which then reads the contracts of these settings."""

    @wraps(call)
    def call_with_folder(*args: P.args, **kwargs: P.kwargs) -> T:
        with use_environment(settings.contract_environment):
            return call(*args, **kwargs)

    return call_with_folder


_CALLS: Mapping[str, Callable[..., Any]] = {
    "rehearse": tasks.rehearse,
    "preview": tasks.preview,
    "maintain": tasks.maintain,
    "release": approval_tasks.release,
}
"""The steps in Spark that are not of one table."""


def create_spark_task(settings: Settings, task_id: str, step: str, *arguments: str, **options: Any) -> Any:
    """Return the task of a step in Spark: in the shared Spark Connect session, or by spark-submit.

    `arguments`: those of the step, the pipeline's name first; `options`: `dag_defaults.list_step_options` and others.
    """
    options |= {"task_id": task_id}
    if settings.spark == "submit":
        spark_task: Any = SubmittedSpark(
            application_args=[step, *arguments],
            name=f"hindcast {arguments[0]} {step} {task_id}",
            **list_submit_options(settings),
            **options,
        )
    else:
        call = tasks.table_callable(TABLE_STEPS[step]) if step in TABLE_STEPS else _CALLS[step]
        run = read_contracts_of(settings, call)
        spark_task = SharedSpark(conn_id="hindcast_spark", python_callable=run, op_args=[*arguments], **options)
    spark_task.contract_environment = settings.contract_environment
    return spark_task


def list_submit_options(settings: Settings) -> Mapping[str, Any]:
    """Return the options of every task that calls spark-submit."""
    return {
        "conn_id": "spark_default",
        "application": str(Path(__file__).parents[1] / "cli" / "spark_step.py"),
        "properties_file": str(conf_folder() / "spark-defaults.conf"),
        "env_vars": settings.own_environment,
    }
