"""Step events: each step of a run emits one event when it begins, one when it has ended, waits or has failed, and
others while it takes long (progress.py).

    step begun    {"pipeline": "restaurant", "run": 7, "run_id": "cli__2026-01-05", "step": "build", "table": "bills"}
    step ended    the same with {"seconds": 2.1, "opened": 3, "closed": 1, "corrected": 1}

Outside of Airflow events go to Python's logging, to the logger `hindcast.steps`; with `HINDCAST_LOG=json` to stderr,
one line of JSON each. In an Airflow task they go to its log as fields (structlog), and become its metrics
(step_metrics.py).

No event contains a value of a record: only names, counts, times, and the class of an error.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from hindcast.common.errors import BusyError
from hindcast.common.plurals import format_count
from hindcast.common.settings import Settings


class StepFields(TypedDict, total=False):
    """The fields of a step's events; counts of rows, of gate results by outcome, and of what the name says by table."""

    pipeline: str
    run: int
    run_id: str | None
    step: str
    table: str
    seconds: float
    error: str
    opened: int
    closed: int
    corrected: int
    gates: Mapping[str, int]
    records: Mapping[str, Mapping[str, int]]
    late: Mapping[str, int]
    held: Mapping[str, int]
    offsets: Mapping[str, int]
    offsets_left: Mapping[str, int]
    lag_seconds: Mapping[str, float]
    tasks: int
    tasks_done: int
    offsets_planned: int
    offsets_done: int


class Event(StepFields):
    """What happened (`event`) and when (ISO 8601, UTC), with the fields of the step."""

    event: str
    level: Literal["info", "error"]
    timestamp: str


EVENTS_VARIABLE = "HINDCAST_EVENTS"
"""The variable with the path of the file in which a step under spark-submit leaves its events for its task."""


@contextmanager
def record_step(name: str, pipeline: str, run: int | None = None, table: str | None = None) -> Iterator[None]:
    """Emit an event when the step in the block ends, waits or fails, with its `seconds` and all added fields."""
    fields: StepFields = {"pipeline": pipeline}
    if run is not None:
        fields["run"] = run
    fields["step"] = name
    if table is not None:
        fields["table"] = table
    started = time.monotonic()
    before, clock = _step_fields.set(fields), _started.set(started)
    try:
        yield
    except BaseException as error:
        fields |= {"seconds": _seconds_since(started), "error": type(error).__name__}
        if isinstance(error, BusyError):
            _emit("step waits", "info", fields)
        else:
            _emit("step failed", "error", fields)
        raise
    else:
        _emit("step ended", "info", fields | {"seconds": _seconds_since(started)})
    finally:
        _step_fields.reset(before)
        _started.reset(clock)


def emit_progress(done: int, total: int) -> None:
    """Emit the event that the current step goes on, with how many of Spark's tasks are done; nothing without a step."""
    if (fields := _step_fields.get()) is not None:
        counts: StepFields = {"tasks_done": done, "tasks": total, "seconds": _seconds_since(_started.get())}
        _emit("step progress", "info", fields | counts)


def record_begin(run_id: str | None) -> None:
    """Emit the event that the step has begun, with the run's id, which stays part of its later events."""
    add_fields(run_id=run_id)
    _emit("step begun", "info", _step_fields.get() or {})


def add_fields(**fields: Unpack[StepFields]) -> None:
    """Add fields to the later events of the current step; do nothing outside of a step."""
    current = _step_fields.get()
    if current is not None:
        current |= fields


@contextmanager
def send_events_to(listener: Callable[[Event], None]) -> Iterator[None]:
    """Send the events of this block to a listener instead of Python's logging."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


@contextmanager
def write_event_lines(settings: Settings, place: str | None = None) -> Iterator[None]:
    """Write the events of this block as lines of JSON: to stderr if the settings say so, and to the file at `place`."""
    with ExitStack() as stack:
        if settings.log == "json":
            stack.enter_context(_attach_handler(logging.StreamHandler(sys.stderr)))
        if place:
            stack.enter_context(_attach_handler(logging.FileHandler(place, encoding="utf-8")))
        yield


@contextmanager
def print_progress(settings: Settings) -> Iterator[None]:
    """Print on stderr how far the steps of this block have come: when they take long, and on a terminal as they end.

    Nothing, if events go there as lines of JSON.
    """
    if settings.log == "json":
        yield
        return
    shown = {"step progress", "step ended"} if sys.stderr.isatty() else {"step progress"}
    handler = logging.StreamHandler(sys.stderr)
    with _attach_handler(handler, _ProgressFormatter()):
        handler.addFilter(lambda record: vars(record)[_EVENT_ATTRIBUTE]["event"] in shown)
        yield


def read_events(place: Path) -> list[Event]:
    """Return the events in a file that `write_event_lines` wrote; none if there is no file.

    A process that was killed may have left half a line.
    """
    lines = place.read_text(encoding="utf-8").split("\n")[:-1] if place.exists() else []
    return [json.loads(line) for line in lines if line]


def emit_event(event: Event) -> None:
    """Pass an event to the listener. A listener that fails does not stop the step; the failure is logged."""
    try:
        _listener.get()(event)
    except Exception:  # backends of metrics and logs can raise anything
        _LOGGER.warning("an event could not be reported: %s", event["event"], exc_info=True)


_LOGGER = logging.getLogger("hindcast.steps")
_LOGGER.addHandler(logging.NullHandler())  # without logging configured nothing goes to stderr: the error says it
_step_fields: ContextVar[StepFields | None] = ContextVar("step_fields", default=None)
_started: ContextVar[float] = ContextVar("started", default=0.0)


def _log_event(event: Event) -> None:
    fields = {name: value for name, value in event.items() if name not in _FRAME_FIELDS}
    text = " ".join([event["event"], *(f"{name}={value}" for name, value in fields.items())])
    extra = dict.fromkeys((_EVENT_ATTRIBUTE, _FORMER_ATTRIBUTE), event)
    _LOGGER.log(logging.getLevelNamesMapping()[event["level"].upper()], "%s", text, extra=extra)


_EVENT_ATTRIBUTE, _FORMER_ATTRIBUTE = "step_event", "told"
"""The attributes of a log record that hold its event; programs written for earlier versions read the second."""

_FRAME_FIELDS = ("timestamp", "level", "event")
_listener: ContextVar[Callable[[Event], None]] = ContextVar("listener", default=_log_event)


def _emit(what: str, level: Literal["info", "error"], fields: StepFields) -> None:
    emit_event({"timestamp": datetime.now(UTC).isoformat(), "level": level, "event": what, **fields})


@contextmanager
def _attach_handler(handler: logging.Handler, formatter: logging.Formatter | None = None) -> Iterator[None]:
    handler.setFormatter(formatter or _JsonLineFormatter())
    handler.addFilter(lambda record: hasattr(record, _EVENT_ATTRIBUTE))
    before = _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(before)
        handler.close()


class _JsonLineFormatter(logging.Formatter):
    """Formats an event as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(vars(record)[_EVENT_ATTRIBUTE], default=str)


class _ProgressFormatter(logging.Formatter):
    """Formats an event as a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        event: Event = vars(record)[_EVENT_ATTRIBUTE]
        return f"{event['step']} {event.get('table', event['pipeline'])}: {', '.join(_describe_progress(event))}"


def _describe_progress(event: Event) -> Iterator[str]:
    if event.get("tasks"):
        yield f"{event['tasks_done']:,} of {format_count(event['tasks'], 'task')} in Spark"
    if event.get("offsets_done"):
        share = event["offsets_done"] / event["offsets_planned"]
        yield f"{event['offsets_done']:,} of {format_count(event['offsets_planned'], 'offset')} ({share:.0%})"
    if event["event"] == "step ended" and "opened" in event:
        yield f"{format_count(event['opened'], 'row')} opened, {event.get('closed', 0):,} closed"
    if event["event"] != "step progress":
        yield f"{event['seconds']:,.1f} s"
        return
    yield f"{event['seconds']:,.0f} s"
    if event.get("offsets_done") and event["offsets_done"] < event["offsets_planned"]:
        yield f"about {event['seconds'] * (1 / share - 1):,.0f} s left"


def _seconds_since(started: float) -> float:
    return round(time.monotonic() - started, 3)
