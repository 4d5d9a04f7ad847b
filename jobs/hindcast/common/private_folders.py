"""Folders that no other user of the machine can open."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def make_private(folder: Path) -> bool:
    """Create a private folder unless it exists; return whether nobody else could have written to it.

    A folder that others could only read is closed to them.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return False
    if status.st_mode & 0o077:
        folder.chmod(0o700)
    return True


def locate_temporary() -> Path:
    """Return where this user's folder of Hindcast's temporary files is, if `make_private` can make it."""
    return Path(tempfile.gettempdir()) / f"hindcast-{os.geteuid()}"


def find_temporary() -> Path | None:
    """Return a private folder for temporary files: the user's, or a new one where somebody else has taken its name.

    None if there is no place for temporary files.
    """
    with suppress(OSError):
        if make_private(folder := locate_temporary()):
            return folder
    with suppress(OSError):
        return Path(tempfile.mkdtemp(prefix="hindcast-"))
    return None
