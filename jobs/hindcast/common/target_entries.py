"""The YAML of targets.yaml: the entries of its mappings, and its values, each with its line."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import NamedTuple, TypeAlias

import yaml

from hindcast.common.errors import ContractError, show_briefly, suggest_nearest
from hindcast.common.yaml_loader import ContractLoader, OddValueError, PlainLoader, describe_misread_number

Scalar: TypeAlias = str | int | float | bool | date | None


class GivenValue(NamedTuple):
    """A value, and the place that gives it as errors name it: a file with its line, or --var."""

    value: Scalar
    where: str


Entry: TypeAlias = tuple[yaml.Node, yaml.Node]
"""The nodes of a name and of what it names."""


def compose_targets(path: str, text: str) -> dict[str, list[Entry]]:
    """Return the targets in a file's text by name, of which one may be repeated; those without a name have an empty
    one.
    """
    try:
        _refuse_nesting(path, yaml.parse(text, Loader=PlainLoader))
        root = yaml.compose(text, Loader=PlainLoader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = min(mark.line, text.rstrip().count("\n")) + 1 if mark else 1
        found = f"the file is not YAML: {problem or getattr(error, 'reason', error)}"
        raise ContractError(found, where=f"{path}:{line}", fix="fix the syntax on this line") from None
    targets: dict[str, list[Entry]] = {}
    for key, node in _list_entries(path, root, "the file"):
        targets.setdefault(_find_name(key), []).append((key, node))
    return targets


def _refuse_nesting(path: str, events: Iterable[yaml.Event]) -> None:
    """Raise ContractError for aliases, and before what is nested too deep is composed, which could end the process."""
    depth = 0
    for event in events:
        where = f"{path}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ContractError("the file contains aliases", where=where, fix="write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            fix = "write targets as in docs/contract.md#targets"
            raise ContractError("the file's lists and mappings are nested too deep", where=where, fix=fix)


_MAX_DEPTH = 8


def index_entries(path: str, node: yaml.Node, what: str, known: tuple[str, ...] | None = None) -> dict[str, yaml.Node]:
    """Return the entries of a mapping by name; ContractError for another node, a repeated or unknown name."""
    return index_named(path, _list_entries(path, node, what), what, known)


def _list_entries(path: str, node: yaml.Node | None, what: str) -> list[Entry]:
    """Return the entries of a mapping; ContractError for another node."""
    if not isinstance(node, yaml.MappingNode):
        fix = "write the name, a colon, and its fields indented below"
        where = f"{path}:1" if node is None else locate(path, node)
        raise ContractError(f"{what} must be a mapping", where=where, fix=fix)
    return [*node.value]


def index_named(
    path: str, nodes: Iterable[Entry], what: str, known: tuple[str, ...] | None = None
) -> dict[str, yaml.Node]:
    """Return entries by name; ContractError for a repeated or unknown name."""
    entries: dict[str, yaml.Node] = {}
    for key, value in nodes:
        name = _find_name(key)
        if not name or name in entries:
            found = f"'{show_briefly(name, 60)}' appears twice in {what}" if name else f"a name in {what} is not a text"
            raise ContractError(found, where=locate(path, key), fix="rename or remove one")
        if known is not None and name not in known:
            found = f"unknown field '{show_briefly(name, 60)}' in {what}"
            raise ContractError(found, where=locate(path, key), fix=suggest_nearest(name, known))
        entries[name] = value
    return entries


def _find_name(key: yaml.Node) -> str:
    """Return the name that a key of a mapping is; an empty one for a list or a mapping."""
    return str(key.value) if isinstance(key, yaml.ScalarNode) else ""


def parse_value(path: str, node: yaml.Node) -> GivenValue:
    """Return the text, number, boolean, date or nothing that a node is; ContractError for another, or an odd number."""
    where = locate(path, node)
    if not isinstance(node, yaml.ScalarNode):
        raise ContractError(
            "a list or a mapping where one value is expected", where=where, fix="write one text, number or date"
        )
    try:
        value = ContractLoader("").construct_document(node)
        misread = describe_misread_number(node)
    except OddValueError as odd:
        found = f"'{show_briefly(node.value, 60)}' {odd.problem}"
        raise ContractError(found, where=where, fix=f"{odd.fix}; put text in quotes") from None
    except yaml.YAMLError:
        found = f"'{show_briefly(node.value, 60)}' is not one value"
        raise ContractError(found, where=where, fix="write one text, number or date") from None
    if misread is not None:
        raise ContractError(misread[0], where=where, fix=misread[1])
    return GivenValue(value, where)


def locate(path: str, node: yaml.Node) -> str:
    """Return the place of a node as errors name it: the file and the line."""
    return f"{path}:{node.start_mark.line + 1}"
