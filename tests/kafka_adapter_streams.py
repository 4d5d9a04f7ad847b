"""Vectors of the `kafka` reading as arrays, for the operators of streams, and what these emit as in the vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindcast.emits.compiled import Integers

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


class Store:
    """A versioned store in plain Python: README, "Versioned store", rules 1 to 6 and 10."""

    def __init__(self, retention: int) -> None:
        self.retention = retention
        self.stream_time = -1
        self.latest: dict[str, tuple[int, Any]] = {}
        self.older: dict[str, dict[int, Any]] = {}

    def put(self, key: str, value: Any, timestamp: int) -> None:
        if timestamp < self.stream_time - self.retention:
            return
        self.stream_time = max(self.stream_time, timestamp)
        latest, older = self.latest.pop(key, None), self.older.setdefault(key, {})
        later = [boundary for boundary in older if boundary > timestamp]
        if latest is None and later:
            older[timestamp] = value
        elif latest is None and value is None:
            older.setdefault(timestamp, None)
        elif latest is None:
            self.latest[key] = timestamp, value
        elif timestamp < latest[0]:
            self.latest[key] = latest
            older[timestamp] = value
            older.setdefault(min(later, default=latest[0]), None)
        else:
            if timestamp > latest[0]:
                older[latest[0]] = latest[1]
                older.setdefault(timestamp, None)
            if value is not None:
                self.latest[key] = timestamp, value

    def get(self, key: str, timestamp: int) -> Any:
        """The value valid at `timestamp`, or None."""
        latest = self.latest.get(key)
        if latest is not None and latest[0] <= timestamp:
            return latest[1]
        if timestamp < self.stream_time - self.retention:
            return None
        older = self.older.get(key, {})
        return older[max(found)] if (found := [boundary for boundary in older if boundary <= timestamp]) else None
