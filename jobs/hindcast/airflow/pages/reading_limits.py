"""How much of the API server reading journals, reports and logs may take: whoever may write those of a pipeline must
not slow other pages. What was read is kept, so that a page that is loaded again goes on with the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Lock

import duckdb

from hindcast.common.errors import PlatformError, TableError
from hindcast.common.processor_time import ExpiredError, limit_processor_time
from hindcast.plan.journal_rows import UnreadJournalError
from hindcast.query.explain_limits import EngineLimitError, open_limited_engine
from hindcast.store import table_cache
from hindcast.store.duckdb_reader import EngineFactory

REPORT_SECONDS = 0.5
"""The time of a processor for one report. One of a thousand gates and 500 tables takes 0.05 s, and a page reads 20."""

REPORTS_SECONDS, JOURNAL_SECONDS, SPAN = 1.5, 10.0, 30.0
"""The time of a processor for all reports of a pipeline, and for its journal, within a span of so many seconds. A
journal of a year of hourly runs, of ten topics with twelve partitions each, takes 8 s, once.
"""

PAGE_SECONDS, OVERVIEW_SECONDS = 5.0, 2.0
"""The time of a processor that a page takes for journals and reports, and the overview of all pipelines."""

JOURNAL_MEMORY, KEPT_MEMORY = 2 << 30, 3 << 30
"""Roughly the most bytes of memory of one journal, and of all that are kept. Hourly runs of three topics, with three
partitions each, take 70 MB a year; of ten topics with twelve partitions each, 500 MB.
"""

WAIT_SECONDS = 2.0
"""How long a page waits for another one that reads the same journal."""


OPENING_SECONDS, QUICK_SECONDS = 1.5, 0.05
"""The time of opening the tables of a pipeline's journal within the span: the log of one is read in 0.1 s. And the
least time that the overview takes for each before it gives more to one.
"""


LOG_SECONDS, LOGS_SECONDS, LOG_MEMORY = 2.0, 4.0, 320 << 20
"""The time that a page may read what a run ingested of a topic, and the logs of a pipeline within the span; and the
memory of that.
"""


class SlowReportError(ValueError):
    """A report takes too long to read."""


class _Spent:
    """The time of a processor that reading has taken of a pipeline since a moment."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.reports = self.journal = self.opening = self.logs = 0.0


class Allowance:
    """The time of a processor that reading may take, and has taken."""

    def __init__(self, most: float) -> None:
        self.most, self.spent = most, 0.0
        self.has_unread = False
        """True if a journal was not opened, or not read to its end, because that takes longer than its share."""

    @property
    def is_spent(self) -> bool:
        """True if nothing more may be read."""
        return self.spent >= self.most


_SPENT: dict[str, _Spent] = {}
_SLOW: dict[str, float] = {}
"""When journals were opened last that took longer than their share of the overview, by pipeline."""
_LOCK = Lock()
_PAGE: ContextVar[Allowance | None] = ContextVar("allowance of a page", default=None)


@contextmanager
def limit_page(seconds: float) -> Iterator[Allowance]:
    """Limit what the block reads, in all threads that it starts, instead of the limit of a block around it.

    Also the time of opening each table: to so many seconds, or to `OPENING_SECONDS` if that is more.
    """
    allowance = Allowance(seconds)
    token = _PAGE.set(allowance)
    try:
        with table_cache.watch_opening(partial(_limit_opening_time, max(seconds, OPENING_SECONDS))):
            yield allowance
    finally:
        _PAGE.reset(token)


def rank_pipeline(pipeline: str) -> tuple[float, float]:
    """Return what sorts pipelines: those whose journals open quickly first, then those that were tried long ago; of
    these those of which reading took least lately.
    """
    return _SLOW.get(pipeline, -math.inf), measure_lately(pipeline)


def measure_lately(pipeline: str) -> float:
    """Return how many seconds reading has taken of a pipeline within the span."""
    spent = _SPENT.get(pipeline)
    return spent.reports + spent.journal + spent.opening + spent.logs if spent is not None else 0.0


@contextmanager
def limit_report(pipeline: str) -> Iterator[None]:
    """Raise SlowReportError if the block, which reads a report, takes too long; before it, raise PlatformError if
    this page, or the reports of the pipeline, have taken too much lately.
    """
    spent, page = _find_spent(pipeline), _find_allowance()
    if page.is_spent:
        found = "this report was not read yet: the page has taken long enough"
        raise PlatformError(found, where=pipeline, fix="load the page again: it goes on with the rest")
    if spent.reports > REPORTS_SECONDS:
        raise PlatformError(
            f"this report was not read: reading those of the pipeline took more than {REPORTS_SECONDS:g} s",
            where=pipeline,
            fix=f"load the page again in {SPAN:g} seconds; hindcast report {pipeline} shows the report now",
        )
    start = time.thread_time()
    try:
        with limit_processor_time(REPORT_SECONDS):
            yield
    except ExpiredError:
        raise SlowReportError(f"takes more than {REPORT_SECONDS:g} s of a processor to read") from None
    finally:
        seconds = time.thread_time() - start
        spent.reports += seconds
        page.spent += seconds


@contextmanager
def limit_log(pipeline: str) -> Iterator[EngineFactory]:
    """Give what opens the engines by which the block reads the log of a topic; raise PlatformError if that takes too
    long, or too much memory, or if the page or the logs of the pipeline have taken too much lately.
    """
    spent, page = _find_spent(pipeline), _find_allowance()
    if page.is_spent:
        found = "a log was not read yet: the page has taken long enough"
        raise PlatformError(found, where=pipeline, fix="load the page again: it goes on with the rest")
    if spent.logs > LOGS_SECONDS:
        found = f"a log was not read: reading those of the pipeline took more than {LOGS_SECONDS:g} s"
        fix = f"load the page again in {SPAN:g} seconds; hindcast ledger {pipeline} lists what runs replayed"
        raise PlatformError(found, where=pipeline, fix=fix)
    start = time.monotonic()  # of the clock: DuckDB reads in threads of its own
    try:
        yield partial(open_limited_engine, seconds=LOG_SECONDS, memory=LOG_MEMORY)
    except EngineLimitError:
        found = f"a log was not read: it takes more than {LOG_SECONDS:g} s"
        raise PlatformError(found, where=pipeline, fix=f"hindcast ledger {pipeline} lists what runs replayed") from None
    except duckdb.OutOfMemoryException:
        found = f"a log was not read: it takes more than {LOG_MEMORY >> 20} MiB of memory"
        raise PlatformError(found, where=pipeline, fix=f"hindcast ledger {pipeline} lists what runs replayed") from None
    finally:
        spent.logs += time.monotonic() - start
        page.spent += time.monotonic() - start


@contextmanager
def limit_opening(pipeline: str, seconds: float | None = None) -> Iterator[None]:
    """Count the time that the block takes to open tables; raise PlatformError before it opens one if the page, or that
    of the pipeline lately, has taken too much.

    Also if opening one takes more than `seconds`, or did so before, and note that with the page. Without them, or if
    they are more than `OPENING_SECONDS`, raise TableError after these.
    """
    spent, page = _find_spent(pipeline), _find_allowance()

    @contextmanager
    def watch(place: str) -> Iterator[None]:
        if page.is_spent:
            raise _explain_unopened(pipeline)
        if spent.opening > OPENING_SECONDS:
            raise PlatformError(
                f"the runs were not read: opening their table took more than {OPENING_SECONDS:g} s",
                where=pipeline,
                fix=f"hindcast runs {pipeline} shows them, or what is wrong with their table",
            )
        if seconds is not None and seconds < OPENING_SECONDS and pipeline in _SLOW:
            page.has_unread = True
            raise _explain_unopened(pipeline)
        start, expired = time.monotonic(), False  # of the clock: the log is read in threads of delta-rs
        try:
            if seconds is None or seconds >= OPENING_SECONDS:
                with _limit_opening_time(OPENING_SECONDS, place):
                    yield
            else:
                with limit_processor_time(seconds):
                    yield
        except ExpiredError:
            page.has_unread = expired = True
            raise _explain_unopened(pipeline) from None
        finally:
            taken = time.monotonic() - start
            spent.opening += taken
            page.spent += taken
            with _LOCK:
                _SLOW.pop(pipeline, None)
                if expired or taken > OPENING_SECONDS:
                    _SLOW[pipeline] = start

    with table_cache.watch_opening(watch):
        yield


def _explain_unopened(pipeline: str) -> PlatformError:
    found = "the runs were not read yet: the page has taken long enough"
    return PlatformError(found, where=pipeline, fix="load the page again: it goes on with the rest")


@contextmanager
def _limit_opening_time(seconds: float, place: str) -> Iterator[None]:
    """Raise TableError if the block, which opens the table at a place, takes too long to look at its log."""
    try:
        with limit_processor_time(seconds):
            yield
    except ExpiredError:
        found = f"was not opened: looking at its log takes more than {seconds:g} s of a processor"
        fix = f"load the page again in {table_cache.REFUSED_SECONDS:g} seconds: it goes on with the rest"
        raise TableError(found, where=place, fix=fix) from None


@contextmanager
def watch_journal(pipeline: str) -> Iterator[Callable[[], None]]:
    """Give a function that raises UnreadJournalError once the page, or reading the journal, has taken too long; raise
    it before the block if it has already.
    """
    spent, page, last = _find_spent(pipeline), _find_allowance(), time.thread_time()

    def measure() -> None:
        nonlocal last
        now = time.thread_time()
        spent.journal += now - last
        page.spent += now - last
        last = now

    def check() -> None:
        measure()
        if page.is_spent:
            page.has_unread = True
            raise UnreadJournalError(
                "the runs were not all read yet: it takes longer than a page may",
                where=pipeline,
                fix="load the page again: it goes on with the rest",
            )
        if spent.journal > JOURNAL_SECONDS:
            raise UnreadJournalError(
                f"the runs were not all read yet: reading them took more than {JOURNAL_SECONDS:g} s",
                where=pipeline,
                fix=f"load the page again in {SPAN:g} seconds; hindcast runs {pipeline} shows them now",
            )

    check()
    try:
        yield check
    finally:
        measure()


def _find_allowance() -> Allowance:
    """Return what the page may still read; everything outside a page."""
    return _PAGE.get() or Allowance(math.inf)


def _find_spent(pipeline: str) -> _Spent:
    """Return what was spent on a pipeline within the span."""
    with _LOCK:
        for name in [name for name, spent in _SPENT.items() if time.monotonic() - spent.since > SPAN]:
            del _SPENT[name]
        return _SPENT.setdefault(pipeline, _Spent())
