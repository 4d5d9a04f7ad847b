"""Who else on this machine can read what we write: the umask of our processes, folders that were there before, files of
secrets.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hindcast.errors import PlatformError
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


def read_secret(path: Path, remedy: str) -> str:
    """Return the text of a file of ours that holds secrets.

    PlatformError, with this remedy, if another user owns the file, or can read or write it: then others may know the
    secrets already, or may have chosen them.
    """
    with path.open(encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid():
            message = f"the file of secrets belongs to uid {found.st_uid}"
            raise PlatformError(message, where=str(path), mend=f"others may know it: {remedy}")
        if others := found.st_mode & 0o066:
            can = "write" if others & 0o022 else "read"
            message = f"other users can {can} the file of secrets"
            raise PlatformError(message, where=str(path), mend=f"others may know it: {remedy}")
        return file.read()


def write_secret(path: Path, text: str) -> None:
    """Write the file anew, so that its owner alone can read it, whole for everybody who reads it meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def _denied(path: Path, umask: int) -> int:
    """Return the rights to `path` that `umask` denies."""
    return path.stat().st_mode & umask
