"""Logs: every offset has one fate, and stream time is what the accepted records had reached. Without Spark.

What was trimmed of a log (trimmed.py) is counted in: of what a run brought of a partition, as many offsets are there as
were not removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from hindcast import horizon
from hindcast.contracts import Contract
from hindcast.delta import widened
from hindcast.delta.tables import Table
from hindcast.kafka import gaps, members
from hindcast.kafka.members import Members
from hindcast.planning import plans
from hindcast.planning.journal import Run
from hindcast.planning.plans import Plan, Share
from hindcast.replay import ledger
from hindcast.upkeep.verifying.findings import Finding, backup, restore
from hindcast.words import counted


def offsets(
    contract: Contract, name: str, table: Table, found: DeltaTable, runs: list[Run], removed: pa.Table
) -> Iterator[Finding]:
    """Whether each replayed offset of a topic is in its log once, with a fate, and all that was planned.

    `removed`: what was trimmed of the log (`trimmed.counts`).
    """
    known = plans.members_of(runs, name)
    with duckdb.connect() as engine:
        _load(engine, found, ("partition", "offset", "offsets", "fate"), removed)
        listed = ", ".join(f"'{fate}'" for fate in ledger.FATES)
        odd = f"fate IS NULL OR fate NOT IN ({listed})"
        row = engine.execute(f"SELECT *, count(*) OVER () {_FIRST.format(odd)}").fetchone()
        if row:
            told = f"{counted(row[-1], 'offset')} with no fate that there is: {row[3]}"
            yield _finding(contract, name, table, found, "offsets", told, known, row)
        twice = engine.execute(_TWICE).fetchall()
        holes = [row for row in engine.execute(_HOLES).fetchall() if not _left(runs, name, *row)]
        lost = engine.execute(_LOST).fetchall()
    if twice:
        told = f"{counted(len(twice), 'offset')} twice in the log"
        yield _finding(contract, name, table, found, "offsets", told, known, twice[0])
    if holes:
        partition, start, end = holes[0]
        told = f"{counted(len(holes), 'hole')}: offsets {start} to {end - 1} have no fate"
        yield _finding(contract, name, table, found, "offsets", told, known, (partition, start))
    if lost and not twice:
        partition, start, end, there, gone = lost[0]
        told = (
            f"of offsets {start} to {end - 1} {gone:,} were trimmed and {there:,} are there, not {end - start - gone:,}"
        )
        yield _finding(contract, name, table, found, "offsets", told, known, (partition, start))
    if not twice and not holes and not lost:
        yield from _planned(contract, name, table, found, runs)


def runs(found: DeltaTable) -> set[int]:
    """The runs that the rows of a log name."""
    with duckdb.connect() as engine:
        _load(engine, found, ("run",))
        return {number for (number,) in engine.execute("SELECT DISTINCT run FROM log").fetchall()}


def _left(runs: list[Run], name: str, partition: int, start: int, end: int) -> bool:
    """Whether a hole is one that runs since the last completed one had in their plans: the next run takes it."""
    last = max((run.number for run in runs if run.state == "completed"), default=0)
    shares = (
        Share.from_json(run.plan["topics"][name]) for run in runs if run.number > last and name in run.plan["topics"]
    )
    return any(
        s.earlier[partition].start <= start and end <= s.earlier[partition].end
        for s in shares
        if partition in s.earlier
    )


def _planned(contract: Contract, name: str, table: Table, found: DeltaTable, runs: list[Run]) -> Iterator[Finding]:
    """Whether the log has of each completed run what it was planned to bring."""
    pieces = ledger.pieces(table)
    for run in runs:
        share = Plan.from_json(run.plan).topics.get(name)
        if run.state != "completed" or share is None:
            continue
        own, wanted = defaultdict[int, list[tuple[int, int]]](list), defaultdict[int, list[tuple[int, int]]](list)
        for it in (it for it in pieces if it.run == run.number):
            own[it.partition].append((it.start, it.end))
        for partition, its in ((p, r) for part in share.parts for p, r in part.items()):
            wanted[partition].append((its.start, its.end))
        wrong = next((p for p in sorted({*own, *wanted}) if sorted(own[p]) != sorted(wanted[p])), None)
        if wrong is not None:
            told = (
                f"run {run.number} was to bring {_ranges(wanted[wrong])}, and the log has {_ranges(own[wrong])} of it"
            )
            first = min(start for start, _ in (own[wrong] or wanted[wrong]))
            yield _finding(contract, name, table, found, "offsets", told, share.members, (wrong, first))
            return


def _ranges(offsets: list[tuple[int, int]]) -> str:
    """`offsets 0 to 3`, `no offset`."""
    return " and ".join(f"offsets {start} to {end - 1}" for start, end in sorted(offsets)) or "no offset"


def stream_time(
    contract: Contract, name: str, table: Table, found: DeltaTable, runs: list[Run], removed: pa.Table
) -> Iterator[Finding]:
    """Whether the stream time before each record is what the accepted records before it had reached.

    Not asked across runs that dated records by another `valid_time`. In a log that was trimmed it may be any up to the
    horizon, if no record that is there had reached more.
    """
    at = horizon.of(table, found)
    before = {"horizon": at.at if at else None}
    shares = {run.number: share for run in runs if (share := Plan.from_json(run.plan).topics.get(name))}
    known = plans.members_of(runs, name)
    with duckdb.connect() as engine:
        _load(engine, found, ("run", "partition", "offset", "offsets", "timestamp", "fate", "streamTime"), removed)
        wrong = engine.execute(_TIMES, before).fetchall()
        firsts = engine.execute(_REACHED, before).fetchall()
    for run, partition, offset, had, since in firsts:
        dated = {shares[n].valid_time for n in since or () if n in shares} | {
            shares[run].valid_time if run in shares else None
        }
        if not had and len(dated) <= 1 and run in shares:
            wrong.append((partition, offset))
    if wrong:
        told = f"{counted(len(wrong), 'record')} with another stream time than the accepted ones before had reached"
        yield _finding(contract, name, table, found, "stream time", told, known, min(wrong))


def _finding(
    contract: Contract, name: str, table: Table, found: DeltaTable, check: str, told: str, known: Members, place: Any
) -> Finding:
    partition, offset = place[:2]
    told = f"{told}, in {members.place(contract.kafka_topic(name), known, partition)}"
    return Finding(check, table.name, told, restore(table, found) or backup(table), None, partition, offset)


def _load(
    engine: duckdb.DuckDBPyConnection, found: DeltaTable, columns: tuple[str, ...], removed: pa.Table | None = None
) -> None:
    """Makes `log`; and `brought`: offsets [first, after) that a run brought, `n` of which were trimmed."""
    engine.execute("SET TimeZone = 'UTC'")
    engine.register("part", widened.rows(found, None, columns))
    engine.execute("CREATE TEMP TABLE log AS FROM part")
    if removed is not None:
        engine.register("removed", removed)
        engine.execute(
            'CREATE TEMP TABLE brought AS SELECT run, "partition", first, "after", sum(n)::BIGINT AS n FROM removed '
            "GROUP BY ALL"
        )


def _quoted(*words: str) -> str:
    return ", ".join(f"'{word}'" for word in words)


_FIRST = 'FROM log WHERE {} ORDER BY "partition", "offset" LIMIT 1'
_PLACED = """
    WITH placed AS (
        SELECT "partition", "offset",
               max("offset" + offsets) OVER (
                   PARTITION BY "partition" ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS ended
        FROM ({})
    )
"""
_TWICE = _PLACED.format("FROM log") + 'SELECT "partition", "offset" FROM placed WHERE "offset" < ended ORDER BY ALL'  # noqa: S608
"""Records that begin before the one before them has ended."""

_SPANS = """
    SELECT "partition", "offset", offsets FROM log
    UNION ALL SELECT "partition", first, "after" - first FROM brought
"""
_HOLES = f'{_PLACED.format(_SPANS)} SELECT "partition", ended, "offset" FROM placed WHERE "offset" > ended ORDER BY ALL'  # noqa: S608
"""Offsets [ended, offset) that no run has brought."""

_LOST = """
    SELECT brought."partition", first, "after", coalesce(sum(offsets), 0)::BIGINT AS there, n
    FROM brought LEFT JOIN log
      ON log."partition" = brought."partition" AND "offset" >= first AND "offset" < "after"
    GROUP BY brought.run, brought."partition", first, "after", n HAVING there + n <> "after" - first ORDER BY ALL
"""
"""Of what was trimmed, where more or less is left than was not removed."""

_PIECES = """
    WITH parts AS (
        SELECT log.*, if(brought.first IS NOT NULL, -1 - brought.first, "offset" - coalesce(sum(offsets) OVER (
                   PARTITION BY log.run, log."partition", brought.first ORDER BY "offset"
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ), 0)) AS piece
        FROM log LEFT JOIN brought ON log.run = brought.run AND log."partition" = brought."partition"
                                  AND "offset" >= brought.first AND "offset" < brought."after"
    )
"""
_TRIMMED = "coalesce({0} <= $horizon AND coalesce({1} <= {0}, true), false)"
"""Whether a stream time can have been reached by records that were trimmed, and no other had reached more."""

_TIMES = f"""
    {_PIECES}, reached AS (
        SELECT "partition", "offset", offsets, fate, streamTime,
               greatest(
                   first_value(streamTime) OVER before,
                   max(CASE WHEN fate = 'accepted' THEN "timestamp" END) OVER before
               ) AS told, row_number() OVER (PARTITION BY run, "partition", piece ORDER BY "offset") AS nth
        FROM parts
        WHERE fate NOT IN ({_quoted(*gaps.FATES)})
        WINDOW before AS (
            PARTITION BY run, "partition", piece ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    )
    SELECT "partition", "offset" FROM reached
    WHERE nth > 1 AND streamTime IS DISTINCT FROM told AND NOT {_TRIMMED.format("streamTime", "told")}
"""  # noqa: S608  # our own words
"""Records whose stream time is not that of the first one of their piece, or what was accepted since it."""

_REACHED = f"""
    {_PIECES}, pieces AS (
        SELECT run, "partition", piece, min("offset") AS first,
               arg_min(struct_pack(it := streamTime), "offset").it AS had,
               max("timestamp") FILTER (fate = 'accepted') AS latest
        FROM parts WHERE fate NOT IN ({_quoted(*gaps.FATES)}) GROUP BY ALL
    )
    SELECT one.run, one."partition", one.first,
           any_value(one.had) IS NOT DISTINCT FROM max(other.latest)
           OR any_value(one.had) IS NOT DISTINCT FROM max(other.latest) FILTER (other.run < one.run)
           OR {_TRIMMED.format("any_value(one.had)", "max(other.latest)")},
           list(DISTINCT other.run) FILTER (other.run IS NOT NULL)
    FROM pieces one LEFT JOIN pieces other
      ON other."partition" = one."partition" AND other.first < one.first AND other.run <= one.run
    GROUP BY ALL
"""  # noqa: S608  # our own words
"""Of each piece, whether its first record has the stream time that what was there before had reached, and which runs
had brought that. What a run brings before an anchor, and what after the last run's end, may not know of each other.
"""
