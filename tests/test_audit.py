"""`make audit`, by the package index and pip-audit: what the lock pins, and what it says of versions that are bad."""

from __future__ import annotations

from pathlib import Path

import audit
import pytest

pytestmark = pytest.mark.long

BAD, GOOD = "requests==2.32.0", "requests==2.32.4"
"""A version that its authors have withdrawn and that is known to be vulnerable, and one that they have not."""


def test_no_version_that_the_lock_pins_is_withdrawn() -> None:
    assert audit.find_withdrawn() == []


def test_a_withdrawn_version_is_found(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"{BAD}\n", encoding="utf-8")
    (line,) = audit.find_withdrawn(lock)
    assert BAD in line
    lock.write_text(f"{GOOD}\n", encoding="utf-8")
    assert audit.find_withdrawn(lock) == []


def test_a_vulnerable_version_fails_and_so_does_no_answer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"{BAD}\n", encoding="utf-8")
    assert audit.main(lock) == 1
    assert "vulnerabilities: found, or not asked for" in capfd.readouterr().out


def test_a_lock_that_cannot_be_read_is_no_lock_without_vulnerabilities(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        audit.main(tmp_path / "missing.lock")
