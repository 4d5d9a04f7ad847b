"""Hindcast's tasks in Airflow: the link to their run's report, and the priority of fresh runs over backfills."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from hindcast.airflow.links import ReportLink
from hindcast.airflow.priority import FreshFirst


class HindcastTasks(AirflowPlugin):
    """The plugin that registers the links in the UI and the priority weights in the scheduler."""

    name = "hindcast_tasks"
    operator_extra_links = [ReportLink()]  # noqa: RUF012  # as Airflow reads it
    priority_weight_strategies = [FreshFirst]  # noqa: RUF012
