"""A table's folder has its own files: links, pipes, paths that lead out of it, and logs that are bombs are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.common.errors import TableError
from hindcast.ops import maintenance
from hindcast.query import key_history
from hindcast.store import arrow_reader, deletion_vectors, own_files, row_reader, table_creation, tables
from hindcast.store.folder import WarehouseFolder
from hindcast.store.tables import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of one file, beside another's."""
    own = Table(str(tmp_path), "mine", "runs", "runs")
    table_creation.ensure_table(own, StructType([StructField("n", LongType())]))
    write_deltalake(own.path, pa.table({"n": [1]}), mode="append")
    (tmp_path / "theirs").mkdir()
    pq.write_table(pa.table({"n": [99]}), tmp_path / "theirs" / "secret.parquet")
    return own


def add_path(table: Table, path: str) -> None:
    """Add a file to a table's log, whatever its path."""
    version = DeltaTable(table.path).version() + 1
    add = {"path": path, "partitionValues": {}, "size": 400, "modificationTime": 0, "dataChange": True, "stats": "{}"}
    Path(table.path, "_delta_log", f"{version:020}.json").write_text(json.dumps({"add": add}), encoding="utf-8")


def link_file(table: Table) -> None:
    Path(table.path, "x.parquet").symlink_to("../../theirs/secret.parquet")
    add_path(table, "x.parquet")


def link_folder(table: Table) -> None:
    Path(table.path, "x").symlink_to("../../theirs")
    add_path(table, "x/secret.parquet")


def name_pipe(table: Table) -> None:
    os.mkfifo(Path(table.path, "x.parquet"))
    add_path(table, "x.parquet")


ODD_FILES: dict[str, Callable[[Table], None]] = {
    "a path": lambda table: add_path(table, "../../theirs/secret.parquet"),
    "an escaped path": lambda table: add_path(table, "..%2F..%2Ftheirs/secret.parquet"),
    "a path from a folder": lambda table: add_path(table, "x/../../../theirs/secret.parquet"),
    "a link": link_file,
    "a linked folder": link_folder,
    "a pipe": name_pipe,
}


@pytest.mark.parametrize("odd", ODD_FILES)
def test_files_of_others_are_not_read(table: Table, odd: str) -> None:
    ODD_FILES[odd](table)
    opened = DeltaTable(table.path)
    with pytest.raises(TableError, match=r"out of its folder|is a link|a link or a pipe"):
        row_reader.open_dataset(opened)
    with pytest.raises(TableError, match=r"out of its folder|is a link|a link or a pipe"):
        arrow_reader.read_rows(opened).read_all()


def link_log(log: Path) -> None:
    (log / "zz").symlink_to("/usr")


def write_packed_checkpoint(log: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * (100 << 20)]}), log / f"{9:020}.checkpoint.parquet", compression="zstd")


def write_long_checkpoint(log: Path) -> None:
    pq.write_table(pa.table({"text": ["x"] * 200_000}), log / f"{9:020}.checkpoint.parquet")


ODD_LOGS: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda log: os.mkfifo(log / "_last_checkpoint"),
    "a link": link_log,
    "a large hint": lambda log: os.truncate(os.open(log / "_last_checkpoint", os.O_CREAT | os.O_RDWR), 1 << 30),
    "a packed checkpoint": write_packed_checkpoint,
    "a long checkpoint": write_long_checkpoint,
}


@pytest.mark.parametrize("odd", ODD_LOGS)
def test_a_log_that_would_hang_or_fill_the_memory_is_refused(table: Table, odd: str) -> None:
    ODD_LOGS[odd](Path(table.path, "_delta_log"))
    with pytest.raises(TableError, match=r"a link or a pipe|too large|many times the memory"):
        tables.open_latest(table)


def test_a_table_may_be_a_link_to_another_disk(table: Table, tmp_path: Path) -> None:
    Path(table.path).rename(tmp_path / "disk")
    Path(table.path).symlink_to(tmp_path / "disk")
    opened = DeltaTable(table.path)
    assert row_reader.open_dataset(opened).to_table().num_rows == 1
    assert arrow_reader.read_rows(opened).read_all().num_rows == 1
    assert WarehouseFolder(f"{tmp_path}/mine").find_links_to(str(tmp_path / "theirs")) == {}


def test_no_link_within_a_table_is_followed_by_what_removes_files(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    """By a vacuum, and by a forgetting, wherever it leads."""
    (Path(table.path) / "x").symlink_to(tmp_path / "theirs")
    with pytest.raises(TableError, match=f"is a link to {tmp_path / 'theirs'}"):
        own_files.refuse_links(Path(table.path))
    with pytest.raises(TableError, match="is a link to"):
        maintenance._vacuum_table(spark, table, timedelta(hours=1))
    assert WarehouseFolder(f"{tmp_path}/mine").find_links_to("/nowhere") == {"runs/x": str(tmp_path / "theirs")}


def test_a_vector_with_more_rows_than_a_file_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_vectors, "_MAX_MARKED", 10)
    assert len(deletion_vectors.parse_vector(deletion_vectors.format_vector(np.arange(10, dtype=np.uint64)))) == 10
    with pytest.raises(ValueError, match="marks 11 rows of a file, more than 10"):
        deletion_vectors.parse_vector(deletion_vectors.format_vector(np.arange(11, dtype=np.uint64)))


def test_the_history_of_a_key_is_kept_for_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table whose log has the same id, version and key has a history of its own."""

    class Opened:
        def metadata(self) -> Opened:
            return self

        id = "the same"

        def version(self) -> int:
            return 1

    monkeypatch.setattr(tables, "open_table", lambda _: Opened())
    monkeypatch.setattr(key_history, "read_limited_rows", lambda table, *_: pa.table({"name": [table.pipeline]}))
    for pipeline in ("mine", "theirs"):
        history = key_history.read_history(Table(str(tmp_path), pipeline, "people", "versions"), ("1",))
        assert history.rows.to_pylist() == [{"name": pipeline}]
