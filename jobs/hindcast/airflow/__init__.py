"""Airflow: the steps of a run as tasks, with their assets, metrics, lineage and pages."""
