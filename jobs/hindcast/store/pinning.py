"""Reading every table in one version while a block lasts, whoever commits to them meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from hindcast.common.errors import BusyError
from hindcast.store.tables import PINNED_TABLES

PATIENCE_SECONDS = 60.0
"""The seconds that `pin_versions` waits for a moment at which nobody commits."""


@contextmanager
def pin_versions(open_tables: Callable[[], object]) -> Iterator[None]:
    """Pin every table to one version while the block lasts; the block may only read.

    Tables that `open_tables` opens (`tables.open_table`) are pinned as all of them were at one moment; any other one as
    it is when the block first opens it. Raises BusyError if there is no such moment for `PATIENCE_SECONDS`. Not passed
    on to threads.
    """
    pinned: dict[str, DeltaTable | None] = {}
    token = PINNED_TABLES.set(pinned)
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        open_tables()
        while any(_find_version(path) != (opened and opened.version()) for path, opened in pinned.items()):
            if time.monotonic() > end:
                raise BusyError(
                    f"other runs have committed to the tables without a pause for {PATIENCE_SECONDS:.0f} s",
                    fix="wait until the run that commits has ended",
                )
            pinned.clear()
            open_tables()
        yield
    finally:
        PINNED_TABLES.reset(token)


def _find_version(path: str) -> int | None:
    """Return the current version of a table; None if it does not exist."""
    try:
        return DeltaTable(path).version()
    except TableNotFoundError:
        return None
