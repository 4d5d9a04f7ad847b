"""How much of the API server the reports of a pipeline may take: whoever may write them must not slow other pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from hindcast.common.errors import PlatformError
from hindcast.common.processor_time import ExpiredError, limit_processor_time

SECONDS, ALL_SECONDS, SPAN = 0.5, 1.5, 30.0
"""The time of a processor for one report, and for all reports of a pipeline within a span of so many seconds. One of a
thousand gates and 500 tables takes 0.05 s, and a page reads 20.
"""


class SlowReportError(ValueError):
    """A report takes too long to read."""


class _Spent:
    """The time of a processor that the reports of a pipeline have taken since a moment."""

    def __init__(self) -> None:
        self.since, self.seconds = time.monotonic(), 0.0


_SPENT: dict[str, _Spent] = {}
_LOCK = Lock()


@contextmanager
def limit_reading(pipeline: str) -> Iterator[None]:
    """Raise SlowReportError if the block, which reads a report, takes too long; before it, raise PlatformError if the
    reports of the pipeline have taken too much lately.
    """
    with _LOCK:
        for name in [name for name, spent in _SPENT.items() if time.monotonic() - spent.since > SPAN]:
            del _SPENT[name]
        spent = _SPENT.setdefault(pipeline, _Spent())
    if spent.seconds > ALL_SECONDS:
        raise PlatformError(
            f"this report was not read: reading those of the pipeline took more than {ALL_SECONDS:g} s",
            where=pipeline,
            fix=f"load the page again in {SPAN:g} seconds; hindcast report {pipeline} shows the report now",
        )
    start = time.thread_time()
    try:
        with limit_processor_time(SECONDS):
            yield
    except ExpiredError:
        raise SlowReportError(f"takes more than {SECONDS:g} s of a processor to read") from None
    finally:
        spent.seconds += time.thread_time() - start
