"""The ledger as a picture: which offsets each run replayed, up to which moment, and with which outcome.

A column is a run, a row a partition. A completed run's offsets come from its report, others from the logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hindcast.airflow.pages import graph
from hindcast.bitemporal.fates import FATES
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.ingest import ledger
from hindcast.kafka import topic_patterns
from hindcast.plan import journal
from hindcast.plan.runs import Completed, Run
from hindcast.report.run_report import TopicReport
from hindcast.store import tables

MAX_RUNS = 24
"""How many runs a picture has."""

MAX_PARTITIONS = 64
"""How many partitions of a topic it has."""


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


def _read_reports(run: Run, names: Iterable[str]) -> dict[str, _TopicReport]:
    """Return what a run's report says of these topics, of which it may say nothing; nothing without a report."""
    if not isinstance(run.outcome, Completed):
        return {}
    reports = {}
    with run.refuse_malformed_report():
        topics: Any = run.outcome.report.get("topics") or {}
        for name in names:
            if (document := topics.get(name)) is not None:
                topic = TopicReport.from_json(name, document)
                parts = (RunOffsets(p.partition, p.start, p.end, dict(p.fates)) for p in topic.partitions)
                reports[name] = _TopicReport([part for part in parts if part.end > part.start], topic.late)
    return reports


def _format_run(run: Run) -> JsonObject:
    return {
        "run": run.number,
        "runId": run.run_id,
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
    reports = [_read_reports(run, contract.topics) for run in shown]
    offsets = {
        name: [
            list_run_offsets(settings.warehouse, run, name, own.get(name))
            for run, own in zip(shown, reports, strict=True)
        ]
        for name in contract.topics
    }
    late = {name: [own[name].late if name in own else 0 for own in reports] for name in contract.topics}
    return {
        "pipeline": contract.pipeline,
        "before": before,
        "runs": [_format_run(run) for run in shown],
        "topics": [
            _build_topic(settings.warehouse, contract, name, late[name], by_run) for name, by_run in offsets.items()
        ],
        "fates": _list_fates(pieces for by_run in offsets.values() for pieces in by_run),
        "earlier": shown[0].number if len(past) > MAX_RUNS else None,
        "graph": graph.build_graph(settings, contract, readable),
    }


def list_run_offsets(warehouse: str, run: Run, name: str, report: _TopicReport | None = None) -> list[RunOffsets]:
    """Return what a run replayed of a topic, by its report; for an unfinished or abandoned run also what it planned."""
    if report is not None:
        return report.offsets
    if (plan := run.plan.topics.get(name)) is None:
        return []
    log = tables.log_table(warehouse, run.plan.pipeline, name)
    ingested = {
        (p.partition, p.start): RunOffsets(p.partition, p.start, p.end, p.fates)
        for p in ledger.read_ingested_ranges(log, run.number)
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
    gaps = find_gaps(by_run)
    partitions = sorted({piece.partition for pieces in by_run for piece in pieces})
    kafka_topic, members = contract.kafka_topic(name), journal.read_members(warehouse, contract, name)
    rows: list[JsonValue] = []
    for p in partitions[:MAX_PARTITIONS]:
        topic, number = topic_patterns.kafka_partition(kafka_topic, members, p)
        cells = [_build_cell(p, pieces, gap) for pieces, gap in zip(by_run, gaps, strict=True)]
        rows.append({"partition": p, "topic": topic, "number": number, "cells": cells})
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


def _build_cell(partition: int, pieces: list[RunOffsets], gap: dict[int, tuple[int, int]]) -> JsonObject | None:
    """Return a run's cell of a partition: its ranges, the share of each fate, a gap before it; None if it is empty."""
    own = [piece for piece in pieces if piece.partition == partition]
    if not own:
        return None
    total = sum(piece.end - piece.start for piece in own)
    fates: dict[str, int] = {}
    for piece in own:
        for fate, n in piece.fates.items():
            fates[fate] = fates.get(fate, 0) + n
    done = 0.0
    shares: list[JsonValue] = []
    for fate in (fate for fate in FATES if fates.get(fate)):
        shares.append({"fate": fate, "from": done, "share": fates[fate] / total})
        done += fates[fate] / total
    return {
        "ranges": [[piece.start, piece.end] for piece in own],
        "offsets": total,
        "fates": fates,
        "shares": shares,
        "gap": list(gap[partition]) if partition in gap else None,
    }
