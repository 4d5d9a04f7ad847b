"""The command `hindcast`, the steps that spark-submit starts, and how both fail. `commands/` do the work."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hindcast.cli.arguments import Command, parse_arguments
from hindcast.common import progress_lines, step_events
from hindcast.common.ended_jvm import explain_ended_jvm
from hindcast.common.errors import FINAL_ERRORS, BusyError, HindcastError, QueryError, show_briefly
from hindcast.common.json_values import JsonValue
from hindcast.common.private_files import limit_access
from hindcast.common.settings import TARGET_VARIABLE, Settings, read_settings

BUSY = 3
"""The exit code of a command that was refused because another run of the pipeline has not ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a HindcastError is printed on stderr in a few lines.

    The exit code is then 1, of compare and verify 2 (their 1 says that something was found), and `BUSY` while another
    run is under way.
    """
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    try:
        _refuse_odd_text(arguments)
        command: Command = arguments.command
        if arguments.target is not None:
            os.environ[TARGET_VARIABLE] = arguments.target  # also for what this process starts
        settings = replace(_read_settings(command), variables=tuple(dict(arguments.variables).items()))
        with (
            step_events.write_event_lines(settings),
            progress_lines.print_progress(settings),
            limit_access(settings),
            explain_ended_jvm(settings),
        ):
            return command(arguments, settings)
    except HindcastError as error:
        print(f"hindcast: {error}", file=sys.stderr)
        return BUSY if isinstance(error, BusyError) else int(arguments.failed)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _read_settings(command: Command) -> Settings:
    """Return the settings for a command; without the target if it is invalid and the command needs none."""
    try:
        return read_settings()
    except HindcastError:
        if command.__name__ not in _WITHOUT_TARGET:
            raise
        return read_settings({**os.environ, TARGET_VARIABLE: ""})


_WITHOUT_TARGET = ("schema", "completion", "init", "setup", "down", "doctor")
"""Commands that read neither contracts nor tables; doctor reads the target itself."""


def _refuse_odd_text(arguments: argparse.Namespace) -> None:
    """Raise QueryError for an argument that is not UTF-8, or a name with control characters or too long for a folder,
    or a reason that is too long.

    File arguments may be any bytes.
    """
    for name, value in vars(arguments).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and _LONE_SURROGATES.search(text):
                raise QueryError(f"'{text}' is not UTF-8 text", fix=f"give {name} as UTF-8")
            if name in _NAMES and isinstance(text, str) and text != (shown := show_briefly(text, len(text))):
                fix = "write the name alone; `hindcast check` lists all contracts"
                raise QueryError(f"'{show_briefly(shown, 50)}' has a line break or a control character", fix=fix)
    if reason := getattr(arguments, "reason", None):
        from hindcast.contract.bounds import REASON

        if len(reason) > REASON:
            found = f"the reason has {len(reason):,} characters, and it is shown in lists of runs"
            raise QueryError(found, fix=f"write at most {REASON:,}, with a link to the rest")
    table = (getattr(arguments, "table", None) or "").partition(".")
    for text in (getattr(arguments, "pipeline", None) or "", *table):
        if len(text.encode()) > _MAX_NAME_BYTES:
            from hindcast.contract.bounds import NAME

            message = f"'{text[:50]}...' is too long: pipelines and tables have names of at most {NAME} characters"
            raise QueryError(message, fix="`hindcast check` lists all contracts")


_NAMES = ("pipeline", "pipelines", "table", "topic", "only")
"""Arguments that name a pipeline, a table or a topic."""

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")
"""Python's stand-in for a byte that is not UTF-8."""

_MAX_NAME_BYTES = 255
"""The longest name that a folder can have, in bytes."""


def step(name: str, argv: Sequence[str]) -> int:
    """Run one step in a session of its own, as spark-submit starts it, and return its exit code.

    A HindcastError is printed on stderr and written to the file that HINDCAST_FAILURE names (operators.py), the step's
    events to the file that HINDCAST_EVENTS names, and what it returns, as JSON, to the one that HINDCAST_RESULT names.
    """
    from hindcast.common.session import open_session
    from hindcast.ops import maintenance
    from hindcast.query import read
    from hindcast.report import report_text
    from hindcast.runs import preview, rehearsal, run_steps, special_runs
    from hindcast.runs.table_steps import TABLE_STEPS

    pipeline, *others = argv
    try:
        settings = read_settings()
        with (
            step_events.write_event_lines(settings, os.environ.get(step_events.EVENTS_VARIABLE)),
            progress_lines.print_progress(settings),
            limit_access(settings),
        ):
            if name == "preview":
                until = read.moment_of(settings.warehouse, pipeline, others[0]) if others[0] else None
                print(preview.report_preview(open_session(), settings, pipeline, until, others[1] or None, others[2]))
            elif name == "release":
                (run_id,) = others
                report = special_runs.run_planned_release(open_session(), settings, pipeline, run_id)
                print(report_text.format_report(report))
            elif name == "rehearse":
                run_id, request = others
                _write_result(rehearsal.plan_requested_run(open_session(), settings, pipeline, run_id, request))
            elif name == "maintain":
                maintenance.maintain_pipelines(open_session, settings, argv)
            else:
                run, table = others
                note = run_steps.execute_step(open_session(), settings, pipeline, int(run), TABLE_STEPS[name], table)
                _write_result(note.as_json())
    except HindcastError as error:
        print(f"hindcast: {error}", file=sys.stderr)
        if path := os.environ.get("HINDCAST_FAILURE"):
            failure = {"text": str(error), "final": isinstance(error, FINAL_ERRORS)}
            Path(path).write_text(json.dumps(failure), encoding="utf-8")
        return 1
    return 0


def _write_result(result: JsonValue) -> None:
    """Print what a step returns, as JSON, and write it to the file that the operator reads, if one does."""
    text = json.dumps(result)
    print(text)
    if path := os.environ.get("HINDCAST_RESULT"):
        Path(path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
