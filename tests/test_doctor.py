"""`hindcast doctor`: it tells what is there, and works where nothing is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bare_runs import bare_run
from hindcast.cli import main
from hindcast.common import session
from hindcast.common.settings import read_settings
from hindcast.ops import doctor
from hindcast.ops.check_result import CheckResult
from hindcast.plan import journal
from hindcast.setup import java_runtime
from hindcast_local import ports
from pipelines import RESTAURANT, Pipeline, pipeline

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports that nobody listens on, folders of the test's own, nothing else that is set."""
    for name in [name for name in os.environ if name.startswith("HINDCAST_")]:
        monkeypatch.delenv(name)
    for name in ("KAFKA", "AIRFLOW", "SPARK"):
        monkeypatch.setenv(f"HINDCAST_{name}_PORT", str(ports.find_free_port()))
    monkeypatch.setenv("HINDCAST_ROOT", str(ROOT))
    monkeypatch.setenv("HINDCAST_VAR", str(tmp_path / "var"))


def told(what: str) -> list[tuple[str, str]]:
    """State and words of the lines of one name."""
    return [(line.state, line.found) for line in doctor.run_checks() if line.what == what]


def test_what_is_there_is_told_with_its_version(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path):
        lines = {line.what: line for line in doctor.run_checks()}
    assert {what for what, line in lines.items() if line.state == "failed"} == set()
    assert lines["packages"].found.startswith("27 of 27 match requirements.lock")
    assert "pyspark 4.2.0" in lines["packages"].found
    assert int(lines["java"].found.partition(".")[0]) >= java_runtime.OLDEST
    assert "delta-spark_4.2_2.13-4.4.0.jar" in lines["jars (spark)"].found
    assert lines["kafka"].found == f"{broker} answers"
    assert lines["topics"].found.endswith(".orders may be read")
    assert lines["contracts"].found.startswith("1 of 1 in ")
    assert "GiB free" in lines["warehouse"].found


def test_the_command_tells_each_line_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "accepts no connection\n" in shown
    assert "what to do: hindcast up starts one; or set HINDCAST_KAFKA to your brokers" in shown
    assert shown.splitlines()[-1].endswith("1 failed")
    assert main.main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["healthy"]
    assert [line["what"] for line in found["lines"] if line["state"] == "failed"] == ["kafka"]


@pytest.fixture
def contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of contracts with a target `dev`, which is chosen."""
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "targets.yaml").write_text("dev: {warehouse: of-dev}\n")
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(folder))
    monkeypatch.setenv("HINDCAST_TARGET", "dev")
    return folder


def test_the_target_is_that_of_the_contracts(contracts: Path) -> None:
    [(state, found)] = told("settings")
    assert (state, f"HINDCAST_SCHEMAS={contracts}" in found, "HINDCAST_TARGET=dev" in found) == ("ok", True, True)
    [(_, warehouse)] = told("warehouse")
    assert warehouse.startswith(f"{ROOT}/of-dev: ")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dev: [", "targets.yaml:1: the target 'dev' cannot be read: the file is not YAML"),
        ("prod: {}", "no target 'dev' in "),
        (None, "targets.yaml cannot be read: No such file or directory"),
    ],
)
def test_a_target_that_cannot_be_read_is_a_failed_check(
    text: str | None, found: str, contracts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (contracts / "targets.yaml").unlink()
    if text is not None:
        (contracts / "targets.yaml").write_text(text)
    assert main.main(["doctor", "--json"]) == 1
    lines = json.loads(capsys.readouterr().out)["lines"]
    [(state, problem)] = [(line["state"], line["found"]) for line in lines if line["what"] == "settings"][:1]
    assert state == "failed"
    assert found in problem
    assert [line["what"] for line in lines if line["what"] == "warehouse"], "the other checks run"
    assert main.main(["schema"]) == 0, "a command that needs no target"
    assert main.main(["check"]) == 1


def test_a_broker_that_takes_no_connection_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_KAFKA", f"127.0.0.1:{ports.find_free_port()},nowhere.invalid:9092")
    begun = datetime.now(UTC)
    [(state, found)] = told("kafka")
    assert (state, found.endswith("accepts no connection")) == ("failed", True)
    assert datetime.now(UTC) - begun < timedelta(seconds=30)


def test_a_topic_that_is_not_there(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        p.write(RESTAURANT.replace("read: stream", "read: stream\n    topic: nowhere"))
        found = told("topics")
    assert found[0][0] == "ok"
    assert found[1] == ("warning", "restaurant.orders: nowhere does not exist, or we may not describe it")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "does not exist"),
        ("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2", "11.0.2"),
        ("#!/bin/sh\necho 'no memory' >&2; exit 1", "does not run: no memory"),
    ],
)
def test_java_that_is_not_there_too_old_or_broken(
    text: str | None, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if text:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").write_text(text)
        (tmp_path / "bin" / "java").chmod(0o755)
    [line] = [line for line in doctor.run_checks() if line.what == "java"]
    assert line.state == "failed"
    assert found in line.found
    assert "JAVA_HOME" in line.fix


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(session, "venv_folder", lambda: tmp_path)
    assert told("java") == [("failed", "no Java found: JAVA_HOME is not set, and PATH has none")]


def without_delta(folder: Path) -> str:
    next(folder.glob("delta-spark_*")).unlink()
    return "delta-spark_4.2_2.13-4.4.0.jar: missing, or not a jar"


def cut_avro(folder: Path) -> str:
    jar = next(folder.glob("spark-avro*"))
    jar.unlink()
    jar.write_bytes(b"PK")
    return "spark-avro_2.13-4.1.1.jar: missing, or not a jar"


@pytest.mark.parametrize("spoil", [without_delta, cut_avro])
def test_jars_that_are_missing_or_cut(
    spoil: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jars" / "spark"
    shutil.copytree(session.venv_folder() / "jars" / "spark", folder, copy_function=os.symlink)
    found = spoil(folder)
    monkeypatch.setattr(session, "venv_folder", lambda: tmp_path)
    [line] = [line for line in doctor.run_checks() if line.what == "jars (spark)"]
    assert (line.state, line.fix) == ("failed", f"rm -rf {tmp_path}/jars && make setup")
    assert found in line.found
    assert [state for state, _ in told("jars (broker)")] == ["warning"], "brokers can be elsewhere"


def test_packages_of_another_version_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_ROOT", str(tmp_path))
    (tmp_path / "requirements.txt").write_text("# comment\nduckdb==9.9.9\nnever-heard-of==1.0\npsutil\n")
    lock = (ROOT / "requirements.lock").read_text().replace("\nduckdb==2.0.0", "\nduckdb==9.9.9")
    (tmp_path / "requirements.lock").write_text(f"{lock}\nnever-heard-of==1.0\n")
    assert told("packages")[:2] == [
        ("warning", "duckdb is 2.0.0, the lock has 9.9.9"),
        ("failed", "never-heard-of is not installed"),
    ]
    assert told("packages")[2][1].startswith("1 of 3 match requirements.lock")


def test_what_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_REPORTS", "/proc/reports")
    [line] = [line for line in doctor.run_checks() if line.what == "reports"]
    assert line.state == "failed"
    assert line.found.startswith("/proc/reports cannot be written: ")
    assert line.fix == "set HINDCAST_REPORTS to a folder of yours"


def test_too_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, state in (
        (doctor.MIN_FREE_BYTES - 1, "failed"),
        (doctor.LOW_FREE_BYTES - 1, "warning"),
        (doctor.LOW_FREE_BYTES, "ok"),
    ):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(1, 1, free))
        assert [it[0] for it in told("warehouse")] == [state]


def test_settings_that_make_no_sense_do_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_CHUNK", "many")
    monkeypatch.setenv("HINDCAST_KAFKA_PASSWORD", "hunter2")
    lines = doctor.run_checks()
    assert (
        CheckResult("settings", "failed", "HINDCAST_CHUNK is 'many', not a number of offsets", lines[0].fix) == lines[0]
    )
    assert "HINDCAST_KAFKA_PASSWORD (set)" in lines[1].found
    assert "hunter2" not in doctor.format_report(lines)
    assert [line.state for line in lines if line.what == "contracts"] == ["ok"]


def test_a_contract_that_does_not_load(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        (p.path.parent / "bad.yaml").write_text(p.path.read_text().replace("read: table", "raed: table"))
        bad, good = told("contracts")
    assert bad[0] == "failed"
    assert "bad.yaml" in bad[1]
    assert good[1].startswith("1 of 2 in ")


def test_a_clock_that_is_behind_the_last_run(tmp_path: Path) -> None:
    p = Pipeline(None, "127.0.0.1:1", tmp_path, RESTAURANT)
    known = datetime.now(UTC) + timedelta(hours=1)
    journal.append_entry(p.warehouse, bare_run(p.name, 1, known))
    with p.here():
        [(state, found)] = told("clock")
    assert state == "warning"
    assert found.endswith(f"restaurant has a run known at {known}")


def test_it_imports_nothing_that_may_be_broken() -> None:
    heavy = "{'pyspark', 'pyarrow', 'deltalake', 'confluent_kafka', 'airflow', 'great_expectations', 'pydantic'}"
    code = f"import sys, hindcast.cli, hindcast.ops.doctor; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_nobody_thought_of_is_told_and_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("so it is")

    monkeypatch.setitem(doctor.CHECKS, "java", broken)  # type: ignore[arg-type]
    assert told("java") == [("failed", "cannot be checked: ZeroDivisionError: so it is")]
    monkeypatch.setitem(sys.modules, "hindcast.contract", None)  # as if pydantic were not there
    [line] = [line for line in doctor.run_checks() if line.what == "contracts"]
    assert line.found.startswith("cannot be checked: ")
    assert line.fix == "make setup"
    assert [state for state, _ in told("warehouse")] == ["ok"]


def test_a_folder_that_others_can_reach_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed
        var = Path(name)
        monkeypatch.setenv("HINDCAST_VAR", name)
        (var / "warehouse").mkdir()
        assert "GiB free" in told("var")[0][1]
        var.chmod(0o755)
        assert told("var")[0] == ("warning", f"{var}: other users of this machine can reach it (drwxr-xr-x)")
        [warned] = [line for line in doctor._check_folders(read_settings()) if line.state == "warning"]
        assert warned.fix.startswith(f"chmod g=,o= {var}; if it is shared on purpose, set HINDCAST_UMASK to 027")
        monkeypatch.setenv("HINDCAST_UMASK", "027")
        assert told("var")[0][0] == "warning"
        var.chmod(0o750)
        assert "GiB free" in told("var")[0][1]
