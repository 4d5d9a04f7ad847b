"""The rows of a journal as they are read from its files, and how large they may be.

A few kilobytes of a Parquet file can hold a detail of gigabytes, and others read the journal of a pipeline too: the
pages, and the runs of pipelines that read its tables. So files are measured before they are read, rows come in small
batches, and what one entry, and what all of them together may take is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import TypedDict

from deltalake import DeltaTable
from pyarrow.dataset import Dataset, ParquetFileFragment

from hindcast.common.errors import PlatformError, RequestError, TableError, show_briefly
from hindcast.plan.entries import RANKS, JournalEntry
from hindcast.store import parquet_footers, parquet_pages
from hindcast.store.row_reader import open_dataset
from hindcast.store.tables import Table

MAX_DETAIL, MAX_PARTS = 16 << 20, 1_000_000
"""The most characters and values of an entry's detail. The plan of 500 topics with twelve partitions each, whose
contract has 1 MiB, takes 2 MB; that of 100,000 partitions 9 MB and 500,000 values; a report at most 4 MiB
(report/report_size.py).
"""

MAX_ALL_DETAILS = 4 << 30
"""The most characters of all details of a journal. Hourly runs of ten topics, with twelve partitions each and twenty
gates, write 0.3 GB a year.
"""

MAX_FILES, MAX_ROWS, MAX_GROUPS = 100_000, 1_000_000, 1_000
"""The most files of a journal, and rows and row groups of one of them. Each entry is a file until the maintenance joins
them: hourly runs write 20,000 a year.
"""

BATCH_ROWS, ENTRY_BATCH_ROWS = 4, 16
"""How many rows are in memory while they are read, with and without their details."""


class LargeJournalError(TableError):
    """A journal has more than any run writes, or takes more memory than there may be for it."""


class UnreadJournalError(PlatformError):
    """A journal was not read to its end in the time that there was; whoever reads it next goes on from there."""


class EntryRow(TypedDict, total=False):
    """A row of the table, with the columns that were read."""

    run: int
    entry: str
    at: datetime
    runId: str
    knownAt: datetime
    detail: str
    sequence: int | None


def parse_entry(row: EntryRow) -> JournalEntry:
    """Return the entry in a row, without its detail; ValueError if its state is none."""
    if row["entry"] not in RANKS:
        raise ValueError(f"{show_briefly(repr(row['entry']))} is not a state of a run")
    return JournalEntry(row["run"], row["entry"], row["sequence"] or 0, row["at"])


def load_rows(table: Table, delta_table: DeltaTable, columns: Sequence[str]) -> Iterator[EntryRow]:
    """Yield rows of the journal; a column that the table lacks is null (`sequence`, in those of older versions).

    Raise LargeJournalError if details are larger than any that a run writes.
    """
    dataset = open_files(table, delta_table)
    yield from load_files(table, dataset, dataset.get_fragments(), columns, 0)


def open_files(table: Table, delta_table: DeltaTable) -> Dataset:
    """Return the files of the journal; LargeJournalError, before they are listed, if they are too many."""
    count = delta_table.get_add_actions().num_rows
    if count > MAX_FILES:
        raise _build_excess_error(table, f"the journal has {count:,} files, more than {MAX_FILES:,}")
    return open_dataset(delta_table)


def load_files(
    table: Table, dataset: Dataset, files: Iterable[ParquetFileFragment], columns: Sequence[str], length: int
) -> Iterator[EntryRow]:
    """Yield rows of some files of the journal, as `load_rows` does; `length`: the characters of all other details."""
    stored = [name for name in columns if name in dataset.schema.names]
    for fragment in files:
        largest = _refuse_large_file(table, fragment, stored)
        scanner = fragment.scanner(
            schema=dataset.schema,
            columns=stored,
            batch_size=ENTRY_BATCH_ROWS if "detail" not in stored else BATCH_ROWS if largest <= _MAX_PACKED else 1,
            batch_readahead=0,
            use_threads=False,
        )
        for batch in scanner.to_batches():
            if batch.nbytes > _MAX_BATCH:
                raise _build_excess_error(table, f"{batch.num_rows} of its entries have {batch.nbytes:,} bytes")
            for row in batch.to_pylist():
                detail = row.get("detail") or ""
                length += len(detail)
                if length > MAX_ALL_DETAILS:
                    found = f"the entries of the journal have more than {MAX_ALL_DETAILS >> 20:,} MiB"
                    raise _build_excess_error(table, found)
                if (excess := find_excess(detail)) is not None:
                    raise _build_excess_error(table, f"an entry of run {row['run']} has {excess}")
                yield dict.fromkeys(columns) | row


def find_excess(detail: str) -> str | None:
    """Return what a detail has too much of, as text; None if it may be in the journal."""
    if len(detail) > MAX_DETAIL:
        return f"{len(detail):,} characters, more than {MAX_DETAIL:,}"
    parts = count_parts(detail)
    return f"{parts:,} values, more than {MAX_PARTS:,}" if parts > MAX_PARTS else None


def count_parts(detail: str) -> int:
    """Return roughly how many values the JSON of a detail has, without parsing it."""
    return sum(map(detail.count, "[{,"))


def refuse_large_entry(pipeline: str, run: int, state: str, detail: str) -> None:
    """Raise RequestError for an entry that nobody would read: before it is written."""
    if (excess := find_excess(detail)) is None:
        return
    what = "plan" if state == "planned" else "entry"
    fix = "split the pipeline into several: its contract, or all partitions of its topics together, are too large"
    raise RequestError(f"the {what} of run {run} has {excess}; it was not written", where=pipeline, fix=fix)


def _refuse_large_file(table: Table, fragment: ParquetFileFragment, columns: Sequence[str]) -> int:
    """Return the most bytes of details in a row group of a data file; raise TableError, without reading the rows, if it
    has too many of them, or too many bytes in one of these columns.
    """
    largest = 0
    with fragment.open() as file:
        metadata = parquet_footers.decode_table_file(file, fragment.path)
        for name, count, most in (
            ("rows", metadata.num_rows, MAX_ROWS),
            ("parts", metadata.num_row_groups, MAX_GROUPS),
        ):
            if count > most:
                found = f"the file {_name_file(fragment)} has {count:,} {name}, more than {most:,}"
                raise _build_excess_error(table, found)
        parquet_pages.refuse_overlap(metadata, file.size())
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                name = column.path_in_schema.partition(".")[0]
                if name not in columns:
                    continue
                size, stored = parquet_pages.measure_column(file, column).unpacked, column.total_compressed_size
                if name == "detail":
                    largest = max(largest, size)
                    is_packed = size > _MAX_PACKED and size > _MAX_RATIO * stored
                    most = 0 if is_packed else min(group.num_rows * (MAX_DETAIL + _HEADER), MAX_ALL_DETAILS)
                else:
                    most = min(group.num_rows * _MAX_OTHER, _MAX_OTHERS)
                if size > most:
                    found = f"the file {_name_file(fragment)} has {size:,} bytes in the column {name}"
                    raise _build_excess_error(table, found)
    return largest


_HEADER = 1_000
"""The most bytes that a file has for a detail besides its characters, which are ASCII."""

_MAX_PACKED, _MAX_RATIO = 64 << 20, 500
"""Details of more bytes do not compress to a smaller share: each is of another run."""

_MAX_OTHER, _MAX_OTHERS = 10_000, 32 << 20
"""The most bytes of any other column: of a row on average, and of those of a row group together."""

_MAX_BATCH = 2 * BATCH_ROWS * MAX_DETAIL
"""The most bytes of the rows that are in memory together."""


def _name_file(fragment: ParquetFileFragment) -> str:
    return show_briefly(PurePath(fragment.path).name)


def _build_excess_error(table: Table, found: str) -> LargeJournalError:
    fix = "RESTORE the table to the last version that Hindcast wrote (DESCRIBE HISTORY names the writers)"
    return LargeJournalError(f"{found}: no run writes so much", where=table.path, fix=fix)
