"""Keys whose records are in more than one partition of a topic, counted in its log, without Spark."""

from __future__ import annotations

from typing import NamedTuple

import duckdb
import pyarrow as pa

from hindcast.delta import tables, widened
from hindcast.delta.tables import Table

_KEYS = """
    SELECT count(DISTINCT "key") FROM (
        SELECT "key" FROM records WHERE fate = 'accepted' AND "key" IS NOT NULL
        GROUP BY "key", epoch HAVING min("partition") <> max("partition")
    )
"""


class Scattered(NamedTuple):
    """How many keys are in more than one partition, and in how many records that was looked for; `all` of them?"""

    keys: int
    records: int
    all: bool


def count_scattered_keys(log: Table, most: int = tables.LARGE) -> Scattered:
    """Return how many keys of a topic's log are in more than one partition, as the bytes of its newest records tell.

    About `most` records are read, none of a log that has one partition alone. A key that moves because partitions were
    added is not one of these.
    """
    found = tables.opened(log)
    files = pa.table(found.get_add_actions(flatten=True)).to_pylist() if found is not None else []
    total = sum(file["num_records"] or 0 for file in files)
    if found is None or len({file.get(f"{end}.partition") for file in files for end in ("min", "max")} - {None}) < 2:
        return Scattered(0, total, all=True)
    paths, records = [], 0
    for file in sorted(files, key=lambda file: str(file["modification_time"]), reverse=True):
        if records >= most:
            break
        paths.append(file["path"])
        records += file["num_records"] or 0
    with duckdb.connect() as engine:
        engine.register("records", widened.rows(found, paths, {"key", "epoch", "partition", "fate"}))
        ((keys,),) = engine.execute(_KEYS).fetchall()
    return Scattered(keys, records, records == total)
