"""A contract's fields as texts that can be stored, compared, and made a contract again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from pydantic import TypeAdapter, ValidationError

from hindcast.contract.check import check_contract
from hindcast.contract.model import Contract
from hindcast.contract.types import ContractValue

_Document: TypeAlias = dict[str, "ContractValue | _Document"]

_GATES = ("expect", "hold")
"""The fields of a topic or view that are about its gates."""


def list_fields(contract: Contract) -> dict[str, str]:
    """Return the text of each field that is part of the contract's hash, by its place in the contract.

    views.bills.where                                      quantity > 1
    views.bills.expect.expect_column_values_to_be_unique   {"kwargs": {"column": "item"}, "on_failure": "warn"}
    """
    return dict(_walk_fields("", contract.hashed_fields))


def _walk_fields(place: str, value: ContractValue) -> Iterator[tuple[str, str]]:
    gates = [gate for gate in value if isinstance(gate, Mapping)] if isinstance(value, list | tuple) else []
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _walk_fields(f"{place}.{name}".removeprefix("."), below)
    elif gates and place.endswith(".expect"):
        times: dict[str, int] = {}
        for gate in gates:
            kind, fields = str(gate["type"]), {field: text for field, text in gate.items() if field != "type"}
            times[kind] = nth = times.get(kind, 0) + 1
            yield f"{place}.{kind}" + (f".{nth}" if nth > 1 else ""), _format_field(fields)
    else:
        yield place, _format_field(value)


def _format_field(value: ContractValue) -> str:
    match value:
        case str():
            return value
        case datetime():
            return value.isoformat()
        case timedelta():
            return str(value).removesuffix(", 0:00:00")
        case _:
            return json.dumps(value, default=str)


def parse_fields(fields: Mapping[str, str]) -> Contract:
    """Return the contract with these fields (`list_fields`), without its gates.

    Raise ValueError if they do not make a valid contract, as when a field or function no longer exists.
    """
    own = {place: text for place, text in fields.items() if place.split(".")[2:3] not in ([name] for name in _GATES)}
    try:
        contract = _validate_document(_nest_fields(own))
        complaint, stored = next(check_contract(contract), None), list_fields(contract)
    except Exception as error:  # others may have written them: RecursionError, and what no check foresees
        raise ValueError(f"not a contract: {type(error).__name__}") from error
    if complaint is not None:
        raise ValueError(complaint.found)
    if stored != own:
        raise ValueError("another contract")
    return contract


def _nest_fields(fields: Mapping[str, str]) -> _Document:
    document: _Document = {}
    for place, text in fields.items():
        *path, last = place.split(".")
        level = document
        for name in path:
            inner = level.setdefault(name, {})
            if not isinstance(inner, dict):
                raise TypeError(f"{place} is within a value")
            level = inner
        is_list = place.endswith(".join.on") and text.startswith("[")
        level[last] = json.loads(text) if is_list else text
    return document


def _validate_document(document: _Document) -> Contract:
    """Return the contract in a document; its values are texts, which become what the model wants where it takes none.

    Raise ValueError if it is not a contract.
    """
    try:
        return Contract.model_validate(document, by_alias=True, by_name=True)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            _convert_text(document, problem["loc"])
    return Contract.model_validate(document, by_alias=True, by_name=True)


def _convert_text(level: _Document, location: tuple[int | str, ...]) -> None:
    """Replace the text at a location of a document by the JSON value, or the length of time, that it writes."""
    for name in location:
        value = level.get(str(name))
        if isinstance(value, dict):
            level = value
        elif isinstance(value, str):
            try:
                level[str(name)] = json.loads(value)
            except ValueError:
                level[str(name)] = TypeAdapter(timedelta).validate_python(value)
