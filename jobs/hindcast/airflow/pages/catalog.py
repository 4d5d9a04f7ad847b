"""All pipelines, for the pages: a contract is loaded once, and again when its file changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

from hindcast.common.errors import ContractError, UnknownError, suggest_nearest
from hindcast.contract import Contract, try_load, try_load_all
from hindcast.contract.names import PREVIEW, RELEASE, list_dag_ids, name_stand_ins

DAG_SUFFIXES = (RELEASE, PREVIEW)
"""What the DAGs of approvals and previews append to their pipeline's name."""

CONTRACT_SUFFIXES = (".yaml", ".yml")
FileStates = frozenset[tuple[str, int, int, int]]


def load_contract(schemas: Path, pipeline: str, readable: Collection[str]) -> Contract:
    """Return the contract of a pipeline; UnknownError if there is none, ContractError if it is invalid.

    `schemas`: the folder of the contracts. The error suggests only names that are `readable`.
    """
    contracts, broken = load_contracts(schemas)
    if pipeline in contracts:
        return contracts[pipeline]
    if pipeline in broken:
        raise broken[pipeline]
    names = [name for name in contracts if name in readable]
    raise UnknownError(f"no pipeline '{pipeline}'", fix=suggest_nearest(pipeline, names))


def load_contracts(schemas: Path) -> tuple[dict[str, Contract], dict[str, ContractError]]:
    """Return the contracts by pipeline, and the errors of those that do not load by the id of their DAG."""
    read_one = partial(_read_contract, beside=_list_files(schemas))
    by_path = try_load_all(schemas, read_one)
    contracts = {it.pipeline: it for it in by_path.values() if isinstance(it, Contract)}
    broken = {path: it for path, it in by_path.items() if isinstance(it, ContractError)}
    taken = {dag_id for contract in contracts.values() for dag_id in list_dag_ids(contract)}
    return contracts, {dag_id: broken[path] for dag_id, path in name_stand_ins(broken, taken).items()}


def list_pipelines(schemas: Path, readable: Collection[str]) -> dict[str, str]:
    """Return the `readable` pipelines, each with the first line of its description."""
    contracts, _ = load_contracts(schemas)
    return {
        name: contract.description.strip().partition("\n")[0]
        for name, contract in sorted(contracts.items())
        if name in readable
    }


def pipeline_of_dag(schemas: Path, dag_id: str) -> str:
    """Return the pipeline that a DAG belongs to; for the DAG of a broken contract its own id."""
    if dag_id in load_contracts(schemas)[1]:
        return dag_id
    suffix = next((suffix for suffix in DAG_SUFFIXES if dag_id.endswith(suffix)), "")
    return dag_id.removesuffix(suffix)


def _read_contract(path: Path, seconds: float, *, beside: FileStates) -> Contract | ContractError:
    """Return what a file holds; it is read again when it, its permissions or a file `beside` it has changed."""
    try:
        status = path.stat()
    except OSError:
        return try_load(path, seconds)
    with _READING:
        return _read_cached(path, seconds, (status.st_mtime_ns, status.st_ctime_ns, status.st_size), beside)


_READING = threading.Lock()
"""So that one request reads a file that takes long, and not every one that comes meanwhile."""


def _list_files(folder: Path) -> FileStates:
    """Return the files that contracts may refer to, such as Avro schemas, with their times of change and sizes.

    A file that cannot be examined, such as a dangling link, is left out; once it can, it counts as new.
    """
    files = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(CONTRACT_SUFFIXES):
                with suppress(OSError):
                    status = entry.stat()
                    files.append((entry.name, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
    return frozenset(files)


@lru_cache(maxsize=512)
def _read_cached(path: Path, seconds: float, _now: tuple[int, ...], _beside: FileStates) -> Contract | ContractError:
    return try_load(path, seconds)
