"""The ledger: which offsets each run brought, and what became of them. A view of the logs, never a second truth."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import duckdb

from hindcast import tables
from hindcast.tables import Table

_PIECES = """
    WITH placed AS (
        SELECT *, "offset" - coalesce(sum(offsets) OVER (
                   PARTITION BY run, "partition" ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ), 0) AS piece
        FROM log WHERE ? IS NULL OR run = ?
    ), counted AS (
        SELECT run, "partition", piece, fate, any_value(systemFrom) AS knownAt, any_value(topicId) AS topicId,
               any_value(epoch) AS epoch, min("offset") AS first, max("offset" + offsets) AS after, sum(offsets) AS n,
               count_if(coalesce("timestamp" < streamTime, false)) AS late,
               count_if(fate = 'accepted' AND "value" IS NULL) AS without
        FROM placed GROUP BY run, "partition", piece, fate
    )
    SELECT run, "partition", any_value(knownAt), any_value(topicId), any_value(epoch), min(first), max(after),
           map(list(fate ORDER BY fate), list(n::BIGINT ORDER BY fate)), sum(late)::BIGINT, sum(without)::BIGINT
    FROM counted GROUP BY run, "partition", piece ORDER BY run, "partition", min(first)
"""


@dataclass(frozen=True)
class Piece:
    """Contiguous offsets of a partition, [start, end), that one run brought, with the count of each fate.

    `late`: of records dated before the stream time they met. `without`: of accepted ones without a value.
    """

    run: int
    partition: int
    known_at: datetime
    topic_id: str
    epoch: int
    start: int
    end: int
    fates: dict[str, int]
    late: int
    without: int


def pieces(log: Table, run: int | None = None) -> list[Piece]:
    """What a log has of one run, or of all; by run, partition and offset. None where there is no log yet."""
    found = tables.opened(log)
    if found is None:
        return []
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("log", found.to_pyarrow_dataset())
        return [Piece(*row) for row in engine.execute(_PIECES, [run, run]).fetchall()]
