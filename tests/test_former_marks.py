"""What former contracts marked or derived from what is marked today stays hidden; an odd journal harms no others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from fastapi.testclient import TestClient

import warehouses
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.cli import main
from hindcast.common.settings import Settings
from hindcast.contract import Contract, list_shapes, load
from hindcast.plan import definitions, former_marks, journal, marks
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Abandoned, Completed, Run, Stopped
from hindcast.quality import gate_results
from hindcast.quality.gate_results import GateResult
from hindcast.report import page, report
from test_marks import embedded
from warehouses import READER_OF_SHOP, RUNS, SHOP, shop

PLAIN = SHOP.replace(", sensitive: [name]", "")
BY_NAME = "  labels: {table: people, select: {label: name}}\n"
BY_CITY = "  labels: {table: people, select: {label: city}}\n"
GATE = GateResult(
    0, "expect_column_values_to_not_match_regex", {"column": "label", "regex": "R"}, "warn", "failed", 1, 1, 1.0,
    "1 of 1 rows fail, for example Ann Secret",
)  # fmt: skip
COPIES = "  copies: {stream: questions, join: {table: folks, on: who, how: left}, select: {town: city}}\n"
READER = READER_OF_SHOP.replace("value: {who: int}", "value: {who: int, note: string}") + COPIES
CITY_TOO = SHOP.replace("sensitive: [name]", "sensitive: [name, city]")


def open_web(*pipelines: str) -> TestClient:
    access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(pipelines))  # noqa: ARG005
    return TestClient(build_app(access), raise_server_exceptions=False)


def plan_run(now: Settings, contract: Contract, number: int) -> Plan:
    """Enter a plan of a run by this contract, and return it."""
    past = journal.read_runs(now.warehouse, contract.pipeline)
    moment = RUNS[0] + timedelta(hours=number - 1)
    stored = definitions.list_unstored_fields(past, contract)
    plan = Plan(contract.pipeline, number, f"r{number}", moment, None, contract.hash, {}, definition=stored)
    journal.append_entry(now.warehouse, Run(plan))
    return plan


def test_gates_of_a_redefined_view_show_nothing_that_is_sensitive_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one edit the column is marked and the view that showed it redefined."""
    plain = warehouses.report
    gates = {"labels": {"opened": 1, "closed": 0, "corrected": 0, "gates": [GATE.as_json() | {"trend": [1.0]}]}}
    monkeypatch.setattr(warehouses, "report", lambda *given, **more: plain(*given, **more) | {"tables": gates})
    monkeypatch.setattr(warehouses, "SHOP", PLAIN + BY_NAME)
    with shop(tmp_path) as now:
        gate_results.append_results(now.warehouse, "shop", 2, "labels", [GATE])
        web = open_web("shop")
        for text, shown in ((PLAIN + BY_NAME, True), (SHOP + BY_NAME, False), (SHOP + BY_CITY, False)):
            (now.schemas / "shop.yaml").write_text(text)
            for address in ("reports/shop/run-1.html", "reports/shop/run-1.json", "quality/shop.json", "quality/shop"):
                answer = web.get(f"/{address}")
                assert answer.status_code == 200
                assert ("Ann Secret" in answer.text + embedded(answer.text)) == shown, address
            assert main.main(["report", "shop", "1"]) == 0
            assert ("Ann Secret" in capsys.readouterr().out) == shown


@pytest.mark.parametrize("changed", [False, True], ids=["same contract", "other contract"])
def test_what_stopped_a_run_is_hidden_once_another_pipeline_marks_what_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: bool
) -> None:
    with shop(tmp_path, READER) as now:
        path, web = now.schemas / "reader.yaml", open_web("shop", "reader")
        plan = plan_run(now, load(path), 1)
        stopped = Run(plan, Stopped("copies", "1 of 1 rows fail, for example Rome"))
        journal.append_entry(now.warehouse, stopped)
        page.write_page(now.reports, report.build_report(now.warehouse, load(path), plan, stopped=stopped.stop_error))
        for text, shown in ((SHOP, True), (CITY_TOO, False)):
            (now.schemas / "shop.yaml").write_text(text)
            path.write_text(READER.replace("town: city", "town: city, w: who") if changed else READER)
            names = ("quality.json", "quality/reader.json", "reports/reader/run-1.html", "reports/reader/run-1.json")
            for address in names:
                answer = web.get(f"/{address}")
                assert ("Rome" in answer.text + embedded(answer.text)) == shown, address
            main.main(["report", "reader", "1"])
            assert ("Rome" in capsys.readouterr().out) == shown


@pytest.mark.parametrize("city_is_marked", [False, True])
def test_what_was_derived_from_an_input_stays_hidden_when_the_input_is_dropped(
    tmp_path: Path, city_is_marked: bool
) -> None:
    with shop(tmp_path, READER) as now:
        path, web = now.schemas / "reader.yaml", open_web("shop", "reader")
        own = load(path)
        town = warehouses.row(1, id="q1", town="Rome", timestamp=warehouses.at(2), **warehouses.place(0))
        warehouses.write(now, own, "copies", [town])
        complete(now, own, 1)
        (now.schemas / "shop.yaml").write_text(CITY_TOO if city_is_marked else SHOP)
        path.write_text(
            READER[: READER.index("inputs:")] + "views:\n  copies: {stream: questions, select: {town: note}}\n"
        )
        addresses = ("machine/reader.json?table=copies&key=q1", "changes/reader.json?table=copies&knownAt=run:1")
        for number in (0, 2):
            if number:
                complete(now, load(path), number)
            for address in addresses:
                answer = web.get(f"/{address}")
                assert (answer.status_code, "Rome" in answer.text) == (200, not city_is_marked), (number, address)


def complete(now: Settings, contract: Contract, number: int) -> None:
    plan = plan_run(now, contract, number)
    tables = {"copies": {"opened": 1, "closed": 0, "corrected": 0, "gates": []}}
    result = warehouses.report(contract, number) | {"knownAt": plan.known_at.isoformat(), "runId": plan.run_id}
    journal.append_entry(now.warehouse, Run(plan, Completed(result | {"topics": {}, "tables": tables})))


def edit_definition(change: Callable[[list[Any]], list[Any]]) -> Callable[[dict[str, Any]], None]:
    def edit(plan: dict[str, Any]) -> None:
        plan["definition"] = change(plan["definition"])

    return edit


SLOW = "any limit f( " * 23 + "price"
ODD = {
    "a value that is a list": edit_definition(lambda fields: [*fields, ["topics.people.keep", []]]),
    "a place that is a number": edit_definition(lambda fields: [*fields, [5, "x"]]),
    "a deep text": edit_definition(lambda fields: [[place, "[" * 100_000] for place, _ in fields]),
    "a deep list of expressions": edit_definition(lambda fields: [*fields, ["views.bills.join.on", "[" * 100_000]]),
    "a deep place": edit_definition(lambda fields: [*fields, [".".join("a" * 3_000), "x"]]),
    "a slow expression": edit_definition(
        lambda fields: [
            [p, "any limit f( " * 23 + "price" if p == "views.bills.select.amount" else v] for p, v in fields
        ]
    ),
    "a contract that is a list": lambda plan: plan.update(contract=[]),
    "a contract that is a mapping": lambda plan: plan.update(contract={}),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the limit of time in Hypothesis's code
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_entry_in_a_journal_harms_no_reader_of_its_tables(
    tmp_path: Path, odd: Callable[[dict[str, Any]], None]
) -> None:
    with shop(tmp_path, READER) as now:
        path = journal.runs_table(now.warehouse, "shop").path
        table = DeltaTable(path).to_pyarrow_table()
        rows = table.to_pylist()
        planned = next(row for row in rows if row["entry"] == "planned" and "definition" in row["detail"])
        plan = json.loads(planned["detail"])
        odd(plan)
        planned["detail"] = json.dumps(plan)
        write_deltalake(path, pa.Table.from_pylist(rows, schema=table.schema), mode="overwrite")
        (now.schemas / "shop.yaml").write_text(CITY_TOO)
        web, began = open_web("shop", "reader"), time.thread_time()
        for page_ in ("quality", "quality/reader", "machine/reader", "ledger/reader"):
            assert web.get(f"/{page_}.json").status_code == 200, page_
        assert marks.find_bound_contract(now, "reader").marks_of_others["folks"] >= {"name"}
        assert time.thread_time() - began < 5


def test_former_contracts_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each table, and not again by the next page."""
    views = "".join(f"  v{n}: {{table: people, where: id > {{n}}, select: {{a: name, b: city}}}}\n" for n in range(30))
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        for number in (3, 4, 5):
            path.write_text(SHOP + views.replace("{n}", str(number)))
            journal.append_entry(now.warehouse, Run(plan_run(now, load(path), number), Abandoned("by hand")))
        path.write_text(SHOP + views.replace("{n}", "9"))
        contract, calls = load(path), []

        def count(of: Contract) -> Any:
            calls.append(of.pipeline)
            return list_shapes(of)

        monkeypatch.setattr(former_marks, "list_shapes", count)
        names = [f"v{n}" for n in range(30)]
        assert marks.find_marked_columns(now, contract, names) == dict.fromkeys(names, frozenset({"a"}))
        assert len(calls) == 1 + 4, "of today's contract, and of each former one"
        assert marks.find_marked_columns(now, contract, names[:1]) == {"v0": frozenset({"a"})}
        assert len(calls) == 1 + 4 + 1


def test_contracts_for_which_no_time_is_left_hide_all_that_they_may_have_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        path.write_text(SHOP + BY_CITY)
        journal.append_entry(now.warehouse, Run(plan_run(now, load(path), 3), Abandoned("by hand")))
        path.write_text(SHOP + "  labels: {table: people, select: {label: upper(city)}}\n")
        monkeypatch.setattr(former_marks, "SECONDS", -1.0)
        assert marks.find_marked_columns(now, load(path), ["labels"])["labels"] >= {"label"}
        monkeypatch.setattr(former_marks, "SECONDS", 5.0)
        assert marks.find_marked_columns(now, load(path), ["labels"]) == {"labels": frozenset()}
