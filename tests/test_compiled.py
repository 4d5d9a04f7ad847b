"""Where machine code is kept: numba unpickles what it finds there, so nobody else may have been able to write to it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hindcast.common import jit


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The cache of a home of ours, and the folder that is used where that cannot be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "home" / "hindcast", tmp_path / "tmp" / f"hindcast-{os.geteuid()}"


def test_it_is_in_our_home_closed_to_others_also_where_it_was_open(places: tuple[Path, Path]) -> None:
    home, _ = places
    folder = Path(jit._find_cache_folder())
    assert folder.parent == home / "compiled"
    home.chmod(0o755)
    assert jit._find_cache_folder() == str(folder)
    assert [path.stat().st_mode & 0o777 for path in (home, folder.parent, folder)] == [0o700] * 3


def test_without_a_home_it_is_in_the_temporary_directory(places: tuple[Path, Path]) -> None:
    home, temporary = places
    home.parent.write_text("no folder")
    folder = Path(jit._find_cache_folder())
    assert folder.parent == temporary / "compiled"
    assert temporary.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["", "compiled"])
def test_a_folder_that_others_could_write_to_is_not_used(places: tuple[Path, Path], planted: str) -> None:
    home, temporary = places
    home.parent.write_text("no folder")
    (temporary / "compiled").mkdir(parents=True, mode=0o700)
    (temporary / planted).chmod(0o777)
    assert jit._find_cache_folder() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_used(places: tuple[Path, Path]) -> None:
    home, temporary = places
    home.parent.write_text("no folder")
    temporary.mkdir(parents=True, mode=0o700)
    os.chown(temporary, 65534, 65534)
    assert jit._find_cache_folder() == ""


def test_a_link_is_not_followed(places: tuple[Path, Path], tmp_path: Path) -> None:
    home, temporary = places
    home.parent.write_text("no folder")
    temporary.parent.mkdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    temporary.symlink_to(tmp_path / "theirs")
    assert jit._find_cache_folder() == ""


@pytest.mark.long
@pytest.mark.ci
def test_without_any_folder_it_is_compiled_all_the_same(places: tuple[Path, Path]) -> None:
    home, temporary = places
    home.parent.write_text("no folder")
    temporary.parent.write_text("no folder")
    code = (
        "import numpy; from hindcast.common import jit as c; "
        "print(c.ensure_room(numpy.zeros((1, 2), numpy.int64), 1).shape)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(home.parent), "TMPDIR": str(temporary.parent)}
    environment = {name: value for name, value in environment.items() if name != "NUMBA_CACHE_DIR"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    run = (
        f"import tempfile; tempfile.tempdir = {str(temporary.parent)!r}; {code}; print(repr(c.numba.config.CACHE_DIR))"
    )
    done = subprocess.run([sys.executable, "-c", run], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(18, 2)\n''\n", "")
