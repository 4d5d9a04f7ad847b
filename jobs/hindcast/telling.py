"""What each step of a run tells of itself: an event when it begins, and one when it has ended, waits or has failed.

    step begun    {"pipeline": "restaurant", "run": 7, "run_id": "cli__2026-01-05", "step": "build", "table": "bills"}
    step ended    the same with {"seconds": 2.1, "opened": 3, "closed": 1, "corrected": 1}

Outside of Airflow events go to Python's logging, as the logger `hindcast.steps`; with `HINDCAST_LOG=json` to stderr, a
line of JSON each. In a task of Airflow's they go to its log as fields (structlog), and become its metrics (gauges.py).

No event has a value of a record: they tell names, counts, times, and of an error its kind alone.
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
from typing import Any

from hindcast.errors import BusyError
from hindcast.settings import Settings

Event = dict[str, Any]
"""`event` (what happened), `level`, `timestamp` (ISO 8601, UTC), and the fields of the step."""

EVENTS = "HINDCAST_EVENTS"
"""The variable with the place of the file in which a step under spark-submit keeps its events for its task."""


@contextmanager
def step(name: str, pipeline: str, run: int | None = None, table: str | None = None) -> Iterator[None]:
    """A step of a run: whatever comes of it is told with its `seconds` and what was noted meanwhile."""
    given = {"pipeline": pipeline, "run": run, "step": name, "table": table}
    noted: Event = {field: value for field, value in given.items() if value is not None}
    before, started = _noted.set(noted), time.monotonic()
    try:
        yield
    except BaseException as error:
        noted |= {"seconds": _since(started), "error": type(error).__name__}
        if isinstance(error, BusyError):
            _tell("step waits", "info", noted)
        else:
            _tell("step failed", "error", noted)
        raise
    else:
        _tell("step ended", "info", noted | {"seconds": _since(started)})
    finally:
        _noted.reset(before)


def begun(**fields: Any) -> None:
    """Tells that the step has begun, now that these fields are known too."""
    note(**fields)
    _tell("step begun", "info", _noted.get() or {})


def note(**fields: Any) -> None:
    """Adds fields to what the step under way will tell; nothing outside of one."""
    noted = _noted.get()
    if noted is not None:
        noted |= fields


@contextmanager
def to(listener: Callable[[Event], None]) -> Iterator[None]:
    """Events of this block go to a listener instead of Python's logging."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


@contextmanager
def lines(now: Settings, place: str | None = None) -> Iterator[None]:
    """Events of this block as lines of JSON: on stderr if the settings ask for it, and in the file at `place`."""
    with ExitStack() as stack:
        if now.log == "json":
            stack.enter_context(_handling(logging.StreamHandler(sys.stderr)))
        if place:
            stack.enter_context(_handling(logging.FileHandler(place, encoding="utf-8")))
        yield


def kept(place: Path) -> list[Event]:
    """The events in a file that `lines` wrote; none if there is no file."""
    return [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()] if place.exists() else []


def pass_on(event: Event) -> None:
    """Gives an event to who listens. A listener that fails stops nothing: the step is what matters."""
    try:
        _listener.get()(event)
    except Exception:  # noqa: BLE001  # whatever a backend of metrics or logs raises
        _LOG.warning("an event could not be told: %s", event["event"], exc_info=True)


def of_report(report: Mapping[str, Any]) -> Event:
    """What the step that completes a run notes of its report.

    `records`: by topic the count of each fate, of those that have one. `late`: by topic. `held`: by table how many keys
    are held back, of tables whose gates can.
    """
    records: dict[str, dict[str, int]] = {}
    for name, topic in report["topics"].items():
        counts = records.setdefault(name, {})
        for part in topic["partitions"]:
            for fate, n in part["fates"].items():
                counts[fate] = counts.get(fate, 0) + n
    tables = report["tables"].items()
    held = {
        name: table.get("held", {}).get("keys", 0)
        for name, table in tables
        if "held" in table or any(gate["on_failure"] == "quarantine" for gate in table["gates"])
    }
    late = {name: topic["late"] for name, topic in report["topics"].items() if topic["late"]}
    return {"records": records, "late": late, "held": held}


_LOG = logging.getLogger("hindcast.steps")
_LOG.addHandler(
    logging.NullHandler()
)  # who has configured no logging is not told on stderr what fails: an error says it
_noted: ContextVar[Event | None] = ContextVar("noted", default=None)


def _logged(event: Event) -> None:
    fields = {name: value for name, value in event.items() if name not in _FRAME}
    text = " ".join([event["event"], *(f"{name}={value}" for name, value in fields.items())])
    _LOG.log(logging.getLevelNamesMapping()[event["level"].upper()], "%s", text, extra={"told": event})


_FRAME = ("timestamp", "level", "event")
_listener: ContextVar[Callable[[Event], None]] = ContextVar("listener", default=_logged)


def _tell(what: str, level: str, noted: Event) -> None:
    pass_on({"timestamp": datetime.now(UTC).isoformat(), "level": level, "event": what, **noted})


@contextmanager
def _handling(handler: logging.Handler) -> Iterator[None]:
    handler.setFormatter(_Lines())
    handler.addFilter(lambda record: hasattr(record, "told"))
    before = _LOG.level
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.setLevel(before)
        handler.close()


class _Lines(logging.Formatter):
    """An event as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(vars(record)["told"], default=str)


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)
