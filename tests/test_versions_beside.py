"""Scheduler, workers and Spark server of different versions of Hindcast, which do not work on one run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast import __version__
from hindcast.common import spark_connect
from hindcast.common.errors import PlatformError, RequestError, RunError
from hindcast.plan import journal, planner
from hindcast.plan.plans import Plan
from hindcast.runs import run_steps
from hindcast.runs.table_steps import TABLE_STEPS
from pipelines import Pipeline, pipeline


def set_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    for module in (planner, run_steps):
        monkeypatch.setattr(module, "__version__", version)


def do_step(p: Pipeline, run: int) -> None:
    spark: Any = None  # refused before
    run_steps.execute_step(spark, p.settings, p.name, run, TABLE_STEPS["replay"], "menu")


def test_a_step_of_another_version_is_refused_before_it_does_anything(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(None, broker, tmp_path) as p:
        set_version(monkeypatch, "0.2.0")
        run = run_steps.plan_run(p.settings, p.name, "first")
        set_version(monkeypatch, "0.1.0")
        for step in (lambda: do_step(p, run), lambda: run_steps.finish_run(p.settings, p.name, run)):
            with pytest.raises(RequestError, match=r"planned by Hindcast 0\.2\.0, and this is 0\.1\.0") as refused:
                step()
            assert "clear the run from its plan task on" in refused.value.fix
        assert not (Path(p.warehouse) / p.name / "logs").exists()
        assert run_steps.plan_run(p.settings, p.name, "first") == run + 1, "nothing was written: it is planned anew"
        assert p.states() == [(run, "abandoned"), (run + 1, "planned")]


def test_what_another_version_has_begun_to_write_it_must_finish(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(None, broker, tmp_path) as p:
        set_version(monkeypatch, "0.2.0")
        run_steps.plan_run(p.settings, p.name, "first")
        set_version(monkeypatch, "0.1.0")
        monkeypatch.setattr(planner, "_has_committed", lambda *_: True)
        with pytest.raises(RunError, match=r"begun by Hindcast 0\.2\.0, and this is 0\.1\.0") as refused:
            run_steps.plan_run(p.settings, p.name, "first")
        assert "hindcast abandon restaurant" in refused.value.fix


def test_plans_of_before_say_no_version_and_go_on(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        run_steps.plan_run(p.settings, p.name, "first")
        (run,) = journal.read_runs(p.warehouse, p.name)
    assert run.plan.version == __version__
    document = json.loads(json.dumps(run.plan.as_json()))
    del document["version"]
    old = Plan.from_json(document)
    assert old == replace(run.plan, version="")
    assert planner.is_of_this_version(old)


@pytest.mark.parametrize(("version", "refused"), [(None, False), (__version__, False), ("9.0", True)])
def test_a_spark_server_of_another_version_is_refused(
    version: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_connect, "read_conf", lambda _, names: dict.fromkeys(names, version))
    spark: Any = SimpleNamespace()
    if not refused:
        return spark_connect._refuse_other_version(spark, "sc://here:1")
    with pytest.raises(PlatformError, match=f"has Hindcast 9.0, and this is {__version__}"):
        spark_connect._refuse_other_version(spark, "sc://here:1/;token=secret")
    return None
