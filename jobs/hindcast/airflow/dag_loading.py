"""The DAGs of folders of contracts: which contracts have one, and what stands in for those that do not load."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context, task
from airflow.sdk.exceptions import AirflowFailException

from hindcast.airflow.created_dags import CreatedDags
from hindcast.airflow.dag_factory import create_pipeline_dag, create_preview_dag
from hindcast.airflow.release_dag import create_release_dag
from hindcast.common.errors import ContractError
from hindcast.common.settings import Settings
from hindcast.contract import (
    Contract,
    bounds,
    count_tables,
    find,
    refuse_many_tables,
    repeated_name_error,
    try_load_all,
)
from hindcast.contract.folder import keeps_name, may_name
from hindcast.contract.folder_reader import UnreadContractError
from hindcast.contract.names import PREVIEW, RELEASE, can_be_pipeline, can_stand_in, list_dag_ids, name_stand_ins


def create_broken_dag(dag_id: str, error: Exception) -> DAG:
    """Return a DAG in place of a contract that does not load: its documentation and its only task report the error.

    Airflow finds it only in the variables of the DAG file: the pipeline of another folder may yet replace it there.
    """

    def contract() -> None:
        raise AirflowFailException(str(error))

    tags, doc = ["hindcast", "broken contract"], f"```\n{error}\n```"
    with DAG(dag_id, doc_md=doc, schedule=None, tags=tags, auto_register=False) as dag:
        task(contract)()
    return dag


def load_dags(settings: Settings, created: CreatedDags) -> dict[str, DAG]:
    """Return the DAGs of all contracts by id; when a task starts, only those of files that may have its DAG.

    `created`: what the same DAG file has created from other folders, whose pipelines are not replaced.
    """
    created.refuse_other_target(settings.schemas, settings.target)
    with created.measure_time() as share:
        return _load_dags(settings, created, share, get_parsing_context().dag_id or "")


def _load_dags(settings: Settings, created: CreatedDags, share: float, started: str) -> dict[str, DAG]:
    folder, taken = settings.schemas, created.list_taken(settings.schemas)
    contracts: Mapping[Path, Contract | ContractError]
    if started:  # only one task is run, of a DAG that there was
        contracts = try_load_all(folder, settings.choice, share=share, wants=partial(_may_give_dag, dag_id=started))
    else:
        deadline = time.monotonic() + max(share * bounds.DAG_FILE_SECONDS, 2 * bounds.FIRST_SECONDS)
        contracts = try_load_all(folder, settings.choice, share=share, deadline=deadline)
        contracts = refuse_many_tables(contracts, sum(n for other, n in created.tables.items() if other != folder))
    created.tables[folder] = sum(count_tables(it) for it in contracts.values() if isinstance(it, Contract))
    loaded, broken = create_dags(settings, _refuse_taken(contracts, created, folder), started)
    stand_ins = name_stand_ins(broken, {*loaded, *taken})
    errors: dict[str, Exception] = {dag_id: broken[path] for dag_id, path in stand_ins.items()}
    # A contract that loads replaces a stand-in of another folder, which gets another name.
    displaced = {Path(f"{dag_id}.yaml"): created.errors[dag_id] for dag_id in loaded if dag_id in taken}
    ids = name_stand_ins(displaced, {*loaded, *taken, *errors})
    errors |= {dag_id: displaced[place] for dag_id, place in ids.items()}
    dags = loaded | _create_stand_ins(errors)
    reserved = {path.stem for path in broken if can_be_pipeline(path.stem) and keeps_name(path, broken[path])}
    giving_way = {dag_id: error for dag_id, error in errors.items() if dag_id in dags.keys() - reserved}
    created.replace(folder, dags, giving_way, reserved)
    return dags


def _create_stand_ins(errors: Mapping[str, Exception]) -> dict[str, DAG]:
    """Return the DAGs that report errors, by id: of at most `bounds.FOLDER_FILES` errors, first those of files read.

    An error without a DAG is logged.
    """
    dags: dict[str, DAG] = {}
    by_kind = sorted(errors, key=lambda dag_id: isinstance(errors[dag_id], UnreadContractError))
    for dag_id in by_kind[: bounds.FOLDER_FILES]:
        try:
            dags[dag_id] = create_broken_dag(dag_id, errors[dag_id])
        except Exception:  # noqa: BLE001  # any error concerns this DAG only
            _LOG.exception("No DAG %s can be created, to report: %s", dag_id, errors[dag_id])
    if left_out := by_kind[bounds.FOLDER_FILES :]:
        _LOG.error("%d contracts have no DAG, as these; the first: %s", len(left_out), errors[left_out[0]])
    return dags


def _may_give_dag(path: Path, dag_id: str) -> bool:
    """Return whether a file may have the contract of a DAG, or one that stands in for it (`name_stand_ins`)."""
    pipelines = {dag_id, dag_id.removesuffix(RELEASE), dag_id.removesuffix(PREVIEW)}
    return can_stand_in(dag_id, path) or may_name(path, pipelines)


def load_pipeline_dags(settings: Settings, name: str, created: CreatedDags) -> dict[str, DAG]:
    """Return the DAGs of one pipeline by id; ContractError if it has no valid contract, or was `created` before."""
    folder = settings.schemas
    contracts = _refuse_taken({folder / f"{name}.yaml": find(folder, name, settings.choice)}, created, folder)
    dags, broken = create_dags(settings, contracts, get_parsing_context().dag_id or "")
    for error in broken.values():
        raise error
    created.add(folder, dags)
    return dags


def _refuse_taken(
    contracts: Mapping[Path, Contract | ContractError], created: CreatedDags, folder: Path
) -> dict[Path, Contract | ContractError]:
    """Return contracts of a folder, with an error for each whose pipeline another folder has given."""
    taken = {dag_id: other for dag_id, other in created.list_taken(folder).items() if dag_id not in created.errors}
    taken |= {name: other for name, other in created.reserved.items() if other != folder}

    def refuse(path: Path, contract: Contract | ContractError) -> Contract | ContractError:
        if isinstance(contract, ContractError):
            return contract
        other = next((taken[dag_id] for dag_id in list_dag_ids(contract) if dag_id in taken), None)
        return contract if other is None else repeated_name_error(contract.pipeline, path, other)

    return {path: refuse(path, contract) for path, contract in contracts.items()}


def create_dags(
    settings: Settings, contracts: Mapping[Path, Contract | ContractError], wanted: str = ""
) -> tuple[dict[str, DAG], dict[Path, Exception]]:
    """Return the DAGs of contracts by id, and the errors of files that have none, by path.

    `wanted`: the id of the DAG whose task starts. An error in one file does not affect the DAGs of others.
    """
    dags: dict[str, DAG] = {}
    broken: dict[Path, Exception] = {path: it for path, it in contracts.items() if isinstance(it, ContractError)}
    for path, contract in contracts.items():
        if isinstance(contract, ContractError):
            continue
        try:
            new = [create_pipeline_dag(settings, contract), create_preview_dag(settings, contract)]
            # A task that waited while the last such gate was removed still finds its DAG.
            asks = contract.can_hold or wanted == f"{contract.pipeline}{RELEASE}"
            new += [create_release_dag(settings, contract)] if asks else []
            dags |= {dag.dag_id: dag for dag in new}
        except Exception as error:  # noqa: BLE001  # any error concerns this contract only
            what = f"no DAG can be created from it: {type(error).__name__}: {error}"
            broken[path] = ContractError(
                what, where=f"{path}:1", fix="hindcast check; if it finds nothing, report a bug"
            )
    return dags, broken


_LOG = logging.getLogger(__name__)
