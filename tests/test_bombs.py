"""Records that are small on the way and large where they are read: the run says so, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.errors import PySparkException

from hindcast.common.errors import PlatformError, RunError
from hindcast.runs.spark_errors import explain_spark_errors
from pipelines import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = """
pipeline: shop
start: 2026-01-01
topics:
  events: {read: stream, key: {id: string}, value: {n: int}}
"""


def test_what_spark_says_of_its_memory_is_told_with_what_to_do(tmp_path: Path) -> None:
    said = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in "
        "stage 0.0 (TID 0) (localhost executor driver): java.lang.OutOfMemoryError: Java heap space\n\tat org.apache."
    )
    p = Pipeline(None, "nowhere:1", tmp_path, EVENTS)
    with pytest.raises(PlatformError) as caught, explain_spark_errors(p.contract, "events"):
        raise PySparkException(said)
    assert caught.value.found == "Spark's memory is too small for this (java.lang.OutOfMemoryError: Java heap space)"
    assert (caught.value.where, "docs/topics/poison.md" in caught.value.fix) == ("shop.events", True)


def test_a_file_that_vacuum_removes_under_a_step_is_named_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    p, path = Pipeline(None, "nowhere:1", tmp_path, EVENTS), str(tmp_path / "a table, read")
    write_deltalake(path, pa.table({"n": [1]}))
    rows = spark.read.format("delta").load(path)
    [file] = Path(path).glob("*.parquet")
    assert rows.count() == 1
    file.unlink()
    with pytest.raises(RunError) as caught, explain_spark_errors(p.contract, "events"):
        rows.collect()
    assert caught.value.found.startswith("a file was removed while it was read: ")
    assert caught.value.found.endswith(file.name)
    assert caught.value.where == "shop.events"
    assert "VACUUM keeps old files for too short a time" in caught.value.fix
