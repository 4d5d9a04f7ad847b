"""The pipelines that there are, for the pages: contracts are loaded once, and again when their file changes."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

from hindcast.contracts import Contract, read, read_all
from hindcast.contracts.names import PREVIEW, RELEASE, dag_ids, name_stand_ins
from hindcast.errors import ContractError, UnknownError, nearest
from hindcast.settings import settings

SUFFIXES = (RELEASE, PREVIEW)
"""What the DAGs that ask a person, and preview, add to their pipeline's name."""


CONTRACTS = (".yaml", ".yml")
Files = frozenset[tuple[str, int, int, int]]


def contract(pipeline: str, readable: Collection[str]) -> Contract:
    """The contract of a pipeline; UnknownError if there is none, ContractError if it is wrong.

    Names of other pipelines are told only if they are `readable`.
    """
    found, broken = known()
    if pipeline in found:
        return found[pipeline]
    if pipeline in broken:
        raise broken[pipeline]
    raise UnknownError(
        f"no pipeline '{pipeline}'", mend=nearest(pipeline, [name for name in found if name in readable])
    )


def known() -> tuple[dict[str, Contract], dict[str, ContractError]]:
    """Return the contracts by pipeline, and what is wrong with those that do not load by the id of their DAG."""
    read_one = partial(_read, beside=_list_files(settings().schemas))
    contracts = read_all(settings().schemas, read_one)
    found = {it.pipeline: it for it in contracts.values() if isinstance(it, Contract)}
    broken = {path: it for path, it in contracts.items() if isinstance(it, ContractError)}
    taken = {dag_id for contract in found.values() for dag_id in dag_ids(contract)}
    return found, {dag_id: broken[path] for dag_id, path in name_stand_ins(broken, taken).items()}


def listed(readable: Collection[str]) -> dict[str, str]:
    """The pipelines that may be read, each with the first line of its description."""
    found, _ = known()
    return {name: found[name].description.strip().partition("\n")[0] for name in sorted(found) if name in readable}


def pipeline_of(dag_id: str) -> str:
    """Return the pipeline that a DAG belongs to; of a DAG that stands in for a broken contract its own id."""
    if dag_id in known()[1]:
        return dag_id
    suffix = next((it for it in SUFFIXES if dag_id.endswith(it)), "")
    return dag_id.removesuffix(suffix)


def _read(path: Path, beside: Files) -> Contract | ContractError:
    """Return what a file holds; it is read anew when it, its rights or a file beside the contracts has changed."""
    try:
        now = path.stat()
    except OSError:
        return read(path)
    return _unchanged(path, (now.st_mtime_ns, now.st_ctime_ns, now.st_size), beside)


def _list_files(folder: Path) -> Files:
    """Return the files that contracts may refer to, such as Avro schemas, each with when it changed and its size.

    What cannot be looked at, such as a link to nowhere, is left out: it is new when it can.
    """
    files = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith(CONTRACTS):
                with suppress(OSError):
                    now = entry.stat()
                    files.append((entry.name, now.st_mtime_ns, now.st_ctime_ns, now.st_size))
    return frozenset(files)


@lru_cache(maxsize=512)
def _unchanged(path: Path, _now: tuple[int, ...], _beside: Files) -> Contract | ContractError:
    return read(path)
