"""The process that starts parts of Airflow again which died: `up` leaves it beside them, and `down` ends it first.

What it starts again is what is recorded, so it brings nothing back that `down` has stopped. It never waits for the
lock: while `up` or `down` are at work, what died is theirs. A part that dies again after `RESTARTS` restarts within so
many seconds is left as it is, until `up` has started it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from datetime import UTC, datetime

from hindcast.errors import HindcastError
from hindcast.local import airflow, lock, process
from hindcast.local.process import Process
from hindcast.settings import Settings, settings

NAME = "supervisor"
RESTARTS, WITHIN = 5, 600.0
INTERVAL = 2.0
"""Seconds between two looks at what is recorded."""


def start(settings: Settings) -> Process:
    """Start the supervisor, in the environment in which `up` has started what it looks after."""
    return process.start(
        NAME,
        airflow.url(settings),
        [sys.executable, "-P", "-m", "hindcast.local.supervisor"],
        log=settings.logs / f"{NAME}.log",
        env={**os.environ, **settings.environment},
        cwd=lock.records(settings),
    )


class Supervisor:
    """Looks after the recorded parts of Airflow, until it is told to end or is not recorded itself any more."""

    def __init__(self, settings: Settings, ending: threading.Event) -> None:
        self.settings = settings
        self.ending = ending
        self.restarts: defaultdict[str, list[float]] = defaultdict(list)
        self.abandoned: set[str] = set()

    def run(self) -> None:
        """Look after them, and say so in the log."""
        _log(f"looks after {', '.join(airflow.PARTS)}")
        while not self.ending.wait(INTERVAL):
            if not self.look():
                _log("ends: `up` or `down` has taken it off the records")
                return

    def look(self) -> bool:
        """Start again what died, unless `up` or `down` are at work; return False if we are not recorded any more."""
        if self._is_recorded() and not self._find_dead():
            return True
        with lock.attempt(self.settings, NAME) as holder:
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
        return any(one.name == NAME and one.pid == os.getpid() for one in self._load())

    def _find_dead(self) -> list[Process]:
        """Return the parts that died, but those that are left as they are."""
        parts = [one for one in self._load() if one.name in airflow.PARTS]
        dead = [one for one in parts if not process.is_running(one)]
        for name in self.abandoned - {one.name for one in dead}:
            self.abandoned.remove(name)
            self.restarts.pop(name, None)
        return [one for one in dead if one.name not in self.abandoned]

    def _restart(self, dead: Process) -> None:
        """Stop what is left of a part, start it and record it; if it died too often, leave it as it is."""
        recent = [moment for moment in self.restarts[dead.name] if moment > time.monotonic() - WITHIN]
        if len(recent) >= RESTARTS:
            self.abandoned.add(dead.name)
            _log(
                f"{dead.name} ended again after {RESTARTS} restarts within {WITHIN / 60:g} minutes, "
                f"and is left as it is: read {dead.log}, then `make up`"
            )
            return
        self.restarts[dead.name] = [*recent, time.monotonic()]
        process.stop([dead])
        if self.ending.is_set():
            return
        started = airflow.start(self.settings, dead.name)
        try:
            process.save(lock.records(self.settings), started)
        except BaseException:
            process.stop([started])  # `down` would not find it
            raise
        _log(f"{dead.name} (process {dead.pid}) had ended: started again as process {started.pid}")

    def _load(self) -> list[Process]:
        return process.load(lock.records(self.settings))


def main() -> int:
    """Look after Airflow's parts until a signal comes. A part that is being started then is recorded first."""
    ending = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: ending.set())
    Supervisor(settings(), ending).run()
    return 0


def _log(text: str) -> None:
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
