"""The arguments of the command `hindcast`. The help of a command is its function's docstring."""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hindcast import __version__
from hindcast.cli.commands import closing, local, overview, projects, reading, running, upkeep
from hindcast.cli.help import EXAMPLES, GROUPS, GroupedParser
from hindcast.common.errors import show_briefly, suggest_nearest
from hindcast.common.settings import Settings

Command = Callable[[argparse.Namespace, Settings], int]


_KEY_HELP = "the key: its text; of several columns a JSON object, or the values with commas between"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line. It sets `command`, the function to call, and `failed`, its exit code."""
    parser = GroupedParser(
        prog="hindcast",
        description="Replay Kafka topics into bitemporal Delta tables: what was true then, and what was believed then.",
    )
    parser.add_argument("--version", action="version", version=f"hindcast {__version__}")
    parser.set_defaults(command=overview.show_overview, failed=1, target=None, variables=[])
    _add_choice(parser)
    subs = parser.add_subparsers(metavar="COMMAND", parser_class=argparse.ArgumentParser)

    def add(command: Command) -> argparse.ArgumentParser:
        name = command.__name__
        parser.add_summary(name, command.__doc__ or "")
        sub = subs.add_parser(name, description=inspect.getdoc(command), epilog=f"example: {EXAMPLES[name]}")
        sub.set_defaults(command=command, failed=1)
        if name not in _WITHOUT_CONTRACTS:
            _add_choice(sub)
        return sub

    def add_format(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--format", choices=("table", "json"), default="table", help="aligned text, or JSON")
        return sub

    def add_row_format(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        formats = ("table", "json", "csv")
        sub.add_argument(
            "--format", choices=formats, default="table", help="aligned text, JSON, or CSV (null is empty)"
        )
        return sub

    def add_key_range(sub: argparse.ArgumentParser) -> None:
        text = "keys from this one on: the text of the first column, or the first few columns as JSON"
        sub.add_argument("--from-key", metavar="K", help=text)
        sub.add_argument("--to-key", metavar="K", help="keys up to this one")

    def add_limit(sub: argparse.ArgumentParser) -> None:
        text = "the number of rows to show, 0 for all (default: 1,000 as text, otherwise all)"
        sub.add_argument("--limit", type=int, metavar="N", help=text)

    init = add(projects.init)
    init.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the folder, which is created if it does not exist; its name becomes that of the pipeline (default: the "
        "current one)",
    )
    check = add(local.check)
    check.add_argument("files", nargs="*", type=Path, metavar="FILE")
    check.add_argument("--spark", action="store_true", help="also let Spark analyse the expressions, as a run does")
    test = add(projects.test)
    test.add_argument(
        "pipelines", nargs="*", metavar="PIPELINE", help="the pipelines to test (default: all that have tests)"
    )
    add(local.schema)
    infer = add(local.infer)
    infer.add_argument("topic", nargs="+", help="a topic in Kafka; for several, joins between them are proposed")
    infer.add_argument("--pipeline", metavar="NAME", help="the pipeline's name (default: after the topics)")
    infer.add_argument(
        "--records",
        type=partial(_parse_count, of="records"),
        default=10_000,
        metavar="N",
        help="the most records to read of each topic (default: 10,000)",
    )
    infer.add_argument("--out", type=Path, metavar="FILE", help="write to this new file (default: print)")
    run = add_format(add(running.run))
    run.add_argument("pipeline")
    run.add_argument("--until", metavar="T", help="replay records up to this moment (default: everything available)")
    run.add_argument(
        "--reason", metavar="TEXT", help="the reason for the run, kept in the journal and shown in the report"
    )
    run.add_argument("--wait", action="store_true", help="wait until the run that is under way has ended")
    run.add_argument(
        "--ahead-of-clock",
        action="store_true",
        help="allow a known-at more than an hour ahead of this machine's clock (docs/maintenance.md)",
    )
    rehearse = add_format(add(running.rehearse))
    rehearse.add_argument("pipeline")
    rehearse.add_argument("--from", dest="start", metavar="T", help="records that arrived from then on")
    rehearse.add_argument("--to", dest="end", metavar="T", help="and before this moment")
    rehearse.add_argument(
        "--every", metavar="LENGTH", default="1 day", help="the intervals: 6 hours, month, quarter (default: 1 day)"
    )
    rehearse.add_argument(
        "--earlier", action="store_true", help="what arrived before --from is known at the end of the first interval"
    )
    rehearse.add_argument(
        "--into", metavar="NAME", help="from the logs of PIPELINE, into the tables of another pipeline, NAME"
    )
    rehearse.add_argument(
        "--replace",
        metavar="NAME",
        help="let the pipeline NAME take the place of PIPELINE, which gets another name",
    )
    rehearse.add_argument(
        "--end", dest="ends", action="store_true", help="end the rehearsal, by a run by the clock that replays nothing"
    )
    preview = add_format(add(running.preview))
    preview.add_argument("pipeline")
    preview.add_argument("--until", metavar="T", help="preview a run up to this moment (default: everything available)")
    for sub in (run, preview):
        sub.add_argument(
            "--only", metavar="TABLE", help="limit the run to this topic, input or view and everything downstream"
        )
    add_row_format(add(reading.runs)).add_argument("pipeline")
    ledger = add_row_format(add(reading.ledger))
    ledger.add_argument("pipeline", nargs="?", help="the pipeline (default: all)")
    ledger.add_argument("--rebuild", action="store_true", help="rebuild the journal of runs from logs and tables")
    report = add(reading.report)
    report.add_argument(
        "--format", choices=("table", "json", "html"), default="table", help="text, JSON or an HTML page"
    )
    report.add_argument(
        "--data-docs",
        type=Path,
        metavar="FOLDER",
        help="build Great Expectations' Data Docs of the run's gates in this folder",
    )
    report.add_argument("pipeline")
    report.add_argument("run", nargs="?", type=int)
    failing = add_row_format(add(reading.failing))
    failing.add_argument("pipeline")
    failing.add_argument("--run", type=int, help="only rows of this run; with --held: what was held after it")
    failing.add_argument("--table", help="only rows of this table")
    failing.add_argument(
        "--gate", type=int, metavar="N", help="only rows of this gate: its position under expect, from 0"
    )
    failing.add_argument("--held", action="store_true", help="list the changes that are held back now")
    add_limit(failing)
    release = add_format(add(running.release))
    release.add_argument("table", metavar="PIPELINE[.TABLE]", help="the table; all of the pipeline's if none is named")
    release.add_argument(
        "--key",
        metavar="K",
        action="append",
        help="only this key: its text, or a JSON object if it has several columns; may be repeated",
    )
    release.add_argument("--reject", action="store_true", help="record that it was reviewed and stays held")
    release.add_argument("--by", metavar="NAME", help="who decides (default: the current user)")
    release.add_argument("--reason", metavar="TEXT", help="the reason, kept with the decision and shown beside it")
    quarantine = add_row_format(add(reading.quarantine))
    quarantine.add_argument("pipeline")
    quarantine.add_argument("--topic", metavar="T", help="only records of this topic of the contract")
    quarantine.add_argument("--all", action="store_true", help="also records that are no longer refused")
    quarantine.add_argument("--rebuild", action="store_true", help="rebuild the quarantine from the logs")
    add_limit(quarantine)
    requeue = add_format(add(running.requeue))
    requeue.add_argument("pipeline")
    requeue.add_argument(
        "--topic", metavar="T", help="only records of this topic, as named in the contract or in Kafka"
    )
    requeue.add_argument("--reason", metavar="TEXT", help="only records whose reason contains this text")
    requeue.add_argument("--partition", type=int, metavar="P", help="only records of this partition")
    requeue.add_argument("--offset", type=int, action="append", metavar="O", help="only this offset; may be repeated")
    requeue.add_argument("--dry-run", action="store_true", help="show what it would do; write nothing")
    forget = add_format(add(upkeep.forget))
    forget.add_argument("table", metavar="PIPELINE.TOPIC")
    forget.add_argument("--key", metavar="K", help=_KEY_HELP)
    forget.add_argument(
        "--offset",
        metavar="P/O",
        action="append",
        help="a single record instead of a key: its partition and offset, such as 0/42; may be repeated",
    )
    forget.add_argument("--reason", metavar="TEXT", help="the reason, kept in the journal; do not write the key here")
    forget.add_argument("--dry-run", action="store_true", help="show what would be erased; write nothing")
    abandon = add(running.abandon)
    abandon.add_argument("pipeline")
    abandon.add_argument("run", nargs="?", type=int)
    verify = add_format(add(upkeep.verify))
    verify.set_defaults(failed=2)
    verify.add_argument("pipeline")
    verify.add_argument("--table", metavar="T", help="only this topic or view, and what it is made of")
    verify.add_argument("--whole", action="store_true", help="compare all keys with the log, not only a sample")
    verify.add_argument("--quick", action="store_true", help="do not compare tables with the log; needs no Spark")
    verify.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    doctor = add_format(add(upkeep.doctor))
    doctor.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    maintain = add_format(add(upkeep.maintain))
    maintain.add_argument("pipeline")
    maintain.add_argument("--dry-run", action="store_true", help="show what it would do; write nothing")
    add_format(add(upkeep.forecast)).add_argument("pipeline")
    trim = add_format(add(upkeep.trim))
    trim.add_argument("pipeline")
    trim.add_argument("--dry-run", action="store_true", help="show what it would remove; write nothing")
    query = add_row_format(add(reading.query))
    history = add_row_format(add(reading.history))
    for sub in (query, history):
        sub.add_argument("table", metavar="PIPELINE.TABLE")
        sub.add_argument("--key", metavar="K", help=_KEY_HELP)
    history.add_argument("--run", type=int, metavar="N", help="only rows that this run opened or closed")
    query.add_argument(
        "--as-of",
        metavar="T",
        help="what was true at this moment, such as 2026-01-01T00:03:00 "
        "(default without any time: versions valid now, all events)",
    )
    query.add_argument("--from", dest="start", metavar="T", help="what was true from this moment on")
    query.add_argument("--to", dest="end", metavar="T", help="what was true up to this moment")
    add_key_range(query)
    query.add_argument(
        "--known-at",
        metavar="S",
        help="what was known at this moment, after a run (run:1), or at a close (close:NAME), for whose period it asks "
        "if no time is given",
    )
    query.add_argument(
        "--order",
        metavar="O",
        help="time, time-desc, key or key-desc, or two of them: key,time-desc (default: time,key)",
    )
    diff = add_row_format(add(reading.diff))
    diff.add_argument("table", metavar="PIPELINE[.TABLE]")
    diff.add_argument(
        "--run", type=int, metavar="N", help="what this run has changed (default: the last completed run)"
    )
    diff.add_argument(
        "--from",
        dest="start",
        metavar="S",
        help="since what was known at this moment, after run:N, or at close:NAME, for whose period it asks",
    )
    diff.add_argument(
        "--to", dest="end", metavar="S", help="up to what was known at this moment, after run:N, or at close:NAME"
    )
    diff.add_argument("--key", metavar="K", help=f"of a table only {_KEY_HELP}")
    add_key_range(diff)
    diff.add_argument("--valid-from", metavar="V", help="only what was true from this moment on")
    diff.add_argument("--valid-to", metavar="V", help="up to before this one")
    diff.add_argument("--corrections", action="store_true", help="only past answers that are others now")
    diff.add_argument(
        "--causes",
        action="store_true",
        help="add the records that caused each change, at most 3, and how late they came",
    )
    diff.add_argument(
        "--order",
        choices=("size", "time"),
        default="size",
        help="the greatest difference of a number first, or by key and time (default: size)",
    )
    add_limit(diff)
    why = add_format(add(reading.why))
    why.add_argument("table", metavar="PIPELINE.TABLE")
    why.add_argument("--key", required=True, metavar="K", help=_KEY_HELP)
    why.add_argument("--as-of", metavar="V", help="what was true at this moment (default: now)")
    why.add_argument("--known-at", metavar="S", help="as known at this moment, or after run:N (default: the last run)")
    compare = add_format(add(reading.compare))
    compare.set_defaults(failed=2)
    compare.add_argument("table", metavar="PIPELINE.VIEW")
    compare.add_argument(
        "--topic", required=True, metavar="OUTPUT", help="the topic that the live application writes to"
    )
    compare.add_argument(
        "--key-format",
        choices=("string", "json"),
        help="how its keys are encoded (default: as those of the view's topic)",
    )
    compare.add_argument(
        "--limit", type=int, default=5, metavar="N", help="the number of differences of each kind to show (default: 5)"
    )
    close = add_format(add(closing.close))
    close.add_argument("pipelines", metavar="PIPELINE[,PIPELINE...]")
    close.add_argument("name", metavar="NAME", help="the name, as in --known-at close:NAME; a name is used once")
    close.add_argument(
        "--from", dest="start", metavar="T", help="from this moment on (default: the end of the last close)"
    )
    close.add_argument(
        "--to", dest="end", required=True, metavar="T", help="up to this moment, which is not part of it"
    )
    close.add_argument(
        "--known-at", metavar="S", help="as known at this moment, or after run:N (default: the last run of each)"
    )
    restate = add_row_format(add(closing.restate))
    restate.add_argument("pipeline")
    restate.add_argument("name", metavar="NAME", help="the close")
    restate.add_argument(
        "--page", type=Path, metavar="FILE", help="write it as a page with a waterfall for each figure"
    )
    restate.add_argument(
        "--into", type=Path, metavar="FOLDER", help="write the differences, by figure and cause, as a Delta table"
    )
    restate.add_argument(
        "--group-by", metavar="COLUMN", help="the figures of events and windows for each value of this column"
    )
    restate.add_argument(
        "--records", action="store_true", help="list the records of the period that became known since"
    )
    restate.add_argument(
        "--known-at", metavar="S", help="compare with what was known at this moment, or after run:N (default: now)"
    )
    closes = add_row_format(add(closing.closes))
    closes.add_argument("pipeline")
    closes.add_argument(
        "--drop", metavar="NAME", help="drop this close: its name is gone, and a trim may remove its rows"
    )
    closes.add_argument("--reason", metavar="TEXT", help="the reason why it is dropped, which is kept")
    for sub in (close, closes):
        sub.add_argument("--by", metavar="NAME", help="who does it (default: the current user)")
    sql = add(reading.sql)
    sql.add_argument("pipeline")
    produce = add(local.produce)
    produce.add_argument("topic")
    produce.add_argument(
        "file",
        type=Path,
        help='one object a line: {"key": ..., "value": ..., "timestamp": ..., "headers": {...}}; '
        "text is sent as it is, null as null, anything else as JSON; key_base64 and value_base64 hold bytes; timestamp "
        "is ISO 8601 or milliseconds, null for none (default: now)",
    )
    produce.add_argument(
        "--partitions",
        type=partial(_parse_count, of="partitions"),
        default=1,
        help="the partitions of a topic that is created (default: 1)",
    )
    where = produce.add_mutually_exclusive_group()
    where.add_argument(
        "--partitioner",
        choices=("murmur2", "crc32", "fnv1a", "random"),
        default="murmur2",
        help="how keys are partitioned: as by Java clients (murmur2), librdkafka (crc32) or Sarama (fnv1a)",
    )
    where.add_argument("--partition", type=int, metavar="P", help="send all to this partition")
    upgrade = add(upkeep.upgrade)
    upgrade.add_argument("table", metavar="PIPELINE.TABLE")
    upgrade.add_argument(
        "--mode",
        choices=("in-place", "roll-over", "offline"),
        default="in-place",
        help="in-place: migrate its rows where they lie, while runs go on; roll-over: build a new table beside it; "
        "offline: rewrite it in one run (default: in-place)",
    )
    downgrade = add(upkeep.downgrade)
    downgrade.add_argument("table", metavar="PIPELINE.TABLE")
    downgrade.add_argument(
        "--to", required=True, choices=("latest", "timestamped", "versioned"), help="the store format to change to"
    )
    downgrade.add_argument("--lose", action="store_true", help="allow the loss of what that format cannot store")
    shell = add(local.completion)
    shell.add_argument("shell", choices=("bash", "zsh", "fish"))
    add(local.setup)
    add(local.up)
    add(local.down)
    demo = add(local.demo)
    demo.add_argument(
        "story",
        nargs="?",
        choices=("pipelines", "hindsight"),
        default="pipelines",
        help="what to show (default: pipelines)",
    )
    conformance = add(local.conformance)
    conformance.add_argument("directory", type=Path, metavar="DIR")
    conformance.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser


_WITHOUT_CONTRACTS = ("init", "schema", "infer", "completion", "setup", "down", "demo", "conformance", "produce")
"""The commands that load no contracts."""


def _add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what contracts are loaded with; they may stand before the command or after it."""
    parser.add_argument(
        "--target", metavar="NAME", default=argparse.SUPPRESS, help="the target of targets.yaml (HINDCAST_TARGET)"
    )
    parser.add_argument(
        "--var",
        dest="variables",
        metavar="NAME=VALUE",
        type=_parse_variable,
        action="append",
        default=argparse.SUPPRESS,
        help="the value of a variable of the contract; may be repeated",
    )


def _parse_variable(text: str) -> tuple[str, str]:
    """Return the name and the text of a variable; ArgumentTypeError for another text."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise argparse.ArgumentTypeError(f"'{show_briefly(text, 40)}' is not NAME=VALUE, such as --var region=eu")
    return name.strip(), value


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command line; print what is wrong with them, and exit with 2."""
    parser = build_parser()
    known = {name for names in GROUPS.values() for name in names}
    if argv and not argv[0].startswith("-") and argv[0] not in known:
        parser.error(f"no command '{show_briefly(argv[0], 40)}': {suggest_nearest(argv[0], known)}")
    if "_ARGCOMPLETE" in os.environ:
        from hindcast.cli import completion

        completion.complete(parser)
    return parser.parse_args(argv)


def _parse_count(text: str, of: str) -> int:
    """Return a number `of` something; ArgumentTypeError for any other text."""
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number of {of}: write one from 1 to 999999999")
    return int(text)
