"""Who else on this machine can read what we write: the umask of our processes, and folders that were there before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hindcast.settings import Settings


@contextmanager
def limit_access(settings: Settings) -> Iterator[None]:
    """Let this process, and what it starts, write files with the umask of the settings while the block lasts."""
    before = os.umask(settings.umask)
    try:
        yield
    finally:
        os.umask(before)


def is_open(path: Path, umask: int) -> bool:
    """Can others reach `path`, which is there, by rights that `umask` denies to new files?

    They cannot where a folder above it is closed to them.
    """
    return all(_denied(place, umask) for place in (path, *path.parents))


def close(folder: Path, umask: int) -> bool:
    """Take those rights from a folder of ours, which closes all that is in it; return whether there were any.

    A folder that is shared by its nature, as /tmp, is left alone, and so is another user's.
    """
    found = folder.stat()
    if not found.st_mode & umask or found.st_mode & stat.S_ISVTX or found.st_uid != os.geteuid():
        return False
    folder.chmod(stat.S_IMODE(found.st_mode) & ~umask)
    return True


def _denied(path: Path, umask: int) -> int:
    """Return the rights to `path` that `umask` denies."""
    return path.stat().st_mode & umask
