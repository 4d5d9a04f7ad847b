"""The contracts of a folder: all of them in bounded time, and which file each pipeline is of."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import yaml

from hindcast.common.errors import ContractError, suggest_nearest
from hindcast.contract import bounds
from hindcast.contract.load import SlowContractError, try_load
from hindcast.contract.model import Contract
from hindcast.contract.view_checks import Complaint
from hindcast.contract.yaml_documents import build_error, compose_node


def load_all(folder: Path) -> dict[str, Contract]:
    """Return the contracts of a folder by pipeline; raise ContractError for an invalid file or a repeated name."""
    contracts: dict[str, Contract] = {}
    for contract in try_load_all(folder).values():
        if isinstance(contract, ContractError):
            raise contract
        contracts[contract.pipeline] = contract
    return contracts


def try_load_all(
    folder: Path,
    read_one: Callable[[Path, float], Contract | ContractError] = try_load,
    *,
    share: float = 1.0,
    wants: Callable[[Path], bool] = lambda _: True,
) -> dict[Path, Contract | ContractError]:
    """Return the contract of each file of a folder, or its error: no file takes another one down.

    Of two contracts with one name, `find_owners` picks the file that keeps it; the other is an error. All files share
    one budget of time (`_FolderReader`), or that `share` of it. Files that the caller does not want are
    not read.
    """
    files = [path for path in list_contract_files(folder) if wants(path)]
    results = _FolderReader(files, read_one, share).read()
    return _refuse_repeated_pipelines({path: results[path] for path in files})


class _FolderReader:
    """Reads the contracts of a folder in bounded time: those that take long cost the others little.

    Small files are read first. Each may take a second (`bounds.FIRST_SECONDS`); those that were too slow are read again
    once all have been, the largest first, with what is left of the folder's time, from which their first reading is not
    taken. So a contract that takes less than a second loads beside eight that would take for ever, and one that takes
    less than a tenth beside any number. The whole takes at most 23 s of a processor (slow ones `bounds.SLOW_SECONDS`,
    others `bounds.FOLDER_SECONDS` with their DAGs, and a second more each), and then a tenth for each further file.
    """

    def __init__(
        self, files: Sequence[Path], read_one: Callable[[Path, float], Contract | ContractError], share: float
    ) -> None:
        self.sizes = {path: _find_size(path) for path in files}
        self.read_one = read_one
        self.slow_seconds, self.folder_seconds = bounds.SLOW_SECONDS * share, bounds.FOLDER_SECONDS * share
        self.results: dict[Path, Contract | ContractError] = {}
        self.taken = dict.fromkeys(files, 0.0)
        self.allowed = dict.fromkeys(files, 0.0)
        self.spent_at_first: dict[Path, float] = {}

    def read(self) -> dict[Path, Contract | ContractError]:
        """Return what each file holds, in the given order; an error that names the budget if it was not enough."""
        for path in sorted(self.sizes, key=lambda path: (self.sizes[path], path)):
            self._read_file(path, self._find_first_limit())
        while again := {path: seconds for path in self._list_slow() if (seconds := self._find_next_limit(path))}:
            # Those that were given only a moment come first: they may need little more.
            path = min(again, key=lambda path: (self.allowed[path], -self.sizes[path], path))
            self._read_file(path, again[path])
        return {path: self._explain(path) for path in self.sizes}

    def _find_first_limit(self) -> float:
        """Return the seconds that the next file may take when it is read for the first time."""
        slow = sum(self.taken[path] for path in self._list_slow())
        late = slow >= self.slow_seconds or sum(self.taken.values()) - slow >= self.folder_seconds
        return min(bounds.SECONDS, bounds.LAST_SECONDS if late else bounds.FIRST_SECONDS)

    def _find_next_limit(self, path: Path) -> float | None:
        """Return the seconds that a slow file may take when it is read again; None if no more than it has taken."""
        more = bounds.FIRST_SECONDS if self.allowed[path] < bounds.FIRST_SECONDS else bounds.SECONDS
        taken = sum(self.taken.values()) - sum(self.spent_at_first.values())
        seconds = min(more, bounds.SECONDS, self.folder_seconds - taken)
        return seconds if seconds > max(self.allowed[path], self.taken[path]) else None

    def _list_slow(self) -> list[Path]:
        return [path for path, result in self.results.items() if isinstance(result, SlowContractError)]

    def _read_file(self, path: Path, seconds: float) -> None:
        begun = time.thread_time()
        self.results[path] = self.read_one(path, seconds)
        self.taken[path] += time.thread_time() - begun
        self.allowed[path] = seconds
        if isinstance(contract := self.results[path], Contract):
            self.taken[path] += count_tables(contract) * bounds.TABLE_SECONDS
        if isinstance(contract, SlowContractError):
            self.spent_at_first.setdefault(path, self.taken[path])

    def _explain(self, path: Path) -> Contract | ContractError:
        """Return what a file holds; an error that names the budget if others left too little of it."""
        result, allowed = self.results[path], self.allowed[path]
        others = {other.name: taken for other, taken in self.taken.items() if other != path}
        if not isinstance(result, SlowContractError) or allowed >= bounds.SECONDS or not others:
            return result
        slowest = max(others, key=lambda name: others[name])
        found = (
            f"takes more than {allowed:.2g} s of a processor to read, and no more is left: the folder's other "
            f"contracts took {sum(others.values()):.0f} s, {slowest} alone {others[slowest]:.0f} s"
        )
        return SlowContractError(found, where=f"{path}:1", fix=_BUDGET_FIX)


_BUDGET_FIX = (
    "simplify the contracts that take long (split them, use fewer expressions), or move some to another folder"
)


def _find_size(path: Path) -> int:
    """Return the size of a file; 0 if it cannot be examined, which is an error that takes no time."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _refuse_repeated_pipelines(read: dict[Path, Contract | ContractError]) -> dict[Path, Contract | ContractError]:
    owners = find_owners(read)
    for path, contract in read.items():
        if isinstance(contract, Contract) and (owner := owners[contract.pipeline]) != path:
            read[path] = repeated_name_error(contract.pipeline, path, owner)
    return read


def find_owners(read: Mapping[Path, Contract | ContractError]) -> dict[str, Path]:
    """Return the file that keeps each pipeline's name: NAME.yaml, else NAME.yml, else the first.

    A file with the pipeline's own name keeps it also while it does not load (`is_meant_as`): no other contract then
    takes its place, changes its tables, or shows what it calls sensitive.
    """
    files: dict[str, list[Path]] = {}
    for path, contract in read.items():
        if isinstance(contract, Contract):
            files.setdefault(contract.pipeline, []).append(path)
    for path, contract in read.items():
        if isinstance(contract, ContractError) and path.stem in files and is_meant_as(path, path.stem):
            files[path.stem].append(path)
    return {pipeline: _choose_owner(pipeline, candidates) for pipeline, candidates in files.items()}


def _choose_owner(pipeline: str, files: Sequence[Path]) -> Path:
    names = [f"{pipeline}.yaml", f"{pipeline}.yml"]
    return min(files, key=lambda path: names.index(path.name) if path.name in names else len(names))


def is_meant_as(path: Path, pipeline: str) -> bool:
    """Return whether a file with a pipeline's name that does not load is that pipeline's.

    It is unless it clearly names another one, in a line of its own: a file that cannot be read may be that pipeline's.
    """
    try:
        text = bounds.read_text(path)
    except FileNotFoundError:
        return os.path.lexists(path)  # a link to nowhere may lead somewhere again
    except (OSError, ValueError):
        return True
    named = re.search(rf"""(?:^|[{{,])[ \t]*["']?pipeline["']?[ \t]*:[ \t]*["']?{re.escape(pipeline)}\b""", text, re.M)
    return named is not None or _NAMED_PIPELINE.search(text) is None


def list_meant_pipelines(path: Path) -> set[str]:
    """Return the pipelines that a file that does not load may be the contract of: by its name, and by its text."""
    is_own = _PIPELINE.fullmatch(path.stem) is not None and is_meant_as(path, path.stem)
    return _list_named_pipelines(path) | ({path.stem} if is_own else set())


def may_name(path: Path, pipelines: Collection[str]) -> bool:
    """Return whether a file may be the contract of one of these pipelines.

    It may if it has the name, not only those of tables (`shop.orders`), or none that `_NAMED_PIPELINE` finds: YAML has
    many ways to write it.
    """
    try:
        text = bounds.read_text(path)
    except (OSError, ValueError):
        return True
    listed = "|".join(map(re.escape, pipelines))
    return re.search(rf"\b(?:{listed})\b(?!\.\w)", text) is not None or _NAMED_PIPELINE.search(text) is None


def _list_named_pipelines(path: Path) -> set[str]:
    """Return the pipelines that a file names in lines of their own; none if it cannot be read."""
    try:
        return {match.group(1) for match in _NAMED_PIPELINE.finditer(bounds.read_text(path))}
    except (OSError, ValueError):
        return set()


_PIPELINE = re.compile("[A-Za-z0-9_]{1,200}")
_NAMED_PIPELINE = re.compile(r"""^pipeline:[ \t]+["']?([A-Za-z0-9_]+)["']?[ \t\r]*(?:#.*)?$""", re.MULTILINE)


def repeated_name_error(pipeline: str, path: Path, first: Path) -> ContractError:
    """Return the error for a second contract with the same name."""
    found = f"pipeline '{pipeline}' is already used in {first}"
    return locate_complaint_in_file(path, Complaint(("pipeline",), found, "rename one of the two"))


def refuse_many_tables(
    contracts: Mapping[Path, Contract | ContractError], others: int = 0
) -> dict[Path, Contract | ContractError]:
    """Return contracts of a folder, with errors for the largest if one DAG file cannot have the tasks of all.

    That is, if they have more than `bounds.FOLDER_TABLES` topics, inputs and views together, with the `others` that the
    file has from other folders.
    """
    sizes = {path: count_tables(it) for path, it in contracts.items() if isinstance(it, Contract)}
    kept, total = set(), others
    for path in sorted(sizes, key=lambda path: (sizes[path], path)):
        total += sizes[path]
        if total <= bounds.FOLDER_TABLES:
            kept.add(path)
    found = (
        f"there are {sum(sizes.values()) + others:,} tables, and a DAG file can have the tasks of "
        f"{bounds.FOLDER_TABLES:,}: the largest contracts, like this one, have no DAG"
    )
    fix = "move some contracts to another folder, with a DAG file of its own"
    refused = {path: ContractError(found, where=f"{path}:1", fix=fix) for path in sizes.keys() - kept}
    return {path: refused.get(path, it) for path, it in contracts.items()}


def count_tables(contract: Contract) -> int:
    """Return how many topics, inputs and views a contract has."""
    return len(contract.topics) + len(contract.inputs) + len(contract.views)


def find(folder: Path, pipeline: str) -> Contract:
    """Return the contract of one pipeline; only its own file needs to be valid."""
    found = try_find(folder, pipeline)
    if isinstance(found, ContractError):
        raise found
    if found is None:
        others = {name for path in list_contract_files(folder) for name in _list_named_pipelines(path)}
        raise ContractError(f"no pipeline '{pipeline}'", where=str(folder), fix=suggest_nearest(pipeline, others))
    return found


def try_find(folder: Path, pipeline: str) -> Contract | ContractError | None:
    """Return the contract of one pipeline; else the error of a file that may be it, None if there is no such file."""
    own = folder / f"{pipeline}.yaml"
    if os.access(own, os.F_OK):  # raises for no name, however long
        contract = try_load(own)
        if isinstance(contract, Contract) and contract.pipeline == pipeline:
            return contract
    results = try_load_all(folder, wants=lambda path: path.stem == pipeline or may_name(path, {pipeline}))
    contracts = {result.pipeline: result for result in results.values() if isinstance(result, Contract)}
    errors = (result for result in (results.get(own), *results.values()) if isinstance(result, ContractError))
    return contracts.get(pipeline) or next(errors, None)


def locate_complaint(folder: Path, pipeline: str, complaint: Complaint) -> ContractError:
    """Return a complaint about a contract of a folder as an error with file and line."""
    for path in sorted(list_contract_files(folder), key=lambda path: path.stem != pipeline):  # another may be broken
        try:
            node = compose_node(path)
        except ContractError:
            continue
        if isinstance(node, yaml.MappingNode) and any(
            (key.value, value.value) == ("pipeline", pipeline) for key, value in node.value
        ):
            return build_error(path, node, complaint)
    return ContractError(complaint.found, where=f"{folder}, {pipeline}", fix=complaint.fix)


def locate_complaint_in_file(path: Path, complaint: Complaint) -> ContractError:
    """Return a complaint about the contract in a file as an error with its line; line 1 if it is no longer readable."""
    try:
        node = compose_node(path)
    except ContractError:
        node = None
    return build_error(path, node, complaint)


def list_contract_files(folder: Path) -> list[Path]:
    """Return the contract files of a folder, sorted by name; raise ContractError if it cannot be read."""
    if not folder.is_dir():
        raise ContractError("is not a folder", where=str(folder), fix="set HINDCAST_SCHEMAS to the contracts folder")
    try:
        return sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))
    except OSError as error:
        fix = "give the user that runs Hindcast read access to the contracts folder"
        raise ContractError(f"cannot be read: {error.strerror}", where=str(folder), fix=fix) from None
