"""The contracts of a folder: all of them in bounded time, and which file each pipeline is of."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

import yaml

from hindcast.common.errors import ContractError, suggest_nearest
from hindcast.common.targets import FILE, NO_CHOICE, Choice
from hindcast.contract import bounds
from hindcast.contract.folder_reader import FolderReader, UnreadContractError, count_tables
from hindcast.contract.load import try_load
from hindcast.contract.model import Contract
from hindcast.contract.shapes import FieldPath
from hindcast.contract.view_checks import Complaint
from hindcast.contract.yaml_documents import build_error, compose_node, find_line


def load_all(folder: Path, choice: Choice = NO_CHOICE) -> dict[str, Contract]:
    """Return the contracts of a folder by pipeline; raise ContractError for an invalid file or a repeated name."""
    contracts: dict[str, Contract] = {}
    for contract in try_load_all(folder, choice).values():
        if isinstance(contract, ContractError):
            raise contract
        contracts[contract.pipeline] = contract
    return contracts


def try_load_all(
    folder: Path,
    choice: Choice = NO_CHOICE,
    *,
    read_one: Callable[[Path, float], Contract | ContractError] | None = None,
    share: float = 1.0,
    deadline: float = math.inf,
    wants: Callable[[Path], bool] = lambda _: True,
) -> dict[Path, Contract | ContractError]:
    """Return the contract of each file of a folder, or its error: no file takes another one down.

    Of two contracts with one name, `find_owners` picks the file that keeps it; the other is an error. All files share
    one budget of time (`FolderReader`), or that `share` of it, and none is read after the `deadline` (of
    time.monotonic). Files that the caller does not want are not read. `read_one`: reads a file, instead of `try_load`.
    """
    read_one = read_one or partial(try_load, choice=choice)
    files = [path for path in list_contract_files(folder) if wants(path)]
    results = FolderReader(files, read_one, share, deadline).read()
    return _refuse_repeated_pipelines({path: results[path] for path in files})


def _refuse_repeated_pipelines(read: dict[Path, Contract | ContractError]) -> dict[Path, Contract | ContractError]:
    owners = find_owners(read)
    for path, contract in read.items():
        if isinstance(contract, Contract) and (owner := owners[contract.pipeline]) != path:
            read[path] = repeated_name_error(contract.pipeline, path, owner)
    return read


def find_owners(read: Mapping[Path, Contract | ContractError]) -> dict[str, Path]:
    """Return the file that keeps each pipeline's name: NAME.yaml, else NAME.yml, else the first.

    A file with the pipeline's own name keeps it also while it does not load (`keeps_name`): no other contract then
    takes its place, changes its tables, or shows what it calls sensitive.
    """
    files: dict[str, list[Path]] = {}
    for path, contract in read.items():
        if isinstance(contract, Contract):
            files.setdefault(contract.pipeline, []).append(path)
    for path, contract in read.items():
        if isinstance(contract, ContractError) and path.stem in files and keeps_name(path, contract):
            files[path.stem].append(path)
    return {pipeline: _choose_owner(pipeline, candidates) for pipeline, candidates in files.items()}


def _choose_owner(pipeline: str, files: Sequence[Path]) -> Path:
    names = [f"{pipeline}.yaml", f"{pipeline}.yml"]
    return min(files, key=lambda path: names.index(path.name) if path.name in names else len(names))


def keeps_name(path: Path, error: Exception) -> bool:
    """Return whether a file that does not load keeps the pipeline of its own name; so does one that is not read."""
    return isinstance(error, UnreadContractError) or is_meant_as(path, path.stem)


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
    """Return the error for a second contract with the same name, at the line that has it; at line 1 if none is plain.

    The file is not parsed again: any number of a folder's files may have the same name.
    """
    try:
        text = bounds.read_text(path)
    except (OSError, ValueError):
        text = ""
    named = _NAMED_PIPELINE.search(text)
    line = text.count("\n", 0, named.start()) + 1 if named else 1
    found = f"pipeline '{pipeline}' is already used in {first}"
    return ContractError(found, where=f"{path}:{line}", fix="rename one of the two")


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


def find(folder: Path, pipeline: str, choice: Choice = NO_CHOICE) -> Contract:
    """Return the contract of one pipeline; only its own file needs to be valid.

    ContractError also for a variable that was chosen, and which it does not declare.
    """
    found = try_find(folder, pipeline, choice)
    if isinstance(found, ContractError):
        raise found
    if found is None:
        others = {name for path in list_contract_files(folder) for name in _list_named_pipelines(path)}
        raise ContractError(f"no pipeline '{pipeline}'", where=str(folder), fix=suggest_nearest(pipeline, others))
    refuse_unknown_variables(choice, folder, [found])
    return found


def refuse_unknown_variables(choice: Choice, where: Path, contracts: Iterable[Contract]) -> None:
    """Raise ContractError for a variable of the command line that none of these contracts declares."""
    known = {name for contract in contracts for name in contract.variables}
    for name, _ in choice.variables:
        if name not in known:
            found = f"--var {name}: no such variable is declared"
            raise ContractError(found, where=str(where), fix=suggest_nearest(name, known))


def try_find(folder: Path, pipeline: str, choice: Choice = NO_CHOICE) -> Contract | ContractError | None:
    """Return the contract of one pipeline; else the error of a file that may be it, None if there is no such file."""
    if own := _load_own_file(folder, pipeline, choice):
        return own
    read = try_load_all(folder, choice, wants=lambda path: _may_be_of(path, pipeline))
    return _choose_file(read, folder, pipeline)


ContractFinder: TypeAlias = Callable[[Path, str], Contract | ContractError | None]
"""Finds the contract of a pipeline in a folder, as `try_find` does."""


def build_finder(
    choice: Choice, load: Callable[[Path], Mapping[Path, Contract | ContractError]] | None = None
) -> ContractFinder:
    """Return a function that does what `try_find` does, for many pipelines: it loads all files of a folder once.

    `load`: loads them; without it a file with a pipeline's name is loaded alone.
    """
    choice = choice.for_others
    load_once, by_name = cache(load or partial(try_load_all, choice=choice)), load is None

    def find_contract(folder: Path, pipeline: str) -> Contract | ContractError | None:
        own = _load_own_file(folder, pipeline, choice) if by_name else None
        return own or _choose_file(load_once(folder), folder, pipeline)

    return cache(find_contract)


def _load_own_file(folder: Path, pipeline: str, choice: Choice) -> Contract | None:
    """Return the contract in the file with a pipeline's name, if it is that pipeline's."""
    own = folder / f"{pipeline}.yaml"
    contract = (
        try_load(own, choice=choice) if os.access(own, os.F_OK) else None
    )  # access raises for no name, however long
    return contract if isinstance(contract, Contract) and contract.pipeline == pipeline else None


def _may_be_of(path: Path, pipeline: str) -> bool:
    return path.stem == pipeline or may_name(path, {pipeline})


def _choose_file(
    by_path: Mapping[Path, Contract | ContractError], folder: Path, pipeline: str
) -> Contract | ContractError | None:
    """Return what `try_find` does, of the files of a folder: of several errors that of the file with the name."""
    for found in by_path.values():
        if isinstance(found, Contract) and found.pipeline == pipeline:
            return found
    own = folder / f"{pipeline}.yaml"
    for path in sorted(by_path, key=lambda path: path != own):
        if isinstance(by_path[path], ContractError) and _may_be_of(path, pipeline):
            return by_path[path]
    return None


def locate_complaint(folder: Path, pipeline: str, complaint: Complaint) -> ContractError:
    """Return a complaint about a contract of a folder as an error with file and line."""
    for path in sorted(list_contract_files(folder), key=lambda path: path.stem != pipeline):  # another may be broken
        try:
            node = compose_node(path)
        except ContractError:
            continue
        if _names_pipeline(node, pipeline):
            return build_error(path, node, complaint)
    return ContractError(complaint.found, where=f"{folder}, {pipeline}", fix=complaint.fix)


def locate_fields(folder: Path, pipeline: str, fields: Iterable[FieldPath]) -> list[str]:
    """Return where each field of a contract stands, as `shop.yaml:14`; none if no file of its name has it."""
    for path in (folder / f"{pipeline}.yaml", folder / f"{pipeline}.yml"):
        try:
            node = compose_node(path) if os.access(path, os.F_OK) else None
        except ContractError:
            continue
        if _names_pipeline(node, pipeline):
            return [f"{path.name}:{find_line(node, field)}" for field in fields]
    return []


def _names_pipeline(node: yaml.Node | None, pipeline: str) -> bool:
    return isinstance(node, yaml.MappingNode) and any(
        (key.value, value.value) == ("pipeline", pipeline) for key, value in node.value
    )


def locate_complaint_in_file(path: Path, complaint: Complaint) -> ContractError:
    """Return a complaint about the contract in a file as an error with its line; line 1 if it is no longer readable."""
    try:
        node = compose_node(path)
    except ContractError:
        node = None
    return build_error(path, node, complaint)


def list_contract_files(folder: Path) -> list[Path]:
    """Return the contract files of a folder, sorted by name; raise ContractError if it cannot be read.

    targets.yaml is none, unless it names a pipeline.
    """
    if not folder.is_dir():
        raise ContractError("is not a folder", where=str(folder), fix="set HINDCAST_SCHEMAS to the contracts folder")
    try:
        files = [path for path in folder.iterdir() if path.suffix in (".yaml", ".yml")]
        return sorted(path for path in files if not is_targets_file(path))
    except OSError as error:
        fix = "give the user that runs Hindcast read access to the contracts folder"
        raise ContractError(f"cannot be read: {error.strerror}", where=str(folder), fix=fix) from None


def is_targets_file(path: Path) -> bool:
    """Return whether a file has the name of the targets of a folder, and names no pipeline."""
    return path.name == FILE and not _list_named_pipelines(path)
