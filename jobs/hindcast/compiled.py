"""Loops over records, compiled: what a live topology does one record after the other (docs/adr/0015-compiled.md), and
the sweeps of kernels.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import numba
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]

P = ParamSpec("P")
R = TypeVar("R")
NOTHING = -1
"""No key, no value, no time: what an array of integers holds instead of null."""


def _cache() -> str:
    """A folder for the machine code of these very sources: numba does not see that a called function has changed.

    numba unpickles what it finds there, which executes code: a folder in which another user could have put something is
    not used. Empty where there is none that can be.
    """
    here = Path(__file__)
    loops = sorted([here, *here.parent.glob("emits/*.py"), *here.parent.glob("kernels/*.py")])
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in loops))
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hindcast"
    for folder in (home, Path(tempfile.gettempdir()) / f"hindcast-{os.geteuid()}"):
        its_own = folder / "compiled" / sources.hexdigest()[:16]
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if all(_make_private(place) for place in (folder, its_own.parent, its_own)) and os.access(its_own, os.W_OK):
                return str(its_own)
        except OSError:
            continue
    return ""


def _make_private(folder: Path) -> bool:
    """Make a folder that nobody else can use, if it is not there; return whether nobody else could have written to it.

    What others could merely read is closed.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        return False
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return True


numba.config.CACHE_DIR = os.environ.get("NUMBA_CACHE_DIR") or _cache()  # type: ignore[attr-defined]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function as machine code, made when it is first called and kept on disk. It takes numbers and arrays.

    Where there is no folder to keep it in, each process makes it anew.
    """
    kept = bool(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
    return cast("Callable[P, R]", numba.njit(cache=kept)(function))


@compiled
def room(rows: Any, used: int) -> Any:
    """A table of integers that has room for one more row after the first `used`."""
    if used < rows.shape[0]:
        return rows
    wider = np.empty((2 * rows.shape[0] + 16, rows.shape[1]), np.int64)
    wider[:used] = rows[:used]
    return wider
