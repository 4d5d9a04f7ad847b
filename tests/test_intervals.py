"""Pipelines that only a person or a backfill runs: `intervals` in place of `schedule`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hindcast.common.errors import ContractError
from hindcast.contract import load
from pipelines import RESTAURANT

CODE = """
import json, sys
from datetime import UTC, datetime
from airflow.serialization.serialized_objects import DagSerialization
from hindcast.airflow import dag_factory
from hindcast.common.settings import read_settings
from hindcast.contract import find
settings = read_settings()
dag = DagSerialization.from_dict(DagSerialization.to_dict(
    dag_factory.create_pipeline_dag(settings, find(settings.schemas, "restaurant"))))
moments = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
infos = list(dag.iter_dagrun_infos_between(*moments))
following = [dag.next_dagrun_info(last_automated_run_info=last).run_after.year for last in (None, infos[-1])]
print(json.dumps([dag.timetable.periodic, [info.logical_date.isoformat() for info in infos], following]))
"""


def write(folder: Path, more: str) -> Path:
    path = folder / "restaurant.yaml"
    path.write_text(RESTAURANT.replace("start: 2026-01-01", f"start: 2026-06-01\n{more}"), encoding="utf-8")
    return path


def test_airflow_backfills_any_date_and_runs_none_by_itself(tmp_path: Path) -> None:
    write(tmp_path, 'intervals: "@daily"')
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINDCAST_SCHEMAS": str(tmp_path)}
    env |= {"AIRFLOW_HOME": str(tmp_path / "airflow"), "HINDCAST_VAR": str(tmp_path / "var")}
    command = [sys.executable, "-W", "ignore", "-c", CODE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    periodic, backfilled, years = json.loads(done.stdout.splitlines()[-1])
    assert periodic, "others are refused by Airflow"
    assert backfilled == [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3)], "before start"
    assert years == [2999, 2999], "also after a backfill"


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ('intervals: "@daily"\nschedule: "@daily"', "there are intervals beside the schedule"),
        ('intervals: "@daily"\ncatchup: true', "there is no schedule that could catch up"),
        ("intervals: inputs", "intervals 'inputs' is not a cron expression"),
        ('intervals: "60 * * * *"', "is a cron expression that Airflow refuses"),
    ],
)
def test_odd_intervals_are_refused_with_their_line(more: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=found.replace("*", r"\*")) as refused:
        load(write(tmp_path, more))
    assert refused.value.where.rpartition(":")[2] in ("4", "5")


def test_intervals_change_no_answer_and_no_hash(tmp_path: Path) -> None:
    assert load(write(tmp_path, 'intervals: "@daily"')).hash == load(write(tmp_path, "")).hash
