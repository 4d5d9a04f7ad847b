"""What Airflow has to know of our tasks: the link to their run's report, and that fresh runs go ahead of backfills."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from hindcast.scheduling.links import ReportLink
from hindcast.scheduling.priority import FreshFirst


class HindcastTasks(AirflowPlugin):
    """Serves the links in the UI, and the weights in the scheduler."""

    name = "hindcast_tasks"
    operator_extra_links = [ReportLink()]  # noqa: RUF012  # as Airflow reads it
    priority_weight_strategies = [FreshFirst]  # noqa: RUF012
