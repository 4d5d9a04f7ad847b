"""Compiled loops over records (docs/adr/0015-compiled.md), and the folder that caches their machine code."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]

P = ParamSpec("P")
R = TypeVar("R")
NOTHING = -1
"""Stands for null in arrays of integers: no key, no value, no time."""


def _find_cache_folder() -> str:
    """Return a folder for the machine code of exactly these sources; "" if there is none that is safe to use.

    A folder per version of the sources, because numba does not notice that a called function has changed. numba
    unpickles what it finds there, which executes code: a folder that another user could have written to is not used.
    """
    here = Path(__file__)
    loops = sorted([here, *here.parents[1].glob("streams/*.py"), *here.parents[1].glob("engine/*.py")])
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in loops))
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hindcast"
    for folder in (home, Path(tempfile.gettempdir()) / f"hindcast-{os.geteuid()}"):
        cache = folder / "compiled" / sources.hexdigest()[:16]
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if all(_make_private(place) for place in (folder, cache.parent, cache)) and os.access(cache, os.W_OK):
                return str(cache)
        except OSError:
            continue
    return ""


def _make_private(folder: Path) -> bool:
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


numba.config.CACHE_DIR = os.environ.get("NUMBA_CACHE_DIR") or _find_cache_folder()  # type: ignore[attr-defined]


def compile_loop(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as machine code, compiled when it is first called. It takes numbers and arrays.

    The code is cached on disk; without a folder for that, each process compiles it again.
    """
    has_folder = bool(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
    return cast("Callable[P, R]", numba.njit(cache=has_folder)(function))


@compile_loop
def ensure_room(rows: Integers, used: int) -> Integers:
    """Return a table of integers with the first `used` rows and room for at least one more."""
    if used < rows.shape[0]:  # rule: a full table grows
        return rows
    wider = np.empty((2 * rows.shape[0] + 16, rows.shape[1]), np.int64)
    wider[:used] = rows[:used]  # rule: a table that grows keeps its rows
    return wider
