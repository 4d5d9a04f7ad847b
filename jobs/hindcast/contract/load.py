"""Contracts from YAML files, with errors that name file and line."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from hindcast.common.errors import ContractError, HindcastError, suggest_nearest
from hindcast.common.processor_time import ExpiredError, limit_processor_time
from hindcast.contract import bounds, messages
from hindcast.contract.bounds import ExcessError
from hindcast.contract.check import check_contract
from hindcast.contract.model import Contract
from hindcast.contract.shapes import FieldPath
from hindcast.contract.types import ContractValue, format_value
from hindcast.contract.view_checks import Complaint

if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _OddValueError(Exception):
    """A value that does not fit its YAML tag, with its node."""

    def __init__(self, node: yaml.Node) -> None:
        self.node = node
        super().__init__(node.value)


class _Loader(_Base):
    """Safe YAML where only `true` and `false` are booleans (YAML 1.2): `on:` stays the name it is."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> ContractValue:
        """Return the value that YAML constructs; raise _OddValueError where that fails (`2026-02-30`, `!!int x`) and
        for what JSON does not have: whole numbers of more than 64 bits, bytes, sets.
        """
        tag = node.tag.rpartition(":")[2]
        if tag in _NOT_IN_JSON or (tag in _TAG_FIXES and len(node.value) > _LONGEST_NUMBER):
            raise _OddValueError(node)
        try:
            value: ContractValue = super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            raise _OddValueError(node) from None
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise _OddValueError(node)
        return value


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}


def load(path: Path, seconds: float | None = None) -> Contract:
    """Return the contract in one YAML file; raise ContractError with file, line, what was found and the fix.

    Any exception while a file is read becomes a ContractError: it must not stop whoever reads its neighbours. So does
    a file that takes more than so many `seconds` of a processor, by default `bounds.SECONDS`.
    """
    seconds = bounds.SECONDS if seconds is None else seconds
    try:
        with limit_processor_time(seconds):
            return _load(path)
    except ExpiredError:
        found = f"takes more than {seconds:.2g} s of a processor to read"
        fix = (
            "find the expression, pattern or type that nests too much (leave out one after the other), and simplify it"
        )
        raise SlowContractError(found, where=f"{path}:1", fix=fix) from None


def load_text(text: str) -> Contract:
    """Return the contract in a text that is in no file yet; raise ContractError as `load` does."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "contract.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path)


class SlowContractError(ContractError):
    """A contract takes too long to read."""


def _load(path: Path) -> Contract:
    try:
        node = _compose(path)
        contract = _validate(path, node)
        _ = contract.hash  # what JSON cannot express fails here, not in a run
        complaint = next(check_contract(contract), None)
    except HindcastError:
        raise
    except Exception as error:
        found = f"cannot be read as a contract: {type(error).__name__}: {format_value(error)}"
        fix = "undo the last change, and report this to the makers of Hindcast: the error should say what is wrong"
        raise ContractError(found, where=f"{path}:1", fix=fix) from error
    if complaint is not None:
        raise _build_error(path, node, complaint)
    return contract


def load_all(folder: Path) -> dict[str, Contract]:
    """Return the contracts of a folder by pipeline; raise ContractError for an invalid file or a repeated name."""
    contracts: dict[str, Contract] = {}
    for contract in try_load_all(folder).values():
        if isinstance(contract, ContractError):
            raise contract
        contracts[contract.pipeline] = contract
    return contracts


def try_load(path: Path, seconds: float | None = None) -> Contract | ContractError:
    """Return the contract in a file, or what is wrong with it (`load`)."""
    try:
        return load(path, seconds)
    except ContractError as error:
        return error


def try_load_all(
    folder: Path, read_one: Callable[[Path, float], Contract | ContractError] = try_load
) -> dict[Path, Contract | ContractError]:
    """Return the contract of each file of a folder, or its error: no file takes another one down.

    Of two contracts with one name, `find_owners` picks the file that keeps it; the other is an error. All files share
    one budget of time (`_FolderReader`).
    """
    files = list_contract_files(folder)
    results = _FolderReader(files, read_one).read()
    return _refuse_repeated_pipelines({path: results[path] for path in files})


class _FolderReader:
    """Reads the contracts of a folder in bounded time: those that take long cost the others little.

    Small files are read first. Each may take a second (`bounds.FIRST_SECONDS`); those that were too slow are read again
    once all have been, the largest first, with what is left of the folder's time, from which their first reading is not
    taken. So a contract that takes less than a
    second loads beside eight that would take for ever, and one that takes less than a tenth beside any number. The
    whole takes at most 23 s of a processor (slow ones `bounds.SLOW_SECONDS`, others `bounds.FOLDER_SECONDS`, and a
    second more each), and then a tenth for each further file.
    """

    def __init__(self, files: Sequence[Path], read_one: Callable[[Path, float], Contract | ContractError]) -> None:
        self.sizes = {path: _find_size(path) for path in files}
        self.read_one = read_one
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
        late = slow >= bounds.SLOW_SECONDS or sum(self.taken.values()) - slow >= bounds.FOLDER_SECONDS
        return min(bounds.SECONDS, bounds.LAST_SECONDS if late else bounds.FIRST_SECONDS)

    def _find_next_limit(self, path: Path) -> float | None:
        """Return the seconds that a slow file may take when it is read again; None if no more than it has taken."""
        more = bounds.FIRST_SECONDS if self.allowed[path] < bounds.FIRST_SECONDS else bounds.SECONDS
        taken = sum(self.taken.values()) - sum(self.spent_at_first.values())
        seconds = min(more, bounds.SECONDS, bounds.FOLDER_SECONDS - taken)
        return seconds if seconds > max(self.allowed[path], self.taken[path]) else None

    def _list_slow(self) -> list[Path]:
        return [path for path, result in self.results.items() if isinstance(result, SlowContractError)]

    def _read_file(self, path: Path, seconds: float) -> None:
        begun = time.thread_time()
        self.results[path] = self.read_one(path, seconds)
        self.taken[path] += time.thread_time() - begun
        self.allowed[path] = seconds
        if isinstance(self.results[path], SlowContractError):
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
    try:
        named = {match.group(1) for match in _NAMED_PIPELINE.finditer(bounds.read_text(path))}
    except (OSError, ValueError):
        named = set()
    return named | ({path.stem} if is_meant_as(path, path.stem) else set())


_NAMED_PIPELINE = re.compile(r"""^pipeline:[ \t]+["']?([A-Za-z0-9_]+)["']?[ \t\r]*(?:#.*)?$""", re.MULTILINE)


def repeated_name_error(pipeline: str, path: Path, first: Path) -> ContractError:
    """Return the error for a second contract with the same name."""
    found = f"pipeline '{pipeline}' is already used in {first}"
    return locate_complaint_in_file(path, Complaint(("pipeline",), found, "rename one of the two"))


def find(folder: Path, pipeline: str) -> Contract:
    """Return the contract of one pipeline; only its own file needs to be valid."""
    own = folder / f"{pipeline}.yaml"
    if os.access(own, os.F_OK):  # raises for no name, however long
        contract = try_load(own)
        if isinstance(contract, Contract) and contract.pipeline == pipeline:
            return contract
    results = try_load_all(folder)
    contracts = {result.pipeline: result for result in results.values() if isinstance(result, Contract)}
    if pipeline not in contracts:
        for result in (results.get(own), *results.values()):
            if isinstance(result, ContractError):
                raise result  # it may be the file that is meant
        raise ContractError(f"no pipeline '{pipeline}'", where=str(folder), fix=suggest_nearest(pipeline, contracts))
    return contracts[pipeline]


def locate_complaint(folder: Path, pipeline: str, complaint: Complaint) -> ContractError:
    """Return a complaint about a contract of a folder as an error with file and line."""
    for path in sorted(list_contract_files(folder), key=lambda path: path.stem != pipeline):  # another may be broken
        try:
            node = _compose(path)
        except ContractError:
            continue
        if isinstance(node, yaml.MappingNode) and any(
            (key.value, value.value) == ("pipeline", pipeline) for key, value in node.value
        ):
            return _build_error(path, node, complaint)
    return ContractError(complaint.found, where=f"{folder}, {pipeline}", fix=complaint.fix)


def locate_complaint_in_file(path: Path, complaint: Complaint) -> ContractError:
    """Return a complaint about the contract in a file as an error with its line; line 1 if it is no longer readable."""
    try:
        node = _compose(path)
    except ContractError:
        node = None
    return _build_error(path, node, complaint)


def list_contract_files(folder: Path) -> list[Path]:
    """Return the contract files of a folder, sorted by name; raise ContractError if it cannot be read."""
    if not folder.is_dir():
        raise ContractError("is not a folder", where=str(folder), fix="set HINDCAST_SCHEMAS to the contracts folder")
    try:
        return sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))
    except OSError as error:
        fix = "give the user that runs Hindcast read access to the contracts folder"
        raise ContractError(f"cannot be read: {error.strerror}", where=str(folder), fix=fix) from None


def format_json_schema() -> str:
    """Return the JSON Schema of a contract for editors, as stored in schemas/contract.schema.json."""
    schema = {"$schema": _Schema.schema_dialect, **Contract.model_json_schema(schema_generator=_Schema)}
    return json.dumps(schema | {"title": "Hindcast contract"}, indent=2) + "\n"


class _Schema(GenerateJsonSchema):
    """JSON Schema in which a name that does not match its pattern is refused, not ignored."""

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        result = super().dict_schema(schema)
        return {**result, "additionalProperties": False} if "patternProperties" in result else result


def _compose(path: Path) -> yaml.Node | None:
    """Return the root node of a YAML file; raise ContractError for invalid YAML, excess (bounds.py), repeated names."""
    try:
        text = bounds.read_text(path)
        bounds.refuse_excess(yaml.parse(text, Loader=_Base))
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except ExcessError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise ContractError(error.found, where=where, fix=error.fix) from None
    except OSError as error:
        raise ContractError(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from None
    except UnicodeDecodeError:
        raise ContractError("is not UTF-8 text", where=str(path), fix="save the contract as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ContractError(
            f"is not YAML: {getattr(error, 'problem', None) or error}", where=where, fix=_SYNTAX_FIX
        ) from None
    _refuse_repeated_names(path, node)
    return node


def read_document(path: Path) -> ContractValue:
    """Return the content of a YAML file within the limits of a contract (bounds.py); raise ContractError as `load`."""
    return _construct_document(path, _compose(path))


def _construct_document(path: Path, node: yaml.Node | None) -> ContractValue:
    """Return the content of a YAML node; raise ContractError for a value that does not fit its tag."""
    try:
        data: ContractValue = _Loader("").construct_document(node) if node else None
    except _OddValueError as odd:
        raise _build_odd_value_error(path, node, odd.node) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ContractError(f"is not YAML: {getattr(error, 'problem', None)}", where=where, fix=_SYNTAX_FIX) from None
    return data


def _validate(path: Path, node: yaml.Node | None) -> Contract:
    """Return the contract in a YAML node, each field validated; raise ContractError for the first invalid one."""
    data = _construct_document(path, node)
    if not isinstance(data, dict) or node is None:
        raise ContractError(
            "contains no contract", where=f"{path}:1", fix="write pipeline:, start: and topics: (see README.md)"
        )
    try:
        return Contract.model_validate(data, context={"folder": path.parent})
    except ValidationError as error:
        raise _build_first_error(path, node, error) from None


def _build_first_error(path: Path, node: yaml.Node, error: ValidationError) -> ContractError:
    """Return the first of pydantic's complaints as an error in our words."""
    problems = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")[:_MAX_PROBLEMS]
    problem = min(problems, key=lambda e: (e["type"] != "extra_forbidden", _find_line(node, e["loc"])))
    return _build_error(path, node, messages.describe_problem(node, problem))


_MAX_PROBLEMS = 200
"""The most problems that are compared by line; with more, the one shown may not be the first in the file."""

_SYNTAX_FIX = "fix the syntax on this line; put text with a colon, a comma or a # in quotes"
_TAG_FIXES = {
    "timestamp": ("valid timestamp", "write for example 2026-01-31 or 2026-01-31T06:00:00Z"),
    "int": ("whole number", "write for example 10"),
    "float": ("number", "write for example 0.5"),
    "bool": ("boolean", "write true or false"),
}
"""What a value tagged in YAML must be, and the fix."""

_NOT_IN_JSON = ("binary", "omap", "pairs", "set")
_LONGEST_NUMBER = 100


def _build_odd_value_error(path: Path, root: yaml.Node | None, odd: yaml.Node) -> ContractError:
    """Return the error for a value that does not fit its tag, with the path of its field."""
    tag = odd.tag.rpartition(":")[2]
    name = ".".join(map(str, _find_location(root, odd) or ()))
    if tag in _TAG_FIXES:
        kind, fix = _TAG_FIXES[tag]
        problem = f"is not a {kind}"
    else:
        problem, fix = f"is not supported: it is tagged !!{tag}", f"remove !!{tag}"
    found = f"{name}: {format_value(odd.value)} {problem}".removeprefix(": ")
    return ContractError(found, where=f"{path}:{odd.start_mark.line + 1}", fix=f"{fix}; put text in quotes")


def _find_location(node: yaml.Node | None, target: yaml.Node) -> FieldPath | None:
    """Return the path from a node to one below it, None if it is not below; the path of a key is that of its value."""
    if node is target:
        return ()
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, child) for key, value in node.value for child in (key, value)]
    else:
        children = list(enumerate(node.value)) if isinstance(node, yaml.SequenceNode) else []
    paths = ((name, _find_location(child, target)) for name, child in children)
    return next(((name, *rest) for name, rest in paths if rest is not None), None)


def _build_error(path: Path, node: yaml.Node | None, complaint: Complaint) -> ContractError:
    found, fix = (_shorten(" ".join(text.split("\n"))) for text in (complaint.found, complaint.fix))
    return ContractError(found, where=f"{path}:{_find_line(node, complaint.location)}", fix=fix)


def _shorten(text: str) -> str:
    """Return a message with the middle left out if it is very long: it may quote what a user wrote."""
    return text if len(text) <= 2 * _HALF_MESSAGE else f"{text[:_HALF_MESSAGE]} ... {text[-_HALF_MESSAGE:]}"


_HALF_MESSAGE = 500


def _find_line(node: yaml.Node | None, location: FieldPath) -> int:
    """Return the line, from 1, of the deepest part of `location` that the file has."""
    line = node.start_mark.line if node else 0
    for part in location:
        if isinstance(node, yaml.MappingNode):
            entry = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if entry is None:
                break
            line, node = entry[0].start_mark.line, entry[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return line + 1


def _refuse_repeated_names(path: Path, node: yaml.Node | None) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                where = f"{path}:{key.start_mark.line + 1}"
                raise ContractError(
                    "a name must be text, not a list or a mapping", where=where, fix="write a plain name"
                )
            if key.value in seen:
                raise ContractError(
                    f"'{key.value}' is defined twice, first on line {seen[key.value]}",
                    where=f"{path}:{key.start_mark.line + 1}",
                    fix="remove or rename one of the two",
                )
            seen[key.value] = key.start_mark.line + 1
            _refuse_repeated_names(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_names(path, item)
