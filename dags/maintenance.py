"""The DAG that maintains the tables of all pipelines."""

from hindcast.airflow import maintenance

globals().update(maintenance())
