"""Hindcast's pages, for an Airflow in which the package is not installed; else its entry points are enough."""

from hindcast.airflow.plugins import HindcastPages

__all__ = ["HindcastPages"]
