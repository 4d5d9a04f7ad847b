"""The lease that a posted notice (plan/notices.py) is to its holder: as long as others see it change, it is his.

Others remove the notice of a process that stood still for too long. If that process goes on (SIGCONT, a machine that
wakes up), it must find out before it writes or deletes anything.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from uuid import uuid4

from hindcast.common.errors import RunError
from hindcast.store.folder import WarehouseFolder

FOLDER = "_notices"
"""The folder of the notices, in that of the pipeline."""

LOST_AFTER = 420.0
"""A holder that could not write its notice for so many seconds has lost it: `notices.DEAD_AFTER`, counted from before
it was written, while others count from when they read it.
"""


class Lease:
    """A posted notice, as its holder has it; posted by the constructor."""

    def __init__(self, folder: WarehouseFolder, pipeline: str, what: str) -> None:
        self.path = f"{FOLDER}/{uuid4().hex}.json"
        self._folder, self._pipeline, self._what, self._token = folder, pipeline, what, uuid4().hex
        self._is_lost = False
        self._lock = threading.Lock()  # the beat and the checks come from two threads
        self._renewed = read_clock()
        self._write()

    def renew(self) -> None:
        """Write the notice again, unless it is lost: then it is not there any more, and stays away."""
        with self._lock:
            if not self._look():
                began = read_clock()
                self._write()
                if self._is_late():  # it stood still in between, and may have written one anew that was removed
                    self._is_lost = True
                    with suppress(FileNotFoundError):
                        self._folder.remove(self.path)
                else:
                    self._renewed = began

    def refuse_lost(self) -> None:
        """Raise RunError if the notice is lost."""
        with self._lock:
            if self._look():
                raise RunError(
                    f"{self._what} stops here: this process stood still for so long that others may have taken it for "
                    "dead and gone on",
                    where=self._pipeline,
                    fix="start it again; what it had done stays, and is not done twice",
                )

    def _look(self) -> bool:
        """Return whether the notice is lost, and remember it. The clock is read last: reading a file may take long."""
        if not self._is_lost:
            text = read_notice(self._folder, self.path)
            self._is_lost = text is None or self._token.encode() not in text or self._is_late()
        return self._is_lost

    def _is_late(self) -> bool:
        return read_clock() - self._renewed > LOST_AFTER

    def _write(self) -> None:
        text = json.dumps({"what": self._what, "token": self._token, "beat": uuid4().hex})
        self._folder.write(self.path, text.encode())


def read_notice(folder: WarehouseFolder, path: str) -> bytes | None:
    """Return the text of a notice; None if it was removed."""
    try:
        return folder.read(path)
    except FileNotFoundError:
        return None


def read_clock() -> float:
    """Return the seconds of a clock that also counts while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # macOS's monotonic one counts
