"""Keys whose records are in more than one partition of a topic, counted in its log, without Spark."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from hindcast.store import arrow_reader, duckdb_reader, tables
from hindcast.store.tables import Table

_KEYS = """
    SELECT count(DISTINCT "key") FROM (
        SELECT "key" FROM records WHERE fate = 'accepted' AND "key" IS NOT NULL
        GROUP BY "key", epoch HAVING min("partition") <> max("partition")
    )
"""


class ScatteredKeyCount(NamedTuple):
    """How many keys are in more than one partition, among how many records, and whether these are `all` of the log."""

    keys: int
    records: int
    all: bool


def count_scattered_keys(log: Table, limit: int = tables.LARGE_ROWS) -> ScatteredKeyCount:
    """Return how many keys of a topic's log are in more than one partition, among the bytes of its newest records.

    Reads about `limit` records, and none of a log with a single partition. A key that moved because partitions were
    added does not count.
    """
    delta_table = tables.open_table(log)
    files = pa.table(delta_table.get_add_actions(flatten=True)).to_pylist() if delta_table is not None else []
    total = sum(file["num_records"] or 0 for file in files)
    partitions = {file.get(f"{end}.partition") for file in files for end in ("min", "max")} - {None}
    if delta_table is None or len(partitions) < 2:
        return ScatteredKeyCount(0, total, all=True)
    paths, records = [], 0
    for file in sorted(files, key=lambda file: str(file["modification_time"]), reverse=True):
        if records >= limit:
            break
        paths.append(file["path"])
        records += file["num_records"] or 0
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("records", arrow_reader.read_rows(delta_table, paths, {"key", "epoch", "partition", "fate"}))
        ((keys,),) = engine.execute(_KEYS).fetchall()
    return ScatteredKeyCount(keys, records, records == total)
