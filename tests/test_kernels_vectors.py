"""Kernels are held to the vectors and histories of the operators that they do (engine.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import histories
import kernels
from hindcast_conformance import Vector, load_vectors, run_vectors
from test_conformance import judge
from test_properties import SEED, commonest, shape

VECTORS = Path(__file__).parent / "conformance"
OPERATIONS = {
    "stream_table_join": "stream_table",
    "table_table_join": "table_table",
    "foreign_key_join": "table_table",
    "stream_stream_join": "stream_stream",
    "table_aggregate": "of_table",
    "stream_aggregate": "of_stream",
    "windowed_aggregate": "in_windows",
}
"""The operations that have a kernel, and its name."""


def cases(count: int) -> list[Vector]:
    """All vectors, and so many histories, of these operations."""
    corrected = [vector for vector in load_vectors(VECTORS) if vector.semantics == "corrected"]
    every = [*corrected, *histories.histories(SEED, count)]
    return [case for case in every if case.operation["type"] in OPERATIONS]


@pytest.mark.long
def test_the_commonest_vectors_and_histories_pass_by_kernels(spark: SparkSession) -> None:
    every = cases(150)
    shapes = commonest(every)
    with kernels.instead() as done:
        judge(run_vectors(spark, [case for case in every if shape(case) in shapes]))
    assert set(done) == {*OPERATIONS.values()}


@pytest.mark.long
def test_all_vectors_and_histories_pass_by_kernels(spark: SparkSession) -> None:
    with kernels.instead() as done:
        judge(run_vectors(spark, cases(2_000)))
    assert set(done) == {*OPERATIONS.values(), "in_sliding_windows", "in_sessions"}
