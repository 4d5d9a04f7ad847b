"""Set-up: what is made again and when, which Java is taken, and what is said when it cannot be done."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import setup
import setup_parts
from setup_parts import Part

from hindcast.common import settings as settings_module
from hindcast.common.errors import SettingsError
from hindcast.common.settings import read_settings
from hindcast.setup import commands, jars, java_runtime, spark_parts

ROOT = Path(__file__).parent.parent


class Made:
    """Parts that note when they are made."""

    def __init__(self, root: Path) -> None:
        self.venv = root / ".venv"
        self.log: list[str] = []
        self.inputs = {"venv": ["a"], "two": ["a", "b"]}
        self.present = {"venv": True, "two": True}
        self.venv.mkdir()

    def bring_up(self) -> list[str]:
        self.log.clear()
        setup.bring_up(self.venv, [self._part(name) for name in self.inputs])
        return list(self.log)

    def _part(self, name: str) -> Part:
        return Part(name, name, self.inputs[name], lambda: self.present[name], lambda: self.log.append(name))


def test_the_second_time_nothing_is_made(tmp_path: Path) -> None:
    made = Made(tmp_path)
    assert made.bring_up() == ["venv", "two"]
    assert made.bring_up() == []


def test_only_the_part_whose_input_changed_is_made_again(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.bring_up()
    made.inputs["two"] = ["a", "c"]
    assert made.bring_up() == ["two"]


def test_a_part_that_was_lost_is_made_again(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.bring_up()
    made.present["venv"] = False
    assert made.bring_up() == ["venv"]


def test_a_part_that_another_one_removes_is_made_again_in_the_same_set_up(tmp_path: Path) -> None:
    log: list[str] = []
    there, inputs = set[str](), {"packages": ["a"], "hindcast": ["b"]}

    def make(name: str) -> None:
        log.append(name)
        there.clear()  # as `uv pip sync`: whatever it did not install goes
        there.add(name)

    def bring_up() -> int:
        return setup.bring_up(
            tmp_path / ".venv",
            [
                Part("packages", "packages", inputs["packages"], lambda: True, lambda: make("packages")),
                Part("hindcast", "hindcast", inputs["hindcast"], lambda: "hindcast" in there, lambda: make("hindcast")),
            ],
        )

    (tmp_path / ".venv").mkdir()
    assert bring_up() == 2
    inputs["packages"] = ["another lock"]
    log.clear()
    assert bring_up() == 2
    assert log == ["packages", "hindcast"]
    assert bring_up() == 0


def test_a_part_that_failed_is_made_again(tmp_path: Path) -> None:
    made = Made(tmp_path)

    def fail() -> None:
        raise setup_parts.SetupError("no network")

    with pytest.raises(setup_parts.SetupError):
        setup.bring_up(made.venv, [Part("venv", "venv", ["a"], lambda: True, fail)])
    assert made.bring_up() == ["venv", "two"]


def test_too_little_disk_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "NEEDED_GIB", 10**6)
    made = Made(tmp_path)
    with pytest.raises(setup_parts.SetupError, match=r"(?s)GiB are free at .*make room"):
        made.bring_up()
    assert made.log == []


def test_the_real_parts_need_each_other_in_order() -> None:
    names = [part.name for part in setup_parts.parts(setup_parts.Place(ROOT, {}))]
    assert names == ["venv", "packages", "java", "jars", "hindcast", "archive", "spark-conf"]


def test_any_python_3_can_read_the_entry_and_is_told_what_to_do() -> None:
    ast.parse((ROOT / "scripts" / "setup.py").read_text(encoding="utf-8"), feature_version=(3, 7))
    message = setup.python_message("3.9.2", "/usr/bin/python3")
    assert "Python 3.9.2 (/usr/bin/python3)" in message
    assert "3.11 to 3.14" in message
    assert "make setup PYTHON=" in message


def test_a_missing_venv_module_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_parts.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(setup_parts.SetupError, match=r"apt-get install python3\.\d+-venv"):
        setup_parts.make_venv(setup_parts.Place(tmp_path, {}))


def fake_java(folder: Path, version: str, *, vector: bool = True) -> Path:
    """A java that says it is of this version, and knows the vector module or not."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    refuse = "" if vector else f'case "$*" in *{java_runtime.VECTOR}*) echo "Module not found" >&2; exit 1;; esac\n'
    binary.write_text(
        f"#!/bin/sh\n{refuse}echo '    java.home = {folder}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        'echo "$@"\n'
    )
    binary.chmod(0o755)
    return binary


@pytest.fixture
def no_java_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with nothing in the usual places."""
    monkeypatch.setattr(java_runtime, "USUAL_PLACES", ())


@pytest.mark.usefixtures("no_java_elsewhere")
class TestJava:
    def test_java_home_goes_before_path(self, tmp_path: Path) -> None:
        fake_java(tmp_path / "a", "21")
        on_path = fake_java(tmp_path / "b", "17")
        found, _ = java_runtime.find({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(on_path.parent)})
        assert found == java_runtime.Java(tmp_path / "a", 21, has_vector=True)

    def test_one_that_is_too_old_is_passed_over_and_named(self, tmp_path: Path) -> None:
        fake_java(tmp_path / "old", "1.8")
        on_path = fake_java(tmp_path / "new", "17")
        found, passed_over = java_runtime.find({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(on_path.parent)})
        assert found == java_runtime.Java(tmp_path / "new", 17, has_vector=True)
        assert passed_over == [f"{tmp_path / 'old' / 'bin' / 'java'} (JAVA_HOME) is Java 8"]

    def test_one_that_does_not_run_is_passed_over(self, tmp_path: Path) -> None:
        broken = tmp_path / "java"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        assert java_runtime.find({"PATH": str(tmp_path)}) == (None, [f"{broken} (PATH) does not run"])

    def test_a_java_home_without_a_java_is_passed_over(self, tmp_path: Path) -> None:
        found, passed_over = java_runtime.find({"JAVA_HOME": str(tmp_path), "PATH": "/nonexistent"})
        assert found is None
        assert passed_over == [f"{tmp_path}/bin/java (JAVA_HOME) does not run"]

    def test_one_without_the_vector_module_gets_a_shim_that_leaves_it_out(self, tmp_path: Path) -> None:
        fake_java(tmp_path / "small", "17", vector=False)
        found, _ = java_runtime.find({"JAVA_HOME": str(tmp_path / "small"), "PATH": ""})
        assert found == java_runtime.Java(tmp_path / "small", 17, has_vector=False)
        home = java_runtime.shim(found, tmp_path / "jre")
        command = [str(home / "bin" / "java"), "-Xmx1g", java_runtime.VECTOR, "-cp", "a b/*", "Main", "$x"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert said == "-Xmx1g -cp a b/* Main $x\n"

    def test_no_java_and_no_way_to_get_one_is_an_error_with_both_mends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = setup_parts.Place(tmp_path, {"PATH": "/nonexistent"})
        place.uv.parent.mkdir(parents=True)
        place.uv.write_text("#!/bin/sh\nexit 2\n")
        place.uv.chmod(0o755)
        monkeypatch.setattr(commands, "PAUSE_SECONDS", 0.0)
        with pytest.raises(setup_parts.SetupError) as caught:
            setup_parts.make_java(place)
        assert "no Java 17 to 25 on this machine, and none to be had" in str(caught.value)
        assert "is the package index reachable?" in str(caught.value)
        assert "apt-get install openjdk-17-jre-headless" in str(caught.value)


def test_a_command_that_fails_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0.0)
    script = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); new = not p.exists(); p.touch(); sys.exit(new)"
    commands.retry_command([sys.executable, "-c", script, str(tmp_path / "tried")], {}, "")


def test_a_command_that_keeps_failing_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0.0)
    command = [sys.executable, "-c", "print('no route to host'); raise SystemExit(3)"]
    with pytest.raises(setup_parts.SetupError) as caught:
        commands.retry_command(command, {}, "ask the network", count="[OK]", counted="done")
    assert "failed 3 times\nno route to host\n  what to do: ask the network" in str(caught.value)
    assert capfd.readouterr().out.count("failed (exit code 3)") == 3


def test_jars_are_there_only_whole(tmp_path: Path) -> None:
    place = setup_parts.Place(tmp_path, {})
    (place.jars / "spark").mkdir(parents=True)
    jar = place.jars / "spark" / "a-1.jar"
    jar.write_bytes(b"1234")
    assert not jars.has_all_jars(place.jars)
    (place.jars / "manifest.json").write_text(json.dumps({"spark/a-1.jar": 4}))
    assert jars.has_all_jars(place.jars)
    jar.write_bytes(b"12")
    assert not jars.has_all_jars(place.jars)


def test_the_jars_that_ivy_xml_names_are_known() -> None:
    named = jars.list_named_jars((ROOT / "ivy.xml").read_text(encoding="utf-8"), "spark", "broker")
    assert "spark/delta-spark_4.2_2.13-4.4.0.jar" in named
    assert any(jar.startswith("broker/kafka_2.13-") for jar in named)
    assert not any(jar.startswith("streams/") for jar in named)


def test_the_lock_is_of_the_pinned_packages_and_names_no_index() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in lock
    assert "--index" not in lock
    locked = {line.split(" ")[0].lower() for line in lock.splitlines() if "==" in line and line[0] not in " #"}
    for name in ("requirements.txt", "requirements-dev.txt"):
        direct = [
            line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line and line[0] not in "#-"
        ]
        assert [line for line in direct if line.lower() not in locked] == []


def test_an_installed_package_is_set_up_in_the_folder_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the README of `hindcast init` says; elsewhere nothing tells where Spark's own files may be."""
    monkeypatch.setattr(settings_module, "_CHECKOUT", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    for name in ("HINDCAST_VAR", "HINDCAST_ROOT", "HINDCAST_SCHEMAS"):
        monkeypatch.delenv(name, raising=False)
    written = Mock()
    monkeypatch.setattr(spark_parts.session, "parts_folder", lambda: tmp_path / "parts")
    monkeypatch.setattr(spark_parts.session, "write_defaults_files", written)
    monkeypatch.setattr(spark_parts, "has_all_jars", lambda _: True)
    monkeypatch.setattr(spark_parts, "list_named_jars", lambda *_: [])
    with pytest.raises(SettingsError, match="HINDCAST_VAR is not set"):
        spark_parts.prepare_spark(read_settings())
    (tmp_path / "schemas").mkdir()
    spark_parts.prepare_spark(read_settings())
    ((settings,),) = (call.args for call in written.call_args_list)
    assert settings.var == tmp_path / "var"
