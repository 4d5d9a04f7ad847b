"""How long work shows its progress: one line on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.common import progress, progress_lines, step_events
from hindcast.common.errors import QueryError
from hindcast.common.settings import read_settings
from hindcast.common.step_events import Event
from hindcast.contract import load
from hindcast.contract.bound import bind_contract
from hindcast.ops import maintenance
from hindcast.ops.verify import verify
from warehouses import shop


class Terminal:
    """A terminal of 80 columns in place of stderr, and what was written to it."""

    def __init__(self) -> None:
        self.ours, theirs = pty.openpty()
        os.set_blocking(self.ours, False)
        termios.tcsetwinsize(theirs, (24, 80))
        self.stream = os.fdopen(theirs, "w")

    def read(self) -> str:
        text = b""
        with suppress(BlockingIOError):
            while part := os.read(self.ours, 1_000_000):
                text += part
        return text.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    here = Terminal()
    monkeypatch.setattr(progress_lines, "sys", SimpleNamespace(stderr=here.stream))  # pytest sets the real one
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    yield here
    here.stream.close()
    os.close(here.ours)


def replay(**fields: Any) -> None:
    """A step that lasts until one event of its progress was emitted."""
    emitted: list[Event] = []
    with step_events.record_step("replay", "shop", 7, "orders"):
        step_events.add_fields(**fields)
        before = step_events._listener.get()

        def listen(event: Event) -> None:
            before(event)
            emitted.append(event)

        with step_events.send_events_to(listen), progress.report_progress():
            deadline = time.monotonic() + 10
            while not emitted and time.monotonic() < deadline:
                time.sleep(0.005)
        step_events.add_fields(opened=2, closed=1)


def test_a_terminal_has_one_line_that_is_rewritten_and_gone_at_the_end(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "TERMINAL_INTERVAL", 0.02)
    with progress_lines.print_progress(read_settings()):
        replay(offsets_planned=200_000, offsets_done=50_000)
    first, *_, last = terminal.read().removesuffix("\r\n").split("\r")[1:]
    line = r"replay orders \[###---------\]  25%  about \d+ s left  50,000 of 200,000 offsets\x1b\[K"
    assert re.fullmatch(line, first), "the rate does not fit"
    assert re.fullmatch(r"\x1b\[Kreplay orders: 2 rows opened, 1 closed, \d\.\d s", last)


def test_colour_is_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    event = describe(offsets_planned=4, offsets_done=1)
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = progress_lines._format_bar(event, 80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" in coloured
    assert progress_lines._format_bar(event, 80) == re.sub(r"\x1b\[\d+m", "", coloured)


def test_the_last_line_does_not_say_what_it_was_at(terminal: Terminal) -> None:
    with progress_lines.print_progress(read_settings()):
        step_events.emit_event({**describe(part="rows of o"), "event": "step ended"})
    assert terminal.read() == "replay o: 10.0 s\r\n"


def describe(**fields: Any) -> Event:
    return {
        "event": "step progress",
        "level": "info",
        "timestamp": "",
        "pipeline": "shop",
        "step": "replay",
        "seconds": 10.0,
        "table": "o",
        **fields,
    }


@pytest.mark.parametrize("width", [5, 20, 40, 60, 79, 200])
def test_a_line_is_never_wider_than_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    line = progress_lines._format_bar(describe(offsets_planned=10**9, offsets_done=5, tasks=9, tasks_done=1), width)
    assert len(line) <= width
    assert ("of 9 tasks in Spark" in line) == (width == 200)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"offsets_planned": 400, "offsets_done": 100, "tasks": 8, "tasks_done": 2},
            "replay o: 100 of 400 offsets (25%), 10/s, 2 of 8 tasks in Spark, 10 s, about 30 s left",
        ),
        ({"step": "verify", "part": "rows of o", "tables": 4, "tables_done": 0, "table": None},
         "verify shop, rows of o: 0 of 4 tables (0%), 10 s"),
        ({"runs": 12, "runs_done": 3, "runs_seconds": 30.0, "offsets_planned": 9, "offsets_done": 1},
         "replay o: 3 of 12 runs (25%), 10 s, about 90 s left"),
        ({"tasks": 0, "tasks_done": 0}, "replay o: 10 s"),
    ],
)  # fmt: skip
def test_a_line_elsewhere(fields: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    err = io.StringIO()
    monkeypatch.setattr(progress_lines, "sys", SimpleNamespace(stderr=err))
    event: Any = {name: value for name, value in describe(**fields).items() if value is not None}
    with progress_lines.print_progress(read_settings()):
        step_events.emit_event(event)
        step_events.emit_event({**event, "event": "step ended"})
    assert err.getvalue() == f"{line}\n"


def test_a_dumb_terminal_gets_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with progress_lines.print_progress(read_settings()):
        step_events.emit_event(describe())
    assert terminal.read() == "replay o: 10 s\r\n"


def test_a_step_of_one_of_several_runs_says_so() -> None:
    events: list[Event] = []
    with step_events.send_events_to(events.append), step_events.record_step("rehearse", "shop"):
        step_events.add_fields(runs=12, runs_done=3)
        with step_events.record_step("replay", "shop", 4, "orders"):
            pass
    assert [(it["step"], it["runs_done"], it["runs"]) for it in events] == [("replay", 3, 12), ("rehearse", 3, 12)]


@pytest.mark.parametrize("name", ["verify", "maintain"])
def test_commands_count_tables(name: str, tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        contract = bind_contract(load(settings.schemas / "shop.yaml"), settings)
        commands: dict[str, Callable[[], object]] = {
            "verify": lambda: verify.verify_tables(contract),
            "maintain": lambda: maintenance.maintain_tables(refuse_session, settings, contract, dry_run=True),
        }
        events: list[Event] = []
        with step_events.send_events_to(events.append):
            commands[name]()
    (event,) = events
    assert (event["event"], event["step"], event["pipeline"]) == ("step ended", name, "shop")
    assert event["tables"] == event["tables_done"] + 1
    assert event["part"]


def refuse_session() -> Any:
    raise QueryError("no session is needed")
