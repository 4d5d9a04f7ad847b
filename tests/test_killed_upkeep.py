"""Trims and maintenance that are killed at every step: the next one finishes them, and nothing is lost or stuck."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from hindcast.cli import main
from hindcast.ingest import trim_ledger
from hindcast.ops import file_layout, maintenance, retention
from hindcast.plan import notices
from hindcast.store.tables import Table
from pipelines import Pipeline, cloned, pipeline, tuples, wrong
from test_retention import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    keep: {table: 10 seconds, quarantine: 1 ms}
    max_malformed: 10
views:
  dear: {table: menu, where: price > 5, keep: 10 seconds}
"""
NAMES = ("menu", "dear")
SCRIPT = Path(__file__).with_name("killed_upkeep.py")


def replay_menu(p: Pipeline) -> None:
    """Two runs, after which the horizon is at 4, with a malformed record and a file in each table that none needs."""
    told(p)
    for name in (*NAMES, "logs/menu", "runs"):
        folder = Path(p.warehouse, p.name, name)
        left = folder / "part-00000-of-a-run-that-died.snappy.parquet"
        shutil.copy(DeltaTable(str(folder)).file_uris()[0].removeprefix("file://"), left)
        os.utime(left, times=(0, time.time() - 30 * 86_400))


def list_rows(p: Pipeline) -> dict[str, Any]:
    """Return the rows of all tables."""
    counts = trim_ledger.read_trim_counts(Table(p.warehouse, p.name, "logs/menu", "log")).to_pylist()
    return {name: p.history(name) for name in NAMES} | {
        "log": sorted(tuples(p.raw("logs/menu"), "partition", "offset", "fate")),
        "counts": sorted(map(str, counts)),
        "quarantine": len(p.raw("quarantine")),
    }


def kill_at_each_step(p: Pipeline, command: str) -> list[str]:
    """Start a process until none is killed any more; return where each was."""
    seen = p.folder / f"{command}.txt"
    seen.touch()
    environ = {**os.environ, **p.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    while True:
        before = seen.read_text(encoding="utf-8")
        with (p.folder / "upkeep.log").open("a") as log:
            process = subprocess.run(
                [sys.executable, str(SCRIPT), command, p.name, str(seen)],
                env=environ,
                start_new_session=True,
                stdout=log,
                stderr=log,
                cwd=p.folder,
                timeout=300,
                check=False,
            )
        if process.returncode == 0:
            return before.splitlines()
        assert process.returncode == -signal.SIGKILL, (p.folder / "upkeep.log").read_text(encoding="utf-8")[-3000:]
        assert p.believed("menu")[-1] == ("soup", 5, 0, None), "readers see whole tables meanwhile"


@pytest.mark.long
@pytest.mark.parametrize("command", ["trim", "maintain"])
def test_upkeep_that_is_killed_at_each_step_is_finished_by_the_next(
    spark: SparkSession, broker: str, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "DEAD_AFTER", 6.0)
    with pipeline(spark, broker, tmp_path, KEPT) as p:
        replay_menu(p)
        twin = cloned(p, tmp_path / "undisturbed")
        with twin.here():
            retention.trim_pipeline(spark, twin.contract)
        if command == "maintain":
            retention.trim_pipeline(spark, p.contract)
        seen = kill_at_each_step(p, command)
        steps = {place.split()[1] for place in seen}
        if command == "trim":
            assert steps >= {"set_properties", "append_rows", "delete_rows", "commit_once", "write_row_counts"}
        else:
            assert steps >= {"_run_statement", "_vacuum_table"}
            assert any(place.startswith("within _run_statement") for place in seen), seen
            monkeypatch.setattr(file_layout, "MIN_FILES", 2)
            again = maintenance.maintain_tables(lambda: spark, p.settings, p.contract)
            assert [(table.table, table.steps, table.left) for table in again.tables if table.steps or table.left] == []
            assert list(Path(p.warehouse).rglob("part-00000-of-a-run-that-died*")) == []
        assert list_rows(p) == list_rows(twin)
        assert wrong(p) == []

        p.send("menu", ("curry", {"price": 7}, 3), ("soup", {"price": 6}, 5))
        p.run()
        assert ("curry", 7, 4, 6) in p.believed("menu")
        assert main.main(["forget", f"{p.name}.menu", "--key", "soup"]) == 0
        assert [row for row in p.history("menu") if row[0] == "soup"] == []
        assert wrong(p) == []
        assert [path.name for path in Path(p.warehouse, p.name, "_notices").glob("*.json")] == []
