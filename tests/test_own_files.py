"""A table's folder has its own files: links, pipes, paths that lead out of it, and logs that are bombs are refused."""

from __future__ import annotations

import json
import os
import struct
import time
from base64 import b85encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.airflow.pages import reading_limits
from hindcast.common.errors import PlatformError, TableError
from hindcast.ops import maintenance
from hindcast.query import key_history
from hindcast.store import (
    arrow_reader,
    deletion_vectors,
    delta_log,
    duckdb_reader,
    log_limits,
    own_files,
    own_tables,
    pinning,
    row_reader,
    table_cache,
    table_creation,
    tables,
)
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


def link_file(table: Table, name: str = "x.parquet", path: str = "x.parquet") -> None:
    Path(table.path, name).symlink_to("../../theirs/secret.parquet")
    add_path(table, path)


def link_folder(table: Table, name: str = "x") -> None:
    Path(table.path, name).symlink_to("../../theirs")
    add_path(table, f"{name}/secret.parquet")


def name_pipe(table: Table) -> None:
    os.mkfifo(Path(table.path, "x.parquet"))
    add_path(table, "x.parquet")


ODD_FILES: dict[str, Callable[[Table], None]] = {
    "a path": lambda table: add_path(table, "../../theirs/secret.parquet"),
    "an escaped path": lambda table: add_path(table, "..%2F..%2Ftheirs/secret.parquet"),
    "a path from a folder": lambda table: add_path(table, "x/../../../theirs/secret.parquet"),
    "a path escaped twice": lambda table: add_path(table, "%252e%252e/%252e%252e/theirs/secret.parquet"),
    "an absolute path": lambda table: add_path(table, f"{table.warehouse}/theirs/secret.parquet"),
    "a URI": lambda table: add_path(table, f"file://{table.warehouse}/theirs/secret.parquet"),
    "a linked folder with a colon": lambda table: link_folder(table, "a:b"),
    "a link that is escaped twice": lambda table: link_file(table, "a%41.parquet", "a%252541.parquet"),
    "a link": link_file,
    "a linked folder": link_folder,
    "a pipe": name_pipe,
}


REFUSED = r"out of its folder|is a link|a link or a pipe"


def register_rows(opened: DeltaTable) -> None:
    """Register a table's rows with an engine that can open any file."""
    with duckdb_reader.open_engine() as engine:
        duckdb_reader.register_rows(engine, opened)


@pytest.mark.parametrize("odd", ODD_FILES)
def test_files_of_others_are_not_read(table: Table, odd: str) -> None:
    """By no reader, whether it opens the table or is given it."""
    ODD_FILES[odd](table)
    opened = DeltaTable(table.path)
    for read in (row_reader.open_dataset, arrow_reader.read_rows, row_reader.open_arrow_rows, register_rows):
        with pytest.raises(TableError, match=REFUSED):
            read(opened)
    for open_table in (tables.open_table, tables.open_latest):
        with pytest.raises(TableError, match=REFUSED):
            open_table(table)


TWICE: dict[str, Callable[[str], str]] = {
    "a dot": lambda path: f"./{path}",
    "a dot within": lambda path: path.replace("/", "/./"),
    "two slashes": lambda path: path.replace("/", "//"),
    "a slash at the end": lambda path: f"{path}/",
    "an escaped letter": lambda path: path.replace("part-", "%70art-"),
    "an escaped slash": lambda path: path.replace("/", "%2F"),
    "an escaped dot": lambda path: f"%2e/{path}",
}


@pytest.mark.parametrize("spell", TWICE.values(), ids=TWICE)
def test_a_file_that_the_log_names_twice_is_refused(tmp_path: Path, spell: Callable[[str], str]) -> None:
    """Its rows would count twice. A path may have escapes: those of a partition's value."""
    own = Table(str(tmp_path), "mine", "runs", "runs")
    rows, names = pa.table({"n": [1, 2], "p": ["a b:%/.", "a"]}), {"name": "mine.runs", "description": own.description}
    write_deltalake(own.path, rows, partition_by="p", **names)
    opened = tables.open_latest(own)
    assert opened is not None
    own_tables.open_whole(own.path)
    paths = pa.table(opened.get_add_actions()).column("path").to_pylist()
    add_path(own, spell(next(it for it in paths if "%" in it)))
    for open_table in (tables.open_latest, tables.open_table, lambda it: own_tables.open_whole(it.path)):
        with pytest.raises(TableError, match="its log names a file twice"):
            open_table(own)


def test_spark_reads_no_files_of_others(spark: SparkSession, table: Table) -> None:
    add_path(table, "../../theirs/secret.parquet")
    with pytest.raises(TableError, match=REFUSED):
        row_reader.load_stored_rows(spark, table)
    with pytest.raises(TableError, match=REFUSED):
        row_reader.load_stored_rows(spark, table, DeltaTable(table.path))


def test_rows_with_moments_in_them_are_read_from_own_files(tmp_path: Path) -> None:
    """Also where some are marked, which delta-rs would read without a check."""
    rows = pa.table({"n": [1], "s": pa.array([{"at": datetime(2026, 1, 1, tzinfo=UTC)}])})
    for configuration in ({}, {tables.DELETION_VECTORS: "false"}):
        own = Table(str(tmp_path), "mine", f"runs{len(configuration)}", "runs")
        write_deltalake(own.path, rows, configuration=configuration)
        with duckdb_reader.open_engine() as engine:
            duckdb_reader.register_rows(engine, DeltaTable(own.path))
            assert engine.execute("SELECT count(*) FROM rows").fetchall() == [(1,)]
        name_pipe(own)
        with pytest.raises(TableError, match=REFUSED):
            register_rows(DeltaTable(own.path))


def test_a_link_made_after_a_table_was_opened_is_found(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the table is kept open; folders in which nothing has changed are listed once."""
    monkeypatch.setattr(own_files, "_SETTLED", -1 << 62)  # the test has just changed them
    opened, listed = tables.open_table(table), list[str]()
    assert opened is not None
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or scan(path))
    assert tables.open_table(table) is opened
    assert listed == []
    (own,) = Path(table.path).glob("*.parquet")
    own.unlink()
    own.symlink_to(tmp_path / "theirs" / "secret.parquet")
    with pytest.raises(TableError, match=REFUSED):
        tables.open_table(table)
    with pinning.pin_versions(lambda: None), pytest.raises(TableError, match=REFUSED):
        tables.open_table(table)
    assert listed
    assert {*listed} == {table.path}


class UnknownEntry:
    """An entry of a listing that does not tell kinds: like one that is gone by now, it is neither file nor folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = str(path), path.name

    def is_dir(self, **_: bool) -> bool:
        return False

    is_file = is_dir


def list_entries(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Have the next listings give unknown entries."""
    monkeypatch.setattr(os, "scandir", lambda _: nullcontext(map(UnknownEntry, paths)))


def test_a_file_that_was_removed_while_its_folder_was_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "again.parquet").touch()
    os.mkfifo(tmp_path / "pipe")
    list_entries(monkeypatch, tmp_path / "removed.parquet", tmp_path / "again.parquet")
    own_files.refuse_odd_files(tmp_path)
    list_entries(monkeypatch, tmp_path / "removed.parquet", tmp_path / "pipe")
    with pytest.raises(TableError, match=f"{tmp_path}/pipe"):
        own_files.refuse_odd_files(tmp_path)


def test_a_table_has_only_so_many_folders(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder or in many; of those in one only so many are listed."""
    monkeypatch.setattr(own_files, "MAX_FOLDERS", 20)
    for n in range(5):
        Path(table.path, f"a{n}", "b", "c").mkdir(parents=True)
    assert tables.open_table(table) is not None
    for n in range(5):
        Path(table.path, f"d{n}").mkdir()
    for open_table in (tables.open_table, tables.open_latest):
        with pytest.raises(TableError, match="has more than 20 folders: no table has so many"):
            open_table(table)
    for n in range(100):
        Path(table.path, f"e{n}").mkdir()
    assert len(own_files._list_folders(table.path)) == 21


def test_listing_folders_counts_as_opening_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a table that is kept open, if something in its folders has changed."""
    taken = list[str]()

    @contextmanager
    def watch(_: str) -> Iterator[None]:
        taken.append("listed")
        yield

    with table_cache.watch_opening(watch):
        tables.open_table(table)
        assert len(taken) == 3, "it was opened, and after that its folder and that of its log listed"
        monkeypatch.setattr(own_files, "_SETTLED", -1 << 62)  # the test has just changed them
        for _ in range(2):
            tables.open_table(table)
            assert len(taken) == 5, "nothing has changed"
        Path(table.path, "x").mkdir()
        tables.open_table(table)
        assert len(taken) == 7, "its folder, and the new one"


def test_folders_that_no_path_names_are_told(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all that opens a table, or looks for links in it."""
    monkeypatch.chdir(table.path)
    for _ in range(40):
        Path("d" * 200).mkdir()
        os.chdir("d" * 200)
    os.chdir("/")
    places = (Path(table.path), own_files.refuse_odd_files), (Path(table.path), own_files.refuse_links)
    for place, read in (*places, (table.path, own_tables.open_whole), (table, tables.open_latest)):
        with pytest.raises(TableError, match="nested deeper than a path can name"):
            read(place)  # type: ignore[operator]


def test_what_an_engine_may_not_open_is_explained(table: Table, tmp_path: Path) -> None:
    """As a file that became a link in the moment after the check."""
    opened = DeltaTable(table.path)
    with (
        pytest.raises(TableError, match="a data file cannot be read: Permission"),
        row_reader.refuse_broken_files(table),
        duckdb_reader.open_engine(opened) as engine,
    ):
        engine.execute(f"SELECT * FROM read_parquet('{tmp_path}/theirs/secret.parquet')")


def link_log(log: Path) -> None:
    (log / "zz").symlink_to("/usr")


def list_texts(*texts: str) -> pa.Table:
    """Return the rows of a checkpoint with texts in them."""
    return pa.table({"txn": [{"appId": text} for text in texts]})


def write_checkpoint(log: Path, name: str = f"{1:020}.checkpoint.parquet", rows: pa.Table | None = None) -> None:
    """Write a checkpoint with one text of 70 MB, or others."""
    (log / name).parent.mkdir(exist_ok=True)
    rows = rows or list_texts("x" * (70 << 20))
    pq.write_table(rows, log / name, compression="zstd", row_group_size=100_000 if rows.num_rows > 1000 else 500)


def write_long_checkpoint(log: Path) -> None:
    write_checkpoint(log, rows=list_texts(*["x"] * 200_000))


def hide_checkpoint(log: Path) -> None:
    """Write a packed checkpoint, and others whose names come after it, none of which is read."""
    write_checkpoint(log)
    few = list_texts("x")
    write_checkpoint(log, f"{9 * 10**18 - 1:020}.checkpoint.{uuid4()}.parquet", few)
    write_checkpoint(log, f"{10**18:020}.checkpoint.parquet", few)


def write_parts(log: Path) -> None:
    """Write a checkpoint of three parts, each of which is just small enough."""
    rows = list_texts("x" * (30 << 20))
    for n in range(3):
        write_checkpoint(log, f"{1:020}.checkpoint.{n + 1:010}.{3:010}.parquet", rows)


def write_repeated_texts(log: Path) -> None:
    """Write a checkpoint with a text of 300 kB that is stored once for 1,000 rows, in a list of a struct."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), ["x" * 300_000])
    lists = pa.ListArray.from_arrays(pa.array(range(1001), pa.int32()), texts)
    write_checkpoint(log, rows=pa.table({"add": pa.StructArray.from_arrays([lists], ["texts"])}))


def write_many_values(log: Path) -> None:
    """Write a checkpoint with two million numbers in a row."""
    lists = pa.ListArray.from_arrays([0, 2_000_000], pa.nulls(2_000_000, pa.int8()))
    write_checkpoint(log, rows=pa.table({"numbers": lists}))


def stretch(path: Path, size: int) -> None:
    """Make a file as long, without content."""
    path.touch()
    os.truncate(path, size)


def claim_footer(log: Path) -> None:
    path = log / f"{1:020}.checkpoint.parquet"
    stretch(path, 1 << 30)
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write((900 << 20).to_bytes(4, "little") + b"PAR1")


ODD_LOGS: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda log: os.mkfifo(log / "_last_checkpoint"),
    "a link": link_log,
    "a large hint": lambda log: stretch(log / "_last_checkpoint", 1 << 30),
    "a large checksum": lambda log: stretch(log / f"{1:020}.crc", 100 << 30),
    "a large commit": lambda log: stretch(log / f"{1:020}.json", 100 << 30),
    "a packed checkpoint": write_checkpoint,
    "a hidden checkpoint": hide_checkpoint,
    "packed parts": write_parts,
    "a sidecar": lambda log: write_checkpoint(log, "_sidecars/x.parquet"),
    "a long checkpoint": write_long_checkpoint,
    "repeated texts": write_repeated_texts,
    "many values": write_many_values,
    "a large footer": claim_footer,
}


@pytest.mark.parametrize("odd", ODD_LOGS)
def test_a_log_that_would_hang_or_fill_the_memory_is_refused(table: Table, odd: str) -> None:
    ODD_LOGS[odd](Path(table.path, "_delta_log"))
    with pytest.raises(TableError, match=r"a link or a pipe|too large|many times the memory"):
        tables.open_latest(table)


def test_a_log_folder_is_no_link(table: Table, tmp_path: Path) -> None:
    log = Path(table.path, "_delta_log")
    log.rename(tmp_path / "log")
    log.symlink_to(tmp_path / "log")
    with pytest.raises(TableError, match="a link or a pipe"):
        tables.open_latest(table)


def test_a_usual_checkpoint_is_not_refused(tmp_path: Path) -> None:
    """Of many files, with names of their own and texts that are often the same."""
    n = 5_000
    add = {
        "path": [f"_belief=open/part-{uuid4()}.parquet" for _ in range(n)],
        "partitionValues": pa.array([[("_belief", "open")]] * n, pa.map_(pa.string(), pa.string())),
        "stats": [json.dumps({"numRecords": i, "minValues": {"n": i}, "maxValues": {"n": i}}) for i in range(n)],
    }
    pq.write_table(pa.table({"add": pa.table(add).to_struct_array()}), tmp_path / f"{1:020}.checkpoint.parquet")
    (tmp_path / f"{1:020}.json").touch()
    log_limits.refuse_odd_content(tmp_path)


def test_a_slow_refusal_is_kept(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the log's folder changes, or for a while; and its time counts."""
    monkeypatch.setattr(table_cache, "SLOW_SECONDS", 0)
    stretch(Path(table.path, "_delta_log", f"{1:020}.crc"), 1 << 30)
    opened, taken = list[Path](), list[str]()

    @contextmanager
    def watch(_: str) -> Iterator[None]:
        taken.append("before")
        try:
            yield
        finally:
            taken.append("after")

    refuse = own_files.refuse_odd_log
    monkeypatch.setattr(own_files, "refuse_odd_log", lambda folder: opened.append(folder) or refuse(folder))
    for _ in range(2):
        with pytest.raises(TableError, match="too large for what it is"), table_cache.watch_opening(watch):
            tables.open_table(table)
    assert len(opened) == 1
    assert taken == ["before", "after"]
    monkeypatch.setattr(table_cache, "REFUSED_SECONDS", 0)
    table_cache._REFUSED.clear()
    for _ in range(2):
        with pytest.raises(TableError, match="too large for what it is"):
            tables.open_table(table)
    assert len(opened) == 3
    monkeypatch.setattr(table_cache, "REFUSED_SECONDS", 99)
    with pytest.raises(TableError, match="too large for what it is"):
        tables.open_table(table)
    Path(table.path, "_delta_log", f"{1:020}.crc").unlink()
    assert tables.open_table(table) is not None


def test_opening_counts_as_time_of_the_overview(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where a table is opened; one that is kept open is shown."""
    monkeypatch.setattr(reading_limits, "_SLOW", {})
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    monkeypatch.setattr(reading_limits, "OPENING_SECONDS", 0.01)

    def open_slowly() -> None:
        time.sleep(0.02)

    for _ in range(2):
        table_cache.open_cached("/nowhere", open_slowly)
    with reading_limits.limit_page(5) as page, reading_limits.limit_opening("mine"):
        table_cache.open_cached("/nowhere", open_slowly)
        assert page.spent >= reading_limits.measure_lately("mine") >= 0.02
        with pytest.raises(PlatformError, match="opening their table took more than"):
            table_cache.open_cached("/nowhere", open_slowly)
    with reading_limits.limit_opening("mine"):
        pass
    with reading_limits.limit_opening("theirs"):
        table_cache.open_cached("/nowhere", open_slowly)


def test_a_page_that_has_taken_long_enough_opens_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a pipeline of which nothing was opened lately. One that is under way ends."""
    monkeypatch.setattr(reading_limits, "_SLOW", {})
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    opened = list[str]()
    with reading_limits.limit_page(0.01) as page:
        for name in ("first", "second", "third"):
            with reading_limits.limit_opening(name), suppress(PlatformError):
                table_cache.open_cached("/nowhere", lambda name=name: opened.append(name) or time.sleep(0.02))
        assert opened == ["first"]
        with reading_limits.limit_opening("fourth"), pytest.raises(PlatformError, match="has taken long enough"):
            table_cache.open_cached("/nowhere", list)
        assert page.is_spent
    with reading_limits.limit_page(5), reading_limits.limit_opening("second"):
        table_cache.open_cached("/nowhere", lambda: opened.append("second"))
    assert opened == ["first", "second"]


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


def read_by_engine(opened: DeltaTable) -> object:
    with duckdb_reader.open_engine(opened) as engine:
        duckdb_reader.register_rows(engine, opened)
        return engine.execute("SELECT * FROM rows").fetchall()


@pytest.mark.parametrize("read", [lambda it: arrow_reader.read_rows(it).read_all(), read_by_engine])
@pytest.mark.parametrize("is_rewritten", [True, False])
def test_a_file_that_was_removed_since_the_table_was_opened_is_no_damage(
    table: Table, read: Callable[[DeltaTable], object], is_rewritten: bool
) -> None:
    opened = DeltaTable(table.path)
    (file,) = Path(table.path).glob("*.parquet")
    write_deltalake(table.path, pa.table({"n": [2]}), mode="overwrite" if is_rewritten else "append")
    file.unlink()
    with pytest.raises(TableError, match=file.name) as refused, row_reader.refuse_broken_files(table):
        read(opened)
    assert refused.value.fix.startswith("repeat this: " if is_rewritten else "hindcast verify mine --quick ")
    assert refused.value.found.startswith("a data file was removed before" if is_rewritten else "a data file cannot be")


def mark_rows(table: Table, marked: BitMap64, copies: int = 0, **descriptor: object) -> DeltaTable:
    """Have a vector mark rows of the table's file, which has ten, and of more files that the log names."""
    write_deltalake(table.path, pa.table({"n": range(10)}), mode="overwrite")
    log, (path,) = Path(table.path, "_delta_log"), delta_log.list_paths(DeltaTable(table.path))
    data = struct.pack("<i", deletion_vectors._MAGIC) + marked.serialize()
    data += bytes(-len(data) % 4)
    text = b85encode(data).decode().translate(deletion_vectors._FROM_B85)
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(marked)}
    vector |= descriptor
    add = {"partitionValues": {}, "size": 9, "modificationTime": 0, "dataChange": True, "deletionVector": vector}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    first = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    metadata = next(action for action in first if "metaData" in action)
    metadata["metaData"]["configuration"][tables.DELETION_VECTORS] = "true"
    names = [(path, ""), *((f"{n}.parquet", '{"numRecords": 1000000000}') for n in range(copies))]
    removed = {"path": path, "deletionTimestamp": 0, "dataChange": True}
    actions: list[object] = [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}, metadata]
    actions += [{"remove": removed}, *({"add": {**add, "path": it, "stats": stats or None}} for it, stats in names)]
    next_version = DeltaTable(table.path).version() + 1
    (log / f"{next_version:020}.json").write_text("\n".join(map(json.dumps, actions)), encoding="utf-8")
    return DeltaTable(table.path)


@pytest.mark.parametrize(("marked", "count"), [([0, 9], 8), ([], 10)])
def test_the_rows_that_a_vector_marks_are_left_out(table: Table, marked: list[int], count: int) -> None:
    opened = mark_rows(table, BitMap64(marked))
    assert arrow_reader.read_rows(opened).read_all().num_rows == count
    with duckdb_reader.open_engine(opened) as engine:
        duckdb_reader.register_rows(engine, opened)
        assert engine.execute("SELECT count(*) FROM rows").fetchall() == [(count,)]


@pytest.mark.parametrize(
    ("marked", "copies", "descriptor", "problem"),
    [
        (range(11), 0, {}, "it marks row 10, of 10 rows"),
        (range(10**15, 10**15 + 1), 0, {}, "it marks row"),
        (range(10), 3, {}, "with those before it, it marks more than 25 rows"),
        (range(1), 0, {"sizeInBytes": 10**9}, "it has 1,000,000,000 bytes"),
        (range(2), 0, {"cardinality": 3}, "it marks 2 rows, not 3 as the log says"),
        (range(1), 0, {"sizeInBytes": 4}, "a deletion vector cannot be read"),
        (range(1), 0, {"sizeInBytes": 1000}, "it has [0-9]+ bytes, not 1,000 as the log says"),
        (range(1), 0, {"storageType": "p", "pathOrInlineDv": "/dev/zero"}, "it is at an absolute path"),
        (range(1), 0, {"storageType": "u", "pathOrInlineDv": "../x" + "0" * 20}, "out of its folder"),
    ],
)
def test_a_vector_that_is_damaged_or_would_fill_the_memory_is_refused(
    table: Table,
    monkeypatch: pytest.MonkeyPatch,
    marked: range,
    copies: int,
    descriptor: dict[str, object],
    problem: str,
) -> None:
    monkeypatch.setattr(deletion_vectors, "_MAX_MARKED", 25)
    opened = mark_rows(table, BitMap64(marked), copies, **descriptor)
    for read in (arrow_reader.read_rows, register_rows):
        with pytest.raises(TableError, match=problem):
            read(opened)


@pytest.mark.parametrize("change", ["a flipped bit", "half of it", "offset", "sizeInBytes"])
def test_a_damaged_file_of_vectors_is_refused(table: Table, change: str) -> None:
    """Wherever the damage is: in a vector's length, its bytes or its checksum; or in what the log says of its place."""
    opened = mark_rows(table, BitMap64())
    (path,) = delta_log.list_paths(opened)
    rows = np.arange(0, 10, 3, dtype=np.uint64)
    vector = deletion_vectors.write_deletion_vectors(delta_log.open_filesystem(opened), {path: rows})[path]
    (file,) = Path(table.path).glob("deletion_vector_*.bin")
    whole = file.read_bytes()
    damaged = {
        "a flipped bit": [(whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :], {}) for n in range(1, len(whole))],
        "half of it": [(whole[: len(whole) // 2], {})],
        "offset": [(whole, {"offset": it}) for it in (-1, 0, 2, len(whole), 2**31 - 1)],
        "sizeInBytes": [(whole, {"sizeInBytes": it}) for it in (0, 4, len(whole) - 10, len(whole))],
    }
    assert arrow_reader.read_rows(mark_rows(table, BitMap64(), **vector)).read_all().num_rows == 10 - len(rows)
    for data, said in damaged[change]:
        file.write_bytes(data)
        with pytest.raises(TableError, match="a deletion vector cannot be read"):
            arrow_reader.read_rows(mark_rows(table, BitMap64(), **(vector | said)))


def test_a_pipe_with_vectors_is_refused(table: Table) -> None:
    """Where the log has its name, with a folder."""
    name = UUID(int=7)
    text = "ab" + b85encode(name.bytes).decode().translate(deletion_vectors._FROM_B85)
    opened = mark_rows(table, BitMap64(), storageType="u", pathOrInlineDv=text, offset=1)
    (Path(table.path) / "ab").mkdir()
    os.mkfifo(Path(table.path) / "ab" / f"deletion_vector_{name}.bin")
    for read in (arrow_reader.read_rows, register_rows):
        with pytest.raises(TableError, match="a link or a pipe"):
            read(opened)


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
