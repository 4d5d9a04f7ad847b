"""Commits made once, only while their run may make them, and retried while they conflict with others.

Delta refuses a commit where another writer has committed under the same transaction identifier since the transaction
began, and where another writer has removed what it read (OPTIMIZE does). Then nothing was written.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from hindcast.common.errors import RunError

MAX_TRIES = 8
"""How often a commit that conflicts with others is tried."""

_CONFLICT = re.compile(
    r"DELTA_CONCURRENT_\w+|DELTA_(METADATA|PROTOCOL)_CHANGED|io\.delta\.\w*\.?(Concurrent|MetadataChanged)\w*Exception"
    r"|RemoteFileChangedException"  # a conditional write was refused (common/object_store.py)
)


def commit_once(
    commit: Callable[[], object], published: Callable[[], int], run: int, after: int | None, where: str
) -> bool:
    """Make a commit of run `run`, unless it was made before, and return whether this call made it.

    Tries again while the commit conflicts with others. `published` returns the number of the run that committed last,
    which must be `after` (not checked if None): the change was computed from what that run left. Raises RunError if
    another run has committed since, and what `guard_commits` raises.
    """
    tried = 0
    while True:
        tried += 1
        last = published()
        if last >= run:
            return False
        if after is not None:
            refuse_other_commit(last, after, run, where)
        check_guard()
        try:
            commit()
        except (PySparkException, Py4JJavaError, CommitFailedError) as error:
            if tried == MAX_TRIES or not is_conflict(error):
                raise
            _wait_before_retry(tried)
        else:
            return True


def refuse_other_commit(last: int, after: int, run: int, where: str) -> None:
    """Raise RunError if not `after`, but another run committed `last` to the table that run `run` has read."""
    if last != after:
        raise RunError(
            f"run {last} has written to the table since run {run} read it",
            where=where,
            fix="retry the run; if it is refused again: hindcast abandon, and run again",
        )


@contextmanager
def guard_commits(refuse: Callable[[], object]) -> Iterator[None]:
    """Let `refuse`, which raises if the run has ended, be called before each attempt to commit in the block.

    Not passed on to threads.
    """
    token = _GUARD.set(refuse)
    try:
        yield
    finally:
        _GUARD.reset(token)


@contextmanager
def add_commit_guard(refuse: Callable[[], object]) -> Iterator[None]:
    """Let `refuse` be called before each attempt to commit in the block, after the guards around the block."""
    outer = _GUARD.get()

    def refuse_any() -> None:
        if outer is not None:
            outer()
        refuse()

    with guard_commits(refuse_any):
        yield


def check_guard() -> None:
    """Raise what `guard_commits` raises; for a commit that takes a while to prepare after `commit_once` has checked."""
    if (refuse := _GUARD.get()) is not None:
        refuse()


_GUARD: ContextVar[Callable[[], object] | None] = ContextVar("GUARD", default=None)


def commit_repeatable(commit: Callable[[], object]) -> None:
    """Make a commit that may be made twice; try again while it conflicts with others.

    Raises what `guard_commits` raises.
    """
    for tried in range(1, MAX_TRIES + 1):
        check_guard()
        try:
            commit()
        except (PySparkException, Py4JJavaError, CommitFailedError) as error:
            if tried == MAX_TRIES or not is_conflict(error):
                raise
            _wait_before_retry(tried)
        else:
            return


def is_conflict(error: Exception) -> bool:
    """Return whether a commit failed only because another one came first."""
    return isinstance(error, CommitFailedError) or _CONFLICT.search(str(error)) is not None


def _wait_before_retry(tried: int) -> None:
    time.sleep(random.uniform(0, 0.2 * 2**tried))  # noqa: S311  # no secret
