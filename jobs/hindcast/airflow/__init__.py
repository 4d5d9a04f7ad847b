"""Airflow: the steps of a run as tasks, with their assets, metrics, lineage and pages.

A file in the dags folder creates the DAGs:

    # The DAGs of our contracts.
    from hindcast.airflow import maintenance, pipelines

    globals().update({**pipelines("schemas"), **maintenance("schemas")})
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hindcast.common.settings import Settings, read_settings

if TYPE_CHECKING:
    from airflow.sdk import DAG


def pipelines(schemas: str | Path | None = None) -> dict[str, DAG]:
    """Return, by id, the DAGs of the contracts in a folder; a contract that does not load has one that says why.

    `schemas`: HINDCAST_SCHEMAS without it; a relative one is beside the file that calls this function.
    """
    from hindcast.airflow.dag_factory import load_dags

    return load_dags(_read_settings(schemas, sys._getframe(1).f_globals.get("__file__")))  # noqa: SLF001  # documented


def pipeline(name: str, schemas: str | Path | None = None) -> dict[str, DAG]:
    """Return, by id, the DAGs of one contract, which is NAME.yaml in the folder `schemas` (`pipelines`).

    Raise ContractError if there is none, or if it does not load.
    """
    from hindcast.airflow.dag_factory import load_pipeline_dags

    settings = _read_settings(schemas, sys._getframe(1).f_globals.get("__file__"))  # noqa: SLF001
    return load_pipeline_dags(settings, name)


def maintenance(schemas: str | Path | None = None) -> dict[str, DAG]:
    """Return, by id, the DAG that maintains the tables of all pipelines of a folder (`pipelines`)."""
    from hindcast.airflow.maintenance_dag import create_maintenance_dag

    dag = create_maintenance_dag(_read_settings(schemas, sys._getframe(1).f_globals.get("__file__")))  # noqa: SLF001
    return {dag.dag_id: dag}


def _read_settings(schemas: str | Path | None, caller: str | None) -> Settings:
    """Return the settings with another folder of contracts; a relative one is beside the file `caller`."""
    settings = read_settings()
    settings.refuse_unknown_place()
    return (
        settings
        if schemas is None
        else replace(settings, schemas=Path(caller or ".").absolute().parent / Path(schemas).expanduser())
    )
