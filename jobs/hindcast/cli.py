"""The command `hindcast`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hindcast.errors import HindcastError, QueryError
from hindcast.settings import settings

if TYPE_CHECKING:
    import pyarrow as pa

    from hindcast.contracts import Contract
    from hindcast.journal import Run

Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; what goes wrong on purpose is told in a few lines on stderr, exit code 1."""
    arguments = _parser().parse_args(argv)
    try:
        command: Command = arguments.command
        return command(arguments)
    except HindcastError as error:
        print(f"hindcast: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def step(name: str, argv: Sequence[str]) -> int:
    """One step in a session of its own, as spark-submit starts it; the arguments are those of hindcast.steps."""
    from hindcast import preview, runs
    from hindcast.session import session

    pipeline, *others = argv
    try:
        if name == "preview":
            until = datetime.fromisoformat(others[0]) if others[0] else None
            print(preview.text(preview.preview(session(), pipeline, until)))
        else:
            done = {"replay": runs.replay, "build": runs.build}[name](session(), pipeline, int(others[0]), others[1])
            print(json.dumps(done))
    except HindcastError as error:
        print(f"hindcast: {error}", file=sys.stderr)
        return 1
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from hindcast import gates
    from hindcast.contracts import load, paths

    problems = 0
    for path in arguments.files or paths(settings().schemas):
        try:
            contract = load(path)
            for name in (*contract.topics, *contract.views):
                gates.known(contract.expectations(name), f"{path}, {name}")
            told = _counted(len(contract.topics), "topic"), _counted(len(contract.views), "view")
            print(f"{path}: {', '.join(told)}, fine")
        except HindcastError as error:
            problems += 1
            print(f"hindcast: {error}", file=sys.stderr)
    return 1 if problems else 0


def _schema(_: argparse.Namespace) -> int:
    from hindcast.contracts.load import schema

    print(schema(), end="")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from hindcast import report, runs
    from hindcast.session import session

    past = _runs_of(arguments.pipeline)
    mine = [r.run_id for r in past if r.state == "planned" and r.run_id.startswith("cli__")]
    run_id = mine[-1] if mine else f"cli__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
    until = _moment(arguments.pipeline, arguments.until) if arguments.until else None
    # What is wrong with the contract, the broker or the topics shows before Spark starts.
    number = runs.plan(arguments.pipeline, run_id, until)
    _share_spark()
    told = runs.carry_out(session(f"hindcast {arguments.pipeline}"), arguments.pipeline, number)
    print(json.dumps(told, indent=2) if arguments.format == "json" else report.text(told))
    return 0


def _preview(arguments: argparse.Namespace) -> int:
    from hindcast import preview
    from hindcast.session import session

    until = _moment(arguments.pipeline, arguments.until) if arguments.until else None
    _share_spark()
    told = preview.preview(session(f"hindcast {arguments.pipeline}"), arguments.pipeline, until)
    print(json.dumps(told, indent=2) if arguments.format == "json" else preview.text(told))
    return 0


def _share_spark() -> None:
    """Uses the Spark Connect server of `hindcast up`, if it runs, rather than a JVM of our own."""
    from hindcast.local import stack

    if remote := stack.shared_spark(settings()):
        os.environ.setdefault("SPARK_REMOTE", remote)


def _runs(arguments: argparse.Namespace) -> int:
    import pyarrow as pa

    runs = _runs_of(arguments.pipeline)
    rows = [{"run": r.number, "state": r.state, "knownAt": r.known_at, "runId": r.run_id} for r in runs]
    columns = pa.schema(
        [("run", pa.int64()), ("state", pa.string()), ("knownAt", pa.timestamp("us", "UTC")), ("runId", pa.string())]
    )
    _print(pa.Table.from_pylist(rows, schema=columns), arguments.format)
    return 0


def _ledger(arguments: argparse.Namespace) -> int:
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
    empty = [fate for fate in ledger.FATES[1:] if not any(rows.column(fate).to_pylist())]
    _print(rows.drop(empty) if arguments.format == "table" else rows, arguments.format)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from hindcast import report

    runs = [r for r in _runs_of(arguments.pipeline) if r.state == "completed"]
    found = next((r for r in reversed(runs) if arguments.run in (None, r.number)), None)
    if found is None:
        known = ", ".join(str(r.number) for r in runs) or "none"
        raise QueryError("no such completed run", where=arguments.pipeline, mend=f"completed: {known}")
    print(json.dumps(found.detail, indent=2) if arguments.format == "json" else report.text(found.detail))
    return 0


def _abandon(arguments: argparse.Namespace) -> int:
    from hindcast import plans

    open_ = [r for r in _runs_of(arguments.pipeline) if not r.finished]
    found = next((r for r in open_ if arguments.run in (None, r.number)), None)
    if found is None:
        known = ", ".join(str(r.number) for r in open_) or "none"
        raise QueryError("no such run that has not ended", where=arguments.pipeline, mend=f"not ended: {known}")
    plans.abandon(settings().warehouse, found, "by hand")
    print(f"{arguments.pipeline}: run {found.number} ({found.run_id}) is given up; the next run takes what it left")
    return 0


def _query(arguments: argparse.Namespace) -> int:
    from hindcast import read
    from hindcast.questions import Question

    pipeline, name = _table(arguments.table)
    contract, warehouse = _contract(pipeline), settings().warehouse
    table = read.locate(warehouse, contract, name)
    key = read.key_of(table, arguments.key) if arguments.key is not None else None
    if arguments.command is _history:
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


def _history(arguments: argparse.Namespace) -> int:
    return _query(arguments)


def _sql(arguments: argparse.Namespace) -> int:
    from hindcast import functions

    for statement in functions.statements(settings().warehouse, _contract(arguments.pipeline)):
        print(f"{statement};")
    return 0


def _produce(arguments: argparse.Namespace) -> int:
    from hindcast import produce

    records = produce.lines(arguments.file)
    produce.create(settings().kafka, arguments.topic, partitions=arguments.partitions)
    sent = produce.send(settings().kafka, arguments.topic, records)
    print(f"{_counted(sent, 'record')} sent to {arguments.topic}")
    return 0


def _up(_: argparse.Namespace) -> int:
    from hindcast.local import stack

    stack.up(settings())
    return 0


def _down(_: argparse.Namespace) -> int:
    from hindcast.local import stack

    stack.down(settings())
    return 0


def _demo(_: argparse.Namespace) -> int:
    from hindcast import demo

    return demo.main()


def _conformance(arguments: argparse.Namespace) -> int:
    from hindcast.conformance import conformance
    from hindcast.session import session

    return conformance(session("hindcast conformance"), arguments.directory, arguments.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hindcast", description="Kafka topics, replayed into bitemporal Delta tables. docs/cli.md tells more."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, help_: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_, description=help_)
        sub.set_defaults(command=command)
        return sub

    def formatted(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--format", choices=("table", "json"), default="table", help="aligned text, or JSON")
        return sub

    check = add("check", _check, "Check contracts: all of schemas/, or the files given.")
    check.add_argument("files", nargs="*", type=Path, metavar="FILE")
    add("schema", _schema, "Print the JSON Schema of contracts, for editors.")
    run = formatted(
        add("run", _run, "Run a pipeline here, all steps; what a run of this command left behind it finishes.")
    )
    run.add_argument("pipeline")
    run.add_argument("--until", metavar="T", help="replay records up to this moment; all there are if left out")
    preview = formatted(add("preview", _preview, "Say what a run would change, past answers above all; write nothing."))
    preview.add_argument("pipeline")
    preview.add_argument("--until", metavar="T", help="a run up to this moment; of all there is if left out")
    formatted(add("runs", _runs, "List the runs of a pipeline.")).add_argument("pipeline")
    ledger = formatted(add("ledger", _ledger, "Show which offsets each run brought, and how many had which fate."))
    ledger.add_argument("pipeline", nargs="?", help="all if left out")
    ledger.add_argument("--rebuild", action="store_true", help="make the journal of runs again, from logs and tables")
    report = formatted(add("report", _report, "Show what a run did; the last completed one if none is named."))
    report.add_argument("pipeline")
    report.add_argument("run", nargs="?", type=int)
    abandon = add("abandon", _abandon, "Give up a run that cannot be finished.")
    abandon.add_argument("pipeline")
    abandon.add_argument("run", nargs="?", type=int)
    query = formatted(add("query", _query, "Show what was true at a moment, as known at another."))
    history = formatted(add("history", _history, "Show every row ever believed, with both periods."))
    for sub in (query, history):
        sub.add_argument("table", metavar="PIPELINE.TABLE")
        sub.add_argument("--key", metavar="K", help="the key: its text, or a JSON object if it has several columns")
    query.add_argument("--as-of", metavar="T", help="what was true at this moment: 2026-01-01T00:03:00")
    query.add_argument("--from", dest="start", metavar="T", help="what was true from this moment on")
    query.add_argument("--to", dest="end", metavar="T", help="what was true up to this moment")
    query.add_argument(
        "--from-key", metavar="K", help="keys from this one on: the first column's text, or JSON of the first few"
    )
    query.add_argument("--to-key", metavar="K", help="keys up to this one")
    query.add_argument("--known-at", metavar="S", help="what was believed at this moment, or by a run: run:1")
    query.add_argument(
        "--order",
        metavar="O",
        help="time, time-desc, key or key-desc, or two of them: key,time-desc; time,key if left out",
    )
    sql = add("sql", _sql, "Print the statements that make a pipeline's table functions in Spark SQL.")
    sql.add_argument("pipeline")
    produce = add("produce", _produce, "Send JSON lines to a Kafka topic, made if it is not there.")
    produce.add_argument("topic")
    produce.add_argument("file", type=Path, help='{"key": ..., "value": ..., "timestamp": ...} on each line')
    produce.add_argument("--partitions", type=int, default=1, help="of a topic that is made (1)")
    add("up", _up, "Start the broker, Spark and Airflow here, and say where to look.")
    add("down", _down, "Stop what `hindcast up` started.")
    add("demo", _demo, "Run both example pipelines through Airflow, twice, and show what was believed when.")
    conformance = add("conformance", _conformance, "Run the conformance vectors of a folder through the operators.")
    conformance.add_argument("directory", type=Path, metavar="DIR")
    conformance.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser


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


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _print(rows: pa.Table, format_: str) -> None:
    from hindcast import show

    print(show.as_json(rows) if format_ == "json" else show.aligned(rows))


if __name__ == "__main__":
    sys.exit(main())
