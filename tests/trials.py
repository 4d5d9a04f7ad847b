"""Trials of wrong readings of the `kafka` reading's operators (kafka_mutations.py), and of some others by their tests.

Each is tried in a process of its own, on the sources as they are but for one text: first the vectors, then the tests
of the operators. Loops are not compiled then: the machine code would be a mutation's own each time, and vectors are
short. Tests of what a loop costs are left out for that.
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
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent
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
_OF_KERNELS = dict.fromkeys(("engine.integer_encoding", "engine.operators"), "test_kernels_parts.py")
_TESTS = {
    **_AS_ROWS,
    **_OF_KERNELS,
    "bitemporal.processing_order": "test_processing_order.py",
    "bitemporal.valid_time": "test_valid_time.py",
}
"""The tests of modules that those of the operators do not touch."""
_THEIRS = ("hindcast", "conftest", "kafka_adapter")


def source_of(module: str) -> Path:
    """Return the file of a module of `hindcast`, or of a package of its own (`hindcast_conformance`)."""
    path = f"{module.replace('.', '/')}.py"
    return ROOT / "tools" / path if module.startswith("hindcast_") else ROOT / "jobs" / "hindcast" / path


def full_name(module: str) -> str:
    """Return the name by which a module of `source_of` is imported."""
    return module if module.startswith("hindcast_") else f"hindcast.{module}"


class Wrong(NamedTuple):
    """A wrong reading: what is misread, the module, the right text, the wrong one."""

    reading: str
    module: str
    right: str
    wrong: str


def caught(wrong: Wrong | None) -> str | None:
    """What notices a wrong reading first: a vector, or a test. None: nothing does. EOFError if the trial fails."""
    if wrong is not None and _path(wrong).read_text(encoding="utf-8").count(wrong.right) != 1:
        raise SystemExit(f"no longer once in {wrong.module}: {wrong.right!r}")
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


def _try(wrong: Wrong | None, told: Connection) -> None:
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
    """Imports the module with its text changed."""

    def __init__(self, wrong: Wrong) -> None:
        super().__init__(full_name(wrong.module), str(_path(wrong)))
        self.wrong = wrong

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        """The module, if it is the one."""
        return spec_from_file_location(fullname, self.path, loader=self) if fullname == self.name else None

    def get_code(self, _fullname: str) -> CodeType:
        """Compiled from the changed text, never from what is cached."""
        text = Path(self.path).read_text(encoding="utf-8")
        return compile(text.replace(self.wrong.right, self.wrong.wrong), self.path, "exec")


def _path(wrong: Wrong) -> Path:
    return source_of(wrong.module)


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
