"""Makes .venv: Python packages, JVM packages, a Java runtime where there is none, Spark's settings.

    python3 scripts/setup.py        what `make setup` runs

Each part has a stamp, the hash of what it was made from: a part is made again when that changes or when what it made
is gone, and costs nothing otherwise. Standard library only, and any Python 3.7 can read it: an old one is told so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setup_parts import Part

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
NEEDED_GIB = 4


def main() -> int:
    """Exit code 0 when everything is there."""
    use_a_suitable_python()
    from setup_parts import Place, SetupError, parts

    root = Path(__file__).resolve().parent.parent
    try:
        place = Place(root, dict(os.environ))
        made = bring_up(place.venv, parts(place))
        place.finish()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"setup: {error.strerror or error}: {error.filename or root}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; `make setup` goes on from here", file=sys.stderr)
        return 130
    if made:
        print(f"Set up in {root / '.venv'}")
    return 0


def bring_up(venv: Path, parts: list[Part]) -> int:
    """Make the parts that are stale when their turn comes, in order; return how many they were.

    One part can remove another: where `uv pip sync` installs other packages, it removes Hindcast's own.
    """
    if not any(is_stale(venv, part) for part in parts):
        return 0
    made = 0
    with alone(venv.parent):
        for number, part in enumerate(parts, 1):
            if not is_stale(venv, part):
                continue
            if part.name == "venv":
                check_disk(venv.parent)
            stamp_of(venv, part).unlink(missing_ok=True)
            started = time.monotonic()
            print(f"[{number}/{len(parts)}] {part.saying}", flush=True)
            part.make()
            stamp_of(venv, part).parent.mkdir(exist_ok=True)
            stamp_of(venv, part).write_text(digest(part.made_from), encoding="utf-8")
            print(f"      {time.monotonic() - started:.0f} s", flush=True)
            made += 1
    return made


def is_stale(venv: Path, part: Part) -> bool:
    """Was this part never made, made from something else, or lost since?"""
    try:
        stamp = stamp_of(venv, part).read_text(encoding="utf-8")
    except OSError:
        return True
    return stamp != digest(part.made_from) or not part.is_there()


def stamp_of(venv: Path, part: Part) -> Path:
    return venv / "stamps" / part.name


def digest(made_from: list[str]) -> str:
    return hashlib.sha256("\0".join(made_from).encode()).hexdigest()


def use_a_suitable_python() -> None:
    """Go on in another Python of this machine when this one is too old or too new; say what to do if there is none."""
    if OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        return
    for minor in range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1):
        other = shutil.which(f"python3.{minor}")
        if other:
            os.execv(other, [other, *sys.argv])  # noqa: S606  # the same program, in another Python
    sys.exit(python_message(sys.version.split()[0], sys.executable))


def python_message(version: str, executable: str) -> str:
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST_PYTHON, NEWEST_PYTHON))
    return (
        f"setup: Python {version} ({executable}) cannot run Hindcast, which needs Python {oldest} to {newest}\n"
        f"  what to do: install one (Debian 12, Ubuntu 24.04 have it: apt-get install python3 python3-venv),\n"
        f"  or name one that is not on PATH: make setup PYTHON=/path/to/python{oldest}"
    )


def check_disk(root: Path) -> None:
    from setup_parts import SetupError

    free = shutil.disk_usage(root).free / 2**30
    if free < NEEDED_GIB:
        raise SetupError(
            f"{free:.1f} GiB are free at {root}, and .venv needs {NEEDED_GIB}\n"
            "  what to do: make room, or move the checkout to a larger disk"
        )


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """One set-up at a time for a checkout; a second one waits and then finds everything there."""
    import fcntl

    (root / "var").mkdir(exist_ok=True)
    with (root / "var" / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another `make setup` of this checkout", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
