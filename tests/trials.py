"""Trials of wrong readings of the `kafka` reading's operators (mutations/kafka.yaml), and of some others by tests.

Each is tried in a process of its own, on the sources as they are but for one statement: first the vectors, then the
tests of the operators. Loops are not compiled then: the machine code would be a mutation's own each time, and vectors
are short. Tests of what a loop costs are left out for that.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import Any

import numba
import numpy as np
import pytest

from misreadings import HERE, Misreading, full_name, misread, source_of

TOO_LONG = 120
"""Seconds of computing after which a mutation is taken for a loop without end; a right reading takes 25."""
_COSTS = "not cost and not look_at_each and not forgotten"
_AS_ROWS = dict.fromkeys(
    (
        "streams.task_rows",
        "streams.task",
        "streams.spec",
        "streams.join_processors",
        "streams.aggregate_processors",
        "streams.aggregates",
    ),
    "test_emits_task.py",
)
_OF_INCREMENTS = (
    "hulls",
    "increment_rows",
    "join_increments",
    "stream_join_increments",
    "aggregate_increments",
    "version_increments",
    "window_increments",
    "slice_reader",
)
_OF_KERNELS = {
    **dict.fromkeys(("engine.integer_encoding", "engine.operators"), "test_kernels_parts.py"),
    **{f"engine.{name}": "test_kernels_increments.py" for name in _OF_INCREMENTS},
}
_TESTS = {
    **_AS_ROWS,
    **_OF_KERNELS,
    "engine.arrow_expressions": "test_arrow_expressions.py",
    "engine.typed_calls": "test_arrow_expressions.py",
    "engine.late_events": "test_kernels_windows.py",
    "engine.session_operator": "test_kernels_windows.py",
    "engine.window_operator": "test_kernels_windows.py",
    "bitemporal.processing_order": "test_processing_order.py",
    "bitemporal.valid_time": "test_valid_time.py",
    "formats.dating": "test_valid_time.py",
    "ingest.segment_fates": "test_segments.py",
    "ingest.segments": "test_arrival.py",
    "ingest.arrivals": "test_arrival.py",
}
"""The tests of modules that those of the operators do not touch."""
_THEIRS = ("hindcast", "conftest", "kafka_adapter")


def caught(wrong: Misreading | None) -> str | None:
    """What notices a wrong reading first: a vector, or a test. None: nothing does. EOFError if the trial fails."""
    if wrong is not None:
        misread(wrong)  # fails here if the label is gone
    ours, its = multiprocessing.Pipe(duplex=False)
    trial = multiprocessing.get_context("fork").Process(target=_try, args=(wrong, its))
    trial.start()
    its.close()
    try:
        found: str | None = ours.recv()
    except EOFError:
        trial.join()
        if trial.exitcode != -signal.SIGXCPU:
            raise
        found = "(does not end)"
    finally:
        trial.join(5)
        trial.kill()
    return found


def _try(wrong: Misreading | None, told: Connection) -> None:
    """In the process of a trial: import all anew, and tell what fails first."""
    for name in [name for name in sys.modules if name.startswith((*_THEIRS, "test_"))]:
        del sys.modules[name]
    resource.setrlimit(resource.RLIMIT_CPU, (TOO_LONG, TOO_LONG + 10))
    numba.config.DISABLE_JIT = True  # type: ignore[attr-defined]
    np.seterr(over="ignore")  # machine code wraps round without a word
    if wrong is not None:
        sys.meta_path.insert(0, _Misread(wrong))
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        module = wrong.module if wrong is not None else ""
        told.send((None if module in _OF_KERNELS else _vector()) or _test(_TESTS.get(module)))


class _Misread(SourceFileLoader):
    """Imports the module with its statement changed."""

    def __init__(self, wrong: Misreading) -> None:
        super().__init__(full_name(wrong.module), str(source_of(wrong.module)))
        self.wrong = wrong

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        """The module, if it is the one."""
        return spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None

    def get_code(self, _fullname: str) -> CodeType:
        """Compiled from the changed module, never from what is cached."""
        return compile(misread(self.wrong), self.path, "exec")


def _vector() -> str | None:
    from hindcast_conformance.topology import compute_vector
    from hindcast_conformance.vectors import load_vectors

    for vector in load_vectors(HERE / "conformance"):
        if vector.semantics == "kafka":
            try:
                found = compute_vector(vector)
            except Exception as failure:  # noqa: BLE001 - whatever a wrong reading leads to
                return f"vector {vector.name} ({type(failure).__name__})"
            if found != vector.expected:
                return f"vector {vector.name}"
    return None


def _test(its: str | None) -> str | None:
    """The test that fails; of the module's own file, or of those of the operators."""
    failed: list[str] = []

    class Listener:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                failed.append(report.nodeid)

    others = (path for path in sorted(HERE.glob("test_emits_*.py")) if path.name not in _TESTS.values())
    tests = [HERE / its] if its is not None else others
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-k", _COSTS]
    code = pytest.main([*options, *map(str, tests)], plugins=[Listener()])
    if not failed and code != 0:
        raise RuntimeError(f"pytest ends with {code}")
    return f"test {failed[0]}" if failed else None
