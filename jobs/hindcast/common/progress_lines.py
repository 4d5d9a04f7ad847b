"""Progress on stderr: a line every ten seconds; on a terminal one line, which is rewritten in place.

replay orders: 200,000 of 336,776 offsets (59%), 10,000/s, 34 of 120 tasks in Spark, 20 s, about 14 s left
replay orders [###########---------]  59%  200,000 of 336,776 offsets  about 14 s left  10,000/s
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TextIO

from hindcast.common import progress, step_events
from hindcast.common.plurals import format_count
from hindcast.common.settings import Settings
from hindcast.common.step_events import EVENT_ATTRIBUTE, Event


@contextmanager
def print_progress(settings: Settings) -> Iterator[None]:
    """Print on stderr how far the steps of this block have come: when they take long, and on a terminal as they end.

    Nothing, if events go there as lines of JSON.
    """
    if settings.log == "json":
        yield
        return
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    before = progress.on_terminal.set(is_terminal)
    try:
        with step_events.attach_handler(_TerminalLine(sys.stderr) if is_terminal else _Lines(sys.stderr)):
            yield
    finally:
        progress.on_terminal.reset(before)


class _Lines(logging.StreamHandler[TextIO]):
    """Prints a line for each event of progress."""

    def emit(self, record: logging.LogRecord) -> None:
        event: Event = vars(record)[EVENT_ATTRIBUTE]
        if event["event"] == "step progress":
            print(f"{_name_part(event)}: {', '.join(_describe_progress(event))}", file=self.stream, flush=True)


class _TerminalLine(logging.StreamHandler[TextIO]):
    """Rewrites one line while a step goes on, and leaves one as it ends."""

    def emit(self, record: logging.LogRecord) -> None:
        event: Event = vars(record)[EVENT_ATTRIBUTE]
        if event["event"] == "step progress":
            self.stream.write(f"\r{_format_bar(event, _read_width(self.stream) - 1)}{_ERASE}")
            self._is_written = True
        elif self._is_written:
            self.stream.write(f"\r{_ERASE}")
            self._is_written = False
        if event["event"] == "step ended":
            self.stream.write(f"{_name_step(event)}: {', '.join(_describe_end(event))}\n")
        self.stream.flush()

    _is_written = False


_ERASE = "\x1b[K"
"""Erases what is right of the cursor."""

_BAR = 12


def _read_width(stream: TextIO) -> int:
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns
    return shutil.get_terminal_size().columns


def _format_bar(event: Event, width: int) -> str:
    """Return a line of at most `width` characters; what does not fit is left out."""
    line, count = _name_part(event)[:width], _find_count(event)
    share = count.share if count is not None else 0.0
    bar = f" [{'#' * int(share * _BAR):-<{_BAR}}] {share:4.0%}"
    length = len(line)
    if count is not None and length + len(bar) <= width:
        line += bar if os.environ.get("NO_COLOR") else f"\x1b[32m{bar}\x1b[0m"
        length += len(bar)
    parts = [*_describe_left(count), *_describe_count(count), *_describe_rate(count), *_describe_tasks(event)]
    for part in (*parts, f"{event['seconds']:,.0f} s"):
        if length + 2 + len(part) <= width:
            line += f"  {part}"
            length += 2 + len(part)
    return line


def _name_step(event: Event) -> str:
    return f"{event['step']} {event.get('table', event['pipeline'])}"


def _name_part(event: Event) -> str:
    """Return the name of a step with what it is at."""
    return f"{_name_step(event)}, {event['part']}" if "part" in event else _name_step(event)


def _describe_progress(event: Event) -> Iterator[str]:
    count = _find_count(event)
    yield from (f"{text} ({count.share:.0%})" for text in _describe_count(count) if count is not None)
    yield from _describe_rate(count)
    yield from _describe_tasks(event)
    yield f"{event['seconds']:,.0f} s"
    yield from _describe_left(count)


def _describe_end(event: Event) -> Iterator[str]:
    if "opened" in event:
        yield f"{format_count(event['opened'], 'row')} opened, {event.get('closed', 0):,} closed"
    yield f"{event['seconds']:,.1f} s"


class _Count(NamedTuple):
    """How much of something was done, in how many seconds."""

    done: int
    total: int
    noun: str
    seconds: float

    @property
    def share(self) -> float:
        """The share that is done, at most 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


def _find_count(event: Event) -> _Count | None:
    """Return what a step counts of its work, or of several runs' if it is a step of one of them; None if nothing."""
    seconds = event["seconds"]
    if "runs" in event:
        return _Count(event["runs_done"], event["runs"], "run", event.get("runs_seconds", seconds))
    if "offsets_planned" in event:
        return _Count(event.get("offsets_done", 0), event["offsets_planned"], "offset", seconds)
    if "tables" in event:
        return _Count(event.get("tables_done", 0), event["tables"], "table", seconds)
    if "vectors" in event:
        return _Count(event.get("vectors_done", 0), event["vectors"], "vector", seconds)
    return None


def _describe_count(count: _Count | None) -> Iterator[str]:
    if count is not None:
        yield f"{count.done:,} of {format_count(count.total, count.noun)}"


def _describe_rate(count: _Count | None) -> Iterator[str]:
    if count is not None and count.noun == "offset" and count.done and count.seconds:
        yield f"{count.done / count.seconds:,.0f}/s"


def _describe_left(count: _Count | None) -> Iterator[str]:
    if count is not None and 0 < count.share < 1:
        yield f"about {count.seconds * (1 / count.share - 1):,.0f} s left"


def _describe_tasks(event: Event) -> Iterator[str]:
    if event.get("tasks"):
        yield f"{event['tasks_done']:,} of {format_count(event['tasks'], 'task')} in Spark"
