"""What pages have made of single runs, as long as the journal's reader keeps the run; bounded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from hindcast.plan.runs import Run

T = TypeVar("T")


class _Kept(NamedTuple, Generic[T]):
    run: weakref.ref[Run]
    result: T
    size: int


class KeptResults(Generic[T]):
    """Results by run and key, whose sizes have a sum of at most `most`; those used last are kept."""

    def __init__(self, most: int) -> None:
        self.most, self._lock = most, Lock()
        self._kept: dict[tuple[Hashable, ...], _Kept[T]] = {}

    def find(self, run: Run, key: tuple[Hashable, ...], make: Callable[[], T], measure: Callable[[T], int]) -> T:
        """Return what is kept of a run, else what `make` returns, which is kept unless it is larger than all may be."""
        with self._lock:
            if (known := self._kept.pop(key, None)) is not None and known.run() is run:
                self._kept[key] = known
                return known.result
        result = make()
        with self._lock:
            self._kept[key] = _Kept(weakref.ref(run), result, measure(result))
            total = sum(kept.size for kept in self._kept.values())
            while total > self.most:
                total -= self._kept.pop(next(iter(self._kept))).size
        return result

    def __len__(self) -> int:
        """Return how many results are kept."""
        return len(self._kept)
