"""What a conformance run shows: a table of families, and a vector that failed with its planes drawn."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING

import pyarrow as pa

from hindcast.show import aligned

if TYPE_CHECKING:
    from hindcast.conformance.runner import Outcome
    from hindcast.conformance.vectors import Json, Vector

_FIELDS = ("run", "op", "topic", "key", "value", "timestamp", "asOf", "from", "to", "order")
_STARTS = ("validFrom", "start", "timestamp")
_WIDTH = 10


def families(outcomes: Sequence[Outcome]) -> str:
    """How many vectors of each family passed, failed or were declined, the seconds that they took, and why not run."""
    states = ["passed", "failed", "declined", *(["unjudged"] if any(it.state == "unjudged" for it in outcomes) else [])]
    lines: dict[str, dict[str, Json]] = {}
    reasons: Counter[str] = Counter()
    for outcome in outcomes:
        for name in (outcome.vector.family, "all"):
            line = lines.setdefault(name, {"family": name, **dict.fromkeys(states, 0), "seconds": 0.0})
            line[outcome.state] += 1
            line["seconds"] += outcome.seconds
        if outcome.state == "declined":
            reasons[outcome.computed["declined"]] += 1
    total = lines.pop("all", None)
    rows = [{**line, "seconds": f"{line['seconds']:.1f}"} for line in (*lines.values(), *([total] if total else []))]
    return "\n".join([_table(rows), *(f"declined {count}: {reason}" for reason, count in reasons.items())])


def failure(outcome: Outcome) -> str:
    """A vector that failed: its records, and where what was computed differs from what it expects."""
    vector = outcome.vector
    head = [f"\n{vector.name}: {vector.operation['type']}", json.dumps(vector.operation), records(vector.records)]
    differences = _lines_that_differ if vector.semantics == "kafka" else _planes_that_differ
    return "\n".join([*head, *differences(vector, outcome.computed)])


def _lines_that_differ(vector: Vector, computed: Json) -> list[str]:
    """Of the `kafka` reading: each part that is not as expected; `-` expected, `+` computed."""
    parts = []
    for part in dict.fromkeys((*vector.expected, *computed)):
        if vector.expected.get(part) == computed.get(part):
            continue
        expected, found = (_rows(part, side[part]) if part in side else [] for side in (vector.expected, computed))
        names = dict.fromkeys(name for row in (*expected, *found) for name in row)
        rows = [{name: json.dumps(row[name]) if name in row else "" for name in names} for row in (*expected, *found)]
        lines = _table(rows).splitlines()[2:]
        sides = lines[: len(expected)], lines[len(expected) : len(rows)]
        parts += [f"{part}: {', '.join(names)}", *list(unified_diff(*sides, n=len(rows), lineterm=""))[3:]]
    return parts


def _rows(part: str, told: Json) -> list[dict[str, Json]]:
    """A part of what a vector expects, as rows."""
    match part:
        case "emitted":
            return [{name: row.get(name) for name in ("cause", "key", "value", "timestamp")} for row in told]
        case "history":
            lists = [({"store": store, "key": key}, rows) for store, its in told.items() for key, rows in its.items()]
            return [{**where, **row} for where, rows in lists for row in rows or [{}]]
        case "state":
            return [{"store": store, "key": key, **row} for store, its in told.items() for key, row in its.items()]
        case "results":
            return [{"step": number, "result": result} for number, result in enumerate(told)]
    return [{part: told}]


def _planes_that_differ(vector: Vector, computed: Json) -> list[str]:
    """Of the `corrected` reading: the fates, and both planes of each key."""
    expected, parts = vector.expected, list[str]()
    if computed["fates"] != expected["fates"]:
        parts += [
            f"fates: computed {json.dumps(computed['fates'])}",
            f"       expected {json.dumps(expected['fates'])}",
        ]
    sides = {"computed": _by_key(computed["rows"]), "expected": _by_key(expected["rows"])}
    for key in sorted({key for side in sides.values() for key in side}, key=str):
        here = {name: side.get(key, []) for name, side in sides.items()}
        if _told(here["computed"]) != _told(here["expected"]):
            parts += [f"key {key}, {name}:\n{plane(rows, vector.runs)}" for name, rows in here.items()]
    return parts


def records(lines: Iterable[Mapping[str, Json]]) -> str:
    """Records, or steps, as a table, numbered in the order of the log."""
    its = list(lines)
    names = [name for name in _FIELDS if any(name in record for record in its)]
    told = ({name: _text(it[name]) if name in it else "" for name in names} for it in its)
    return _table([{"": number, **row} for number, row in enumerate(told)])


def plane(rows: Sequence[Mapping[str, Json]], runs: int) -> str:
    """One key's rows by valid time (to the right) and run (downwards), as believed after each run.

    A bar begins each period, which lasts up to the next bar, or on (`>`). Rows that overlap get lines of their own.

        valid time  0         2         4
        run 1       |8                  |10      >
        run 2       |8        |9        |10      >
    """
    moments = sorted({moment for row in rows for moment in _ends(row) if moment is not None})
    at = {moment: _WIDTH * number for number, moment in enumerate(moments)}
    width = _WIDTH * len(moments)
    drawn = [("valid time", "".join(str(moment).ljust(_WIDTH) for moment in moments))]
    for run in range(1, runs + 1):
        believed = [row for row in rows if row["systemFrom"] <= run and (row["systemTo"] or runs + 1) > run]
        for lane in _lanes(believed) or [[]]:
            line = [" "] * width
            for row in lane:
                start, end = _ends(row)
                stop = width if end is None else max(at[end], at[start] + _WIDTH)
                span = stop - at[start]
                line[at[start] : stop] = ("|" + _text(row["value"]))[: span - 1].ljust(span)
                if end is None:
                    line[-1] = ">"
                elif end > start and line[at[end]] == " ":
                    line[at[end]] = "|"
            drawn.append((f"run {run}", "".join(line)))
    return "\n".join(f"  {label:11} {line}".rstrip() for label, line in drawn)


def _ends(row: Mapping[str, Json]) -> tuple[int, int | None]:
    start = next(row[name] for name in _STARTS if name in row)
    if "timestamp" in row:
        return start, start
    return start, row["validTo"] if "validTo" in row else row["end"]


def _lanes(rows: Iterable[Mapping[str, Json]]) -> list[list[Mapping[str, Json]]]:
    """Rows in as few lines as they need not to overlap."""
    lanes: list[list[Mapping[str, Json]]] = []
    for row in sorted(rows, key=lambda row: _ends(row)[0]):
        start = _ends(row)[0]
        for lane in lanes:
            begun, ended = _ends(lane[-1])
            if ended is not None and max(ended, begun + 1) <= start:
                lane.append(row)
                break
        else:
            lanes.append([row])
    return lanes


def _by_key(rows: Iterable[Mapping[str, Json]]) -> dict[str | None, list[Mapping[str, Json]]]:
    found: dict[str | None, list[Mapping[str, Json]]] = defaultdict(list)
    for row in rows:
        found[row["key"]].append(row)
    return found


def _told(rows: Iterable[Mapping[str, Json]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def _table(rows: Sequence[Mapping[str, Json]]) -> str:
    return aligned(pa.Table.from_pylist([dict(row) for row in rows])) if rows else "(nothing)"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
