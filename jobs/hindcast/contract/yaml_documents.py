"""YAML of contracts and of their tests: what is read, and where in the file something stands."""

from __future__ import annotations

from pathlib import Path

import yaml

from hindcast.common.bounded_files import ExcessError
from hindcast.common.errors import ContractError
from hindcast.common.yaml_loader import ContractLoader, OddValueError, PlainLoader
from hindcast.contract import bounds
from hindcast.contract.shapes import FieldPath
from hindcast.contract.types import ContractValue, format_value
from hindcast.contract.view_checks import Complaint


def compose_node(path: Path) -> yaml.Node | None:
    """Return the root node of a YAML file; raise ContractError for invalid YAML, excess (bounds.py), repeated names."""
    try:
        text = bounds.read_text(path)
        bounds.refuse_excess(yaml.parse(text, Loader=PlainLoader))
        node: yaml.Node | None = yaml.compose(text, Loader=ContractLoader)
    except ExcessError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise ContractError(error.found, where=where, fix=error.fix) from None
    except OSError as error:
        raise ContractError(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from None
    except UnicodeDecodeError:
        raise ContractError("is not UTF-8 text", where=str(path), fix="save the contract as UTF-8") from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", error)
        where = f"{path}:{_find_syntax_line(text, error)}"
        raise ContractError(f"is not YAML: {problem}", where=where, fix=_SYNTAX_FIX) from None
    _refuse_repeated_names(path, node)
    return node


def _find_syntax_line(text: str, error: yaml.YAMLError) -> int:
    """Return the line, from 1, of what is no YAML: where a name without a colon is, and none after all content."""
    if isinstance(error, yaml.reader.ReaderError):
        return text.encode()[: error.position].count(b"\n") + 1
    assert isinstance(error, yaml.MarkedYAMLError)  # noqa: S101  # the only other kind
    mark = error.context_mark if error.context == "while scanning a simple key" else error.problem_mark
    filled = [n for n, line in enumerate(text.splitlines(), 1) if line.lstrip()[:1] not in ("", "#")]
    return min(mark.line + 1 if mark else 1, max(filled, default=1))


def read_document(path: Path) -> ContractValue:
    """Return the content of a YAML file within the limits of a contract (bounds.py); raise ContractError as `load`."""
    return construct_document(path, compose_node(path))


def construct_document(path: Path, node: yaml.Node | None) -> ContractValue:
    """Return the content of a YAML node; raise ContractError for a value that does not fit its tag."""
    try:
        data: ContractValue = ContractLoader("").construct_document(node) if node else None
    except OddValueError as odd:
        raise _build_odd_value_error(path, node, odd) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ContractError(f"is not YAML: {getattr(error, 'problem', None)}", where=where, fix=_SYNTAX_FIX) from None
    return data


_SYNTAX_FIX = "fix the syntax on this line; put text with a colon, a comma or a # in quotes"


def _build_odd_value_error(path: Path, root: yaml.Node | None, odd: OddValueError) -> ContractError:
    """Return the error for a value that does not fit its tag, with the path of its field."""
    name = ".".join(map(str, _find_location(root, odd.node) or ()))
    found = f"{name}: {format_value(odd.node.value)} {odd.problem}".removeprefix(": ")
    where = f"{path}:{odd.node.start_mark.line + 1}"
    return ContractError(found, where=where, fix=f"{odd.fix}; put text in quotes")


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


def build_error(path: Path, node: yaml.Node | None, complaint: Complaint) -> ContractError:
    found, fix = (_shorten(" ".join(text.split("\n"))) for text in (complaint.found, complaint.fix))
    return ContractError(found, where=f"{path}:{find_line(node, complaint.location)}", fix=fix)


def _shorten(text: str) -> str:
    """Return a message with the middle left out if it is very long: it may quote what a user wrote."""
    return text if len(text) <= 2 * _HALF_MESSAGE else f"{text[:_HALF_MESSAGE]} ... {text[-_HALF_MESSAGE:]}"


_HALF_MESSAGE = 500


def find_node(node: yaml.Node | None, location: FieldPath) -> yaml.Node | None:
    """Return the node below another one at `location`; None if there is none."""
    for part in location:
        entries = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for key, value in entries if key.value == str(part)), None)
    return node


def find_line(node: yaml.Node | None, location: FieldPath) -> int:
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
