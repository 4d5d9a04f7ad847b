"""Commands that plan and make runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hindcast.commands.shared import contract_of, moment_of, runs_of, session_of
from hindcast.errors import BusyError, QueryError
from hindcast.settings import settings
from hindcast.words import counted

if TYPE_CHECKING:
    from hindcast.planning.journal import Run


def run(arguments: argparse.Namespace) -> int:
    """Run a pipeline here, all steps; without options, what a run of this command left behind it finishes."""
    from hindcast import runs
    from hindcast.planning import journal
    from hindcast.reports import report

    pipeline = arguments.pipeline
    until = moment_of(pipeline, arguments.until) if arguments.until else None

    def plan(run_id: str) -> int:
        return runs.plan(pipeline, run_id, until, arguments.only, arguments.reason, ahead=arguments.ahead_of_clock)

    # What is wrong with the contract, the broker or the topics shows before Spark starts.
    if arguments.wait:
        number = _plan_when_free(pipeline, lambda: plan(journal.run_id("cli")))
    else:
        mine = [r for r in runs_of(pipeline) if r.state == "planned" and r.run_id.startswith("cli__")]
        if mine:
            _refuse_other_options(mine[-1], until, arguments.only, arguments.reason)
        number = plan(mine[-1].run_id if mine else journal.run_id("cli"))
    told = runs.carry_out(session_of(pipeline), pipeline, number)
    print(json.dumps(told, indent=2) if arguments.format == "json" else report.text(told))
    return 0


def _refuse_other_options(unfinished: Run, until: datetime | None, only: str | None, reason: str | None) -> None:
    """Raise BusyError if options are given that are not those of the unfinished run of this command.

    Without options that run is finished, whatever its own are; they are printed on stderr.
    """
    from hindcast.planning.plans import Plan

    plan = Plan.from_json(unfinished.plan)
    begun = (
        f"run {unfinished.number} ({unfinished.run_id}), begun {_options(plan.interval_end, plan.only, plan.reason)}"
    )
    asked = (until, only, reason)
    if any(asked) and asked != (plan.interval_end, plan.only, plan.reason):
        raise BusyError(
            f"{begun}, has not ended; this run, {_options(*asked)}, would be another one",
            where=plan.pipeline,
            mend=f"finish that one: hindcast run {plan.pipeline}; give it up: hindcast abandon {plan.pipeline}; or, if "
            "it is under way in another process, run this command again with --wait",
        )
    print(f"{plan.pipeline}: {begun}, is finished", file=sys.stderr)


def _options(until: datetime | None, only: str | None, reason: str | None) -> str:
    """Return the options of a run, as they are written."""
    given = {"--until": until.isoformat() if until else None, "--only": only, "--reason": reason}
    return (
        "with " + " ".join(f"{name} '{value}'" for name, value in given.items() if value)
        if any(given.values())
        else "without options"
    )


PAUSE = 5.0
"""Seconds between two looks at the journal while another run is under way."""


def _plan_when_free(pipeline: str, plan: Callable[[], int]) -> int:
    """Plan a run as soon as no other run of the pipeline is under way, and return its number."""
    waiting_for = None
    while True:
        unfinished = next((r for r in runs_of(pipeline) if r.state == "planned"), None)
        if unfinished is None:
            try:
                return plan()
            except BusyError as error:  # another one was planned at the same moment, or upkeep is under way
                print(f"{pipeline}: waiting, as {error.found}", file=sys.stderr, flush=True)
        elif unfinished.number != waiting_for:
            waiting_for = unfinished.number
            found = f"waiting until run {unfinished.number} ({unfinished.run_id}) has ended"
            mend = f"if nothing works on it any more: hindcast abandon {pipeline}"
            print(f"{pipeline}: {found}; {mend}", file=sys.stderr, flush=True)
        time.sleep(PAUSE)


def preview(arguments: argparse.Namespace) -> int:
    """Say what a run would change, past answers above all; write nothing."""
    from hindcast.building import preview

    until = moment_of(arguments.pipeline, arguments.until) if arguments.until else None
    told = preview.preview(session_of(arguments.pipeline), arguments.pipeline, until, arguments.only)
    print(json.dumps(told, indent=2) if arguments.format == "json" else preview.text(told))
    return 0


def requeue(arguments: argparse.Namespace) -> int:
    """Decode malformed records anew, by the contract as it is now, in a run of its own; or say what that would give."""
    from hindcast import runs
    from hindcast.planning import journal
    from hindcast.replay import requeue
    from hindcast.reports import report

    pipeline, warehouse = arguments.pipeline, settings().warehouse
    contract = contract_of(pipeline)
    asked = requeue.selection(contract, arguments.topic, arguments.reason, arguments.partition, arguments.offset or ())
    mine = [r for r in runs_of(pipeline) if r.state == "planned" and r.run_id.startswith("requeue__")]
    if mine and not arguments.dry_run:  # one of this command that was left behind is finished as it was asked for
        asked, run_id = mine[-1].plan["requeues"], mine[-1].run_id
    else:
        run_id = journal.run_id("requeue")
        if not requeue.waiting(warehouse, contract, asked):
            print(f"{pipeline}: nothing to requeue: no malformed record like that is left; nothing was done")
            return 0
    spark = session_of(pipeline)
    if arguments.dry_run:
        found = requeue.preview(spark, contract, asked, datetime.now(UTC))
        lines = [f"{pipeline}: what a requeue would do; nothing was written"]
        lines += [f"  {name:<20} {requeue.text(topic)}" for name, topic in found.items()]
        print(json.dumps(found, indent=2) if arguments.format == "json" else "\n".join(lines))
        return 0
    told = runs.requeue(spark, pipeline, run_id, asked)
    print(json.dumps(told, indent=2) if arguments.format == "json" else report.text(told))
    return 0


def release(arguments: argparse.Namespace) -> int:
    """Publish changes that a gate has held back, in a run of its own; or say that they stay held."""
    import getpass

    from hindcast import runs
    from hindcast.planning import journal
    from hindcast.quality import holds
    from hindcast.reports import report

    pipeline, _, table = arguments.table.partition(".")
    contract = contract_of(pipeline)
    warehouse = settings().warehouse
    looked_at = holds.last_entry(warehouse, pipeline)
    held = set(holds.held(warehouse, pipeline).column("table").to_pylist())
    if not table and (gone := held - {*contract.topics, *contract.views}):
        held -= gone
        for name in sorted(gone):
            print(f"{pipeline}.{name}: not in the contract; what is held of it is left as it is", file=sys.stderr)
    if arguments.key and not table:
        raise QueryError("a key without a table", mend=f"hindcast release {pipeline}.TABLE --key K")
    if not table and not held:
        raise QueryError("nothing is held back", where=pipeline, mend=f"hindcast failing {pipeline} lists failing rows")
    keys = {
        name: holds.named(warehouse, pipeline, name, arguments.key or ())
        for name in ([table] if table else sorted(held))
    }
    by = arguments.by or getpass.getuser()
    if arguments.reject:
        rejected = holds.reject(warehouse, pipeline, keys, by, looked_at)
        if not rejected:
            print(f"{pipeline}: nothing is held any more as it was; nothing was rejected")
        for name, some in rejected.items():
            print(f"{pipeline}.{name}: {counted(len(some), 'key')} held, rejected by {by}")
        return 0
    run_id = journal.run_id("release")
    told = runs.release(session_of(pipeline), pipeline, run_id, keys, by, looked_at)
    print(json.dumps(told, indent=2) if arguments.format == "json" else report.text(told))
    return 0


def abandon(arguments: argparse.Namespace) -> int:
    """Give up a run that cannot be finished."""
    from hindcast.planning import planner

    open_ = [r for r in runs_of(arguments.pipeline) if not r.finished]
    found = next((r for r in open_ if arguments.run in (None, r.number)), None)
    if found is None:
        known = ", ".join(str(r.number) for r in open_) or "none"
        raise QueryError("no such run that has not ended", where=arguments.pipeline, mend=f"not ended: {known}")
    planner.abandon(settings().warehouse, found, "by hand")
    print(f"{arguments.pipeline}: run {found.number} ({found.run_id}) is given up; the next run takes what it left")
    return 0
