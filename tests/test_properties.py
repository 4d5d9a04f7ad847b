"""What docs/guarantees.md promises of the plane, on generated histories against the plain-Python reference.

HINDCAST_SEED chooses other histories. A failing one is shrunk, and shown with its records and both planes.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import histories
from hindcast_conformance import Outcome, Vector, run_vectors
from hindcast_conformance.formatting import format_failure
from hindcast_conformance.vectors import OperationShape, parse_operation

SEED = int(os.environ.get("HINDCAST_SEED", "1"))


class Done(NamedTuple):
    """What became of histories, and of pairs that must be believed alike."""

    histories: list[Outcome]
    pairs: list[tuple[Outcome, Outcome]]


def worked(spark: SparkSession, seed: int, count: int, arrivals: int, *, few: bool = False) -> Done:
    """`count` histories, and `arrivals` twice: cut into other runs; and, where nothing expires, in another order.

    Few: of each operation only those of its commonest shape. Time goes into planning a shape, not a history.
    """
    dice = random.Random(seed)  # noqa: S311 - histories, not secrets
    cases = histories.histories(seed, count)
    shapes = commonest(cases) if few else {shape(case) for case in cases}
    cases = [case for case in cases if shape(case) in shapes]
    cut = [(case, histories.recut(dice, case.records)) for case in cases[:arrivals]]
    moved = [
        (case, histories.shuffled(dice, case.records))
        for case in histories.histories(-1 - seed, arrivals, expiring=False)
        if case.operation["type"] not in {"stream_table_join", "stream_stream_join"}  # their rows name offsets
        and (not few or shape(case) in shapes)
    ]
    again = [histories.vector(f"{case.name} again", case.operation, log) for case, log in (*cut, *moved)]
    done = run_vectors(spark, [*cases, *(case for case, _ in moved), *again])
    first = [*done[: len(cut)], *done[len(cases) : len(cases) + len(moved)]]
    return Done(done[: len(cases)], list(zip(first, done[len(cases) + len(moved) :], strict=True)))


def shape(case: Vector) -> OperationShape:
    return parse_operation(case).shape


def commonest(cases: Sequence[Vector]) -> set[OperationShape]:
    """Of each operation the shape that most of its histories have."""
    shapes = defaultdict(list)
    for case in cases:
        shapes[case.operation["type"]].append(shape(case))
    return {max(some, key=some.count) for some in shapes.values()}


@pytest.fixture(
    scope="module",
    params=[pytest.param("few", marks=[pytest.mark.long, pytest.mark.ci]), pytest.param("all", marks=pytest.mark.long)],
)
def done(spark: SparkSession, request: pytest.FixtureRequest) -> Done:
    """One go for both tests."""
    few = request.param == "few"
    return worked(spark, SEED, 300 if few else 600, 60, few=few)


@pytest.mark.slow
def test_every_table_equals_its_definition_at_every_known_at(spark: SparkSession, done: Done) -> None:
    """Invariants 1 (definition), 4 (tiling) and 5 (conservation)."""
    right(spark, done.histories)


@pytest.mark.slow
def test_what_is_believed_now_does_not_depend_on_runs_or_arrival(done: Done) -> None:
    """Invariant 3 (arrival)."""
    alike(done.pairs)


@pytest.mark.long
@pytest.mark.parametrize("part", range(5))
def test_ten_thousand_histories_and_a_thousand_arrivals(spark: SparkSession, part: int) -> None:
    """Invariants 1, 3, 4 and 5, five times over: 50,000 histories."""
    done = worked(spark, SEED + 1 + part, 10_000, 1_000)
    right(spark, done.histories)
    alike(done.pairs)


def right(spark: SparkSession, done: Sequence[Outcome]) -> None:
    """Every table as the reference defines it, tiled, and every record with its fate."""
    print(f"HINDCAST_SEED={SEED}")
    wrong = next((outcome for outcome in done if outcome.state != "passed"), None)
    assert wrong is None, _shown(spark, wrong)
    for outcome in done:
        tiled(outcome)
        conserved(outcome)


def alike(pairs: Sequence[tuple[Outcome, Outcome]]) -> None:
    print(f"HINDCAST_SEED={SEED}")
    for one, other in pairs:
        assert believed(one) == believed(other), f"{format_failure(one)}\n{format_failure(other)}"


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
    return f"HINDCAST_SEED={SEED}, history {vector.name}{format_failure(histories.shrunk(spark, vector))}"


def _meet(one: dict[str, Any], other: dict[str, Any], axis: str) -> bool:
    if f"{axis}From" not in one:
        return True
    starts, ends = (one[f"{axis}From"], other[f"{axis}From"]), (one[f"{axis}To"], other[f"{axis}To"])
    return bool(max(starts) < min(map(_end, ends)))


def _end(moment: int | None) -> float:
    return float("inf") if moment is None else moment
