"""What an answer about held changes does, and what it is not taken for, without Spark."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowException
from deltalake import write_deltalake

from bare_runs import bare_run
from hindcast.airflow import approval_tasks
from hindcast.airflow.pages import waiting_keys
from hindcast.cli import main
from hindcast.cli.commands import running
from hindcast.common.errors import BusyError, RequestError, RunError
from hindcast.common.settings import Settings, read_settings
from hindcast.plan import journal, marks
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import Approval, Purpose, Release, ReleasedKeys, Replay
from hindcast.plan.runs import Abandoned, Run
from hindcast.quality import approval, failing_rows, held_changes
from hindcast.query.explain_limits import EngineLimitError
from hindcast.report import page
from hindcast.report.run_report import RunReport
from hindcast.runs import run_steps, special_runs
from hindcast.store import table_creation
from test_held_keys import MENU, T0, bind, contract, enter, held
from warehouses import READER_OF_SHOP, SHOP, complete, shop, version, write

CURRY = '{"item": "curry"}'
ANSWER = (T0 + timedelta(hours=1)).isoformat(), "ann", json.dumps([f"menu {CURRY}"])


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a pipeline that holds curry, and of which nothing is planned."""
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", str(tmp_path / "warehouse"))
    contract(tmp_path)
    enter(str(tmp_path / "warehouse"), held(1, "curry", 1))
    return read_settings()


def begin(settings: Settings, run_id: str, purpose: Purpose, state: str = "planned", number: int = 2) -> None:
    """A run of this name that is under way, or has ended."""
    of = contract(settings.schemas).hash
    run = bare_run("restaurant", number, T0 + timedelta(hours=1), state, contract=of, run_id=run_id, purpose=purpose)
    journal.append_entry(settings.warehouse, run)


def test_an_approval_waits_for_a_run_of_its_name(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever triggers both DAGs by Airflow's API may give their runs one id."""
    begin(settings, "fix-42", Replay())
    assert not approval_tasks.plan_release("restaurant", "fix-42", *ANSWER).is_done
    assert "run 2 (fix-42) has not ended" in capsys.readouterr().out
    with pytest.raises(RunError, match="the release fix-42 has no plan"):
        special_runs.find_release(settings.warehouse, "restaurant", "fix-42")


def test_a_run_waits_for_a_release_of_its_name(settings: Settings) -> None:
    release = Release({"menu": ReleasedKeys(T0, (CURRY,), "ann")})
    begin(settings, "fix-42", release)
    with pytest.raises(BusyError, match=r"run 2 \(fix-42\) has not ended"):
        run_steps.plan_run(settings, "restaurant", "fix-42")
    number = special_runs.plan_release(settings, "restaurant", "fix-42", {"menu": [CURRY]}, "ann", T0)
    assert number == 2, "a second attempt goes on with its own plan"
    begin(settings, "fix-42", release, "completed")
    begin(settings, "fix-42", Replay(), number=3)
    assert special_runs.find_release(settings.warehouse, "restaurant", "fix-42").number == 2


def test_a_page_names_the_keys_that_wait(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the gate in words and since when; not what is sensitive today; none of them if it takes long."""
    of = find_bound_contract(settings, "restaurant")
    (found,) = waiting_keys.list_waiting_keys(settings, of)
    assert (found["table"], found["key"], found["run"]) == ("menu", "curry", 1)
    assert found["rule"]
    secret = of.model_copy(update={"topics": {"menu": of.topics["menu"].model_copy(update={"sensitive": True})}})
    (hidden,) = waiting_keys.list_waiting_keys(settings, secret)
    assert "curry" not in str(hidden)
    monkeypatch.setattr(waiting_keys, "SECONDS", 0.0)
    monkeypatch.setattr(held_changes, "query_entries", Mock(side_effect=EngineLimitError("it takes long")))
    assert waiting_keys.list_waiting_keys(settings, of) == []


def test_a_release_of_no_keys_is_one_when_it_is_read_back(settings: Settings) -> None:
    """All of them may have changed since they were shown."""
    plan = Plan("restaurant", 2, "r", T0, None, "", {}, purpose=Release({}))
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
    begin(settings, "fix-42", Release({}))
    changed = json.dumps(['menu {"item": "naan"}'])
    assert approval_tasks.plan_release("restaurant", "fix-42", *ANSWER[:2], changed).xcom_value == 2


def test_an_answer_about_a_pipeline_whose_name_another_one_has_taken_does_nothing(settings: Settings) -> None:
    """That one holds another change of the same key, and has held it for longer (`hindcast rehearse --replace`)."""
    asked = approval_tasks.read_held_changes("restaurant")["table"]
    folder = Path(settings.warehouse, "restaurant")
    folder.rename(folder.with_name("restaurant_replaced_1"))
    enter(settings.warehouse, held(1, "curry", 1, price=-20))
    found = "another pipeline has taken its place since the question was asked"
    with pytest.raises(AirflowException, match=found):
        approval_tasks.plan_release("restaurant", "fix-42", *ANSWER, asked_table=asked)
    with pytest.raises(AirflowException, match=found):
        approval_tasks.reject("restaurant", *ANSWER, asked_table=asked)
    assert journal.read_runs(settings.warehouse, "restaurant") == []
    assert [key.key for key in approval.read_held_keys(find_bound_contract(settings, "restaurant"))] == [CURRY]


@pytest.mark.parametrize(
    ("keys", "by"), [((CURRY, '{"item": "naan"}'), "ann"), ((CURRY,), "bob")], ids=["of more keys", "by another"]
)
def test_a_second_answer_does_not_publish_what_the_first_approved(
    settings: Settings, capsys: pytest.CaptureFixture[str], keys: tuple[str, ...], by: str
) -> None:
    """The task that asks was cleared after the release of the first answer had failed."""
    begin(settings, "fix-42", Release({"menu": ReleasedKeys(T0, keys, by)}))
    with pytest.raises(AirflowException, match="another answer was given before, and its release has not ended"):
        approval_tasks.plan_release("restaurant", "fix-42", *ANSWER)
    assert not approval_tasks.reject("restaurant", *ANSWER).is_done
    assert "run 2 (fix-42) publishes what was approved before of these keys" in capsys.readouterr().out
    assert [key.key for key in approval.read_held_keys(find_bound_contract(settings, "restaurant"))] == [CURRY]


def test_keys_that_were_hidden_when_they_were_asked_about_are_found_again(settings: Settings) -> None:
    path = settings.schemas / "restaurant.yaml"
    text = path.read_text()
    path.write_text(text.replace("    expect:", "    sensitive: true\n    expect:", 1))
    asked = approval_tasks.read_held_changes("restaurant")
    assert "curry" not in str(asked)
    path.write_text(text)
    chosen = approval.choose_keys(
        find_bound_contract(settings, "restaurant"), T0 + timedelta(hours=1), json.dumps(asked["keys"])
    )
    assert chosen == {"menu": [CURRY]}


def test_a_key_whose_sensitive_column_has_left_it_stays_hidden(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(settings.warehouse, held(1, "soup", 2) | {"key": '{"ssn":"123-45-6789"}', "row": "{}"})
    assert "123-45" not in str(approval_tasks.read_held_changes("restaurant"))
    assert main.main(["failing", "restaurant", "--format", "json"]) == 0
    assert "123-45" not in capsys.readouterr().out


def test_a_command_finishes_no_run_that_is_only_called_like_its_own(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(settings, "release__by_hand", Replay())
    assert main.main(["release", "restaurant.orders"]) == 1
    said = capsys.readouterr().err
    assert "nothing is held back" in said
    assert "finishing" not in said


@pytest.mark.filterwarnings("ignore:The `airflow")  # what the operator of approvals imports
@pytest.mark.parametrize(
    ("pushed", "found"),
    [
        ({}, "nobody has answered whether to publish what is held"),
        ({"keys": [f"menu {CURRY}"]}, "nobody has answered whether to publish what is held"),
        ({"by": "ann"}, "the answer is about no keys"),
        ({"by": "ann", "keys": []}, "the answer is about no keys"),
    ],
)
def test_a_task_that_was_marked_as_success_without_an_answer_is_none(
    settings: Settings, pushed: dict[str, Any], found: str
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from hindcast.airflow.release_dag import create_release_dag

    class Task:
        def xcom_pull(self, task_ids: str, key: str = "return_value") -> Any:
            """What the tasks before have pushed, or were not let to."""
            return pushed.get(key) if task_ids == "approve" else {"text": "", "keys": [], "until": ANSWER[0]}

    dag = create_release_dag(settings, contract(settings.schemas))
    for name, step in {"plan": approval_tasks.plan_release, "reject": approval_tasks.reject}.items():
        operator: Any = dag.get_task(name)
        env = dag.get_template_env()
        given = [env.from_string(text).render(ti=Task(), run_id="manual__1") for text in operator.op_args]
        with pytest.raises(AirflowFailException, match=re.escape(found)):
            step(*given)
    assert not journal.read_runs(settings.warehouse, "restaurant")
    assert {row["entry"] for row in held_changes.read_held_rows(settings.warehouse, "restaurant").to_pylist()} == {
        "held"
    }


@pytest.mark.filterwarnings("ignore:The `airflow")
def test_an_answer_by_a_program_is_text_that_can_be_shown(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON can have half a character: such a reason broke `hindcast runs`, such a name the release."""
    from hindcast.airflow.release_dag import create_release_dag

    class Task:
        def xcom_push(self, key: str, value: Any) -> None:
            pushed[key] = value

    pushed: dict[str, Any] = {}
    approve: Any = create_release_dag(settings, contract(settings.schemas)).get_task("approve")
    monkeypatch.setattr(type(approve), "do_branch", lambda *_, **__: None)
    event = {"chosen_options": ["Approve"], "responded_by_user": {"name": "a\ud800n"}, "responded_at": T0}
    approve.execute_complete({"ti": Task()}, event | {"params_input": {"keys": ["k"], "reason": "\udfff no "}})
    assert (pushed["by"], pushed["reason"]) == ("a?n", "? no")


GUEST = f"""{READER_OF_SHOP.replace("pipeline: reader", "pipeline: guest")}\
  answers: {{stream: questions, join: {{table: folks, on: who}}, select: {{who: folks.name, city: folks.city}}}}
  named: {{stream: answers, group_by: {{who: who}}, aggregate: {{n: count(*)}}}}
"""
ANN = '{"who":"Ann Secret"}'


def hold_of_guest(settings: Settings) -> None:
    """A row of which a column is another pipeline's, and a key that is."""
    table = failing_rows.failing_table(settings.warehouse, "guest")
    found = table_creation.ensure_table(table, failing_rows.SCHEMA)
    schema = table_creation.arrow_schema(failing_rows.SCHEMA)
    rows = [
        {**held(1, "", 1), "table": "answers", "key": '{"id":"q1"}', "row": '{"who":"Ann Secret","city":"Rome"}'},
        {**held(1, "", 2), "table": "named", "key": ANN, "row": '{"who":"Ann Secret","n":1}'},
    ]
    entries = pa.Table.from_pylist([{**dict.fromkeys(schema.names), **row} for row in rows], schema)
    write_deltalake(found, entries, mode="append")


def list_shown(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """The keys and rows that the command and the form show of what guest holds, which are the same."""
    shown = []
    for options in ([], ["--held"]):
        assert main.main(["failing", "guest", "--format", "json", *options]) == 0
        shown.append([(row["key"], row["row"]) for row in json.loads(capsys.readouterr().out)])
    assert shown[0] == shown[1]
    contract = find_bound_contract(read_settings(), "guest")
    keys = approval.read_held_keys(contract)
    assert [(key.shown, key.row) for key in keys] == shown[0]
    asked = approval_tasks.read_held_changes("guest")
    assert ("Ann Secret" in str(asked)) == ("Ann Secret" in str(shown))
    chosen = approval.choose_keys(contract, T0 + timedelta(hours=1), json.dumps(asked["keys"]))
    assert chosen == {"answers": ['{"id":"q1"}'], "named": [ANN]}, "whatever is hidden, it is what was chosen"
    return shown[0]


def test_a_person_is_shown_nothing_that_another_pipeline_calls_sensitive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though no run has compared the marks yet, and whatever becomes of the other contract."""
    hidden = [('{"id":"q1"}', '{"city":"Rome"}'), ("***", '{"n":1}')]
    with shop(tmp_path, GUEST) as settings:
        hold_of_guest(settings)
        assert list_shown(capsys) == hidden
        file = settings.schemas / "shop.yaml"
        file.unlink()
        assert list_shown(capsys) == hidden, "by the contract of its last run"
        file.write_text("pipeline: shop\n")
        assert list_shown(capsys) == [('{"id":"q1"}', "{}"), ("***", '{"n":1}')], "it may mark anything now"
        file.write_text(SHOP.replace(", sensitive: [name]}", "}"))
        assert list_shown(capsys)[1] == ("***", '{"n":1}'), "until a run by the contract without the mark"


THIRD = """
pipeline: third
start: 2026-01-01
topics:
  asks: {read: stream, key: {id: string}, value: {q: int}}
inputs:
  answers: {read: stream, table: guest.answers, key: {id: string}, value: {who: string, city: string}}
views:
  copies: {stream: answers, select: {who: who, city: city}}
"""


def test_what_is_sensitive_two_pipelines_away_is_hidden(tmp_path: Path) -> None:
    """Also where two pipelines read each other's tables."""
    with shop(tmp_path, GUEST) as settings:
        (settings.schemas / "third.yaml").write_text(THIRD)
        third = find_bound_contract(settings, "third")
        assert marks.find_marked_columns(settings, third, ["copies"])["copies"] == {"who"}
        circle = GUEST.replace(
            "inputs:\n",
            "inputs:\n  back: {read: stream, table: third.copies, key: {id: string}, value: {who: string}}\n",
        )
        (settings.schemas / "guest.yaml").write_text(circle)
        third = find_bound_contract(settings, "third")
        assert marks.find_marked_columns(settings, third, ["copies"])["copies"] == {"who"}


def test_a_label_of_a_key_that_is_no_longer_held_spoils_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though a key of the same table is hidden, because it has a column of a former key."""
    menu = bind(str(tmp_path), contract(tmp_path, MENU))
    enter(str(tmp_path), held(1, "curry", 1), held(1, "x", 2) | {"key": '{"old":"1"}'})
    labels = json.dumps(['menu {"item": "curry"}', 'menu {"item": "naan"}'])
    assert approval.choose_keys(menu, T0 + timedelta(hours=1), labels) == {"menu": [CURRY]}
    assert 'menu {"item": "naan"}: is no longer held' in capsys.readouterr().out
    for odd in ("not json", "[" * 100_000, '{"menu": 1}'):
        with pytest.raises(RequestError, match="the chosen keys are no list of texts"):
            approval.choose_keys(menu, T0 + timedelta(hours=1), odd)


def test_a_proof_shows_no_key_that_another_pipeline_calls_sensitive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(tmp_path, GUEST) as settings:
        guest = find_bound_contract(settings, "guest")
        for run in (1, 2):
            complete(settings, guest, run)
        write(settings, guest, "named", [version(1, None, 0, None, who="Ann Secret", n=n) for n in (1, 2)])
        assert main.main(["verify", "guest", "--quick"]) == 1
        told = capsys.readouterr().out
        assert "***" in told
        assert "Ann Secret" not in told


def test_what_the_last_run_called_sensitive_is_hidden_until_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = GUEST.replace("city: string}}", "city: string}, sensitive: [name]}")
    with shop(tmp_path, marked) as settings:
        hold_of_guest(settings)
        for run in (1, 2):
            complete(settings, find_bound_contract(settings, "guest"), run)
        (settings.schemas / "shop.yaml").write_text(SHOP.replace(", sensitive: [name]}", "}"))
        (settings.schemas / "guest.yaml").write_text(GUEST)
        assert list_shown(capsys) == [('{"id":"q1"}', '{"city":"Rome"}'), ("***", '{"n":1}')]


def test_a_release_keeps_when_it_was_approved_and_why(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its plan was abandoned, and is made again."""
    planned: list[tuple[Any, ...]] = []
    monkeypatch.setattr(special_runs, "_plan_special_run", lambda _, *of: planned.append(of) or 2)
    monkeypatch.setattr(run_steps, "execute_run", lambda *_: None)
    answered, reason = T0 + timedelta(hours=2), "the menu says so"
    approval_tasks.plan_release("restaurant", "fix-42", *ANSWER, answered.isoformat(), reason)
    ((run_id, release, given),) = planned
    assert (release.tables["menu"].by, release.tables["menu"].at, given) == ("ann", answered, reason)
    stored = bare_run("restaurant", 2, T0 + timedelta(hours=1), run_id=run_id, purpose=release)
    plan = Plan.from_json(json.loads(json.dumps(replace(stored.plan, reason=reason).as_json())))
    assert (plan.approval, plan.reason) == (Approval("ann", answered), reason)
    journal.append_entry(settings.warehouse, Run(plan))
    journal.append_entry(settings.warehouse, Run(plan, Abandoned("lost")))
    special_runs.run_planned_release(cast("Any", None), settings, "restaurant", "fix-42")
    assert planned[1] == planned[0]


def test_an_older_release_does_not_say_when_it_was_approved() -> None:
    stored = {"until": T0.isoformat(), "keys": [CURRY], "by": "ann"}
    assert ReleasedKeys.from_json(stored) == ReleasedKeys(T0, (CURRY,), "ann")
    assert ReleasedKeys(T0, (CURRY,), "ann").as_json() == stored


def test_a_rejection_keeps_its_reason(settings: Settings) -> None:
    assert approval_tasks.reject("restaurant", *ANSWER, "a typo").is_done
    rejected = failing_rows.list_entries(settings.warehouse, "restaurant").to_pylist()[-1]
    assert (rejected["entry"], rejected["by"], rejected["reason"]) == ("rejected", "ann", "a typo")


def test_the_file_of_a_report_says_who_approved_its_release() -> None:
    """It is read without the journal."""
    written = {"pipeline": "p", "run": 1, "knownAt": None, "topics": {}, "tables": {}, "reason": "it is right"}
    approved = RunReport.from_json(written | {"approval": {"by": "ann", "at": T0.isoformat()}})
    assert RunReport.from_json(approved.as_json()) == approved
    shown = re.sub("</?time[^>]*>", "", page.render_page(approved))
    assert "<dd>Approved by ann at 2026-01-01 00:00:00 UTC: it is right</dd>" in shown
    assert "no reason was given" in page.render_page(replace(approved, reason=None))
    assert "Approved by" not in page.render_page(RunReport.from_json(written))


def test_a_command_gives_the_reason_of_a_decision(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, ...]] = []
    monkeypatch.setattr(special_runs, "run_release", lambda *of: given.append(of) or RunReport("p", 1, "", None))
    monkeypatch.setattr(running, "open_session", lambda *_: None)
    assert main.main(["release", "restaurant.menu", "--by", "ann", "--reason", "it is right"]) == 0
    ((*_, by, _, reason),) = given
    assert (by, reason) == ("ann", "it is right")
    assert main.main(["release", "restaurant.menu", "--reject", "--by", "ann", "--reason", "a typo"]) == 0
    assert failing_rows.list_entries(settings.warehouse, "restaurant").to_pylist()[-1]["reason"] == "a typo"
