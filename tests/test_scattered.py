"""Keys in more than one partition, counted in a topic's log without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from hindcast.ingest.scattered_keys import ScatteredKeyCount, count_scattered_keys
from hindcast.store import table_creation
from hindcast.store.tables import Table

SCHEMA = StructType(
    [
        StructField("epoch", IntegerType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("key", BinaryType()),
        StructField("fate", StringType()),
    ]
)
Row = tuple[int, int, str | None, str]
"""Epoch, partition, key, fate."""


def log_of(folder: Path, *commits: list[Row]) -> Table:
    log = Table(str(folder), "cafe", "logs/menu", "log")
    found = table_creation.ensure_table(log, SCHEMA)
    for number, commit in enumerate(commits):
        epochs, partitions, keys, fates = zip(*commit, strict=True)
        rows = {
            "epoch": pa.array(epochs, pa.int32()),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array([number] * len(commit), pa.int64()),
            "key": pa.array([key and key.encode() for key in keys], pa.binary()),
            "fate": pa.array(fates),
        }
        write_deltalake(found, pa.table(rows), mode="append")
    return log


FIRST: list[Row] = [(0, 0, "a", "accepted"), (0, 1, "b", "accepted"), (0, 1, None, "accepted")]
LATER: list[Row] = [
    (0, 1, "a", "accepted"),
    (0, 0, "b", "malformed"),
    (1, 2, "b", "accepted"),
    (0, 0, None, "accepted"),
]
CASES = {
    "no log": ([], 10, ScatteredKeyCount(0, 0, all=True)),
    "one partition": ([[(0, 1, "a", "accepted"), (1, 1, "a", "accepted")]], 10, ScatteredKeyCount(0, 2, all=True)),
    # b is refused in 0, and in 2 after partitions were added; no key at all is none
    "a is in both": ([FIRST, LATER], 10, ScatteredKeyCount(1, 7, all=True)),
    "the newest alone": ([FIRST, LATER], 3, ScatteredKeyCount(0, 4, all=False)),
}


@pytest.mark.parametrize(("commits", "most", "told"), CASES.values(), ids=CASES)
def test_keys_in_more_than_one_partition_of_an_epoch_are_counted(
    tmp_path: Path, commits: list[list[Row]], most: int, told: ScatteredKeyCount
) -> None:
    log = log_of(tmp_path, *commits) if commits else Table(str(tmp_path), "cafe", "logs/menu", "log")
    assert count_scattered_keys(log, most) == told
