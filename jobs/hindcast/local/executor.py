"""Airflow's LocalExecutor for one machine: its workers are forked from a process that has imported what steps need.

Every task is a process of its own. Spark's client, Great Expectations and the readers take it seconds to import, and
each task of each run would pay them; forked, it has them. Where processes are not forked it is a LocalExecutor.
"""

from __future__ import annotations

import importlib

from airflow.executors.local_executor import LocalExecutor

from hindcast.quality import expectations

PRELOADED = (
    "airflow.sdk.execution_time.task_runner",
    "hindcast.scheduling.operators",
    "hindcast.reports.report",
    "hindcast.runs",
    "pyspark.sql.connect.session",
)
"""Modules that start no thread and open no connection when they are imported: safe to fork after."""


class PreloadedExecutor(LocalExecutor):
    """A LocalExecutor whose workers start with `PRELOADED` and Great Expectations in memory."""

    def start(self) -> None:
        """Import, then fork the workers."""
        if self.is_mp_using_fork:
            for name in PRELOADED:
                importlib.import_module(name)
            expectations.imported()
        super().start()
