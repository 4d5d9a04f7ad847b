"""Commands that plan and make runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from hindcast.cli.commands.shared import find_user, load_contract, open_session, parse_moment, read_runs
from hindcast.common import step_events
from hindcast.common.errors import BusyError, QueryError, escape_controls, show_briefly
from hindcast.common.plurals import format_count

if TYPE_CHECKING:
    from hindcast.common.settings import Settings
    from hindcast.ingest.logged_topics import LoggedTopics
    from hindcast.plan.runs import Run
    from hindcast.report.run_report import RunReport


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Run all steps of a pipeline here; without options, it finishes a run that this command left unfinished."""
    from hindcast.plan import journal
    from hindcast.runs import run_steps

    pipeline = arguments.pipeline
    until = parse_moment(settings, pipeline, arguments.until) if arguments.until else None

    def plan(run_id: str) -> int:
        return run_steps.plan_run(
            settings, pipeline, run_id, until, arguments.only, arguments.reason, ahead=arguments.ahead_of_clock
        )

    # Plan before Spark starts: an error in the contract, the broker or the topics then shows at once.
    if arguments.wait:
        number = _plan_when_free(settings, pipeline, lambda: plan(journal.new_run_id("cli")))
    else:
        begun = _find_begun(settings, pipeline, "cli")
        if begun is not None:
            _refuse_other_options(begun, until, arguments.only, arguments.reason)
        number = plan(begun.run_id if begun else journal.new_run_id("cli"))
    _print_report(run_steps.execute_run(open_session(settings, pipeline), settings, pipeline, number), arguments.format)
    return 0


def rehearse(arguments: argparse.Namespace, settings: Settings) -> int:
    """Replay an old topic as if runs had been made as its records arrived, each known at its own date."""
    from hindcast.common.errors import RequestError
    from hindcast.plan import rehearsals
    from hindcast.runs import rehearsal

    pipeline = arguments.pipeline
    others = arguments.start or arguments.end or arguments.earlier or arguments.into
    if arguments.replace is not None:
        if others or arguments.ends:
            fix = "rehearse first; then replace"
            raise RequestError("--replace goes alone: it rehearses nothing", where=pipeline, fix=fix)
        return _replace_pipeline(arguments, settings)
    if arguments.ends and others:
        raise RequestError("--end goes alone: it rehearses nothing", where=pipeline, fix="rehearse first, then end it")
    if arguments.ends:
        return _end_rehearsal(arguments, settings)
    if arguments.start is None or arguments.end is None:
        raise RequestError("a rehearsal needs --from and --to", where=pipeline, fix="hindcast rehearse --help")
    since, until = (parse_moment(settings, pipeline, text) for text in (arguments.start, arguments.end))
    if since >= until:
        found = f"--from {since.isoformat()} is not before --to {until.isoformat()}"
        raise RequestError(found, where=pipeline, fix="write the earlier moment after --from")
    intervals = list(islice(rehearsal.list_intervals(since, until, arguments.every), rehearsal.MOST_RUNS + 1))
    if len(intervals) > rehearsal.MOST_RUNS:
        found = f"these are more than {rehearsal.MOST_RUNS:,} runs"
        raise RequestError(found, where=pipeline, fix="rehearse a shorter time, or longer intervals (--every)")
    # Before Spark starts: what makes no sense shows at once.
    rehearsals.refuse_future(pipeline, until)
    logs = None
    if arguments.into is not None:
        logs = _open_logs(settings, pipeline, arguments.into)
        pipeline = arguments.into
    rehearsals.refuse_rehearsal(load_contract(settings, pipeline), read_runs(settings, pipeline))
    reports: list[RunReport] = []
    spark = open_session(settings, pipeline)
    earlier = arguments.earlier
    try:
        with step_events.record_step("rehearse", pipeline):
            made = rehearsal.rehearse_runs(
                spark,
                settings,
                pipeline,
                intervals,
                with_earlier=earlier,
                given=logs,
                tell=lambda text: print(f"{pipeline}: {text}", file=sys.stderr),
            )
            for report in made:
                reports.append(report)
                if arguments.format != "json":
                    _print_report(report, arguments.format)
    finally:  # also of those before one that failed
        if arguments.format == "json":
            print(json.dumps([report.as_json() for report in reports], indent=2))
    if not reports and arguments.format != "json":
        print(f"{pipeline}: what arrived up to {until.isoformat()} was rehearsed before; nothing was done")
    return 0


def _open_logs(settings: Settings, pipeline: str, into: str) -> LoggedTopics:
    """Return the topics of a pipeline's logs; write the contract of the pipeline `into` if there is none."""
    from hindcast.common.errors import RequestError
    from hindcast.ingest import logged_topics
    from hindcast.ops import contract_copies
    from hindcast.plan import rehearsals

    if into == pipeline:
        raise RequestError("--into names the pipeline itself", where=pipeline, fix="take a name of its own")
    contract = load_contract(settings, pipeline)
    logs = logged_topics.open_logged_topics(contract, read_runs(settings, pipeline))
    if not logs.topics:
        found = "its logs have no records yet"
        raise RequestError(found, where=pipeline, fix="rehearse it without --into, from Kafka")
    rehearsals.refuse_rehearsal(contract, [])
    if (written := contract_copies.copy_contract(settings, pipeline, into)) is not None:
        print(f"{into}: its contract is that of {pipeline}, in {written}", file=sys.stderr)
    logged_topics.refuse_earlier_start(logs, load_contract(settings, into))
    return logs


def _replace_pipeline(arguments: argparse.Namespace, settings: Settings) -> int:
    """Let a rehearsed pipeline take the place of another, and print where that one is now."""

    from hindcast.ops import replacement

    done, was_done = replacement.replace_pipeline(settings, arguments.pipeline, arguments.replace)
    place = f"{settings.warehouse.rstrip('/')}/{done.archive}"
    if arguments.format == "json":
        fields = {"pipeline": done.pipeline, "by": done.by, "archive": done.archive, "folder": place}
        print(json.dumps({**fields, "wasDone": was_done}, indent=2))
        return 0
    before = f"{done.by} took the place of {done.pipeline} before; nothing was done"
    now = f"its tables, runs, reports and contract are those that were {done.by}"
    print(f"{done.pipeline}: {before if was_done else now}")
    print(f"  what it was is the pipeline {done.archive}, in {place}")
    print(
        f"  to undo this: hindcast run {done.archive}, then hindcast rehearse {done.pipeline} --replace {done.archive}"
    )
    return 0


def _end_rehearsal(arguments: argparse.Namespace, settings: Settings) -> int:
    """End a rehearsal by a run that replays nothing: what was known after the last date is settled then."""
    from hindcast.bitemporal.predicates import FIRST_MOMENT
    from hindcast.plan import journal, rehearsals
    from hindcast.runs import run_steps

    pipeline, name = arguments.pipeline, journal.new_run_id("cli")
    begun = _find_begun(settings, pipeline, "cli")
    if begun is not None and begun.plan.interval_end == FIRST_MOMENT:
        name = begun.run_id
    elif not rehearsals.is_open(read_runs(settings, pipeline)):
        print(f"{pipeline}: no rehearsal is open; nothing was done", file=sys.stderr)
        return 0
    reason = "the rehearsal was ended"
    number = run_steps.plan_run(settings, pipeline, name, FIRST_MOMENT, reason=reason, ends_rehearsal=True)
    _print_report(run_steps.execute_run(open_session(settings, pipeline), settings, pipeline, number), arguments.format)
    return 0


def _find_begun(settings: Settings, pipeline: str, command: str) -> Run | None:
    """Return the unfinished run that a command began, to be finished by the same command; None if there is none.

    A run of a DAG can have a name like that of a command's run, but is for something else.
    """
    from hindcast.plan.purposes import Release, Replay, Requeue

    kind = {"cli": Replay, "requeue": Requeue, "release": Release}[command]
    runs = (run for run in read_runs(settings, pipeline) if run.run_id.startswith(f"{command}__"))
    return next((run for run in runs if run.state == "planned" and isinstance(run.plan.purpose, kind)), None)


def _refuse_other_options(unfinished: Run, until: datetime | None, only: str | None, reason: str | None) -> None:
    """Raise BusyError if options are given and differ from those of this command's unfinished run.

    Otherwise print on stderr which run is finished, with its options.
    """

    plan = unfinished.plan
    begun_with, options = (plan.interval_end, plan.only, plan.reason), (until, only, reason)
    description = f"run {unfinished.number} ({unfinished.run_id}), begun {_format_options(*begun_with)}"
    if any(options) and options != begun_with:
        raise BusyError(
            f"{description}, has not ended; this run, {_format_options(*options)}, would be another one",
            where=plan.pipeline,
            fix=f"finish that run: hindcast run {plan.pipeline}; abandon it: hindcast abandon {plan.pipeline}; or, if "
            "it is under way in another process, run this command again with --wait",
        )
    print(f"{plan.pipeline}: finishing {description}; {_BOTH}", file=sys.stderr)


_BOTH = "if it is under way in another process, both now do it; the tables come out the same"
"""What happens if a run that is finished was not killed: a killed one must be finished at once, and looks the same."""


def _format_options(until: datetime | None, only: str | None, reason: str | None) -> str:
    """Return the options of a run as the command line has them, on one line: after "with", or "without options"."""
    given = {"--until": until.isoformat() if until else None, "--only": only, "--reason": reason}
    return (
        "with " + " ".join(f"{name} '{show_briefly(value)}'" for name, value in given.items() if value)
        if any(given.values())
        else "without options"
    )


POLL_SECONDS = 5.0
"""How often the journal is read while another run is under way, in seconds."""


def _plan_when_free(settings: Settings, pipeline: str, plan: Callable[[], int]) -> int:
    """Plan a run as soon as no other run of the pipeline is under way, and return its number."""
    waiting_for = None
    while True:
        unfinished = next((r for r in read_runs(settings, pipeline) if r.state == "planned"), None)
        if unfinished is None:
            try:
                return plan()
            except BusyError as error:  # another one was planned at the same moment, or upkeep is under way
                print(f"{pipeline}: waiting, as {error.found}", file=sys.stderr, flush=True)
        elif unfinished.number != waiting_for:
            waiting_for = unfinished.number
            found = f"waiting until run {unfinished.number} ({unfinished.run_id}) has ended"
            fix = f"if nothing works on it any more: hindcast abandon {pipeline}"
            print(f"{pipeline}: {found}; {fix}", file=sys.stderr, flush=True)
        time.sleep(POLL_SECONDS)


def preview(arguments: argparse.Namespace, settings: Settings) -> int:
    """Show what a run would change, past answers above all; write nothing."""
    from hindcast.runs import preview, run_preview

    until = parse_moment(settings, arguments.pipeline, arguments.until) if arguments.until else None
    changes = preview.preview_run(
        open_session(settings, arguments.pipeline), settings, arguments.pipeline, until, arguments.only
    )
    text = (
        json.dumps(changes.as_json(), indent=2) if arguments.format == "json" else run_preview.format_preview(changes)
    )
    print(text)
    return 0


def requeue(arguments: argparse.Namespace, settings: Settings) -> int:
    """Decode malformed records again by the current contract, in a run of its own; or show what that would give."""
    from hindcast.ingest import requeue
    from hindcast.plan import journal
    from hindcast.runs import run_steps, special_runs

    pipeline = arguments.pipeline
    contract = load_contract(settings, pipeline)
    request = requeue.build_request(
        contract, arguments.topic, arguments.reason, arguments.partition, arguments.offset or ()
    )
    begun = None if arguments.dry_run else _find_begun(settings, pipeline, "requeue")
    if begun is not None and begun.plan.requeue is not None:
        if request not in (begun.plan.requeue, requeue.build_request(contract)):  # without options, any is finished
            raise BusyError(
                f"run {begun.number} ({begun.run_id}), begun to requeue other records, has not ended",
                where=pipeline,
                fix=f"finish it: hindcast requeue {pipeline}; or abandon it: hindcast abandon {pipeline}",
            )
        request, run_id = begun.plan.requeue, begun.run_id
        print(f"{pipeline}: finishing run {begun.number} ({run_id}); {_BOTH}", file=sys.stderr)
    else:
        run_id = journal.new_run_id("requeue")
        if not requeue.count_waiting(settings.warehouse, contract, request):
            if not arguments.dry_run:
                run_steps.write_missing_page(settings, pipeline)  # the requeue may have died before it did
            print(f"{pipeline}: nothing to requeue: no malformed record like that is left; nothing was done")
            return 0
    spark = open_session(settings, pipeline)
    if arguments.dry_run:
        topics = requeue.preview_requeue(spark, contract, request, datetime.now(UTC))
        lines = [f"{pipeline}: what a requeue would do; nothing was written"]
        lines += [
            f"  {name:<20} {requeue.format_requeue(topic.requeued, topic.still, topic.first)}"
            for name, topic in topics.items()
        ]
        fields = {name: topic._asdict() for name, topic in topics.items()}
        print(json.dumps(fields, indent=2) if arguments.format == "json" else escape_controls("\n".join(lines)))
        return 0
    _print_report(special_runs.run_requeue(spark, settings, pipeline, run_id, request), arguments.format)
    return 0


def release(arguments: argparse.Namespace, settings: Settings) -> int:
    """Publish changes that a gate has held back, in a run of its own; or record that they stay held."""
    from hindcast.plan import journal
    from hindcast.quality import failing_rows, held_changes
    from hindcast.runs import run_steps, special_runs

    pipeline, _, table = arguments.table.partition(".")
    contract = load_contract(settings, pipeline)
    begun = None if arguments.reject else _find_begun(settings, pipeline, "release")
    if begun is not None and begun.plan.contract == contract.hash:
        released = begun.plan.released_keys
        if table:
            _refuse_other_release(begun, table, arguments.key)
        count = sum(len(some.keys) for some in released.values())
        described = f"begun to release {format_count(count, 'key')} of {', '.join(released)}"
        print(f"{pipeline}: finishing run {begun.number} ({begun.run_id}), {described}; {_BOTH}", file=sys.stderr)
        _print_report(
            run_steps.execute_run(open_session(settings, pipeline), settings, pipeline, begun.number), arguments.format
        )
        return 0
    warehouse = settings.warehouse
    looked_at = failing_rows.read_last_entry_time(warehouse, pipeline)
    rows = held_changes.read_held_rows(warehouse, pipeline).select(["table", "entry"]).to_pylist()
    held = {row["table"] for row in rows if row["entry"] == "held"}
    if not table and (gone := held - {*contract.topics, *contract.views}):
        held -= gone
        for name in sorted(gone):
            print(f"{pipeline}.{name}: not in the contract; its held changes stay as they are", file=sys.stderr)
    if arguments.key and not table:
        raise QueryError("a key was given without a table", fix=f"hindcast release {pipeline}.TABLE --key K")
    by = arguments.by or find_user()
    run_steps.write_missing_page(settings, pipeline)  # a release may have died before it did
    if not table and not held:
        raise QueryError("nothing is held back", where=pipeline, fix=f"hindcast failing {pipeline} lists failing rows")
    keys = {
        name: held_changes.find_held_keys(warehouse, pipeline, name, arguments.key or ())
        for name in ([table] if table else sorted(held))
    }
    if arguments.reject:
        rejected = held_changes.reject_keys(warehouse, pipeline, keys, by, looked_at, arguments.reason)
        if not rejected:
            print(f"{pipeline}: what was held has changed meanwhile; nothing was rejected")
        for name, keys_of_table in rejected.items():
            print(f"{pipeline}.{name}: {format_count(len(keys_of_table), 'key')} held, rejected by {by}")
        return 0
    run_id, session = journal.new_run_id("release"), open_session(settings, pipeline)
    answer = keys, by, looked_at, arguments.reason
    _print_report(special_runs.run_release(session, settings, pipeline, run_id, *answer), arguments.format)
    return 0


def _refuse_other_release(begun: Run, table: str, texts: Sequence[str] | None) -> None:
    """Raise BusyError if an unfinished release has other keys than those of `table` that the texts name (None: all)."""
    from hindcast.quality import held_changes

    released = begun.plan.released_keys
    keys = set(released[table].keys) if table in released else set()
    texts_of = [held_changes.list_key_texts(key) for key in keys]
    others = [text for text in texts or () if not any(text in names for names in texts_of)]
    unnamed = [names for names in texts_of if texts and names.isdisjoint(texts)]
    if released.keys() != {table} or others or unnamed:
        raise BusyError(
            f"run {begun.number} ({begun.run_id}), begun to release other keys, has not ended",
            where=begun.plan.pipeline,
            fix=f"finish it: hindcast release {begun.plan.pipeline}; or abandon it: "
            f"hindcast abandon {begun.plan.pipeline}",
        )


def abandon(arguments: argparse.Namespace, settings: Settings) -> int:
    """Abandon a run that cannot be finished."""
    from hindcast.plan import notices, planner

    past = read_runs(settings, arguments.pipeline)
    unfinished = [run for run in past if not run.is_finished]
    run = next((run for run in unfinished if arguments.run in (None, run.number)), None)
    if run is None:
        last = next((run for run in reversed(past) if arguments.run in (None, run.number)), None)
        if last is not None and last.state == "abandoned":  # this command may have died before it said so
            print(f"{arguments.pipeline}: run {last.number} ({last.run_id}) was abandoned before; nothing was done")
            return 0
        numbers = ", ".join(str(run.number) for run in unfinished) or "none"
        raise QueryError("no such unfinished run", where=arguments.pipeline, fix=f"unfinished runs: {numbers}")
    if run.plan.erasure:
        notices.wait_for_forgetting(settings.warehouse, arguments.pipeline)
    planner.abandon_run(settings.warehouse, run, "by hand")
    left = "the next run takes what it left"
    if run.plan.erasure:
        left = "it may have removed a part: repeat the hindcast forget"
    if run.plan.pass_numbers is not None:
        _tell_abandoned_pass(settings, run)
        return 0
    print(f"{arguments.pipeline}: run {run.number} ({run.run_id}) was abandoned; {left}")
    return 0


def _tell_abandoned_pass(settings: Settings, run: Run) -> None:
    """Print what became of the runs of an abandoned pass, given one of them as it was, and what of their dates."""
    pipeline, (first, last) = run.plan.pipeline, run.plan.pass_numbers or (run.number, run.number)
    ended = [it for it in read_runs(settings, pipeline) if first <= it.number <= last]
    print(f"{pipeline}: runs {first} to {last}, which are made together, were abandoned")
    if run.known_at != next(it.known_at for it in ended if it.number == run.number):
        print("  nothing of them was written: the next hindcast rehearse makes them again, each known at its date")
        return
    print(f"  a part was written: what arrived in their intervals will be known after {ended[-1].known_at.isoformat()}")
    print(f"  to know it at their dates: hindcast rehearse {pipeline} --into NAME")


def _print_report(report: RunReport, format_: str) -> None:
    """Print the report of a run as text, or as JSON."""
    from hindcast.report.report_text import format_report

    print(json.dumps(report.as_json(), indent=2) if format_ == "json" else format_report(report))
