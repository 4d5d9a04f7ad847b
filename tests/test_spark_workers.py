"""Functions in Spark's Python workers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from hindcast.common import spark_workers


def test_workers_do_not_look_for_garbage_among_modules(spark: SparkSession) -> None:
    def count_tracked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            counts = len(gc.get_objects()), gc.get_freeze_count()
            yield pa.record_batch([pa.array([count]) for count in counts], ["n", "frozen"])

    rows = spark_workers.map_in_workers(spark.range(0, 1, 1, 1), count_tracked, "n long, frozen long")
    (row,) = rows.collect()
    assert row["n"] < 10_000 < row["frozen"]


def test_modules_are_frozen_again_when_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(spark_workers.gc, "freeze", lambda: frozen.append(len(sys.modules)))
    monkeypatch.setattr(spark_workers, "_frozen_modules", 0)
    spark_workers.freeze_modules()
    spark_workers.freeze_modules()
    assert frozen == [len(sys.modules)]
    monkeypatch.setitem(sys.modules, "another", sys)
    spark_workers.freeze_modules()
    assert len(frozen) == 2
