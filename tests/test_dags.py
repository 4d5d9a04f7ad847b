"""The DAGs that contracts become, as Airflow's DAG processor sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines import RESTAURANT

ROOT = Path(__file__).parents[1]

PROBE = """
import json, logging, sys, time
logging.disable(logging.CRITICAL)
from airflow.dag_processing.dagbag import DagBag
import airflow.providers.apache.spark.operators.spark_pyspark, airflow.providers.apache.spark.operators.spark_submit
import airflow.sdk
known = set(sys.modules)
started = time.monotonic()
bag = DagBag(sys.argv[1])
told = {
    "seconds": time.monotonic() - started,
    "errors": bag.import_errors,
    "modules": sorted(set(sys.modules) - known),
    "dags": {
        name: {
            "tasks": {t.task_id: sorted(t.downstream_task_ids) for t in dag.tasks},
            "operators": {t.task_id: type(t).__name__ for t in dag.tasks},
            "arguments": {t.task_id: getattr(t, "application_args", None) for t in dag.tasks},
            "tags": sorted(dag.tags),
            "doc": dag.doc_md,
            "interval": type(dag.timetable).__name__,
            "active": dag.max_active_runs,
        }
        for name, dag in bag.dags.items()
    },
}
print(json.dumps(told))
"""


GATED = (
    RESTAURANT.replace("pipeline: restaurant", "pipeline: gated")
    + """\
    expect:
      - expect_column_values_to_be_between: {column: amount, min_value: 0}
        on_failure: quarantine
  named:
    stream: orders
    select: {item: item}
    expect:
      - expect_foreign_keys_to_be_found: {column: item, table: menu}
"""
)


def parsed(folder: Path, **environ: str) -> dict[str, Any]:
    """The DAGs of the contracts in a folder, parsed in a process of its own."""
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PYTHONPATH": str(ROOT / "jobs"),
        "HINDCAST_SCHEMAS": str(folder),
        **environ,
    }
    command = [sys.executable, "-W", "ignore", "-c", PROBE, str(ROOT / "dags")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A good contract, one with a schedule, and every way in which one can be broken."""
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "restaurant.yaml").write_text(RESTAURANT)
    (folder / "hourly.yaml").write_text(
        RESTAURANT.replace("pipeline: restaurant", 'pipeline: hourly\nschedule: "@hourly"')
    )
    (folder / "gated.yaml").write_text(GATED)
    (folder / "typo.yaml").write_text(RESTAURANT.replace("stream: orders", "stream: order"))
    (folder / "my notes (old).yaml").write_text("topics: [")
    (folder / "twin.yaml").write_text(RESTAURANT)
    return parsed(folder)


def test_a_contract_becomes_a_dag_with_tasks_named_after_it(dags: dict[str, Any]) -> None:
    assert dags["errors"] == {}
    assert dags["dags"]["restaurant"]["tasks"] == {
        "plan": ["build.bills", "preview", "replay.menu", "replay.orders", "report"],
        "replay.menu": ["build.bills", "report"],
        "replay.orders": ["build.bills", "report"],
        "build.bills": ["report"],
        "report": [],
        "preview": [],
    }
    assert dags["dags"]["restaurant"]["active"] == 1
    assert "| bills | view | orders with menu |" in dags["dags"]["restaurant"]["doc"]


def test_where_changes_can_be_held_back_a_second_dag_asks_for_their_release(dags: dict[str, Any]) -> None:
    gated, release = dags["dags"]["gated"], dags["dags"]["gated__release"]
    assert (gated["tasks"]["report"], gated["operators"]["ask"]) == (["ask"], "TriggerDagRunOperator")
    assert release["tasks"] == {"held": ["approve"], "approve": ["reject", "release"], "release": [], "reject": []}
    assert (release["operators"]["approve"], release["active"]) == ("Approval", 1)
    assert "restaurant__release" not in dags["dags"]


def test_a_gate_waits_for_the_table_that_it_looks_into(dags: dict[str, Any]) -> None:
    assert "build.named" in dags["dags"]["gated"]["tasks"]["replay.menu"]


def test_schedules_have_intervals(dags: dict[str, Any]) -> None:
    assert dags["dags"]["hourly"]["interval"] == "CronDataIntervalTimetable"
    assert dags["dags"]["restaurant"]["interval"] == "NullTimetable"


def test_a_broken_contract_becomes_a_dag_that_says_so(dags: dict[str, Any]) -> None:
    typo = dags["dags"]["typo"]
    assert (typo["tags"], list(typo["tasks"])) == (["broken contract", "hindcast"], ["contract"])
    assert "no stream 'order'" in typo["doc"]
    assert "did you mean 'orders'?" in typo["doc"]
    assert "typo.yaml:" in typo["doc"]


def test_any_file_name_does(dags: dict[str, Any]) -> None:
    assert "is not YAML" in dags["dags"]["my_notes__old_"]["doc"]


def test_of_two_contracts_of_one_name_the_second_is_broken(dags: dict[str, Any]) -> None:
    assert "is also the name in" in dags["dags"]["twin"]["doc"]
    assert sorted(dags["dags"]) == [
        *("gated", "gated__release", "hourly", "my_notes__old_", "restaurant", "twin", "typo")
    ]


def test_parsing_is_quick_and_brings_in_neither_spark_nor_clients(dags: dict[str, Any]) -> None:
    heavy = {"pyspark", "delta", "deltalake", "duckdb", "great_expectations", "confluent_kafka", "pandas", "pyarrow"}
    assert heavy & {name.split(".")[0] for name in dags["modules"]} == set()
    assert dags["seconds"] < 5


def test_work_can_go_through_spark_submit(tmp_path: Path) -> None:
    (tmp_path / "restaurant.yaml").write_text(RESTAURANT)
    dag = parsed(tmp_path, HINDCAST_SPARK="submit")["dags"]["restaurant"]
    assert dag["operators"]["replay.menu"] == "SparkSubmitOperator"
    assert dag["arguments"]["build.bills"] == ["restaurant", "{{ ti.xcom_pull(task_ids='plan') }}", "bills"]
