"""Vectors of the `kafka` reading as arrays, for the operators of streams, and what these emit as in the vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindcast.common.jit import Integers

VECTORS = Path(__file__).parent / "conformance"
Vector = dict[str, Any]


def vectors(family: str) -> list[Vector]:
    found: list[Vector] = json.loads((VECTORS / f"{family}.json").read_text(encoding="utf-8"))
    return found


class Coded(NamedTuple):
    """A vector's records. A value is named by the number of its record."""

    keys: list[str]
    values: list[Any]
    order: Integers
    key: Integers
    value: Integers
    timestamp: Integers


def coded(records: Sequence[dict[str, Any]]) -> Coded:
    keys = sorted({record["key"] for record in records} - {None}, key=str.encode)
    return Coded(
        keys,
        [record["value"] for record in records],
        np.arange(len(records)),
        np.array([-1 if record["key"] is None else keys.index(record["key"]) for record in records], np.int64),
        np.array([-1 if record["value"] is None else i for i, record in enumerate(records)], np.int64),
        np.array([record["timestamp"] for record in records], np.int64),
    )


def named(names: Sequence[Any], number: int) -> Any:
    """A key or a value, by its number."""
    return None if number == -1 else names[number]


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, arrays among them."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)
