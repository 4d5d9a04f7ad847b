"""The process that restarts parts of Airflow that died: `up` starts it with them, and `down` ends it first.

It restarts only what is recorded, so nothing that `down` has stopped. It never waits for the lock: while `up` or `down`
works, dead parts are their concern. A part that dies again after `MAX_RESTARTS` restarts within `RESTART_WINDOW`
seconds is left alone until `up` has started it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime

from hindcast.common.errors import HindcastError
from hindcast.common.settings import Settings, read_settings
from hindcast_local import airflow, lock, process
from hindcast_local.process import Process

NAME = "supervisor"
MAX_RESTARTS, RESTART_WINDOW = 5, 600.0
INTERVAL = 2.0
"""How often the recorded processes are checked, in seconds."""


def start_supervisor(settings: Settings) -> Process:
    """Start the supervisor, in the same environment as the parts of Airflow, and return its process."""
    return process.start_process(
        NAME,
        airflow.base_url(settings),
        [sys.executable, "-P", "-m", "hindcast_local.supervisor"],
        log=settings.logs / f"{NAME}.log",
        env={**os.environ, **settings.environment},
        cwd=lock.records_folder(settings),
    )


class Supervisor:
    """Restarts the recorded parts of Airflow, until it is asked to end or is no longer recorded itself."""

    def __init__(self, settings: Settings, ending: threading.Event) -> None:
        self.settings = settings
        self.ending = ending
        self.restarts: defaultdict[str, list[float]] = defaultdict(list)
        self.abandoned: set[str] = set()

    def run(self) -> None:
        """Restart dead parts at each `INTERVAL`, and log it, until the end."""
        _log(f"watching {', '.join(airflow.PARTS)}")
        while not self.ending.wait(INTERVAL):
            if not self.restart_dead_parts():
                _log("ends: `up` or `down` has removed its record")
                return

    def restart_dead_parts(self) -> bool:
        """Restart what died, unless `up` or `down` has the lock; return False if this process is no longer recorded."""
        if self._is_recorded() and not self._find_dead():
            return True
        with lock.try_lock(self.settings, NAME) as holder:
            if holder is not None:
                return True
            if not self._is_recorded():
                return False
            for dead in self._find_dead():
                try:
                    self._restart(dead)
                except (HindcastError, OSError) as error:
                    _log(f"{dead.name} cannot be started: {error}")
        return True

    def _is_recorded(self) -> bool:
        return any(part.name == NAME and part.pid == os.getpid() for part in self._load_records())

    def _find_dead(self) -> list[Process]:
        """Return the parts that died, without the abandoned ones."""
        parts = [part for part in self._load_records() if part.name in airflow.PARTS]
        dead = [part for part in parts if not process.is_running(part)]
        for name in self.abandoned - {part.name for part in dead}:
            self.abandoned.remove(name)
            self.restarts.pop(name, None)
        return [part for part in dead if part.name not in self.abandoned]

    def _restart(self, dead: Process) -> None:
        """Stop the descendants of a dead part, start it and record it; if it died too often, abandon it."""
        recent = [moment for moment in self.restarts[dead.name] if moment > time.monotonic() - RESTART_WINDOW]
        if len(recent) >= MAX_RESTARTS:
            self.abandoned.add(dead.name)
            _log(
                f"{dead.name} ended again after {MAX_RESTARTS} restarts within {RESTART_WINDOW / 60:g} minutes, "
                f"and is left as it is: read {dead.log}, then `make up`"
            )
            return
        self.restarts[dead.name] = [*recent, time.monotonic()]
        process.stop_processes([dead])
        if self.ending.is_set():
            return
        started = airflow.start_part(self.settings, dead.name)
        try:
            process.write_record(lock.records_folder(self.settings), started)
        except BaseException:
            process.stop_processes([started])  # without a record `down` would not find it
            raise
        _log(f"{dead.name} (process {dead.pid}) had ended: started again as process {started.pid}")

    def _load_records(self) -> list[Process]:
        return process.load_records(lock.records_folder(self.settings))


def main() -> int:
    """Run the supervisor until a signal comes, and return 0; a part that is being started then is recorded first."""
    ending = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: ending.set())
    Supervisor(read_settings(), ending).run()
    return 0


def _log(text: str) -> None:
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
