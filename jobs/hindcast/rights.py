"""Files and folders that this user may not read: which one on the way it is, whose, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

DENIED = os.strerror(errno.EACCES)


def explain(error: OSError, path: Path, done: str = "read") -> dict[str, str]:
    """Return why a file or folder cannot be read (or `written`), where, and what to do: a HindcastError's arguments.

    Where a folder on the way to it is closed to this user, that folder is where.
    """
    if not isinstance(error, PermissionError):
        found = f"cannot be {done}: {error.strerror or error}"
        return {"found": found, "where": str(path), "mend": "check the path, and what lies there"}
    place = find_closed(path)
    try:
        owner = f"it belongs to uid {place.stat().st_uid}, "
    except OSError:
        owner = ""
    right = "read" if done == "read" else "write to"
    found = f"cannot be {done}: {DENIED} ({owner}this is uid {os.geteuid()})"
    mend = f"chown -R {os.geteuid()} {place}, or let uid {os.geteuid()} {right} it; and run Hindcast as one user"
    return {"found": found, "where": str(place), "mend": mend}


def find_closed(path: Path) -> Path:
    """Return the first folder on the way to a path that this user may not enter; the path itself if there is none."""
    way = [folder for folder in reversed(path.absolute().parents) if not os.access(folder, os.X_OK)]
    return way[0] if way else path
