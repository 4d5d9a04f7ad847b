"""What former contracts marked or derived from what is marked today stays hidden; an odd journal harms no others."""

from __future__ import annotations

import json
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from fastapi.testclient import TestClient

import reports
import warehouses
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.cli import main
from hindcast.common.settings import Settings
from hindcast.contract import Contract, list_shapes, load
from hindcast.contract.bound import bind_contract
from hindcast.contract.patterns import SlowPatternError
from hindcast.plan import definitions, former_marks, former_marks_cache, journal, marks, matching_topics
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
        made = report.build_report(now.warehouse, load(path), plan, stopped=stopped.stop_error)
        page.write_page(now.reports, made.pipeline, made.run, made)
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
    fields = {"run": number, "knownAt": plan.known_at.isoformat(), "runId": plan.run_id}
    result = warehouses.report(contract, min(number, 2)) | fields
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
        monkeypatch.setattr(former_marks_cache, "_CACHES", OrderedDict())  # other tests have looked at this contract
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
        monkeypatch.setattr(former_marks_cache, "SECONDS", -1.0)
        assert marks.find_marked_columns(now, load(path), ["labels"])["labels"] >= {"label"}
        monkeypatch.setattr(former_marks_cache, "SECONDS", 5.0)
        assert marks.find_marked_columns(now, load(path), ["labels"]) == {"labels": frozenset()}


PEOPLE = "people: {read: table, key: {id: int}, value: {name: string, city: string}, sensitive: [name]}"
ELSEWHERE = {
    "the column is renamed": "people: {read: table, key: {id: int}, value: {full: string, city: string}, "
    "renamed: {full: [name]}, sensitive: [full]}",
    "the topic is renamed": PEOPLE.replace("people: {", "folk: {topic: people, "),
    "both are renamed": "folk: {topic: people, read: table, key: {id: int}, value: {full: string, city: string}, "
    "renamed: {full: [name]}, sensitive: [full]}",
    "a pattern selects the topic": PEOPLE.replace("people: {", "people: {pattern: 'peo.*', "),
    "a pattern of another name selects the topic": PEOPLE.replace("people: {", "folk: {pattern: '(peo|p).*', "),
    "another topic is read": PEOPLE.replace("people: {", "people: {topic: people2, "),
    "a second entry reads the topic": PEOPLE.replace(", sensitive: [name]", "")
    + "\n  "
    + PEOPLE.replace("people: {", "folk: {topic: people, "),
    "the topic without the column is sensitive": "people: {read: table, key: {id: int}, value: {city: string}, "
    "sensitive: true}",
    "a header has the column": PEOPLE.replace(", sensitive", ", headers: {name: n}, sensitive"),
}


@pytest.mark.parametrize("marked", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_is_marked_and_renamed_in_one_edit_is_hidden_where_it_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: str
) -> None:
    monkeypatch.setattr(warehouses, "SHOP", PLAIN + BY_NAME)
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        journal.append_entry(now.warehouse, Run(plan_run(now, load(path), 3), Stopped("labels", "Ann Secret")))
        text = SHOP.replace(PEOPLE, marked) + BY_CITY
        if "people: {" not in marked:
            text = text.replace("table: people", "table: folk")
        for edited, hidden in ((text, True), (PLAIN + BY_CITY, False)):
            path.write_text(edited)
            contract, past = load(path), journal.read_runs(now.warehouse, "shop")
            assert ("label" in marks.find_marked_columns(now, contract, ["labels"])["labels"]) == hidden
            assert marks.has_new_marks(bind_contract(contract, now), past, past[-1]) == hidden


def test_a_pattern_in_a_journal_that_takes_too_long_counts_as_selecting_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SlowPatternError(0)

    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        path.write_text(PLAIN.replace("people: {", "people: {pattern: 'z.*', ") + BY_NAME)
        journal.append_entry(now.warehouse, Run(plan_run(now, load(path), 3), Stopped("labels", "Ann Secret")))
        path.write_text(SHOP.replace("people: {", "folk: {topic: people, ").replace("table: people", "table: folk"))
        bound, past = bind_contract(load(path), now), journal.read_runs(now.warehouse, "shop")
        assert not marks.has_new_marks(bound, past, past[-1])
        matching_topics._match_names.cache_clear()
        monkeypatch.setattr(matching_topics, "find_matches", refuse)
        assert marks.has_new_marks(bound, past, past[-1])
        matching_topics._match_names.cache_clear()


def test_what_another_pipeline_marks_and_renames_in_one_edit_is_hidden_in_its_readers(tmp_path: Path) -> None:
    with shop(tmp_path, READER) as now:
        path = now.schemas / "reader.yaml"
        journal.append_entry(now.warehouse, Run(plan_run(now, load(path), 1), Stopped("copies", "for example Rome")))
        past = journal.read_runs(now.warehouse, "reader")
        for text, hidden in ((SHOP, False), (CITY_TOO, True)):
            (now.schemas / "shop.yaml").write_text(
                text.replace("people: {", "folk: {topic: people, ").replace("table: people", "table: folk")
            )
            bound = marks.find_bound_contract(now, "reader")
            assert ("city" in bound.marks_of_others["folks"]) == hidden
            assert marks.has_new_marks(bound, past, past[-1]) == hidden


def test_what_an_input_no_longer_has_is_marked_by_the_table_that_it_is_made_of(tmp_path: Path) -> None:
    with shop(tmp_path, READER.replace("town: city", "town: name")) as now:
        path = now.schemas / "reader.yaml"
        complete(now, load(path), 1)
        path.write_text(READER.replace("name: string, ", ""))
        assert marks.find_marked_columns(now, marks.find_bound_contract(now, "reader"), ["copies"])["copies"] == {
            "town"
        }


NO_MARKS = PLAIN.replace(", sensitive: true", "")


@pytest.mark.parametrize("gone", ["all", "contract", "contract, older journal", "table, older journal", "broken"])
@pytest.mark.parametrize("has_marks", [False, True])
def test_a_dropped_input_of_which_nothing_is_known_hides_nothing_but_what_the_reader_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str, has_marks: bool
) -> None:
    monkeypatch.setattr(warehouses, "SHOP", SHOP if has_marks else NO_MARKS)
    own = READER.replace("city: string}}", "city: string}, sensitive: [city]}") if has_marks else READER
    with shop(tmp_path, own, stored="older" not in gone) as now:
        path, source = now.schemas / "reader.yaml", now.schemas / "shop.yaml"
        complete(now, load(path), 1)
        if gone == "broken":
            source.write_text("pipeline: shop\nx: [")
        elif gone.startswith("table"):
            source.write_text(warehouses.SHOP.replace("people", "folk"))
        else:
            source.unlink()
        if gone == "all":
            shutil.rmtree(Path(now.warehouse) / "shop")
        path.write_text(own[: own.index("inputs:")] + "views:\n  copies: {stream: questions, select: {town: note}}\n")
        complete(now, load(path), 2)
        found = marks.find_marked_columns(now, load(path), ["copies"])["copies"]
        assert found == ({"town"} if has_marks else set())


def test_a_dropped_input_hides_all_while_a_file_that_may_mark_it_does_not_load(tmp_path: Path) -> None:
    with shop(tmp_path, READER) as now:
        path = now.schemas / "reader.yaml"
        complete(now, load(path), 1)
        (now.schemas / "shop.yaml").write_text("pipeline: shop\nx: [")
        path.write_text(
            READER[: READER.index("inputs:")] + "views:\n  copies: {stream: questions, select: {town: note}}\n"
        )
        complete(now, load(path), 2)
        assert marks.find_marked_columns(now, load(path), ["copies"])["copies"] == {"town"}


FORTH = """
pipeline: forth
start: 2026-01-01
topics:
  t: {read: table, key: {id: int}, value: {name: string}, sensitive: [name]}
inputs:
  back: {table: back.w, key: {id: int}, value: {n: string}}
views:
  v: {table: back, select: {m: upper(n)}}
"""
BACK = """
pipeline: back
start: 2026-01-01
topics:
  u: {read: table, key: {id: int}, value: {q: string}}
inputs:
  src: {table: forth.t, key: {id: int}, value: {name: string}}
views:
  w: {table: src, select: {n: name}}
"""


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked before", "marked now"])
@pytest.mark.parametrize("dropped", [False, True])
def test_what_stopped_a_run_is_shown_if_pipelines_that_read_each_other_marked_it_before(
    tmp_path: Path, is_marked: bool, dropped: bool
) -> None:
    before = FORTH if is_marked else FORTH.replace(", sensitive: [name]", "")
    with shop(tmp_path, before, BACK) as now:
        path = now.schemas / "forth.yaml"
        for pipeline in ("forth", "back"):
            complete(now, load(now.schemas / f"{pipeline}.yaml"), 1)
        journal.append_entry(now.warehouse, Run(plan_run(now, load(path), 2), Stopped("v", "for example Ann")))
        path.write_text(FORTH[: FORTH.index("inputs:")] if dropped else FORTH)
        past = journal.read_runs(now.warehouse, "forth")
        assert marks.has_new_marks(marks.find_bound_contract(now, "forth"), past, past[-1]) != is_marked


def test_what_stopped_a_run_is_shown_if_its_source_was_redefined_long_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouses, "SHOP", SHOP + BY_NAME)
    reader = READER.replace("shop.people", "shop.labels").replace("name: string, city: string", "label: string")
    with shop(tmp_path, reader.replace("town: city", "town: label")) as now:
        source, path = now.schemas / "shop.yaml", now.schemas / "reader.yaml"
        source.write_text(SHOP + BY_CITY)
        complete(now, load(source), 3)
        journal.append_entry(now.warehouse, Run(plan_run(now, load(path), 9), Stopped("copies", "for example Rome")))
        past = journal.read_runs(now.warehouse, "reader")
        bound = marks.find_bound_contract(now, "reader")
        assert bound.marks_of_others == {"folks": {"label"}}
        assert not marks.has_new_marks(bound, past, past[-1])
        source.write_text(CITY_TOO.replace("name, city", "city, id") + BY_CITY)
        assert marks.has_new_marks(marks.find_bound_contract(now, "reader"), past, past[-1])


def test_marks_of_a_moment_are_found_by_reading_each_journal_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many inputs the pipelines have, and however many others they read through these."""
    width, depth, topic = 20, 5, "{read: table, key: {id: int}, value: {a: string}"
    texts = ["topics:\n" + "".join(f"  v{n}: {topic}, sensitive: [a]}}\n" for n in range(width))]
    for level in range(1, depth):
        inputs = "".join(
            f"  i{n}: {{table: p{level - 1}.v{n}, key: {{id: int}}, value: {{a: string}}}}\n" for n in range(width)
        )
        views = "".join(f"  v{n}: {{table: i{n}, select: {{a: upper(a)}}}}\n" for n in range(width))
        texts.append(f"topics:\n  t: {topic}}}\ninputs:\n{inputs}views:\n{views}")
    contracts = [f"pipeline: p{level}\nstart: 2026-01-01\n{text}" for level, text in enumerate(texts)]
    with shop(tmp_path, *contracts) as now:
        for level in range(depth):
            complete(now, load(now.schemas / f"p{level}.yaml"), 1)
        bound = marks.find_bound_contract(now, "p4")
        journal.append_entry(now.warehouse, Run(plan_run(now, bound, 2), Stopped("v0", "x")))
        past, asked = journal.read_runs(now.warehouse, "p4"), []
        read = journal.read_runs

        def count(warehouse: str, pipeline: str) -> list[Run]:
            asked.append(pipeline)
            return read(warehouse, pipeline)

        monkeypatch.setattr(journal, "read_runs", count)
        assert not marks.has_new_marks(bound, past, past[-1])
        assert sorted(asked) == sorted({*asked})


COPIES = "  copies: {stream: questions, join: {table: folks, on: who, how: left}, select: {label: name}}\n"


@pytest.mark.parametrize("odd", [None, "no JSON", "odd JSON", "odd journal", "odd contract"])
def test_a_report_hides_what_another_pipeline_marks_of_an_input_that_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str | None
) -> None:
    plain = SHOP.replace(", sensitive: [name]", "").replace(", sensitive: true", "")
    monkeypatch.setattr(warehouses, "SHOP", plain)
    with shop(tmp_path, READER_OF_SHOP + COPIES) as now:
        path = now.schemas / "reader.yaml"
        contract = load(path)
        if odd == "odd contract":  # of an older version
            list_fields = definitions.list_unstored_fields
            with monkeypatch.context() as patch:
                patch.setattr(
                    definitions, "list_unstored_fields", lambda *it: list_fields(*it) | {"views.copies.odd": "1"}
                )
                warehouses.complete(now, contract, 1)
        else:
            warehouses.complete(now, contract, 1)
        run = Run(replace(warehouses.plan(contract, 2), definition={}))
        text = "1 of 1 gates stopped it, for example Ann Secret"
        journal.append_entry(now.warehouse, run)
        journal.append_entry(now.warehouse, replace(run, outcome=Stopped("copies", text)))
        reports.write_page(now.reports, warehouses.report(contract, 2, state="stopped", found=text))
        path.write_text(
            f"{READER_OF_SHOP.partition('inputs:')[0]}views:\n  other: {{stream: questions, select: {{n: who}}}}\n"
        )
        web = open_web("shop", "reader")
        assert "Ann Secret" in web.get("/reports/reader/run-2.json").text
        marked = plain.replace("{name: string, city: string}", "{name: string, city: string}, sensitive: [name]")
        (now.schemas / "shop.yaml").write_text(marked)
        file = now.reports / "reader" / "run-2.json"
        if odd == "no JSON":
            file.unlink()
        elif odd == "odd JSON":
            file.write_text("{")
        elif odd == "odd journal":
            table = DeltaTable(journal.runs_table(now.warehouse, "reader").path)
            row = table.to_pyarrow_table().to_pylist()[-1] | {"run": 3, "sequence": 99, "detail": "{"}
            write_deltalake(table, pa.Table.from_pylist([row], schema=table.to_pyarrow_table().schema), mode="append")
        assert "Ann Secret" not in web.get("/reports/reader/run-2.html").text
        assert "Ann Secret" not in embedded(web.get("/reports/reader/run-2.html").text)
        assert "Ann Secret" not in web.get("/reports/reader/run-2.json").text
