"""Commands that plan and make runs."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime

from hindcast.commands.shared import contract_of, moment_of, runs_of, session_of
from hindcast.errors import QueryError
from hindcast.settings import settings
from hindcast.words import counted


def run(arguments: argparse.Namespace) -> int:
    """Run a pipeline here, all steps; what a run of this command left behind it finishes."""
    from hindcast import runs
    from hindcast.planning import journal
    from hindcast.reports import report

    past = runs_of(arguments.pipeline)
    mine = [r.run_id for r in past if r.state == "planned" and r.run_id.startswith("cli__")]
    run_id = mine[-1] if mine else journal.run_id("cli")
    until = moment_of(arguments.pipeline, arguments.until) if arguments.until else None
    # What is wrong with the contract, the broker or the topics shows before Spark starts.
    number = runs.plan(arguments.pipeline, run_id, until, arguments.only, arguments.reason)
    told = runs.carry_out(session_of(arguments.pipeline), arguments.pipeline, number)
    print(json.dumps(told, indent=2) if arguments.format == "json" else report.text(told))
    return 0


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
    contract_of(pipeline)
    warehouse = settings().warehouse
    looked_at = datetime.now(UTC)
    held = holds.held(warehouse, pipeline).column("table").to_pylist()
    if arguments.key and not table:
        raise QueryError("a key without a table", mend=f"hindcast release {pipeline}.TABLE --key K")
    if not table and not held:
        raise QueryError("nothing is held back", where=pipeline, mend=f"hindcast failing {pipeline} lists failing rows")
    keys = {
        name: holds.named(warehouse, pipeline, name, arguments.key or ())
        for name in ([table] if table else sorted(set(held)))
    }
    by = arguments.by or getpass.getuser()
    if arguments.reject:
        for name, some in keys.items():
            holds.reject(warehouse, pipeline, name, some, by)
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
