"""Formatting of a conformance run: a table of families, and a failed vector with its planes drawn."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING

import pyarrow as pa

from hindcast.query.show import format_aligned

if TYPE_CHECKING:
    from hindcast_conformance.runner import Outcome
    from hindcast_conformance.vectors import Json, Vector

_FIELDS = ("run", "op", "topic", "key", "value", "timestamp", "asOf", "from", "to", "order")
_STARTS = ("validFrom", "start", "timestamp")
_WIDTH = 10


def format_families(outcomes: Sequence[Outcome]) -> str:
    """Return a table of families: how many vectors passed, failed or were declined, their seconds; and why declined."""
    states = ["passed", "failed", "declined"]
    if any(outcome.state == "unjudged" for outcome in outcomes):
        states.append("unjudged")
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
    return "\n".join([_format_table(rows), *(f"declined {count}: {reason}" for reason, count in reasons.items())])


def format_failure(outcome: Outcome) -> str:
    """Return a failed vector as text: its records, and where the computed result differs from the expected."""
    vector = outcome.vector
    head = [
        f"\n{vector.name}: {vector.operation['type']}",
        json.dumps(vector.operation),
        format_records(vector.records),
    ]
    differences = _diff_emitted if vector.semantics == "kafka" else _diff_planes
    return "\n".join([*head, *differences(vector, outcome.computed)])


def _diff_emitted(vector: Vector, computed: Json) -> list[str]:
    """Return the differences of a `kafka` vector, by part of the result; `-` expected, `+` computed."""
    parts = []
    for part in dict.fromkeys((*vector.expected, *computed)):
        if vector.expected.get(part) == computed.get(part):
            continue
        expected, actual = (
            _part_rows(part, side[part]) if part in side else [] for side in (vector.expected, computed)
        )
        names = dict.fromkeys(name for row in (*expected, *actual) for name in row)
        rows = [{name: json.dumps(row[name]) if name in row else "" for name in names} for row in (*expected, *actual)]
        lines = _format_table(rows).splitlines()[2:]
        sides = lines[: len(expected)], lines[len(expected) : len(rows)]
        parts += [f"{part}: {', '.join(names)}", *list(unified_diff(*sides, n=len(rows), lineterm=""))[3:]]
    return parts


def _part_rows(part: str, content: Json) -> list[dict[str, Json]]:
    """Return one part of a vector's result as rows."""
    match part:
        case "emitted":
            return [{name: row.get(name) for name in ("cause", "key", "value", "timestamp")} for row in content]
        case "history":
            lists = [
                ({"store": store, "key": key}, rows) for store, keys in content.items() for key, rows in keys.items()
            ]
            return [{**place, **row} for place, rows in lists for row in rows or [{}]]
        case "state":
            return [{"store": store, "key": key, **row} for store, keys in content.items() for key, row in keys.items()]
        case "results":
            return [{"step": number, "result": result} for number, result in enumerate(content)]
    return [{part: content}]


def _diff_planes(vector: Vector, computed: Json) -> list[str]:
    """Return the differences of a `corrected` vector: the fates, and both planes of each key that differs."""
    expected, parts = vector.expected, list[str]()
    if computed["fates"] != expected["fates"]:
        parts += [
            f"fates: computed {json.dumps(computed['fates'])}",
            f"       expected {json.dumps(expected['fates'])}",
        ]
    sides = {"computed": _group_by_key(computed["rows"]), "expected": _group_by_key(expected["rows"])}
    for key in sorted({key for side in sides.values() for key in side}, key=str):
        planes = {name: side.get(key, []) for name, side in sides.items()}
        if _sorted_texts(planes["computed"]) != _sorted_texts(planes["expected"]):
            parts += [f"key {key}, {name}:\n{format_plane(rows, vector.runs)}" for name, rows in planes.items()]
    return parts


def format_records(records: Sequence[Mapping[str, Json]]) -> str:
    """Return records, or steps, as a table, numbered in the order of the log."""
    names = [name for name in _FIELDS if any(name in record for record in records)]
    rows = ({name: _format_value(record[name]) if name in record else "" for name in names} for record in records)
    return _format_table([{"": number, **row} for number, row in enumerate(rows)])


def format_plane(rows: Sequence[Mapping[str, Json]], runs: int) -> str:
    """Return a drawing of one key's rows: valid time to the right, the current rows after each run below each other.

    A bar begins each period, which lasts up to the next bar or is open (`>`). Rows that overlap get lines of their own.

        valid time  0         2         4
        run 1       |8                  |10      >
        run 2       |8        |9        |10      >
    """
    moments = sorted({moment for row in rows for moment in _row_period(row) if moment is not None})
    at = {moment: _WIDTH * number for number, moment in enumerate(moments)}
    width = _WIDTH * len(moments)
    drawn = [("valid time", "".join(str(moment).ljust(_WIDTH) for moment in moments))]
    for run in range(1, runs + 1):
        current = [row for row in rows if row["systemFrom"] <= run and (row["systemTo"] or runs + 1) > run]
        for lane in _pack_lanes(current) or [[]]:
            line = [" "] * width
            for row in lane:
                start, end = _row_period(row)
                stop = width if end is None else max(at[end], at[start] + _WIDTH)
                span = stop - at[start]
                line[at[start] : stop] = ("|" + _format_value(row["value"]))[: span - 1].ljust(span)
                if end is None:
                    line[-1] = ">"
                elif end > start and line[at[end]] == " ":
                    line[at[end]] = "|"
            drawn.append((f"run {run}", "".join(line)))
    return "\n".join(f"  {label:11} {line}".rstrip() for label, line in drawn)


def _row_period(row: Mapping[str, Json]) -> tuple[int, int | None]:
    start = next(row[name] for name in _STARTS if name in row)
    if "timestamp" in row:
        return start, start
    return start, row["validTo"] if "validTo" in row else row["end"]


def _pack_lanes(rows: Iterable[Mapping[str, Json]]) -> list[list[Mapping[str, Json]]]:
    """Return rows in as few lanes as possible without overlaps."""
    lanes: list[list[Mapping[str, Json]]] = []
    for row in sorted(rows, key=lambda row: _row_period(row)[0]):
        start = _row_period(row)[0]
        for lane in lanes:
            last_start, last_end = _row_period(lane[-1])
            if last_end is not None and max(last_end, last_start + 1) <= start:
                lane.append(row)
                break
        else:
            lanes.append([row])
    return lanes


def _group_by_key(rows: Iterable[Mapping[str, Json]]) -> dict[str | None, list[Mapping[str, Json]]]:
    groups: dict[str | None, list[Mapping[str, Json]]] = defaultdict(list)
    for row in rows:
        groups[row["key"]].append(row)
    return groups


def _sorted_texts(rows: Iterable[Mapping[str, Json]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def _format_table(rows: Sequence[Mapping[str, Json]]) -> str:
    return format_aligned(pa.Table.from_pylist([dict(row) for row in rows])) if rows else "(nothing)"


def _format_value(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
