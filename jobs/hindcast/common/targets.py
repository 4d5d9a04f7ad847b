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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import yaml

from hindcast.common import bounded_files
from hindcast.common.bounded_files import ExcessError
from hindcast.common.environment import expand_home, parse_warehouse
from hindcast.common.errors import (
    LINE_BREAKS,
    ContractError,
    SettingsError,
    escape_controls,
    show_briefly,
    suggest_nearest,
)
from hindcast.common.processor_time import ExpiredError, limit_processor_time
from hindcast.common.target_entries import (
    Entry,
    GivenValue,
    compose_targets,
    index_entries,
    index_named,
    locate,
    parse_value,
)

FILE = "targets.yaml"
"""The name of the file, which is therefore no contract."""

MAX_BYTES = 1 << 18
"""The largest file: each process that reads contracts reads it."""

SECONDS = 2.0
"""The most time of a processor for reading it."""


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
                yield ContractError(
                    f"target '{self.name}': no pipeline '{show_briefly(name, 60)}'", where=changes.where, fix=known
                )
        variables = {name for names in pipelines.values() for name in names}
        for name, value in self.changes.variables.items():
            if name not in variables:
                known = suggest_nearest(name, variables)
                yield ContractError(
                    f"target '{self.name}': no contract has '{show_briefly(name, 60)}'", where=value.where, fix=known
                )


def read_target(folder: Path, name: str) -> Target:
    """Return a target of the contracts in a folder; other targets may be invalid.

    SettingsError if there is none of this name; ContractError, with file and line, if it is not valid.
    """
    path = folder / FILE
    try:
        text = _read_text(path)
    except OSError as error:
        found = f"the target is '{show_briefly(name, 60)}', but {path} cannot be read: {error.strerror}"
        raise SettingsError(found, fix="create it (docs/contract.md#targets), or choose no target") from None
    except ContractError as error:
        raise _name_target(name, error) from None
    match _try_parse(str(path), text, name):
        case ContractError() as invalid:
            raise _name_target(name, invalid)
        case SettingsError() as unknown:
            raise SettingsError(unknown.found, fix=unknown.fix)
        case target:
            return target


def list_errors(path: Path) -> list[ContractError]:
    """Return an error for each target in a file that is not valid, or one for the whole file."""
    errors = list[ContractError]()
    try:
        nodes = compose_targets(str(path), _read_text(path))
    except ContractError as error:
        return [error]
    except OSError as error:
        return [ContractError(f"the file cannot be read: {error.strerror}", where=str(path), fix="check the path")]
    for name in nodes:
        try:
            _find_target(str(path), nodes, name)
        except ContractError as error:
            errors.append(_name_target(name, error))
    return errors


def _name_target(name: str, error: ContractError) -> ContractError:
    """Return an error of a file of targets that says which target cannot be read; it may be one without a name."""
    found = f"the target '{show_briefly(name, 60)}' cannot be read: {error.found}" if name else error.found
    return ContractError(found, where=error.where, fix=error.fix)


def _read_text(path: Path) -> str:
    try:
        return bounded_files.read_text(path, MAX_BYTES)
    except ExcessError as error:
        raise ContractError(f"the file {error.found}", where=str(path), fix=error.fix) from None
    except UnicodeDecodeError:
        raise ContractError("the file is not UTF-8 text", where=str(path), fix="save it as UTF-8") from None


@lru_cache(maxsize=16)
def _try_parse(path: str, text: str, name: str) -> Target | ContractError | SettingsError:
    """Return a target in a file's text, or what is wrong with it; SettingsError if there is no target of this name."""
    try:
        with limit_processor_time(SECONDS):
            return _find_target(path, compose_targets(path, text), name)
    except (ContractError, SettingsError) as error:
        return error
    except ExpiredError:
        found = f"the file takes more than {SECONDS:.2g} s of a processor to read"
        return ContractError(found, where=f"{path}:1", fix="write fewer targets, or fewer pipelines in them")


def _find_target(path: str, nodes: Mapping[str, Sequence[Entry]], name: str) -> Target:
    if name not in nodes:
        known = [it for it in nodes if _NAME.fullmatch(it)]
        raise SettingsError(f"no target '{show_briefly(name, 60)}' in {path}", fix=suggest_nearest(name, known))
    node = index_named(path, nodes[name], "the file")[name]
    if _NAME.fullmatch(name) is None:
        found, fix = "the name is not one for a target", "use letters, digits, '_' and '-', at most 60 of them"
        raise ContractError(found, where=locate(path, node), fix=fix)
    return _parse_target(path, name, node)


_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


_CHANGES = ("schedule", "start", "on_failure")


def _parse_target(path: str, name: str, node: yaml.Node) -> Target:
    known = ("warehouse", "reports", *_CHANGES, "variables", "pipelines")
    entries = index_entries(path, node, "the target", known)
    pipelines = index_entries(path, entries["pipelines"], "pipelines") if "pipelines" in entries else {}
    of_pipeline = (*_CHANGES, "variables", "topics")
    return Target(
        name,
        _parse_place(path, entries, "warehouse"),
        _parse_place(path, entries, "reports"),
        _parse_changes(path, entries),
        {
            pipeline: replace(
                _parse_changes(path, index_entries(path, its, f"pipeline '{show_briefly(pipeline, 60)}'", of_pipeline)),
                where=locate(path, its),
            )
            for pipeline, its in pipelines.items()
        },
    )


def _parse_place(path: str, entries: Mapping[str, yaml.Node], name: str) -> str | None:
    if name not in entries:
        return None
    value, where = parse_value(path, entries[name])
    if not isinstance(value, str) or not value or value != escape_controls(value, LINE_BREAKS):
        raise ContractError(f"{name} is not a text", where=where, fix="write a path or a URL")
    try:
        place = value if "://" in value else str("/" / expand_home(value, name))
        if name == "warehouse":
            parse_warehouse(place, f"warehouse in {FILE}")
    except SettingsError as error:
        raise ContractError(error.found, where=where, fix=error.fix) from None
    return value


def _parse_changes(path: str, entries: Mapping[str, yaml.Node]) -> Changes:
    def parse_values(part: str) -> dict[str, GivenValue]:
        values = index_entries(path, entries[part], part) if part in entries else {}
        return {name: parse_value(path, node) for name, node in values.items()}

    fields = {name: parse_value(path, entries[name]) for name in _CHANGES if name in entries}
    return Changes(fields, parse_values("variables"), parse_values("topics"))
