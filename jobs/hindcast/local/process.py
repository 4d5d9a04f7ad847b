"""Processes that outlive the command that started them, and are stopped by another.

A started process is the leader of a session of its own and carries a mark in its environment, which its children
inherit. So all that came of it can be found later, also where a child made itself a session or lost its parent, and
nothing else is ever touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from hindcast import rights
from hindcast.errors import PlatformError

_MARK = "HINDCAST_PROCESS"


@dataclass(frozen=True)
class Process:
    """A process that was started.

    `where` is the address at which it serves, `born` tells it from a later process of the same `pid`, `mark` is what
    its children inherit, `log` the file with its output.
    """

    name: str
    where: str
    pid: int
    born: str
    mark: str
    log: str


def start(name: str, where: str, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path) -> Process:
    """Start a process in the background, its output appended to `log`; PlatformError when it cannot be."""
    mark = uuid.uuid4().hex
    log.parent.mkdir(parents=True, exist_ok=True)
    cwd.mkdir(parents=True, exist_ok=True)
    # SPT_NOENV: a process that gives itself a title must not write it over its environment, where the mark is
    marked = {**env, _MARK: mark, "SPT_NOENV": "1"}
    try:
        with log.open("ab") as output:
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=marked,
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_heed_interrupts,  # noqa: PLW1509  # we start processes from one thread only
            )
    except OSError as error:
        raise PlatformError(
            f"{name} cannot be started: {error.strerror}", where=command[0], mend="run `make setup`"
        ) from None
    popen.returncode = 0  # it is not ours to wait for: silences the warning at the end of this process
    return Process(name, where, popen.pid, _born(popen.pid), mark, str(log))


def is_running(process: Process) -> bool:
    """Is this very process alive? One that has only taken over its pid is not."""
    try:
        return _born(process.pid) == process.born and psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def stop(processes: Sequence[Process], *, patience: float = 20.0) -> None:
    """Stop these and all that came of them: SIGINT to each, then SIGTERM to what is left of all, then SIGKILL.

    Three seconds are between the first two: then Airflow's triggerer still waits for a child that does not listen.
    `patience` is how many seconds SIGTERM gets. Returns when nothing is left. PlatformError names what cannot be
    stopped.
    """
    for process in processes:
        if is_running(process):
            _send(process.pid, signal.SIGINT)
    left = _wait(processes, 3.0)
    for sign, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        for pid in left:
            _send(pid, sign)
        left = _wait(processes, seconds) if left else left
    if left:
        raise PlatformError(
            f"processes {', '.join(map(str, left))} do not end", mend="look at them with `ps`, and end them yourself"
        )


def family(processes: Sequence[Process]) -> list[int]:
    """The pids of what is alive of these processes and of everything that they started."""
    marks = {process.mark for process in processes}
    leaders = {process.pid for process in processes if is_running(process)}
    return [p.pid for p in psutil.process_iter() if _belongs(p, marks, leaders)]


def tail(process: Process, lines: int = 15) -> str:
    """The last lines of its log."""
    with contextlib.suppress(OSError):
        text = Path(process.log).read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:])
    return ""


def save(folder: Path, process: Process) -> None:
    """Record it in `folder`, for `load`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{process.name}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(process), indent=1), encoding="utf-8")
    new.replace(path)


def load(folder: Path) -> list[Process]:
    """What was recorded in `folder`, whether it still runs or not; a record that cannot be read counts as none.

    PlatformError if this user may not look into the folder.
    """
    found = []
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PlatformError(**rights.explain(error, folder)) from None
    for path in (path for path in paths if path.suffix == ".json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Process(**json.loads(path.read_text(encoding="utf-8"))))
    return found


def forget(folder: Path, process: Process) -> None:
    """Remove its record."""
    (folder / f"{process.name}.json").unlink(missing_ok=True)


def _heed_interrupts() -> None:
    """A shell lets its background jobs ignore SIGINT, and children inherit that: `stop` would wait in vain."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _belongs(process: psutil.Process, marks: set[str], leaders: set[int]) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getsid(process.pid) in leaders or process.environ().get(_MARK) in marks
    return False


def _wait(processes: Sequence[Process], seconds: float) -> list[int]:
    """What is left of them after at most so long."""
    _until(lambda: not family(processes), seconds)
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return family(processes)


def _until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


def _send(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sign)


def _born(pid: int) -> str:
    """When a process was born, in a form that neither a changed clock nor a restart of the machine makes ambiguous."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return f"{boot}/{stat.rpartition(')')[2].split()[19]}"
    with contextlib.suppress(psutil.Error):
        return f"{psutil.Process(pid).create_time():.0f}"
    return "gone"
