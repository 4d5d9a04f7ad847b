"""Delta tables: whose they are, what form they have, and what a full disk does."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bare_runs import OUTCOMES
from hindcast.common.errors import PlatformError, TableError
from hindcast.plan import journal
from hindcast.store import commits, delta_rs_writer, duckdb_reader, file_listing, row_reader, table_creation, tables
from hindcast.store import files as files_
from hindcast.store.tables import Table
from pipelines import RESTAURANT, SEED, T0, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType([StructField("item", StringType()), StructField("price", IntegerType())])


def menu(folder: Path, *key: str) -> Table:
    return Table(str(folder), "restaurant", "menu", "versions", key or ("item",))


def test_a_table_is_made_once_and_then_found(tmp_path: Path) -> None:
    assert tables.open_table(menu(tmp_path)) is None
    assert tables.read_last_run(menu(tmp_path)) == 0
    assert table_creation.ensure_table(menu(tmp_path), SCHEMA).version() == 0
    assert table_creation.ensure_table(menu(tmp_path), SCHEMA).version() == 0
    assert tables.read_last_run(menu(tmp_path)) == 0


def test_delta_keeps_statistics_of_what_rows_are_found_by_and_of_nothing_else(tmp_path: Path) -> None:
    columns = ("item", StringType()), ("price", IntegerType()), ("validFrom", TimestampType())
    schema = StructType([StructField(name, kind) for name, kind in (*columns, ("systemTo", TimestampType()))])
    sought = (
        table_creation.ensure_table(menu(tmp_path), schema).metadata().configuration["delta.dataSkippingStatsColumns"]
    )
    assert sought == "item,validFrom,systemTo"
    keyed = StructType([StructField("item", BinaryType()), *schema.fields[1:]])
    other = Table(str(tmp_path), "restaurant", "drinks", "versions", ("item",))
    sought = table_creation.ensure_table(other, keyed).metadata().configuration["delta.dataSkippingStatsColumns"]
    assert sought == "validFrom,systemTo", "Delta cannot compare bytes"


def test_every_tenth_commit_is_followed_by_a_checkpoint_without_spark_too(tmp_path: Path) -> None:
    table = menu(tmp_path)
    table_creation.ensure_table(table, SCHEMA)
    for run in range(1, 12):
        assert delta_rs_writer.add_files([], table, run, {"run": run}, after=None)
    made = {path.name for path in Path(table.path, "_delta_log").glob("*.checkpoint.parquet")}
    assert made == {f"{9:020}.checkpoint.parquet"}
    assert tables.read_last_run(table) == 11


def test_no_thread_of_arrow_reads_local_files_through_python(tmp_path: Path) -> None:
    """It would abort a process that ends meanwhile: `hindcast query` did, a third of the time, on a busy machine."""
    table = Table(str(tmp_path / "with a space"), "restaurant", "menu", "log")
    rows = pa.table({"item": ["curry"], "price": [8]})
    write_deltalake(table.path, rows, name="restaurant.menu", description=table.description)
    found = tables.open_table(table)
    assert found is not None
    read = row_reader.open_dataset(found)
    assert isinstance(read.filesystem, SubTreeFileSystem)
    assert isinstance(read.filesystem.base_fs, LocalFileSystem)
    assert read.to_table() == rows


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_path_that_is_not_ours_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    a_file = tmp_path / "a" / "restaurant" / "menu"
    a_folder = tmp_path / "b" / "restaurant" / "menu"
    a_table = tmp_path / "c" / "restaurant" / "menu"
    another = tmp_path / "d" / "restaurant" / "menu"
    a_file.parent.mkdir(parents=True)
    a_file.write_text("x")
    a_folder.mkdir(parents=True)
    (a_folder / "x.txt").write_text("x")
    write_deltalake(str(a_table), pa.table({"item": ["x"], "price": [1]}), description="theirs")
    table_creation.ensure_table(Table(str(tmp_path / "d"), "restaurant", "drinks", "versions", ("item",)), SCHEMA)
    (tmp_path / "d" / "restaurant" / "drinks").rename(another)
    before = files(tmp_path)
    for path, found in (
        (a_file, "is a file, not a Delta table"),
        (a_folder, "is not a Delta table"),
        (a_table, "is a Delta table that Hindcast did not make"),
        (another, "is a Delta table that Hindcast did not make"),
    ):
        with pytest.raises(TableError, match=found) as caught:
            table_creation.ensure_table(menu(path.parents[1]), SCHEMA)
        assert caught.value.where == str(path)
        assert "set HINDCAST_WAREHOUSE to another folder" in caught.value.fix
    assert files(tmp_path) == before


def test_a_table_that_is_being_made_is_not_there_yet(tmp_path: Path) -> None:
    log = Path(menu(tmp_path).path) / "_delta_log"
    log.mkdir(parents=True)
    assert tables.open_table(menu(tmp_path)) is None
    (log / f"{0:020}.json#1").write_text("{", encoding="utf-8")  # as delta-rs writes what it then gives its name
    assert tables.open_table(menu(tmp_path)) is None
    (log / f"{5:020}.json").write_text("{", encoding="utf-8")
    with pytest.raises(TableError, match=r"is not a Delta table|cannot be read"):
        tables.open_table(menu(tmp_path))


def test_a_warehouse_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for place in ("/dev/null", str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        with pytest.raises(TableError, match="is not a folder, so it cannot contain a table") as refused:
            tables.open_table(Table(place, "restaurant", "runs", "runs"))
        assert refused.value.where == place.removesuffix("/below")


def test_a_warehouse_that_is_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    for place in ("loop", "dangling", "loop/below"):
        with pytest.raises(TableError, match="is a link to a place that does not exist"):
            tables.open_table(Table(str(tmp_path / place), "restaurant", "runs", "runs"))


def test_a_newer_store_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = tables.ENDED_RUNS_NUMBER + 1
    with monkeypatch.context() as patch:
        patch.setattr(tables, "FORMAT_NUMBER", newer)
        patch.setattr(tables, "ENDED_RUNS_NUMBER", newer)
        table_creation.ensure_table(menu(tmp_path), SCHEMA)
    with pytest.raises(TableError, match=f"has store format {newer}, this version knows up to {newer - 1}"):
        tables.open_table(menu(tmp_path))


@pytest.mark.parametrize(
    ("columns", "key", "told"),
    [
        ({"item": StringType(), "price": StringType()}, ("item",), "price changed from int to string"),
        ({"item": StringType(), "price": LongType(), "Item": LongType()}, ("item",), "item differs from Item only in"),
        ({"price": IntegerType()}, ("item",), "the key column item is missing"),
        ({"item": StringType(), "price": IntegerType()}, ("item", "price"), "the key was item"),
        ({"item": StringType(), "price": IntegerType()}, ("price",), "the key was item"),
    ],
)
def test_columns_and_keys_that_a_table_cannot_take_are_refused_with_both_schemas(
    tmp_path: Path, columns: dict[str, DataType], key: tuple[str, ...], told: str
) -> None:
    table_creation.ensure_table(menu(tmp_path), SCHEMA)
    wanted = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(TableError, match=f"cannot take its new columns: .*{told}") as caught:
        table_creation.ensure_table(menu(tmp_path, *key), wanted)
    assert "\n  the table: item string, price int\n  the contract: " in caught.value.found
    assert "another name" in caught.value.fix


def test_a_table_of_our_own_takes_new_columns_and_loses_none(tmp_path: Path) -> None:
    """Of those whose columns are ours: a newer Hindcast has more."""
    log = Table(str(tmp_path), "restaurant", "logs/menu", "log")
    newer = StructType([*SCHEMA.fields, StructField("recordTimestamp", TimestampType())])
    before = table_creation.ensure_table(log, SCHEMA)
    write_deltalake(before, pa.table({"item": ["curry"], "price": pa.array([8], pa.int32())}), mode="append")
    for _ in range(2):
        found = table_creation.ensure_table(log, newer)
    row = {"item": "curry", "price": 8, "recordTimestamp": None}
    assert row_reader.open_dataset(found).to_table().to_pylist() == [row]
    assert len(found.file_uris()) == 1
    assert [commit["operation"] for commit in found.history()][:2] == ["ADD COLUMN", "SET TBLPROPERTIES"]
    with duckdb_reader.open_engine() as engine:
        duckdb_reader.register_rows(engine, found)
        assert engine.sql("SELECT item, price, recordTimestamp FROM rows").to_arrow_table().to_pylist() == [row]
    assert table_creation.ensure_table(log, SCHEMA).schema() == found.schema(), "a log can do without it"
    other = Table(str(tmp_path), "restaurant", "logs/orders", "log")
    table_creation.ensure_table(other, newer)
    assert tables.EVOLUTION in table_creation.ensure_table(other, SCHEMA).metadata().configuration, "its files differ"
    gates = Table(str(tmp_path), "restaurant", "gates", "gates")
    table_creation.ensure_table(gates, newer)
    with pytest.raises(TableError, match="recordTimestamp is missing"):
        table_creation.ensure_table(gates, SCHEMA)
    with pytest.raises(TableError, match="price changed from int to bigint"):
        table_creation.ensure_table(
            log, StructType([StructField("item", StringType()), StructField("price", LongType())])
        )


def test_too_little_room_is_told_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100 << 20, 97 << 20, 3 << 20))
    with pytest.raises(TableError, match="the disk has only 3 MB left") as caught:
        table_creation.ensure_table(menu(tmp_path), SCHEMA)
    assert caught.value.where == menu(tmp_path).path
    assert files(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 80 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=80m", "none", str(folder)], check=False)
    if mounted.returncode != 0:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["/bin/umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_stops_the_run_and_the_retry_finishes_it(
    spark: SparkSession, broker: str, small_disk: Path
) -> None:
    only_menu = RESTAURANT.partition("  orders:")[0]
    with pipeline(spark, broker, small_disk, only_menu) as p:
        p.send("menu", *SEED["menu"])
        filler = small_disk / "filler"

        def fill() -> None:
            with filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * (1 << 16))

        with pytest.MonkeyPatch.context() as patch:
            real = commits.append_rows

            def full(*args: object, **kwargs: object) -> None:
                with pytest.raises(OSError, match="No space left"):
                    fill()
                real(*args, **kwargs)  # type: ignore[arg-type]

            patch.setattr(commits, "append_rows", full)
            with pytest.raises(PlatformError, match="the disk is full") as caught:
                p.run("first")
            assert caught.value.fix == "free some space, then repeat the command or task"  # of any kind: also abandon
            run = journal.read_runs(p.warehouse, p.name)[0]
            with pytest.raises(PlatformError, match="the disk is full"):
                journal.append_entry(p.warehouse, replace(run, outcome=OUTCOMES["stopped"]))
        assert p.raw("logs/menu") == []
        filler.unlink()
        p.run("first")
        assert p.states() == [(1, "completed")]
        assert p.believed("menu") == [("curry", 8.0, 0, 4), ("curry", 10.0, 4, None), ("soup", 5.0, 0, None)]


def test_a_believed_row_lies_open_or_past(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(T0, None), (T0, T0)], "validFrom timestamp, validTo timestamp")
    assert [r[0] for r in rows.select(tables.belief_column(menu(Path()))).collect()] == ["open", "past"]


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("name", ["plain", "a [b] {c,d} *"])
def test_a_small_table_is_read_by_its_files_as_delta_reads_it(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Also in a folder whose name is a pattern, after columns were added, and where there are no rows."""
    table = Table(str(tmp_path / name), "shop", "menu", "versions", ("item",))
    moments = [StructField(name, TimestampType()) for name in ("validFrom", "validTo", "systemFrom", "systemTo")]
    table_creation.ensure_table(table, StructType([*SCHEMA.fields, *moments, StructField("_belief", StringType())]))
    rows = pa.table({"item": ["curry", None, "a=b/c"], "price": pa.array([8, 9, None], pa.int32())})
    for field in moments:
        rows = rows.append_column(field.name, pa.array([T0, None, T0], pa.timestamp("us", "UTC")))

    def same(count: int) -> None:
        by_files, by_delta = row_reader.load_stored_rows(spark, table), spark.read.format("delta").load(table.path)
        assert by_files.schema == by_delta.schema
        assert sorted(map(str, by_files.collect())) == sorted(map(str, by_delta.collect()))
        assert by_files.count() == count

    same(0)
    found = DeltaTable(table.path)
    written = files_.write_files(found, [("open", rows.slice(0, 1)), ("past", rows.slice(1))])
    assert delta_rs_writer.add_files(list(written), table, 1, {"run": 1}, after=0)
    same(3)
    found.update_incremental()
    found.alter.add_columns([Field("cheap", PrimitiveType("boolean"))])
    same(3)
    assert file_listing.list_small_table_files(DeltaTable(table.path)) is not None
    found.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    assert file_listing.list_small_table_files(DeltaTable(table.path)) is None, "rows of its files may be gone"
    same(3)


@pytest.mark.parametrize("partitions", [[], ["_belief"]])
def test_a_table_with_files_in_folders_of_its_own_kind_is_delta_s_to_list(
    tmp_path: Path, partitions: list[str]
) -> None:
    """Spark takes a column from each folder `column=value`, and refuses two files that differ in them."""
    write_deltalake(tmp_path, pa.table({"n": [1], "_belief": ["open"]}), partition_by=partitions or None)
    (own,) = file_listing.list_small_table_files(DeltaTable(tmp_path)) or []
    assert (tmp_path / own).exists()
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    first, name = log.read_text(encoding="utf-8"), own.rpartition("/")[2]
    folders = ("", "_belief=open/", "Kp/_belief=open/", "_belief=open/n=1/", "Kp/", f"{tmp_path.as_uri()}/")
    listed = {}
    for folder in folders:
        log.write_text(first.replace(own, f"{folder}{name}"), encoding="utf-8")
        listed[folder] = file_listing.list_small_table_files(DeltaTable(tmp_path))
    expected = "_belief=open/" if partitions else ""
    assert listed == {folder: [own] if folder == expected else None for folder in folders}


def test_a_table_of_many_rows_or_files_is_delta_s_to_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(tmp_path, pa.table({"n": range(10_000)}))
    assert len(file_listing.list_small_table_files(DeltaTable(tmp_path)) or []) == 1
    write_deltalake(tmp_path, pa.table({"n": [1]}), mode="append")
    assert file_listing.list_small_table_files(DeltaTable(tmp_path)) is None
    monkeypatch.setattr(file_listing, "FEW_ROWS", 20_000)
    assert len(file_listing.list_small_table_files(DeltaTable(tmp_path)) or []) == 2
    monkeypatch.setattr(file_listing, "_MAX_FILES", 1)
    assert file_listing.list_small_table_files(DeltaTable(tmp_path)) is None
