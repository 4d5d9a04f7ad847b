"""What a contract says, field by field, as texts that can be kept and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from hindcast.contracts.model import Contract


def list_fields(contract: Contract) -> dict[str, str]:
    """Return the text of each field by its place in the contract: all that decides about the contract's hash.

    views.bills.where                                      quantity > 1
    views.bills.expect.expect_column_values_to_be_unique   {"kwargs": {"column": "item"}, "on_failure": "warn"}
    """
    return dict(_walk("", contract.hashed_fields))


def _walk(place: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _walk(f"{place}.{name}".removeprefix("."), below)
    elif place.endswith(".expect"):
        times: dict[str, int] = {}
        for gate in value:
            times[gate["type"]] = nth = times.get(gate["type"], 0) + 1
            told = {name: it for name, it in gate.items() if name != "type"}
            yield f"{place}.{gate['type']}" + (f".{nth}" if nth > 1 else ""), _text(told)
    else:
        yield place, _text(value)


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case datetime():
            return value.isoformat()
        case timedelta():
            return str(value).removesuffix(", 0:00:00")
        case _:
            return json.dumps(value, default=str)
