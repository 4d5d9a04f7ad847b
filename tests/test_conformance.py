"""The vectors of both readings, and what the runner does with what it cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import reference
from hindcast_conformance import Outcome, Vector, load_vectors, run_conformance, run_vectors
from hindcast_conformance.definitions import derive_vectors
from hindcast_conformance.exceptions import FILTER, GLOBAL, NEGATIVE, REDUCE, STORE, TRACE
from hindcast_conformance.formatting import format_failure, format_families, format_plane
from hindcast_conformance.topology import compute_vector, count_exceptions
from hindcast_conformance.vectors import DeclinedVector, parse_operation

VECTORS = Path(__file__).parent / "conformance"


@pytest.fixture(scope="module")
def corrected() -> list[Vector]:
    return [vector for vector in load_vectors(VECTORS) if vector.semantics == "corrected"]


@pytest.fixture(scope="module")
def kafka() -> list[Vector]:
    return [vector for vector in load_vectors(VECTORS) if vector.semantics == "kafka"]


def judge(done: list[Outcome]) -> None:
    print(format_families(done))
    wrong = [outcome for outcome in done if outcome.state != "passed"]
    assert not wrong, wrong[0].computed if wrong[0].state == "declined" else format_failure(wrong[0])


def judge_derived(spark: SparkSession, vectors: list[Vector]) -> None:
    """Judge the rows that runs derive whole; in the other tests each run is an increment to the one before."""
    derived = derive_vectors(spark, vectors)
    assert derived.keys() == {vector.name for vector in vectors}
    judge([Outcome(it, {"fates": it.expected["fates"], "rows": derived[it.name]}, 0.0) for it in vectors])


@pytest.mark.long
def test_a_sample_of_every_family_passes(spark: SparkSession, corrected: list[Vector]) -> None:
    """In the ordinary run the same jobs are judged by the reference (test_properties.py), and it by all vectors."""
    judge(run_vectors(spark, corrected[::12]))


@pytest.mark.long
def test_all_986_corrected_vectors_pass(spark: SparkSession, corrected: list[Vector]) -> None:
    assert len(corrected) == 986
    judge(run_vectors(spark, corrected))


@pytest.mark.long
@pytest.mark.ci
def test_contracts_derive_whole_what_a_sample_of_corrected_vectors_expects(
    spark: SparkSession, corrected: list[Vector]
) -> None:
    judge_derived(spark, corrected[::66])


@pytest.mark.long
def test_contracts_derive_whole_what_all_986_corrected_vectors_expect(
    spark: SparkSession, corrected: list[Vector]
) -> None:
    judge_derived(spark, corrected)


@pytest.mark.long
@pytest.mark.ci
def test_all_1326_vectors_of_kafka_streams_pass(kafka: list[Vector]) -> None:
    assert len(kafka) == 1326
    judge([Outcome(vector, compute_vector(vector), 0.0) for vector in kafka])


def test_all_vectors_of_kafka_streams_but_these_run_from_their_contracts_alone(kafka: list[Vector]) -> None:
    found = count_exceptions(kafka)
    assert found == {STORE: 136, GLOBAL: 1, TRACE: 135, FILTER: 24, REDUCE: 5, NEGATIVE: 1}


def test_what_the_order_of_records_tells_is_judged_in_order(kafka: list[Vector]) -> None:
    vector = next(it for it in kafka if len(it.expected.get("emitted", ())) > 1)
    turned = {**vector.expected, "emitted": vector.expected["emitted"][::-1]}
    assert [Outcome(vector, it, 0.0).state for it in (vector.expected, turned)] == ["passed", "failed"]


def test_the_plain_python_reference_agrees_with_all_vectors(corrected: list[Vector]) -> None:
    for vector in corrected:
        assert Outcome(vector, reference.expected(vector.operation, vector.records), 0.0).state == "passed", vector.name


def test_every_corrected_vector_is_understood(corrected: list[Vector]) -> None:
    shapes = {parse_operation(vector).shape for vector in corrected}
    assert len(shapes) < 40, "knobs must be data, not plans"


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({"type": "table_transform", "semantics": "both"}, "no reading 'both'"),
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
    with pytest.raises(DeclinedVector) as declined:
        parse_operation(Vector("any", "any/one", operation, (), {}))
    assert str(declined.value) == reason


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({"type": "windowed_join"}, "no operator for 'windowed_join'"),
        ({"type": "stream_aggregate", "aggregation": "avg"}, "operation not understood: KeyError 'avg'"),
        ({"type": "stream_aggregate"}, "operation not understood: KeyError 'aggregation'"),
        ({"type": "table_table_join", "join": "cross"}, "no cross table_table_join"),
        (
            {"type": "table_transform", "table": {"versioned": False, "transforms": [{"op": "rekey"}]}},
            "no transform 'rekey'",
        ),
        (
            {"type": "stream_global_table_join", "join": "inner", "table": {"versioned": False}},
            "a global table has no order beside the stream",
        ),
        (
            {"type": "windowed_aggregate", "aggregation": "sum", "emit": "at_last", "window": {"kind": "session"}},
            "operation not understood: KeyError 'inactivityGapMs'",
        ),
        (
            {
                "type": "windowed_aggregate",
                "aggregation": "sum",
                "emit": "at_last",
                "window": {"kind": "session", "inactivityGapMs": 1, "graceMs": 0},
            },
            "views.result.window.emit: Input should be 'update', 'suppress_until_window_closes' or 'on_window_close'",
        ),
        ("stream_aggregate", "operation not understood: AttributeError 'str' object has no attribute 'get'"),
    ],
)
def test_what_no_topology_is_known_for_is_declined_with_the_reason(operation: dict[str, object], reason: str) -> None:
    records = ({"topic": "stream", "key": "a", "value": 1, "timestamp": 0},)
    vector = Vector("any", "any/one", operation, records, {})
    with pytest.raises(DeclinedVector) as declined:
        _ = vector.semantics, compute_vector(vector)
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
    steps = [{"op": "put", "key": "a", "value": 1, "timestamp": 5}, {"op": "get", "key": "a"}]
    store = {"type": "store", "historyRetentionMs": 10}
    answers = {
        "results": [-1, {"value": 1, "timestamp": 5}],
        "history": {"store": {"a": [{"value": 1, "validFrom": 5, "validTo": None}]}},
    }
    kafka = {"name": "a/kafka", "operation": store, "records": steps, "expected": answers}
    unknown = {**kafka, "name": "a/unknown", "operation": {"type": "shop"}}
    (tmp_path / "a.json").write_text(json.dumps([kafka, right, unknown, wrong]), encoding="utf-8")

    assert run_conformance(spark, tmp_path, tmp_path / "out.json") == 1
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert list(written) == ["a/kafka", "a/right", "a/unknown", "a/wrong"]
    assert Outcome(load_vectors(tmp_path)[1], written["a/right"], 0.0).state == "passed"
    assert written["a/kafka"] == answers
    assert written["a/unknown"] == {"declined": "no operator for 'shop'"}
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
    assert format_plane(rows, 2).splitlines() == [
        "  valid time  0         2         4",
        "  run 1       |8                  |10      >",
        "  run 2       |8        |9        |10      >",
    ]


def test_a_topology_that_failed_is_shown_part_by_part_line_by_line() -> None:
    records = ({"topic": "stream", "key": "a", "value": 1, "timestamp": 5},)
    rows = [{"key": "a", "value": 1, "timestamp": time, "cause": 0} for time in (5, 6)]
    kept = {"result": {"a": {"value": 1, "timestamp": 5}}}
    vector = Vector("any", "any/one", {"type": "to_table"}, records, {"emitted": rows, "state": kept})
    shown = format_failure(Outcome(vector, {"emitted": [{**rows[0], "value": "1"}, rows[1]], "state": kept}, 0.0))
    assert shown.splitlines()[3:] == [
        "   topic   key  value  timestamp",
        "-  ------  ---  -----  ---------",
        "0  stream  a    1      5",
        "(1 row)",
        "emitted: cause, key, value, timestamp",
        '-0      "a"  1      5',
        '+0      "a"  "1"    5',
        ' 0      "a"  1      6',
    ]
    error = format_failure(Outcome(vector, {"error": {"phase": "build"}}, 0.0)).splitlines()
    assert error[-2:] == ["error: error", '+{"phase": "build"}']


def test_what_follows_from_a_retention_is_as_in_kafka_streams() -> None:
    found = load_vectors(VECTORS / "retentions")
    assert len(found) == 33
    judge([Outcome(vector, compute_vector(vector), 0.0) for vector in found])
    assert sum("error" in vector.expected for vector in found) == 16
