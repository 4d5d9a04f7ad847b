"""Files that others may have written, read in bounded time: regular ones, of so many bytes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeAlias


class ExcessError(ValueError):
    """Something too large or too deep: what was found, how to fix it, and the line if it is known."""

    def __init__(self, found: str, fix: str, line: int | None = None) -> None:
        self.found, self.fix, self.line = found, fix, line
        super().__init__(f"{found}; {fix}")


FileState: TypeAlias = tuple[int, int, int] | None
"""The times of change and the size of a file; None if it cannot be examined, as a dangling link."""


def find_state(path: Path) -> FileState:
    """Return the state of a file, which differs once the file, its permissions or its target have changed."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # also for a name that no file can have
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


def read_text(path: Path, most: int) -> str:
    """Return the text of a file; raise ExcessError if it is too large or not a regular file, which might never end.

    A link out of its folder raises ExcessError too: errors quote the file, and whoever may write in the folder need
    not be allowed to read what the link leads to. Raise OSError if it cannot be opened, UnicodeDecodeError if it is
    not UTF-8.
    """
    _refuse_odd_file(path.stat())
    target = path.resolve()
    if not target.is_relative_to(path.parent.resolve()):
        raise ExcessError("is a link to a file outside its folder", "put the file itself in the folder, not a link")
    return _read_regular_file(target, most, os.O_NOFOLLOW)


def read_linked_text(path: Path, most: int) -> str:
    """Return the text of a file as `read_text` does, wherever links lead: the path itself has to be trusted."""
    _refuse_odd_file(path.stat())
    return _read_regular_file(path, most)


def _read_regular_file(path: Path, most: int, flags: int = 0) -> str:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags), "rb") as file:
        _refuse_odd_file(os.fstat(file.fileno()))
        content = file.read(most + 1)
    if len(content) > most:
        raise ExcessError(
            f"has more than {most:,} bytes", "split it: a file should contain only what its pipeline needs"
        )
    return content.decode("utf-8")


def _refuse_odd_file(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ExcessError("is not a regular file", "use a regular file, not a folder, a pipe or a device")
