"""The lock for starting and stopping recorded processes, held by one of `up`, `down` and the supervisor at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hindcast.common import permissions
from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings


def records_folder(settings: Settings) -> Path:
    """Return the folder in which processes are recorded (hindcast_local/process.py)."""
    return settings.var / "run"


@contextlib.contextmanager
def try_lock(settings: Settings, holder: str) -> Iterator[str | None]:
    """Hold the lock for the block, in the name of `holder`, and yield None; if it is taken, yield its holder's name.

    The name is empty for a moment while the lock is being taken or released. PlatformError if this user may not write.
    """
    with _open_lock_file(records_folder(settings) / "lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read()
            return
        file.truncate(0)
        file.write(holder)
        file.flush()
        try:
            yield None
        finally:
            file.truncate(0)


def _open_lock_file(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        existing = next(p for p in (path, *path.absolute().parents) if os.access(p, os.F_OK))
        raise PlatformError(**permissions.explain_error(error, existing, "written")) from None
