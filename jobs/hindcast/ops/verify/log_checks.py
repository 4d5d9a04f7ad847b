"""Check logs: every offset has one fate, and stream time and arrivals are as the records before say. Without Spark.

What was trimmed of a log (trim_ledger.py) is counted: of the offsets that a run ingested of a partition, those that
were not removed must be there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from hindcast.bitemporal.fates import FATES
from hindcast.common.plurals import format_count
from hindcast.contract import Contract
from hindcast.ingest import arrivals, ledger
from hindcast.kafka import gaps, topic_patterns
from hindcast.kafka.topic_patterns import MemberPartitions
from hindcast.ops.verify.findings import Check, Finding, backup_advice, restore_command
from hindcast.plan import horizon
from hindcast.plan.runs import Run, last_members
from hindcast.store import arrow_reader, duckdb_reader
from hindcast.store.tables import Table


def check_offsets(
    contract: Contract, name: str, table: Table, delta_table: DeltaTable, runs: list[Run], removed: pa.Table
) -> Iterator[Finding]:
    """Yield offsets of a topic without one fate in its log, and where the log differs from the plans of runs.

    `removed`: what was trimmed of the log (`trim_ledger.read_trim_counts`).
    """
    members = last_members(runs, name)
    with duckdb_reader.connect_alone() as engine:
        _load_log(engine, delta_table, ("partition", "offset", "offsets", "fate"), removed)
        listed = ", ".join(f"'{fate}'" for fate in FATES)
        is_unknown = f"fate IS NULL OR fate NOT IN ({listed})"
        row = engine.execute(f"SELECT *, count(*) OVER () {_FIRST.format(is_unknown)}").fetchone()
        if row:
            text = f"{format_count(row[-1], 'offset')} with an unknown fate: {row[3]}"
            yield _build_finding(contract, name, table, delta_table, "offsets", text, members, row)
        duplicates = engine.execute(_TWICE).fetchall()
        holes = [row for row in engine.execute(_HOLES).fetchall() if not _is_left_to_next_run(runs, name, *row)]
        lost = engine.execute(_LOST).fetchall()
    if duplicates:
        text = f"{format_count(len(duplicates), 'offset')} twice in the log"
        yield _build_finding(contract, name, table, delta_table, "offsets", text, members, duplicates[0])
    if holes:
        partition, start, end = holes[0]
        text = f"{format_count(len(holes), 'hole')}: offsets {start} to {end - 1} have no fate"
        yield _build_finding(contract, name, table, delta_table, "offsets", text, members, (partition, start))
    if lost and not duplicates:
        partition, start, end, left, trimmed = lost[0]
        due = end - start - trimmed
        text = f"of offsets {start} to {end - 1} {trimmed:,} were trimmed; {left:,} are left, not {due:,}"
        yield _build_finding(contract, name, table, delta_table, "offsets", text, members, (partition, start))
    if not duplicates and not holes and not lost:
        yield from _check_planned_offsets(contract, name, table, delta_table, runs)


def read_run_numbers(delta_table: DeltaTable) -> set[int]:
    """Return the numbers of the runs in the rows of a log."""
    with duckdb_reader.connect_alone() as engine:
        _load_log(engine, delta_table, ("run",))
        return {number for (number,) in engine.execute("SELECT DISTINCT run FROM log").fetchall()}


def _is_left_to_next_run(runs: list[Run], name: str, partition: int, start: int, end: int) -> bool:
    """Return True if runs since the last completed one planned a hole: the next run ingests it."""
    last = max((run.number for run in runs if run.state == "completed"), default=0)
    plans_since = (run.plan.topics[name] for run in runs if run.number > last and name in run.plan.topics)
    return any(
        plan.earlier[partition].start <= start and end <= plan.earlier[partition].end
        for plan in plans_since
        if partition in plan.earlier
    )


def _check_planned_offsets(
    contract: Contract, name: str, table: Table, delta_table: DeltaTable, runs: list[Run]
) -> Iterator[Finding]:
    """Yield a finding if the log does not have what a completed run planned to ingest."""
    ranges = ledger.read_ingested_ranges(table)
    for run in runs:
        plan = run.plan.topics.get(name)
        if run.state != "completed" or plan is None:
            continue
        ingested, planned = defaultdict[int, list[tuple[int, int]]](list), defaultdict[int, list[tuple[int, int]]](list)
        for entry in (entry for entry in ranges if entry.run == run.number):
            ingested[entry.partition].append((entry.start, entry.end))
        for partition, offsets in ((p, r) for part in plan.parts for p, r in part.items()):
            planned[partition].append((offsets.start, offsets.end))
        wrong = next((p for p in sorted({*ingested, *planned}) if sorted(ingested[p]) != sorted(planned[p])), None)
        if wrong is not None:
            actual, due = _describe_ranges(ingested[wrong]), _describe_ranges(planned[wrong])
            text = f"run {run.number} planned {due}, and the log has {actual} of it"
            first = min(start for start, _ in (ingested[wrong] or planned[wrong]))
            yield _build_finding(contract, name, table, delta_table, "offsets", text, plan.members, (wrong, first))
            return


def _describe_ranges(offsets: list[tuple[int, int]]) -> str:
    """Return ranges of offsets in words, as `offsets 0 to 3`."""
    return " and ".join(f"offsets {start} to {end - 1}" for start, end in sorted(offsets)) or "no offset"


def check_stream_time(
    contract: Contract, name: str, table: Table, delta_table: DeltaTable, runs: list[Run], removed: pa.Table
) -> Iterator[Finding]:
    """Yield records whose stream time is not what the accepted records before them had reached.

    Runs that dated records by another `valid_time` are not compared. In a trimmed log the stream time may be any up to
    the horizon, unless a record that is left had reached more.
    """
    trimmed = horizon.read_horizon(table, delta_table)
    before = {"horizon": trimmed.moment if trimmed else None}
    topic_plans = {run.number: topic_plan for run in runs if (topic_plan := run.plan.topics.get(name))}
    members = last_members(runs, name)
    with duckdb_reader.connect_alone() as engine:
        columns = ("run", "partition", "offset", "offsets", "timestamp", "fate", "streamTime")
        _load_log(engine, delta_table, columns, removed)
        wrong = engine.execute(_TIMES, before).fetchall()
        firsts = engine.execute(_REACHED, before).fetchall()
    for run, partition, offset, is_right, since in firsts:
        valid_times = {topic_plans[n].valid_time for n in since or () if n in topic_plans} | {
            topic_plans[run].valid_time if run in topic_plans else None
        }
        if not is_right and len(valid_times) <= 1 and run in topic_plans:
            wrong.append((partition, offset))
    if wrong:
        text = f"{format_count(len(wrong), 'record')} with a stream time that the accepted records before do not give"
        yield _build_finding(contract, name, table, delta_table, "stream time", text, members, min(wrong))


def check_arrivals(
    contract: Contract, name: str, table: Table, delta_table: DeltaTable, runs: list[Run], removed: pa.Table
) -> Iterator[Finding]:
    """Yield records that could be known before one that a run ingested before them from their partition."""
    if arrivals.COLUMN not in {field.name for field in delta_table.schema().fields}:
        return
    with duckdb_reader.connect_alone() as engine:
        _load_log(engine, delta_table, ("run", "partition", "offset", "offsets", arrivals.COLUMN), removed)
        wrong = engine.execute(_ARRIVALS).fetchall()
    if wrong:
        text = f"{format_count(len(wrong), 'record')} that arrived before one with a lower offset"
        yield _build_finding(contract, name, table, delta_table, "arrival", text, last_members(runs, name), min(wrong))


def _build_finding(
    contract: Contract,
    name: str,
    table: Table,
    delta_table: DeltaTable,
    check: Check,
    text: str,
    members: MemberPartitions,
    place: Sequence[int],
) -> Finding:
    partition, offset = place[:2]
    text = f"{text}, in {topic_patterns.describe_partition(contract.kafka_topic(name), members, partition)}"
    return Finding(
        check, table.name, text, restore_command(table, delta_table) or backup_advice(table), None, partition, offset
    )


def _load_log(
    engine: duckdb.DuckDBPyConnection, table: DeltaTable, columns: tuple[str, ...], removed: pa.Table | None = None
) -> None:
    """Create `log`; and `ingested`: the offsets [first, after) that a run ingested, `n` of which were trimmed."""
    engine.execute("SET TimeZone = 'UTC'")
    engine.register("part", arrow_reader.read_rows(table, None, columns))
    engine.execute("CREATE TEMP TABLE log AS FROM part")
    if removed is not None:
        engine.register("removed", removed)
        engine.execute(
            'CREATE TEMP TABLE ingested AS SELECT run, "partition", first, "after", sum(n)::BIGINT AS n FROM removed '
            "GROUP BY ALL"
        )


def _quote_words(*words: str) -> str:
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
    UNION ALL SELECT "partition", first, "after" - first FROM ingested
"""
_HOLES = f'{_PLACED.format(_SPANS)} SELECT "partition", ended, "offset" FROM placed WHERE "offset" > ended ORDER BY ALL'  # noqa: S608
"""Offsets [ended, offset) that no run has ingested."""

_LOST = """
    SELECT ingested."partition", first, "after", coalesce(sum(offsets), 0)::BIGINT AS left_over, n
    FROM ingested LEFT JOIN log
      ON log."partition" = ingested."partition" AND "offset" >= first AND "offset" < "after"
    GROUP BY ingested.run, ingested."partition", first, "after", n HAVING left_over + n <> "after" - first ORDER BY ALL
"""
"""Trimmed ranges of which more or less is left than was not removed."""

_PIECES = """
    WITH parts AS (
        SELECT log.*, if(ingested.first IS NOT NULL, -1 - ingested.first, "offset" - coalesce(sum(offsets) OVER (
                   PARTITION BY log.run, log."partition", ingested.first ORDER BY "offset"
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ), 0)) AS piece
        FROM log LEFT JOIN ingested ON log.run = ingested.run AND log."partition" = ingested."partition"
                                  AND "offset" >= ingested.first AND "offset" < ingested."after"
    )
"""
_TRIMMED = "coalesce({0} <= $horizon AND coalesce({1} <= {0}, true), false)"
"""True if trimmed records can have reached a stream time, and no other record had reached more."""

_TIMES = f"""
    {_PIECES}, reached AS (
        SELECT "partition", "offset", offsets, fate, streamTime,
               greatest(
                   first_value(streamTime) OVER before,
                   max(CASE WHEN fate = 'accepted' THEN "timestamp" END) OVER before
               ) AS expected, row_number() OVER (PARTITION BY run, "partition", piece ORDER BY "offset") AS nth
        FROM parts
        WHERE fate NOT IN ({_quote_words(*gaps.GAP_FATES)})
        WINDOW before AS (
            PARTITION BY run, "partition", piece ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    )
    SELECT "partition", "offset" FROM reached
    WHERE nth > 1 AND streamTime IS DISTINCT FROM expected AND NOT {_TRIMMED.format("streamTime", "expected")}
"""  # noqa: S608  # our own words
"""Records whose stream time is neither that of the first one of their piece, nor what was accepted since."""

_ARRIVALS = f"""
    {_PIECES}, earlier AS (
        SELECT "partition", "offset", arrival, max(arrival) OVER before AS reached
        FROM parts
        WINDOW before AS (
            PARTITION BY run, "partition", piece ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    )
    SELECT "partition", "offset" FROM earlier WHERE arrival < reached
"""  # noqa: S608  # our own words
"""Records with an arrival before that of one before them in their piece."""

_REACHED = f"""
    {_PIECES}, pieces AS (
        SELECT run, "partition", piece, min("offset") AS first,
               arg_min(struct_pack(it := streamTime), "offset").it AS had,
               max("timestamp") FILTER (fate = 'accepted') AS latest
        FROM parts WHERE fate NOT IN ({_quote_words(*gaps.GAP_FATES)}) GROUP BY ALL
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
"""For each piece, whether its first record has the stream time that the records before had reached, and the runs that
ingested those. What a run ingests before a start offset and after the last run's end may not know of each other.
"""
