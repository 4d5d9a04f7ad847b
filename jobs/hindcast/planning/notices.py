"""Notices that a process rewrites files of a pipeline's tables beside runs: maintenance, trimming, upgrades, repairs.

Delta lets such writers and runs pass each other. A forgetting cannot let them pass: it deletes every file that no table
has yet, and what another process has read before may be written back after. So whoever rewrites posts a notice, and
only then looks whether a forgetting is under way; a forgetting plans its run, and only then looks for notices. One of
the two always sees the other.

A notice is a file under `<pipeline>/_notices`, written anew every few seconds. One that stays the same for `DEAD`
seconds is a dead process's: no two clocks are compared.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from deltalake.exceptions import DeltaError

from hindcast.delta import making, tables
from hindcast.delta.folder import Folder
from hindcast.errors import BusyError
from hindcast.planning import journal

BEAT = 5.0
"""After so many seconds a notice is written anew."""
DEAD = 420.0
"""A notice that has not changed for so many seconds is taken away. A Spark Connect server drops an operation whose
client is gone after 300.
"""


@contextmanager
def post_notice(warehouse: str, pipeline: str, what: str) -> Iterator[None]:
    """Post a notice while the block lasts; raise BusyError, before it, if a forgetting is under way.

    `what`: what is done, for the person who waits for it. Where there is no run yet nothing is posted.
    """
    books = journal.table(warehouse, pipeline)
    if tables.opened(books) is None:
        yield
        return
    making.refuse_read_only(books)
    folder, name = Folder(f"{warehouse.rstrip('/')}/{pipeline}"), f"{_UNDER}/{uuid4().hex}.json"
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            with suppress(OSError, DeltaError):  # once more after a while: there is time until DEAD
                _write(folder, name, what)

    _write(folder, name, what)
    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        refuse_forgetting(warehouse, pipeline, what)
        yield
    finally:
        ended.set()
        beating.join()
        with suppress(FileNotFoundError):
            folder.remove(name)


def refuse_forgetting(warehouse: str, pipeline: str, what: str) -> None:
    """Raise BusyError if a forgetting is under way: files must not be rewritten now."""
    for run in journal.runs(warehouse, pipeline):
        # One that was stopped purges once more after that, before the next run gives it up.
        if not run.finished and "forgets" in run.plan:
            mend = (
                "repeat it when that has ended: if it was killed, by the same hindcast forget; "
                "if a gate stopped it, by the next run"
            )
            found = f"{what} stops here: run {run.number} ({run.run_id}) forgets something of the same tables"
            raise BusyError(found, where=pipeline, mend=mend)


def wait_for_others(warehouse: str, pipeline: str) -> None:
    """Wait until no notice is left; take away those of dead processes. Say on stderr what is waited for."""
    folder, seen, said = Folder(f"{warehouse.rstrip('/')}/{pipeline}"), dict[str, tuple[bytes, float]](), set[str]()
    while True:
        there = {name: text for file in folder.files(_UNDER) if (text := _read(folder, name := file.path)) is not None}
        if not there:
            return
        for name, text in there.items():
            if name not in seen or seen[name][0] != text:
                seen[name] = text, time.monotonic()
            elif time.monotonic() - seen[name][1] > DEAD:
                with suppress(FileNotFoundError):
                    folder.remove(name)
            if name not in said:
                said.add(name)
                what = json.loads(text)["what"]
                print(f"hindcast: {pipeline}: waiting until {what} stops, which goes on beside", file=sys.stderr)
        time.sleep(_PAUSE)


_UNDER = "_notices"
_PAUSE = 0.5


def _write(folder: Folder, name: str, what: str) -> None:
    folder.write(name, json.dumps({"what": what, "beat": uuid4().hex}).encode())


def _read(folder: Folder, name: str) -> bytes | None:
    try:
        return folder.read(name)
    except FileNotFoundError:  # it was taken away meanwhile
        return None
