"""Damage to the files of one pipeline: its own line of the overview tells it, and all other pipelines are shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from fastapi.testclient import TestClient

import reports
from hindcast.airflow.pages import run_reports
from hindcast.common.settings import Settings
from hindcast.contract import find
from hindcast.ops.journal_rebuild import has_malformed_report
from hindcast.plan import journal
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Completed, Run, Stopped
from hindcast.report import page
from test_pages import GUEST, client, text, twin
from test_read_only import heed_rights
from warehouses import HOSTILE, plan, report, shop


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """`shop` is whole; `guest` has one run, which was stopped, and its report."""
    with shop(tmp_path_factory.mktemp("shop"), GUEST) as found:
        contract = find(found.schemas, "guest")
        run = Run(plan(contract, 1))
        journal.append_entry(found.warehouse, run)
        journal.append_entry(found.warehouse, replace(run, outcome=Stopped("prices", f"bad {HOSTILE}")))
        reports.write_page(found.reports, report(contract, 1, state="stopped"))
        yield found


@pytest.fixture
def web() -> TestClient:
    return client("shop", "guest")


def line_of(web: TestClient, pipeline: str) -> dict[str, Any]:
    """Return the line of a pipeline in the overview, which must be shown as a page too."""
    text(web, "/quality")
    (line,) = (line for line in twin(web, "/quality")["pipelines"] if line["pipeline"] == pipeline)
    return dict(line)


DAMAGED = {
    "half": b'{"runId": "manu',
    "empty": b"",
    "a list": b"[1]",
    "no UTF-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "topics are a number": b'{"runId": "manual__1", "topics": 5}',
    "a topic is a number": b'{"runId": "manual__1", "topics": {"a": 5}}',
    "a count is a text": b'{"runId": "manual__1", "topics": {"a": {"offsets": "x"}}}',
    "a count is endless": b'{"runId": "manual__1", "tables": {"a": {"corrected": Infinity}}}',
    "too large": b'{"runId": "manual__1"}' + b" " * (1 << 24),
    "a count is huge": b'{"runId": "manual__1", "tables": {"a": {"corrected": 1' + b"0" * 400 + b"}}}",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_report_counts_as_none_and_is_told_in_its_pipelines_line(
    web: TestClient, settings: Settings, content: bytes
) -> None:
    whole = line_of(web, "shop")
    path = settings.reports / "guest" / "run-1.json"
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        line = line_of(web, "guest")
        assert line_of(web, "shop") == whole
        assert str(path) in text(web, "/quality/guest")
    finally:
        path.write_bytes(before)
    assert line["last"]["sentence"] == "Run 1 of guest was stopped; its report was not read."
    (problem,) = line["problems"]
    assert problem["where"] == str(path)
    assert problem["found"].startswith("is not a report: ")
    assert ("has more than 4,194,304 bytes" in problem["found"]) == (len(content) > 1 << 22)
    assert problem["mend"] == f"write it again: hindcast report guest 1 --format json > {path}"
    assert line_of(web, "guest")["problems"] == []


def journal_files(settings: Settings) -> dict[str, Path]:
    """Return a file of each kind that the journal of `guest` is read from."""
    table = DeltaTable(journal.runs_table(settings.warehouse, "guest").path)
    folder = Path(journal.runs_table(settings.warehouse, "guest").path)
    return {"log": max((folder / "_delta_log").glob("*.json")), "data": folder / Path(table.file_uris()[0]).name}


@pytest.mark.parametrize("kind", ["log", "data"])
def test_a_damaged_journal_is_told_in_its_pipelines_line(web: TestClient, settings: Settings, kind: str) -> None:
    whole = line_of(web, "shop")
    folder = Path(journal.runs_table(settings.warehouse, "guest").path)
    path = journal_files(settings)[kind]
    before = path.read_bytes()
    path.write_bytes(before[:20])
    journal._PARSED.clear()  # of an unchanged journal a process does not read the files again
    try:
        line = line_of(web, "guest")
        assert line_of(web, "shop") == whole
        assert " ".join(line["problems"][0]["found"].split()) in text(web, "/quality")
    finally:
        path.write_bytes(before)
    assert (line["last"], line["runs"]) == (None, [])
    (problem,) = line["problems"]
    assert problem["where"].startswith(str(folder))
    assert "cannot be read" in problem["found"]


def test_a_plan_in_the_journal_that_is_none_is_told_in_its_pipelines_line(web: TestClient, settings: Settings) -> None:
    whole = line_of(web, "shop")
    kept = journal.read_run_history(settings.warehouse, "guest", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "as_json", lambda _: {"x": 1})
        journal.replace_entries(settings.warehouse, "guest", kept[:1])
    try:
        (problem,) = line_of(web, "guest")["problems"]
        assert line_of(web, "shop") == whole
    finally:
        journal.replace_entries(settings.warehouse, "guest", kept)
    assert problem["found"] == "the journal lacks a valid plan of run 1"
    assert problem["mend"] == "hindcast ledger guest --rebuild"


GATE = {"gate": 0, "expectation": "e", "kwargs": "text", "outcome": "failed"}
ODD_REPORTS: list[tuple[dict[str, Any], str]] = [
    ({"topics": {"prices": {"partitions": [{"start": {}}]}}}, "/ledger/shop"),
    ({"topics": {"prices": {"partitions": [{"end": 1, "fates": {"accepted": "x"}}]}}}, "/ledger/shop"),
    ({"topics": {"prices": 5}}, "/ledger/shop"),
    ({"tables": {"prices": ""}}, "/changes/shop"),
    ({"tables": {"prices": {"opened": "x"}}}, "/changes/shop"),
    ({"tables": {"prices": {"gates": [GATE]}}}, "/quality/shop"),
]


@pytest.mark.parametrize(("change", "address"), ODD_REPORTS)
def test_a_malformed_report_in_the_journal_is_told_with_its_run_and_its_repair(
    web: TestClient, settings: Settings, change: dict[str, Any], address: str
) -> None:
    contract = find(settings.schemas, "shop")
    kept = journal.read_run_history(settings.warehouse, "shop", 2)
    odd = replace(kept[-1], outcome=Completed(report(contract, 2, **change)))
    journal.replace_entries(settings.warehouse, "shop", [kept[0], odd])
    try:
        page = text(web, address, 200 if "quality" in address else 500)
        assert [it.number for it in journal.read_runs(settings.warehouse, "shop") if has_malformed_report(it)] == [2]
    finally:
        journal.replace_entries(settings.warehouse, "shop", kept)
    for words in ("The report in the journal is malformed: ", "shop, run 2", "hindcast ledger shop --rebuild"):
        assert words.lower() in page.lower()
    assert text(web, address)


def test_an_outcome_is_read_again_only_once_its_report_has_changed(
    web: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = twin(web, "/quality")
    path = settings.reports / "guest" / "run-1.json"
    read = Mock(side_effect=run_reports._read_outcome)
    monkeypatch.setattr(run_reports, "_read_outcome", read)
    assert (twin(web, "/quality"), read.call_count) == (whole, 0)
    before = path.read_bytes()
    path.write_text(json.dumps(report(find(settings.schemas, "guest"), 1, topics={}, state="stopped")), "utf-8")
    try:
        assert (line_of(web, "guest")["last"]["records"], read.call_count) == (0, 1)
    finally:
        path.write_bytes(before)
    kept = journal.read_run_history(settings.warehouse, "shop", 1)
    odd = replace(kept[-1], outcome=Completed(report(find(settings.schemas, "shop"), 1, topics={})))
    journal.replace_entries(settings.warehouse, "shop", [kept[0], odd])
    try:
        assert line_of(web, "shop")["runs"][0]["records"] == 0
    finally:
        journal.replace_entries(settings.warehouse, "shop", kept)
    assert twin(web, "/quality") == whole
    monkeypatch.setattr(run_reports, "MAX_KEPT", 1)
    journal._PARSED.clear()
    assert (twin(web, "/quality"), len(run_reports._KEPT)) == (whole, 1)


def test_a_report_is_replaced_whole_or_not_at_all(settings: Settings, tmp_path: Path) -> None:
    contract = find(settings.schemas, "guest")
    path = reports.write_page(tmp_path, report(contract, 1))
    read_before = path.open(encoding="utf-8"), path.with_suffix(".json").open(encoding="utf-8")
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    reports.write_page(tmp_path, report(contract, 1, state="stopped", reason="x" * 100_000))
    for file in read_before:
        with file:
            assert file.read().encode() == before[Path(file.name).name], "who has opened it reads all of the old one"
    assert sorted(file.name for file in path.parent.iterdir()) == ["run-1.html", "run-1.json"]
    after = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(UnicodeEncodeError):
        page.replace_file(path, "half of it, then \ud800")
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == after


CLOSED = """
import json, os, sys
from pathlib import Path
from test_pages import client
from hindcast.plan import journal

web = client("shop", "guest")
for path in map(Path, sys.argv[1:]):
    before = path.stat().st_mode
    path.chmod(0)
    journal._PARSED.clear()
    try:
        answers = {}
        for address in ("/quality", "/quality/guest", "/ledger/guest", "/reports/guest/run-1.html", "/quality.json"):
            answer = web.get(address)
            answers[address] = [answer.status_code, answer.headers["content-type"].partition(";")[0], answer.text]
        print(json.dumps(answers), flush=True)
    finally:
        path.chmod(before)
"""
"""Close each path for its owner, ask for the pages, and say what they answer; open it again."""


def test_what_the_server_may_not_read_is_told_in_its_pipelines_line(web: TestClient, settings: Settings) -> None:
    whole = line_of(web, "shop")
    reports, tables = settings.reports / "guest", Path(settings.warehouse) / "guest"
    data = journal_files(settings)["data"]
    paths = [reports, reports / "run-1.json", reports / "run-1.html", tables, tables / "runs", data]
    log = tables / "runs" / "_delta_log"
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, *map(str, [*paths, log])],
        env={
            **os.environ,
            **settings.environment,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        },
        preexec_fn=heed_rights,  # it calls the kernel, and nothing of Python's threads
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = {}
    for path, line in zip([*paths, log], done.stdout.splitlines(), strict=True):
        answers = json.loads(line)
        pages = {address: (status, kind) for address, (status, kind, _) in answers.items()}
        assert {kind for address, (_, kind) in pages.items() if address != "/quality.json"} == {"text/html"}, pages
        guest, other = sorted(json.loads(answers["/quality.json"][2])["pipelines"], key=lambda it: str(it["pipeline"]))
        assert other == whole
        assert pages["/quality"][0] == 200
        seen[path] = {address: status for address, (status, _) in pages.items() if status != 200}
        for problem in guest["problems"]:
            assert problem["where"] == str(path)
            assert problem["found"].startswith("cannot be read: Permission denied (it belongs to uid ")
            assert problem["mend"].startswith(f"chown -R {os.geteuid()} {path}, or let uid ")
            assert str(path) in answers["/quality"][2]
        assert len(guest["problems"]) == (path != reports / "run-1.html"), path
    journal_closed = {"/quality/guest": 500, "/ledger/guest": 500, "/reports/guest/run-1.html": 500}
    assert seen == {
        reports: {"/reports/guest/run-1.html": 500},
        reports / "run-1.json": {},
        reports / "run-1.html": {},  # its page is of the journal
        tables: journal_closed,
        tables / "runs": journal_closed,
        data: journal_closed,
        log: journal_closed,
    }


def test_a_broken_contract_is_shown_to_who_may_read_its_dag(settings: Settings) -> None:
    broken = [settings.schemas / "my pipeline.yaml", settings.schemas / "shop.yml"]
    for path in broken:
        path.write_text("x", encoding="utf-8")
    try:
        assert [*twin(client("my_pipeline"), "/quality")["broken"]] == ["my_pipeline"]
        assert str(broken[0]) in text(client("my_pipeline"), "/dag/my_pipeline/quality", 500)
        assert twin(client("shop"), "/quality")["broken"] == {}
        assert [*twin(client("shop__broken"), "/quality")["broken"]] == ["shop__broken"]
    finally:
        for path in broken:
            path.unlink()


@pytest.mark.parametrize("page", ["quality", "report"])
def test_a_broken_contract_is_hidden_from_who_may_read_only_the_dag_of_its_previews(
    settings: Settings, page: str
) -> None:
    path = settings.schemas / "guest.yaml"
    whole = path.read_text(encoding="utf-8")
    path.write_text(f"{whole}secret", encoding="utf-8")
    try:
        assert str(path) in text(client("guest", "guest__preview"), f"/dag/guest__preview/run/manual__1/{page}", 500)
        assert "guest.yaml" not in text(client("guest__preview"), f"/dag/guest__preview/run/manual__1/{page}", 404)
        assert "guest.yaml" not in text(client("guest__preview"), "/quality")
    finally:
        path.write_text(whole, encoding="utf-8")
