"""Loops over records, compiled: what a live topology does one record after the other (docs/adr/0015-compiled.md), and
the sweeps of kernels.
"""

from __future__ import annotations

import hashlib
import os
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
    """A folder for the machine code of these very sources: numba does not see that a called function has changed."""
    here = Path(__file__)
    loops = sorted([here, *here.parent.glob("emits/*.py"), *here.parent.glob("kernels/*.py")])
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in loops))
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hindcast"
    for folder in (home, Path(tempfile.gettempdir()) / f"hindcast-{os.getuid()}"):
        its_own = folder / "compiled" / sources.hexdigest()[:16]
        try:
            its_own.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(its_own, os.W_OK):
            return str(its_own)
    return ""


numba.config.CACHE_DIR = os.environ.get("NUMBA_CACHE_DIR") or _cache()  # type: ignore[attr-defined]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function as machine code, made when it is first called and kept on disk. It takes numbers and arrays."""
    return cast("Callable[P, R]", numba.njit(cache=True)(function))


@compiled
def room(rows: Any, used: int) -> Any:
    """A table of integers that has room for one more row after the first `used`."""
    if used < rows.shape[0]:
        return rows
    wider = np.empty((2 * rows.shape[0] + 16, rows.shape[1]), np.int64)
    wider[:used] = rows[:used]
    return wider
