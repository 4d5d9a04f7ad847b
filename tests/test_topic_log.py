"""What the statistics of a log's files tell of its records."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StructType, TimestampType

from hindcast.ingest import topic_log
from hindcast.store import table_creation, tables
from hindcast.store.tables import ARROW_TIMESTAMP, Table
from pipelines import T0

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOON = int(T0.timestamp() * 1e6)


def create_log(place: Path) -> Table:
    log = tables.log_table(str(place), "shop", "menu")
    assert not topic_log.may_have_records_since(log, NOON, 2), "without a log"
    table_creation.ensure_table(log, StructType().add("run", LongType()).add("timestamp", TimestampType()))
    return log


def append_file(place: str, run: int, moments: Sequence[int | None]) -> None:
    """Add a file of records of a run, dated so many microseconds after noon."""
    times = [None if it is None else T0 + timedelta(microseconds=it) for it in moments]
    rows = pa.table({"run": pa.array([run] * len(times), pa.int64()), "timestamp": pa.array(times, ARROW_TIMESTAMP)})
    write_deltalake(place, rows, mode="append")


@pytest.mark.parametrize(
    ("files", "since", "found"),
    [
        ([(1, [0, 5_000])], 4_000, True),
        ([(1, [0, 5_000])], 5_000, True),
        ([(1, [0, 5_000])], 6_001, False),
        ([(1, [0, 5_999])], 5_999, True),  # statistics say 5,000
        ([(1, [0]), (2, [7_000])], 7_000, True),
        ([(1, [0]), (3, [7_000])], 7_000, False),  # of a later run
        ([(1, [None, None])], 0, False),  # of records that have no timestamp
        ([(1, [None, 5_000])], 4_000, True),
    ],
)
def test_files_tell_whether_a_log_may_have_records_since_a_moment(
    tmp_path: Path, files: list[tuple[int, list[int | None]]], since: int, found: bool
) -> None:
    log = create_log(tmp_path)
    for run, moments in files:
        append_file(log.path, run, moments)
    assert topic_log.may_have_records_since(log, NOON + since, 2) == found


def test_files_without_statistics_may_have_any_records(tmp_path: Path) -> None:
    log = create_log(tmp_path)
    DeltaTable(log.path).alter.set_table_properties({tables.STATISTICS: "run"})
    append_file(log.path, 1, [0])
    assert topic_log.may_have_records_since(log, NOON + 10**9, 2)
