"""The ledger as a picture: which offsets each run replayed, up to which moment, and what became of them.

A column is a run, a row a partition. Completed runs tell what they brought in their report; of others the logs say it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from hindcast.contracts import Contract
from hindcast.delta import tables
from hindcast.kafka import members
from hindcast.pages import graph
from hindcast.planning import journal, plans
from hindcast.planning.journal import Run
from hindcast.replay import ledger
from hindcast.settings import Settings

RUNS = 24
"""So many runs are in a picture."""

PARTITIONS = 64
"""So many partitions of a topic."""


class Piece(NamedTuple):
    """Contiguous offsets of a partition, [start, end), that a run replayed or is to replay; `fates` of those done."""

    partition: int
    start: int
    end: int
    fates: dict[str, int]


def page(now: Settings, contract: Contract, readable: Collection[str], before: int | None = None) -> dict[str, Any]:
    """What the page of a pipeline shows: its last runs (of those `before` a number), and the graph of its tables."""
    past = [run for run in journal.runs(now.warehouse, contract.pipeline) if before is None or run.number < before]
    shown = past[-RUNS:]
    topics = [_topic(now.warehouse, contract, name, shown) for name in contract.topics]
    fates = {fate for topic in topics for fate in topic["fates"]}
    return {
        "pipeline": contract.pipeline,
        "before": before,
        "runs": [_run(run) for run in shown],
        "topics": topics,
        "fates": [fate for fate in ledger.FATES if fate in fates],
        "earlier": shown[0].number if len(past) > RUNS else None,
        "graph": graph.of_contract(contract, readable),
    }


def pieces(warehouse: str, run: Run, name: str) -> list[Piece]:
    """What a run replayed of a topic; of one that has not ended, or was given up, also what it has planned."""
    told = (run.detail.get("topics") or {}).get(name) if run.state == "completed" else None
    if told is not None:
        return [
            Piece(p["partition"], p["start"], p["end"], p["fates"]) for p in told["partitions"] if p["end"] > p["start"]
        ]
    if name not in run.plan["topics"]:
        return []
    log = tables.log(warehouse, run.plan["pipeline"], name)
    found = {
        (p.partition, p.start): Piece(p.partition, p.start, p.end, p.fates) for p in ledger.pieces(log, run.number)
    }
    share = plans.Share.from_json(run.plan["topics"][name])
    planned = [Piece(p, offsets.start, offsets.end, {}) for part in share.parts for p, offsets in part.items()]
    done = [found.pop((it.partition, it.start), it) for it in planned]
    left = [Piece(it.partition, own.end, it.end, {}) for it, own in zip(planned, done, strict=True) if own.end < it.end]
    return [*done, *left, *found.values()]


def gaps(told: list[list[Piece]]) -> list[dict[int, tuple[int, int]]]:
    """Of each run by partition the offsets before its own that no earlier run of these has replayed.

    Runs that replayed nothing of what they planned leave it to the next: that is no gap.
    """
    reached: dict[int, tuple[int, int]] = {}
    found: list[dict[int, tuple[int, int]]] = []
    for of_run in told:
        missing = {}
        for piece in (it for it in of_run if it.fates):
            low, high = reached.get(piece.partition, (piece.start, piece.start))
            if piece.start > high:
                missing[piece.partition] = (high, piece.start)
            elif piece.end < low:
                missing[piece.partition] = (piece.end, low)
            reached[piece.partition] = (min(low, piece.start), max(high, piece.end))
        found.append(missing)
    return found


def _run(run: Run) -> dict[str, Any]:
    return {
        "run": run.number,
        "runId": run.run_id,
        "state": run.state,
        "knownAt": run.known_at.isoformat(),
        "intervalEnd": run.plan.get("intervalEnd"),
        "release": bool(run.plan.get("releases")),
    }


def _topic(warehouse: str, contract: Contract, name: str, runs: list[Run]) -> dict[str, Any]:
    """The partitions of a topic, each with a cell for every run, and how many records of each run were late.

    `topic` and `number` of a partition are those in Kafka (members.py).
    """
    told = [pieces(warehouse, run, name) for run in runs]
    missing = gaps(told)
    partitions = sorted({piece.partition for of_run in told for piece in of_run})
    kafka, known = contract.kafka_topic(name), plans.known_members(warehouse, contract, name)
    rows = []
    for p in partitions[:PARTITIONS]:
        topic, number = members.real(kafka, known, p)
        cells = [_cell(p, of_run, gap) for of_run, gap in zip(told, missing, strict=True)]
        rows.append({"partition": p, "topic": topic, "number": number, "cells": cells})
    reports = [(run.detail.get("topics") or {}).get(name) or {} for run in runs]
    late = [
        (report.get("late") or 0, sum(it.end - it.start for it in own))
        for report, own in zip(reports, told, strict=True)
    ]
    fates = {fate for of_run in told for piece in of_run for fate, n in piece.fates.items() if n}
    return {
        "name": name,
        "topic": kafka,
        "rows": rows,
        "partitions": len(partitions),
        "late": [{"late": n, "records": total, "share": n / total if total else 0.0} for n, total in late],
        "fates": [fate for fate in ledger.FATES if fate in fates],
    }


def _cell(partition: int, of_run: list[Piece], gap: dict[int, tuple[int, int]]) -> dict[str, Any] | None:
    """What a run has of a partition: its ranges, the share of each fate, what is missing before; None for nothing."""
    own = [piece for piece in of_run if piece.partition == partition]
    if not own:
        return None
    total = sum(piece.end - piece.start for piece in own)
    fates: dict[str, int] = {}
    for piece in own:
        for fate, n in piece.fates.items():
            fates[fate] = fates.get(fate, 0) + n
    done, shares = 0.0, []
    for fate in (fate for fate in ledger.FATES if fates.get(fate)):
        shares.append({"fate": fate, "from": done, "share": fates[fate] / total})
        done += fates[fate] / total
    return {
        "ranges": [[piece.start, piece.end] for piece in own],
        "offsets": total,
        "fates": fates,
        "shares": shares,
        "gap": list(gap[partition]) if partition in gap else None,
    }
