"""What other pipelines mark as sensitive of the inputs of a contract (plan/marks.py)."""

from __future__ import annotations

import re
import zlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from fastapi.testclient import TestClient

import warehouses
from hindcast.airflow.pages import quality
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.cli import main
from hindcast.common.errors import ContractError
from hindcast.common.json_values import list_objects
from hindcast.common.settings import Settings, read_settings
from hindcast.contract import Contract, load
from hindcast.contract.bound import bind_contract
from hindcast.contract.folder import try_find
from hindcast.contract.sensitive import REDACTED, find_sensitive_columns
from hindcast.ingest import quarantine
from hindcast.plan import definitions, journal, marks
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.purposes import Release, ReleasedKeys
from hindcast.plan.runs import Abandoned, Completed, Run, Stopped
from hindcast.quality import gate_results
from hindcast.quality.overdue import OverdueKeys
from hindcast.report import page, refused_records, report
from hindcast.report.run_report import HeldKeys, RunReport, TableReport, TopicReport
from warehouses import RUNS, SHOP, T0, shop

BEGINNING = "pipeline: {}\nstart: 2026-01-01\ntopics:\n  t: {{read: stream, key: {{id: string}}, value: {{q: int}}}}\n"
INPUT = "  {}: {{read: stream, table: {}, key: {{id: string}}, value: {{x: string}}}}\n"
VIEW = "  {}: {{stream: {}, select: {{x: x}}}}\n"
MARKED = BEGINNING.format("c").replace("{q: int}", "{x: string}, sensitive: [x]")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "schemas").mkdir()
    monkeypatch.setenv("HINDCAST_VAR", str(tmp_path / "var"))
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path / "schemas"))
    return read_settings()


def write(settings: Settings, pipeline: str, sources: Mapping[str, str], views: Mapping[str, str]) -> Contract:
    """A contract with inputs of these tables, and views that copy some of them."""
    inputs = "".join(INPUT.format(name, table) for name, table in sources.items())
    copies = "".join(VIEW.format(name, of) for name, of in views.items())
    path = settings.schemas / f"{pipeline}.yaml"
    path.write_text(f"{BEGINNING.format(pipeline)}inputs:\n{inputs}views:\n{copies}")
    return load(path)


def test_marks_are_followed_through_pipelines_that_read_each_other(settings: Settings) -> None:
    (settings.schemas / "c.yaml").write_text(MARKED)
    write(settings, "a", {"fromc": "c.t", "fromb": "b.w"}, {"v1": "fromc", "v2": "fromb"})
    write(settings, "b", {"froma": "a.v1"}, {"w": "froma"})
    write(settings, "d", {"froma": "a.v2"}, {"z": "froma"})
    for pipeline, views in {"a": ["v1", "v2"], "b": ["w"], "d": ["z"]}.items():
        found = find_sensitive_columns(find_bound_contract(settings, pipeline))
        assert {view: found[view] for view in views} == {view: {"x"} for view in views}, pipeline


@pytest.mark.parametrize(("depth", "width"), [(12, 6), (400, 1)])
def test_marks_of_many_pipelines_that_read_each_other_are_found_soon(
    settings: Settings, depth: int, width: int
) -> None:
    """Each contract is asked for once, whatever reads it."""
    (settings.schemas / "c.yaml").write_text(MARKED)
    first = load(settings.schemas / "c.yaml")
    chain = {"c": first}
    model = write(settings, "model", {f"i{n}": "c.t" for n in range(width)}, {f"v{n}": f"i{n}" for n in range(width)})
    for level in range(depth):
        of = {f"i{n}": "c.t" if not level else f"p{level - 1}.v{n}" for n in range(width)}
        inputs = {name: model.inputs[name].model_copy(update={"table": table}) for name, table in of.items()}
        chain[f"p{level}"] = model.model_copy(update={"pipeline": f"p{level}", "inputs": inputs})
    asked: list[str] = []

    def find_other(_: Path, pipeline: str) -> Contract | ContractError | None:
        asked.append(pipeline)
        return chain.get(pipeline)

    last = marks.add_marks_of_others(settings, chain[f"p{depth - 1}"], find_other)
    assert find_sensitive_columns(last)["v0"] == {"x"}
    assert sorted(asked) == sorted({*asked})


def test_a_mark_is_no_part_of_the_hash(settings: Settings) -> None:
    (settings.schemas / "c.yaml").write_text(MARKED)
    own = write(settings, "a", {"fromc": "c.t"}, {"v": "fromc"})
    bound = find_bound_contract(settings, "a")
    assert (find_sensitive_columns(own)["v"], find_sensitive_columns(bound)["v"]) == (frozenset(), {"x"})
    assert (bound.hash, bound.hashed_fields) == (own.hash, own.hashed_fields)


def test_only_a_broken_file_that_may_be_the_source_hides_all_of_it(settings: Settings) -> None:
    folder = settings.schemas
    write(settings, "a", {"fromc": "c.t"}, {"v": "fromc"})
    (folder / "other.yaml").write_text("pipeline: other\nstart: 2026-01-01\n")
    assert try_find(folder, "c") is None
    (folder / "c.yaml").write_text("pipeline: c\nstart: 2026-01-01\n")
    assert isinstance(try_find(folder, "c"), ContractError)


REFUSED = {
    "topic": "people",
    "partition": 0,
    "offset": 3,
    "timestamp": T0,
    "key": b'{"id": 7}',
    "value": b"{}",
    "fate": "malformed",
    "reason": "ssn: '123-45-6789' is not an int",
    "run": 2,
    "systemFrom": RUNS[1],
}


def test_a_refused_record_stays_hidden_when_what_was_marked_or_its_mark_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    column = ", ssn: int}, sensitive: [ssn]"
    monkeypatch.setattr(warehouses, "SHOP", SHOP.replace("}, sensitive: [name]", column))
    with shop(tmp_path) as now:
        table = quarantine.quarantine_table(now.warehouse, "shop")
        write_deltalake(
            table.path, pa.Table.from_pylist([REFUSED]), name="shop.quarantine", description=table.description
        )
        text = (now.schemas / "shop.yaml").read_text()
        for replaced in (column, "}", column.partition(", sensitive")[0]):
            (now.schemas / "shop.yaml").write_text(text.replace(column, replaced))
            assert main.main(["quarantine", "shop", "--format", "csv"]) == 0
            (line,) = capsys.readouterr().out.splitlines()[1:]
            assert "***" in line
            assert "123" not in line


FAILED = {
    "gate": 0,
    "expectation": "expect_column_values_to_not_match_regex",
    "kwargs": {"column": "city", "regex": "R"},
    "on_failure": "warn",
    "outcome": "failed",
    "checked": 1,
    "failing": 1,
    "observed": 1.0,
    "detail": "1 of 1 rows fails, for example Rome",
    "trend": [1.0],
}


@pytest.mark.parametrize("outcome", ["failed", "error"])
def test_what_a_gate_found_is_hidden_once_its_column_is_marked(outcome: str) -> None:
    result = gate_results.TrackedResult(**FAILED | {"outcome": outcome})  # type: ignore[arg-type]
    columns = ("name", "city")
    assert result.mask_values(columns, frozenset()) == result
    assert (result.mask_values(columns, frozenset({"name"})) == result) == (outcome == "failed"), "errors show any"
    conditions = ("name = 'Ann'", "NAME = 'Ann'", "`Name` = 'Ann'")
    about = [replace(result, kwargs={**result.kwargs, "row_condition": condition}) for condition in conditions]
    for masked in (
        result.mask_values(columns, frozenset({"city"})),
        result.mask_values(("name",), frozenset()),
        *(it.mask_values(columns, frozenset({"name"})) for it in about),
    ):
        assert ("Rome" in masked.detail, masked.observed, masked.failing) == (False, None, 1)


def embedded(page: str) -> str:
    """What is in a report's page in compressed form."""
    found = re.search(r'id="embedded">([A-Za-z0-9+/=]+)</script>', page)
    return zlib.decompress(b64decode(found[1])).decode() if found else ""


def test_older_reports_and_the_quality_page_hide_what_is_marked_today(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = warehouses.report

    def report_failure(*given: object) -> dict[str, object]:
        people = {"opened": 1, "closed": 0, "corrected": 0, "gates": [FAILED]}
        return report(*given) | {"tables": {"people": people}}  # type: ignore[arg-type]

    monkeypatch.setattr(warehouses, "report", report_failure)
    with shop(tmp_path) as now:
        for marked, shown in (("[name]", True), ("[name, city]", False)):
            (now.schemas / "shop.yaml").write_text(SHOP.replace("sensitive: [name]", f"sensitive: {marked}"))
            main.main(["report", "shop"])
            assert ("Rome" in capsys.readouterr().out) == shown
            monkeypatch.setattr(
                gate_results, "read_results", lambda *_: {"people": [gate_results.TrackedResult.from_json(FAILED)]}
            )
            access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))  # noqa: ARG005
            web = TestClient(build_app(access))
            for name in ("run-1.html", "run-1.json"):
                answer = web.get(f"/reports/shop/{name}")
                assert (answer.status_code, "Rome" in answer.text or "Rome" in embedded(answer.text)) == (200, shown)
                for place in (f".%2f{name}", f"%2e/{name}", f"..%2fshop%2f{name}", f"%2f{now.reports}/shop/{name}"):
                    assert web.get(f"/reports/shop/{place}").status_code == 404, place
            assert "sensitive by now" in web.get("/reports/shop/run-1/index.html").text or shown
            assert ("Rome" in str(quality.build_pipeline_page(now, load(now.schemas / "shop.yaml")))) == shown


LABELS = SHOP + "  labels: {table: people, select: {label: name}}\n"
REDEFINED = LABELS.replace("{label: name}", "{label: city}")


def read_plane(web: TestClient) -> str:
    """What the time machine and Changes show of the labels."""
    addresses = ("/machine/shop.json?table=labels&key=1", "/changes/shop.json?table=labels&knownAt=run:1")
    answers = [web.get(address) for address in addresses]
    assert [answer.status_code for answer in answers] == [200, 200]
    return "".join(answer.text for answer in answers)


@pytest.mark.parametrize("ended", [None, Stopped("bills", "a gate"), Abandoned("by hand"), "completed"])
@pytest.mark.parametrize("unmarked", [False, True])
def test_what_was_derived_from_a_sensitive_column_stays_hidden_when_its_view_is_redefined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: object, unmarked: bool
) -> None:
    monkeypatch.setattr(warehouses, "SHOP", LABELS)
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        row = warehouses.version(1, None, 0, None, id=1, label="Ann Secret", **warehouses.place(0))
        warehouses.write(now, load(path), "labels", [row])
        access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))  # noqa: ARG005
        web = TestClient(build_app(access))
        assert "Ann Secret" not in read_plane(web)
        path.write_text(REDEFINED.replace(", sensitive: [name]", "") if unmarked else REDEFINED)
        assert "Ann Secret" not in read_plane(web)
        contract, past = load(path), journal.read_runs(now.warehouse, "shop")
        plan = replace(
            past[-1].plan,
            run=3,
            run_id="third",
            known_at=RUNS[1] + timedelta(days=1),
            contract=contract.hash,
            definition=definitions.list_unstored_fields(past, contract),
        )
        journal.append_entry(now.warehouse, Run(plan))
        if ended is not None:
            outcome = Completed(warehouses.report(contract, 2) | {"run": 3}) if ended == "completed" else ended
            journal.append_entry(now.warehouse, Run(plan, outcome))
        assert ("Ann Secret" in read_plane(web)) == (unmarked and ended == "completed")


def test_a_former_contract_that_is_none_today_hides_all_columns_if_it_marked_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = definitions.list_unstored_fields
    monkeypatch.setattr(definitions, "list_unstored_fields", lambda *given: stored(*given) | {"topics.people.was": "1"})
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        path.write_text(SHOP.replace(", sensitive: [name]", ""))
        hidden = marks.find_hidden_columns(now, load(path), "people")
        assert {"id", "name", "city"} <= hidden


def test_what_stopped_a_run_is_hidden_once_a_column_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        past = journal.read_runs(now.warehouse, "shop")
        plan = replace(past[-1].plan, run=3, run_id="third", known_at=RUNS[1] + timedelta(days=1))
        stopped = Run(plan, Stopped("people", "1 of 1 rows fail, for example Rome"))
        for run in (Run(plan), stopped):
            journal.append_entry(now.warehouse, run)
        made = report.build_report(now.warehouse, load(path), plan, stopped=stopped.stop_error)
        page.write_page(now.reports, made.pipeline, made.run, made)
        access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))  # noqa: ARG005
        web = TestClient(build_app(access))
        addresses = ("quality.json", "quality/shop", "quality/shop.json", "reports/shop/run-3.html")
        for marked, shown in (("[name]", True), ("[name, city]", False)):
            path.write_text(SHOP.replace("sensitive: [name]", f"sensitive: {marked}"))
            texts = {it: web.get(f"/{it}").text for it in (*addresses, "reports/shop/run-3.json")}
            texts["reports/shop/run-3.html"] += embedded(texts["reports/shop/run-3.html"])
            main.main(["report", "shop", "3"])
            texts["report"] = capsys.readouterr().out
            assert {it: "Rome" in text for it, text in texts.items()} == dict.fromkeys(texts, shown)


def test_a_report_shows_no_key_that_is_sensitive_by_now(tmp_path: Path) -> None:
    keys = Release({"people": ReleasedKeys(RUNS[0], ('{"id":4711}',), "ann")})
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        run = journal.read_runs(now.warehouse, "shop")[-1]
        run = replace(run, plan=replace(run.plan, purpose=keys))
        moment = RUNS[0]
        overdue = OverdueKeys(1, '{"id":4711}', moment, None, 1.0)
        held = TableReport(held=HeldKeys(keys=1, overdue=overdue))
        written = RunReport("shop", 2, "r", moment, tables={"people": held}, again="--key 4711")
        for marked, shown in (("[name]", True), ("[name, id]", False)):
            path.write_text(SHOP.replace("sensitive: [name]", f"sensitive: {marked}"))
            masked = report.mask_report(written, bind_contract(load(path), now), run, [run])
            assert masked.tables["people"].held is not None
            assert masked.tables["people"].held.overdue is not None
            assert ("4711" in masked.again, "4711" in masked.tables["people"].held.overdue.key) == (shown, shown)


@pytest.mark.parametrize(
    ("topic", "before", "after", "shown"),
    [
        ("people", "sensitive: [name]", "sensitive: [name]", False),
        ("orders", "sensitive: [name]", "sensitive: [name]", True),
        ("orders", "quantity: int}", "quantity: int}, sensitive: [item]", False),
        ("gone", "sensitive: [name]", "sensitive: [name]", False),
    ],
)
def test_the_report_of_a_requeue_quotes_no_record_of_a_topic_that_is_sensitive_by_now(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    before: str,
    after: str,
    *,
    shown: bool,
) -> None:
    still = {"records": 1, "first": [{"partition": 0, "offset": 3, "reason": "'123-45-6789' is not an int"}]}
    topics = {topic: {"topic": topic, "offsets": 0, "requeued": {"accepted": 0}, "still": still}}
    write = warehouses.report
    monkeypatch.setattr(warehouses, "report", lambda *given: write(*given) | {"topics": topics})
    with shop(tmp_path) as now:
        (now.schemas / "shop.yaml").write_text(SHOP.replace(before, after))
        access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))  # noqa: ARG005
        web = TestClient(build_app(access))
        texts = {name: web.get(f"/reports/shop/{name}").text for name in ("run-1.html", "run-1.json")}
        texts["run-1.html"] += embedded(texts["run-1.html"])
        for how in ("table", "json"):
            main.main(["report", "shop", "1", "--format", how])
            texts[how] = capsys.readouterr().out
        assert {name: "123-45-6789" in text for name, text in texts.items()} == dict.fromkeys(texts, shown)


def test_reasons_are_hidden_by_the_contract_of_the_run_and_by_each_topic_of_a_pattern(tmp_path: Path) -> None:
    first = [
        {"partition": n, "offset": 3, "reason": "a value", "topic": name} for n, name in enumerate(("people", "x"))
    ]
    written = TopicReport("people", requeued={}, still={"records": 2, "first": first})
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        past = journal.read_runs(now.warehouse, "shop")
        path.write_text(SHOP.replace(", sensitive: [name]", ""))
        masked = refused_records.mask_reasons(written, load(path), past, past[-1])
        assert [record["reason"] for record in list_objects(masked.still["first"])] == [REDACTED, REDACTED]
        other = replace(written, topic="orders")
        masked = refused_records.mask_reasons(other, load(path), past, past[-1])
        assert [record["reason"] for record in list_objects(masked.still["first"])] == [REDACTED, REDACTED]
        odd = replace(written, still={"first": "text"})
        assert refused_records.mask_reasons(odd, load(path), past, past[-1]) == odd


@pytest.mark.parametrize("marked", ["today", "before", "never"])
@pytest.mark.parametrize("state", ["unknown", "under way", "of another run"])
def test_reports_of_runs_that_the_journal_does_not_know_as_ended_are_not_shown_if_anything_is_sensitive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: str, state: str
) -> None:
    unmarked = SHOP.replace(", sensitive: [name]", "").replace(", sensitive: true", "")
    if marked == "never":
        monkeypatch.setattr(warehouses, "SHOP", unmarked)
    with shop(tmp_path) as now:
        path = now.schemas / "shop.yaml"
        if marked == "before":
            path.write_text(unmarked)
        written = RunReport("shop", 3, "former life", RUNS[1], state="stopped", found="1 row fails: Rome")
        page.write_page(now.reports, written.pipeline, written.run, written)
        docs = now.reports / "shop" / "run-3" / "index.html"
        docs.parent.mkdir()
        docs.write_text("Rome")
        past = journal.read_runs(now.warehouse, "shop")
        run = Run(replace(past[-1].plan, run=3, run_id="third", known_at=RUNS[1] + timedelta(days=1)))
        if state != "unknown":
            journal.append_entry(now.warehouse, run)
        if state == "of another run":
            journal.append_entry(now.warehouse, replace(run, outcome=Stopped("people", "a gate")))
        access = PageAccess(lambda: None, lambda dag_id: None, lambda: frozenset(["shop"]))  # noqa: ARG005
        web = TestClient(build_app(access))
        for name in ("run-3.html", "run-3.json", "run-3/index.html"):
            answer = web.get(f"/reports/shop/{name}")
            shown = "Rome" in answer.text + embedded(answer.text)
            assert shown == (marked == "never"), name
            if marked != "never" and state != "of another run":
                assert answer.status_code == 404
                assert "the journal knows no run 3 that has ended" in " ".join(answer.text.split()).replace(
                    "&#39;", "'"
                )
