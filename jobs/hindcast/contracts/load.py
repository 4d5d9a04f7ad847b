"""YAML files into contracts, and every complaint with its file and line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from hindcast.contracts import bounds, words
from hindcast.contracts.bounds import ExcessError
from hindcast.contracts.check import check
from hindcast.contracts.model import Contract
from hindcast.contracts.types import shown
from hindcast.contracts.views import Complaint
from hindcast.errors import ContractError, HindcastError, nearest

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _OddError(Exception):
    """A value that is not what it looks like, or is tagged as: its node."""

    def __init__(self, node: yaml.Node) -> None:
        self.node = node
        super().__init__(node.value)


class _Loader(_Base):  # type: ignore[misc]  # the base is chosen at run time
    """Safe YAML where only `true` and `false` are booleans (YAML 1.2): `on:` stays the name it is."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """As YAML makes it; _OddError where its own constructors fail, `2026-02-30`, `!!int x`, and for what JSON
        has not: whole numbers of more than 64 bits, bytes, sets.
        """
        tag = node.tag.rpartition(":")[2]
        if tag in _NOT_IN_JSON or (tag in _TAGS and len(node.value) > _LONGEST_NUMBER):
            raise _OddError(node)
        try:
            made = super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            raise _OddError(node) from None
        if isinstance(made, int) and not -(1 << 63) <= made < 1 << 63:
            raise _OddError(node)
        return made


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}


def load(path: Path) -> Contract:
    """The contract in one YAML file; ContractError names file, line, what was found and what would do.

    Whatever a file does to what reads it is a ContractError too: it must not stop whoever reads its neighbours.
    """
    try:
        node = _composed(path)
        contract = _validated(path, node)
        _ = contract.hash  # what cannot be told in JSON fails here, not in a run
        complaint = next(check(contract), None)
    except HindcastError:
        raise
    except Exception as error:
        found = f"cannot be read as a contract: {type(error).__name__}: {shown(error)}"
        mend = "take out what was added last; and tell the makers of Hindcast, it should have said what is wrong"
        raise ContractError(found, where=f"{path}:1", mend=mend) from error
    if complaint is not None:
        raise _complain(path, node, complaint)
    return contract


def load_all(folder: Path) -> dict[str, Contract]:
    """Every contract of a folder by its pipeline's name; two of one name are refused."""
    contracts: dict[str, Contract] = {}
    for contract in read_all(folder).values():
        if isinstance(contract, ContractError):
            raise contract
        contracts[contract.pipeline] = contract
    return contracts


def read(path: Path) -> Contract | ContractError:
    """Return the contract in a file, or what is wrong with it."""
    try:
        return load(path)
    except ContractError as error:
        return error


def read_all(
    folder: Path, read_one: Callable[[Path], Contract | ContractError] = read
) -> dict[Path, Contract | ContractError]:
    """Return for every file of a folder its contract, or what is wrong with it: no file takes another one down.

    Of two contracts of one name one file has it (`choose_owner`); the other is wrong.
    """
    return _with_one_owner({path: read_one(path) for path in paths(folder)})


def _with_one_owner(read: dict[Path, Contract | ContractError]) -> dict[Path, Contract | ContractError]:
    named: dict[str, list[Path]] = {}
    for path, contract in read.items():
        if isinstance(contract, Contract):
            named.setdefault(contract.pipeline, []).append(path)
    owners = {pipeline: choose_owner(pipeline, files) for pipeline, files in named.items()}
    for path, contract in read.items():
        if isinstance(contract, Contract) and (owner := owners[contract.pipeline]) != path:
            read[path] = repeated(contract.pipeline, path, owner)
    return read


def choose_owner(pipeline: str, files: Iterable[Path]) -> Path:
    """Return which of the files with a contract of this name has it: NAME.yaml, else NAME.yml, else the first."""
    own = [f"{pipeline}.yaml", f"{pipeline}.yml"]
    return min(files, key=lambda path: own.index(path.name) if path.name in own else len(own))


def repeated(pipeline: str, path: Path, first: Path) -> ContractError:
    """The refusal of a second contract of one name."""
    found = f"pipeline '{pipeline}' is also the name in {first}"
    return complain_of(path, Complaint(("pipeline",), found, "give one of the two another name"))


def find(folder: Path, pipeline: str) -> Contract:
    """The contract of one pipeline; only its own file need be right."""
    own = folder / f"{pipeline}.yaml"
    if os.access(own, os.F_OK):  # which refuses no name, however long
        named = read(own)
        if isinstance(named, Contract) and named.pipeline == pipeline:
            return named
    found = read_all(folder)
    contracts = {contract.pipeline: contract for contract in found.values() if isinstance(contract, Contract)}
    if pipeline not in contracts:
        for wrong in (found.get(own), *found.values()):
            if isinstance(wrong, ContractError):
                raise wrong  # it may be the one that is meant
        raise ContractError(f"no pipeline '{pipeline}'", where=str(folder), mend=nearest(pipeline, contracts))
    return contracts[pipeline]


def complain(folder: Path, pipeline: str, complaint: Complaint) -> ContractError:
    """A complaint about a contract of the folder as the refusal that names its file and line."""
    for path in sorted(paths(folder), key=lambda path: path.stem != pipeline):  # another may be broken
        try:
            node = _composed(path)
        except ContractError:
            continue
        if isinstance(node, yaml.MappingNode) and any(
            (key.value, value.value) == ("pipeline", pipeline) for key, value in node.value
        ):
            return _complain(path, node, complaint)
    return ContractError(complaint.found, where=f"{folder}, {pipeline}", mend=complaint.mend)


def complain_of(path: Path, complaint: Complaint) -> ContractError:
    """A complaint about the contract of a file as the refusal that names its line."""
    return _complain(path, _composed(path), complaint)


def paths(folder: Path) -> list[Path]:
    """The contract files of a folder, by name."""
    if not folder.is_dir():
        raise ContractError("is not a folder", where=str(folder), mend="set HINDCAST_SCHEMAS to the contracts' folder")
    try:
        return sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml"))
    except OSError as error:
        mend = "let the user that runs Hindcast read the contracts' folder"
        raise ContractError(f"cannot be read: {error.strerror}", where=str(folder), mend=mend) from None


def schema() -> str:
    """The JSON Schema of a contract, for editors; schemas/contract.schema.json holds it."""
    told = {"$schema": _Schema.schema_dialect, **Contract.model_json_schema(schema_generator=_Schema)}
    return json.dumps(told | {"title": "Hindcast contract"}, indent=2) + "\n"


class _Schema(GenerateJsonSchema):
    """JSON Schema in which a name that does not fit its pattern is refused, not passed over."""

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        told = super().dict_schema(schema)
        return {**told, "additionalProperties": False} if "patternProperties" in told else told


def _composed(path: Path) -> yaml.Node | None:
    """Return the YAML of a file, bounded (bounds.py) and with each name once; ContractError for any other."""
    try:
        text = bounds.read_text(path)
        bounds.refuse_excess(yaml.parse(text, Loader=_Base))
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except ExcessError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise ContractError(error.found, where=where, mend=error.mend) from None
    except OSError as error:
        raise ContractError(f"cannot be read: {error.strerror}", where=str(path), mend="check the path") from None
    except UnicodeDecodeError:
        raise ContractError("is not UTF-8 text", where=str(path), mend="save the contract as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ContractError(
            f"is not YAML: {getattr(error, 'problem', None) or error}", where=where, mend=_SYNTAX
        ) from None
    _refuse_repeated_names(path, node)
    return node


def _validated(path: Path, node: yaml.Node | None) -> Contract:
    """Return the contract that YAML holds, its fields right one by one; ContractError for the first that is not."""
    try:
        data = _Loader("").construct_document(node) if node else None
    except _OddError as odd:
        raise _odd(path, node, odd.node) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ContractError(f"is not YAML: {getattr(error, 'problem', None)}", where=where, mend=_SYNTAX) from None
    if not isinstance(data, dict) or node is None:
        raise ContractError(
            "holds no contract", where=f"{path}:1", mend="write pipeline:, start: and topics: (see README.md)"
        )
    try:
        return Contract.model_validate(data, context={"folder": path.parent})
    except ValidationError as error:
        raise _first(path, node, error) from None


def _first(path: Path, node: yaml.Node, error: ValidationError) -> ContractError:
    """The first of pydantic's complaints in our words."""
    problems = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")[:_MANY]
    problem = min(problems, key=lambda e: (e["type"] != "extra_forbidden", _line(node, e["loc"])))
    return _complain(path, node, words.complaint(node, problem))


_MANY = 200
"""Of more problems the first in the order of pydantic is told, which may not be that of the lines."""

_SYNTAX = "mend the syntax on this line; text with a colon, a comma or a # in it goes in quotes"
_TAGS = {
    "timestamp": ("moment that there is", "write one that there is, as 2026-01-31 or 2026-01-31T06:00:00Z"),
    "int": ("whole number", "write one, as 10"),
    "float": ("number", "write one, as 0.5"),
    "bool": ("boolean", "write true or false"),
}
"""What a tag of YAML promises, and what to write instead."""

_NOT_IN_JSON = ("binary", "omap", "pairs", "set")
_LONGEST_NUMBER = 100


def _odd(path: Path, root: yaml.Node | None, odd: yaml.Node) -> ContractError:
    """The refusal of a value that is not what its tag says, with the name that it stands under."""
    tag = odd.tag.rpartition(":")[2]
    what, mend = _TAGS.get(tag, (tag, f"leave !!{tag} out"))
    name = ".".join(map(str, _location(root, odd) or ()))
    found = f"{name}: {shown(odd.value)} is no {what}".removeprefix(": ")
    return ContractError(found, where=f"{path}:{odd.start_mark.line + 1}", mend=f"{mend}; text goes in quotes")


def _location(node: yaml.Node | None, wanted: yaml.Node) -> tuple[Any, ...] | None:
    """The path from a node to one below it; None if it is not there. A name's is that of what it names."""
    if node is wanted:
        return ()
    if isinstance(node, yaml.MappingNode):
        below = [(key.value, it) for key, value in node.value for it in (key, value)]
    else:
        below = list(enumerate(node.value)) if isinstance(node, yaml.SequenceNode) else []
    found = ((name, _location(it, wanted)) for name, it in below)
    return next(((name, *rest) for name, rest in found if rest is not None), None)


def _complain(path: Path, node: yaml.Node | None, complaint: Complaint) -> ContractError:
    found, mend = (_shortened(" ".join(text.split("\n"))) for text in (complaint.found, complaint.mend))
    return ContractError(found, where=f"{path}:{_line(node, complaint.location)}", mend=mend)


def _shortened(text: str) -> str:
    """Return a message with the middle left out if it is very long: it may quote what a user wrote."""
    return text if len(text) <= 2 * _HALF else f"{text[:_HALF]} ... {text[-_HALF:]}"


_HALF = 500


def _line(node: yaml.Node | None, location: tuple[Any, ...]) -> int:
    """The line of the deepest part of `location` that the file has, from 1."""
    line = node.start_mark.line if node else 0
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line, found[1]
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
                    "a list or a mapping stands here for a name", where=where, mend="write a plain name"
                )
            if key.value in seen:
                raise ContractError(
                    f"'{key.value}' stands here for the second time, first on line {seen[key.value]}",
                    where=f"{path}:{key.start_mark.line + 1}",
                    mend="remove or rename one of the two",
                )
            seen[key.value] = key.start_mark.line + 1
            _refuse_repeated_names(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_names(path, item)
