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
from hindcast.contract import bounds, messages
from hindcast.contract.check import check_contract
from hindcast.contract.model import Contract
from hindcast.contract.types import format_value
from hindcast.contract.yaml_documents import build_error, compose_node, construct_document, find_line


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
        node = compose_node(path)
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
        raise build_error(path, node, complaint)
    return contract


def try_load(path: Path, seconds: float | None = None) -> Contract | ContractError:
    """Return the contract in a file, or what is wrong with it (`load`)."""
    try:
        return load(path, seconds)
    except ContractError as error:
        return error


def format_json_schema() -> str:
    """Return the JSON Schema of a contract for editors, as stored in schemas/contract.schema.json."""
    schema = {"$schema": _Schema.schema_dialect, **Contract.model_json_schema(schema_generator=_Schema)}
    return json.dumps(schema | {"title": "Hindcast contract"}, indent=2) + "\n"


class _Schema(GenerateJsonSchema):
    """JSON Schema in which a name that does not match its pattern is refused, not ignored."""

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        result = super().dict_schema(schema)
        return {**result, "additionalProperties": False} if "patternProperties" in result else result


def _validate(path: Path, node: yaml.Node | None) -> Contract:
    """Return the contract in a YAML node, each field validated; raise ContractError for the first invalid one."""
    data = construct_document(path, node)
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
    problem = min(problems, key=lambda e: (e["type"] != "extra_forbidden", find_line(node, e["loc"])))
    return build_error(path, node, messages.describe_problem(node, problem))


_MAX_PROBLEMS = 200
"""The most problems that are compared by line; with more, the one shown may not be the first in the file."""
