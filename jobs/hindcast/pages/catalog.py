"""The pipelines that there are, for the pages: contracts are loaded once, and again when their file changes."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from hindcast.contracts import Contract, load, paths
from hindcast.errors import ContractError, UnknownError, nearest
from hindcast.settings import settings

SUFFIXES = ("__release", "__preview")
"""What the DAGs that ask a person, and preview, add to their pipeline's name."""


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
    """The contracts by pipeline, and by file what is wrong with those that do not load; of two of a name the first."""
    found: dict[str, Contract] = {}
    broken: dict[str, ContractError] = {}
    for path in paths(settings().schemas):
        try:
            it = _loaded(path, path.stat().st_mtime_ns)
            found.setdefault(it.pipeline, it)
        except ContractError as error:
            broken[path.stem] = error
    return found, broken


def listed(readable: Collection[str]) -> dict[str, str]:
    """The pipelines that may be read, each with the first line of its description."""
    found, _ = known()
    return {name: found[name].description.strip().partition("\n")[0] for name in sorted(found) if name in readable}


def pipeline_of(dag_id: str) -> str:
    """The pipeline that a DAG belongs to."""
    suffix = next((it for it in SUFFIXES if dag_id.endswith(it)), "")
    return dag_id.removesuffix(suffix)


@lru_cache(maxsize=512)
def _loaded(path: Path, _changed: int) -> Contract:
    return load(path)
