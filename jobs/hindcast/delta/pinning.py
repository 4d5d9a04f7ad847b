"""Every table in one version, as long as a block lasts and whoever commits to them meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from hindcast.delta.tables import PINNED
from hindcast.errors import BusyError

PATIENCE = 60.0
"""So many seconds `pin_versions` waits for a moment at which nobody commits."""


@contextmanager
def pin_versions(open_tables: Callable[[], object]) -> Iterator[None]:
    """Let the block read tables, and nothing but read: each in one version.

    Those that `open_tables` opens (`tables.opened`) are pinned as all of them were at one moment, any other one as it
    is when the block opens it first. BusyError if there is no such moment for `PATIENCE`. Not passed on to threads.
    """
    pinned: dict[str, DeltaTable | None] = {}
    token = PINNED.set(pinned)
    try:
        end = time.monotonic() + PATIENCE
        open_tables()
        while any(_find_version(path) != (found and found.version()) for path, found in pinned.items()):
            if time.monotonic() > end:
                raise BusyError(
                    f"tables are committed to all the time, for {PATIENCE:.0f} s now",
                    mend="wait until the run that does so has ended",
                )
            pinned.clear()
            open_tables()
        yield
    finally:
        PINNED.reset(token)


def _find_version(path: str) -> int | None:
    """Return the version that a table has now; None where there is none."""
    try:
        return DeltaTable(path).version()
    except TableNotFoundError:
        return None
