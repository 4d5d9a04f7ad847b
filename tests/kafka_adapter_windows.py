"""The vectors' windowed aggregates, run by `hindcast.emits`: records in, `expected.emitted` out."""

from __future__ import annotations

from typing import Any

import numpy as np

from hindcast.emits.closing import Emit, aggregate
from hindcast.emits.compiled import NOTHING
from hindcast.emits.folds import ADD, KEPT, MERGE
from hindcast.emits.session_windows import SessionWindows
from hindcast.emits.sliding_windows import SlidingWindows
from hindcast.emits.time_windows import TimeWindows
from hindcast.emits.windowed import Kept, Records, Windows, nothing_kept

Emission = dict[str, Any]


def windows(window: dict[str, Any]) -> Windows:
    grace, retention = window["graceMs"], window.get("storeRetentionMs")
    match window["kind"]:
        case "tumbling":
            return TimeWindows(window["sizeMs"], window["sizeMs"], grace, retention)
        case "hopping":
            return TimeWindows(window["sizeMs"], window["advanceMs"], grace, retention)
        case "sliding":
            return SlidingWindows(window["timeDifferenceMs"], grace, retention)
        case "session":
            return SessionWindows(window["inactivityGapMs"], grace, retention)
        case kind:
            raise ValueError(f"no windows of kind {kind!r}")


def amounts(aggregation: str, nodes: Any, values: list[Any], kept: list[Any]) -> list[Any]:
    """What each node amounts to, in Kafka's own steps: the initial aggregate, the adder, the merger."""
    initial = {"count": 0, "sum": None, "trace": "0"}[aggregation]
    done: list[Any] = []
    for kind, left, right in nodes.tolist():
        before = initial if left == NOTHING or kind == KEPT else done[left]
        value = values[right] if kind == ADD and right != NOTHING else None
        if kind == KEPT:
            done.append(kept[left])
        elif aggregation == "count":
            done.append(before + (1 if kind == ADD else done[right]))
        elif aggregation == "sum":
            added = (value or 0) if kind == ADD else done[right]
            done.append(added if before is None else before + added)
        elif kind == MERGE:
            done.append(f"({before}&{done[right]})")
        else:
            done.append(f"{before}+{'null' if value is None else value}")
    return done


def emitted(vector: dict[str, Any], cuts: tuple[int, ...] = ()) -> tuple[list[Emission], list[Any]]:
    """What comes out of the vector's records, in runs that are cut before the records numbered, and what is kept."""
    operation, records = vector["operation"], vector["records"]
    names = sorted({record["key"] for record in records} - {None}, key=str.encode)
    codes = {name: code for code, name in enumerate(names)} | {None: NOTHING}
    values = [record["value"] for record in records]
    columns = Records(
        np.arange(len(records)),
        np.array([codes[record["key"]] for record in records], np.int64),
        np.array([NOTHING if value is None else row for row, value in enumerate(values)], np.int64),
        np.array([record["timestamp"] for record in records], np.int64),
    )
    aggregation, kept = operation["aggregation"], nothing_kept()
    known: list[Any] = []
    out: list[Emission] = []
    for low, high in zip((0, *cuts), (*cuts, len(records)), strict=True):
        run = Records(*(column[low:high] for column in columns))
        results, nodes, kept = aggregate(
            windows(operation["window"]), Emit(operation["emit"]), run, kept, reduce=aggregation == "sum"
        )
        done = amounts(aggregation, nodes, values, known)
        for cause, key, start, end, node, timestamp, headers in zip(
            *(column.tolist() for column in results), strict=True
        ):
            window = {"key": names[key], "start": start, "end": end}
            value = None if node == NOTHING else done[node]
            out.append({"key": window, "value": value, "timestamp": timestamp, "cause": cause, "headers": headers})
        known = [done[node] for node in (*kept.windows.node.tolist(), *kept.waiting.node.tolist())]
    return out, left(kept, known)


def left(kept: Kept, known: list[Any]) -> list[Any]:
    """What is kept, told without nodes."""
    rows = [row._replace(node=row.key)._asdict() for row in (kept.windows, kept.waiting)]
    tables = [{name: column.tolist() for name, column in table.items()} for table in rows]
    return [kept.stream_time, kept.written, *tables, known]
