"""The ledger as a picture: which offsets each run replayed, up to which moment, and with which outcome.

A column is a run, a row a partition. A completed run's offsets come from its report, others from the logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from hindcast.airflow.pages import graph
from hindcast.airflow.pages.kept_results import KeptResults
from hindcast.airflow.pages.reading_limits import SlowReportError, limit_log, limit_report
from hindcast.bitemporal.fates import FATES
from hindcast.common.errors import PlatformError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.ingest import ledger
from hindcast.kafka import topic_patterns
from hindcast.plan import journal
from hindcast.plan.runs import Completed, Run
from hindcast.query.cut_values import cut_text
from hindcast.report.run_report import TopicReport
from hindcast.store import duckdb_reader, tables
from hindcast.store.duckdb_reader import EngineFactory

MAX_RUNS = 24
"""How many runs a picture has."""

MAX_PARTITIONS = 64
"""How many partitions of a topic it has."""

MAX_CELL_RANGES = 20
"""How many ranges of offsets it lists of a run and a partition."""

MAX_RANGES = 200_000
"""Roughly how many ranges of offsets of all reports are kept, and of all logs, and the most of a run and a topic: each
takes 300 bytes.
"""


class RunOffsets(NamedTuple):
    """Contiguous offsets of a partition, [start, end), that a run replayed or will; `fates` counts those replayed."""

    partition: int
    start: int
    end: int
    fates: dict[str, int]


@dataclass(frozen=True)
class _TopicReport:
    """What the report of a completed run says of a topic: the offsets replayed, and how many records were late."""

    offsets: list[RunOffsets]
    late: int


_Reports: TypeAlias = dict[str, _TopicReport]
"""What the report of a run says of its topics, of which it may say nothing."""

_READ = KeptResults[_Reports](MAX_RANGES)
_LOGGED = KeptResults[list[RunOffsets]](MAX_RANGES)


@dataclass(frozen=True)
class _UnreadReport:
    """A report that was not read, and the error that says why."""

    error: PlatformError


def _read_report(warehouse: str, run: Run) -> _Reports | _UnreadReport:
    """Return what a run's report says of its topics; nothing without a report. TableError if it is malformed.

    What was read is kept.
    """
    if not isinstance(run.outcome, Completed):
        return {}
    key = warehouse, run.plan.pipeline, run.number
    report = run.outcome

    def read() -> _Reports:
        try:
            with limit_report(run.plan.pipeline):
                return _parse_report(report.report)
        except SlowReportError as error:
            fix = f"hindcast ledger {run.plan.pipeline} lists what it replayed"
            raise PlatformError(f"this report was not read: it {error}", where=run.plan.pipeline, fix=fix) from None

    try:
        with run.refuse_malformed_report():
            return _READ.find(run, key, read, lambda topics: sum(1 + len(it.offsets) for it in topics.values()))
    except PlatformError as error:
        return _UnreadReport(error)


def _parse_report(report: JsonObject) -> _Reports:
    topics: Any = report.get("topics") or {}
    reports = {}
    for name, document in topics.items():
        if document is None:
            continue
        topic = TopicReport.from_json(name, document)
        parts = (RunOffsets(p.partition, p.start, p.end, dict(p.fates)) for p in topic.partitions)
        reports[name] = _TopicReport([part for part in parts if part.end > part.start], topic.late)
    return reports


def _format_run(run: Run) -> JsonObject:
    return {
        "run": run.number,
        "runId": cut_text(run.run_id),
        "state": run.state,
        "knownAt": run.known_at.isoformat(),
        "intervalEnd": end.isoformat() if (end := run.plan.interval_end) else None,
        "release": bool(run.plan.released_keys),
    }


def build_page(
    settings: Settings, contract: Contract, readable: Collection[str], before: int | None = None
) -> JsonObject:
    """Return the fields of a pipeline's page: its last runs (those `before` a number), and the graph of its tables."""
    past = [
        run for run in journal.read_runs(settings.warehouse, contract.pipeline) if before is None or run.number < before
    ]
    shown = past[-MAX_RUNS:]
    read = {run.number: _read_report(settings.warehouse, run) for run in reversed(shown)}
    unread = {number: it.error for number, it in sorted(read.items()) if isinstance(it, _UnreadReport)}
    reports = {number: it for number, it in read.items() if not isinstance(it, _UnreadReport)}
    offsets: dict[str, list[list[RunOffsets]]] = {}
    for name in contract.topics:
        by_run = offsets[name] = []
        for run in shown:
            try:
                is_read = run.number not in unread
                by_run.append(_find_offsets(settings.warehouse, run, name, reports[run.number]) if is_read else [])
            except PlatformError as error:
                unread[run.number] = error
                by_run.append([])
    late = {
        name: [own[name].late if name in (own := reports.get(run.number, {})) else 0 for run in shown]
        for name in contract.topics
    }
    return {
        "pipeline": contract.pipeline,
        "before": before,
        "runs": [_format_run(run) for run in shown],
        "unread": sorted(unread),
        "problems": [{"found": it.found, "where": it.where, "mend": it.fix} for it in [*unread.values()][:1]],
        "topics": [
            _build_topic(settings.warehouse, contract, name, late[name], by_run) for name, by_run in offsets.items()
        ],
        "fates": _list_fates(pieces for by_run in offsets.values() for pieces in by_run),
        "earlier": shown[0].number if len(past) > MAX_RUNS else None,
        "graph": graph.build_graph(settings, contract, readable),
    }


def _find_offsets(warehouse: str, run: Run, name: str, reports: _Reports) -> list[RunOffsets]:
    """Return what a run replayed of a topic, by its report or else by the log, of which it is kept; PlatformError if it
    was not read (reading_limits.py).
    """
    if name in reports:
        return reports[name].offsets
    if name not in run.plan.topics:
        return []
    pipeline = run.plan.pipeline
    log = tables.open_table(tables.log_table(warehouse, pipeline, name))
    key = warehouse, pipeline, run.number, name, log.version() if log is not None else None

    def read() -> list[RunOffsets]:
        with limit_log(pipeline) as open_engine:
            return list_run_offsets(warehouse, run, name, open_engine)

    return _LOGGED.find(run, key, read, lambda pieces: 1 + len(pieces))


def list_run_offsets(
    warehouse: str, run: Run, name: str, open_engine: EngineFactory = duckdb_reader.open_engine
) -> list[RunOffsets]:
    """Return what a run replayed of a topic, by the log, and what it planned and has not replayed.

    `open_engine` opens what reads the log; PlatformError if that has more than `MAX_RANGES` ranges of the run.
    """
    if (plan := run.plan.topics.get(name)) is None:
        return []
    log = tables.log_table(warehouse, run.plan.pipeline, name)
    ingested = {
        (p.partition, p.start): RunOffsets(p.partition, p.start, p.end, p.fates)
        for p in ledger.read_ingested_ranges(log, run.number, open_engine, MAX_RANGES)
    }
    planned = [RunOffsets(p, offsets.start, offsets.end, {}) for part in plan.parts for p, offsets in part.items()]
    done = [ingested.pop((piece.partition, piece.start), piece) for piece in planned]
    left = [
        RunOffsets(piece.partition, own.end, piece.end, {})
        for piece, own in zip(planned, done, strict=True)
        if own.end < piece.end
    ]
    return [*done, *left, *ingested.values()]


def find_gaps(by_run: list[list[RunOffsets]]) -> list[dict[int, tuple[int, int]]]:
    """Return for each run, by partition, the offsets next to its own that no earlier one of these runs replayed.

    A run that replayed nothing of its plan leaves that to the next run, which is no gap.
    """
    reached: dict[int, tuple[int, int]] = {}
    gaps: list[dict[int, tuple[int, int]]] = []
    for pieces in by_run:
        missing = {}
        for piece in (piece for piece in pieces if piece.fates):
            low, high = reached.get(piece.partition, (piece.start, piece.start))
            if piece.start > high:
                missing[piece.partition] = (high, piece.start)
            elif piece.end < low:
                missing[piece.partition] = (piece.end, low)
            reached[piece.partition] = (min(low, piece.start), max(high, piece.end))
        gaps.append(missing)
    return gaps


def _list_fates(by_run: Iterable[Sequence[RunOffsets]]) -> list[str]:
    """Return the fates that occur, in their usual order."""
    found = {fate for pieces in by_run for piece in pieces for fate, n in piece.fates.items() if n}
    return [fate for fate in FATES if fate in found]


def _build_topic(
    warehouse: str, contract: Contract, name: str, late: list[int], by_run: list[list[RunOffsets]]
) -> JsonObject:
    """Return the partitions of a topic, each with a cell for every run, and how many records of each run were late.

    `topic` and `number` of a partition are Kafka's (topic_patterns.py).
    """
    by_partition = [_group_by_partition(pieces) for pieces in by_run]
    partitions = sorted({p for groups in by_partition for p in groups})
    shown = partitions[:MAX_PARTITIONS]
    gaps = find_gaps([[piece for p in shown for piece in groups.get(p, ())] for groups in by_partition])
    kafka_topic, members = contract.kafka_topic(name), journal.read_members(warehouse, contract, name)
    rows: list[JsonValue] = []
    for p in shown:
        topic, number = topic_patterns.kafka_partition(kafka_topic, members, p)
        cells = [_build_cell(groups.get(p, ()), gap.get(p)) for groups, gap in zip(by_partition, gaps, strict=True)]
        rows.append({"partition": p, "topic": cut_text(topic), "number": number, "cells": cells})
    totals = [sum(piece.end - piece.start for piece in pieces) for pieces in by_run]
    return {
        "name": name,
        "topic": kafka_topic,
        "rows": rows,
        "partitions": len(partitions),
        "late": [
            {"late": n, "records": total, "share": n / total if total else 0.0}
            for n, total in zip(late, totals, strict=True)
        ],
        "fates": _list_fates(by_run),
    }


def _group_by_partition(pieces: Iterable[RunOffsets]) -> dict[int, list[RunOffsets]]:
    groups: dict[int, list[RunOffsets]] = {}
    for piece in pieces:
        groups.setdefault(piece.partition, []).append(piece)
    return groups


def _build_cell(own: Sequence[RunOffsets], gap: tuple[int, int] | None) -> JsonObject | None:
    """Return a run's cell of a partition, by its pieces there; None if it has none.

    Its first ranges and how many more there are, the number and the share of each fate, a gap before it.
    """
    if not own:
        return None
    total = sum(piece.end - piece.start for piece in own)
    fates = {fate: n for fate in FATES if (n := sum(piece.fates.get(fate, 0) for piece in own))}
    done = 0.0
    shares: list[JsonValue] = []
    for fate, n in fates.items():
        shares.append({"fate": fate, "from": done, "share": n / total})
        done += n / total
    return {
        "ranges": [[piece.start, piece.end] for piece in own[:MAX_CELL_RANGES]],
        "moreRanges": max(0, len(own) - MAX_CELL_RANGES),
        "offsets": total,
        "fates": fates,
        "shares": shares,
        "gap": list(gap) if gap is not None else None,
    }
