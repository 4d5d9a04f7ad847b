"""docs/backup.md, followed: a copy while runs go on, put back, and the next run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.common.errors import HindcastError
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import journal
from pipelines import Pipeline, pipeline, wrong
from test_compare import delete_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parent.parent / "docs" / "backup.md"
SCRIPT, CHECK, RESTORE = re.findall(
    r"^ *```sh\n(.*?)^ *```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


def do(p: Pipeline, script: str, backup: Path, *arguments: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    names = {"BACKUP": str(backup), "PIPELINE": p.name, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["/bin/sh", "-c", script, "backup.sh", *arguments],
        env={**os.environ, **p.environ, **names},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def order(p: Pipeline, *customers: str) -> None:
    p.send("orders", *((name, {"item": "curry", "quantity": 2}, 5) for name in customers))


@pytest.mark.long
@pytest.mark.ci
def test_a_copy_that_was_made_beside_runs_is_put_back_and_the_next_run_goes_on(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        order(p, "anna")
        p.run()
        backup = tmp_path / "backup"
        backup.mkdir()

        def go_on() -> None:
            for name in ("bob", "candace", "dan"):
                order(p, name)
                p.run()

        beside = threading.Thread(target=go_on)
        beside.start()
        do(p, SCRIPT, backup, p.name, str(backup))
        beside.join()
        do(p, CHECK, backup)
        order(p, "eve")
        p.run()
        believed, runs = p.believed("bills"), len(p.states())

        do(p, RESTORE, backup)
        restored = p.states()
        assert 1 <= len(restored) < runs
        if restored[-1][1] == "planned":  # it is finished first, as the page says
            p.run(journal.read_runs(p.warehouse, p.name)[-1].run_id)
        p.run()
        assert p.believed("bills") == believed
        assert wrong(p) == []


@pytest.mark.long
def test_what_kafka_has_lost_since_the_backup_stops_the_run_until_the_gap_is_accepted(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        order(p, "anna")
        p.run()
        backup = tmp_path / "backup"
        backup.mkdir()
        do(p, SCRIPT, backup, p.name, str(backup))
        order(p, "bob", "candace")
        p.run()
        do(p, RESTORE, backup)
        delete_before(broker, p.kafka("orders"), 2)
        with pytest.raises(HindcastError, match="gone from Kafka") as refused:
            p.run()
        assert "on_gap: record" in refused.value.fix
        text = p.path.read_text(encoding="utf-8")
        p.path.write_text(text.replace("read: stream", "read: stream\n    on_gap: record"), encoding="utf-8")
        p.run()
        assert [row[0] for row in p.believed("bills")] == ["anna", "candace"]


@pytest.mark.parametrize("hindcast", [None, "exit 3", "echo run; echo 1"])
def test_a_copy_that_cannot_be_checked_is_no_backup(hindcast: str | None, tmp_path: Path) -> None:
    """If `hindcast` is not found, or fails."""
    (tmp_path / "warehouse" / "shop" / "runs").mkdir(parents=True)
    programs, backup = tmp_path / "bin", tmp_path / "backup"
    for folder in (programs, backup):
        folder.mkdir()
    if hindcast is not None:
        (programs / "hindcast").write_text(f"#!/bin/sh\n{hindcast}\n")
        (programs / "hindcast").chmod(0o755)
    environ = {"PATH": f"{programs}:/usr/bin:/bin", "HINDCAST_WAREHOUSE": str(tmp_path / "warehouse")}
    done = subprocess.run(["/bin/sh", "-c", SCRIPT, "backup.sh", "shop", str(backup)], env=environ, check=False)
    assert (done.returncode == 0) == (hindcast == "echo run; echo 1")


@pytest.mark.parametrize("lost", ["menu", "runs"])
def test_a_copy_of_two_moments_is_found(lost: str, restaurant: Pipeline, tmp_path: Path) -> None:
    """What the script prevents: a table, or the journal, is older than the rest."""
    from pipelines import cloned

    p = cloned(restaurant, tmp_path)
    with p.here():
        log = Path(p.warehouse, p.name, lost, "_delta_log")
        newest = sorted(log.glob("[0-9]*.json"))[1:]
        for commit in newest:
            commit.unlink()
        assert verify_tables(p.contract).findings
