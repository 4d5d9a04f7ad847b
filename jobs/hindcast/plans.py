"""What a run will do, fixed before it does anything: its known-at and, per topic and partition, a range of offsets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast import journal
from hindcast.contracts import Contract
from hindcast.errors import RunError, TopicError
from hindcast.journal import Run
from hindcast.tables import Table, published
from hindcast.topics import Cluster, Offsets, bounded, gone


@dataclass(frozen=True)
class Plan:
    """A run's plan; a retry finishes the same one."""

    pipeline: str
    run: int
    run_id: str
    known_at: datetime
    interval_end: datetime | None
    contract: str
    ranges: dict[str, dict[int, Offsets]]
    topic_ids: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """The form in the journal."""
        return {
            "pipeline": self.pipeline,
            "run": self.run,
            "runId": self.run_id,
            "knownAt": self.known_at.isoformat(),
            "intervalEnd": self.interval_end.isoformat() if self.interval_end else None,
            "contract": self.contract,
            "topics": {
                name: {
                    "id": self.topic_ids[name],
                    "partitions": [{"partition": p, "start": r.start, "end": r.end} for p, r in ranges.items()],
                }
                for name, ranges in self.ranges.items()
            },
        }

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Plan:
        """The plan that `as_json` told."""
        end = told["intervalEnd"]
        return cls(
            told["pipeline"],
            told["run"],
            told["runId"],
            datetime.fromisoformat(told["knownAt"]),
            datetime.fromisoformat(end) if end else None,
            told["contract"],
            {
                name: {p["partition"]: Offsets(p["start"], p["end"]) for p in topic["partitions"]}
                for name, topic in told["topics"].items()
            },
            {name: topic["id"] for name, topic in told["topics"].items()},
        )


def plan(warehouse: str, servers: str, contract: Contract, run_id: str, interval_end: datetime | None = None) -> Plan:
    """The plan of the run `run_id`, stored before it is returned; that of an earlier try if there is one.

    `interval_end` (UTC) bounds what is replayed (design.md 6); without it everything there is. RunError if another
    run of the pipeline has not ended; a run that a gate stopped gives way, and its records are this run's leftovers.
    """
    past = journal.runs(warehouse, contract.pipeline)
    open_runs = [run for run in past if not run.finished]
    for run in open_runs:
        same = run.run_id == run_id
        if same and run.plan["contract"] == contract.hash:
            return Plan.from_json(run.plan)
        if same and _committed(warehouse, contract, run):
            raise RunError(
                "the contract was changed while the run was under way",
                where=f"{contract.pipeline}, run {run.number} ({run.run_id})",
                mend=f"put the contract back and retry, or give the run up: hindcast abandon {contract.pipeline}",
            )
        if not same and run.state != "stopped":
            raise RunError(
                f"run {run.number} ({run.run_id}) has not ended",
                where=contract.pipeline,
                mend=f"wait for it or retry it; if it cannot be finished: hindcast abandon {contract.pipeline}",
            )
        abandon(warehouse, run, f"given up for {run_id}")
    return _new(warehouse, servers, contract, run_id, interval_end, past)


def abandon(warehouse: str, run: Run, reason: str) -> None:
    """Gives up a run: what it has committed stays, what it has not is left to the next one."""
    journal.write(warehouse, replace(run, state="abandoned", detail={"reason": reason}))


def current(warehouse: str, pipeline: str, number: int) -> Run:
    """The run that a step works for; RunError if it has ended or was given up meanwhile."""
    run = next((r for r in journal.runs(warehouse, pipeline) if r.number == number), None)
    if run is None or run.finished:
        state = run.state if run else "not planned"
        raise RunError(f"run {number} is {state}", where=pipeline, mend="start a new run")
    return run


def log(warehouse: str, pipeline: str, topic: str) -> Table:
    """The log table of a topic: its records as Kafka had them, with their fates."""
    return Table(warehouse, pipeline, f"logs/{topic}", "log")


def _new(
    warehouse: str, servers: str, contract: Contract, run_id: str, interval_end: datetime | None, past: list[Run]
) -> Plan:
    latest = max((run.known_at for run in past), default=datetime.min.replace(tzinfo=UTC))
    known_at = max(datetime.now(UTC), latest + timedelta(microseconds=1) if past else latest)
    ranges: dict[str, dict[int, Offsets]] = {}
    ids: dict[str, str] = {}
    with Cluster(servers) as cluster:
        for name, topic in contract.topics.items():
            kafka = contract.kafka_topic(name)
            available = cluster.available(kafka)
            ids[name] = cluster.topic_id(kafka)
            claimed = _claimed(log(warehouse, contract.pipeline, name), past, name, ids[name], kafka)
            gone(kafka, claimed, available)
            bound = cluster.reaching(kafka, interval_end, known_at + topic.max_time_skew) if interval_end else {}
            ranges[name] = bounded(available, claimed, bound)
    number = max((run.number for run in past), default=0) + 1
    made = Plan(contract.pipeline, number, run_id, known_at, interval_end, contract.hash, ranges, ids)
    journal.write(warehouse, Run(number, run_id, known_at, "planned", made.as_json(), made.as_json()))
    return made


def _claimed(table: Table, past: list[Run], name: str, topic_id: str, kafka: str) -> dict[int, int]:
    """Per partition the offset after the last one in the log: where the last run that committed to it ended."""
    last = published(table)
    run = next((run for run in past if run.number == last), None)
    if run is None:
        return {}
    planned = Plan.from_json(run.plan)
    if planned.topic_ids[name] != topic_id:
        raise TopicError(
            f"was deleted and made anew since run {last}: its offsets mean other records",
            where=f"topic {kafka}",
            mend="replay the new topic into a new pipeline (another pipeline: name in the contract)",
        )
    return {partition: offsets.end for partition, offsets in planned.ranges[name].items()}


def _committed(warehouse: str, contract: Contract, run: Run) -> bool:
    return any(published(log(warehouse, contract.pipeline, name)) >= run.number for name in contract.topics)
