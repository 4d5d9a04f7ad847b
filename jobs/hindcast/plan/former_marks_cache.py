"""What was found out about former contracts (former_marks.py), and how long finding it out may take.

Other pipelines' pages look at the former contracts of a pipeline too. So a page has one budget for all of them, those
of a pipeline have one for all pages together, and what was found is kept until something that it depends on changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TypeAlias

MarksByTable: TypeAlias = Mapping[str, frozenset[str]]

SECONDS, PAGE_SECONDS = 5.0, 0.5
"""The time of a processor that former contracts which were not looked at before may take: in a call, and in a page."""

ALL_PAGES_SECONDS = 20.0
"""The same for the former contracts of a pipeline in all pages together, until its contract changes. What was not found
out by then stays hidden on pages. Two hundred contracts of 150 views take 12 s.
"""

MAX_CONTRACTS = 1_000
"""How many former contracts of a pipeline are looked at, the newest; the others count as if no time was left."""

_MAX_PIPELINES, _MAX_FOUND, _MAX_SPENT = 1_000, 4_000, 50


class Budget:
    """The time that finding out may still take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @property
    def is_spent(self) -> bool:
        """Return whether no time is left."""
        return self.seconds < 0


_PAGE: ContextVar[Budget | None] = ContextVar("hindcast_former_marks_page", default=None)


@contextmanager
def limit_page() -> Iterator[None]:
    """Let all that looks at former contracts in the block, which builds a page, share one budget."""
    token = _PAGE.set(Budget(PAGE_SECONDS))
    try:
        yield
    finally:
        _PAGE.reset(token)


class PipelineCache:
    """What was found out about the former contracts of a pipeline.

    `found`: by the digests of the former contract and of all that it depends on. `spent`: the time that pages took, by
    the digest of the pipeline's contract.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[str, MarksByTable] = OrderedDict()
        self._spent: OrderedDict[str, float] = OrderedDict()
        self._lock = Lock()

    def find(self, key: str) -> MarksByTable | None:
        """Return what was found under a key; None if nothing was."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def keep(self, key: str, found: MarksByTable) -> MarksByTable:
        """Keep what was found, and return it."""
        with self._lock:
            self._found[key] = found
            while len(self._found) > _MAX_FOUND:
                self._found.popitem(last=False)
        return found

    def has_time(self, today: str, budget: Budget) -> bool:
        """Return whether one more former contract may be looked at; `today`: the digest of the pipeline's contract."""
        is_page = _PAGE.get() is not None
        return not budget.is_spent and not (is_page and self._spent.get(today, 0.0) > ALL_PAGES_SECONDS)

    def spend(self, today: str, budget: Budget, seconds: float) -> None:
        """Take the time that a former contract took from the budgets."""
        budget.seconds -= seconds
        if _PAGE.get() is None:
            return
        with self._lock:
            self._spent[today] = self._spent.pop(today, 0.0) + seconds
            while len(self._spent) > _MAX_SPENT:
                self._spent.popitem(last=False)


def open_cache(pipeline: str) -> PipelineCache:
    """Return the cache of a pipeline."""
    with _LOCK:
        cache = _CACHES.setdefault(pipeline, PipelineCache())
        _CACHES.move_to_end(pipeline)
        while len(_CACHES) > _MAX_PIPELINES:
            _CACHES.popitem(last=False)
        return cache


def start_budget() -> Budget:
    """Return the budget of the page that is being built, or a new one of a call."""
    return _PAGE.get() or Budget(SECONDS)


_CACHES: OrderedDict[str, PipelineCache] = OrderedDict()
_LOCK = Lock()
