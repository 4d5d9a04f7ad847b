"""What is said of a change whose input record is not known: that it was released, or among which records it is."""

from __future__ import annotations

from collections.abc import Sequence

from hindcast.airflow.pages import failing_changes
from hindcast.common.errors import HindcastError
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.kafka import topic_patterns
from hindcast.plan import journal
from hindcast.plan.purposes import Replay
from hindcast.plan.runs import Run

MAX_OFFSETS = 5
"""Among how many records that runs read it is one of: of more nothing is said."""


def describe_likely_cause(settings: Settings, contract: Contract, name: str, runs: Sequence[Run]) -> str | None:
    """Return what caused changes of a table by these runs whose cause is not known; None if that is not known."""
    if not runs:
        return None
    if len(runs) == 1 and runs[0].plan.released_keys:
        return _describe_release(settings, contract, name, runs[0])
    return _describe_records(settings, contract, name, runs)


def _describe_release(settings: Settings, contract: Contract, name: str, run: Run) -> str:
    """Return who released a change of a table, and since which run it was held back, if that was one."""
    by = run.plan.approval.by if run.plan.approval else None
    try:
        failing = failing_changes.read_failing_rows(settings, contract, run.number)
    except HindcastError:
        failing = {}
    since = {row["heldBy"] for (table, _), rows in failing.items() if table == name for row in rows if "heldBy" in row}
    held = f" (held since run {since.pop()})" if len(since) == 1 else ""
    return f"released by {by or 'nobody named'}{held}"


def _describe_records(settings: Settings, contract: Contract, name: str, runs: Sequence[Run]) -> str | None:
    """Return the records that these runs read of the topics that a table is made of, if they are few and nothing else
    can be the cause: a table of another pipeline, another contract, or what a run did besides reading.
    """
    before = [
        run for run in journal.read_completed_runs(settings.warehouse, contract.pipeline) if run.number < runs[0].number
    ]
    is_same = len({run.plan.contract for run in (*before[-1:], *runs)}) == 1
    is_read = all(isinstance(run.plan.purpose, Replay) for run in runs)
    if not (is_same and is_read and {*contract.list_upstream(name)} <= {*contract.topics, *contract.views}):
        return None
    used = [topic for topic in contract.topics if topic in {name, *contract.list_upstream(name)}]
    texts, total = list[str](), 0
    for topic in used:
        members = journal.read_members(settings.warehouse, contract, topic)
        for run in runs:
            plan = run.plan.topics.get(topic)
            for partition, offsets in [piece for part in (plan.parts if plan else ()) for piece in part.items()]:
                if (count := offsets.end - offsets.start) <= 0:
                    continue
                total += count
                place = topic_patterns.kafka_partition(contract.kafka_topic(topic), members, partition)
                last = f"s {offsets.start:,} to {offsets.end - 1:,}" if count > 1 else f" {offsets.start:,}"
                texts.append(f"{place[0]}, partition {place[1]}, offset{last}")
    if not 0 < total <= MAX_OFFSETS:
        return None
    return "; ".join(texts) if total == 1 else f"one of {'; '.join(texts)}"
