"""A limit of processor time for a block of Python, in whichever thread it runs.

A signal reaches only the main thread, and a process of its own would import everything again. So a second thread
watches the time that the first one has used, and raises an exception in it. Code that does not return to Python, such
as one match of a regular expression, is not stopped before it does.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_SECONDS = 0.05
"""How often the used time is looked at."""

AGAIN_SECONDS = 1.0
"""After this time it is raised again: code that Python calls by itself, such as `__del__`, swallows any exception."""

WALL_CLOCK_FACTOR = 5
"""How much longer a block may take where threads have no clock of their own (macOS)."""


class ExpiredError(BaseException):
    """A block has used its processor time. Not an Exception: no handler within the block is meant for it."""


@contextmanager
def limit_processor_time(seconds: float) -> Iterator[None]:
    """Raise ExpiredError in the block, or at its end, once this thread has used `seconds` of processor time in it."""
    thread, used, ended = threading.get_ident(), _find_clock(), threading.Event()
    lock, start = threading.Lock(), used()

    def watch() -> None:
        while not ended.wait(CHECK_SECONDS):
            if used() - start > seconds:
                with lock:
                    if not ended.is_set():
                        raise_in_thread(ctypes.c_ulong(thread), ctypes.py_object(ExpiredError))
                ended.wait(AGAIN_SECONDS)

    raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
    try:
        threading.Thread(target=watch, name="hindcast processor time", daemon=True).start()
        yield
    finally:
        try:
            with lock:  # what is raised from now on is raised here, where `ended.set` is called
                ended.set()
        except ExpiredError:
            ended.set()
            raise


def _find_clock() -> Callable[[], float]:
    """Return a clock of the processor time of this thread, which other threads may read."""
    if hasattr(time, "pthread_getcpuclockid"):
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return lambda: time.clock_gettime(clock)
    return lambda: time.monotonic() / WALL_CLOCK_FACTOR
