"""The stream-stream join of the `kafka` reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hindcast.emits.stream_stream import LEFT, RIGHT, Emitted, Kept, Records, Window, join, nothing_kept
from kafka_adapter_streams import Vector, coded, named, vectors

VECTORS = vectors("stream_stream_join")


def records_of(vector: Vector) -> Records:
    records = coded(vector["records"])
    side = [LEFT if record["topic"] == "left" else RIGHT for record in vector["records"]]
    return Records(records.order, np.array(side, np.int64), records.key, records.value, records.timestamp)


def replay(vector: Vector, *cuts: int) -> tuple[list[dict[str, Any]], Kept]:
    """What a vector's join emits and keeps, its records cut into runs."""
    window = Window(*(vector["operation"]["window"][field] for field in ("beforeMs", "afterMs", "graceMs")))
    records, kept = records_of(vector), nothing_kept()
    bounds = [0, *cuts, len(vector["records"])]
    emitted: list[dict[str, Any]] = []
    for start, stop in zip(bounds, bounds[1:], strict=False):
        run = Records(*(column[start:stop] for column in records))
        out, kept = join(run, window, vector["operation"]["join"], kept)
        emitted += told(vector, out)
    return emitted, kept


def told(vector: Vector, out: Emitted) -> list[dict[str, Any]]:
    keys, values = coded(vector["records"])[:2]
    return [
        {
            "key": named(keys, key),
            "value": {"left": named(values, left), "right": named(values, right)},
            "timestamp": timestamp,
            "cause": cause,
        }
        for cause, key, left, right, timestamp in zip(*(column.tolist() for column in out), strict=True)
    ]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vector(vector: Vector) -> None:
    assert replay(vector)[0] == vector["expected"]["emitted"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_cut_anywhere_changes_nothing(vector: Vector) -> None:
    emitted, kept = replay(vector)
    for cut in range(1, len(vector["records"])):
        again, left = replay(vector, cut)
        assert again == emitted
        assert all(np.array_equal(one, two) for one, two in zip(left, kept, strict=True))
