"""Airflow's LocalExecutor with workers that are forked from a process that has imported what steps need.

Every task is a process of its own, and would spend seconds on importing Spark's client, Great Expectations and the
readers; a forked one has them. Where processes are not forked, it is a plain LocalExecutor.
"""

from __future__ import annotations

import importlib

from airflow.executors.local_executor import LocalExecutor

from hindcast.quality import expectations

PRELOADED = (
    "airflow.sdk.execution_time.task_runner",
    "hindcast.airflow.operators",
    "hindcast.common.jit",
    "hindcast.engine.increments",
    "hindcast.report.report",
    "hindcast.runs.run_steps",
    "pyspark.sql.connect.session",
)
"""Modules that start no thread and open no connection on import, so that forking afterwards is safe."""


class PreloadedExecutor(LocalExecutor):
    """A LocalExecutor whose workers start with `PRELOADED`, the compiler of loops and Great Expectations in memory."""

    def start(self) -> None:
        """Import, then fork the workers."""
        if self.is_mp_using_fork:
            for name in PRELOADED:
                importlib.import_module(name)
            from hindcast.common.jit import load_compiler  # whoever only names the executor does without it

            load_compiler()
            expectations.import_gx()
        super().start()
