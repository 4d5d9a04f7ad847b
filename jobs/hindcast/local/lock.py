"""The lock of those who start and stop recorded processes: `up`, `down` and the supervisor, one at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from hindcast.settings import Settings


def records(settings: Settings) -> Path:
    """Return the folder in which processes are recorded (process.py)."""
    return settings.var / "run"


@contextlib.contextmanager
def attempt(settings: Settings, holder: str) -> Iterator[str | None]:
    """Take the lock for the block if it is free, in the name of `holder`; yield None then, else who has it.

    That is empty for a moment while somebody takes it, or gives it back.
    """
    folder = records(settings)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+", encoding="utf-8") as file:
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
