"""What Hindcast adds to Airflow itself: its pages in the UI, links of tasks, and the priority of fresh runs.

Airflow finds both plugins by the package's entry points.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from hindcast.airflow import pages
from hindcast.airflow.links import ReportLink
from hindcast.airflow.priority import FreshFirst


class HindcastPages(AirflowPlugin):
    """The plugin that serves the pages under /hindcast, behind Airflow's login: on the navigation bar, and as tabs of a
    DAG and of a run.
    """

    name = "hindcast_pages"
    fastapi_apps = [{"app": pages.app, "url_prefix": pages.PREFIX, "name": "Hindcast"}]  # noqa: RUF012  # as Airflow reads it
    external_views = pages.VIEWS


class HindcastTasks(AirflowPlugin):
    """The plugin that registers the link to a run's report in the UI, and the priority weights in the scheduler."""

    name = "hindcast_tasks"
    operator_extra_links = [ReportLink()]  # noqa: RUF012  # as Airflow reads it
    priority_weight_strategies = [FreshFirst]  # noqa: RUF012
