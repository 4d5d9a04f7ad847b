"""What a session of Spark is made ready for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hindcast.cli import main
from hindcast.common import session
from hindcast.common.session import allow_deep_plans, format_defaults_file, spark_environment, venv_folder
from hindcast.common.settings import read_settings
from hindcast.runs import run_steps
from hindcast.store.commit_notes import TableNote


def test_a_connect_client_may_send_deep_plans() -> None:
    """As the client does for a checkpoint: it copies the plan into a command's constructor."""
    from pyspark.sql.connect.proto import CheckpointCommand, Relation

    deep = Relation()
    inner = deep
    for _ in range(200):
        inner = inner.limit.input
    inner.range.end = 1
    allow_deep_plans()
    assert CheckpointCommand(relation=deep).relation == deep


SUBMITTED = """
import os, sys
from hindcast.common.session import open_session
os.umask(0o022)
spark = open_session("test")
spark.range(3).write.format("delta").save(sys.argv[1])
print("authenticates:", spark.sparkContext.getConf().get("spark.authenticate"))
"""


@pytest.mark.parametrize(
    ("given", "others"), [("", 0), pytest.param("027", 0o050, marks=pytest.mark.long)], ids=["ours", "given"]
)
def test_a_session_under_spark_submit_writes_files_that_others_cannot_read(
    tmp_path: Path, given: str, others: int
) -> None:
    script, table = tmp_path / "job.py", tmp_path / "table"
    script.write_text(SUBMITTED)
    umask = f"spark.hadoop.fs.permissions.umask-mode {given}\n" if given else ""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    ours = {"HINDCAST_VAR": str(tmp_path / "var"), "PYTHONPATH": os.pathsep.join(sys.path)}
    properties = tmp_path / "spark.conf"
    properties.write_text(f"{format_defaults_file(read_settings(), small=True)}spark.master local[1]\n{umask}")
    done = subprocess.run(
        [str(venv_folder() / "bin" / "spark-submit"), "--properties-file", str(properties), str(script), str(table)],
        env={**inherited, **spark_environment(), **ours},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "authenticates: true\n", done.stderr
    modes = {str(it.relative_to(table)): it.stat().st_mode & 0o777 for it in (table, *table.rglob("*"))}
    assert "_delta_log/00000000000000000000.json" in modes
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077 & ~others} == {}
    assert modes["."] == 0o700 | others


def test_a_step_of_spark_submit_has_our_umask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask_umask(*_: object) -> TableNote:
        os.umask(umask := os.umask(0))
        return TableNote(umask)

    monkeypatch.setattr(session, "open_session", lambda: None)
    monkeypatch.setattr(run_steps, "replay_topic", ask_umask)
    before = os.umask(0o022)
    try:
        assert main.step("replay", ["restaurant", "1", "menu"]) == 0
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert json.loads(capsys.readouterr().out)["run"] == 0o077


ENDED = """
import os, signal, sys
from pyspark import SparkContext
from hindcast.cli import main
from hindcast.cli.commands import running
from hindcast.common.session import SMALL_STEP_SETTINGS, open_session, override_conf

def run(_, __):
    spark = open_session(small=True)
    with override_conf(spark, SMALL_STEP_SETTINGS):
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        return spark.range(3).count()

main.parse_arguments = lambda _: type("Arguments", (), {"command": run, "target": None, "variables": {}, "failed": 1})
sys.exit(main.main([]))
"""


def test_a_jvm_that_is_killed_is_named_with_what_to_do(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINDCAST_SPARK_MEMORY": "900m"}
    environment |= {"HINDCAST_VAR": str(tmp_path)}
    command = [sys.executable, "-c", ENDED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    said = done.stderr[done.stderr.index("hindcast: ") :]
    assert "hindcast: HINDCAST_SPARK_MEMORY=900m: Spark's JVM has ended by signal 9" in said
    assert "repeat the command: a run continues where it stopped" in said
    assert "Traceback" not in said
