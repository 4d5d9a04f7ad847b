"""What a table's log may have of names, pages and bytes, so that a look at all of it takes little time."""

from __future__ import annotations

import json
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.airflow.pages import reading_limits
from hindcast.common.errors import TableError
from hindcast.common.processor_time import ExpiredError
from hindcast.store import log_forms, log_limits, parquet_pages, table_cache, tables
from hindcast.store.tables import Table
from test_parquet_footers import small_columns

INFO = json.dumps({"commitInfo": {"operation": "WRITE"}}) + "\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two commits."""
    for n in range(2):
        (tmp_path / f"{n:020}.json").write_text(INFO)
    return tmp_path


# Names

ID = "51dc52db-33de-41e7-9d81-e8b10bafef22"
ODD_NAMES = [
    f"{3:031}.checkpoint.{ID}.parquet",
    f"{1:019}.json",
    f"{1:021}.crc",
    f"{1:020}.checkpoint.x.parquet",
    f"{1:020}.checkpoint.{ID}.crc",
    f"{1:020}.checkpoint.1.1.parquet",
    f"{1:020}.{2:020}.compacted_json",
    f"{1:020}.{ID}.json",
    "99999999999999999999.json",
    f"{1 << 63:020}.crc",
    f"{0:020}.{1 << 63:020}.compacted.json",
    f"{1 << 63:020}.checkpoint.parquet",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_only_some_readers_take_for_a_part_of_the_log_is_refused(log: Path, name: str) -> None:
    (log / name).touch()
    with pytest.raises(TableError, match="has a name that Delta's log does not have"):
        log_limits.refuse_odd_content(log)


LEFT = [
    f".{1:020}.json.crc",
    f".{1:020}.json.{ID}.tmp",
    f"{1:020}.json.tmp",
    f"{1:020}.json#1",
    f"{1:020}.checkpoint.parquet#2",
    f".{1:020}.checkpoint.parquet.{ID}.tmp",
    f"_commit_{ID}.json.tmp",
    f"{1:020}.json._COPYING_",
    "_last_vacuum_info",
]


def test_what_writers_leave_behind_is_not_refused(log: Path) -> None:
    """Nor all that Delta's log has, by their names."""
    for name in LEFT:
        (log / name).touch()
    (log / f"{0:020}.{1:020}.compacted.json").write_text(INFO)
    (log / f"{2**62:020}.json").write_text(INFO)
    (log / f"{1:020}.crc").write_text("{}")
    (log / f"{1:020}.checkpoint.{ID}.json").write_text(INFO)
    for name in (f"{1:020}.checkpoint.{ID}.parquet", f"{1:020}.checkpoint.{1:010}.{1:010}.parquet"):
        pq.write_table(pa.table({"txn": [{"appId": "x"}]}), log / name)
    for name in ("_sidecars", "_commits", "_staged_commits"):
        (log / name).mkdir()
    (log / "_commits" / f"{2:020}.{ID}.json").write_text(INFO)
    log_limits.refuse_odd_content(log)


# Footers


@pytest.mark.parametrize(("groups", "columns"), [(5, 1_000_000), (1, 30_000)])
def test_a_checkpoint_of_tiny_columns_is_refused_in_little_memory(log: Path, groups: int, columns: int) -> None:
    """Each of its columns has three bytes, which take hundreds in memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (path := log / f"{1:020}.checkpoint.parquet").write_bytes(small_columns(groups, columns))
    with pytest.raises(TableError, match=r"takes many times the memory of its size|is no checkpoint") as refused:
        log_limits.refuse_odd_content(log)
    assert refused.value.where == str(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_checkpoint_of_a_wide_table_is_read(tmp_path: Path) -> None:
    """Also one with the statistics of all columns in columns of their own: more than 1 MiB of a footer."""
    write_deltalake(tmp_path, pa.table({f"column_{n}": [n] for n in range(5_000)}))
    DeltaTable(tmp_path).create_checkpoint()
    log_limits.refuse_odd_content(tmp_path / "_delta_log")
    names = ("minValues", "maxValues", "nullCount")
    statistics = {name: {f"column_{n}": n for n in range(2_000)} for name in names}
    add = {"path": "x.parquet", "size": 1, "modificationTime": 1, "dataChange": True, "stats_parsed": statistics}
    path = tmp_path / "_delta_log" / f"{0:020}.checkpoint.parquet"
    pq.write_table(pa.Table.from_pylist([{"add": add}]), path)
    assert pq.read_metadata(path).serialized_size > 1 << 20
    log_limits.refuse_odd_content(tmp_path / "_delta_log")


# Pages


def build_header(*fields: bytes) -> bytes:
    """Build a page's header that has more fields after its kind, its sizes and what it says of its values."""
    return b"\x15\x00\x15\x00\x15\x00\x2c\x15\x00\x15\x00\x00" + b"".join(fields) + b"\x00"


def measure(data: bytes) -> parquet_pages.ColumnSizes:
    column = SimpleNamespace(has_dictionary_page=False, data_page_offset=0, total_compressed_size=len(data))
    return parquet_pages.measure_column(SimpleNamespace(read_at=lambda *_: data), column)  # type: ignore[arg-type]


def test_a_page_has_only_so_many_fields() -> None:
    """On one level or on several; a long text among them is passed over."""
    text = b"\x18\xff\xff\x0f" + bytes((1 << 18) - 1)
    assert measure(build_header(text)).pages == 1
    nested = b"\x1c" + b"\x11" * 12 + b"\x00"
    assert measure(build_header(nested, nested)).pages == 1
    for fields in ([b"\x11"] * 1000, [nested] * 3, [b"\x1c" * 5 + bytes(5)]):
        with pytest.raises(pa.ArrowInvalid, match=r"has more than 40 fields|has a field of kind 12"):
            measure(build_header(*fields))


def test_a_part_of_a_column_has_only_so_many_pages() -> None:
    page = build_header()
    assert measure(page * 20_000).pages == 20_000
    with pytest.raises(pa.ArrowInvalid, match="has 20,318 pages or more in 325,000 bytes"):
        measure(page * 25_000)


@pytest.mark.parametrize(("most", "is_read"), [(30, True), (10, False)])
def test_a_file_has_only_so_many_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, *, is_read: bool
) -> None:
    """In all parts of its columns, which have no more of those: here 20 parts, each with a page of texts or numbers
    that occur once, and one of where.
    """
    rows = pa.table({"txn": [{"appId": "x", "version": 1}] * 100})
    pq.write_table(rows, tmp_path / f"{0:020}.checkpoint.parquet", row_group_size=10)
    log_limits.refuse_odd_content(tmp_path)
    read, measure_column = list[int](), parquet_pages.measure_column
    monkeypatch.setattr(parquet_pages, "measure_column", lambda *it: read.append(0) or measure_column(*it))
    monkeypatch.setattr(parquet_pages, "_MANY_PAGES", most)
    monkeypatch.setattr(log_limits, "_FOUND", {})  # as in another process
    with pytest.raises(TableError, match=r"has \d\d pages or more"):
        log_limits.refuse_odd_content(tmp_path)
    assert bool(read) == is_read


# Bytes


def test_the_commits_since_the_last_checkpoint_have_only_so_many_bytes(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which none is read before that is known; those before the checkpoint do not count."""
    read = list[Path]()
    monkeypatch.setattr(log_forms, "refuse_odd_lines", lambda it, _: read.append(it))
    for n in range(2, 7):
        (log / f"{n:020}.json").touch()
        os.truncate(log / f"{n:020}.json", 250 << 20)
    with pytest.raises(TableError, match=r"has 1,\d+,\d+,\d+ bytes of commits and checksums since its last checkpoint"):
        log_limits.refuse_odd_content(log)
    assert read == []
    pq.write_table(pa.table({"txn": [{"appId": "x"}]}), log / f"{4:020}.checkpoint.parquet")
    log_limits.refuse_odd_content(log)
    assert len(read) == 3


def test_a_file_that_was_changed_lately_is_looked_at_again(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is changed through memory, which gives it a new time only once it was written to the disk."""
    path, moment = log / f"{1:020}.json", log.stat().st_ctime_ns
    line = json.dumps({"add": {"path": "aa/aa/x"}})
    path.write_text(line)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:1] = b"{"
        monkeypatch.setattr(log_limits.time, "time_ns", lambda: moment + 100_000_000_000)
        log_limits.refuse_odd_content(log)
        place = line.index("aa/aa")
        memory[place : place + 5] = b"../.."
        with pytest.raises(TableError, match="names a file out of its folder"):
            log_limits.refuse_odd_content(log)
    path.write_text(line)
    read, refuse = list[Path](), log_forms.refuse_odd_lines
    monkeypatch.setattr(log_forms, "refuse_odd_lines", lambda it, file: read.append(it) or refuse(it, file))
    monkeypatch.setattr(log_limits.time, "time_ns", lambda: moment + 200_000_000_000)
    for _ in range(2):
        log_limits.refuse_odd_content(log)
    assert len(read) == 2, "each once, though the page is loaded again"


def test_a_file_that_was_changed_lately_is_looked_at_once_for_each_content(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, refuse, path = list[str](), log_forms.refuse_odd_lines, log / f"{1:020}.json"
    monkeypatch.setattr(log_forms, "refuse_odd_lines", lambda it, file: read.append(it.name) or refuse(it, file))
    first, second = (json.dumps({"add": {"path": name}}) for name in ("a", "b"))
    for content in (first, first, second, second, first):
        path.write_text(content)
        log_limits.refuse_odd_content(log)
    assert sorted(read) == [f"{0:020}.json", path.name, path.name]


def test_a_large_file_that_was_changed_lately_is_looked_at_each_time(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes less time than reading it: a file can claim to be long and have no content."""
    read = list[str]()
    monkeypatch.setattr(log_forms, "refuse_odd_lines", lambda it, _: read.append(it.name))
    os.truncate(log / f"{1:020}.json", log_limits._MAX_HASHED + 1)
    for _ in range(2):
        log_limits.refuse_odd_content(log)
    assert sorted(read) == [f"{0:020}.json", f"{1:020}.json", f"{1:020}.json"]


def test_what_is_looked_at_is_what_is_remembered(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the file has other content while it is looked at, and its own again afterwards."""
    path, good, bad = log / f"{1:020}.json", *(json.dumps({"add": {"path": it}}) for it in ("aa/aa/x", "../../x"))
    refuse = log_forms.refuse_odd_lines

    def swap(it: Path, file: BinaryIO) -> None:
        if it == path:
            path.write_text(good)
        refuse(it, file)

    path.write_text(bad)
    monkeypatch.setattr(log_forms, "refuse_odd_lines", swap)
    with pytest.raises(TableError, match="names a file out of its folder"):
        log_limits.refuse_odd_content(log)


# Time


@pytest.mark.parametrize(("of_pipeline", "seconds", "most"), [(True, 5, 1.5), (False, 5, 5), (False, 0.1, 1.5)])
def test_a_page_opens_a_table_only_if_looking_at_its_log_takes_little_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, most: float, *, of_pipeline: bool
) -> None:
    """What took too long is refused again for a while, without a look; outside pages nothing is limited."""
    limits, read = list[float](), list[Path]()

    @contextmanager
    def limit(seconds: float) -> Iterator[None]:
        limits.append(seconds)
        yield

    def read_for_long(path: Path, _: BinaryIO) -> None:
        read.append(path)
        if limits:
            raise ExpiredError

    monkeypatch.setattr(reading_limits, "_SPENT", {})
    monkeypatch.setattr(reading_limits, "limit_processor_time", limit)
    monkeypatch.setattr(log_forms, "refuse_odd_lines", read_for_long)
    monkeypatch.setattr(table_cache, "SLOW_SECONDS", 0)
    table = Table(str(tmp_path), "mine", "runs", "runs")
    write_deltalake(table.path, pa.table({"n": [1]}), name="mine.runs", description=table.description)
    opening = reading_limits.limit_opening("mine") if of_pipeline else nullcontext()
    with reading_limits.limit_page(seconds), opening:
        for _ in range(2):
            with pytest.raises(TableError, match=f"its log takes more than {most} s of a processor"):
                tables.open_table(table)
    assert ({*limits}, len(read)) == ({most}, 1)
    limits.clear()
    table_cache._REFUSED.clear()
    assert tables.open_table(table) is not None
    assert (limits, len(read)) == ([], 2)
