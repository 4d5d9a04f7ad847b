"""Notices that a process rewrites files of a pipeline's tables during runs: maintenance, trimming, upgrades, repairs.

Delta lets such writers and runs work at the same time. A forget run cannot: it deletes every file that no table has
yet, and another process could write back what it read before. So a rewriter posts a notice and only then checks for a
forget run; a forget run plans itself and only then checks for notices. One of the two always sees the other.

A notice is a file under `<pipeline>/_notices`, written again every few seconds. One that does not change for
`DEAD_AFTER` seconds belongs to a dead process: no clocks of two machines are compared. It is a lease: a process that
stood still for so long and goes on has lost it (plan/lease.py), and may write and delete nothing more.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta

from deltalake.exceptions import DeltaError

from hindcast.common.errors import BusyError, show_briefly
from hindcast.contract.types import format_duration
from hindcast.plan import journal
from hindcast.plan.lease import FOLDER, Lease, read_notice
from hindcast.store import commit_once, table_creation, tables
from hindcast.store.folder import WarehouseFolder
from hindcast.store.replacements import refuse_replacing

BEAT = 5.0
"""A notice is written again after this many seconds."""
DEAD_AFTER = 420.0
"""A notice that has not changed for this many seconds is removed. A Spark Connect server drops an operation 300 seconds
after its client is gone.
"""


@contextmanager
def post_notice(warehouse: str, pipeline: str, what: str) -> Iterator[str]:
    """Post a notice while the block lasts and yield its path; raise BusyError before it if a forget run is under way.

    `what`: what is done, for the person who waits for it. Nothing is posted if the pipeline has no run yet.
    """
    runs_table = journal.runs_table(warehouse, pipeline)
    if tables.open_table(runs_table) is None:
        yield ""
        return
    table_creation.refuse_read_only(runs_table)
    with _keep_posted(warehouse, pipeline, what) as own:
        refuse_replacing(warehouse, pipeline)
        refuse_forgetting(warehouse, pipeline, what)
        yield own


@contextmanager
def post_alone(warehouse: str, pipeline: str, what: str) -> Iterator[None]:
    """Do as `post_notice`; also raise BusyError before the block while another process does the same.

    The notice of a dead one is waited for until it expires.
    """
    with post_notice(warehouse, pipeline, what) as own:
        if own:  # else the pipeline has no run yet, and perhaps no folder
            _wait_for_notices(warehouse, pipeline, lambda name, other: name != own and other == what, what)
        yield


@contextmanager
def post_forgetting(warehouse: str, pipeline: str) -> Iterator[None]:
    """Post a notice while the block works for a forget run; wait before it until all others are gone.

    Raise BusyError if another process works for a forget run of the pipeline.
    """
    with _keep_posted(warehouse, pipeline, _FORGETTING) as own:
        wait_for_others(warehouse, pipeline, own)
        yield


@contextmanager
def _keep_posted(warehouse: str, pipeline: str, what: str) -> Iterator[str]:
    """Post a notice, write it again while the block lasts, and remove it; yield its path.

    Commits in the block are guarded by `refuse_lost_notice`.
    """
    folder, ended = _open_folder(warehouse, pipeline), threading.Event()
    lease = Lease(folder, pipeline, what)

    def beat() -> None:
        while not ended.wait(BEAT):
            with suppress(OSError, DeltaError):  # retried at the next beat, long before DEAD_AFTER
                lease.renew()

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    held = _HELD.set((*_HELD.get(), lease))
    try:
        with commit_once.add_commit_guard(refuse_lost_notice):
            yield lease.path
    finally:
        _HELD.reset(held)
        ended.set()
        beating.join()
        with suppress(FileNotFoundError):
            folder.remove(lease.path)


def post_rehearsal(warehouse: str, pipeline: str) -> AbstractContextManager[str]:
    """Post a notice while the block rehearses a pipeline, which no run by the clock may end meanwhile."""
    return post_notice(warehouse, pipeline, _REHEARSING)


def refuse_rehearsing(warehouse: str, pipeline: str) -> None:
    """Raise BusyError if a living process rehearses the pipeline; wait for the notice of a dead one to expire."""
    _wait_for_notices(warehouse, pipeline, lambda _, what: what == _REHEARSING, _REHEARSING)


def refuse_lost_notice() -> None:
    """Raise RunError if a notice that this process holds was removed by others, or may have been.

    To be called before each effect outside a commit: each deletion, and each file that is written. An instant between
    this check and the effect, in which the process may stand still, is left: no file system deletes on a condition.
    """
    for lease in _HELD.get():
        lease.refuse_lost()


_HELD: ContextVar[tuple[Lease, ...]] = ContextVar("HELD", default=())
"""The notices that are held, the outermost first. Threads do not inherit them."""


def refuse_forgetting(warehouse: str, pipeline: str, what: str) -> None:
    """Raise BusyError if a forget run is under way, during which files must not be rewritten."""
    for run in journal.read_runs(warehouse, pipeline):
        # A stopped forget run purges once more afterwards, before the next run abandons it.
        if not run.is_finished and run.plan.erasure:
            fix = (
                "repeat it when that run has ended: the same hindcast forget finishes it if it was killed, "
                "the next run if a gate stopped it"
            )
            found = f"{what} stops here: run {run.number} ({run.run_id}) forgets something of the same tables"
            raise BusyError(found, where=pipeline, fix=fix)


def wait_for_others(warehouse: str, pipeline: str, own: str = "") -> None:
    """Wait until no notice but one's `own` is left, remove those of dead processes, and print on stderr what is waited
    for. Raise BusyError for the notice of a living process that works for a forget run.
    """
    _wait_for_notices(warehouse, pipeline, lambda name, _: name != own, _FORGETTING)


def wait_for_forgetting(warehouse: str, pipeline: str) -> None:
    """Return if no process works for a forget run of the pipeline; wait for the notice of a dead one to expire.

    Raise BusyError if a living process does.
    """
    _wait_for_notices(warehouse, pipeline, lambda _, what: what == _FORGETTING, _FORGETTING)


def _wait_for_notices(warehouse: str, pipeline: str, concerns: Callable[[str, str], bool], refused: str) -> None:
    """Wait until no notice is left that `concerns` the caller: by its path, and by what is done.

    Raise BusyError for a living process that does what is `refused`.
    """
    folder = _open_folder(warehouse, pipeline)
    last_seen, announced = dict[str, tuple[bytes, float]](), set[str]()
    while True:
        began = time.monotonic()  # a process that stands still here must not take what it read before for unchanged
        texts = {file.path: read_notice(folder, file.path) for file in folder.list_files(FOLDER)}
        notices = {name: (text, _read_purpose(text)) for name, text in texts.items() if text is not None}
        notices = {name: notice for name, notice in notices.items() if concerns(name, notice[1])}
        if not notices:
            return
        for name, (text, what) in notices.items():
            if name not in last_seen:
                last_seen[name] = text, time.monotonic()
            elif last_seen[name][0] != text:
                if what == refused:
                    raise BusyError(
                        f"{what} of the same tables is under way in another process",
                        where=pipeline,
                        fix="repeat it when that process has ended",
                    )
                last_seen[name] = text, time.monotonic()
            elif began - last_seen[name][1] > DEAD_AFTER:
                with suppress(FileNotFoundError):
                    folder.remove(name)
            if name not in announced:
                announced.add(name)
                since = format_duration(timedelta(seconds=DEAD_AFTER))
                print(
                    f"hindcast: {pipeline}: waiting for {show_briefly(what)}, which is running, or was killed less "
                    f"than {since} ago; this goes on by itself",
                    file=sys.stderr,
                )
        time.sleep(_PAUSE)


def _read_purpose(text: bytes) -> str:
    """Return what a notice says is done. A file that says nothing changes no more, so it is removed as a dead one's."""
    try:
        what = json.loads(text)["what"]
    except (LookupError, RecursionError, TypeError, ValueError):
        return _UNKNOWN
    return what if isinstance(what, str) else _UNKNOWN


_UNKNOWN = "something that its notice does not name"
_FORGETTING, _REHEARSING = "a forgetting", "a rehearsal"
_PAUSE = 0.5


def _open_folder(warehouse: str, pipeline: str) -> WarehouseFolder:
    return WarehouseFolder(f"{warehouse.rstrip('/')}/{pipeline}")
