"""Private files: keeps other users of this machine out: umask, existing folders, files of secrets."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings


@contextmanager
def limit_access(settings: Settings) -> Iterator[None]:
    """Set the umask of the settings for this process, and processes that it starts, during the block."""
    before = os.umask(settings.umask)
    try:
        yield
    finally:
        os.umask(before)


def is_open_to_others(path: Path, umask: int) -> bool:
    """Return whether others can reach an existing path by rights that `umask` denies to new files.

    They cannot if a folder above it is closed to them.
    """
    return all(_find_denied_rights(place, umask) for place in (path, *path.parents))


def close_folder(folder: Path, umask: int) -> bool:
    """Remove the rights that `umask` denies from a folder of ours; return whether it had any.

    That closes all that is in it. Shared folders like /tmp and folders of other users are left alone.
    """
    status = folder.stat()
    if not status.st_mode & umask or status.st_mode & stat.S_ISVTX or status.st_uid != os.geteuid():
        return False
    folder.chmod(stat.S_IMODE(status.st_mode) & ~umask)
    return True


def read_secret(path: Path, remedy: str) -> str:
    """Return the text of a file of ours that holds secrets.

    PlatformError, with `remedy` as its fix, if another user owns the file or can read or write it: then others may know
    the secrets, or may have chosen them.
    """
    with path.open(encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid():
            message = f"the file of secrets belongs to uid {status.st_uid}"
            raise PlatformError(message, where=str(path), fix=f"others may know it: {remedy}")
        if others := status.st_mode & 0o066:
            can = "write" if others & 0o022 else "read"
            message = f"other users can {can} the file of secrets"
            raise PlatformError(message, where=str(path), fix=f"others may know it: {remedy}")
        return file.read()


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read; a reader meanwhile sees the old or the new text, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def _find_denied_rights(path: Path, umask: int) -> int:
    """Return the rights to `path` that `umask` denies."""
    return path.stat().st_mode & umask
