"""What `hindcast` prints without a command: where one is, and what to do next."""

from __future__ import annotations

import argparse
from itertools import islice
from typing import TYPE_CHECKING

from hindcast import __version__
from hindcast.common.errors import LINE_BREAKS, ContractError, HindcastError, escape_controls, show_briefly
from hindcast.common.plurals import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hindcast.common.settings import Settings
    from hindcast.contract import Contract
    from hindcast.plan.runs import Run

_MOST = 10


def show_overview(_: argparse.Namespace, settings: Settings) -> int:
    """Print the version, the contracts, the last run of each, and what to do next; exit code 0."""
    from hindcast.contract.folder import list_meant_pipelines, try_load_all

    target = f", target {settings.target}" if settings.target else ""
    line = f"hindcast {__version__}, contracts in {settings.schemas}{target}, tables in {settings.warehouse}"
    print(escape_controls(line, LINE_BREAKS))
    files: Mapping[Path, Contract | ContractError] = {}
    if settings.schemas.exists():
        files = try_load_all(settings.schemas, settings.choice.for_others)
    broken = [path for path, contract in files.items() if isinstance(contract, ContractError)]
    advice = ["hindcast check"] if broken else []
    for path, contract in islice(files.items(), _MOST):
        if isinstance(contract, ContractError):
            name, state = " or ".join(sorted(list_meant_pipelines(path))) or path.stem, "its contract does not load"
        else:
            name = contract.pipeline
            state, fix = _describe_last_run(settings, name)
            advice.append(fix)
        print(f"  {show_briefly(name, 40):16} {state}")
    if len(files) > _MOST:
        print(f"  and {format_count(len(files) - _MOST, 'other')}")
    if not files:
        print("  no contract yet")
        advice.append("hindcast init shop")
    urgent = sorted(dict.fromkeys(advice), key=lambda command: _URGENCY.index(command.split()[1]))
    print(f"next: {urgent[0]}\n`hindcast --help` lists all commands.")
    return 0


_URGENCY = ("check", "verify", "report", "run", "init", "query")
"""Which advice is given, of several."""


def _describe_last_run(settings: Settings, pipeline: str) -> tuple[str, str]:
    """Return what is known of a pipeline's last run, and the command that comes next."""
    from hindcast.plan import journal

    try:
        past = journal.read_runs(settings.warehouse, pipeline)
    except HindcastError as error:
        return f"its runs cannot be read: {show_briefly(error.found, 60)}", f"hindcast verify {pipeline}"
    if not past:
        return "no run yet", f"hindcast run {pipeline}"
    last = past[-1]
    state = f"run {last.number} {_STATES[last.state]}, known at {last.known_at:%Y-%m-%d %H:%M} UTC"
    return state, _advise(pipeline, last)


_STATES = {
    "planned": "has not ended",
    "stopped": "was stopped by a gate",
    "completed": "completed",
    "abandoned": "was abandoned",
}


def _advise(pipeline: str, last: Run) -> str:
    match last.state:
        case "completed":
            return f"hindcast query {pipeline}.{next(iter(last.results), 'TABLE')}"
        case "planned" | "abandoned":
            return f"hindcast run {pipeline}"
        case _:
            return f"hindcast report {pipeline}"
