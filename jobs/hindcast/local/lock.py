"""The lock of those who start and stop recorded processes: `up`, `down` and the supervisor, one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hindcast import rights
from hindcast.errors import PlatformError
from hindcast.settings import Settings


def records(settings: Settings) -> Path:
    """Return the folder in which processes are recorded (process.py)."""
    return settings.var / "run"


@contextlib.contextmanager
def attempt(settings: Settings, holder: str) -> Iterator[str | None]:
    """Take the lock for the block if it is free, in the name of `holder`; yield None then, else who has it.

    That is empty for a moment while somebody takes it, or gives it back. PlatformError where this user may not write.
    """
    with _open(records(settings) / "lock") as file:
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


def _open(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        place = next(it for it in (path, *path.absolute().parents) if os.access(it, os.F_OK))
        raise PlatformError(**rights.explain(error, place, "written")) from None
