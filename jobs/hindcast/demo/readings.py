"""A join of a stream with a table in both readings: which events have two answers, and the late record that is why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa

WHY = ("emitted in run", "late record in run", "at offset")
"""The columns that tell why there are two answers."""


class Readings(NamedTuple):
    """How many events have the same answer in both readings, and those that have not, in the order of time.

    | column of `differing` | |
    | --- | --- |
    | the columns `same`, timestamp | the event |
    | `<value>, kafka`, `<value>, corrected` | both answers |
    | emitted in run | the run that emitted the one of the kafka reading |
    | late record in run, at offset | the run that brought the version valid then, if a later one; its offset |
    | closed | whether the corrected reading had the answer that was emitted, when it was emitted |

    An event without a row in a reading has nulls there.
    """

    same: int
    differing: pa.Table


def beside(
    emitted: pa.Table,
    corrected: pa.Table,
    versions: pa.Table,
    log: pa.Table,
    *,
    same: Sequence[str],
    values: Sequence[str],
    on: Mapping[str, str],
) -> Readings:
    """Compares the values of both readings, event by event.

    `emitted`: the log of the kafka view; `corrected`: every row of the corrected view; `versions`: every row of the
    table that both look up, by its key's columns `on` (those of the view that they equal); `log`: that topic's log.
    """
    first = "".join(f'coalesce(e."{c}", c."{c}") AS "{c}", ' for c in (*same, "timestamp"))
    answers = "".join(f'e."{v}" AS "{v}, kafka", c."{v}" AS "{v}, corrected", ' for v in values)
    differs = " OR ".join(f'e."{v}" IS DISTINCT FROM c."{v}"' for v in values)
    alike = " AND ".join(f'past."{v}" IS NOT DISTINCT FROM e."{v}"' for v in values)
    keyed = " AND ".join(f'a."{column}" = v."{key}"' for key, column in on.items())
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        for name, rows in (("emitted", emitted), ("corrected", corrected), ("versions", versions), ("log", log)):
            engine.register(name, rows)
        engine.execute(f"""
            CREATE TABLE answers AS
            WITH e AS (FROM emitted WHERE _epoch = (SELECT max(_epoch) FROM emitted) AND NOT _tombstone),
                 c AS (FROM corrected WHERE systemTo IS NULL)
            SELECT {first}{answers}
                   e._run AS "{WHY[0]}", past._offset IS NOT NULL AS closed,
                   e._run IS NULL OR c.systemFrom IS NULL OR {differs} AS differs
            FROM e FULL JOIN c ON e._sourcePartition = c._partition AND e._sourceOffset = c._offset
            LEFT JOIN corrected past ON past._partition = e._sourcePartition AND past._offset = e._sourceOffset
                AND past.systemFrom <= e.systemFrom AND past.systemTo > e.systemFrom AND {alike}""")  # noqa: S608
        [(agreed,)] = engine.execute("SELECT count(*) FROM answers WHERE NOT differs").fetchall()
        differing = engine.sql(f"""
            SELECT a.* EXCLUDE (closed, differs), log.run AS "{WHY[1]}", log."offset" AS "{WHY[2]}", closed
            FROM (FROM answers WHERE differs) a
            ASOF LEFT JOIN (FROM versions WHERE systemTo IS NULL) v ON {keyed} AND a.timestamp >= v.validFrom
            LEFT JOIN log ON log.partition = v._partition AND log."offset" = v._offset
                AND (v.validTo IS NULL OR v.validTo > a.timestamp) AND log.run > a."{WHY[0]}"
            ORDER BY {", ".join(f'a."{c}"' for c in ("timestamp", *same))}""").to_arrow_table()  # noqa: S608
    return Readings(agreed, differing)
