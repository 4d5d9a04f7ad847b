"""The DAGs of the contracts in schemas/ (HINDCAST_SCHEMAS)."""

from hindcast.airflow import pipelines

globals().update(pipelines())
