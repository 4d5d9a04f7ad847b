"""Processes that outlive the command that started them and are stopped by another one.

A started process leads a session of its own and has a mark in its environment, which its children inherit. So all its
descendants can be found later, even if a child started a session or lost its parent, and nothing else is ever touched.
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

from hindcast.common import permissions
from hindcast.common.errors import PlatformError

_MARK = "HINDCAST_PROCESS"


@dataclass(frozen=True)
class Process:
    """A started process.

    `where` is the address at which it serves, `born` distinguishes it from a later process with the same `pid`, `mark`
    is what its children inherit, `log` the file with its output.
    """

    name: str
    where: str
    pid: int
    born: str
    mark: str
    log: str


def start_process(
    name: str, where: str, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path
) -> Process:
    """Start a process in the background and return it; its output is appended to `log`. PlatformError on failure."""
    mark = uuid.uuid4().hex
    log.parent.mkdir(parents=True, exist_ok=True)
    cwd.mkdir(parents=True, exist_ok=True)
    # SPT_NOENV: a process that sets its title must not overwrite its environment, which has the mark
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
            f"{name} cannot be started: {error.strerror}", where=command[0], fix="run `make setup`"
        ) from None
    popen.returncode = 0  # another command stops it: no warning at the end of this process
    return Process(name, where, popen.pid, _birth_mark(popen.pid), mark, str(log))


def is_running(process: Process) -> bool:
    """Return True if this very process is alive, and not only another one with its pid."""
    try:
        return _birth_mark(process.pid) == process.born and psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def stop_processes(processes: Sequence[Process], *, patience: float = 20.0) -> None:
    """Stop these processes and all their descendants: SIGINT to each, then SIGTERM to what is left, then SIGKILL.

    SIGINT gets three seconds: after that Airflow's triggerer only waits for a child that ignores it. SIGTERM gets
    `patience` seconds. PlatformError names what cannot be stopped.
    """
    for process in processes:
        if is_running(process):
            _send_signal(process.pid, signal.SIGINT)
    left = _wait_for_end(processes, 3.0)
    for sign, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        for pid in left:
            _send_signal(pid, sign)
        left = _wait_for_end(processes, seconds) if left else left
    if left:
        raise PlatformError(
            f"processes {', '.join(map(str, left))} do not end", fix="look at them with `ps` and kill them"
        )


def find_descendants(processes: Sequence[Process]) -> list[int]:
    """Return the pids of these processes and of their descendants, as far as they are alive."""
    marks = {process.mark for process in processes}
    leaders = {process.pid for process in processes if is_running(process)}
    return [p.pid for p in psutil.process_iter() if _is_descendant(p, marks, leaders)]


def read_log_tail(process: Process, lines: int = 15) -> str:
    """Return the last lines of a process's log, indented; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        text = Path(process.log).read_text(encoding="utf-8", errors="replace")
        return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:])
    return ""


def write_record(folder: Path, process: Process) -> None:
    """Record a process in `folder`, for `load_records`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{process.name}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(process), indent=1), encoding="utf-8")
    new.replace(path)


def load_records(folder: Path) -> list[Process]:
    """Return the processes recorded in `folder`, running or not; unreadable records are left out.

    PlatformError if this user may not read the folder.
    """
    processes = []
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PlatformError(**permissions.explain_error(error, folder)) from None
    for path in (path for path in paths if path.suffix == ".json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            processes.append(Process(**json.loads(path.read_text(encoding="utf-8"))))
    return processes


def remove_record(folder: Path, process: Process) -> None:
    """Remove the record of a process."""
    (folder / f"{process.name}.json").unlink(missing_ok=True)


def _heed_interrupts() -> None:
    """Restore SIGINT, which background jobs of a shell ignore, and their children too: `stop_processes` needs it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_descendant(process: psutil.Process, marks: set[str], leaders: set[int]) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getsid(process.pid) in leaders or process.environ().get(_MARK) in marks
    return False


def _wait_for_end(processes: Sequence[Process], seconds: float) -> list[int]:
    """Wait until nothing of the processes is left, at most so many seconds, and return the pids that are."""
    _wait_until(lambda: not find_descendants(processes), seconds)
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return find_descendants(processes)


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


def _send_signal(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sign)


def _birth_mark(pid: int) -> str:
    """Return when a process was born, unambiguous even if the clock changes or the machine restarts."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return f"{boot}/{stat.rpartition(')')[2].split()[19]}"
    with contextlib.suppress(psutil.Error):
        return f"{psutil.Process(pid).create_time():.0f}"
    return "gone"
