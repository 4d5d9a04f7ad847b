"""`make test-long` goes on where it was stopped (resuming.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pathlib

def test_that_passes():
    pass

def test_that_needs_a_file():
    assert (pathlib.Path(__file__).parent / "there").exists()
"""


def test_a_run_goes_on_with_the_tests_that_have_not_passed_yet(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(TESTS)
    first = run_pytest(tmp_path)
    assert "1 failed, 1 passed" in first
    assert "1 tests have not passed yet; the same command goes on:\n  test_two.py::test_that_needs_a_file" in first
    (tmp_path / "there").touch()
    assert "1 passed, 1 deselected" in run_pytest(tmp_path)
    assert not (tmp_path / "progress.txt").exists(), "all have passed: the next run begins from scratch"


@pytest.mark.long
@pytest.mark.ci
def test_workers_leave_out_the_same_tests(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(TESTS)
    run_pytest(tmp_path, "-n", "2")
    (tmp_path / "there").touch()
    assert "\n1 passed" in run_pytest(tmp_path, "-n", "2")


def run_pytest(folder: Path, *options: str) -> str:
    """Run the two tests in a process of its own; return what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "resuming", "--resume", "progress.txt", *options]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False).stdout
