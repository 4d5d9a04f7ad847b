"""A limit of time for matching one value by a user's pattern, in Spark's Python workers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
MAX_SECONDS = 5.0
"""The most time for one value."""

TOO_SLOW = "a value took more than"
"""How the message of a TimeoutError begins."""


def limit_time(judge: Callable[[S], T]) -> Callable[[S], T]:
    """Return a function that raises TimeoutError if it takes more than `MAX_SECONDS`.

    It goes to Spark's workers by value, as `judge` has to: they need not have this package.
    """
    seconds, too_slow = MAX_SECONDS, TOO_SLOW

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"{too_slow} {seconds:.0f} seconds to match; simplify the patterns")

    def judge_in_time(value: S) -> T:
        signal.signal(signal.SIGALRM, stop)  # Python's matcher of regular expressions looks for signals
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return judge(value)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return judge_in_time
