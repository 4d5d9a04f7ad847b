"""The content of a contract with what was chosen for it: values of its variables, and what a target changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import get_args

import yaml
from pydantic import ValidationError

from hindcast.common import targets
from hindcast.common.errors import ContractError, show_briefly, suggest_nearest
from hindcast.common.target_entries import GivenValue
from hindcast.common.targets import Changes, Choice
from hindcast.common.yaml_loader import describe_misread_number
from hindcast.contract import messages, variables
from hindcast.contract.avro_file import record_named_file
from hindcast.contract.expectation import OnFailure
from hindcast.contract.shapes import FieldPath
from hindcast.contract.types import ContractValue, format_value
from hindcast.contract.variables import BoundValue, Inserter, InsertionError, Variable, Variables, parse_value
from hindcast.contract.view_checks import Complaint
from hindcast.contract.yaml_documents import build_error, find_node

ContractContent = dict[str, ContractValue]
"""What the YAML of a contract gives."""


GivenPlaces = Mapping[FieldPath, str]
"""Where targets.yaml gives the fields that a target changes, by their paths; `on_failure` stands for all gates."""


def apply_choice(
    path: Path, node: yaml.Node, content: ContractContent, choice: Choice
) -> tuple[ContractContent, GivenPlaces]:
    """Return a contract's content without variables, and the places of what the target changes in it.

    The values of variables are put in. ContractError names the line of a contract, or of targets.yaml, that does not
    fit; SettingsError an unknown target.
    """
    changes = Changes()
    if choice.target:
        record_named_file(path.parent / targets.FILE)
        target, pipeline = targets.read_target(path.parent, choice.target), str(content.get("pipeline"))
        changes, own = target.find_changes(pipeline), target.pipelines.get(pipeline, Changes())
        _refuse_unknown(own.variables, content.get(variables.FIELD), f"variable in {path}")
        _refuse_unknown(own.topics, content.get("topics"), f"topic in {path}")
    if variables.FIELD in content:
        content = _insert_values(path, node, content, changes, choice)
    places: dict[FieldPath, str] = {(name,): value.where for name, value in changes.fields.items()}
    places |= {("topics", name, "topic"): value.where for name, value in changes.topics.items()}
    return _change_fields(content, changes) if changes != Changes() else content, places


def find_given_place(places: GivenPlaces, location: FieldPath) -> str | None:
    """Return where targets.yaml gives a field of a contract; None if the contract itself does."""
    return places.get(location[-1:] if location[-1:] == ("on_failure",) else location)


def _refuse_unknown(given: Mapping[str, GivenValue], known: ContractValue, what: str) -> None:
    names = [*known] if isinstance(known, dict) else []
    for name, value in given.items():
        if name not in names:
            raise ContractError(
                f"no {what} is called '{show_briefly(name, 60)}'", where=value.where, fix=suggest_nearest(name, names)
            )


def _insert_values(
    path: Path, node: yaml.Node, content: ContractContent, changes: Changes, choice: Choice
) -> ContractContent:
    """Return a contract's content with the values of its variables put in, and without `variables`."""
    rest = {name: value for name, value in content.items() if name != variables.FIELD}
    try:
        declared = Variables.validate_python(content[variables.FIELD])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        first["loc"] = (variables.FIELD, *first["loc"])
        raise build_error(path, node, messages.describe_problem(node, first)) from None
    given = {name: GivenValue(text, f"--var {name}") for name, text in choice.variables}
    values = {**changes.variables, **given}
    for name, variable in declared.items():
        if variable.default is not None:
            _parse_default(path, node, name, variable)

    @cache
    def find_value(name: str) -> BoundValue:
        if name not in declared:
            raise ValueError(f"no variable '{name}' is declared; {suggest_nearest(name, declared)}")
        if name not in values:
            return _parse_default(path, node, name, declared[name])
        try:
            return parse_value(declared[name].type, values[name].value)
        except ValueError as error:
            found, _, fix = str(error).partition("; ")
            raise ContractError(f"variable '{name}': {found}", where=values[name].where, fix=fix) from None

    for name in declared.keys() & values.keys():
        find_value(name)  # also of one that is not used
    try:
        inserted = Inserter(find_value).insert(rest)
    except InsertionError as error:
        raise build_error(path, node, Complaint(error.location, error.found, error.fix)) from None
    assert isinstance(inserted, dict)  # noqa: S101  # as it was
    return {str(name): value for name, value in inserted.items()}


def _parse_default(path: Path, node: yaml.Node, name: str, variable: Variable) -> BoundValue:
    """Return the value of a variable that nothing else gives; ContractError if it has no default, or an odd one."""
    place = (variables.FIELD, name)
    default = find_node(node, (*place, "default"))
    if default is not None and (misread := describe_misread_number(default)):
        raise build_error(path, node, Complaint((*place, "default"), *misread))
    if variable.default is None:
        fix = f"give it a default, a value in {targets.FILE}, or --var {name}=..."
        raise build_error(path, node, Complaint(place, f"the variable '{name}' has no value", fix))
    try:
        return parse_value(variable.type, variable.default)
    except ValueError as error:
        found, _, fix = str(error).partition("; ")
        raise build_error(path, node, Complaint((*place, "default"), found, fix)) from None


def _change_fields(content: ContractContent, changes: Changes) -> ContractContent:
    """Return a contract's content with the fields that a target changes."""
    changed = dict(content)
    for name in ("schedule", "start"):
        if name in changes.fields:
            changed[name] = changes.fields[name].value
    if severity := changes.fields.get("on_failure"):
        if severity.value not in get_args(OnFailure):
            fix = f"write {', '.join(get_args(OnFailure))}"
            found = f"on_failure is {format_value(severity.value)}"
            raise ContractError(found, where=severity.where, fix=fix)
        for part in {"topics", "views"} & changed.keys():
            changed[part] = _set_severity(changed[part], severity.value)
    topics = changed.get("topics")
    if changes.topics and isinstance(topics, dict):
        changed["topics"] = {name: _rename_topic(topic, changes.topics.get(name)) for name, topic in topics.items()}
    return changed


def _set_severity(part: ContractValue, severity: ContractValue) -> ContractValue:
    """Return the topics or views of a contract, whose gates all have this severity; none holds back by rows then."""
    if not isinstance(part, dict):
        return part
    changed: dict[str, ContractValue] = {}
    for name, entry in part.items():
        changed[name] = entry
        if isinstance(entry, dict) and isinstance(gates := entry.get("expect"), list):
            kept = {field: value for field, value in entry.items() if field != "hold" or severity == "quarantine"}
            gates = [{**gate, "on_failure": severity} if isinstance(gate, dict) else gate for gate in gates]
            changed[name] = {**kept, "expect": gates}
    return changed


def _rename_topic(topic: ContractValue, kafka: GivenValue | None) -> ContractValue:
    """Return a topic of a contract with another name in Kafka, if there is one."""
    if kafka is None or not isinstance(topic, dict):
        return topic
    if "pattern" in topic:
        fix = "use a variable in the pattern"
        raise ContractError("the topic is read by a pattern, and cannot be renamed", where=kafka.where, fix=fix)
    return {**topic, "topic": kafka.value}
