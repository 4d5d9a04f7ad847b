"""A preview of a run as data and as text: what the run would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from hindcast.common.errors import escape_controls
from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.common.plurals import format_count, format_counts
from hindcast.contract.field_types import Widen
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import definitions
from hindcast.plan.definitions import ContractChange
from hindcast.quality.expectations import format_gate
from hindcast.quality.gate_results import GateResult
from hindcast.query import show
from hindcast.report import report_text
from hindcast.runs.change_statistics import ChangeStatistics
from hindcast.runs.widening import WidenedColumns, describe_widening


@dataclass(frozen=True)
class TopicPreview:
    """How many `offsets` of a topic a run would ingest, the `fates` of its records, and why it would stop, if so.

    It would stop because too many records are malformed. `ties`: as for `report.locate_ties`.
    """

    offsets: int
    fates: Mapping[str, int]
    stops: str | None
    ties: Mapping[str, int | str] = field(default_factory=dict)

    def as_json(self) -> JsonObject:
        """Return the form for programs."""
        ties: JsonObject = {"ties": self.ties} if self.ties else {}
        return {"offsets": self.offsets, "fates": self.fates, "stops": self.stops, **ties}


@dataclass(frozen=True)
class TablePreview:
    """What a run would change in a table, without what quarantine gates would hold back (`held`: how many keys).

    `examples`: answers that would differ (`preview_examples.pair_examples`). `widened`: columns with their types before
    and after; `widen`: how the contract says to.
    """

    statistics: ChangeStatistics
    held: int
    examples: Sequence[StoredObject]
    gates: Sequence[GateResult]
    widened: WidenedColumns
    widen: Widen = "refuse"

    def as_json(self) -> JsonObject:
        """Return the form for programs."""
        widened: JsonObject = {"widened": self.widened, "widen": self.widen} if self.widened else {}
        judged: JsonObject = {"gates": [gate.as_json() for gate in self.gates]}
        return {
            **self.statistics._asdict(),
            **widened,
            "held": self.held,
            "examples": self.examples,
            **judged,
        }


@dataclass(frozen=True)
class RunPreview:
    """What a run would do, on the assumption that it would not stop.

    `under_way`: the run that had not ended when the preview began, by number and id. `contract`: what has changed in it
    since the last run.
    """

    pipeline: str
    known_at: datetime
    interval_end: datetime | None
    under_way: tuple[int, str] | None
    contract: ContractChange | None
    topics: Mapping[str, TopicPreview]
    tables: Mapping[str, TablePreview]

    def as_json(self) -> JsonObject:
        """Return the form for programs."""
        under_way: JsonObject | None = (
            {"run": self.under_way[0], "runId": self.under_way[1]} if self.under_way else None
        )
        return {
            "pipeline": self.pipeline,
            "knownAt": self.known_at.isoformat(),
            "intervalEnd": self.interval_end.isoformat() if self.interval_end else None,
            "underWay": under_way,
            "contract": self.contract.as_json() if self.contract else None,
            "topics": {name: topic.as_json() for name, topic in self.topics.items()},
            "tables": {name: table.as_json() for name, table in self.tables.items()},
        }


def format_preview(preview: RunPreview) -> str:
    """Return a preview as text for a terminal or a task's log."""
    lines = [f"{preview.pipeline}: what a run would change; nothing was written"]
    if preview.under_way:
        run, run_id = preview.under_way
        lines.append(f"run {run} ({run_id}) is under way: changes that it has not published yet are counted here")
    lines += definitions.format_change(preview.contract)
    for name, topic in preview.topics.items():
        lines.append(f"{name}: {format_count(topic.offsets, 'offset')}: {format_counts(topic.fates) or 'nothing new'}")
        lines += [f"  {line}" for line in report_text.format_ties(topic.ties)]
        if topic.stops:
            lines += [f"the run would stop: {topic.stops}", "the rest assumes that it does not stop"]
    for name, table in preview.tables.items():
        lines += _format_table(name, table)
    return escape_controls("\n".join(lines))


def _format_table(name: str, table: TablePreview) -> list[str]:
    rows = table.statistics
    lines = ["", f"{name}: {format_count(rows.opened, 'row')} to open, {rows.closed:,} to close"]
    if table.widened:
        lines.append(f"{describe_widening(name, table.widened, table.widen)}.")
    if table.held:
        lines.append(f"{format_count(table.held, 'key')} held back: their changes are not in these rows")
    if rows.corrected:
        lines.append(f"{format_count(rows.corrected, 'past answer')} would change: {format_counts(rows.ages)}")
    if table.examples:
        lines.append(show.format_aligned(_tabulate_examples(table.examples)))
    return lines + [
        f"gate ({gate.on_failure}) {gate.outcome}: {format_gate(gate.expectation, gate.kwargs)}: {gate.detail}"
        for gate in table.gates
        if gate.outcome != "passed"
    ]


def _tabulate_examples(examples: Sequence[StoredObject]) -> pa.Table:
    """Return answers that would differ as texts, where a value differs `10.00 -> 9.50`.

    A column that has the name of an earlier one gets an underscore.
    """
    rows = [_list_cells(example) for example in examples]
    names: list[str] = []
    for name, _ in rows[0]:
        while name in names:
            name += "_"  # noqa: PLW2901  # until it is unique
        names.append(name)
    return pa.Table.from_pylist([dict(zip(names, (text for _, text in row), strict=True)) for row in rows])


def _list_cells(example: StoredObject) -> list[tuple[str, str]]:
    """Return the names and texts of the change, the key, the period and the values of an answer that would differ."""
    sides = [example[side] for side in ("before", "after") if example[side] is not None]
    periods = [(name, value) for name, value in example.items() if name in PERIOD_COLUMNS]
    first = [("change", example["change"]), *example["key"].items(), *periods]
    values = [(name, *(show.format_cell(side[name]) or '""' for side in sides)) for name in sides[0]]
    return [
        *((name, show.format_cell(value)) for name, value in first),
        *((name, " -> ".join(dict.fromkeys(texts))) for name, *texts in values),
    ]
