"""Rehearsed runs: those of an interval of arrival, known at its end, as if they had run then.

    arrivals 1, 5, 9, rehearsed every 4 from 0    ->    [0, 4) known at 4, [4, 8) known at 8, [8, 12) known at 12

A rehearsal is open from its first run to the first run by the clock: until then releases, requeues and erasures are
known a microsecond after the run before them, and no table gets another definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from hindcast.common import clock
from hindcast.common.errors import RequestError, RunError
from hindcast.common.json_values import JsonObject
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.plan import closes, definitions
from hindcast.plan.purposes import ArrivalInterval, Purpose, Replay
from hindcast.plan.runs import Run

RUN_PREFIX = "rehearse__"
MICROSECOND = timedelta(microseconds=1)
_LIMITS = {"max_malformed", "max_record_bytes", "on_gap", "expect", "hold", "sensitive", "keep", "widen"}
"""The fields of a topic that may change within a rehearsal."""


class RehearsedOffsets(NamedTuple):
    """An interval of arrival, and by topic and partition the first offset that did not arrive in it. `logs`: the
    pipeline whose logs have the records; None: Kafka has them.
    """

    interval: ArrivalInterval
    ends: Mapping[str, Mapping[int, int]]
    logs: str | None = None


def name_run(interval: ArrivalInterval) -> str:
    """Return the id of a rehearsed run that a command makes."""
    return f"{RUN_PREFIX}{interval.until.isoformat()}"


def find_airflows_run(past: Sequence[Run]) -> Run | None:
    """Return the last rehearsed run if a backfill of Airflow made it and the rehearsal is open; else None."""
    last = next((run for run in reversed(past) if run.plan.rehearsed_interval is not None), None)
    return last if last is not None and is_open(past) and not last.run_id.startswith(RUN_PREFIX) else None


def is_open(past: Sequence[Run]) -> bool:
    """Return whether the last run that replayed topics was a rehearsed one."""
    replays = _list_replays(past)
    return bool(replays) and replays[-1].plan.rehearsed_interval is not None


def find_end(past: Sequence[Run]) -> datetime | None:
    """Return up to when arrivals were rehearsed and published; None if nothing was."""
    ends = [interval.until for run in past if run.state == "completed" and (interval := run.plan.rehearsed_interval)]
    return max(ends, default=None)


def refuse_skipped(pipeline: str, past: Sequence[Run], interval: ArrivalInterval) -> None:
    """Raise RequestError if a run of an earlier interval was not completed, and nothing was rehearsed yet: its records
    are in the log, but were to be known at the end of that interval.
    """
    begun = [run for run in past if (it := run.plan.rehearsed_interval) is not None and it.since < interval.since]
    if begun and find_end(past) is None and (first := begun[0].plan.rehearsed_interval) is not None:
        since, run = first.since.isoformat(), f"run {begun[0].number} ({begun[0].run_id})"
        found = f"{run} was to rehearse what arrived from {since} on, and was not completed"
        raise RequestError(found, where=pipeline, fix=f"rehearse from {since} on")


def find_completed_run(past: Sequence[Run], interval: ArrivalInterval) -> Run | None:
    """Return the run that has rehearsed an interval to its end; None if none has."""
    done = (run for run in past if run.state == "completed" and run.plan.rehearsed_interval == interval)
    return next(done, None)


def find_run_by_clock(past: Sequence[Run]) -> Run | None:
    """Return the first run that replayed topics and was no rehearsed one: none can be rehearsed after it."""
    return next((run for run in _list_replays(past) if run.plan.rehearsed_interval is None), None)


def _list_replays(past: Sequence[Run]) -> list[Run]:
    """Return the runs that replayed topics. Of a rebuilt run only the offsets that it ingested tell that."""
    replays = (run for run in past if isinstance(run.plan.purpose, Replay))
    return [
        run
        for run in replays
        if not run.plan.is_rebuilt or run.plan.rehearsed_interval is not None or run.plan.ingests_offsets
    ]


def refuse_rehearsal(contract: Contract, past: Sequence[Run]) -> None:
    """Raise RequestError if runs of a pipeline cannot be rehearsed after the `past` ones."""
    pipeline = contract.pipeline
    without = [name for name, topic in contract.topics.items() if topic.arrival is None]
    if without:
        found = f"topics.{without[0]} does not say when its records arrived"
        raise RequestError(found, where=pipeline, fix="add arrival: to the topic (docs/topics/timestamps.md)")
    if (by_clock := find_run_by_clock(past)) is not None:
        found = f"run {by_clock.number} ({by_clock.run_id}) was no rehearsed one: no run can be rehearsed after it"
        raise RequestError(
            found, where=pipeline, fix=f"rehearse it under another name: hindcast rehearse {pipeline} --into NAME"
        )
    changed = next((run for run in _list_replays(past) if not _has_definition(past, run, contract)), None)
    if changed is not None:
        found = f"the definition of a table was changed since run {changed.number} ({changed.run_id}) of this rehearsal"
        raise RequestError(found, where=pipeline, fix="put it back; or rehearse it under another name")


def _describe_way_on(past: Sequence[Run], kept: Sequence[datetime]) -> str:
    """Return what to do about a run that cannot be known at its moment."""
    if kept and max(kept) >= max(run.known_at for run in past):
        return "a close is known then: hindcast closes lists it, and --drop drops it; or rehearse later intervals"
    unfinished = past[-1].plan.rehearsed_interval
    if unfinished is not None and past[-1].state != "completed":
        since, until = unfinished.since.isoformat(), unfinished.until.isoformat()
        return f"finish the interval that was begun: --from {since} --to {until}"
    return "rehearse later intervals"


def _has_definition(past: Sequence[Run], run: Run, contract: Contract) -> bool:
    """Return whether a run derived every table as a contract does; gates and limits may differ."""
    if run.plan.is_rebuilt or run.plan.contract == contract.hash:
        return True
    before = definitions.find_contract(past, run.plan.contract)
    return before is not None and _list_definitions(before) == _list_definitions(contract)


def _list_definitions(contract: Contract) -> JsonObject:
    topics = {
        name: topic.model_dump(mode="json", exclude_defaults=True, exclude=_LIMITS)
        for name, topic in contract.topics.items()
    }
    return {**topics, **{name: contract.hash_definition(name) for name in contract.views}}


def refuse_future(pipeline: str, until: datetime) -> None:
    """Raise RequestError for a rehearsed run that would be known later than now."""
    if until > (now := clock.now()):
        found = f"a run would be known at {until.isoformat()}, but it is {now.isoformat(timespec='seconds')}"
        raise RequestError(found, where=pipeline, fix="rehearse up to a moment that has passed")


def date_run(contract: BoundContract, past: Sequence[Run], purpose: Purpose) -> datetime | None:
    """Return the known-at of a rehearsed run, or of another while a rehearsal is open; None if the clock gives it.

    Raise RunError if something is known at the end of the interval already, or if that is in the future.
    """
    interval = purpose.arrival if isinstance(purpose, Replay) else None
    if interval is None and (isinstance(purpose, Replay) or not is_open(past)):
        return None
    kept = [close.known_at for close in closes.list_kept(contract.warehouse, contract.pipeline)]
    last = max([*(run.known_at for run in past), *kept], default=None)
    if interval is None:
        return None if last is None else last + MICROSECOND
    until, where = interval.until, contract.pipeline
    refuse_future(where, until)
    # An attempt that was stopped or abandoned may have published some tables at this moment.
    again = last is not None and any(
        run.plan.rehearsed_interval == interval and run.state != "completed" for run in past
    )
    if last is not None and last >= until and not again:
        found = f"something is known at {last.isoformat()} already, so no run can be known at {until.isoformat()}"
        raise RunError(found, where=where, fix=_describe_way_on(past, kept))
    return until if last is None or last < until else last + MICROSECOND
