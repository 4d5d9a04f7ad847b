"""The counts of records that were trimmed from a log, by run and fate, for the ledger.

| column of `trimmed/<topic>` | type | |
| --- | --- | --- |
| trim | bigint | the trim that wrote the row: it counts all records that had been removed by then |
| run, partition | bigint, int | the run that ingested them |
| first, after | bigint | the offsets [first, after) that the run had ingested of the partition, removed or not |
| fate | string | as the log had it |
| n, late, without | bigint | how many offsets, how many of them late, how many accepted ones without a value |
| horizon, through | timestamp, bigint | of this trim: the log's horizon, and the last run whose records it removed |
| systemFrom, topicId, epoch, topic, topicPartition | | as the log has them |

A trim writes its rows first, then removes the records, in a commit to the log that has its number. The rows of the
number that the log has last are right, so a trim that was killed between the two has changed nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from hindcast.store import row_reader, tables
from hindcast.store.tables import Table

PART = "trim"
"""The commits to a log that remove records (`Table.app_id`); the version is the number of the trim."""

COUNTS_SCHEMA = pa.schema(
    [
        ("run", pa.int64()),
        ("partition", pa.int32()),
        ("first", pa.int64()),
        ("after", pa.int64()),
        ("fate", pa.string()),
        ("n", pa.int64()),
        ("late", pa.int64()),
        ("without", pa.int64()),
        ("systemFrom", pa.timestamp("us", "UTC")),
        ("topicId", pa.string()),
        ("epoch", pa.int32()),
        ("topic", pa.string()),
        ("topicPartition", pa.int32()),
    ]
)
"""The columns of `read_trim_counts`."""


class LogTrim(NamedTuple):
    """How far a log is trimmed, of runs up to `run`: of each key the record in force at `horizon` is left, and no
    expired one before that.
    """

    horizon: datetime
    run: int


def trim_table(log: Table) -> Table:
    """Return the table of a log's trims."""
    return Table(log.warehouse, log.pipeline, f"trimmed/{log.name.removeprefix('logs/')}", "trimmed")


def read_trim_counts(log: Table) -> pa.Table:
    """Return the counts of removed records of a log, by run, partition and fate; no rows for any other table."""
    rows = _read_last_trim(log, COUNTS_SCHEMA.names)
    return COUNTS_SCHEMA.empty_table() if rows is None else rows.cast(COUNTS_SCHEMA)


def read_log_trim(log: Table) -> LogTrim | None:
    """Return the last trim of a log; None if no record was removed yet."""
    rows = _read_last_trim(log, ["horizon", "through"])
    first = rows.slice(0, 1).to_pylist() if rows is not None else []
    return LogTrim(first[0]["horizon"], first[0]["through"]) if first else None


def _read_last_trim(log: Table, columns: list[str]) -> pa.Table | None:
    """Return the rows of the last trim of a log that has removed records; None for any other table."""
    delta_table = tables.open_table(trim_table(log)) if log.name.startswith("logs/") else None
    if delta_table is None:
        return None
    is_last = ds.field("trim") == tables.read_last_run(log, PART)
    return row_reader.open_dataset(delta_table).to_table(columns, filter=is_last)
