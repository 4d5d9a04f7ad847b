"""A join of a stream with a table in both readings: the events whose answers differ, and the late record behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa

CAUSE_COLUMNS = ("emitted in run", "late record in run", "at offset")
"""The columns that say why the answers differ."""


class ReadingsComparison(NamedTuple):
    """How many events have the same answer in both readings, and the rows of the others, by time.

    | column of `differing` | |
    | --- | --- |
    | the columns `same`, timestamp | the event |
    | `<value>, kafka`, `<value>, corrected` | both answers |
    | emitted in run | the run that emitted the answer of the kafka reading |
    | late record in run, at offset | the run that ingested the version valid then, if a later one; its offset |
    | closed | true if the corrected reading also had the emitted answer at that time |

    An event without a row in a reading has nulls there.
    """

    equal_count: int
    differing: pa.Table


def compare_readings(
    emitted: pa.Table,
    corrected: pa.Table,
    versions: pa.Table,
    log: pa.Table,
    *,
    same: Sequence[str],
    values: Sequence[str],
    on: Mapping[str, str],
) -> ReadingsComparison:
    """Return how the `values` of both readings compare, event by event.

    `emitted` is the log of the kafka view, `corrected` every row of the corrected view, `versions` every row of the
    table that both look up, `log` that topic's log. `on` maps the table's key columns to the view's columns that equal
    them, `same` are the columns that identify an event.
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
                   e._run AS "{CAUSE_COLUMNS[0]}", past._offset IS NOT NULL AS closed,
                   e._run IS NULL OR c.systemFrom IS NULL OR {differs} AS differs
            FROM e FULL JOIN c ON e._sourcePartition = c._partition AND e._sourceOffset = c._offset
            LEFT JOIN corrected past ON past._partition = e._sourcePartition AND past._offset = e._sourceOffset
                AND past.systemFrom <= e.systemFrom AND past.systemTo > e.systemFrom AND {alike}""")  # noqa: S608
        [(equal_count,)] = engine.execute("SELECT count(*) FROM answers WHERE NOT differs").fetchall()
        differing = engine.sql(f"""
            SELECT a.* EXCLUDE (closed, differs), log.run AS "{CAUSE_COLUMNS[1]}",
                log."offset" AS "{CAUSE_COLUMNS[2]}", closed
            FROM (FROM answers WHERE differs) a
            ASOF LEFT JOIN (FROM versions WHERE systemTo IS NULL) v ON {keyed} AND a.timestamp >= v.validFrom
            LEFT JOIN log ON log.partition = v._partition AND log."offset" = v._offset
                AND (v.validTo IS NULL OR v.validTo > a.timestamp) AND log.run > a."{CAUSE_COLUMNS[0]}"
            ORDER BY {", ".join(f'a."{c}"' for c in ("timestamp", *same))}""").to_arrow_table()  # noqa: S608
    return ReadingsComparison(equal_count, differing)
