"""A contract's fields as texts that can be stored and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from hindcast.contract.model import Contract
from hindcast.contract.types import ContractValue


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
