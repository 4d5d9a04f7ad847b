"""Compiled loops over records (docs/adr/0015-compiled.md), and the folder that caches their machine code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import numba
import numpy as np

from hindcast.common.private_folders import locate_temporary, make_private

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
    for folder in (home, locate_temporary()):
        cache = folder / "compiled" / sources.hexdigest()[:16]
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if all(make_private(place) for place in (folder, cache.parent, cache)) and os.access(cache, os.W_OK):
                return str(cache)
        except OSError:
            continue
    return ""


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


def load_compiler() -> None:
    """Load what the first call of a loop loads, half a second's worth, before this process is forked."""
    ensure_room(np.empty((1, 1), np.int64), 0)
