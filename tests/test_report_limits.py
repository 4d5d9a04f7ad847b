"""How large a report may be, and how long the pages take to read those of a pipeline."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import reports
from hindcast.airflow.pages import ledger_page, reading_limits, run_reports
from hindcast.airflow.pages.kept_results import KeptResults
from hindcast.common.settings import Settings
from hindcast.contract import find
from hindcast.plan import journal
from hindcast.plan.runs import Abandoned, Run, Stopped
from hindcast.quality.gate_results import TrackedResult
from hindcast.report import page, report, report_size, summaries
from hindcast.report.run_report import GateReport, PartitionReport, RunReport, TableReport, TopicReport
from hindcast.store import table_cache
from test_pages import GUEST, client, text, twin
from warehouses import RUNS, plan, shop
from warehouses import report as report_document


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """`shop` is whole; `guest` has one run, which was stopped, and its report. Reading it may be slow here."""
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    monkeypatch.setattr(reading_limits, "REPORT_SECONDS", 60.0)
    with shop(tmp_path, GUEST) as found:
        contract = find(found.schemas, "guest")
        run = Run(plan(contract, 1))
        journal.append_entry(found.warehouse, run)
        journal.append_entry(found.warehouse, replace(run, outcome=Stopped("prices", "a gate")))
        reports.write_page(found.reports, report_document(contract, 1, state="stopped"))
        yield found


def build_large(gates: int, tables: int, partitions: int) -> RunReport:
    """A report with so many gates, tables and partitions of each topic."""
    detail = "2 of 100,000 rows fail, for example naan, 12, 2026-01-01T00:00:00, and more of them that are named here"
    result = TrackedResult(
        0,
        "expect_column_values_to_match_regex",
        {"column": "a_long_column_name", "regex": "^[a-z]+$"},
        "warn",
        "failed",
        100_000,
        2,
        0.00002,
        detail * 2,
        [0.000021234] * 30,
    )
    own = [GateReport(replace(result, gate=n), "hindcast failing shop --run 100") for n in range(gates // tables)]
    ranges = [PartitionReport(n, 10**9, 10**9 + 1_000, {"accepted": 999, "expired": 1}) for n in range(partitions)]
    return RunReport(
        "shop",
        100,
        "scheduled__2026-01-01T00:00:00.000+00:00",
        RUNS[0],
        topics={f"topic_named_{n}": TopicReport("shop.topic", 1_000 * partitions, 5, ranges) for n in range(tables)},
        tables={
            f"table_named_{n}": TableReport(10**6, 10**5, 10, {"1 day": 10}, 100, gates=own) for n in range(tables)
        },
    )


@pytest.mark.parametrize(("gates", "tables", "partitions"), [(1_000, 500, 1), (1_000, 500, 12), (1_000, 10, 100)])
def test_the_report_of_a_large_pipeline_is_written_whole_and_read(
    tmp_path: Path, gates: int, tables: int, partitions: int
) -> None:
    written = build_large(gates, tables, partitions)
    assert report_size.cut_report(written) == written
    path = page.write_page(tmp_path, written.pipeline, written.run, written).with_suffix(".json")
    assert path.stat().st_size <= report_size.MAX_BYTES
    start = time.thread_time()
    assert RunReport.from_json(report_size.parse_report_json(path.read_text())).as_json() == json.loads(
        json.dumps(written.as_json())
    )
    assert time.thread_time() - start < 2.5, "even on a slow machine"


@pytest.mark.parametrize(("gates", "tables", "partitions"), [(1_000, 500, 120), (2_000, 1, 100_000)])
def test_what_a_run_reports_is_cut_to_what_its_pages_read(
    tmp_path: Path, gates: int, tables: int, partitions: int
) -> None:
    whole = build_large(gates, tables, partitions)
    cut = report_size.cut_report(whole)
    path = page.write_page(tmp_path, cut.pipeline, cut.run, cut)
    assert path.with_suffix(".json").stat().st_size <= report_size.MAX_BYTES
    read = RunReport.from_json(report_size.parse_report_json(path.with_suffix(".json").read_text()))
    assert {name: topic.fates for name, topic in read.topics.items()} == {
        name: topic.fates for name, topic in whole.topics.items()
    }
    assert page.summarize_outcome(read) == page.summarize_outcome(whole)
    (first, *_) = summaries.summarize_topics(read)
    assert (first.is_balanced, first.partitions[0].offsets) == (True, f"{partitions:,} ranges, not listed")


def test_the_report_that_a_run_builds_is_cut(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_report_topic", lambda *_: build_large(0, 1, 50_000).topics["topic_named_0"])
    contract = find(settings.schemas, "shop")
    built = report.build_report(settings.warehouse, contract, plan(contract, 2), "a gate")
    assert len(json.dumps(built.as_json())) <= report_size.MAX_BYTES
    assert [topic.partitions_left_out for topic in built.topics.values()] == [50_000]


TOO_MUCH = {
    "bytes": "[" + " " * (4 << 20) + "]",
    "lists": "[" + "[]," * 180_000 + "0]",
    "partitions": '{"runId":"manual__1","topics":{"prices":{"partitions":[' + "{}," * 110_000 + "{}]}}}",
    "gates": '{"runId":"manual__1","tables":{"prices":{"gates":[' + "{}," * 11_000 + "{}]}}}",
    "tables": '{"runId":"manual__1","tables":{' + ",".join(f'"{n}":{{}}' for n in range(2_000)) + "}}",
}


@pytest.mark.parametrize("content", TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_what_is_wrong_with_a_report_is_found_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    path = settings.reports / "guest" / "run-1.json"
    whole = path.read_text()
    path.write_text(content)
    read = Mock(side_effect=run_reports._read_outcome)
    monkeypatch.setattr(run_reports, "_read_outcome", read)
    answers = [twin(client("guest"), "/quality") for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert read.call_count == 1
    (problem,) = answers[0]["pipelines"][0]["problems"]
    assert problem["found"].startswith("is not a report: ")
    assert " more than " in problem["found"]
    path.write_text(whole)
    assert twin(client("guest"), "/quality")["pipelines"][0]["problems"] == []


@pytest.mark.usefixtures("settings")
def test_a_report_that_takes_too_long_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse_for_ever(_: str) -> None:
        while True:
            pass

    monkeypatch.setattr(reading_limits, "REPORT_SECONDS", 0.1)
    monkeypatch.setattr(report_size, "parse_report_json", parse_for_ever)
    for _ in range(2):
        (problem,) = twin(client("guest"), "/quality")["pipelines"][0]["problems"]
        assert problem["found"] == "is not a report: SlowReportError: takes more than 0.1 s of a processor to read"
    assert twin(client("shop"), "/quality")["pipelines"][0]["problems"] == []
    assert client("guest").get("/reports/guest/run-1.json").status_code == 200


@pytest.mark.usefixtures("settings")
def test_the_reports_of_a_pipeline_that_took_too_long_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with reading_limits.limit_report("guest"):
        reading_limits._SPENT["guest"].reports = 100.0
    (problem,) = twin(client("guest"), "/quality")["pipelines"][0]["problems"]
    assert problem["found"] == "this report was not read: reading those of the pipeline took more than 1.5 s"
    assert "hindcast report guest shows" in problem["mend"]
    monkeypatch.setattr(run_reports, "_KEPT", {})
    (line,) = twin(client("guest"), "/quality")["pipelines"]
    assert (line["last"]["kind"], line["last"]["sentence"], line["trends"]) == (
        "stopped",
        "Run 1 of guest was stopped; its report was not read.",
        [],
    )
    assert client("guest").get("/reports/guest/run-1.json").status_code == 500
    with reading_limits.limit_report("shop"):
        reading_limits._SPENT["shop"].reports = 100.0
    (line,) = twin(client("shop"), "/quality")["pipelines"]
    assert (line["last"]["kind"], line["last"]["sentence"], line["trends"]) == (
        "unread",
        "Run 2 of shop was completed; its report was not read.",
        [],
    )
    del reading_limits._SPENT["shop"]
    assert twin(client("shop"), "/quality")["pipelines"][0]["problems"] == []
    monkeypatch.setattr(reading_limits, "SPAN", 0.0)
    assert twin(client("guest"), "/quality")["pipelines"][0]["problems"] == []


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Five pipelines of one team, each with four stopped runs, whose reports take 3 s of a processor; and `shop`.

    The pipelines whose reports are read are listed. The limits are ten times what they are, so that what the machine
    itself takes does not count.
    """
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    for name in ("REPORTS_SECONDS", "OVERVIEW_SECONDS", "SPAN"):
        monkeypatch.setattr(reading_limits, name, 10 * getattr(reading_limits, name))
    read: list[str] = []

    @contextmanager
    def limit_report(pipeline: str) -> Iterator[None]:
        with reading_limits.limit_report(pipeline):
            yield
        read.append(pipeline)
        if pipeline != "shop":
            reading_limits._SPENT[pipeline].reports += 3.0
            reading_limits._find_allowance().spent += 3.0

    monkeypatch.setattr(run_reports, "limit_report", limit_report)
    others = [GUEST.replace("pipeline: guest", f"pipeline: a{n}").partition("inputs:")[0] for n in range(5)]
    with shop(tmp_path, *others) as found:
        for n in range(5):
            contract = find(found.schemas, f"a{n}")
            for number in range(1, 5):
                run = Run(replace(plan(contract, 1), run=number, run_id=f"manual__{number}"))
                journal.append_entry(found.warehouse, run)
                journal.append_entry(found.warehouse, replace(run, outcome=Stopped("questions", "a gate")))
                journal.append_entry(found.warehouse, replace(run, outcome=Abandoned("by a test")))
                document = report_document(contract, 1, state="stopped")
                reports.write_page(found.reports, document | {"run": number, "runId": f"manual__{number}"})
        yield read


def test_the_overview_reads_reports_of_all_pipelines_in_bounded_time_and_goes_on_at_the_next_request(
    shared: list[str],
) -> None:
    names = [f"a{n}" for n in range(5)]
    web = client(*names, "shop")
    problems = {it["pipeline"]: it["problems"] for it in twin(web, "/quality")["pipelines"]}
    first, *_ = problems["a0"]
    assert (first["found"], first["mend"]) == (
        "this report was not read yet: the page has taken long enough",
        "load the page again: it goes on with the rest",
    )
    assert problems["shop"] == []
    assert 7 <= len(shared) <= 9, "twenty seconds"
    assert set(shared) == {*names, "shop"}, "each has a part of it"
    for _ in range(5):
        web.get("/quality.json")
    assert len(shared) == 22
    assert all(it["problems"] == [] for it in twin(web, "/quality")["pipelines"])


@pytest.mark.usefixtures("shared")
def test_the_overview_opens_journals_in_bounded_time_and_those_that_open_quickly_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With what is left it opens those that take longer than their share, in turn when the page is loaded again."""
    names, read_runs = [f"a{n}" for n in range(5)], journal.read_runs
    web = client(*names, "shop")
    monkeypatch.setattr(reading_limits, "OVERVIEW_SECONDS", 600.0)
    web.get("/quality.json")  # the reports are kept
    monkeypatch.setattr(reading_limits, "_SLOW", {})
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    monkeypatch.setattr(reading_limits, "OVERVIEW_SECONDS", 1.0)
    started, opened = list[str](), list[str]()

    def read_slowly(warehouse: str, pipeline: str) -> list[Run]:
        with table_cache.count_opening(pipeline):
            if pipeline != "shop" and pipeline not in opened:
                started.append(pipeline)
                end = time.thread_time() + 0.4
                while time.thread_time() < end:
                    pass
            opened.append(pipeline)
        return read_runs(warehouse, pipeline)

    monkeypatch.setattr(journal, "read_runs", read_slowly)
    problems = {it["pipeline"]: it["problems"] for it in twin(web, "/quality")["pipelines"]}
    assert {problem["found"] for it in problems.values() for problem in it} == {
        "the runs were not read yet: the page has taken long enough"
    }
    assert len(started) <= 7, "all in their share, and one or two with what is left"
    for _ in range(10):
        reading_limits._SPENT.clear()
        web.get("/quality.json")
    assert {*opened} == {*names, "shop"}


def test_pipelines_that_took_least_time_lately_come_first(shared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_limits, "OVERVIEW_SECONDS", 0.2)
    with reading_limits.limit_report("a0"):
        shared.clear()
    reading_limits._SPENT["a0"].reports = 1.0
    assert client("a0", "shop").get("/quality.json").status_code == 200
    assert shared[:2] == ["shop", "shop"]


def test_the_ledgers_page_reads_reports_no_longer_than_it_may_and_keeps_what_it_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = client("shop")
    journal.read_runs(settings.warehouse, "shop")
    monkeypatch.setattr(reading_limits, "REPORTS_SECONDS", -1.0)
    told = twin(web, "/ledger/shop")
    assert (told["unread"], [topic["rows"] for topic in told["topics"]]) == ([1, 2], [[]] * 5)
    shown = text(web, "/ledger/shop")
    assert "Reports or logs of runs 1, 2 were not read: what they replayed is not shown." in shown
    assert "load the page again in 30 seconds" in shown
    for seconds in (60.0, -1.0):
        monkeypatch.setattr(reading_limits, "REPORTS_SECONDS", seconds)
        told = twin(web, "/ledger/shop")
        assert (told["unread"], len(told["topics"][0]["rows"])) == ([], 1)
    assert "not read" not in text(web, "/ledger/shop")


def test_the_ledgers_page_does_without_a_report_that_takes_too_long(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse_for_ever(_: object) -> None:
        while True:
            pass

    assert journal.read_runs(settings.warehouse, "shop")
    monkeypatch.setattr(reading_limits, "REPORT_SECONDS", 0.1)
    monkeypatch.setattr(ledger_page, "_READ", KeptResults(100))
    monkeypatch.setattr(ledger_page, "_parse_report", parse_for_ever)
    told = twin(client("shop"), "/ledger/shop")
    assert told["unread"] == [1, 2]
    assert told["problems"][0]["found"] == "this report was not read: it takes more than 0.1 s of a processor to read"


def test_the_ledgers_page_works_on_each_range_that_it_shows_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_page, "MAX_CELL_RANGES", 2)
    contract = find(settings.schemas, "shop")
    by_run = [
        [ledger_page.RunOffsets(p, 5 * run + n, 5 * run + n + 1, {"accepted": 1}) for p in range(1_000) for n in (0, 1)]
        + [ledger_page.RunOffsets(0, 5 * run + 2, 5 * run + 5, {"other": 3})]
        for run in range(3)
    ]
    build = Mock(side_effect=ledger_page._build_cell)
    gaps = Mock(side_effect=ledger_page.find_gaps)
    monkeypatch.setattr(ledger_page, "_build_cell", build)
    monkeypatch.setattr(ledger_page, "find_gaps", gaps)
    built = ledger_page._build_topic(settings.warehouse, contract, "prices", [0, 0, 0], by_run)
    assert (built["partitions"], len(built["rows"])) == (1_000, 64)  # type: ignore[arg-type]
    assert [len(call.args[0]) for call in build.call_args_list] == [*[3] * 3, *[2] * 63 * 3]
    assert [len(pieces) for pieces in gaps.call_args.args[0]] == [64 * 2 + 1] * 3
    cell = built["rows"][0]["cells"][0]  # type: ignore[index, call-overload]
    assert (cell["ranges"], cell["moreRanges"], cell["offsets"]) == ([[0, 1], [1, 2]], 1, 5)  # type: ignore[index, call-overload]
    assert cell["fates"] == {"accepted": 2}, "others are none"  # type: ignore[index, call-overload]


@pytest.mark.usefixtures("settings")
def test_changes_are_shown_while_their_reports_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    web, sentence = client("shop"), "How many rows changed in each table is not shown"
    monkeypatch.setattr(reading_limits, "REPORTS_SECONDS", -1.0)
    told = twin(web, "/changes/shop")
    assert ({it["rows"] for it in told["tables"]}, told["total"] > 0) == ({None}, True)
    assert sentence in text(web, "/changes/shop")
    for seconds in (60.0, -1.0):
        monkeypatch.setattr(reading_limits, "REPORTS_SECONDS", seconds)
        told = twin(web, "/changes/shop")
        assert [it["rows"] for it in told["tables"] if it["name"] == "prices"] == [3]
    assert sentence not in text(web, "/changes/shop")


def test_long_texts_of_a_journal_are_cut(settings: Settings) -> None:
    contract = find(settings.schemas, "guest")
    long = "<&" * 500_000
    journal.append_entry(settings.warehouse, replace(Run(plan(contract, 1)), outcome=Abandoned("by a test")))
    run = Run(replace(plan(contract, 1), run=2, run_id=long))
    journal.append_entry(settings.warehouse, run)
    journal.append_entry(settings.warehouse, replace(run, outcome=Stopped("prices", long)))
    for address in ("/quality", "/quality/guest", "/ledger/guest"):
        for suffix in ("", ".json"):
            answer = client("guest", "shop").get(address + suffix)
            assert answer.status_code == 200
            assert len(answer.content) < 100_000, address
    (shown, _) = twin(client("guest", "shop"), "/quality/guest")["runs"]
    assert (len(shown["runId"]), shown["found"]) == (1_065, f"{long[:4_000]}… (1,000,000 characters)")


def test_a_report_is_masked_again_only_once_its_file_or_the_contract_has_changed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = Mock(side_effect=run_reports._mask_report)
    monkeypatch.setattr(run_reports, "_mask_report", mask)
    web = client("guest")

    def ask() -> int:
        assert [web.get(f"/reports/guest/run-1.{kind}").status_code for kind in ("json", "html")] == [200, 200]
        return mask.call_count

    assert (ask(), ask()) == (1, 1)
    path = settings.reports / "guest" / "run-1.json"
    path.write_text(path.read_text() + " ")
    assert (ask(), ask()) == (2, 2)
    contract = settings.schemas / "guest.yaml"
    contract.write_text(contract.read_text().replace("start: 2026-01-01", "start: 2026-01-02"))
    assert (ask(), ask()) == (3, 3)
    monkeypatch.setattr(run_reports._MASKED, "most", 0)
    path.write_text(path.read_text() + " ")
    assert (ask(), len(run_reports._MASKED)) == (5, 0)
