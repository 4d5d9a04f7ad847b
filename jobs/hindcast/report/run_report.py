"""The report of a run as data. Its form in the journal and in `run-N.json` is `as_json`; docs/reading.md describes it.

`from_json` also reads the reports of older versions: what they lack has its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from hindcast.common.json_values import JsonObject, JsonValue, StoredObject
from hindcast.common.step_events import StepFields
from hindcast.ingest.late_delays import LateDelays
from hindcast.plan.definitions import ContractChange
from hindcast.plan.purposes import Approval, ArrivalInterval, Erasure, Replay, parse_purpose
from hindcast.plan.runs import refuse_odd_counts
from hindcast.quality.gate_results import TrackedResult
from hindcast.quality.overdue import OverdueKeys
from hindcast.report.abandoned_runs import AbandonedRun
from hindcast.store.commit_notes import LeftOut
from hindcast.store.emitted_log import WaitingView


@dataclass(frozen=True)
class PartitionReport:
    """One planned range of a partition, from `start` up to before `end`, with the number of its offsets by fate.

    `topic` and `number`: Kafka's, of a partition of a pattern's topic.
    """

    partition: int
    start: int
    end: int
    fates: Mapping[str, int]
    topic: str | None = None
    number: int | None = None

    @property
    def name(self) -> str:
        """The partition for people: `3`, or `orders-eu-3` for a pattern."""
        return str(self.partition) if self.topic is None else f"{self.topic}-{self.number}"

    def as_json(self) -> JsonObject:
        """Return the form in the report."""
        place: JsonObject = {} if self.topic is None else {"topic": self.topic, "topicPartition": self.number}
        return {"partition": self.partition, **place, "start": self.start, "end": self.end, "fates": self.fates}

    @classmethod
    def from_json(cls, part: StoredObject) -> PartitionReport:
        """Return the range from its form in a report."""
        range_, fates = (part.get("partition", 0), part.get("start", 0), part.get("end", 0)), part.get("fates") or {}
        refuse_odd_counts((*range_, *fates.values()))
        return cls(*range_, fates, part.get("topic"), part.get("topicPartition"))


@dataclass(frozen=True)
class TopicReport:
    """What a run did with one topic. `topic`: its name in Kafka, or the pattern.

    `offsets`: how many it ingested; None in a report that only lists partitions. `late`: accepted records behind stream
    time. `without_value`: records of a stream without a value. `before_horizon`: records dated before the horizon.
    `delays`: by how much late records were late; None in older reports. `decided_anew`: earlier records whose fate the
    current contract changed, by the new fate. `requeued`: by fate, the malformed records that it decoded again, and
    `still`, those that are malformed still. `ties`: as for `report.locate_ties`. `ahead`: records with an arrival that
    the run could not know of. In a report that would be too large (report_size.py), `partitions_left_out`: how many
    ranges are not listed; `all_fates`: the number of all offsets by fate.
    """

    topic: str
    offsets: int | None = 0
    late: int = 0
    partitions: Sequence[PartitionReport] = ()
    without_value: int | None = None
    before_horizon: int = 0
    decided_anew: Mapping[str, int] = field(default_factory=dict)
    requeued: Mapping[str, int] | None = None
    still: JsonObject = field(default_factory=dict)
    ties: Mapping[str, int | str] = field(default_factory=dict)
    partitions_left_out: int = 0
    all_fates: Mapping[str, int] = field(default_factory=dict)
    ahead: int = 0
    delays: LateDelays | None = None

    @property
    def fates(self) -> dict[str, int]:
        """The number of its offsets by fate."""
        counts: dict[str, int] = dict(self.all_fates)
        for fate, n in ((fate, n) for part in self.partitions for fate, n in part.fates.items()):
            counts[fate] = counts.get(fate, 0) + n
        return counts

    def as_json(self) -> JsonObject:
        """Return the form in the report."""
        optional: dict[str, JsonValue] = {
            "withoutValue": self.without_value,
            "beforeHorizon": self.before_horizon or None,
            "decidedAnew": self.decided_anew or None,
            "requeued": self.requeued,
            "still": self.still if self.requeued is not None else None,
            "ties": self.ties or None,
            "partitionsLeftOut": self.partitions_left_out or None,
            "fates": self.all_fates or None,
            "arrivalsAhead": self.ahead or None,
            "lateBy": self.delays.as_json() if self.delays else None,
        }
        return {
            "topic": self.topic,
            "offsets": self.offsets,
            "late": self.late,
            "partitions": [part.as_json() for part in self.partitions],
            **{name: value for name, value in optional.items() if value is not None},
        }

    @classmethod
    def from_json(cls, name: str, topic: StoredObject) -> TopicReport:
        """Return the topic from its form in a report; TypeError if a count is none."""
        names = ("offsets", "late", "withoutValue", "beforeHorizon", "partitionsLeftOut", "arrivalsAhead")
        counts = {name: topic.get(name) for name in names}
        by_fate = {name: topic.get(name) or {} for name in ("decidedAnew", "requeued", "fates")}
        refuse_odd_counts(count or 0 for count in counts.values())
        refuse_odd_counts(count for fates in by_fate.values() for count in fates.values())
        return cls(
            topic.get("topic", name),
            counts["offsets"],
            counts["late"] or 0,
            tuple(map(PartitionReport.from_json, topic.get("partitions") or ())),
            counts["withoutValue"],
            counts["beforeHorizon"] or 0,
            by_fate["decidedAnew"],
            topic.get("requeued"),
            topic.get("still") or {},
            topic.get("ties") or {},
            counts["partitionsLeftOut"] or 0,
            by_fate["fates"],
            counts["arrivalsAhead"] or 0,
            LateDelays.from_json(delays) if (delays := topic.get("lateBy")) else None,
        )


@dataclass(frozen=True)
class HeldKeys:
    """The keys of a table that are held back, and the rows of their changes.

    `newly`: keys that were not held after the run before; `grown`: keys of which more is held than then. `overdue`: for
    how long keys have shown a value that a held record would have ended.
    """

    keys: int
    rows: int = 0
    newly: int = 0
    grown: int = 0
    overdue: OverdueKeys | None = None

    def as_json(self) -> JsonObject:
        """Return the form in the report."""
        counts: JsonObject = {"keys": self.keys, "rows": self.rows, "newly": self.newly, "grown": self.grown}
        return {**counts, **({"overdue": self.overdue.as_json()} if self.overdue else {})}

    @classmethod
    def from_json(cls, held: StoredObject) -> HeldKeys:
        """Return the keys from their form in a report."""
        counts = {name: held.get(name) or 0 for name in ("keys", "rows", "newly", "grown")}
        refuse_odd_counts(counts.values())
        overdue = held.get("overdue")
        return cls(**counts, overdue=OverdueKeys.from_json(overdue) if overdue else None)


@dataclass(frozen=True)
class GateReport:
    """A gate's result; `rows`: the command that lists its failing rows, if it failed row by row."""

    result: TrackedResult
    rows: str | None = None

    def as_json(self) -> JsonObject:
        """Return the form in the report."""
        return {**self.result.as_json(), **({"rows": self.rows} if self.rows else {})}

    @classmethod
    def from_json(cls, gate: StoredObject) -> GateReport:
        """Return the gate from its form in a report."""
        return cls(TrackedResult.from_json({**_UNKNOWN_GATE, **gate}), gate.get("rows"))


_UNKNOWN_GATE: JsonObject = {
    "gate": 0,
    "expectation": "?",
    "kwargs": {},
    "on_failure": "",
    "outcome": "error",
    "detail": "",
    "checked": None,
    "failing": None,
    "observed": None,
    "trend": [],
}


@dataclass(frozen=True)
class TableReport:
    """What a run did to one table: rows `opened` and `closed`, of the latter past answers (`corrected`), these by age.

    `note`: whether it committed anything. `ended`: by entry, the units that are no longer held. `emitted`: of a kafka
    view, its records and tombstones; `settled`: with `wait`, how far it got. `widened`: columns with their types before
    and after; `is_rewritten`: for that the whole table was written again. Of an aggregate: `left_out` in total and
    `newly_left_out` since the run before, and for windows up to when they are closed. `kernel`: the operator, if a
    kernel wrote the rows (`TableNote`).
    """

    opened: int = 0
    closed: int = 0
    corrected: int = 0
    ages: Mapping[str, int] | None = None
    run: int | None = None
    kernel: str | None = None
    left_out: LeftOut | None = None
    widened: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gates: Sequence[GateReport] = ()
    held: HeldKeys | None = None
    ended: Mapping[str, int] = field(default_factory=dict)
    emitted: Mapping[str, int] | None = None
    settled: WaitingView | None = None
    newly_left_out: Mapping[str, int] | None = None
    has_windows: bool = False
    closed_up_to: datetime | None = None
    is_rewritten: bool = False

    def as_json(self) -> JsonObject:
        """Return the form in the report."""
        optional: dict[str, JsonValue] = {
            "run": self.run,
            "ages": self.ages,
            "kernel": self.kernel,
            "widened": self.widened or None,
            "rewritten": self.is_rewritten or None,
            "held": self.held.as_json() if self.held else None,
            "noLongerHeld": self.ended or None,
            "emitted": self.emitted,
            "settled": self.settled.as_json() if self.settled else None,
            **(self.left_out.as_json() if self.left_out else {}),
            "newlyLeftOut": self.newly_left_out,
        }
        closed_up_to = self.closed_up_to.isoformat() if self.closed_up_to else None
        return {
            "opened": self.opened,
            "closed": self.closed,
            "corrected": self.corrected,
            **{name: value for name, value in optional.items() if value is not None},
            **({"closedUpTo": closed_up_to} if self.has_windows else {}),
            "gates": [gate.as_json() for gate in self.gates],
        }

    @classmethod
    def from_json(cls, table: StoredObject) -> TableReport:
        """Return the table from its form in a report; TypeError or ValueError if a count or a widening is none."""
        closed_up_to, held = table.get("closedUpTo"), table.get("held") or {}
        opened, closed, corrected = (table.get(name) or 0 for name in ("opened", "closed", "corrected"))
        ages = table.get("ages")
        refuse_odd_counts((opened, closed, corrected, *(ages or {}).values()))
        widened = {name: [str(old), str(new)] for name, (old, new) in (table.get("widened") or {}).items()}
        return cls(
            opened,
            closed,
            corrected,
            ages,
            table.get("run"),
            table.get("kernel"),
            LeftOut.from_json(table),
            widened,
            tuple(map(GateReport.from_json, table.get("gates") or ())),
            HeldKeys.from_json(held) if held.get("keys") else None,
            table.get("noLongerHeld") or {},
            table.get("emitted"),
            WaitingView.from_json(settled) if (settled := table.get("settled")) else None,
            table.get("newlyLeftOut"),
            "closedUpTo" in table,
            datetime.fromisoformat(closed_up_to) if closed_up_to else None,
            bool(table.get("rewritten")),
        )


@dataclass(frozen=True)
class RunReport:
    """The report of a run that was completed, or that the error `found` stopped.

    `contract`: how the contract changed since the run before (definitions.py). `abandoned`: what runs wrote that were
    abandoned since (abandoned_runs.py). `again`: the commands that do the same again. `rebuilt`: it was made from logs
    and tables after the journal was lost. `rehearsed`: the interval of arrival of a rehearsed run. `approval`:
    who approved what a release published, and when; `reason` says why.
    """

    pipeline: str
    run: int
    run_id: str
    known_at: datetime | None
    interval_end: datetime | None = None
    only: str | None = None
    reason: str | None = None
    erasure: Erasure | None = None
    state: Literal["completed", "stopped"] = "completed"
    found: str | None = None
    contract: ContractChange | None = None
    abandoned: Sequence[AbandonedRun] = ()
    topics: Mapping[str, TopicReport] = field(default_factory=dict)
    tables: Mapping[str, TableReport] = field(default_factory=dict)
    again: str = ""
    rebuilt: bool = False
    rehearsed: ArrivalInterval | None = None
    approval: Approval | None = None

    @property
    def held_keys(self) -> dict[str, HeldKeys]:
        """The keys that are held back, by table."""
        return {name: table.held for name, table in self.tables.items() if table.held}

    def summarize_for_events(self) -> StepFields:
        """Return the fields that the report adds to the event of the step that completes the run.

        `records`: by topic, the count of each fate that occurs. `late`: by topic, the count of late records. `held`: by
        table, the number of keys held back, for tables that have quarantine gates.
        """
        held = {
            name: table.held.keys if table.held else 0
            for name, table in self.tables.items()
            if table.held or any(gate.result.on_failure == "quarantine" for gate in table.gates)
        }
        late = {name: topic.late for name, topic in self.topics.items() if topic.late}
        return {"records": {name: topic.fates for name, topic in self.topics.items()}, "late": late, "held": held}

    def as_json(self) -> JsonObject:
        """Return the form in the journal and in `run-N.json`."""
        optional: dict[str, JsonValue] = {
            "only": self.only,
            "reason": self.reason,
            **(self.erasure.as_json() if self.erasure else {}),
            "found": self.found,
            "contract": self.contract.as_json() if self.contract else None,
            "givenUp": [run.as_json() for run in self.abandoned] or None,
            "rebuilt": self.rebuilt or None,
            **Replay(arrival=self.rehearsed).as_json(),
            "approval": self.approval.as_json() if self.approval else None,
        }
        return {
            "pipeline": self.pipeline,
            "run": self.run,
            "runId": self.run_id,
            "knownAt": self.known_at.isoformat() if self.known_at else None,
            "intervalEnd": self.interval_end.isoformat() if self.interval_end else None,
            "state": self.state,
            **{name: value for name, value in optional.items() if value is not None},
            "topics": {name: topic.as_json() for name, topic in self.topics.items()},
            "tables": {name: table.as_json() for name, table in self.tables.items()},
            "again": self.again,
        }

    @classmethod
    def from_json(cls, report: StoredObject) -> RunReport:
        """Return the report from its form in the journal or in a file; ValueError if it has too many parts."""
        refuse_excess(report)
        rehearses = {name: value for name, value in report.items() if name == "rehearses"}
        known_at, interval_end, erasure = (report.get(name) for name in ("knownAt", "intervalEnd", "forgets"))
        return cls(
            report.get("pipeline", "?"),
            report.get("run", 0),
            report.get("runId") or "",
            datetime.fromisoformat(known_at) if known_at else None,
            datetime.fromisoformat(interval_end) if interval_end else None,
            report.get("only"),
            report.get("reason"),
            Erasure.from_json(erasure) if erasure else None,
            report.get("state") or "completed",
            report.get("found"),
            ContractChange.from_json(contract) if (contract := report.get("contract")) else None,
            tuple(map(AbandonedRun.from_json, report.get("givenUp") or ())),
            {name: TopicReport.from_json(name, topic) for name, topic in (report.get("topics") or {}).items()},
            {name: TableReport.from_json(table) for name, table in (report.get("tables") or {}).items()},
            report.get("again") or "",
            bool(report.get("rebuilt")),
            rehearsed.arrival if isinstance(rehearsed := parse_purpose(rehearses), Replay) else None,
            Approval.from_json(approval) if (approval := report.get("approval")) else None,
        )


MAX_TABLES, MAX_GATES, MAX_PARTITIONS = 1_000, 10_000, 100_000
"""The most tables, and topics, of a report, gates of all its tables, and ranges of partitions. A contract has at most
500 tables and 1,000 gates (contract/bounds.py), and a report of 4 MiB at most 100,000 ranges.
"""


def refuse_excess(report: StoredObject) -> None:
    """Raise ValueError for the JSON of a report that has more parts than any that a run writes."""
    topics, tables = (report.get(name) or {} for name in ("topics", "tables"))
    counts = {
        "topics": (len(topics), MAX_TABLES),
        "tables": (len(tables), MAX_TABLES),
        "partitions": (sum(len(topic.get("partitions") or ()) for topic in topics.values()), MAX_PARTITIONS),
        "gates": (sum(len(table.get("gates") or ()) for table in tables.values()), MAX_GATES),
    }
    for name, (count, most) in counts.items():
        if count > most:
            raise ValueError(f"has {count:,} {name}, more than {most:,}")
