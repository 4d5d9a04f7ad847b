"""The counts of records that were trimmed from a log, by run and fate, for the ledger.

| column of `trimmed/<topic>` | type | |
| --- | --- | --- |
| trim | bigint | the trim that wrote the row: it counts all records that had been removed by then |
| run, partition | bigint, int | the run that ingested them |
| first, after | bigint | the offsets [first, after) that the run had ingested of the partition, removed or not |
| fate | string | as the log had it |
| n, late, without | bigint | how many offsets, how many of them late, how many accepted ones without a value |
| horizon, through | timestamp, bigint | of this trim: the log's horizon, and the last run whose records it removed |
| arrival | timestamp | the latest arrival of them, of a topic with `arrival` |
| systemFrom, topicId, epoch, topic, topicPartition | | as the log has them |

A trim writes its rows first, then removes the records, in a commit to the log that has its number. The rows of the
number that the log has last are right, so a trim that was killed between the two has changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.kafka.topics import OffsetRange
from hindcast.store import duckdb_reader, tables
from hindcast.store.duckdb_reader import EngineFactory
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

_ARRIVAL = "arrival"
MAX_TEXT = 250
"""The most characters of a text in them: names in Kafka have at most 249."""

_COUNTS = ", ".join(
    f'left("{field.name}", {MAX_TEXT}) AS "{field.name}"' if pa.types.is_string(field.type) else f'"{field.name}"'
    for field in COUNTS_SCHEMA
)


class LogTrim(NamedTuple):
    """How far a log is trimmed, of runs up to `run`: of each key the record in force at `horizon` is left, and no
    expired one before that.
    """

    horizon: datetime
    run: int


def trim_table(log: Table) -> Table:
    """Return the table of a log's trims."""
    return Table(log.warehouse, log.pipeline, f"trimmed/{log.name.removeprefix('logs/')}", "trimmed")


def read_trim_counts(
    log: Table,
    run: int | None = None,
    open_engine: EngineFactory = duckdb_reader.open_engine,
    most: int | None = None,
) -> pa.Table:
    """Return the counts of removed records of a log, by run, partition and fate; no rows for any other table.

    Of one `run` or of all; at most `most` rows. `open_engine` opens what reads them. Texts are cut to `MAX_TEXT`.
    """
    condition = "true" if run is None else f"run = {run:d}"
    rows = _read_last_trim(log, _COUNTS, condition, most, open_engine)
    return COUNTS_SCHEMA.empty_table() if rows is None else rows.cast(COUNTS_SCHEMA)


def read_trimmed_arrivals(log: Table, ranges: Mapping[int, OffsetRange]) -> dict[int, int]:
    """Return the latest arrival of the records that were trimmed before each of these ranges of a log.

    By partition, in microseconds since 1970; none for one of which no record with an arrival was trimmed. What a run
    had ingested is before a range or after its start as a whole.
    """
    delta_table = tables.open_table(trim_table(log))
    if delta_table is None or _ARRIVAL not in {field.name for field in delta_table.schema().fields}:
        return {}
    rows = _read_last_trim(log, f'"partition", first, epoch_us({_ARRIVAL}) AS micros', f"{_ARRIVAL} IS NOT NULL")
    found: dict[int, int] = {}
    for row in [] if rows is None else rows.to_pylist():
        partition, micros = row["partition"], row["micros"]
        if partition in ranges and row["first"] < ranges[partition].start:
            found[partition] = max(micros, found.get(partition, micros))
    return found


def read_log_trim(log: Table) -> LogTrim | None:
    """Return the last trim of a log; None if no record was removed yet."""
    rows = _read_last_trim(log, "horizon, through", most=1)
    first = rows.to_pylist() if rows is not None else []
    return LogTrim(first[0]["horizon"], first[0]["through"]) if first else None


def _read_last_trim(
    log: Table,
    columns: str,
    condition: str = "true",
    most: int | None = None,
    open_engine: EngineFactory = duckdb_reader.open_engine,
) -> pa.Table | None:
    """Return `columns`, as SQL, of the last trim of a log that has removed records; None for any other table."""
    delta_table = tables.open_table(trim_table(log)) if log.name.startswith("logs/") else None
    if delta_table is None:
        return None
    trim = tables.read_last_run(log, PART)
    text = f"SELECT {columns} FROM rows WHERE trim = {trim} AND {condition}"  # noqa: S608  # names and numbers of ours
    with open_engine(delta_table) as engine:
        duckdb_reader.register_rows(engine, delta_table, [ColumnBound("trim", trim, trim)])
        return engine.sql(text if most is None else f"{text} LIMIT {most}").to_arrow_table()
