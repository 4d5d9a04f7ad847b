"""What was measured as rows of bench/results/speed.json, and the table of goals. Pure.

| field | |
| --- | --- |
| operation, data, peer | what was measured: peer is Hindcast, or who is beside it |
| seconds, range | the median of the rounds, the least and the most; null where it was not measured, `why` tells |
| share | the share of the operation's input that the peer was given, if not all |
| ratio | Hindcast's seconds to the peer's, for as much input |
| goal, met | what was asked for, null if nothing was |
| writes | Delta or Parquet |
| sizes, at | the sizes of the inputs; when the run began whose times these are |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.speed.goals import ACROSS, GOALS, Goal
from bench.speed.measuring import Measured
from bench.speed.names import OURS

Row = dict[str, Any]


def rows(measured: Sequence[Measured], sizes: str, at: str, goals: Sequence[Goal] = GOALS) -> list[Row]:
    """The rows of one run."""
    ours = {(it.operation, it.data): it.median for it in measured if it.peer == OURS}
    every = [*measured, *_across(measured)]
    return [_row(it, ours.get((it.operation, it.data)), sizes, at, goals) for it in every]


def merged(old: Iterable[Row], new: Sequence[Row]) -> list[Row]:
    """Rows that were there, with those of a newer run in the place of the same operation on the same data."""
    done = {(row["operation"], row["data"]) for row in new}
    kept = [row for row in old if (row["operation"], row["data"]) not in done]
    return sorted([*kept, *new], key=lambda row: row["operation"])


def told(every: Sequence[Row], goals: Sequence[Goal] = GOALS) -> list[str]:
    """All rows as lines, then the goals, each with what was measured."""
    lines = [_line(row) for row in every]
    by = {(row["operation"], row["data"], row["peer"]): row for row in every}
    lines += ["", f"{'':2} {'data':15} {'goal':58} {'measured':>10}"]
    for goal in goals:
        row = by.get((goal.operation, goal.data, goal.peer), {})
        met = goal.met(row.get("seconds"), row.get("ratio"))
        how = {True: "met", False: "NOT MET", None: "not measured"}[met]
        lines.append(f"{goal.operation:2} {goal.data:15} {goal.text:58} {_measured(goal, row):>10}  {how}")
    return lines


def _row(it: Measured, ours: float | None, sizes: str, at: str, goals: Sequence[Goal]) -> Row:
    median = it.median
    ratio = ours * it.share / median if ours is not None and median else None
    goal = next((g for g in goals if g[:3] == (it.operation, it.data, it.peer)), None)
    row: Row = {
        "operation": it.operation,
        "data": it.data,
        "peer": it.peer,
        "seconds": _short(median),
        "range": [_short(min(it.seconds)), _short(max(it.seconds))] if it.seconds else None,
        "ratio": _short(ratio),
        "goal": goal.text if goal else None,
        "met": goal.met(median, ratio) if goal else None,
    }
    more: Mapping[str, Any] = {"share": it.share if it.share != 1 else None, "why": it.why, "writes": it.writes}
    return row | {name: value for name, value in more.items() if value} | {"sizes": sizes, "at": at}


def _across(measured: Sequence[Measured]) -> list[Measured]:
    """Hindcast on some data as a peer of itself on other, where both were measured in this run."""
    ours = {(it.operation, it.data): it for it in measured if it.peer == OURS}
    found = []
    for (operation, data), (other, on, name) in ACROSS.items():
        if (operation, data) in ours and (other, on) in ours:
            found.append(Measured(operation, data, name, ours[other, on].seconds))
    return found


def _line(row: Row) -> str:
    named = f"{row['operation']:2} {row['data']:15} {row['peer']:36}"
    if row["seconds"] is None:
        return f"{named} {row.get('why', '')}"
    low, high = row["range"]
    ratio = f"{row['ratio']:8.2f}x" if row["ratio"] is not None else ""
    return f"{named} {row['seconds']:9g} s [{low:g}-{high:g}]{ratio}"


def _measured(goal: Goal, row: Row) -> str:
    value = row.get("seconds" if goal.peer == OURS else "ratio")
    return "" if value is None else f"{value:g} s" if goal.peer == OURS else f"{value:g}x"


def _short(value: float | None) -> float | None:
    """Three digits that count."""
    return None if value is None else float(f"{value:.3g}")
