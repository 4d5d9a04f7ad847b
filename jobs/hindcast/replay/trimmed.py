"""What the ledger knows of records that were trimmed from a log: how many of each run and fate there were.

| column of `trimmed/<topic>` | type | |
| --- | --- | --- |
| trim | bigint | the trim that wrote the row: it tells of all records that had been removed by then |
| run, partition | bigint, int | the run that brought them |
| first, after | bigint | the offsets [first, after) that the run had brought of the partition, removed or not |
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

from hindcast.delta import contents, tables
from hindcast.delta.tables import Table

PART = "trim"
"""The commits to a log that remove records (`Table.app`); the version is the number of the trim."""

COUNTS = pa.schema(
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
"""The columns of `counts`."""


class Settled(NamedTuple):
    """Up to when, and up to which run, a log has of each key only the record that was in force at its horizon."""

    horizon: datetime
    run: int


def table(log: Table) -> Table:
    """Where it stands of a log."""
    return Table(log.warehouse, log.pipeline, f"trimmed/{log.name.removeprefix('logs/')}", "trimmed")


def counts(log: Table) -> pa.Table:
    """What was removed of a log, by run, partition and fate; no rows for any other table."""
    rows = _last(log, COUNTS.names)
    return COUNTS.empty_table() if rows is None else rows.cast(COUNTS)


def settled(log: Table) -> Settled | None:
    """How far a log has been trimmed; None if no record was removed yet."""
    rows = _last(log, ["horizon", "through"])
    first = rows.slice(0, 1).to_pylist() if rows is not None else []
    return Settled(first[0]["horizon"], first[0]["through"]) if first else None


def _last(log: Table, columns: list[str]) -> pa.Table | None:
    """The rows of the last trim of a log that has removed records; None of any other table."""
    found = tables.opened(table(log)) if log.name.startswith("logs/") else None
    if found is None:
        return None
    return contents.dataset(found).to_table(columns, filter=ds.field("trim") == tables.published(log, PART))
