"""Permissions: explains why this user cannot read or write a file: which folder is closed, whose it is, the fix."""

from __future__ import annotations

import errno
import os
from pathlib import Path

DENIED_MESSAGE = os.strerror(errno.EACCES)


def explain_error(error: OSError, path: Path, done: str = "read") -> dict[str, str]:
    """Return why a file or folder cannot be `done` (read, written), as arguments of a HindcastError.

    `where` is the first folder on the way to it that is closed to this user, if there is one.
    """
    if not isinstance(error, PermissionError):
        problem = f"cannot be {done}: {error.strerror or error}"
        return {"found": problem, "where": str(path), "fix": "check the path, and what is there"}
    place = find_closed_folder(path)
    try:
        owner = f"it belongs to uid {place.stat().st_uid}, "
    except OSError:
        owner = ""
    right = "read" if done == "read" else "write to"
    problem = f"cannot be {done}: {DENIED_MESSAGE} ({owner}this is uid {os.geteuid()})"
    fix = f"chown -R {os.geteuid()} {place}, or let uid {os.geteuid()} {right} it; and run Hindcast as one user"
    return {"found": problem, "where": str(place), "fix": fix}


def find_closed_folder(path: Path) -> Path:
    """Return the first folder on the way to a path that this user may not enter; the path itself if there is none."""
    way = [folder for folder in reversed(path.absolute().parents) if not os.access(folder, os.X_OK)]
    return way[0] if way else path
