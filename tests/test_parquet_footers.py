"""A data file whose footer takes many times the memory of its size is refused before DuckDB reads it."""

from __future__ import annotations

import base64
import os
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.common.errors import TableError
from hindcast.query.explain_limits import EngineLimitError, open_limited_engine
from hindcast.store import duckdb_reader, footer_reader, parquet_footers, row_reader
from hindcast.store.tables import Table

COLUMN = b"\x15\x02\x25\x00\x18\x01a\x00"
SCHEMA = b"\x19\x2c\x48\x01r\x15\x02\x00" + COLUMN
GROUP_END = b"\x16\x00\x16\x00\x00"


def count(number: int) -> bytes:
    """Return the beginning of a list of so many structs."""
    written = b""
    while number > 127:
        written += bytes([number & 127 | 128])
        number >>= 7
    return b"\xfc" + written + bytes([number])


def footer_file(fields: bytes) -> bytes:
    """Return a Parquet file that has a footer with these fields, and nothing else."""
    footer = b"\x15\x02" + fields
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def small_columns(groups: int, columns: int) -> bytes:
    """Return a file with row groups of columns of three bytes."""
    group = b"\x19" + count(columns) + b"\x26\x00\x00" * columns + GROUP_END
    return footer_file(SCHEMA + b"\x16\x00\x19" + count(groups) + group * groups + b"\x00")


MANY = 50_000_000
CLAIMED = {
    "columns of the schema": footer_file(b"\x19" + count(MANY)),
    "row groups": footer_file(SCHEMA + b"\x16\x00\x19" + count(MANY)),
    "properties": footer_file(SCHEMA + b"\x16\x00\x19\x0c\x19" + count(MANY)),
    "columns of a row group": footer_file(SCHEMA + b"\x16\x02\x19\x1c\x19" + count(MANY)),
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    write_deltalake(tmp_path / "shop" / "prices", pa.table({"n": list(range(100))}))
    return Table(str(tmp_path), "shop", "prices", "versions", ("n",))


def data_file(table: Table) -> Path:
    (path,) = Path(table.path).glob("*.parquet")
    return path


def read_rows(table: Table) -> list[tuple[int]]:
    """Return the rows of a table as pages read them."""
    delta_table = DeltaTable(table.path)
    with row_reader.refuse_broken_files(table), duckdb_reader.open_engine(delta_table) as engine:
        duckdb_reader.register_rows(engine, delta_table)
        return engine.execute("SELECT n FROM rows ORDER BY n").fetchall()


@pytest.mark.parametrize("content", CLAIMED.values(), ids=list(CLAIMED))
def test_a_footer_that_claims_a_list_of_millions_is_refused_in_little_memory(table: Table, content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (path := data_file(table)).write_bytes(content)
    with pytest.raises(TableError, match=r"a data file cannot be read: .*does not end") as refused:
        read_rows(table)
    assert str(path) in refused.value.found
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(small_columns(1, 20_000), id="in one row group"),
        pytest.param(small_columns(20_000, 1), id="in many row groups"),
        pytest.param(small_columns(12, 60_000), id="in a large footer"),
    ],
)
def test_a_footer_of_tiny_columns_is_refused(table: Table, content: bytes) -> None:
    (path := data_file(table)).write_bytes(content)
    with pytest.raises(
        TableError, match=r"takes many times the memory of its size|says nothing of a column"
    ) as refused:
        read_rows(table)
    assert str(path) in refused.value.found


def test_a_large_footer_of_tiny_columns_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "bomb").write_bytes(small_columns(12, 60_000))
    monkeypatch.delattr(parquet_footers, "_decode")
    with pytest.raises(pa.ArrowInvalid, match="says nothing of a column"):
        parquet_footers.read_metadata(path)
    path.write_bytes(b"PAR1" + bytes(65 << 20) + (65 << 20).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(footer_reader.LargeFooterError):
        parquet_footers.read_metadata(path)


@pytest.mark.parametrize(
    ("footer", "error"),
    [
        (b"\x19\xfc" + b"\xff" * 2_000_000, "more than 64 bits"),
        (b"\x19\xf1" + b"\xff" * 8 + b"\x7f" + b"\x00" * 2_000_000, "does not end"),
        (b"\x1c" * 2_000_000, "nested too deeply"),
        (b"\x1b" * 2_000_000, "field of kind 11"),
        (b"\x18\xff\xff\xff\x7f" + b"\x01" * 2_000_000, "does not end"),
    ],
)
def test_a_large_footer_that_is_none_is_refused(tmp_path: Path, footer: bytes, error: str) -> None:
    (path := tmp_path / "bomb").write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(pa.ArrowInvalid, match=error):
        parquet_footers.read_metadata(path)


def test_a_column_for_which_arrow_ends_the_process_is_refused(tmp_path: Path) -> None:
    """With every byte of a footer changed in turn, in a process of its own: it must be there at the end."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = pa.table({"t": ["a", None], "n": [1, 2], "at": [moment] * 2, "l": [[1, None], []], "s": [{"x": b"1"}, None]})
    pq.write_table(rows, tmp_path / "file", write_page_index=True)
    script = tmp_path / "change.py"
    script.write_text(CHANGE, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, script, tmp_path / "file"], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    whole, refused = map(int, ended.stdout.split())
    assert whole > 500, "most of a footer does not matter"
    assert refused > 1_000


CHANGE = """
import io, sys
import pyarrow as pa
from hindcast.store import parquet_footers, parquet_pages

content = open(sys.argv[1], "rb").read()
length = int.from_bytes(content[-8:-4], "little")
whole = refused = 0
for place in range(len(content) - 8 - length, len(content) - 8):
    for byte in {content[place] ^ 1, content[place] ^ 2, 0, 0x15, 0x16, 0x1c, 0x7f}:
        changed = bytearray(content)
        changed[place] = byte
        file = pa.PythonFile(io.BytesIO(bytes(changed)), "r")
        try:
            found = parquet_footers.decode_metadata(file)
            for group in map(found.row_group, range(found.num_row_groups)):
                for column in map(group.column, range(group.num_columns)):
                    column.statistics, column.compression, column.physical_type
                    parquet_pages.measure_column(file, column)
            whole += 1
        except (ValueError, OSError, pa.ArrowException):
            refused += 1
print(whole, refused)
"""


@pytest.mark.parametrize("of", ["a text", "the footer"])
def test_an_encrypted_column_is_refused(tmp_path: Path, of: str) -> None:
    factory = encryption.CryptoFactory(lambda _: _Keys())
    how = encryption.EncryptionConfiguration(
        footer_key="k", column_keys={"k": ["t"]}, plaintext_footer=of == "a text", double_wrapping=False
    )
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    rows = pa.table({"t": ["a"], "n": [1]})
    with pq.ParquetWriter(tmp_path / "file", rows.schema, encryption_properties=keys) as writer:
        writer.write_table(rows)
    with pytest.raises(pa.ArrowInvalid, match=r"has an encrypted column|has no footer"):
        parquet_footers.read_metadata(tmp_path / "file")


class _Keys(encryption.KmsClient):  # type: ignore[misc]
    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_footers_of_wide_and_of_long_files_are_read(tmp_path: Path, compression: str) -> None:
    """Also without statistics, and where a file has more than the few megabytes that are decoded at once."""
    wide = pa.table({f"c{n}": [n, None, 2 * n, 0] for n in range(4_000)})
    long = pa.table({"n": range(20_000)})
    empty = wide.schema.empty_table()
    for rows, size in ((wide, 4), (wide, 1), (long, 5), (empty, 1)):
        for options in ({}, {"write_statistics": False, "store_schema": False, "use_dictionary": False}):
            pq.write_table(rows, tmp_path / "file", row_group_size=size, compression=compression, **options)
            assert parquet_footers.read_metadata(tmp_path / "file").num_rows == rows.num_rows
    write_deltalake(tmp_path / "table", wide)
    (path,) = (tmp_path / "table").glob("*.parquet")
    assert parquet_footers.read_metadata(path).num_columns == 4_000


def test_a_file_is_looked_at_once_until_it_changes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_footers, "SETTLED", -1)
    read = list[Path]()
    decode = parquet_footers.read_metadata
    monkeypatch.setattr(parquet_footers, "read_metadata", lambda path: read.append(path) or decode(path))
    for _ in range(2):
        assert len(read_rows(table)) == 100
    assert read == [data_file(table)]
    os.utime(data_file(table))
    assert (len(read_rows(table)), len(read)) == (100, 2)
    monkeypatch.setattr(
        parquet_footers, "SETTLED", 1 << 62
    )  # of a file that has just changed another change may follow
    os.utime(data_file(table))
    assert (len(read_rows(table)), len(read_rows(table)), len(read)) == (100, 100, 4)


def test_a_page_looks_at_files_no_longer_than_its_engine_may_run(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has looked at counts when it is loaded again."""
    monkeypatch.setattr(parquet_footers, "SETTLED", -1)
    for n in range(3):
        write_deltalake(table.path, pa.table({"n": [n]}), mode="append")
    read, decode, delta_table = list[Path](), parquet_footers.read_metadata, DeltaTable(table.path)
    monkeypatch.setattr(parquet_footers, "read_metadata", lambda it: read.append(it) or time.sleep(0.2) or decode(it))
    for looked in (1, 2, 3):
        with pytest.raises(EngineLimitError), open_limited_engine(delta_table, 0.1) as engine:
            duckdb_reader.register_rows(engine, delta_table)
        assert len({*read}) == looked
    with open_limited_engine(delta_table, 60) as engine:
        duckdb_reader.register_rows(engine, delta_table)
        assert engine.execute("SELECT count(*) FROM rows").fetchall() == [(103,)]
    assert len(read) == 4


def test_only_files_that_a_query_reads_are_looked_at(table: Table) -> None:
    path = data_file(table)
    write_deltalake(table.path, pa.table({"n": [1_000]}), mode="append")
    path.write_bytes(CLAIMED["row groups"])
    delta_table = DeltaTable(table.path)
    with duckdb_reader.open_engine(delta_table) as engine:
        duckdb_reader.register_rows(engine, delta_table, [ColumnBound("n", least=500)])
        assert engine.execute("FROM rows").fetchall() == [(1_000,)]


def damage_size(path: Path) -> None:
    """Make the size of the only column in a file's footer negative."""
    column = pq.read_metadata(path).row_group(0).column(0)
    sizes = [2 * size for size in (column.total_uncompressed_size, column.total_compressed_size)]
    sound, broken = (
        b"".join(b"\x16" + bytes([n & 127 | 128, n >> 7]) for n in it) for it in (sizes, [sizes[0], sizes[1] + 1])
    )
    content = path.read_bytes()
    assert content.count(sound) == 1
    path.write_bytes(content.replace(sound, broken))


def test_a_size_below_zero_is_refused_with_its_file(table: Table) -> None:
    damage_size(path := data_file(table))
    with pytest.raises(TableError, match="has columns of -") as refused:
        read_rows(table)
    assert str(path) in refused.value.found


@pytest.mark.parametrize("kind", ["of a folder", "of any file"])
def test_a_database_that_an_internal_error_made_unusable_is_opened_anew(table: Table, kind: str) -> None:
    """Also if others have connections to it."""
    sound = (path := data_file(table)).read_bytes()
    delta_table = DeltaTable(table.path)
    open_engine = {
        "of a folder": lambda: duckdb_reader.open_engine(delta_table),
        "of any file": duckdb_reader.open_engine,
    }[kind]
    with open_engine() as engine, open_engine() as other:
        damage_size(path)
        with pytest.raises(duckdb.InternalException):
            engine.execute(f"FROM read_parquet('{path}')").fetchall()
        with (
            pytest.raises(TableError, match="a data file cannot be read: FATAL"),
            row_reader.refuse_broken_files(table),
        ):
            other.execute("SELECT 1")
        path.write_bytes(sound)
        with open_engine() as again:
            assert again.execute("SELECT 1").fetchall() == [(1,)]
    assert len(read_rows(table)) == 100


@pytest.mark.parametrize(
    ("error", "is_damage"),
    [
        (duckdb.InternalException("INTERNAL Error: Information loss on integer cast"), True),
        (duckdb.Error("TProtocolException: Invalid data"), True),
        (duckdb.InvalidInputException("No magic bytes found at end of file 'x.parquet'"), True),
        (duckdb.InvalidInputException("Invalid number"), False),
        (duckdb.InterruptException("Interrupted!"), False),
        (duckdb.OutOfMemoryException("failed to allocate data of file"), False),
        (duckdb.ConversionException("Could not convert string 'file' to INT32"), False),
    ],
)
def test_an_error_of_duckdb_is_told_of_files_if_it_may_be_of_one(
    table: Table, error: duckdb.Error, *, is_damage: bool
) -> None:
    with pytest.raises(TableError if is_damage else type(error)), row_reader.refuse_broken_files(table):
        raise error
