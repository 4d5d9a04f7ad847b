"""A table's log is one that all its readers understand alike, of its own files, and of a size that nobody can hide."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.common.errors import TableError
from hindcast.ops import maintenance
from hindcast.plan import journal_rows
from hindcast.quality import gate_result_rows
from hindcast.store import commit_history, delta_log, log_limits, own_tables, parquet_pages, table_creation, tables
from hindcast.store.tables import Table

FOREIGN = "file:///theirs/secret.parquet"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of two files."""
    own = Table(str(tmp_path), "mine", "runs", "runs")
    table_creation.ensure_table(own, StructType([StructField("n", LongType())]))
    for n in range(2):
        write_deltalake(own.path, pa.table({"n": [n]}), mode="append")
    return own


def find_log(table: Table) -> Path:
    return Path(table.path, "_delta_log")


def build_add(path: str, **fields: object) -> str:
    entry = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True, **fields}
    return json.dumps({"add": entry})


def commit(table: Table, *lines: str, end: str = "\n") -> None:
    version = DeltaTable(table.path).version() + 1
    (find_log(table) / f"{version:020}.json").write_bytes("".join(it + end for it in lines).encode())


INFO = json.dumps({"commitInfo": {"operation": "WRITE"}})
OWN = build_add("x.parquet")
REMOVE = json.dumps({"remove": {"path": FOREIGN, "dataChange": True, "deletionTimestamp": 1}})


def write_manifest(table: Table, *sidecars: str) -> None:
    """Write a V2 checkpoint with some parts."""
    log, delta_table = find_log(table), DeltaTable(table.path)
    lines = [
        {"checkpointMetadata": {"version": delta_table.version()}},
        *({"sidecar": {"path": it}} for it in sidecars),
    ]
    name = f"{delta_table.version():020}.checkpoint.{uuid4()}.json"
    (log / name).write_text("\n".join(map(json.dumps, lines)))


def write_sidecar(table: Table, rows: pa.Table, name: str = "_sidecars/x") -> None:
    path = find_log(table) / name
    path.parent.mkdir(exist_ok=True)
    pq.write_table(rows, path)


def build_adds(path: str, name: str = "add", **fields: object) -> pa.Table:
    return pa.table({name: [{"path": path, **fields}]})


def hint(table: Table, **fields: object) -> None:
    (find_log(table) / "_last_checkpoint").write_text(json.dumps({"version": 1, "size": 1, **fields}))


def name_foreign_twice(table: Table) -> None:
    write_sidecar(table, pa.table({"add": [{"path": "x", "Path": FOREIGN}]}))


def write_no_part(table: Table) -> None:
    write_sidecar(table, build_adds("x"))
    (find_log(table) / "_sidecars/x").write_bytes(bytes(20))


VECTOR = {"storageType": "p", "pathOrInlineDv": "file:///theirs/x.bin", "sizeInBytes": 1, "cardinality": 1}
UP = {**VECTOR, "storageType": "u", "pathOrInlineDv": "../../theirs" + "x" * 20}

ODD_FORMS: dict[str, Callable[[Table], None]] = {
    "two objects in a line": lambda it: commit(it, f"{INFO} {REMOVE}"),
    "two actions in an object": lambda it: commit(it, f"{INFO[:-1]}, {REMOVE[1:]}"),
    "a path twice": lambda it: commit(it, OWN.replace('{"path"', f'{{"path": "{FOREIGN}", "path"')),
    "a path in another case": lambda it: commit(it, build_add("x.parquet", Path=FOREIGN)),
    "an action in another case": lambda it: commit(it, OWN.replace("add", "Add")),
    "an unknown action": lambda it: commit(it, OWN.replace("add", "ad")),
    "another end of lines": lambda it: commit(it, INFO, REMOVE, end="\r"),
    "many lines": lambda it: commit(it, *[""] * 1_000_001),
    "a byte-order mark": lambda it: commit(it, f"\ufeff{INFO}"),
    "quotes of another kind": lambda it: commit(it, OWN.replace('"', "'")),
    "no number": lambda it: commit(it, OWN.replace("true", "NaN")),
    "a path with a tab": lambda it: commit(it, build_add(".\t./x.parquet")),
    "a path that is split otherwise": lambda it: commit(it, build_add("x\\..\\..\\x.parquet")),
    "a path that is none": lambda it: commit(it, OWN.replace('"x.parquet"', "5")),
    "a vector elsewhere": lambda it: commit(it, build_add("x.parquet", deletionVector=VECTOR)),
    "a vector in a folder above": lambda it: commit(it, build_add("x.parquet", deletionVector=UP)),
    "a foreign change": lambda it: commit(it, OWN.replace("add", "cdc").replace("x.parquet", FOREIGN)),
    "a column in another case": lambda it: write_sidecar(it, build_adds("x", "ADD")),
    "a field in another case": name_foreign_twice,
    "a path that is spelled otherwise": lambda it: write_sidecar(it, pa.table({"add": [{"PATH": FOREIGN}]})),
    "no path": lambda it: write_sidecar(it, pa.table({"cdc": [{"size": 1}]})),
    "a path of bytes": lambda it: write_sidecar(it, pa.table({"add": [{"path": b"x:y"}]})),
    "no place of a vector": lambda it: write_sidecar(it, build_adds("x", deletionVector={"storageType": "u"})),
    "a name that is not of Delta": lambda it: write_sidecar(it, pa.table({"add": [{"path": "x", "s\u0131ze": 1}]})),
    "a vector that is spelled otherwise": lambda it: commit(it, build_add("x.parquet", deletionvector=VECTOR)),
    "a part of a checkpoint": lambda it: write_sidecar(it, build_adds(FOREIGN)),
    "a vector in a part": lambda it: write_sidecar(it, build_adds("x", deletionVector=VECTOR)),
    "a part of a part": lambda it: write_sidecar(it, pa.table({"sidecar": [{"path": "../x"}]})),
    "no part at all": write_no_part,
    "another checkpoint": lambda it: write_sidecar(
        it, build_adds(FOREIGN), f"{2:020}.checkpoint.{1:010}.{1:010}.parquet"
    ),
    "a checksum": lambda it: (find_log(it) / f"{2:020}.crc").write_text(json.dumps({"allFiles": [{"path": FOREIGN}]})),
    "a hint": lambda it: hint(it, v2Checkpoint={"path": "x.json", "sidecarFiles": [{"path": FOREIGN}]}),
    "actions in a hint": lambda it: hint(it, v2Checkpoint={"path": "x.json", "nonFileActions": [json.loads(REMOVE)]}),
    "a checkpoint elsewhere": lambda it: hint(it, v2Checkpoint={"path": "../x.json"}),
    **{
        f"a part with the name {name}": lambda it, name=name: write_manifest(it, name)
        for name in ("sub/x", "../x", "..", FOREIGN, "%2e%2e/x", "")
    },
}


@pytest.mark.parametrize("odd", ODD_FORMS)
def test_a_log_that_its_readers_may_understand_otherwise_is_refused(table: Table, odd: str) -> None:
    ODD_FORMS[odd](table)
    for open_table in (tables.open_latest, lambda it: own_tables.open_whole(it.path)):
        with pytest.raises(
            TableError, match=r"its log names a file out of|as Delta's writers write|in the log's own folder"
        ):
            open_table(table)


def test_what_writers_write_is_not_refused(table: Table) -> None:
    """Also blank lines, and a checkpoint of several parts beside one of delta-rs."""
    commit(table, INFO, "", OWN, build_add("y%20z.parquet", deletionVector={**UP, "pathOrInlineDv": "ab" + ".:/" * 7}))
    delta_table = DeltaTable(table.path)
    delta_table.create_checkpoint()
    write_manifest(table, f"{uuid4()}.parquet")
    log = find_log(table)
    rows = pq.read_table(next(log.glob("*.checkpoint.parquet")))
    for n in range(2):
        name = f"{delta_table.version():020}.checkpoint.{n + 1:010}.{2:010}.parquet"
        pq.write_table(rows.slice(2 * n, 2), log / name, compression=("snappy", "zstd")[n], data_page_version="2.0")
    (log / f"{3:020}.crc").write_text(json.dumps({"allFiles": [json.loads(OWN)["add"]]}))
    write_sidecar(table, build_adds("x", stats_parsed={"minValues": {"straße": 1, "strasse": 1, "PATH": 1}}))
    log_limits.refuse_odd_content(log)


def test_what_spark_writes_is_not_refused_and_its_own_reading_is_asked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With parts of checkpoints, deletion vectors, other names of columns, changes, and times of commits."""
    path = f"{tmp_path}/a b/runs"
    features = ("checkpointPolicy=v2", "enableDeletionVectors=true", "columnMapping.mode=name", "checkpointInterval=2")
    features += ("enableChangeDataFeed=true", "enableInCommitTimestamps=true", "enableRowTracking=true")
    properties = ", ".join("'delta.{}'='{}'".format(*it.split("=")) for it in features)
    spark.sql(
        f"CREATE TABLE delta.`{path}` (n long, p string) USING delta PARTITIONED BY (p) TBLPROPERTIES ({properties})"
    )
    spark.range(10).selectExpr("id AS n", "'a/../b:%' AS p").coalesce(1).write.format("delta").mode("append").save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n = 3")
    log = Path(path, "_delta_log")
    assert [*log.glob("*.checkpoint.*.*")]
    assert [*(log / "_sidecars").glob("*.parquet")]
    log_limits.refuse_odd_content(log)
    own_tables.refuse_foreign_to_spark(spark, path)
    moved = Path(path).rename(tmp_path / "moved")
    (add,) = (
        it
        for it in map(json.loads, (moved / "_delta_log" / f"{1:020}.json").read_text().split("\n")[:-1])
        if "add" in it
    )
    foreign = {**add["add"], "path": f"{tmp_path.as_uri()}/x.parquet"}
    (moved / "_delta_log" / f"{3:020}.json").write_text(
        json.dumps({"commitInfo": {"inCommitTimestamp": 1 << 42}}) + "\n" + json.dumps({"add": foreign})
    )
    with pytest.raises(TableError, match="its log names a file out of its folder, as Spark reads it"):
        own_tables.refuse_foreign_to_spark(spark, str(moved))
    monkeypatch.setattr(own_tables, "open_whole", DeltaTable)
    delta_table, own = DeltaTable(str(moved)), Table(str(tmp_path), "", "moved", "runs")
    for rewrite in (
        lambda: own_tables.run_upkeep(spark, own.path, f"OPTIMIZE delta.`{moved}`"),
        lambda: maintenance._optimize_files(spark, own, f"OPTIMIZE delta.`{moved}`"),
    ):
        with pytest.raises(TableError, match="as Spark reads it"):
            rewrite()
    assert DeltaTable(str(moved)).version() == delta_table.version()


# Sizes


def stretch(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def test_other_digits_begin_no_log(table: Table) -> None:
    """They are digits to some regular expressions, but not to Delta's readers."""
    log, digits = find_log(table), {ord("0") + n: 0x660 + n for n in range(10)}
    stretch(log / f"{2:020}.crc", 1 << 30)
    for name in (f"{99:020}.json", f"{50:020}.checkpoint.parquet"):
        (log / name.partition(".")[0].translate(digits)).with_suffix(f".{name.partition('.')[2]}").touch()
    with pytest.raises(TableError, match="too large for what it is"):
        tables.open_latest(table)


def test_old_commits_are_read_for_their_notes_only_if_they_are_small(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    DeltaTable(table.path).create_checkpoint()
    old = find_log(table) / f"{1:020}.json"
    stretch(old, 257 << 20)
    assert len(tables.open_latest(table).file_uris()) == 2  # type: ignore[union-attr]
    with pytest.raises(TableError, match="too large for what it is"):
        commit_history.read_notes(table, dict)
    assert len(delta_log.list_commits(DeltaTable(table.path), 1)) == 1
    stretch(old, 255 << 20)
    monkeypatch.setattr(log_limits, "_MAX_HISTORY", 255 << 20)
    with pytest.raises(TableError, match=r"has [0-9,]+ bytes of commits, whose notes are not read"):
        commit_history.read_notes(table, dict)


def format_varint(number: int, width: int) -> bytes:
    return bytes(number >> 7 * n & 127 | (128 if n < width - 1 else 0) for n in range(width))


def belittle(path: Path, least: int = 1_000_000) -> None:
    """Let a Parquet file's footer name 1,000 bytes where a column has more than `least`."""
    data = path.read_bytes()
    length = struct.unpack("<I", data[-8:-4])[0]
    footer, metadata = data[-8 - length : -8], pq.read_metadata(path)
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    sizes = {it.column(n).total_uncompressed_size for it in groups for n in range(it.num_columns)}
    for size in sizes | {it.total_byte_size for it in groups}:
        width = (max(1, (size << 1).bit_length()) + 6) // 7
        if size > least:
            footer = footer.replace(b"\x16" + format_varint(size << 1, width), b"\x16" + format_varint(2000, width))
    path.write_bytes(data[: -8 - length] + footer + data[-8:])


LARGE = pa.table({"txn": [{"appId": "x" * (70 << 20)}]})


@pytest.mark.parametrize("odd", ["a footer", "an encoding", "a codec", "a page"])
def test_a_checkpoint_cannot_hide_what_it_takes(table: Table, odd: str) -> None:
    path = find_log(table) / f"{2:020}.checkpoint.parquet"
    match odd:
        case "a footer":
            pq.write_table(LARGE, path, compression="zstd", use_dictionary=False)
            belittle(path)
            assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1000
        case "an encoding":
            rows = pa.table({"txn": [{"appId": "x" * 300_000}] * 1000})
            encodings = {"txn.appId": "DELTA_BYTE_ARRAY"}
            pq.write_table(rows, path, use_dictionary=False, column_encoding=encodings)
        case "a codec":
            pq.write_table(LARGE.slice(0, 0), path, compression="gzip")
            pq.write_table(build_adds("x"), path, compression="gzip")
        case "a page":
            pq.write_table(LARGE, path, compression="zstd", use_dictionary=False, write_statistics=False)
            belittle(path)
            column = pq.read_metadata(path).row_group(0).column(0)
            data, start = bytearray(path.read_bytes()), column.data_page_offset
            size = next(iter(parquet_pages._list_pages(pa.OSFile(str(path)), column))).size
            named = b"\x15" + format_varint(size << 1, 4)
            place = data.index(named, start)
            data[place : place + 5] = b"\x15" + format_varint(2000, 4)
            path.write_bytes(data)
    with pytest.raises(TableError, match=r"many times the memory|as Delta's writers write"):
        log_limits.refuse_odd_content(find_log(table))


@pytest.mark.parametrize("name", ["detail", "n"])
def test_a_table_of_gates_cannot_hide_what_it_takes(tmp_path: Path, name: str) -> None:
    """In texts, or in pages of what is no text."""
    rows = pa.table({"run": [1] * 300_000, "detail": [""] * 300_000, "n": pa.array(range(300_000))})
    if name == "detail":
        rows = pa.table({"run": [1], "detail": ["x" * (3 << 20)], "n": [1]})
    write_deltalake(tmp_path, rows)
    (path,) = tmp_path.glob("*.parquet")
    pq.write_table(rows, path, compression="zstd", use_dictionary=False)
    belittle(path)
    delta_table = DeltaTable(tmp_path)
    measured = gate_result_rows.measure_files(delta_table, [path.name], 1, 1, ("detail",))
    assert measured[0] == rows.num_rows
    assert (measured[1] > 3 << 20) == (name == "detail")
    if name == "n":
        page = SimpleNamespace(kind=0, size=100 << 20, details={1: 300_000, 2: 0})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parquet_pages, "_list_pages", lambda *_: [page])
            assert gate_result_rows.measure_files(delta_table, [path.name], 1, 1, ("detail",))[1] > 200 << 20


@pytest.mark.parametrize("data", [b"", b"\x15", b"\x15\x00\x15\x0a", b"\xff" * 20, b"\x00", b"\x15\x01\x15\x01\x00"])
def test_what_is_no_page_is_an_error(data: bytes) -> None:
    column = SimpleNamespace(
        has_dictionary_page=False, data_page_offset=0, total_compressed_size=len(data) + (not data)
    )
    with pytest.raises(pa.ArrowInvalid, match="has a "):
        parquet_pages.measure_column(SimpleNamespace(read_at=lambda *_: data), column)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["detail", "runId"])
def test_a_journal_cannot_hide_what_it_takes(tmp_path: Path, name: str) -> None:
    text = "x" * ((40 << 20) if name == "runId" else (20 << 20))
    write_deltalake(tmp_path, pa.table({"run": [1], "entry": ["planned"], name: [text]}))
    (path,) = tmp_path.glob("*.parquet")
    pq.write_table(pq.read_table(path), path, compression="zstd", use_dictionary=False, write_statistics=False)
    belittle(path)
    read = journal_rows.load_rows(Table(str(tmp_path), "p", "runs", "runs"), DeltaTable(tmp_path), ("run", name))
    with pytest.raises(journal_rows.LargeJournalError, match=f"bytes in the column {name}"):
        next(read)


@pytest.mark.parametrize("sizes", [[60, 60], [-1]])
def test_columns_have_bytes_of_their_own(sizes: list[int]) -> None:
    """Else a file of some kilobytes can name one page a million times."""
    columns = [SimpleNamespace(total_compressed_size=it) for it in sizes]
    group = SimpleNamespace(num_columns=len(columns), column=columns.__getitem__)
    metadata = SimpleNamespace(num_row_groups=1, num_columns=len(columns), row_group=lambda _: group)
    with pytest.raises(pa.ArrowInvalid, match="has columns of"):
        parquet_pages.refuse_overlap(metadata, 100)  # type: ignore[arg-type]


def test_a_part_of_a_column_is_read_up_to_a_size() -> None:
    column = SimpleNamespace(has_dictionary_page=False, data_page_offset=0, total_compressed_size=600 << 20)
    with pytest.raises(pa.ArrowInvalid, match="has a column of"):
        parquet_pages.measure_column(None, column)  # type: ignore[arg-type]
