"""Airflow: the steps of a run as its tasks, and what it is told of them."""
