"""A contract from its YAML file, with errors that name file and line."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from pydantic import ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from hindcast.common.errors import ContractError, HindcastError
from hindcast.common.processor_time import ExpiredError, limit_processor_time
from hindcast.common.targets import NO_CHOICE, Choice
from hindcast.contract import bounds, messages
from hindcast.contract.check import check_contract
from hindcast.contract.model import Contract
from hindcast.contract.targets import GivenPlaces, apply_choice, find_given_place
from hindcast.contract.types import format_value
from hindcast.contract.variables import FIELD, Variables
from hindcast.contract.view_checks import Complaint
from hindcast.contract.yaml_documents import build_error, compose_node, construct_document, find_line


def load(path: Path, seconds: float | None = None, choice: Choice = NO_CHOICE) -> Contract:
    """Return the contract in one YAML file; raise ContractError with file, line, what was found and the fix.

    Any exception while a file is read becomes a ContractError: it must not stop whoever reads its neighbours. So does
    a file that takes more than so many `seconds` of a processor, by default `bounds.SECONDS`. `choice`: the target and
    the variables that it is loaded with (targets.py).
    """
    seconds = bounds.SECONDS if seconds is None else seconds
    try:
        with limit_processor_time(seconds):
            return _load(path, choice)
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


def _load(path: Path, choice: Choice) -> Contract:
    try:
        node = compose_node(path)
        contract, places = _validate(path, node, choice)
        _ = contract.hash  # what JSON cannot express fails here, not in a run
        complaint = next(check_contract(contract), None)
    except ContractError as error:
        raise _name_target(path, choice, error) from error
    except HindcastError as error:  # also of a target: it concerns this contract
        raise ContractError(error.found, where=error.where or f"{path}:1", fix=error.fix) from error
    except Exception as error:
        found = f"cannot be read as a contract: {type(error).__name__}: {format_value(error)}"
        fix = "undo the last change, and report this to the makers of Hindcast: the error should say what is wrong"
        raise ContractError(found, where=f"{path}:1", fix=fix) from error
    if complaint is not None:
        raise _name_target(path, choice, _build_error(path, node, complaint, places))
    return contract


def _name_target(path: Path, choice: Choice, error: ContractError) -> ContractError:
    """Return an error about a contract's own file that names the target it was loaded with."""
    if not choice.target or not error.where.startswith(f"{path}:"):
        return error
    return ContractError(f"{error.found} (with target '{choice.target}')", where=error.where, fix=error.fix)


def try_load(path: Path, seconds: float | None = None, choice: Choice = NO_CHOICE) -> Contract | ContractError:
    """Return the contract in a file, or what is wrong with it (`load`)."""
    try:
        return load(path, seconds, choice)
    except ContractError as error:
        return error


def format_json_schema() -> str:
    """Return the JSON Schema of a contract for editors, as stored in schemas/contract.schema.json."""
    model = Contract.model_json_schema(schema_generator=_Schema)
    declared = Variables.json_schema(schema_generator=_Schema)
    definitions = {**model["$defs"], **declared.pop("$defs")}
    properties = {**model["properties"], FIELD: {**declared, "description": "By name: $(name) stands for its value."}}
    schema = {"$schema": _Schema.schema_dialect, **model, "$defs": definitions, "properties": properties}
    return json.dumps(schema | {"title": "Hindcast contract"}, indent=2) + "\n"


class _Schema(GenerateJsonSchema):
    """JSON Schema in which a name that does not match its pattern is refused, not ignored."""

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        result = super().dict_schema(schema)
        return {**result, "additionalProperties": False} if "patternProperties" in result else result


def _validate(path: Path, node: yaml.Node | None, choice: Choice) -> tuple[Contract, GivenPlaces]:
    """Return the contract in a YAML node, each field validated, and the places of what a target changes.

    ContractError for the first invalid field.
    """
    data = construct_document(path, node)
    if not isinstance(data, dict) or node is None:
        raise ContractError(
            "contains no contract", where=f"{path}:1", fix="write pipeline:, start: and topics: (see README.md)"
        )
    declared = data.get(FIELD)
    data, places = apply_choice(path, node, data, choice)
    try:
        contract = Contract.model_validate(data, context={"folder": path.parent})
    except ValidationError as error:
        raise _build_first_error(path, node, error, places) from None
    return contract.with_variables(map(str, declared)) if isinstance(declared, dict) else contract, places


def _build_first_error(path: Path, node: yaml.Node, error: ValidationError, places: GivenPlaces) -> ContractError:
    """Return the first of pydantic's complaints as an error in our words."""
    problems = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")[:_MAX_PROBLEMS]
    problem = min(problems, key=lambda e: (e["type"] != "extra_forbidden", find_line(node, e["loc"])))
    return _build_error(path, node, messages.describe_problem(node, problem), places)


def _build_error(path: Path, node: yaml.Node | None, complaint: Complaint, places: GivenPlaces) -> ContractError:
    """Return a complaint as an error at its line: that of targets.yaml for a field that a target changes."""
    error = build_error(path, node, complaint)
    where = find_given_place(places, complaint.location)
    return error if where is None else ContractError(error.found, where=where, fix=error.fix)


_MAX_PROBLEMS = 200
"""The most problems that are compared by line; with more, the one shown may not be the first in the file."""
