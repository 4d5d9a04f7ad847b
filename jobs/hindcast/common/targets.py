"""The targets of a folder of contracts: what differs between environments, in targets.yaml beside the contracts.

    prod:
      warehouse: s3a://prices/warehouse
      variables: {region: eu}
      pipelines:
        shop: {schedule: "@hourly", topics: {orders: prod.orders}}

| of a target | |
| --- | --- |
| warehouse, reports | where tables and reports are, in place of HINDCAST_WAREHOUSE and HINDCAST_REPORTS |
| variables | values of variables that contracts declare |
| schedule, start, on_failure | in place of those of every contract; `on_failure` of every gate |
| pipelines | by pipeline, the same three and variables for it alone, and the names of its `topics` in Kafka |

The settings need the first two (settings.py), a contract the others (contract/variables.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

from hindcast.common.errors import ContractError, SettingsError, suggest_nearest

FILE = "targets.yaml"
"""The name of the file, which is therefore no contract."""

MAX_BYTES = 1 << 18
"""The largest file: each process that reads contracts reads it."""

Scalar: TypeAlias = str | int | float | bool | date | None


@dataclass(frozen=True)
class Choice:
    """What a process has chosen for all contracts: a target, none if empty, and variables with their texts (--var)."""

    target: str = ""
    variables: tuple[tuple[str, str], ...] = ()


NO_CHOICE = Choice()


class GivenValue(NamedTuple):
    """A value, and the place that gives it as errors name it: a file with its line, or --var."""

    value: Scalar
    where: str


@dataclass(frozen=True)
class Changes:
    """What a target changes in contracts: fields by name, variables, and the names of topics in Kafka."""

    fields: Mapping[str, GivenValue] = field(default_factory=dict)
    variables: Mapping[str, GivenValue] = field(default_factory=dict)
    topics: Mapping[str, GivenValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A target of targets.yaml: its changes for all pipelines, and for single ones."""

    name: str
    warehouse: str | None
    reports: str | None
    changes: Changes
    pipelines: Mapping[str, Changes]

    def find_changes(self, pipeline: str) -> Changes:
        """Return the changes for a pipeline: those for it alone come before those for all."""
        own = self.pipelines.get(pipeline, Changes())
        variables = {**self.changes.variables, **own.variables}
        return Changes({**self.changes.fields, **own.fields}, variables, own.topics)


def read_target(folder: Path, name: str) -> Target:
    """Return a target of the contracts in a folder.

    SettingsError if there is none of this name; ContractError, with file and line, if the file is not valid.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        found = f"the target is '{name}', but {path} cannot be read: {error.strerror}"
        raise SettingsError(found, fix="create it (docs/contract.md#targets), or choose no target") from None
    targets = _parse(str(path), content)
    if name not in targets:
        raise SettingsError(f"no target '{name}' in {path}", fix=suggest_nearest(name, targets))
    return targets[name]


@lru_cache(maxsize=16)
def _parse(path: str, content: bytes) -> Mapping[str, Target]:
    """Return the targets in a file's content by name."""
    if len(content) > MAX_BYTES:
        raise ContractError(f"has more than {MAX_BYTES:,} bytes", where=path, fix="remove what no contract uses")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(content, Loader=yaml.CSafeLoader)):
            raise ContractError("contains aliases", where=f"{path}:1", fix="write the values out")
        root = yaml.compose(content, Loader=yaml.CSafeLoader)
        return {
            name: _parse_target(path, name, node) for name, node in _list_entries(path, root, "the targets").items()
        }
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = min(mark.line + 1, content.count(b"\n", 0, len(content.rstrip())) + 1) if mark else 1
        where, problem = f"{path}:{line}", getattr(error, "problem", None) or "nested too deep"
        raise ContractError(f"is not YAML: {problem}", where=where, fix="fix the syntax on this line") from None


_CHANGES = ("schedule", "start", "on_failure")


def _parse_target(path: str, name: str, node: yaml.Node) -> Target:
    known = ("warehouse", "reports", *_CHANGES, "variables", "pipelines")
    entries = _list_entries(path, node, f"target '{name}'", known)
    pipelines = _list_entries(path, entries["pipelines"], "pipelines") if "pipelines" in entries else {}
    of_pipeline = (*_CHANGES, "variables", "topics")
    return Target(
        name,
        _parse_place(path, entries, "warehouse"),
        _parse_place(path, entries, "reports"),
        _parse_changes(path, entries),
        {
            pipeline: _parse_changes(path, _list_entries(path, its, f"pipeline '{pipeline}'", of_pipeline))
            for pipeline, its in pipelines.items()
        },
    )


def _parse_place(path: str, entries: Mapping[str, yaml.Node], name: str) -> str | None:
    if name not in entries:
        return None
    value = _parse_value(path, entries[name]).value
    if not isinstance(value, str) or not value:
        raise ContractError(f"{name} is not a text", where=_locate(path, entries[name]), fix="write a path or a URL")
    return value


def _parse_changes(path: str, entries: Mapping[str, yaml.Node]) -> Changes:
    def parse_values(part: str) -> dict[str, GivenValue]:
        values = _list_entries(path, entries[part], part) if part in entries else {}
        return {name: _parse_value(path, node) for name, node in values.items()}

    fields = {name: _parse_value(path, entries[name]) for name in _CHANGES if name in entries}
    return Changes(fields, parse_values("variables"), parse_values("topics"))


def _list_entries(
    path: str, node: yaml.Node | None, what: str, known: tuple[str, ...] | None = None
) -> dict[str, yaml.Node]:
    """Return the entries of a mapping by name; ContractError for another node, a repeated or unknown name."""
    if not isinstance(node, yaml.MappingNode):
        where = f"{path}:1" if node is None else _locate(path, node)
        raise ContractError(
            f"{what} must be a mapping", where=where, fix="write the name, a colon, and its fields indented below"
        )
    entries: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if not name or name in entries:
            found = f"'{name}' appears twice in {what}" if name else f"a name in {what} is not a text"
            raise ContractError(found, where=_locate(path, key), fix="rename or remove one")
        if known is not None and name not in known:
            raise ContractError(
                f"unknown field '{name}' in {what}", where=_locate(path, key), fix=suggest_nearest(name, known)
            )
        entries[name] = value
    return entries


def _parse_value(path: str, node: yaml.Node) -> GivenValue:
    where = _locate(path, node)
    if not isinstance(node, yaml.ScalarNode):
        raise ContractError(
            "a list or a mapping where one value is expected", where=where, fix="write one text, number or date"
        )
    try:
        return GivenValue(yaml.CSafeLoader("").construct_document(node), where)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, yaml.YAMLError):
        raise ContractError("is not a valid date or number", where=where, fix="put it in quotes") from None


def _locate(path: str, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"
