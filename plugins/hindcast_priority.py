"""Tells Airflow of the order in which tasks get its slots: fresh runs ahead of backfills."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from hindcast.priority import FreshFirst


class HindcastPriority(AirflowPlugin):
    """The plugin."""

    name = "hindcast_priority"
    priority_weight_strategies = [FreshFirst]  # noqa: RUF012  # as Airflow wants it
