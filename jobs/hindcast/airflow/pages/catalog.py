"""All pipelines, for the pages: a contract is loaded once, and again when its file changes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hindcast.common.bounded_files import FileState, find_state
from hindcast.common.errors import ContractError, UnknownError, suggest_nearest
from hindcast.common.settings import Settings
from hindcast.common.targets import Choice
from hindcast.contract import Contract, bounds, try_load, try_load_all
from hindcast.contract.avro_file import record_named_files
from hindcast.contract.description import summarize_description
from hindcast.contract.folder import ContractFinder, build_finder
from hindcast.contract.load import SlowContractError
from hindcast.contract.names import PREVIEW, RELEASE, list_dag_ids, name_stand_ins

DAG_SUFFIXES = (RELEASE, PREVIEW)
"""What the DAGs of approvals and previews append to their pipeline's name."""


def load_contract(settings: Settings, pipeline: str, readable: Collection[str]) -> Contract:
    """Return the contract of a pipeline; UnknownError if there is none, ContractError if it is invalid.

    The error suggests only names that are `readable`.
    """
    contracts, broken = load_contracts(settings)
    if pipeline in contracts:
        return contracts[pipeline]
    if pipeline in broken:
        raise broken[pipeline]
    names = [name for name in contracts if name in readable]
    raise UnknownError(f"no pipeline '{pipeline}'", fix=suggest_nearest(pipeline, names))


def load_contracts(settings: Settings) -> tuple[dict[str, Contract], dict[str, ContractError]]:
    """Return the contracts by pipeline, and the errors of those that do not load by the id of their DAG."""
    by_path = _load_files(settings.schemas, settings.choice)
    contracts = {it.pipeline: it for it in by_path.values() if isinstance(it, Contract)}
    broken = {path: it for path, it in by_path.items() if isinstance(it, ContractError)}
    taken = {dag_id for contract in contracts.values() for dag_id in list_dag_ids(contract)}
    return contracts, {dag_id: broken[path] for dag_id, path in name_stand_ins(broken, taken).items()}


def build_catalog_finder(settings: Settings) -> ContractFinder:
    """Return a function that finds the contracts of other pipelines; it looks at the files of a folder once."""
    return build_finder(settings.choice, partial(_load_files, choice=settings.choice))


def _load_files(schemas: Path, choice: Choice) -> dict[Path, Contract | ContractError]:
    by_path = try_load_all(schemas, read_one=partial(_read_contract, choice=choice))
    _drop_other_files(schemas, by_path.keys())
    return by_path


def list_pipelines(settings: Settings, readable: Collection[str]) -> dict[str, str]:
    """Return the `readable` pipelines, each with the first sentence of its description."""
    contracts, _ = load_contracts(settings)
    return {
        name: summarize_description(contract.description)
        for name, contract in sorted(contracts.items())
        if name in readable
    }


def pipeline_of_dag(settings: Settings, dag_id: str) -> str:
    """Return the pipeline that a DAG belongs to; for the DAG of a broken contract its own id."""
    if dag_id in load_contracts(settings)[1]:
        return dag_id
    suffix = next((suffix for suffix in DAG_SUFFIXES if dag_id.endswith(suffix)), "")
    return dag_id.removesuffix(suffix)


@dataclass(frozen=True)
class _ReadFile:
    """What a file held when it was read in at most `seconds`, its state, and those of the files that it names."""

    result: Contract | ContractError
    seconds: float
    state: FileState
    named: Mapping[Path, FileState]

    def is_current(self, path: Path, seconds: float) -> bool:
        """Return whether the file would be read again as it was."""
        if isinstance(self.result, SlowContractError) and seconds > self.seconds:
            return False
        return self.state == find_state(path) and all(state == find_state(it) for it, state in self.named.items())


@dataclass
class _CachedFile:
    """The last result of reading a file, and a lock so that one request reads it, and not every one that comes."""

    last: _ReadFile | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, path: Path, seconds: float, choice: Choice) -> Contract | ContractError:
        """Return what a file holds; while another request reads it, what it held before.

        If it is too slow for the `seconds`, which may be few, that is not kept in place of a contract: the file is read
        again with more, and other requests get the contract meanwhile.
        """
        last = self.last
        if last is not None and last.is_current(path, seconds):
            return last.result
        if not self.lock.acquire(blocking=last is None):
            assert last is not None  # noqa: S101  # otherwise the lock is waited for
            return last.result
        try:
            if self.last is not None and self.last.is_current(path, seconds):
                return self.last.result
            read, had_contract = (
                _read_file(path, seconds, choice),
                last is not None and isinstance(last.result, Contract),
            )
            is_final = seconds >= bounds.SECONDS or not isinstance(read.result, SlowContractError)
            if is_final or not had_contract:
                self.last = read
            return read.result
        finally:
            self.lock.release()


def _read_contract(path: Path, seconds: float, choice: Choice) -> Contract | ContractError:
    """Return what a file holds; it is read again when it, its permissions or a file that it names has changed."""
    return _find_cached_file(path, choice).read(path, seconds, choice)


def _find_cached_file(path: Path, choice: Choice) -> _CachedFile:
    with _FILES_LOCK:
        return _FILES.setdefault((path, choice), _CachedFile())


def _drop_other_files(folder: Path, files: Collection[Path]) -> None:
    """Forget the files that a folder no longer has."""
    with _FILES_LOCK:
        for path, choice in [*_FILES]:
            if path.parent == folder and path not in files:
                del _FILES[path, choice]


_FILES: dict[tuple[Path, Choice], _CachedFile] = {}
"""All files of all folders, by what they are loaded with; with fewer, requests would read larger folders whole."""
_FILES_LOCK = threading.Lock()


def _read_file(path: Path, seconds: float, choice: Choice) -> _ReadFile:
    state = find_state(path)  # before: a change while it is read is seen later
    with record_named_files() as named:
        result = try_load(path, seconds, choice)
    return _ReadFile(result, seconds, state, named)
