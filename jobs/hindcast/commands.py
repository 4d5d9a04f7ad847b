"""What each command of `hindcast` does, given its arguments; the exit code. `cli` parses them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hindcast.errors import HindcastError, QueryError
from hindcast.settings import settings
from hindcast.words import counted

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from hindcast.contracts import Contract
    from hindcast.journal import Run


def check(arguments: argparse.Namespace) -> int:
    """Check contracts: all of schemas/, or the files given."""
    from hindcast import expectations
    from hindcast.contracts import complain_of, load, paths, repeated

    problems = 0
    read: dict[str, Path] = {}
    for path in arguments.files or paths(settings().schemas):
        try:
            contract = load(path)
            if not (first := read.setdefault(contract.pipeline, path)).samefile(path):
                raise repeated(contract.pipeline, path, first)
            for complaint in expectations.complaints(contract):
                raise complain_of(path, complaint)
            told = counted(len(contract.topics), "topic"), counted(len(contract.views), "view")
            print(f"{path}: {', '.join(told)}, fine")
        except HindcastError as error:
            problems += 1
            print(f"hindcast: {error}", file=sys.stderr)
    return 1 if problems else 0


def schema(_: argparse.Namespace) -> int:
    """Print the JSON Schema of contracts, for editors."""
    from hindcast.contracts.load import schema

    print(schema(), end="")
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run a pipeline here, all steps; what a run of this command left behind it finishes."""
    from hindcast import report, runs
    from hindcast.session import session

    past = _runs_of(arguments.pipeline)
    mine = [r.run_id for r in past if r.state == "planned" and r.run_id.startswith("cli__")]
    run_id = mine[-1] if mine else f"cli__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
    until = _moment(arguments.pipeline, arguments.until) if arguments.until else None
    # What is wrong with the contract, the broker or the topics shows before Spark starts.
    number = runs.plan(arguments.pipeline, run_id, until, arguments.only, arguments.reason)
    _share_spark()
    told = runs.carry_out(session(f"hindcast {arguments.pipeline}"), arguments.pipeline, number)
    print(json.dumps(told, indent=2) if arguments.format == "json" else report.text(told))
    return 0


def preview(arguments: argparse.Namespace) -> int:
    """Say what a run would change, past answers above all; write nothing."""
    from hindcast import preview
    from hindcast.session import session

    until = _moment(arguments.pipeline, arguments.until) if arguments.until else None
    _share_spark()
    told = preview.preview(session(f"hindcast {arguments.pipeline}"), arguments.pipeline, until, arguments.only)
    print(json.dumps(told, indent=2) if arguments.format == "json" else preview.text(told))
    return 0


def _share_spark() -> None:
    """Uses the Spark Connect server of `hindcast up`, if it runs, rather than a JVM of our own."""
    from hindcast.local import stack

    if remote := stack.shared_spark(settings()):
        os.environ.setdefault("SPARK_REMOTE", remote)


def runs(arguments: argparse.Namespace) -> int:
    """List the runs of a pipeline."""
    import pyarrow as pa

    runs = _runs_of(arguments.pipeline)
    rows = [{"run": r.number, "state": r.state, "knownAt": r.known_at, "runId": r.run_id} for r in runs]
    columns = pa.schema(
        [("run", pa.int64()), ("state", pa.string()), ("knownAt", pa.timestamp("us", "UTC")), ("runId", pa.string())]
    )
    _print(pa.Table.from_pylist(rows, schema=columns), arguments.format)
    return 0


def ledger(arguments: argparse.Namespace) -> int:
    """Show which offsets each run brought, and how many had which fate."""
    import pyarrow as pa

    from hindcast import ledger, rebuild
    from hindcast.contracts.load import load_all

    if arguments.rebuild and arguments.pipeline is None:
        raise QueryError("no pipeline was named", mend="hindcast ledger PIPELINE --rebuild")
    if arguments.rebuild:
        anew = rebuild.rebuild(settings().warehouse, _contract(arguments.pipeline))
        told = f"run {', '.join(map(str, anew))} written anew" if anew else "as the logs have it; nothing was written"
        print(f"{arguments.pipeline}: {told}")
        return 0
    if arguments.pipeline:
        _runs_of(arguments.pipeline)
    pipelines = [arguments.pipeline] if arguments.pipeline else sorted(load_all(settings().schemas))
    rows = pa.concat_tables([ledger.fates(settings().warehouse, name) for name in pipelines])
    empty = [column for column in ("member", "anew", *ledger.FATES[1:]) if not any(rows.column(column).to_pylist())]
    _print(rows.drop(empty) if arguments.format == "table" else rows, arguments.format)
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Show what a run did, or what stopped it; the last one if none is named."""
    from hindcast import page, report

    runs = [r for r in _runs_of(arguments.pipeline) if r.reported]
    found = next((r for r in reversed(runs) if arguments.run in (None, r.number)), None)
    if found is None:
        known = ", ".join(str(r.number) for r in runs) or "none"
        raise QueryError("no such run that has a report", where=arguments.pipeline, mend=f"these have: {known}")
    contract = _contract(arguments.pipeline)
    told = report.of(settings().warehouse, contract, found)
    if arguments.data_docs:
        from hindcast import datadocs

        print(datadocs.build(contract, told, arguments.data_docs))
        return 0
    as_ = {"json": lambda: json.dumps(told, indent=2), "html": lambda: page.html(told)}
    print(as_.get(arguments.format, lambda: report.text(told))())
    return 0


def failing(arguments: argparse.Namespace) -> int:
    """List the rows that failed a gate, or that are held back because of it."""
    import pyarrow.compute as pc

    from hindcast import holds

    contract, warehouse = _contract(arguments.pipeline), settings().warehouse
    if arguments.held:
        rows = holds.held(warehouse, arguments.pipeline, arguments.run)
        if arguments.table:
            rows = rows.filter(pc.equal(rows.column("table"), arguments.table))
    else:
        rows = holds.listed(warehouse, arguments.pipeline, arguments.table, arguments.run, arguments.gate)
    rows = holds.masked(contract, rows)
    empty = [name for name in rows.column_names if rows.column(name).null_count == rows.num_rows]
    _print(rows.drop({*empty, "since"}) if arguments.format == "table" else rows, arguments.format)
    return 0


def release(arguments: argparse.Namespace) -> int:
    """Publish changes that a gate has held back, in a run of its own; or say that they stay held."""
    import getpass

    from hindcast import holds, report, runs
    from hindcast.session import session

    pipeline, _, table = arguments.table.partition(".")
    _contract(pipeline)
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
    run_id = f"release__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
    _share_spark()
    told = runs.release(session(f"hindcast {pipeline}"), pipeline, run_id, keys, by, looked_at)
    print(json.dumps(told, indent=2) if arguments.format == "json" else report.text(told))
    return 0


def quarantine(arguments: argparse.Namespace) -> int:
    """List the records that are refused, each with its fate and the reason."""
    from hindcast import quarantine
    from hindcast.errors import nearest

    contract = _contract(arguments.pipeline)
    if arguments.topic is not None and arguments.topic not in contract.topics:
        mend = nearest(arguments.topic, contract.topics)
        raise QueryError(f"no topic '{arguments.topic}'", where=arguments.pipeline, mend=mend)
    if arguments.rebuild:
        from hindcast.upkeep import refused

        told = counted(refused.rebuild(settings().warehouse, contract), "record")
        print(f"{arguments.pipeline}: the quarantine was made again from the logs: {told}")
        return 0
    rows = quarantine.listed(settings().warehouse, contract, arguments.topic, everything=arguments.all)
    _print(rows if arguments.all or arguments.format == "json" else rows.drop(["now"]), arguments.format)
    return 0


def requeue(arguments: argparse.Namespace) -> int:
    """Decode malformed records anew, by the contract as it is now, in a run of its own; or say what that would give."""
    from hindcast import report, requeue, runs
    from hindcast.session import session

    pipeline, warehouse = arguments.pipeline, settings().warehouse
    contract = _contract(pipeline)
    asked = requeue.selection(contract, arguments.topic, arguments.reason, arguments.partition, arguments.offset or ())
    mine = [r for r in _runs_of(pipeline) if r.state == "planned" and r.run_id.startswith("requeue__")]
    if mine and not arguments.dry_run:  # one of this command that was left behind is finished as it was asked for
        asked, run_id = mine[-1].plan["requeues"], mine[-1].run_id
    else:
        run_id = f"requeue__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
        if not requeue.waiting(warehouse, contract, asked):
            print(f"{pipeline}: nothing to requeue: no malformed record like that is left; nothing was done")
            return 0
    _share_spark()
    spark = session(f"hindcast {pipeline}")
    if arguments.dry_run:
        found = requeue.preview(spark, contract, asked, datetime.now(UTC))
        lines = [f"{pipeline}: what a requeue would do; nothing was written"]
        lines += [f"  {name:<20} {requeue.text(topic)}" for name, topic in found.items()]
        print(json.dumps(found, indent=2) if arguments.format == "json" else "\n".join(lines))
        return 0
    told = runs.requeue(spark, pipeline, run_id, asked)
    print(json.dumps(told, indent=2) if arguments.format == "json" else report.text(told))
    return 0


def forget(arguments: argparse.Namespace) -> int:
    """Take a key out of everything that a pipeline has, with proof, in a run of its own; or say what would go."""
    from hindcast.session import session
    from hindcast.upkeep import forget, records

    pipeline, name = _table(arguments.table)
    contract = _contract(pipeline)
    what = records.asked(contract, name, arguments.key, arguments.offset or ())
    _share_spark()
    spark = session(f"hindcast {pipeline}")
    if arguments.dry_run:
        found = forget.preview(spark, contract, what)
        lines = [f"{pipeline}: what would be forgotten; nothing was written"]
        lines += [f"  {table:<28} {rows:>8,} rows" for table, rows in found.items()]
        lines += [f"  {line}" for line in forget.besides(forget.readers(contract, list(found)))]
        print(json.dumps(found, indent=2) if arguments.format == "json" else "\n".join(lines))
        return 0
    told = forget.forget(spark, contract, what, arguments.reason)
    print(json.dumps(told, indent=2) if arguments.format == "json" else forget.text(pipeline, told))
    return 0 if told["proven"] else 1


def verify(arguments: argparse.Namespace) -> int:
    """Check the invariants on a pipeline's tables; exit code 0: they hold, 1: findings, 2: cannot tell."""
    from hindcast.upkeep import verify

    def spark() -> SparkSession:
        from hindcast.session import session

        _share_spark()
        return session(f"hindcast {arguments.pipeline}")

    contract, given = _contract(arguments.pipeline), None if arguments.quick else spark
    told = verify.verify(settings().warehouse, contract, arguments.table, given, whole=arguments.whole)
    print(json.dumps(told.as_json(), indent=2) if arguments.format == "json" else verify.text(told))
    return 1 if told.findings else 0


def doctor(arguments: argparse.Namespace) -> int:
    """Say what is installed, reachable and writable here, and what to do where it is not; exit code 1 if any failed."""
    from hindcast.upkeep import doctor

    lines = doctor.examine()
    print(json.dumps(doctor.as_json(lines), indent=2) if arguments.format == "json" else doctor.text(lines))
    return 0 if doctor.healthy(lines) else 1


def maintain(arguments: argparse.Namespace) -> int:
    """Join small files of a pipeline's tables, sort files by time, remove what no version of the last days needs."""
    from hindcast.upkeep import maintenance

    def spark() -> SparkSession:
        from hindcast.session import session

        _share_spark()
        return session(f"hindcast {arguments.pipeline}")

    told = maintenance.maintain(spark, settings(), _contract(arguments.pipeline), dry_run=arguments.dry_run)
    print(json.dumps(told.as_json(), indent=2) if arguments.format == "json" else maintenance.text(told))
    return 0


def abandon(arguments: argparse.Namespace) -> int:
    """Give up a run that cannot be finished."""
    from hindcast import plans

    open_ = [r for r in _runs_of(arguments.pipeline) if not r.finished]
    found = next((r for r in open_ if arguments.run in (None, r.number)), None)
    if found is None:
        known = ", ".join(str(r.number) for r in open_) or "none"
        raise QueryError("no such run that has not ended", where=arguments.pipeline, mend=f"not ended: {known}")
    plans.abandon(settings().warehouse, found, "by hand")
    print(f"{arguments.pipeline}: run {found.number} ({found.run_id}) is given up; the next run takes what it left")
    return 0


def trim(arguments: argparse.Namespace) -> int:
    """Remove what `keep` in the contract says need not be kept, of tables, logs and quarantine."""
    from hindcast.session import session
    from hindcast.upkeep import retention

    contract = _contract(arguments.pipeline)
    _share_spark()
    told = retention.trim(session(f"hindcast {arguments.pipeline}"), contract, dry_run=arguments.dry_run)
    print(json.dumps(told, indent=2) if arguments.format == "json" else retention.text(told))
    return 0


def query(arguments: argparse.Namespace) -> int:
    """Show what was true at a moment, as known at another."""
    from hindcast import read
    from hindcast.questions import Question

    pipeline, name = _table(arguments.table)
    contract, warehouse = _contract(pipeline), settings().warehouse
    table = read.locate(warehouse, contract, name)
    key = read.key_of(table, arguments.key) if arguments.key is not None else None
    if arguments.command is history:
        _print(read.history(warehouse, contract, name, key=key), arguments.format)
        return 0
    as_of, start, end, known = (
        _moment(pipeline, text) if text is not None else None
        for text in (arguments.as_of, arguments.start, arguments.end, arguments.known_at)
    )
    lower, upper = (
        read.bound_of(table, text) if text is not None else () for text in (arguments.from_key, arguments.to_key)
    )
    order = arguments.order.split(",") if arguments.order else ()
    question = Question(key, lower, upper, as_of, start, end, known, order)
    rows = read.query(warehouse, contract, name, question)
    _print(rows, arguments.format)
    first = next((run.known_at for run in _runs_of(pipeline)), None)
    if known and first and known < first:
        print(f"hindcast: nothing was known yet: the first run is known at {first.isoformat()}", file=sys.stderr)
    return 0


def history(arguments: argparse.Namespace) -> int:
    """Show every row ever believed, with both periods."""
    return query(arguments)


def compare(arguments: argparse.Namespace) -> int:
    """Compare a kafka view with a live application's output topic; exit code 0: equal, 1: different, 2: cannot tell."""
    from hindcast.compare import compare, showing

    pipeline, name = _table(arguments.table)
    told = compare(
        settings().warehouse,
        settings().kafka,
        _contract(pipeline),
        name,
        arguments.topic,
        arguments.limit,
        arguments.key_format,
    )
    print(showing.as_json(told) if arguments.format == "json" else showing.text(told))
    return 1 if told.differences else 0


def upgrade(arguments: argparse.Namespace) -> int:
    """Bring a topic's table of an older store format to today's, or go on with that; adopt a plain Delta table."""
    from hindcast.session import session
    from hindcast.upkeep import upgrade

    pipeline, name = _table(arguments.table)
    contract = _contract(pipeline)
    upgrade.of_topic(contract, name)
    _share_spark()
    for line in upgrade.upgrade(session(f"hindcast {pipeline}"), contract, name, arguments.mode):
        print(f"{pipeline}.{name}: {line}")
    return 0


def downgrade(arguments: argparse.Namespace) -> int:
    """Make a topic's table one of an older store format; where that loses something, only if told to."""
    from hindcast.session import session
    from hindcast.upkeep import downgrade, upgrade

    pipeline, name = _table(arguments.table)
    contract = _contract(pipeline)
    upgrade.of_topic(contract, name)
    _share_spark()
    spark = session(f"hindcast {pipeline}")
    for line in downgrade.downgrade(spark, contract, name, arguments.to, lose=arguments.lose):
        print(f"{pipeline}.{name}: {line}")
    return 0


def sql(arguments: argparse.Namespace) -> int:
    """Print the statements that make a pipeline's table functions in Spark SQL."""
    from hindcast import functions

    for statement in functions.statements(settings().warehouse, _contract(arguments.pipeline)):
        print(f"{statement};")
    return 0


def produce(arguments: argparse.Namespace) -> int:
    """Send JSON lines to a Kafka topic, made if it is not there."""
    from hindcast import lines, produce

    records = list(lines.records(arguments.file))  # what is wrong with one shows before any is sent
    produce.create(settings().kafka, arguments.topic, partitions=arguments.partitions)
    sent = produce.send(settings().kafka, arguments.topic, records)
    print(f"{counted(sent, 'record')} sent to {arguments.topic}")
    return 0


def up(_: argparse.Namespace) -> int:
    """Start the broker, Spark and Airflow here, and say where to look."""
    from hindcast.local import stack

    stack.up(settings())
    return 0


def down(_: argparse.Namespace) -> int:
    """Stop what `hindcast up` started."""
    from hindcast.local import stack

    stack.down(settings())
    return 0


def demo(_: argparse.Namespace) -> int:
    """Run the three example pipelines through Airflow, twice, and show what was believed when."""
    from hindcast import demo

    return demo.main()


def conformance(arguments: argparse.Namespace) -> int:
    """Run the conformance vectors of a folder through the operators."""
    from hindcast.conformance import conformance
    from hindcast.session import session

    return conformance(session("hindcast conformance"), arguments.directory, arguments.out)


def _contract(pipeline: str) -> Contract:
    from hindcast.contracts import find

    return find(settings().schemas, pipeline)


def _runs_of(pipeline: str) -> list[Run]:
    """The runs of a pipeline, also of one whose contract is gone; ContractError where there never was one."""
    from hindcast import journal

    past = journal.runs(settings().warehouse, pipeline)
    if not past:
        _contract(pipeline)
    return past


def _table(text: str) -> tuple[str, str]:
    pipeline, dot, name = text.partition(".")
    if not dot:
        raise QueryError(f"'{text}' does not name a table", mend="write PIPELINE.TABLE: restaurant.bills")
    return pipeline, name


def _moment(pipeline: str, text: str) -> datetime:
    from hindcast import read

    return read.moment_of(settings().warehouse, pipeline, text)


def _print(rows: pa.Table, format_: str) -> None:
    from hindcast import show

    print(show.as_json(rows) if format_ == "json" else show.aligned(rows))
