"""A commit made once, and tried again while it conflicts with others.

Delta refuses a commit where another writer has committed under the same transaction identifier since the transaction
began, and where another writer has removed what it read (OPTIMIZE does). Then nothing was written.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from hindcast.errors import RunError

TRIES = 8
"""How often a commit is tried that conflicts with others."""

_CONFLICT = re.compile(
    r"DELTA_CONCURRENT_\w+|DELTA_(METADATA|PROTOCOL)_CHANGED|io\.delta\.\w*\.?(Concurrent|MetadataChanged)\w*Exception"
    r"|RemoteFileChangedException"  # a conditional write was refused (object_store.py)
)


def once(commit: Callable[[], object], published: Callable[[], int], run: int, after: int | None, where: str) -> bool:
    """Makes a commit of run `run`, unless it was made before; tries again while it conflicts with others.

    Returns whether this call has made it.

    `published`: the number of the run that committed last. It must be `after` (not asked if None): the change was
    computed from what that run left. RunError if another run has committed since.
    """
    tried = 0
    while True:
        tried += 1
        last = published()
        if last >= run:
            return False
        if after is not None and last != after:
            raise RunError(
                f"run {last} has written to the table since run {run} read it",
                where=where,
                mend="retry the run; if it is refused again: hindcast abandon, and run again",
            )
        try:
            commit()
        except (PySparkException, Py4JJavaError, CommitFailedError) as error:
            if tried == TRIES or not conflicting(error):
                raise
            _wait(tried)
        else:
            return True


def repeatable(commit: Callable[[], object]) -> None:
    """Makes a commit that may be made twice; tries again while it conflicts with others."""
    for tried in range(1, TRIES + 1):
        try:
            commit()
        except (PySparkException, Py4JJavaError, CommitFailedError) as error:
            if tried == TRIES or not conflicting(error):
                raise
            _wait(tried)
        else:
            return


def conflicting(error: Exception) -> bool:
    """Whether a commit failed only because another one came first."""
    return isinstance(error, CommitFailedError) or _CONFLICT.search(str(error)) is not None


def _wait(tried: int) -> None:
    time.sleep(random.uniform(0, 0.2 * 2**tried))  # noqa: S311  # no secret
