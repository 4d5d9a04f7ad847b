"""`hindcast init`: a project that runs at once."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from hindcast.cli import main
from hindcast.contract import load_all
from hindcast.contract.contract_tests import list_test_files, load_tests
from hindcast.ops import new_project

FILES = {
    *("schemas/shop.yaml", "schemas/tests/shop.yaml", "dags/our_pipelines.py", "tests/test_contracts.py"),
    *("README.md", ".gitignore", ".github/workflows/contracts.yaml"),
}


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_a_project_has_a_contract_with_a_table_a_stream_a_join_and_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["init", "shop"]) == 0
    first, *steps = capsys.readouterr().out.splitlines()
    assert (list_files(tmp_path / "shop"), len(steps)) == (FILES, 3)
    assert set(first.removeprefix("created ").split(", ")) == FILES
    assert "cd shop && " in steps[0]
    (contract,) = load_all(tmp_path / "shop" / "schemas").values()
    assert contract.pipeline == "shop"
    assert {topic.read for topic in contract.topics.values()} == {"table", "stream"}
    assert any(view.join for view in contract.views.values())
    (path,) = list_test_files(tmp_path / "shop" / "schemas").values()
    assert len(load_tests(path, contract)) == 2
    for name in FILES:
        text = (tmp_path / "shop" / name).read_text(encoding="utf-8")
        assert "<pipeline>" not in text
        if name.endswith(".py"):
            compile(text, name, "exec")
        if name.endswith(".yaml"):
            assert yaml.safe_load(text)


def test_the_current_folder_can_be_a_project_and_keeps_its_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop" / "schemas").mkdir(parents=True)
    (tmp_path / "shop" / "schemas" / "other.yaml").write_text("mine")
    monkeypatch.chdir(tmp_path / "shop")
    assert main.main(["init"]) == 0
    assert list_files(tmp_path / "shop") == {*FILES, "schemas/other.yaml"}
    assert "cd " not in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_folder_with_one_of_the_files_is_refused_and_left_as_it_is(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop" / name).parent.mkdir(parents=True)
    (tmp_path / "shop" / name).symlink_to("nowhere")
    assert main.main(["init", str(tmp_path / "shop")]) == 1
    assert f"there is already {name}; nothing was written" in capsys.readouterr().err
    assert list_files(tmp_path / "shop") == {name}


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("My-Shop", "my_shop"),
        ("1st", "my_1st"),
        ("null", "my_null"),
        ("hindcast_maintenance", "my_hindcast_maintenance"),
        ("a__preview", "a_preview"),
        ("a: b", "a_b"),
        ("caf\udce9", "caf"),
        ("orders # note", "orders_note"),
        ("!!str shop", "str_shop"),
        ("&shop shop", "shop_shop"),
        ("'shop'", "shop"),
        ('"shop"', "shop"),
        ("shop\nschedule", "shop_schedule"),
        (" shop", "shop"),
        ("shop ", "shop"),
        ("! shop", "shop"),
        ("| shop", "shop"),
        ("...", "my"),
    ],
)
def test_a_name_that_no_pipeline_can_have_is_refused_with_one_that_it_can(
    tmp_path: Path, name: str, suggested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["init", str(tmp_path / name)]) == 1
    printed = capsys.readouterr().err
    assert "nothing was written" in printed
    assert f"hindcast init {tmp_path / suggested}" in printed
    assert not list_files(tmp_path)
    assert main.main(["init", str(tmp_path / suggested)]) == 0


def test_a_current_folder_of_such_a_name_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "My Shop").mkdir()
    monkeypatch.chdir(tmp_path / "My Shop")
    assert main.main(["init"]) == 1
    assert capsys.readouterr().err.endswith("hindcast init my_shop\n")


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop").write_text("a file")
    assert main.main(["init", str(tmp_path / "shop")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_folder_that_leads_nowhere_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    for folder in ("loop", "loop/shop", str(tmp_path / "loop")):
        assert main.main(["init", folder]) == 1
        assert f"{folder}: a link in this path leads back to itself; nothing was written" in capsys.readouterr().err
    assert main.main(["init", "a/../../b"]) == 1
    printed = capsys.readouterr().err
    assert "a/../../b: a does not exist, so there is nothing above it; nothing was written" in printed
    assert printed.endswith(f"what to do: name it without ..: hindcast init {tmp_path.parent / 'b'}\n")
    assert not (tmp_path.parent / "b").exists()
    assert [it.name for it in tmp_path.iterdir()] == ["loop"]
    Path("a").mkdir()
    assert main.main(["init", "a/../b"]) == 0
    assert list_files(tmp_path / "b")


def test_without_a_folder_for_temporary_files_it_is_said_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert main.main(["init", str(tmp_path / "shop")]) == 1
    assert "cannot be written: No such file or directory; nothing was written" in capsys.readouterr().err
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize("name", ["schemas", "schemas/tests", "dags", "tests", ".github", ".github/workflows"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_nothing_is_written_through_a_link_or_in_place_of_a_file(
    tmp_path: Path, name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / "shop" / name
    place.parent.mkdir(parents=True)
    if kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path / ("elsewhere" if kind == "link" else "nowhere"), target_is_directory=True)
    assert main.main(["init", str(tmp_path / "shop")]) == 1
    printed = capsys.readouterr().err
    assert (f"{name} is {'no folder' if kind == 'file' else 'a link'}" in printed) is True
    assert "nothing was written" in printed
    assert list_files(tmp_path) <= {f"shop/{name}"}, "which is no file if it is a link to a folder"
    assert sorted(it.name for it in tmp_path.iterdir()) == ["elsewhere", "shop"]


def test_the_folder_itself_can_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "link").symlink_to("shop", target_is_directory=True)
    assert main.main(["init", str(tmp_path / "link")]) == 0
    assert list_files(tmp_path / "shop") == FILES


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("number", range(len(FILES)))
def test_what_was_written_is_removed_if_one_file_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, existing: bool
) -> None:
    if existing:
        (tmp_path / "shop" / "schemas").mkdir(parents=True)
        (tmp_path / "shop" / "schemas" / "other.yaml").write_text("mine")
    before = {*tmp_path.rglob("*")}
    written: list[Path] = []
    open_file = Path.open

    class FullDisk(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def open_until_full(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        if mode != "x":
            return open_file(path, mode, *more, **options)
        written.append(path)
        file = open_file(path, mode, *more, **options)
        if len(written) <= number:
            return file
        file.close()
        return FullDisk()

    monkeypatch.setattr(Path, "open", open_until_full)
    assert main.main(["init", str(tmp_path / "shop")]) == 1
    printed = capsys.readouterr().err
    assert ("No space left on device" in printed, "nothing was left" in printed) == (True, True)
    assert len(written) == number + 1
    assert {*tmp_path.rglob("*")} == before


def test_a_file_of_somebody_else_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came while the others were written."""
    open_file = Path.open

    def open_later(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        if mode == "x" and path.name == "README.md":
            path.write_bytes(b"theirs")
        return open_file(path, mode, *more, **options)

    monkeypatch.setattr(Path, "open", open_later)
    assert main.main(["init", str(tmp_path / "shop")]) == 1
    assert list_files(tmp_path / "shop") == {"README.md"}


def test_it_needs_none_of_the_extras(tmp_path: Path) -> None:
    hidden = "airflow", "delta", "great_expectations"  # the client of Spark Connect comes with the package itself
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden})); from hindcast.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code, "init", "shop"], cwd=tmp_path, env=outside(), check=False)
    assert (done.returncode, list_files(tmp_path / "shop")) == (0, FILES)


def test_the_dag_file_makes_dags_of_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("airflow")
    monkeypatch.setenv("HINDCAST_VAR", str(tmp_path / "var"))
    new_project.create_project(tmp_path / "shop")
    path = tmp_path / "shop" / "dags" / "our_pipelines.py"
    made: dict[str, object] = {"__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), made)  # noqa: S102  # our own template
    assert {"shop", "hindcast_maintenance__shop"} <= made.keys()


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_a_new_project_passes_its_own_tests(tmp_path: Path) -> None:
    new_project.create_project(tmp_path / "shop")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(
        command, cwd=tmp_path / "shop", env=outside(), capture_output=True, text=True, check=False, timeout=240
    )
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def outside() -> dict[str, str]:
    """The environment of a process that is started outside of the checkout."""
    paths = os.pathsep.join(str(Path(__file__).parents[1] / name) for name in ("jobs", "tools"))
    return {n: v for n, v in os.environ.items() if not n.startswith("HINDCAST_")} | {"PYTHONPATH": paths}
