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

The settings need the first two (settings.py), a contract the others (contract/targets.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

from hindcast.common import bounded_files
from hindcast.common.bounded_files import ExcessError
from hindcast.common.errors import LINE_BREAKS, ContractError, SettingsError, escape_controls, suggest_nearest
from hindcast.common.yaml_loader import PlainLoader

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

    @property
    def for_others(self) -> Choice:
        """The same for contracts other than those that a command names: the variables are not theirs."""
        return Choice(self.target)


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
    where: str = ""


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

    def list_unused(self, pipelines: Mapping[str, Collection[str]]) -> Iterator[ContractError]:
        """Yield an error for each name that fits none of a folder's pipelines, given the variables of each."""
        for name, changes in self.pipelines.items():
            if name not in pipelines:
                known = suggest_nearest(name, pipelines)
                yield ContractError(f"target '{self.name}': no pipeline '{name}'", where=changes.where, fix=known)
        variables = {name for names in pipelines.values() for name in names}
        for name, value in self.changes.variables.items():
            if name not in variables:
                known = suggest_nearest(name, variables)
                yield ContractError(f"target '{self.name}': no contract has '{name}'", where=value.where, fix=known)


def read_target(folder: Path, name: str) -> Target:
    """Return a target of the contracts in a folder.

    SettingsError if there is none of this name; ContractError, with file and line, if the file is not valid.
    """
    path = folder / FILE
    try:
        text = bounded_files.read_text(path, MAX_BYTES)
    except OSError as error:
        found = f"the target is '{name}', but {path} cannot be read: {error.strerror}"
        raise SettingsError(found, fix="create it (docs/contract.md#targets), or choose no target") from None
    except ExcessError as error:
        raise ContractError(error.found, where=str(path), fix=error.fix) from None
    except UnicodeDecodeError:
        raise ContractError("is not UTF-8 text", where=str(path), fix="save it as UTF-8") from None
    targets = _parse(str(path), text)
    if name not in targets:
        raise SettingsError(f"no target '{name}' in {path}", fix=suggest_nearest(name, targets))
    return targets[name]


@lru_cache(maxsize=16)
def _parse(path: str, text: str) -> Mapping[str, Target]:
    """Return the targets in a file's text by name."""
    try:
        _refuse_nesting(path, yaml.parse(text, Loader=PlainLoader))
        root = yaml.compose(text, Loader=PlainLoader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = min(mark.line, text.rstrip().count("\n")) + 1 if mark else 1
        found = f"is not YAML: {problem or getattr(error, 'reason', error)}"
        raise ContractError(found, where=f"{path}:{line}", fix="fix the syntax on this line") from None
    targets = _list_entries(path, root, "the targets")
    for name, node in targets.items():
        if _NAME.fullmatch(name) is None:
            fix = "use letters, digits, '_' and '-', at most 60 of them"
            raise ContractError(f"'{name}' is not a name for a target", where=_locate(path, node), fix=fix)
    return {name: _parse_target(path, name, node) for name, node in targets.items()}


_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


def _refuse_nesting(path: str, events: Iterable[yaml.Event]) -> None:
    """Raise ContractError for aliases, and before what is nested too deep is composed, which could end the process."""
    depth = 0
    for event in events:
        where = f"{path}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ContractError("contains aliases", where=where, fix="write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            fix = "write targets as in docs/contract.md#targets"
            raise ContractError("lists and mappings are nested too deep", where=where, fix=fix)


_MAX_DEPTH = 8


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
            pipeline: replace(
                _parse_changes(path, _list_entries(path, its, f"pipeline '{pipeline}'", of_pipeline)),
                where=_locate(path, its),
            )
            for pipeline, its in pipelines.items()
        },
    )


def _parse_place(path: str, entries: Mapping[str, yaml.Node], name: str) -> str | None:
    if name not in entries:
        return None
    value = _parse_value(path, entries[name]).value
    if not isinstance(value, str) or not value or value != escape_controls(value, LINE_BREAKS):
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
        return GivenValue(PlainLoader("").construct_document(node), where)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, yaml.YAMLError):
        raise ContractError("is not a valid date or number", where=where, fix="put it in quotes") from None


def _locate(path: str, node: yaml.Node) -> str:
    return f"{path}:{node.start_mark.line + 1}"
