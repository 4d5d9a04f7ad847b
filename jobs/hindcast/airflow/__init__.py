"""Airflow: the steps of a run as tasks, with their assets, metrics, lineage and pages.

A file in the dags folder creates the DAGs:

    # The DAGs of our contracts.
    from hindcast.airflow import maintenance, pipelines

    globals().update({**pipelines("schemas"), **maintenance("schemas")})
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hindcast.common.environment import expand_home
from hindcast.common.errors import HindcastError
from hindcast.common.settings import SCHEMAS_VARIABLE, TARGET_VARIABLE, Settings, read_settings

if TYPE_CHECKING:
    from airflow.sdk import DAG


def pipelines(schemas: str | Path | None = None, *, target: str | None = None) -> dict[str, DAG]:
    """Return, by id, the DAGs of the contracts in a folder; a contract that does not load has one that says why.

    So has one of a pipeline that the file has already created from another folder. `schemas`: HINDCAST_SCHEMAS without
    it; a relative one is beside the file that calls this function. `target`: of the folder's targets.yaml,
    HINDCAST_TARGET without it, which the pages need (docs/contract.md#targets).
    """
    from hindcast.airflow.created_dags import find_created_dags
    from hindcast.airflow.dag_loading import load_dags

    module = sys._getframe(1).f_globals  # noqa: SLF001  # documented
    return load_dags(_read_settings(schemas, target, module.get("__file__")), find_created_dags(module))


def pipeline(name: str, schemas: str | Path | None = None, *, target: str | None = None) -> dict[str, DAG]:
    """Return, by id, the DAGs of one contract, which is NAME.yaml in the folder `schemas` (`pipelines`).

    Raise ContractError if there is none, if it does not load, or if another folder has given a pipeline of this name.
    """
    from hindcast.airflow.created_dags import find_created_dags
    from hindcast.airflow.dag_loading import load_pipeline_dags

    module = sys._getframe(1).f_globals  # noqa: SLF001
    return load_pipeline_dags(_read_settings(schemas, target, module.get("__file__")), name, find_created_dags(module))


def maintenance(
    schemas: str | Path | None = None, name: str | None = None, *, target: str | None = None
) -> dict[str, DAG]:
    """Return, by id, the DAG that maintains the tables of all pipelines of a folder (`pipelines`).

    It is hindcast_maintenance; for each further folder of the same file hindcast_maintenance__FOLDER. With a `name` it
    is hindcast_maintenance__NAME: of several DAG files each needs its own.
    """
    from hindcast.airflow.created_dags import find_created_dags
    from hindcast.airflow.maintenance_dag import create_maintenance_dag

    module = sys._getframe(1).f_globals  # noqa: SLF001
    settings = _read_settings(schemas, target, module.get("__file__"))
    dag = create_maintenance_dag(settings, find_created_dags(module).name_maintenance_dag(settings.schemas, name))
    return {dag.dag_id: dag}


def _read_settings(schemas: str | Path | None, target: str | None, caller: str | None) -> Settings:
    """Return the settings with other contracts, or another target; a relative folder is beside the file `caller`.

    If the target cannot be read, each contract of the folder will say so: the DAGs of other folders are created.
    """
    env = dict(os.environ)
    if schemas is not None:
        folder = expand_home(schemas, "the folder of contracts")
        env[SCHEMAS_VARIABLE] = str(Path(caller or ".").absolute().parent / folder)
    if target is not None:
        env[TARGET_VARIABLE] = target
    try:
        settings = read_settings(env)
    except HindcastError:
        settings = replace(read_settings(env | {TARGET_VARIABLE: ""}), target=env.get(TARGET_VARIABLE, ""))
    settings.refuse_unknown_place()
    return settings
