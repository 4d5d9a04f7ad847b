"""Pictures of a pipeline's last runs: gates, late records, rows, and the age of corrected answers.

For templates/quality_pictures.html. One column of a picture is a run, the newest on the right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hindcast.airflow.pages import drawing, run_reports
from hindcast.common.errors import HindcastError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.plurals import format_count
from hindcast.common.settings import Settings
from hindcast.ingest import late_delays
from hindcast.plan.runs import Run
from hindcast.quality import gate_words
from hindcast.quality.expectations import format_gate
from hindcast.quality.gate_results import TrackedResult
from hindcast.query.cut_values import cut_text
from hindcast.report.run_report import RunReport, TopicReport
from hindcast.report.summaries import OUTCOMES, SIGNS
from hindcast.store.commit_notes import AGES

MAX_LINES = 40
"""How many lines a picture has at most: gates, those that failed most often first, or tables."""


def build_pictures(settings: Settings, runs: Sequence[Run]) -> JsonObject:
    """Return the pictures of these runs that have a report, oldest first; empty without any.

    They have of a gate its rule and its outcome, neither of which is masked.
    """
    found = [(run, report) for run in runs if run.has_report and (report := _read_report(settings, run))]
    if not found:
        return {}
    numbers, reports = [run.number for run, _ in found], [report for _, report in found]
    return {
        "runs": drawing.place_labels([str(number) for number in numbers]),
        "width": drawing.COLUMN * len(numbers),
        "gates": draw_gates(numbers, reports),
        "late": draw_late(numbers, reports),
        "rows": draw_rows(numbers, reports),
        "ages": draw_ages(reports),
    }


def _read_report(settings: Settings, run: Run) -> RunReport | None:
    try:
        return run_reports.read_report(settings, run)
    except HindcastError:
        return None  # the line of the run says what is wrong


def draw_gates(numbers: Sequence[int], reports: Sequence[RunReport]) -> JsonObject:
    """Return a line for each gate, by table, with a cell for each run: its outcome; `more` are left out."""
    outcomes: dict[tuple[str, int, str], dict[int, str]] = {}
    newest: dict[tuple[str, int, str], TrackedResult] = {}
    for number, report in zip(numbers, reports, strict=True):
        for table, changed in report.tables.items():
            for gate in changed.gates:
                key = table, gate.result.gate, gate.result.expectation
                outcomes.setdefault(key, {})[number] = gate.result.outcome
                newest[key] = gate.result
    worst = sorted(outcomes, key=lambda key: [-count for count in _count_outcomes(outcomes[key])])[:MAX_LINES]
    lines: list[JsonValue] = []
    for key in sorted(worst):
        result, by_run = newest[key], outcomes[key]
        cells: list[JsonValue] = [
            {"x": drawing.COLUMN * n, "run": number, "outcome": by_run[number], "sign": SIGNS.get(by_run[number], "!")}
            for n, number in enumerate(numbers)
            if number in by_run
        ]
        passed, total = Counter(by_run.values())["passed"], len(by_run)
        lines.append(
            {
                "table": key[0],
                "rule": cut_text(gate_words.describe_rule(result.expectation, result.kwargs)),
                "named": cut_text(format_gate(result.expectation, result.kwargs)),
                "cells": cells,
                "last": f"passed in {passed:,} of {total:,}",
                "words": ", ".join(f"run {number} {outcome}" for number, outcome in by_run.items()),
            }
        )
    return {"lines": lines, "more": len(outcomes) - len(worst)}


def _count_outcomes(by_run: dict[int, str]) -> list[int]:
    counts = Counter(by_run.values())
    return [counts[outcome] for outcome in OUTCOMES]


def draw_late(numbers: Sequence[int], reports: Sequence[RunReport]) -> list[JsonValue]:
    """Return a line for each topic: how many of its records were late, as a bar for each run, and by how much, in the
    last run that read any and in all of these; topics with late records first.
    """
    lines: list[tuple[int, JsonObject]] = []
    for name in dict.fromkeys(name for report in reports for name in report.topics):
        topics = [report.topics.get(name, TopicReport(name)) for report in reports]
        late, read = [topic.late for topic in topics], [n for n, topic in enumerate(topics) if topic.offsets]
        last = read[-1] if read else None
        lines.append(
            (
                sum(late),
                {
                    "name": name,
                    "up": _draw_bars(numbers, late, max(late), "late"),
                    "topic": cut_text((topics[-1] if last is None else topics[last]).topic),
                    "words": f"Late records, oldest run first: {_join_counts(late)}",
                    "last": "no new records" if last is None else _describe_late([topics[last]]),
                    "run": None if last is None else numbers[last],
                    "all": _describe_late(topics),
                },
            )
        )
    shown: list[JsonValue] = [line for _, line in sorted(lines, key=lambda it: not it[0])]
    return shown[:MAX_LINES]


def _describe_late(topics: Sequence[TopicReport]) -> str:
    """Return how many of the records that runs read of a topic were late, and by how much."""
    late, total = sum(topic.late for topic in topics), sum(topic.offsets or 0 for topic in topics)
    if not late:
        return "none late"
    known = [topic.delays for topic in topics if topic.late and topic.delays]
    unknown = sum(1 for topic in topics if topic.late) - len(known)
    values = late_delays.list_delays([(topic.late, topic.delays) for topic in topics if topic.late])
    count = f"{late:,} of {total:,} late" if total else f"{late:,} late"
    if not known:
        return f"{count}; by how much was not measured"
    if values is not None:
        return f"{count}: by {' and '.join(filter(None, [', '.join(values[:-1]), values[-1]]))}"
    runs = f" (not measured in {format_count(unknown, 'older run')})" if unknown else ""
    return f"{count}: {late_delays.describe_ranges(known)}{runs}"


def draw_rows(numbers: Sequence[int], reports: Sequence[RunReport]) -> list[JsonValue]:
    """Return a line for each table that changed: rows added (bars up) and removed (bars down) by each run."""
    lines: list[JsonValue] = []
    for name in dict.fromkeys(name for report in reports for name in report.tables):
        changes = [report.tables.get(name) for report in reports]
        opened, closed = ([getattr(it, count) if it else 0 for it in changes] for count in ("opened", "closed"))
        if most := max(*opened, *closed):
            lines.append(
                {
                    "name": name,
                    "up": _draw_bars(numbers, opened, most, "added"),
                    "down": _draw_bars(numbers, closed, most, "removed"),
                    "words": f"Rows added, oldest run first: {_join_counts(opened)}; removed: {_join_counts(closed)}",
                    "last": f"+{opened[-1]:,} \N{MINUS SIGN}{closed[-1]:,} in the last run",
                }
            )
    return lines[:MAX_LINES]


def draw_ages(reports: Sequence[RunReport]) -> list[JsonValue]:
    """Return a histogram for each table with corrections: how old the corrected answers were, of all these runs."""
    ages = dict.fromkeys(age for report in reports for table in report.tables.values() for age in table.ages or {})
    counts: dict[str, Counter[str]] = {}
    for report in reports:
        for name, table in report.tables.items():
            counts.setdefault(name, Counter()).update(table.ages or {})
    known = [*AGES]
    order = sorted(ages, key=lambda age: known.index(age) if age in known else len(known))
    lines: list[JsonValue] = [
        {
            "name": name,
            "bars": [
                {"age": _name_age(age), "count": count[age], "width": bar}
                for age, bar in zip(order, drawing.scale_lengths([count[age] for age in order], AGE_WIDTH), strict=True)
            ],
        }
        for name, count in counts.items()
        if any(count.values())
    ]
    return lines[:MAX_LINES]


def _name_age(age: str) -> str:
    """Return an age of the reports as the page has it: the last of `AGES` with its limit."""
    *_, limit, oldest = AGES
    return f"older than {limit.removeprefix('under ')}" if age == oldest else age


def _draw_bars(numbers: Sequence[int], counts: Sequence[int], most: int, words: str) -> list[JsonValue]:
    heights = drawing.scale_lengths(counts, drawing.BAR_HEIGHT, most)
    return [
        {"x": drawing.COLUMN * n, "height": height, "words": f"run {number}: {count:,} {words}"}
        for n, (number, count, height) in enumerate(zip(numbers, counts, heights, strict=True))
        if count
    ]


def _join_counts(counts: Sequence[int]) -> str:
    return ", ".join(f"{count:,}" for count in counts)


AGE_WIDTH = 150
"""The length of the longest bar of a histogram of ages, in pixels."""
