"""Links and priorities, for an Airflow in which the package is not installed; else its entry points are enough."""

from hindcast.airflow.plugins import HindcastTasks

__all__ = ["HindcastTasks"]
