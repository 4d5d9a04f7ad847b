"""The DAGs that contracts become, as Airflow's DAG processor sees them."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.context import Context

from hindcast.airflow import dag_factory, dag_loading, run_requests, spark_tasks, tasks
from hindcast.airflow.created_dags import CreatedDags
from hindcast.airflow.dag_loading import create_broken_dag, create_dags, load_dags
from hindcast.airflow.pages import catalog
from hindcast.airflow.spark_tasks import list_submit_options, read_contracts_of
from hindcast.cli import main
from hindcast.common import settings as settings_module
from hindcast.common.errors import ContractError, SettingsError
from hindcast.common.settings import SCHEMAS_VARIABLE, read_settings
from hindcast.common.targets import Choice
from hindcast.contract import (
    Contract,
    bounds,
    refuse_many_tables,
    schedule,
    task_options,
    try_load,
    try_load_all,
)
from hindcast.ops import maintenance
from hindcast.runs.table_steps import TABLE_STEPS
from pipelines import RESTAURANT
from warehouses import settings_of

ROOT = Path(__file__).parents[1]

FARES = """
pipeline: fares
start: 2026-01-01
topics:
  fares: {read: table, key: {route: string}, value: {price: int}, arrival: header sent}
"""

PROBE = """
import json, logging, sys, time
from datetime import UTC, datetime
logging.disable(logging.CRITICAL)
from airflow.dag_processing.dagbag import DagBag
import airflow.providers.apache.spark.operators.spark_pyspark, airflow.providers.apache.spark.operators.spark_submit
import airflow.sdk
known = set(sys.modules)
connections = []
sys.addaudithook(lambda event, given: connections.append(str(given[1])) if event == "socket.connect" else None)
started = time.process_time()
bag = DagBag(sys.argv[1])
seconds = time.process_time() - started
modules = sorted(set(sys.modules) - known)
from types import SimpleNamespace
from airflow.serialization.serialized_objects import DagSerialization
def as_the_scheduler_has_it(dag):
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    weights = [
        sorted({t.weight_rule.get_weight(SimpleNamespace(run_id=f"{kind}__1", task=t)) for t in stored.tasks})
        for kind in ("backfill", "scheduled", "manual")
    ]
    starts = [asset.name for _, asset in stored.timetable.asset_condition.iter_assets()]
    return {"weights": weights, "starts": starts}
def choice(dag):
    if "approve" not in dag.task_ids:
        return None
    approval = dag.get_task("approve")
    approval.offer(["menu one", "menu two"])
    asked = approval.serialized_params["keys"]
    reason = approval.serialized_params["reason"]
    approval.validate_params_input({"keys": ["menu two"], "reason": None})
    approval.validate_params_input({"keys": ["menu two"], "reason": "seen"})
    chosen = approval.params["keys"]
    return {"schema": asked["schema"], "value": asked["value"], "chosen": chosen, "reason": reason["schema"]["type"]}
class Instance:
    # The instance of the task `approve`, of which other tasks ask what a person has answered.
    def __init__(self):
        self.pushed = {}
    def xcom_pull(self, task_ids):
        return {"held": {"keys": ["menu one", "menu two"]}}[task_ids]
    def xcom_push(self, key, value):
        self.pushed[key] = value
def answer(dag, option, user, params_input):
    # Which tasks an answer leads to, and what these are told of it.
    approval, instance = dag.get_task("approve"), Instance()
    approval.do_branch = lambda context, branches_to_execute: branches_to_execute
    event = {"chosen_options": [option], "responded_by_user": user, "params_input": params_input}
    ways = approval.execute_complete({"ti": instance}, {**event, "responded_at": datetime(2026, 1, 2, tzinfo=UTC)})
    assert instance.pushed.pop("at") == "2026-01-02T00:00:00+00:00"
    return [ways, instance.pushed]
def fail(dag, event):
    # The error of an event that is no answer.
    try:
        dag.get_task("approve").execute_complete({"ti": Instance()}, event)
    except Exception as error:
        return type(error).__name__
def answers(dag):
    if "approve" not in dag.task_ids:
        return None
    ann, some = {"id": "1", "name": "ann"}, {"keys": ["menu two"], "reason": " seen "}
    return [
        answer(dag, "Approve", ann, some),
        answer(dag, "Reject", ann, some),
        answer(dag, "Approve", None, {"keys": []}),
        answer(dag, "Approve", ann, {"keys": None}),
        answer(dag, "Approve", ann, {"reason": "by a program"}),
        answer(dag, "Reject", ann, None),
        fail(dag, {"error": "nobody has answered", "error_type": "timeout"}),
    ]
told = {
    "seconds": seconds,
    "errors": bag.import_errors,
    "modules": modules,
    "connections": connections,
    "dags": {
        name: {
            "tasks": {t.task_id: sorted(t.downstream_task_ids) for t in dag.tasks},
            "operators": {t.task_id: type(t).__name__ for t in dag.tasks},
            "arguments": {t.task_id: getattr(t, "application_args", None) for t in dag.tasks},
            "choice": choice(dag),
            "answers": answers(dag),
            "form": {name: param.serialize() for name, param in dag.params.items()},
            "outlets": {t.task_id: [asset.name for asset in t.outlets] for t in dag.tasks if t.outlets},
            "mapped": {t.task_id: [t.task_type, *t.expand_input.value] for t in dag.tasks if t.is_mapped},
            "waits": {t.task_id: [t.mode, t.poke_interval, t.timeout] for t in dag.tasks if hasattr(t, "mode")},
            "pools": {t.task_id: t.pool for t in dag.tasks},
            "docs": {t.task_id: t.doc_md for t in dag.tasks},
            "tags": sorted(dag.tags),
            "doc": dag.doc_md,
            "interval": type(dag.timetable).__name__,
            "active": dag.max_active_runs,
            **(as_the_scheduler_has_it(dag) if len(bag.dags) < 20 else {}),
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


TIPS = """
pipeline: tips
schedule: inputs
start: 2026-01-01
topics:
  tips: {read: stream, key: {customer: string}, value: {item: string, percent: int}}
inputs:
  menu: {table: restaurant.menu, key: {item: string}, value: {price: "decimal(8,2)"}}
  bills: {table: gated.bills, read: stream, key: {customer: string}, value: {amount: "decimal(19,2)"}}
views:
  tipped: {stream: tips, join: {table: menu, on: item}}
  large: {stream: bills, where: amount > 100}
"""


def parsed(folder: Path, *, dags: Path = ROOT / "dags", **environ: str) -> dict[str, Any]:
    """The DAGs of the contracts in a folder, parsed in a process of its own; `dags`: the folder of the DAG files."""
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PYTHONPATH": str(ROOT / "jobs"),
        "HINDCAST_SCHEMAS": str(folder),
        **environ,
    }
    command = [sys.executable, "-W", "ignore", "-c", PROBE, str(dags)]
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
    (folder / "fares.yaml").write_text(FARES)
    (folder / "tips.yaml").write_text(TIPS)
    (folder / "typo.yaml").write_text(RESTAURANT.replace("stream: orders", "stream: order"))
    (folder / "my notes (old).yaml").write_text("topics: [")
    (folder / "odd.yaml").write_text(RESTAURANT.replace("start: 2026-01-01", "start: 2026-02-30"))
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
    assert dags["dags"]["restaurant"]["operators"]["preview"] == "StartPreview"
    assert "| bills | view | orders with menu |" in dags["dags"]["restaurant"]["doc"]


def test_a_pipeline_whose_topics_have_arrivals_can_be_rehearsed_by_its_form(dags: dict[str, Any]) -> None:
    fares = dags["dags"]["fares"]
    assert fares["tasks"] == {
        "plan": ["preview", "rehearse", "replay.fares", "report"],
        "rehearse": ["replay.fares", "report"],
        "replay.fares": ["report"],
        "report": [],
        "preview": [],
    }
    assert fares["form"]["replay"]["schema"]["enum"] == ["interval", "everything", "rehearsal"]
    assert [*fares["form"]] == ["replay", "earlier", "until", "only", "preview", "reason"]
    assert [*dags["dags"]["fares__preview"]["form"]] == ["until", "only"]
    others = dags["dags"]["restaurant"]
    assert (others["form"]["replay"]["schema"]["enum"], "earlier" in others["form"]) == (
        ["interval", "everything"],
        False,
    )


def test_each_task_says_what_it_does_and_which_gates_it_asks(dags: dict[str, Any]) -> None:
    told = dags["dags"]["gated"]["docs"]
    assert "publishes `gated.bills` in one commit" in told["build.bills"]
    assert "`expect_column_values_to_be_between` (quarantine)" in told["build.bills"]
    assert "`restaurant.menu`" in told["replay.menu"] or "`menu`" in told["replay.menu"]
    assert told["plan"]
    assert told["report"]


def test_where_changes_can_be_held_back_a_second_dag_asks_for_their_release(dags: dict[str, Any]) -> None:
    gated, release = dags["dags"]["gated"], dags["dags"]["gated__release"]
    assert (gated["tasks"]["report"], gated["operators"]["ask"]) == (["ask"], "TriggerDagRunOperator")
    assert release["tasks"] == {
        "held": ["approve"],
        "approve": ["plan", "reject"],
        "plan": ["release"],
        "release": ["report"],
        "report": [],
        "reject": [],
    }
    assert (release["operators"]["approve"], release["active"]) == ("Approval", 1)
    assert release["waits"]["plan"] == release["waits"]["reject"] == ["reschedule", 10, 24 * 3600]
    choice = release["choice"]
    assert (choice["value"], choice["chosen"]) == ([], ["menu two"])
    assert (choice["schema"]["type"], choice["schema"]["examples"]) == (["array", "null"], ["menu one", "menu two"])
    assert choice["reason"] == ["string", "null"]
    assert "restaurant__release" not in dags["dags"]


def test_tasks_after_an_answer_are_told_who_gave_it_about_which_keys_and_why(dags: dict[str, Any]) -> None:
    every = ["menu one", "menu two"]
    assert dags["dags"]["gated__release"]["answers"] == [
        [["plan"], {"by": "ann", "keys": ["menu two"], "reason": "seen"}],
        [["reject"], {"by": "ann", "keys": ["menu two"], "reason": "seen"}],
        [["plan"], {"by": "Airflow", "keys": every, "reason": ""}],
        [["plan"], {"by": "ann", "keys": every, "reason": ""}],
        [["plan"], {"by": "ann", "keys": every, "reason": "by a program"}],
        [["reject"], {"by": "ann", "keys": every, "reason": ""}],
        "HITLTimeoutError",
    ]


def test_a_preview_has_a_dag_of_its_own_and_takes_slots_after_all_runs(dags: dict[str, Any]) -> None:
    preview = dags["dags"]["tips__preview"]
    assert (preview["tasks"], preview["operators"]) == ({"preview": []}, {"preview": "SharedSpark"})
    assert (preview["weights"], preview["tags"]) == ([[0]] * 3, ["hindcast", "preview"])
    assert tuple(preview["form"]) == run_requests.PREVIEW_FIELDS
    assert preview["form"]["only"]["schema"]["enum"] == [None, "tips", "menu", "bills", "tipped", "large"]


def test_no_argument_of_a_step_has_the_name_of_something_that_airflow_passes_by_itself() -> None:
    calls = [*spark_tasks._CALLS.values(), *(tasks.table_callable(step) for step in TABLE_STEPS.values())]
    found = {name for call in calls for name in list(inspect.signature(call).parameters)}
    assert {"pipeline", "spark"} <= found
    assert not found & Context.__annotations__.keys()


def test_a_gate_waits_for_the_table_that_it_looks_into(dags: dict[str, Any]) -> None:
    assert "build.named" in dags["dags"]["gated"]["tasks"]["replay.menu"]


def test_schedules_have_intervals(dags: dict[str, Any]) -> None:
    assert dags["dags"]["hourly"]["interval"] == "CronDataIntervalTimetable"
    assert dags["dags"]["restaurant"]["interval"] == "NullTimetable"


def test_a_pipeline_can_start_when_a_table_that_it_reads_was_published(dags: dict[str, Any]) -> None:
    tips = dags["dags"]["tips"]
    assert (tips["interval"], tips["starts"]) == ("AssetTriggeredTimetable", ["restaurant.menu", "gated.bills"])


def test_what_a_run_publishes_is_told_by_the_task_that_completes_it(dags: dict[str, Any]) -> None:
    assert dags["dags"]["restaurant"]["outlets"] == {"report": ["restaurant"]}
    assert dags["dags"]["gated__release"]["outlets"] == {"report": ["gated"]}


@pytest.mark.parametrize(
    ("field", "value", "takes"),
    [
        ("replay", "interval", True),
        ("replay", "everything", True),
        ("replay", "twice", False),
        ("until", "2026-01-01T00:00:00Z", True),
        ("until", "2026-01-01", True),
        ("until", "yesterday", False),
        ("until", "2026-01-01T24", False),
        ("only", "menu", True),
        ("only", "bills", True),
        ("only", "meno", False),
        ("preview", True, True),
        ("preview", "perhaps", False),
        ("reason", "the till was wrong", True),
        ("reason", "x" * 501, False),
    ],
)
def test_what_the_form_takes(dags: dict[str, Any], field: str, value: object, takes: bool) -> None:
    schema = dags["dags"]["restaurant"]["form"][field]["schema"]
    assert jsonschema.Draft202012Validator(schema).is_valid(value) == takes


def test_the_forms_defaults_ask_for_nothing_special(dags: dict[str, Any]) -> None:
    form = dags["dags"]["restaurant"]["form"]
    assert {name: field["value"] for name, field in form.items()} == {
        "replay": "interval",
        "until": None,
        "only": None,
        "preview": False,
        "reason": None,
    }
    assert tuple(dags["dags"]["fares"]["form"]) == run_requests.RUN_FIELDS


def test_tasks_of_fresh_runs_go_ahead_of_those_of_backfills(dags: dict[str, Any]) -> None:
    assert dags["dags"]["restaurant"]["weights"] == [[1], [10], [10]]


def test_a_broken_contract_becomes_a_dag_that_says_so(dags: dict[str, Any]) -> None:
    typo = dags["dags"]["typo"]
    assert (typo["tags"], list(typo["tasks"])) == (["broken contract", "hindcast"], ["contract"])
    assert "no stream 'order'" in typo["doc"]
    assert "did you mean 'orders'?" in typo["doc"]
    assert "typo.yaml:" in typo["doc"]


def test_a_date_that_there_is_not_breaks_its_own_dag_alone(dags: dict[str, Any]) -> None:
    assert "odd.yaml:3: start: '2026-02-30' is not a valid timestamp" in dags["dags"]["odd"]["doc"]
    assert list(dags["dags"]["restaurant"]["tasks"]) != ["contract"]


def test_any_file_name_does(dags: dict[str, Any]) -> None:
    assert "is not YAML" in dags["dags"]["my_notes__old_"]["doc"]


def test_of_two_contracts_of_one_name_the_second_is_broken(dags: dict[str, Any]) -> None:
    assert "is already used in" in dags["dags"]["twin"]["doc"]
    assert sorted(dags["dags"]) == [
        *("fares", "fares__preview", "gated", "gated__preview", "gated__release", "hindcast_maintenance"),
        *("hourly", "hourly__preview"),
        *("my_notes__old_", "odd", "restaurant", "restaurant__preview", "tips", "tips__preview", "twin", "typo"),
    ]


def test_the_pages_know_a_broken_contract_by_the_id_of_its_dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that who may read that DAG, and nobody else, is shown what is wrong."""
    (tmp_path / "restaurant.yml").write_text(RESTAURANT)
    (tmp_path / "gated.yaml").write_text(GATED)
    names = ("restaurant", "restaurant__broken", "restaurant__preview", "restaurant__release", "gated__release")
    for name in (*names, "my pipeline", "my?pipeline", "hindcast_maintenance", "hindcast_maintenance__b", "x" * 240):
        (tmp_path / f"{name}.yaml").write_text("pipeline: other" if name == "restaurant" else "x")
    (tmp_path / "my pipeline.yml").write_text("y")
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    dags = {dag_id: dag["doc"] for dag_id, dag in parsed(tmp_path)["dags"].items() if "broken contract" in dag["tags"]}
    assert dags == {
        dag_id: f"```\n{error}\n```" for dag_id, error in catalog.load_contracts(settings_of(tmp_path))[1].items()
    }
    assert sorted(dags) == [
        *("broken__hindcast_maintenance", "broken__hindcast_maintenance__b", "gated__release__broken"),
        *("my_pipeline", "my_pipeline__broken"),
        *("my_pipeline__broken_2", "restaurant__broken", "restaurant__broken__broken"),
        *("restaurant__preview__broken", "restaurant__release", "x" * 200),
    ]
    assert catalog.pipeline_of_dag(settings_of(tmp_path), "restaurant__release") == "restaurant__release", (
        "it is no DAG of the restaurant's"
    )
    assert catalog.pipeline_of_dag(settings_of(tmp_path), "gated__release") == "gated"


@pytest.mark.filterwarnings("ignore")  # Airflow's own
@pytest.mark.parametrize("stems", [[chr(0x4E00 + n) for n in range(40)], ["a" * 200 + str(n) for n in range(10)]])
def test_broken_files_of_like_names_take_no_dag_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stems: list[str]
) -> None:
    for stem in stems:
        (tmp_path / f"{stem}.yaml").write_text("x")
    (tmp_path / "restaurant.yaml").write_text(RESTAURANT)
    settings = replace(read_settings(), schemas=tmp_path)
    dags = load_dags(settings, CreatedDags())
    assert (len(dags), dags.keys() >= {"restaurant", "restaurant__preview"}) == (len(stems) + 2, True)

    def fail_at_second(dag_id: str, error: Exception) -> DAG:
        if dag_id.endswith("__broken"):
            raise ValueError("Airflow does not like it")
        return create_broken_dag(dag_id, error)

    monkeypatch.setattr(dag_loading, "create_broken_dag", fail_at_second)
    assert load_dags(settings, CreatedDags()).keys() == {it for it in dags if not it.endswith("__broken")}


@pytest.mark.filterwarnings("ignore")  # Airflow's own
def test_a_dag_file_reads_no_contract_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a busy machine gives it little of a processor."""
    (tmp_path / "restaurant.yaml").write_text(RESTAURANT)
    (tmp_path / "large.yaml").write_text(f"{RESTAURANT}# more")
    now = [0.0]

    def read_slowly(path: Path, seconds: float) -> Contract | ContractError:
        now[0] += bounds.DAG_FILE_SECONDS
        return try_load(path, seconds)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(dag_loading, "try_load_all", partial(try_load_all, read_one=read_slowly))
    dags = load_dags(replace(read_settings(), schemas=tmp_path), CreatedDags())
    assert dags.keys() == {"restaurant", "restaurant__preview", "large"}
    assert "is not read: no time is left" in str(dags["large"].doc_md)


def test_no_more_dags_report_errors_than_a_folder_may_have_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.yaml").write_text("x" if name == "d" else "")
    monkeypatch.setattr(bounds, "FOLDER_FILES", 2)
    dags = load_dags(replace(read_settings(), schemas=tmp_path), CreatedDags())
    assert dags.keys() == {"a", "d"}, "empty files are read last"
    assert "2 contracts have no DAG" in caplog.text


FOLDERS = """
# The DAGs of our contracts in Airflow.
from hindcast.airflow import maintenance, pipeline, pipelines

globals().update({**pipelines("a"), **maintenance("a"), **pipelines("b"), **maintenance("b")})
globals().update({**maintenance("a"), **maintenance("c/b")})
try:
    globals().update(pipeline("restaurant", "b"))
except Exception as error:
    globals().update(pipeline("tips", "b"))
    from hindcast.airflow.dag_loading import create_broken_dag

    dag = create_broken_dag("error_of_pipeline", error)
"""


@pytest.mark.long
@pytest.mark.ci
def test_no_folder_replaces_the_dags_of_another(tmp_path: Path) -> None:
    for folder, files in {
        "a": {"restaurant": RESTAURANT, "half": "x", "hourly": "pipeline: other", "gated": "pipeline: gated"},
        "b": {"restaurant": RESTAURANT + "# of b", "half": "y", "tips": TIPS, "gates": GATED},
        "c/b": {},
    }.items():
        (tmp_path / "dags" / folder).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / "dags" / folder / f"{name}.yaml").write_text(text)
    hourly = RESTAURANT.replace("pipeline: restaurant", "pipeline: hourly")
    (tmp_path / "dags" / "b" / "hourly.yml").write_text(hourly)
    for name in ("hindcast_maintenance__b", "tips__preview"):
        (tmp_path / "dags" / "a" / f"{name}.yaml").write_text("z")
    (tmp_path / "dags" / "ours.py").write_text(FOLDERS)
    read = parsed(tmp_path, dags=tmp_path / "dags")
    assert read["errors"] == {}
    docs = {dag_id: dag["doc"] for dag_id, dag in read["dags"].items() if "broken contract" in dag["tags"]}
    assert sorted(docs) == [
        *("broken__hindcast_maintenance__b", "error_of_pipeline", "gated", "gates", "half", "half__broken"),
        *("hourly__broken", "restaurant__broken", "tips__preview__broken"),
    ]
    assert "dags/a/gated.yaml" in docs["gated"], "a contract keeps its pipeline while it does not load"
    assert f"b/gates.yaml:2: pipeline 'gated' is already used in {tmp_path}/dags/a" in docs["gates"]
    for dag_id in ("restaurant__broken", "error_of_pipeline"):
        assert f"b/restaurant.yaml:2: pipeline 'restaurant' is already used in {tmp_path}/dags/a" in docs[dag_id]
    assert "dags/a/half.yaml" in docs["half"]
    assert "dags/b/half.yaml" in docs["half__broken"]
    assert "dags/a/hourly.yaml" in docs["hourly__broken"], (
        "a contract that loads replaces one of another pipeline that does not"
    )
    assert sorted(read["dags"].keys() - docs.keys()) == [
        *("hindcast_maintenance", "hindcast_maintenance__b", "hindcast_maintenance__b_2"),
        *("hourly", "hourly__preview", "restaurant", "restaurant__preview", "tips", "tips__preview"),
    ]
    for started in ("hourly", "restaurant__broken", "gated"):
        own = parsed(tmp_path, dags=tmp_path / "dags", _AIRFLOW_PARSING_CONTEXT_DAG_ID=started)["dags"]
        assert own[started]["doc"] == read["dags"][started]["doc"], started


@pytest.mark.filterwarnings("ignore")  # Airflow's own
def test_tasks_have_no_copies_of_the_form(tmp_path: Path) -> None:
    """Airflow would write and check them once more for each task: most of the time that a large DAG takes."""
    (tmp_path / "restaurant.yaml").write_text(RESTAURANT)
    created, broken = create_dags(read_settings(), try_load_all(tmp_path))
    assert broken == {}
    dag = created["restaurant"]
    assert {"replay", "until", "only"} <= dag.params.keys()
    assert [task.task_id for task in dag.tasks if task.params] == []


@pytest.mark.filterwarnings("ignore")  # Airflow's own
def test_tasks_have_the_options_that_a_contract_asks_for(tmp_path: Path) -> None:
    options = """
airflow:
  owner: kitchen
  tags: [food]
  retries: 4
  queue: spark
  timeout: 2 hours
  tables:
    orders: {pool: large, timeout: 2 days, retries: 0}
topics:
"""
    text = RESTAURANT.replace("\ntopics:\n", options, 1)
    (tmp_path / "restaurant.yaml").write_text(text)
    settings = replace(read_settings({}), pool="usual")
    created, broken = create_dags(settings, try_load_all(tmp_path), wanted="restaurant__release")
    assert broken == {}
    of = {
        f"{dag_id}.{task.task_id}": (task.owner, task.retries, task.queue, task.pool, task.execution_timeout)
        for dag_id, dag in created.items()
        for task in dag.tasks
    }
    usual, hours = ("kitchen", 4, "spark"), timedelta(hours=2)
    assert of["restaurant.plan"] == (*usual, "default_pool", timedelta(minutes=15))
    assert of["restaurant.replay.menu"] == (*usual, "usual", hours)
    assert of["restaurant.replay.orders"] == ("kitchen", 0, "spark", "large", timedelta(days=2))
    assert of["restaurant__preview.preview"] == of["restaurant__release.release"] == (*usual, "usual", hours)
    release = created["restaurant__release"].get_task("plan")
    assert release.timeout == timedelta(days=4).total_seconds(), (
        "no approval gives up before the slowest step has ended"
    )
    assert [sorted(dag.tags) for dag in created.values()] == [
        ["food", "hindcast"],
        ["food", "hindcast", "preview"],
        ["food", "hindcast", "release"],
    ]


def test_very_many_pipelines_share_tasks_of_maintenance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    assert tasks.pipelines() == []
    for number in range(5):
        text = RESTAURANT.replace("pipeline: restaurant", f"pipeline: p{number}")
        (tmp_path / f"p{number}.yaml").write_text(text)
    assert tasks.pipelines() == [["p0"], ["p1"], ["p2"], ["p3"], ["p4"]]
    monkeypatch.setattr(tasks, "_MOST_MAPPED", 2)
    assert tasks.pipelines() == [["p0", "p2", "p4"], ["p1", "p3"]]
    done: list[str] = []

    def maintain(_: object, __: object, contract: Contract) -> None:
        done.append(contract.pipeline)
        if contract.pipeline == "p0":
            raise ValueError("it is damaged")

    monkeypatch.setattr(maintenance, "maintain_tables", maintain)
    monkeypatch.setattr(maintenance, "format_report", lambda _: "")
    spark: Any = None
    with pytest.raises(ValueError, match="it is damaged"):
        tasks.maintain("p0", "p2", "p4", spark=spark)
    assert done == ["p0", "p2", "p4"]


def test_no_two_folders_have_one_dag_of_maintenance(tmp_path: Path) -> None:
    created = CreatedDags()
    asked = [("a", None), ("b", None), ("c", "b"), ("d/b", None), ("e", "our shop"), ("f", "our shop")]
    ids = [created.name_maintenance_dag(tmp_path / folder, name) for folder, name in asked]
    maintenance = "hindcast_maintenance"
    assert ids == [
        *(maintenance, f"{maintenance}__b", f"{maintenance}__b_2", f"{maintenance}__b_3"),
        *(f"{maintenance}__our_shop", f"{maintenance}__our_shop_2"),
    ]
    assert created.name_maintenance_dag(tmp_path / "c", "b") == f"{maintenance}__b_2"


def test_the_largest_contracts_of_too_many_tables_have_no_dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.yaml").write_text(RESTAURANT.replace("pipeline: restaurant", f"pipeline: {name}"))
    (tmp_path / "tips.yaml").write_text(TIPS)
    loaded = try_load_all(tmp_path)
    contracts = {path.stem: it for path, it in loaded.items() if isinstance(it, Contract)}
    sizes = {name: len({**it.topics, **it.inputs, **it.views}) for name, it in contracts.items()}
    monkeypatch.setattr(bounds, "FOLDER_TABLES", sum(sizes.values()) - 1)
    kept = refuse_many_tables(loaded)
    refused = [path.stem for path, it in kept.items() if isinstance(it, ContractError)]
    assert refused == [max(sizes, key=lambda name: (sizes[name], name))]
    monkeypatch.setattr(bounds, "FOLDER_TABLES", sum(sizes.values()))
    assert refuse_many_tables(loaded) == loaded
    few = sum(sizes.values()) - max(sizes.values())
    assert [it for it in refuse_many_tables(loaded, few + 1).values() if isinstance(it, ContractError)]
    monkeypatch.setattr(bounds, "FOLDER_TABLES", 1)
    created = CreatedDags()
    dags = load_dags(replace(read_settings(), schemas=tmp_path), created)
    assert {dag_id for dag_id, dag in dags.items() if "broken contract" in dag.tags} == {*sizes}
    assert "move some contracts to another folder" in str(dags["a"].doc_md)
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    assert main.main(["check"]) == 1


def test_the_folders_of_a_dag_file_share_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left for the second is none, so that it has only its small contracts; the time between them is free."""
    (tmp_path / "a.yaml").write_text(RESTAURANT.replace("pipeline: restaurant", "pipeline: a"))
    now, shares, contracts, created = [0.0], list[float](), try_load_all(tmp_path), CreatedDags()
    monkeypatch.setattr(time, "thread_time", lambda: now[0])

    def read_slowly(_: Path, __: Choice, share: float, **___: float) -> Any:
        shares.append(share)
        now[0] += bounds.DAG_FILE_SECONDS
        return contracts

    monkeypatch.setattr(dag_loading, "try_load_all", read_slowly)
    monkeypatch.setattr(dag_loading, "create_dags", lambda *_: ({}, {}))
    for folder in ("a", "b"):
        load_dags(replace(read_settings(), schemas=tmp_path / folder), created)
    now[0] += bounds.DAG_FILE_SECONDS
    load_dags(replace(read_settings(), schemas=tmp_path), CreatedDags())
    assert shares == [1, 0, 1]


@pytest.mark.long
@pytest.mark.ci
def test_a_task_does_not_wait_for_contracts_that_cannot_have_its_dag(tmp_path: Path) -> None:
    (tmp_path / "food.yaml").write_text(RESTAURANT)  # not its own name: others are looked at
    (tmp_path / "tips.yaml").write_text(TIPS)
    (tmp_path / "odd.yaml").write_text("{pipeline: odd, start: never}")
    maintenance = {"hindcast_maintenance"}
    for started, expected in (
        ("restaurant", {"restaurant", "restaurant__preview", "odd"}),
        ("restaurant__preview", {"restaurant", "restaurant__preview", "odd"}),
        ("odd", {"odd"}),
        ("hindcast_maintenance", {"odd"}),
    ):
        read = parsed(tmp_path, _AIRFLOW_PARSING_CONTEXT_DAG_ID=started)
        assert read["dags"].keys() == expected | maintenance, started


@pytest.mark.long
@pytest.mark.ci
def test_fifty_contracts_are_read_without_spark_clients_or_connections(tmp_path: Path) -> None:
    for number in range(50):
        name, price = f"restaurant_{number:02}", f"quantity * price + {number}"
        text = GATED.replace("pipeline: gated", f"pipeline: {name}").replace("quantity * price", price)
        (tmp_path / f"{name}.yaml").write_text(text)
    read = parsed(tmp_path)
    assert read["errors"] == {}
    assert len(read["dags"]) == 151
    heavy = {"pyspark", "delta", "deltalake", "duckdb", "great_expectations", "confluent_kafka", "pandas", "pyarrow"}
    assert heavy & {name.split(".")[0] for name in read["modules"]} == set()
    assert read["connections"] == []
    print(f"150 DAGs of 50 contracts in {read['seconds']:.2f} s of a processor")

    own = parsed(tmp_path, _AIRFLOW_PARSING_CONTEXT_DAG_ID="restaurant_07__release")
    names = ("restaurant_07", "restaurant_07__preview", "restaurant_07__release")
    assert sorted(own["dags"]) == ["hindcast_maintenance", *names]


@pytest.mark.parametrize("file", ["restaurant.yaml", pytest.param("food.yaml", marks=pytest.mark.long)])
def test_an_approval_that_waits_finds_its_dag_when_the_last_gate_was_removed(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text(RESTAURANT)
    assert "restaurant__release" not in parsed(tmp_path)["dags"]
    own = parsed(tmp_path, _AIRFLOW_PARSING_CONTEXT_DAG_ID="restaurant__release")
    assert own["dags"]["restaurant__release"]["tasks"]["plan"] == ["release"]


def test_one_dag_maintains_all_pipelines_each_in_a_task_of_its_own(dags: dict[str, Any], tmp_path: Path) -> None:
    dag = dags["dags"]["hindcast_maintenance"]
    assert dag["tasks"] == {"pipelines": ["maintain"], "maintain": []}
    assert (dag["interval"], dag["active"]) == ("CronDataIntervalTimetable", 1)
    assert dag["mapped"] == {"maintain": ["SharedSpark", "op_args"]}
    by_hand = parsed(tmp_path, HINDCAST_MAINTENANCE="never", HINDCAST_SPARK="submit", HINDCAST_POOL="spark")
    dag = by_hand["dags"]["hindcast_maintenance"]
    assert (dag["interval"], dag["pools"]["maintain"]) == ("NullTimetable", "spark")
    assert dag["mapped"] == {"maintain": ["SubmittedSpark", "application_args"]}


def test_no_key_is_on_the_command_line_of_a_release(tmp_path: Path) -> None:
    """Records' values are in `ps` otherwise, and 94 long keys are more than a command line takes."""
    (tmp_path / "gated.yaml").write_text(GATED)
    dag = parsed(tmp_path, HINDCAST_SPARK="submit")["dags"]["gated__release"]
    assert dag["operators"]["release"] == "SubmittedSpark"
    assert dag["arguments"]["release"] == ["release", "gated", "{{ run_id }}"]


def test_work_can_go_through_spark_submit(tmp_path: Path) -> None:
    (tmp_path / "restaurant.yaml").write_text(RESTAURANT)
    dag = parsed(tmp_path, HINDCAST_SPARK="submit", HINDCAST_POOL="spark")["dags"]["restaurant"]
    assert dag["operators"]["replay.menu"] == "SubmittedSpark"
    assert dag["pools"]["build.bills"] == "spark"
    assert dag["arguments"]["build.bills"] == ["build", "restaurant", dag_factory.RUN, "bills"]


def test_what_contracts_allow_fits_airflows_columns() -> None:
    """PostgreSQL refuses longer texts, and with them all DAGs of the file."""
    from airflow.models.dag import DagModel, DagTag
    from airflow.models.pool import Pool
    from airflow.models.taskinstance import TaskInstance

    assert DagModel.__table__.c.owners.type.length == schedule.MAX_OWNERS
    columns = [DagTag.__table__.c.name, Pool.__table__.c.pool, TaskInstance.__table__.c.pool]
    columns.append(TaskInstance.__table__.c.queue)
    assert {column.name for column in columns if column.type.length < task_options.MAX_TEXT} == set()


ONE_LINE = """\
# The DAGs of our contracts.
from hindcast.airflow import pipelines

globals().update(pipelines("contracts"))
"""


@pytest.mark.long
@pytest.mark.ci
def test_one_line_in_a_dags_folder_creates_the_dags_of_contracts_beside_it(tmp_path: Path) -> None:
    gated = GATED.replace("pipeline: gated", "pipeline: restaurant")
    one = ONE_LINE.replace("pipelines", "pipeline").replace('"contracts"', '"restaurant", "contracts"')
    for file, line in {"ours.py": ONE_LINE, "one.py": one}.items():
        folder = tmp_path / file.removesuffix(".py")
        (folder / "dags" / "contracts").mkdir(parents=True)
        (folder / "dags" / "contracts" / "restaurant.yaml").write_text(gated)
        (folder / "dags" / file).write_text(line)
        read = parsed(folder, dags=folder / "dags")
        assert (read["errors"], sorted(read["dags"])) == (
            {},
            ["restaurant", "restaurant__preview", "restaurant__release"],
        )


def test_a_step_reads_the_contracts_of_the_folder_that_its_dag_came_from(tmp_path: Path) -> None:
    settings = replace(read_settings({}), schemas=tmp_path / "elsewhere")
    before = os.environ.get(SCHEMAS_VARIABLE)
    read = read_contracts_of(settings, lambda: read_settings().schemas)
    assert (read(), os.environ.get(SCHEMAS_VARIABLE)) == (tmp_path / "elsewhere", before)
    assert list_submit_options(settings)["env_vars"] == {SCHEMAS_VARIABLE: str(tmp_path / "elsewhere")}
    other = replace(settings, target="dev")
    assert list_submit_options(other)["env_vars"] == other.contract_environment


def test_an_installed_package_refuses_to_guess_where_tables_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_CHECKOUT", tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("HINDCAST_VAR", "HINDCAST_ROOT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError, match="HINDCAST_VAR is not set"):
        read_settings().refuse_unknown_place()
    monkeypatch.setenv("HINDCAST_VAR", str(tmp_path / "shared"))
    settings = read_settings()
    settings.refuse_unknown_place()
    assert (settings.schemas, settings.warehouse) == (tmp_path / "schemas", str(tmp_path / "shared" / "warehouse"))


@pytest.mark.parametrize("script", sorted((ROOT / "jobs").glob("*.py")), ids=lambda path: path.stem)
def test_a_script_for_spark_submit_does_the_step_of_its_name(script: Path) -> None:
    code = "import runpy, sys; from hindcast.cli import main; main.step = print; runpy.run_path(sys.argv[1])"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "jobs")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(script)], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{script.stem} {[str(script)]}\n"
