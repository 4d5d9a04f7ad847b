"""Step events: each step of a run emits one event when it begins, one when it has ended, waits or has failed, and
others while it takes long (progress.py). So do other commands that take long, such as verify, each as one step.

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
    tables: int
    tables_done: int
    vectors: int
    vectors_done: int
    runs: int
    runs_done: int
    runs_seconds: float
    part: str


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
    if (outer := _step_fields.get()) is not None and "runs" in outer:  # a step of one of several runs
        fields |= {"runs": outer["runs"], "runs_done": outer["runs_done"]}
        fields["runs_seconds"] = _seconds_since(_started.get())
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
            stack.enter_context(attach_handler(logging.StreamHandler(sys.stderr)))
        if place:
            stack.enter_context(attach_handler(logging.FileHandler(place, encoding="utf-8")))
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
    extra = dict.fromkeys((EVENT_ATTRIBUTE, _FORMER_ATTRIBUTE), event)
    _LOGGER.log(logging.getLevelNamesMapping()[event["level"].upper()], "%s", text, extra=extra)


EVENT_ATTRIBUTE, _FORMER_ATTRIBUTE = "step_event", "told"
"""The attributes of a log record that hold its event; programs written for earlier versions read the second."""

_FRAME_FIELDS = ("timestamp", "level", "event")
_listener: ContextVar[Callable[[Event], None]] = ContextVar("listener", default=_log_event)


def _emit(what: str, level: Literal["info", "error"], fields: StepFields) -> None:
    emit_event({"timestamp": datetime.now(UTC).isoformat(), "level": level, "event": what, **fields})


@contextmanager
def attach_handler(handler: logging.Handler, formatter: logging.Formatter | None = None) -> Iterator[None]:
    handler.setFormatter(formatter or _JsonLineFormatter())
    handler.addFilter(lambda record: hasattr(record, EVENT_ATTRIBUTE))
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
        return json.dumps(vars(record)[EVENT_ATTRIBUTE], default=str)


def _seconds_since(started: float) -> float:
    return round(time.monotonic() - started, 3)
