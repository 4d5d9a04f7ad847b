"""The corrected vectors, and what the runner does with what it cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import reference
from hindcast.conformance import Outcome, Vector, conformance, load, outcomes
from hindcast.conformance.printing import failure, families, plane
from hindcast.conformance.vectors import Declined, understand

VECTORS = Path(__file__).parent / "conformance"


@pytest.fixture(scope="module")
def corrected() -> list[Vector]:
    return [vector for vector in load(VECTORS) if vector.operation.get("semantics") == "corrected"]


def judge(done: list[Outcome]) -> None:
    print(families(done))
    wrong = [outcome for outcome in done if outcome.state != "passed"]
    assert not wrong, wrong[0].computed if wrong[0].state == "declined" else failure(wrong[0])


@pytest.mark.slow
def test_a_sample_of_every_family_passes(spark: SparkSession, corrected: list[Vector]) -> None:
    judge(outcomes(spark, corrected[::12]))


@pytest.mark.long
def test_all_986_corrected_vectors_pass(spark: SparkSession, corrected: list[Vector]) -> None:
    assert len(corrected) == 986
    judge(outcomes(spark, corrected))


def test_the_plain_python_reference_agrees_with_all_vectors(corrected: list[Vector]) -> None:
    for vector in corrected:
        assert Outcome(vector, reference.expected(vector.operation, vector.records), 0.0).state == "passed", vector.name


def test_every_corrected_vector_is_understood(corrected: list[Vector]) -> None:
    shapes = {understand(vector).shape for vector in corrected}
    assert len(shapes) < 40, "knobs must be data, not plans"


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({"type": "table_transform", "table": {"versioned": True}}, "the kafka reading is not built yet"),
        ({"type": "windowed_join", "semantics": "corrected"}, "no operator for 'windowed_join'"),
        ({"type": "stream_aggregate", "semantics": "corrected", "aggregation": "trace"}, "no aggregation 'trace'"),
        ({"type": "stream_aggregate", "semantics": "corrected"}, "operation not understood: KeyError 'aggregation'"),
        (
            {"type": "table_transform", "semantics": "corrected", "table": {"versioned": False}},
            "a table that is not versioned has no corrected reading",
        ),
    ],
)
def test_what_cannot_be_understood_is_declined_with_the_reason(operation: dict[str, object], reason: str) -> None:
    with pytest.raises(Declined) as declined:
        understand(Vector("any", "any/one", operation, (), {}))
    assert str(declined.value) == reason


def test_the_command_writes_what_was_computed_and_shows_what_failed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"topic": "table", "key": "curry", "value": 8, "timestamp": 0, "run": 1},
        {"topic": "table", "key": "curry", "value": 10, "timestamp": 4, "run": 1},
        {"topic": "table", "key": "curry", "value": 9, "timestamp": 2, "run": 2},
    ]
    table = {"versioned": True, "historyRetentionMs": 10}
    good = {"type": "table_transform", "semantics": "corrected", "table": table}
    right = {"name": "a/right", "operation": good, "records": lines, "expected": reference.expected(good, lines)}
    wrong = {**right, "name": "a/wrong", "expected": {**right["expected"], "rows": []}}
    kafka = {"name": "a/kafka", "operation": {"type": "store"}, "records": [], "expected": {"results": []}}
    (tmp_path / "a.json").write_text(json.dumps([right, wrong, kafka]), encoding="utf-8")

    assert conformance(spark, tmp_path, tmp_path / "out.json") == 1
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert Outcome(load(tmp_path)[0], written["a/right"], 0.0).state == "passed"
    assert written["a/kafka"] == {"declined": "the kafka reading is not built yet"}
    shown = capsys.readouterr().out
    assert "a/wrong: table_transform" in shown
    assert "run 2       |8        |9        |10      >" in shown


def test_a_plane_is_drawn_by_run_and_valid_time() -> None:
    rows = [
        {"key": "k", "value": 8, "validFrom": 0, "validTo": 4, "systemFrom": 1, "systemTo": 2},
        {"key": "k", "value": 8, "validFrom": 0, "validTo": 2, "systemFrom": 2, "systemTo": None},
        {"key": "k", "value": 9, "validFrom": 2, "validTo": 4, "systemFrom": 2, "systemTo": None},
        {"key": "k", "value": 10, "validFrom": 4, "validTo": None, "systemFrom": 1, "systemTo": None},
    ]
    assert plane(rows, 2).splitlines() == [
        "  valid time  0         2         4",
        "  run 1       |8                  |10      >",
        "  run 2       |8        |9        |10      >",
    ]
