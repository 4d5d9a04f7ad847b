"""The option `--resume FILE`: tests that have passed since FILE was made are left out, and what did not run is listed.

A run that was stopped goes on where it was; a run in which every test has passed removes the file. FILE holds the ids
of tests, a line each; the first line is the commit that they passed at, and another commit begins from scratch.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--resume", type=Path, metavar="FILE", help="leave out the tests that FILE has, and add to it")


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("resume")
    if path is not None:
        config.pluginmanager.register(Progress(path.resolve(), writes=not hasattr(config, "workerinput")), "progress")


class Progress:
    """The tests that have passed at this commit. Workers of pytest-xdist read them; the process above them writes."""

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._path, self._start, self._writes = path, path.with_suffix(".start"), writes
        self._left_over: set[str] = set()
        if writes:
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            head = _read_commit()
            self._passed = set(lines[1:]) if lines[:1] == [head] else set()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join([head, *sorted(self._passed), ""]), encoding="utf-8")
            self._start.write_text("\n".join(sorted(self._passed)), encoding="utf-8")
        else:
            self._passed = set(self._start.read_text(encoding="utf-8").splitlines())

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self._passed]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self._passed]
        self._left_over = {item.nodeid for item in items}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test to the file once it has passed, or was skipped."""
        ended = (report.when == "call" and report.passed) or (report.when == "setup" and report.skipped)
        if self._writes and ended:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")
            self._passed.add(report.nodeid)

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Learn from a worker what there is to run: the process that started it collects nothing itself."""
        self._left_over |= set(ids)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        left_over = sorted(self._left_over - self._passed)
        if left_over:
            terminalreporter.write_line(f"{len(left_over)} tests have not passed yet; the same command goes on:")
            for name in left_over[:20]:
                terminalreporter.write_line(f"  {name}")
        elif self._writes:
            self._path.unlink(missing_ok=True)


def _read_commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "no commit"
