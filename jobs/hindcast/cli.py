"""The command `hindcast`: its arguments, and how it fails. `commands/` do the work."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from hindcast import telling
from hindcast.commands import local, reading, running, upkeep
from hindcast.errors import FINAL, BusyError, HindcastError, QueryError
from hindcast.local.private import limit_access
from hindcast.settings import settings

Command = Callable[[argparse.Namespace], int]

BUSY = 3
"""The exit code of a command that was refused because another run of the pipeline has not ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; what goes wrong on purpose is told in a few lines on stderr, exit code 1.

    Of compare and verify it is 2: their 1 says that something was found. It is `BUSY` while another run is under way.
    """
    arguments = _parser().parse_args(argv)
    try:
        _refuse_odd_text(arguments)
        command: Command = arguments.command
        with telling.lines(settings()), limit_access(settings()):
            return command(arguments)
    except HindcastError as error:
        print(f"hindcast: {error}", file=sys.stderr)
        return BUSY if isinstance(error, BusyError) else int(arguments.failed)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _refuse_odd_text(arguments: argparse.Namespace) -> None:
    """Raise QueryError for an argument that is no text, or names a table by what cannot be a folder's name.

    A file's name may be any bytes.
    """
    for name, value in vars(arguments).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and _HALVES.search(text):
                raise QueryError(f"'{text}' is not UTF-8 text", mend=f"give {name} as UTF-8")
    table = (getattr(arguments, "table", None) or "").partition(".")
    for text in (getattr(arguments, "pipeline", None) or "", *table):
        if len(text.encode()) > _LONGEST:
            from hindcast.contracts.bounds import NAME

            found = f"'{text[:50]}...' is too long: pipelines and tables have names of at most {NAME} characters"
            raise QueryError(found, mend="`hindcast check` lists the contracts that there are")


def _count_partitions(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number of partitions: write one from 1 to 999999999")
    return int(text)


_HALVES = re.compile("[\ud800-\udfff]")
"""What Python has for a byte that is not UTF-8."""

_LONGEST = 255
"""The most bytes of a folder's name."""


def step(name: str, argv: Sequence[str]) -> int:
    """One step in a session of its own, as spark-submit starts it; the arguments are those of hindcast.steps.

    What stops it is told on stderr, and in the file that HINDCAST_FAILURE names (operators.py), if it does. What it
    tells of itself is kept in the file that HINDCAST_EVENTS names.
    """
    from hindcast import read, runs
    from hindcast.building import preview
    from hindcast.contracts import find
    from hindcast.quality import approval
    from hindcast.reports import report
    from hindcast.session import session
    from hindcast.upkeep import maintenance

    pipeline, *others = argv
    try:
        with telling.lines(settings(), os.environ.get(telling.EVENTS)), limit_access(settings()):
            if name == "preview":
                until = read.moment_of(settings().warehouse, pipeline, others[0]) if others[0] else None
                print(preview.text(preview.preview(session(), pipeline, until, others[1] or None)))
            elif name == "release":
                run_id, shown, by, labels = others
                looked_at, contract = datetime.fromisoformat(shown), find(settings().schemas, pipeline)
                keys = approval.choose_keys(settings().warehouse, contract, looked_at, labels)
                print(report.text(runs.release(session(), pipeline, run_id, keys, by, looked_at)))
            elif name == "maintain":
                print(maintenance.text(maintenance.maintain(session, settings(), find(settings().schemas, pipeline))))
            else:
                steps = {"replay": runs.replay, "build": runs.build}
                print(json.dumps(steps[name](session(), pipeline, int(others[0]), others[1])))
    except HindcastError as error:
        print(f"hindcast: {error}", file=sys.stderr)
        if place := os.environ.get("HINDCAST_FAILURE"):
            told = json.dumps({"text": str(error), "final": isinstance(error, FINAL)})
            Path(place).write_text(told, encoding="utf-8")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hindcast", description="Kafka topics, replayed into bitemporal Delta tables. docs/cli.md tells more."
    )
    subs = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(command: Command) -> argparse.ArgumentParser:
        sub = subs.add_parser(command.__name__, help=command.__doc__, description=command.__doc__)
        sub.set_defaults(command=command, failed=1)
        return sub

    def formatted(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--format", choices=("table", "json"), default="table", help="aligned text, or JSON")
        return sub

    def limited(sub: argparse.ArgumentParser) -> None:
        told = "show so many rows, 0 for all; if left out 1,000 as text, and all as JSON"
        sub.add_argument("--limit", type=int, metavar="N", help=told)

    check = add(local.check)
    check.add_argument("files", nargs="*", type=Path, metavar="FILE")
    check.add_argument("--spark", action="store_true", help="have Spark analyse expressions too, as a run does first")
    add(local.schema)
    run = formatted(add(running.run))
    run.add_argument("pipeline")
    run.add_argument("--until", metavar="T", help="replay records up to this moment; all there are if left out")
    run.add_argument("--reason", metavar="TEXT", help="why it is run: kept in the journal, shown in the report")
    run.add_argument("--wait", action="store_true", help="wait until the run that is under way has ended, then run")
    run.add_argument(
        "--ahead-of-clock",
        action="store_true",
        help="consent to a known-at more than an hour ahead of this machine's clock (docs/maintenance.md)",
    )
    preview = formatted(add(running.preview))
    preview.add_argument("pipeline")
    preview.add_argument("--until", metavar="T", help="a run up to this moment; of all there is if left out")
    for sub in (run, preview):
        sub.add_argument(
            "--only", metavar="TABLE", help="a topic, input or view: this and what is made of it, nothing else"
        )
    formatted(add(reading.runs)).add_argument("pipeline")
    ledger = formatted(add(reading.ledger))
    ledger.add_argument("pipeline", nargs="?", help="all if left out")
    ledger.add_argument("--rebuild", action="store_true", help="make the journal of runs again, from logs and tables")
    report = add(reading.report)
    report.add_argument("--format", choices=("table", "json", "html"), default="table", help="text, JSON, or a page")
    report.add_argument(
        "--data-docs", type=Path, metavar="FOLDER", help="build Great Expectations' Data Docs of its gates there"
    )
    report.add_argument("pipeline")
    report.add_argument("run", nargs="?", type=int)
    failing = formatted(add(reading.failing))
    failing.add_argument("pipeline")
    failing.add_argument("--run", type=int, help="of this run; with --held: held after it")
    failing.add_argument("--table", help="of this table")
    failing.add_argument("--gate", type=int, metavar="N", help="of this gate: its number under expect, from 0")
    failing.add_argument("--held", action="store_true", help="the changes that are held back now")
    limited(failing)
    release = formatted(add(running.release))
    release.add_argument("table", metavar="PIPELINE[.TABLE]", help="all of its tables if only the pipeline is named")
    release.add_argument(
        "--key",
        metavar="K",
        action="append",
        help="only this key: its text, or a JSON object if it has several columns",
    )
    release.add_argument("--reject", action="store_true", help="note that it was looked at and stays held")
    release.add_argument("--by", metavar="NAME", help="who decides; who is logged in if left out")
    quarantine = formatted(add(reading.quarantine))
    quarantine.add_argument("pipeline")
    quarantine.add_argument("--topic", metavar="T", help="of this topic of the contract")
    quarantine.add_argument("--all", action="store_true", help="also those that are not refused any more")
    quarantine.add_argument("--rebuild", action="store_true", help="make the quarantine again, from the logs")
    limited(quarantine)
    requeue = formatted(add(running.requeue))
    requeue.add_argument("pipeline")
    requeue.add_argument("--topic", metavar="T", help="only of this topic of the contract, or of Kafka")
    requeue.add_argument("--reason", metavar="TEXT", help="only those whose reason has this text")
    requeue.add_argument("--partition", type=int, metavar="P", help="only of this partition")
    requeue.add_argument("--offset", type=int, action="append", metavar="O", help="only this offset; may be repeated")
    requeue.add_argument("--dry-run", action="store_true", help="say what it would do; write nothing")
    forget = formatted(add(upkeep.forget))
    forget.add_argument("table", metavar="PIPELINE.TOPIC")
    forget.add_argument("--key", metavar="K", help="the key: its text, or a JSON object if it has several columns")
    forget.add_argument(
        "--offset",
        metavar="P/O",
        action="append",
        help="instead a record, by its partition and offset: 0/42; may be repeated",
    )
    forget.add_argument("--reason", metavar="TEXT", help="why: kept in the journal; do not write the key here")
    forget.add_argument("--dry-run", action="store_true", help="say what would go; write nothing")
    abandon = add(running.abandon)
    abandon.add_argument("pipeline")
    abandon.add_argument("run", nargs="?", type=int)
    verify = formatted(add(upkeep.verify))
    verify.set_defaults(failed=2)
    verify.add_argument("pipeline")
    verify.add_argument("--table", metavar="T", help="only this topic or view, and what stands behind it")
    verify.add_argument("--whole", action="store_true", help="compare all keys with the log, not a sample of them")
    verify.add_argument("--quick", action="store_true", help="without Spark: do not compare tables with the log")
    verify.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    doctor = formatted(add(upkeep.doctor))
    doctor.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    maintain = formatted(add(upkeep.maintain))
    maintain.add_argument("pipeline")
    maintain.add_argument("--dry-run", action="store_true", help="say what it would do; write nothing")
    trim = formatted(add(upkeep.trim))
    trim.add_argument("pipeline")
    trim.add_argument("--dry-run", action="store_true", help="say what it would remove; write nothing")
    query = formatted(add(reading.query))
    history = formatted(add(reading.history))
    for sub in (query, history):
        sub.add_argument("table", metavar="PIPELINE.TABLE")
        sub.add_argument("--key", metavar="K", help="the key: its text, or a JSON object if it has several columns")
    history.add_argument(
        "--run", type=int, metavar="N", help="what this run has changed: rows that it closed or opened"
    )
    query.add_argument(
        "--as-of",
        metavar="T",
        help="what was true at this moment: 2026-01-01T00:03:00; "
        "of versions what is true now, of events all, if no time is given",
    )
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
    compare = formatted(add(reading.compare))
    compare.set_defaults(failed=2)
    compare.add_argument("table", metavar="PIPELINE.VIEW")
    compare.add_argument("--topic", required=True, metavar="OUTPUT", help="the topic that the application writes to")
    compare.add_argument(
        "--key-format",
        choices=("string", "json"),
        help="how its keys are written; as those of the view's topic if left out",
    )
    compare.add_argument("--limit", type=int, default=5, metavar="N", help="show so many differences of each kind (5)")
    sql = add(reading.sql)
    sql.add_argument("pipeline")
    produce = add(local.produce)
    produce.add_argument("topic")
    produce.add_argument(
        "file",
        type=Path,
        help='{"key": ..., "value": ..., "timestamp": ..., "headers": {...}} on each line; '
        "text is sent as it is, null as null, anything else as JSON; bytes: key_base64, value_base64; timestamp: "
        "ISO 8601 or milliseconds, null for none, now if left out",
    )
    produce.add_argument("--partitions", type=_count_partitions, default=1, help="of a topic that is made (1)")
    where = produce.add_mutually_exclusive_group()
    where.add_argument(
        "--partitioner",
        choices=("murmur2", "crc32", "fnv1a", "random"),
        default="murmur2",
        help="which partition a key goes to: as with Java clients (murmur2), librdkafka (crc32) or Sarama (fnv1a)",
    )
    where.add_argument("--partition", type=int, metavar="P", help="send all to this partition")
    upgrade = add(upkeep.upgrade)
    upgrade.add_argument("table", metavar="PIPELINE.TABLE")
    upgrade.add_argument(
        "--mode",
        choices=("in-place", "roll-over", "offline"),
        default="in-place",
        help="where its rows lie, as runs go on; by a table built beside; or written anew in one run (in-place)",
    )
    downgrade = add(upkeep.downgrade)
    downgrade.add_argument("table", metavar="PIPELINE.TABLE")
    downgrade.add_argument(
        "--to", required=True, choices=("latest", "timestamped", "versioned"), help="the store format to be had"
    )
    downgrade.add_argument("--lose", action="store_true", help="also what that format has no room for")
    add(local.up)
    add(local.down)
    add(local.demo)
    conformance = add(local.conformance)
    conformance.add_argument("directory", type=Path, metavar="DIR")
    conformance.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
