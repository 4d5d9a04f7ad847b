"""Rehearsal: an old topic is replayed as if runs had been made as its records arrived.

Each run takes the records that arrived in an interval, of all partitions, and is known at the interval's end. Kafka is
read twice: once to find where the intervals end, and by the runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from hindcast.bitemporal.valid_time import FIRST_MOMENT
from hindcast.common import progress, step_events
from hindcast.common.errors import RequestError
from hindcast.common.settings import Settings
from hindcast.contract.bound import BoundContract
from hindcast.contract.closing import Closing
from hindcast.contract.types import parse_duration
from hindcast.ingest import arrival_bounds
from hindcast.ingest.logged_topics import LoggedTopics
from hindcast.kafka import topic_patterns
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.plan import inputs, journal, notices, planner, rehearsals
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.purposes import ArrivalInterval
from hindcast.plan.rehearsals import RehearsedOffsets
from hindcast.plan.runs import Run
from hindcast.report.run_report import RunReport
from hindcast.runs import pass_obstacles, rehearsal_pass, run_steps

MOST_RUNS = 10_000
"""The most runs of one rehearsal."""
CALENDAR = ("month", "quarter", "year")


def list_intervals(since: datetime, until: datetime, every: str) -> Iterator[ArrivalInterval]:
    """Yield the intervals of a rehearsal in order: of the length `every`, or the calendar's (UTC); the last may be
    shorter.

        from 2026-01-15 to 2026-03-01, every month    ->    [01-15, 02-01), [02-01, 03-01)
    """
    start = since
    for end in _list_ends(since, until, every):
        yield ArrivalInterval(start, end)
        start = end
    if start < until:
        yield ArrivalInterval(start, until)


def _list_ends(since: datetime, until: datetime, every: str) -> Iterator[datetime]:
    """Yield where intervals that begin at `since` end, as far as that is not after `until`."""
    if every in CALENDAR:
        yield from (end for _, _, end in Closing(every=every).list_periods(since, until))
        return
    length, end = _parse_length(every), since
    while until - end >= length:
        end += length
        yield end


def _parse_length(every: str) -> timedelta:
    try:
        length = parse_duration(every)
    except ValueError as error:
        found, fix = f"'{every}' is not a length of intervals", "write 1 day, 6 hours, month, quarter or year"
        raise RequestError(found, fix=fix) from error
    if not length:
        raise RequestError("intervals must be longer than zero", fix="write for example --every '1 day'")
    return length


def rehearse_runs(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    intervals: Sequence[ArrivalInterval],
    *,
    with_earlier: bool = False,
    given: TopicSource | None = None,
    in_passes: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[RunReport]:
    """Make the runs of these intervals of arrival, which are in order, and yield the report of each.

    Those that a rehearsal has completed are left out. `with_earlier`: what arrived before the first interval belongs
    to it. `in_passes`: many are made together where they can be (rehearsal_pass.py); `tell` is told why they are not.
    Raises RequestError, before anything is written, if the pipeline cannot be rehearsed so; and whatever error a run
    raises: the runs before it stay, and the same call goes on after them.
    """
    with ExitStack() as notice:
        if journal.read_runs(settings.warehouse, pipeline):  # without a run a pipeline has no place for a notice
            notice.enter_context(notices.post_rehearsal(settings.warehouse, pipeline))
        yield from rehearsal_pass.finish_open_pass(spark, settings, pipeline, given)
        with progress.report_progress(spark):
            runs = _divide_topics(spark, settings, pipeline, intervals, with_earlier=with_earlier, given=given)
        obstacle = pass_obstacles.find_obstacle(find_bound_contract(settings, pipeline))
        if obstacle is not None and len(runs) > 1:
            tell(f"each of {len(runs):,} dates is a run by itself: {obstacle} (docs/hindsight.md)")
        done, most, reasons = 0, len(runs), set[str]()
        while done < len(runs):
            step_events.add_fields(runs=len(runs), runs_done=done)
            left = runs[done : done + most]
            if in_passes and obstacle is None and len(left) > 1:
                made = rehearsal_pass.make_runs(spark, settings, pipeline, left, given)
                yield from made.reports
                done += len(made.reports)
                # What is read of dates behind one that is a run by itself is read again.
                most = max(LEAST_DATES, 2 * len(made.reports)) if made.was_read else len(runs)
                if not made.reason:
                    continue
                if made.is_lasting:
                    obstacle = made.reason
                    left_dates = f"each of the {len(runs) - done:,} dates left"
                    tell(f"{left_dates} is a run by itself: {obstacle} (docs/hindsight.md)")
                elif made.reason not in reasons:
                    tell(f"{runs[done].interval.until.isoformat()} is a run by itself: {made.reason}")
                reasons.add(made.reason)
            yield _make_run(spark, settings, pipeline, runs[done], given, notice)
            done += 1


LEAST_DATES = 8
"""So many dates a pass tries to make after one that had to be a run by itself."""


def _make_run(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    rehearsed: RehearsedOffsets,
    given: TopicSource | None,
    notice: ExitStack,
) -> RunReport:
    """Make a run of its own, and post the notice of the rehearsal in its first run; return its report."""
    is_first = not journal.read_runs(settings.warehouse, pipeline)
    name = rehearsals.name_run(rehearsed.interval)
    number = run_steps.plan_run(settings, pipeline, name, rehearsed=rehearsed, given=given)
    if is_first:
        notice.enter_context(notices.post_rehearsal(settings.warehouse, pipeline))
    return run_steps.execute_run(spark, settings, pipeline, number, given)


def plan_requested_run(spark: SparkSession, settings: Settings, pipeline: str, run_id: str, request: str) -> int:
    """Store the plan of the run of one interval of arrival, or find that of an earlier attempt; return its number.

    As `rehearse_runs` does, with the same errors; BusyError while another run of the pipeline is under way.

        request: {"from": "2026-01-01T00:00:00+00:00", "to": "2026-02-01T00:00:00+00:00", "earlier": true}

    `earlier`: what arrived before `from` belongs to the interval. It may have a `reason`.
    """
    asked = json.loads(request)
    interval = ArrivalInterval.from_json(asked)
    if (done := rehearsals.find_completed_run(journal.read_runs(settings.warehouse, pipeline), interval)) is not None:
        return done.number
    runs = _divide_topics(spark, settings, pipeline, [interval], with_earlier=bool(asked.get("earlier")))
    if not runs:
        found = f"what arrived up to {interval.until.isoformat()} was rehearsed before, in other intervals"
        raise RequestError(found, where=pipeline, fix="rehearse later intervals")
    return run_steps.plan_run(settings, pipeline, run_id, reason=asked.get("reason"), rehearsed=runs[0])


def _divide_topics(
    spark: SparkSession,
    settings: Settings,
    pipeline: str,
    intervals: Sequence[ArrivalInterval],
    *,
    with_earlier: bool,
    given: TopicSource | None = None,
) -> list[RehearsedOffsets]:
    """Return where each interval ends that is left to rehearse; RequestError if they cannot be rehearsed so."""
    contract = find_bound_contract(settings, pipeline)
    past = journal.read_runs(settings.warehouse, pipeline)
    rehearsals.refuse_rehearsal(contract, past)
    inputs.refuse_unrehearsed(contract, intervals[0])
    if not with_earlier:
        rehearsals.refuse_skipped(pipeline, past, intervals[0])
    end = rehearsals.find_end(past)
    left = [interval for interval in intervals if end is None or interval.until > end]
    if end is not None and left and left[0].since != end:
        found = f"what arrived up to {end.isoformat()} was rehearsed, and the next interval does not begin there"
        raise RequestError(found, where=pipeline, fix=f"rehearse from {end.isoformat()} on")
    if not left:
        return []
    return _find_offsets(spark, contract, past, left, is_first=end is None and not with_earlier, given=given)


def _find_offsets(
    spark: SparkSession,
    contract: BoundContract,
    past: list[Run],
    intervals: Sequence[ArrivalInterval],
    *,
    is_first: bool,
    given: TopicSource | None,
) -> list[RehearsedOffsets]:
    """Return where each interval ends. `is_first`: no record may have arrived before the first interval."""
    plan = planner.propose_plan(contract, "rehearsal", None, past, given=given)
    since = intervals[0].since if is_first else FIRST_MOMENT
    moments = [FIRST_MOMENT, since, *(interval.until for interval in intervals)]
    bounds = {}
    for name, topic_plan in plan.topics.items():
        first, begin, *bounds[name] = arrival_bounds.find_arrival_bounds(spark, contract, plan, name, moments, given)
        earlier = [(partition, offset) for partition, offset in sorted(first.items()) if offset < begin[partition]]
        if earlier:
            partition, offset = earlier[0]
            place = topic_patterns.describe_partition(contract.kafka_topic(name), topic_plan.members, partition)
            found = f"the record arrived before {since.isoformat()}, where the rehearsal begins, or nothing says when"
            fix = "let it begin earlier; or say that such records are known at the end of the first interval: --earlier"
            fix += ", or in Airflow's form With earlier records"
            raise RequestError(found, where=f"{place}, offset {offset}", fix=fix)
    logs = given.pipeline if isinstance(given, LoggedTopics) else None
    return [
        RehearsedOffsets(interval, {name: ends[n] for name, ends in bounds.items()}, logs)
        for n, interval in enumerate(intervals)
    ]
