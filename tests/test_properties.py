"""Invariants 1, 3, 4 and 5 of design.md, section 5, on generated histories against the plain-Python reference.

HINDCAST_SEED chooses other histories. A failing one is shrunk, and shown with its records and both planes.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from itertools import combinations
from typing import Any

import pytest
from pyspark.sql import SparkSession

import histories
from hindcast.conformance import Outcome, Vector, outcomes
from hindcast.conformance.printing import failure

SEED = int(os.environ.get("HINDCAST_SEED", "1"))
LONG = pytest.mark.long
NORMAL = pytest.mark.slow


@pytest.mark.parametrize("count", [pytest.param(250, marks=NORMAL), pytest.param(50_000, marks=LONG)])
def test_every_table_equals_its_definition_at_every_known_at(spark: SparkSession, count: int) -> None:
    """Invariants 1 (definition), 4 (tiling) and 5 (conservation)."""
    print(f"HINDCAST_SEED={SEED}")
    for start in range(0, count, 10_000):
        cases = histories.histories(SEED + start, min(count, 10_000))
        done = outcomes(spark, cases)
        wrong = next((outcome for outcome in done if outcome.state != "passed"), None)
        assert wrong is None, _shown(spark, wrong)
        for outcome in done:
            tiled(outcome)
            conserved(outcome)


@pytest.mark.parametrize("count", [pytest.param(100, marks=NORMAL), pytest.param(5_000, marks=LONG)])
def test_what_is_believed_now_does_not_depend_on_runs_or_arrival(spark: SparkSession, count: int) -> None:
    """Invariant 3 (arrival): cut into other runs; and, where nothing expires, in another order."""
    print(f"HINDCAST_SEED={SEED}")
    dice = random.Random(SEED)  # noqa: S311 - histories, not secrets
    cut = [(case, histories.recut(dice, case.records)) for case in histories.histories(SEED, count)]
    moved = [
        (case, histories.shuffled(dice, case.records))
        for case in histories.histories(SEED + 1, count, expiring=False)
        if case.operation["type"] not in {"stream_table_join", "stream_stream_join"}  # their rows name offsets
    ]
    first = outcomes(spark, [case for case, _ in (*cut, *moved)])
    again = outcomes(spark, [histories.vector(case.name, case.operation, log) for case, log in (*cut, *moved)])
    for one, other in zip(first, again, strict=True):
        assert believed(one) == believed(other), f"{failure(one)}\n{failure(other)}"


def tiled(outcome: Outcome) -> None:
    """Of one key no two rectangles overlap (windows: of one key and window), and no period is empty."""
    rows = defaultdict(list)
    for row in outcome.computed["rows"]:
        assert row["systemFrom"] < _end(row["systemTo"])
        if "validFrom" in row:
            assert row["validFrom"] < _end(row["validTo"])
        identity = [row.get(name) for name in ("key", "start", "end", "record")]
        rows[str([*identity, row.get("records")])].append(row)
    for one, other in (pair for group in rows.values() for pair in combinations(group, 2)):
        assert not (_meet(one, other, "system") and _meet(one, other, "valid")), (outcome.vector.name, one, other)


def conserved(outcome: Outcome) -> None:
    """Every record has exactly one fate."""
    fates = outcome.computed["fates"].values()
    assert sum(count for counts in fates for count in counts.values()) == len(outcome.vector.records)


def believed(outcome: Outcome) -> list[str]:
    now = [row for row in outcome.computed["rows"] if row["systemTo"] is None]
    return sorted(str({**row, "systemFrom": None}) for row in now)


def _shown(spark: SparkSession, wrong: Outcome) -> Any:
    if wrong.state == "declined":
        return wrong.computed
    vector: Vector = wrong.vector
    return f"HINDCAST_SEED={SEED}, history {vector.name}{failure(histories.shrunk(spark, vector))}"


def _meet(one: dict[str, Any], other: dict[str, Any], axis: str) -> bool:
    if f"{axis}From" not in one:
        return True
    starts, ends = (one[f"{axis}From"], other[f"{axis}From"]), (one[f"{axis}To"], other[f"{axis}To"])
    return bool(max(starts) < min(map(_end, ends)))


def _end(moment: int | None) -> float:
    return float("inf") if moment is None else moment
