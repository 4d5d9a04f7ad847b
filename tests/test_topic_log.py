"""What a log tells of records that may be hidden to new ones: by its files, their statistics and rows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import BinaryType, LongType, StructType, TimestampType

from hindcast.ingest import topic_log
from hindcast.store import file_listing, table_creation, tables
from hindcast.store.tables import ARROW_TIMESTAMP, Table
from pipelines import T0

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOON = int(T0.timestamp() * 1e6)


def create_log(place: Path) -> Table:
    log = tables.log_table(str(place), "shop", "menu")
    assert not topic_log.may_have_hidden_records(log, NOON, 2), "without a log"
    columns = StructType().add("run", LongType()).add("timestamp", TimestampType()).add("value", BinaryType())
    table_creation.ensure_table(log, columns)
    return log


def append_file(place: str, run: int, moments: Sequence[int | None], value: bytes | None = b"{}") -> None:
    """Add a file of records of a run, dated so many microseconds after noon."""
    count = len(moments)
    runs, values = pa.array([run] * count, pa.int64()), pa.array([value] * count, pa.binary())
    write_deltalake(place, pa.table({"run": runs, "timestamp": list_times(moments), "value": values}), mode="append")


def list_times(moments: Sequence[int | None]) -> pa.Array:
    return pa.array([None if it is None else T0 + timedelta(microseconds=it) for it in moments], ARROW_TIMESTAMP)


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
def test_files_tell_whether_a_log_may_have_hidden_records_a_moment(
    tmp_path: Path, files: list[tuple[int, list[int | None]]], since: int, found: bool
) -> None:
    log = create_log(tmp_path)
    for run, moments in files:
        append_file(log.path, run, moments)
    assert topic_log.may_have_hidden_records(log, NOON + since, 2) == found


def test_files_without_statistics_may_have_any_records(tmp_path: Path) -> None:
    log = create_log(tmp_path)
    DeltaTable(log.path).alter.set_table_properties({tables.STATISTICS: "run"})
    append_file(log.path, 1, [0])
    assert topic_log.may_have_hidden_records(log, NOON + 10**9, 2)


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([], False),
        ([(1, 4_000, None)], True),  # a tombstone
        ([(1, 3_999, None)], False),  # before all new records
        ([(3, 4_000, None)], False),  # of a later run
        ([(2, 4_001, b"{}")], False),
        ([(2, 6_000, b"{}")], True),  # a rival
        ([(3, 6_000, b"{}")], False),
        ([(1, None, None)], False),  # a gap
    ],
)
def test_rows_tell_whether_some_are_hidden_where_all_new_moments_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[tuple[int, int | None, bytes | None]], found: bool
) -> None:
    log = create_log(tmp_path)
    append_file(log.path, 1, [0, 5_000, 9_000])
    for run, moment, value in others:
        append_file(log.path, run, [moment], value)
    new = list_times([4_000, 6_000])
    assert topic_log.may_have_hidden_records(log, NOON + 4_000, 2, new) == found
    assert topic_log.may_have_hidden_records(log, NOON + 4_000, 2), "by files alone"
    monkeypatch.setattr(file_listing, "MAX_ROWS_HERE", 2)
    assert topic_log.may_have_hidden_records(log, NOON + 4_000, 2, new), "too many to look at"
