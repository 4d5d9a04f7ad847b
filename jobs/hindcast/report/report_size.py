"""How large a report may be: the pages of all pipelines parse it, and one that is larger would slow them down.

A report of a thousand gates and 500 tables, with twelve partitions each, takes 1.8 MB of JSON. What is cut of a larger
one: the trends of gates and most of their details, then the partitions of its topics, of which the sums stay.
"""

from __future__ import annotations

import json
from dataclasses import replace

from hindcast.common.json_values import StoredObject
from hindcast.report.run_report import RunReport, TableReport, TopicReport

MAX_BYTES = 4 << 20
"""The most bytes of a report as JSON. The pages read no larger one."""

MAX_PARTS = 350_000
"""The most values of such a JSON. What a run writes of that size has at most 300,000."""

MAX_DETAIL = 200
"""How many characters of a gate's detail stay in a report that is cut."""


def format_report_json(report: RunReport) -> str:
    """Return a report as JSON: indented, unless only that makes it too large."""
    document = report.as_json()
    text = json.dumps(document, indent=2)
    return text if len(text) <= MAX_BYTES else json.dumps(document, separators=(",", ":"))


def parse_report_json(text: str) -> StoredObject:
    """Return the JSON of a report; raise ValueError, before it is parsed, if it has too many values."""
    if sum(map(text.count, "[{,")) > MAX_PARTS:
        raise ValueError(f"has more than {MAX_PARTS:,} values")
    report: StoredObject = json.loads(text)
    return report


def cut_report(report: RunReport) -> RunReport:
    """Return a report that is not larger than `MAX_BYTES`, as far as gates and partitions make it so."""
    if _is_small(report):
        return report
    report = replace(report, tables={name: _cut_gates(table) for name, table in report.tables.items()})
    if _is_small(report):
        return report
    return replace(report, topics={name: _sum_partitions(topic) for name, topic in report.topics.items()})


def _is_small(report: RunReport) -> bool:
    return len(json.dumps(report.as_json())) <= MAX_BYTES


def _cut_gates(table: TableReport) -> TableReport:
    gates = []
    for gate in table.gates:
        detail = gate.result.detail
        short = detail if len(detail) <= MAX_DETAIL else f"{detail[:MAX_DETAIL]}... ({len(detail):,} characters)"
        gates.append(replace(gate, result=replace(gate.result, detail=short, trend=[])))
    return replace(table, gates=tuple(gates))


def _sum_partitions(topic: TopicReport) -> TopicReport:
    return replace(topic, partitions=(), partitions_left_out=len(topic.partitions), all_fates=topic.fates)
