"""The rows of a journal as they are read from its files, and how large they may be.

A few kilobytes of a Parquet file can hold a detail of gigabytes, and others read the journal of a pipeline too: the
pages, and the runs of pipelines that read its tables. So files are measured before they are read, rows come in small
batches, and what one entry, and what all of them together may take is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TypedDict

from deltalake import DeltaTable
from pyarrow.dataset import Dataset, ParquetFileFragment
from pyarrow.parquet import FileMetaData

from hindcast.common.errors import PlatformError, RequestError, TableError
from hindcast.plan.entries import JournalEntry
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

BATCH_ROWS = 4
"""How many rows are in memory while they are read."""


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
    """Return the entry in a row, without its detail."""
    return JournalEntry(row["run"], row["entry"], row["sequence"] or 0, row["at"])


def load_rows(table: Table, delta_table: DeltaTable, columns: Sequence[str]) -> Iterator[EntryRow]:
    """Yield rows of the journal; a column that the table lacks is null (`sequence`, in those of older versions).

    Raise LargeJournalError if details are larger than any that a run writes.
    """
    dataset, stored = open_dataset(delta_table), _list_stored(delta_table, columns)
    if "detail" not in stored:
        yield from (dict.fromkeys(columns) | row for row in dataset.to_table(columns=stored).to_pylist())
        return
    yield from load_files(table, dataset, dataset.get_fragments(), columns, 0)


def load_files(
    table: Table, dataset: Dataset, files: Iterable[ParquetFileFragment], columns: Sequence[str], length: int
) -> Iterator[EntryRow]:
    """Yield rows of some files of the journal, as `load_rows` does; `length`: the characters of all other details."""
    stored = [name for name in columns if name in dataset.schema.names]
    for fragment in files:
        _refuse_large_file(table, fragment)
        scanner = fragment.scanner(
            schema=dataset.schema, columns=stored, batch_size=BATCH_ROWS, batch_readahead=0, use_threads=False
        )
        for batch in scanner.to_batches():
            for row in batch.to_pylist():
                length += len(row["detail"] or "")
                if length > MAX_ALL_DETAILS:
                    found = f"the entries of the journal have more than {MAX_ALL_DETAILS >> 20:,} MiB"
                    raise _build_excess_error(table, found)
                if (excess := find_excess(row["detail"] or "")) is not None:
                    raise _build_excess_error(table, f"an entry of run {row['run']} has {excess}")
                yield dict.fromkeys(columns) | row


def _list_stored(delta_table: DeltaTable, columns: Sequence[str]) -> list[str]:
    known = {field.name for field in delta_table.schema().fields}
    return [name for name in columns if name in known]


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


def _refuse_large_file(table: Table, fragment: ParquetFileFragment) -> None:
    """Raise TableError for a data file with a detail that is too large, by what its footer says, without reading it."""
    metadata: FileMetaData = fragment.metadata
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        column = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "detail")
        size, stored = column.total_uncompressed_size, column.total_compressed_size
        is_packed = size > _MAX_PACKED and size > _MAX_RATIO * stored
        if is_packed or size > min(group.num_rows * (MAX_DETAIL + _HEADER), MAX_ALL_DETAILS):
            runs = sorted(set(fragment.to_table(columns=["run"])["run"].to_pylist()))
            named = f"run {runs[0]}" if len(runs) == 1 else f"runs {runs[0]} to {runs[-1]}"
            raise _build_excess_error(table, f"the entries of {named} have details of {size:,} bytes")


_HEADER = 1_000
"""The most bytes that a file has for a detail besides its characters, which are ASCII."""

_MAX_PACKED, _MAX_RATIO = 64 << 20, 500
"""Details of more bytes do not compress to a smaller share: each is of another run."""


def _build_excess_error(table: Table, found: str) -> LargeJournalError:
    fix = "RESTORE the table to the last version that Hindcast wrote (DESCRIBE HISTORY names the writers)"
    return LargeJournalError(f"{found}: no run writes so much", where=table.path, fix=fix)
