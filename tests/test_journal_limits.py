"""How large the entries of a journal may be, and how much memory the journals that a process has read take."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bare_runs import bare_run
from hindcast.airflow.pages import reading_limits
from hindcast.common.errors import RequestError, TableError
from hindcast.common.settings import Settings
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import journal, journal_rows, parsed_journals
from hindcast.plan.entries import JournalEntry
from hindcast.plan.journal_rows import EntryRow, UnreadJournalError
from hindcast.plan.parsed_journals import JournalLimits, ParsedJournals
from hindcast.plan.plans import TopicPlan
from hindcast.plan.runs import Completed, Run, StoredReport
from hindcast.store import own_files, table_cache, tables
from test_pages import GUEST, client, twin
from warehouses import T0, shop


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setattr(journal, "_PARSED", ParsedJournals())
    with shop(tmp_path, GUEST) as found:
        yield found


def replace_details(settings: Settings, state: str, detail: str) -> None:
    """Give the entries of this state in the journal of `shop` another detail, as somebody who may write its files."""
    path = journal.runs_table(settings.warehouse, "shop").path
    stored = DeltaTable(path).to_pyarrow_table()
    rows = [row | ({"detail": detail} if row["entry"] == state else {}) for row in stored.to_pylist()]
    write_deltalake(path, pa.Table.from_pylist(rows, schema=stored.schema), mode="overwrite")


BOMBS = {
    "text": '{"reason": "' + "x" * (17 << 20) + '"}',
    "many bytes": '{"reason": "' + "x" * (100 << 20) + '"}',
    "lists": '{"x": [' + "[]," * 600_000 + "0]}",
}


@pytest.mark.parametrize("detail", BOMBS.values(), ids=list(BOMBS))
@pytest.mark.parametrize("state", ["planned", "completed"])
def test_an_entry_that_no_run_writes_is_refused_before_it_is_parsed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, detail: str, state: str
) -> None:
    replace_details(settings, state, detail)
    with pytest.raises(TableError, match=r"(run [12]|the file .*) has .*: no run writes so much") as refused:
        journal.read_runs(settings.warehouse, "shop")
    assert refused.value.where == journal.runs_table(settings.warehouse, "shop").path
    assert "RESTORE the table" in refused.value.fix
    read = Mock(side_effect=parsed_journals.load_files)
    monkeypatch.setattr(parsed_journals, "load_files", read)
    for _ in range(2):
        guest, own = sorted(twin(client("shop", "guest"), "/quality")["pipelines"], key=lambda it: str(it["pipeline"]))
        assert (guest["problems"], [it["found"] for it in own["problems"]]) == ([], [refused.value.found])
    assert read.call_count == 0, "it is known that the files are too large"


def test_opening_a_journal_counts_as_time_of_the_overview(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is kept open is shown, and its folders are not listed again unless something in them has changed."""
    web = client("shop")
    monkeypatch.setattr(reading_limits, "_SLOW", {})
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    monkeypatch.setattr(own_files, "_SETTLED", -1 << 62)  # the test has just changed them
    table_cache._CACHE.clear()
    (line,) = twin(web, "/quality")["pipelines"]
    assert line["problems"] == []
    assert reading_limits._SPENT["shop"].opening > 0
    monkeypatch.setattr(reading_limits, "OPENING_SECONDS", 0)
    (line,) = twin(web, "/quality")["pipelines"]
    assert line["problems"] == []
    path = journal.runs_table(settings.warehouse, "shop").path
    Path(path, "x").mkdir()
    (line,) = twin(web, "/quality")["pipelines"]
    assert line["problems"][0]["found"] == "the runs were not read: opening their table took more than 0 s"
    Path(path, "x").rmdir()
    del table_cache._CACHE[path]
    (line,) = twin(web, "/quality")["pipelines"]
    assert line["problems"][0]["found"] == "the runs were not read: opening their table took more than 0 s"
    assert line["problems"][0]["mend"] == "hindcast runs shop shows them, or what is wrong with their table"


def test_a_run_enters_nothing_that_would_be_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_rows, "MAX_DETAIL", 20_000)
    before = journal.read_runs(settings.warehouse, "shop")
    ranges = {n: OffsetRange(0, 2) for n in range(1_000)}
    large = TopicPlan("t", 0, 2, dict.fromkeys(ranges, 0), ranges, {})
    plan = replace(before[-1].plan, run=3, run_id="third", topics={"prices": large})
    with pytest.raises(RequestError, match=r"the plan of run 3 has .* characters, more than 20,000") as refused:
        journal.append_entry(settings.warehouse, Run(plan))
    assert "split the pipeline" in refused.value.fix
    assert journal.read_runs(settings.warehouse, "shop") == before


def test_the_plan_of_a_large_pipeline_is_entered_and_read(tmp_path: Path) -> None:
    """500 topics with 40 partitions each, and a contract of 1 MiB."""
    ranges = {n: OffsetRange(10**9, 10**9 + 10**6) for n in range(40)}
    topic = TopicPlan("AbCdEfGhIjKlMnOpQrStUv", 0, 5, dict.fromkeys(ranges, 10**9), ranges, {})
    run = bare_run("shop", 1, T0)
    fields = {f"views.v{n % 400}.select.c{n}": '"é", [1]' * 100 for n in range(1_100)}
    topics = {f"topic_{n}": topic for n in range(500)}
    planned = replace(run, plan=replace(run.plan, topics=topics, definition=fields))
    journal.append_entry(str(tmp_path), planned)
    (read,) = journal.read_runs(str(tmp_path), "shop")
    assert read == planned


def test_a_report_is_kept_as_it_is_stored_and_read_where_it_is_used(settings: Settings) -> None:
    run = journal.read_runs(settings.warehouse, "shop")[-1]
    assert isinstance(run.outcome, Completed)
    assert run.outcome == Completed(run.outcome.report)
    assert run.outcome.report["run"] == 2
    replace_details(settings, "completed", '{"run": ')
    with pytest.raises(TableError, match="the report in the journal is malformed"):
        _ = journal.read_runs(settings.warehouse, "shop")[-1].results


def list_kept() -> list[str]:
    """The pipelines whose journals are kept."""
    return [Path(path).parent.name for path in journal._PARSED._kept]


def add_runs(settings: Settings, pipeline: str, count: int) -> None:
    """Enter so many runs more of a pipeline, each in a file of its own."""
    first = len(journal.read_runs(settings.warehouse, pipeline)) + 1
    for number in range(first, first + count):
        run = bare_run(pipeline, number, T0)
        journal.append_entry(settings.warehouse, run)
        journal.append_entry(settings.warehouse, replace(run, outcome=Completed({"run": number})))


def test_all_journals_together_take_bounded_memory_and_the_largest_of_them_goes_first(settings: Settings) -> None:
    for pipeline, count in (("guest", 1), ("large", 9), ("other", 1)):
        add_runs(settings, pipeline, count)
    pipelines = ("shop", "guest", "large", "other")
    for pipeline in pipelines:
        journal.read_runs(settings.warehouse, pipeline)
    assert set(list_kept()) == set(pipelines)
    sizes = {Path(path).parent.name: reader.size for path, reader in journal._PARSED._kept.items()}
    assert max(sizes.values()) == sizes["large"]
    journal.limit_reading(JournalLimits(kept=sum(sizes.values()) - 1))
    journal.append_entry(settings.warehouse, bare_run("other", 2, T0))
    journal.read_runs(settings.warehouse, "other")
    assert set(list_kept()) == {"shop", "guest", "other"}
    journal.limit_reading(JournalLimits(kept=1))
    journal.read_runs(settings.warehouse, "large")
    assert list_kept() == ["large"], "the last one is kept if it alone takes more"


@pytest.mark.usefixtures("settings")
def test_one_journal_of_the_largest_size_stays_beside_others_in_the_api_server() -> None:
    client("shop")
    limits = journal._PARSED.limits
    assert (limits.memory, limits.kept - limits.memory) == (reading_limits.JOURNAL_MEMORY, 1 << 30)


def test_of_a_journal_that_grew_only_its_new_files_are_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_runs(settings, "guest", 3)
    before = journal.read_runs(settings.warehouse, "guest")
    parse = Mock(side_effect=parsed_journals.parse_entry)
    monkeypatch.setattr(parsed_journals, "parse_entry", parse)
    add_runs(settings, "guest", 1)
    after = journal.read_runs(settings.warehouse, "guest")
    assert ([run.number for run in after], [run.state for run in after]) == ([1, 2, 3, 4], ["completed"] * 4)
    assert parse.call_count == 2
    assert all(one is other for one, other in zip(before, after, strict=False)), "what is known of them stays known"
    table = DeltaTable(journal.runs_table(settings.warehouse, "guest").path)
    table.optimize.compact()
    assert journal.read_runs(settings.warehouse, "guest") == after
    assert parse.call_count == 2 + 8, "all files are others now"


def test_a_journal_whose_table_is_opened_again_is_not_read_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal.read_runs(settings.warehouse, "shop")
    listing = Mock(side_effect=parsed_journals.open_files)
    monkeypatch.setattr(parsed_journals, "open_files", listing)
    table_cache._CACHE.clear()
    assert journal.read_runs(settings.warehouse, "shop") == before
    assert listing.call_count == 0
    commit = max(Path(journal.runs_table(settings.warehouse, "shop").path, "_delta_log").glob("*.json"))
    text = commit.read_text(encoding="utf-8")
    commit.unlink()
    commit.write_text(text, encoding="utf-8")
    assert journal.read_runs(settings.warehouse, "shop") == before
    assert listing.call_count == 1, "the log is another one"


def test_the_overview_of_many_pipelines_opens_their_journals_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time there is no time to open or to read anything."""
    monkeypatch.setattr(journal, "_PARSED", ParsedJournals())
    monkeypatch.setattr(reading_limits, "_SLOW", {})
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    monkeypatch.setattr(own_files, "_SETTLED", -1 << 62)  # the test has just changed the folders
    names = [f"p{n}" for n in range(70)]
    contracts = [GUEST.replace("pipeline: guest", f"pipeline: {name}").partition("inputs:")[0] for name in names]
    opening = Mock(side_effect=tables.open_latest)
    with shop(tmp_path, *contracts) as settings:
        for name in names:
            journal.append_entry(settings.warehouse, bare_run(name, 1, T0))
        monkeypatch.setattr(tables, "open_latest", opening)
        web = client(*names)
        for seconds, opened in ((600.0, 70), (0.0, 0)):
            monkeypatch.setattr(reading_limits, "OVERVIEW_SECONDS", seconds)
            opening.reset_mock()
            lines = twin(web, "/quality")["pipelines"]
            assert [(len(line["runs"]), line["problems"]) for line in lines] == [(1, [])] * 70
            assert opening.call_count == opened


def test_a_journal_that_takes_longer_than_its_part_of_the_overview_is_read_with_what_others_leave(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_runs(settings, "guest", 6)
    web = client("shop", "guest")
    assert [line["problems"] for line in twin(web, "/quality")["pipelines"]] == [[], []]
    journal._PARSED.clear()
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    monkeypatch.setattr(reading_limits, "OVERVIEW_SECONDS", 2.0)
    parse = parsed_journals.parse_entry

    def parse_slowly(row: EntryRow) -> JournalEntry:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        return parse(row)

    monkeypatch.setattr(parsed_journals, "parse_entry", parse_slowly)
    guest, own = twin(web, "/quality")["pipelines"]
    assert (len(guest["runs"]), guest["problems"], len(own["runs"]), own["problems"]) == (6, [], 2, [])


def test_a_page_reads_a_long_journal_in_several_requests(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    add_runs(settings, "guest", 6)
    web = client("shop", "guest")
    parse = Mock(side_effect=parsed_journals.parse_entry)
    monkeypatch.setattr(parsed_journals, "parse_entry", parse)
    journal._PARSED.clear()

    @contextmanager
    def watch(pipeline: str) -> Iterator[Callable[[], None]]:
        read = parse.call_count

        def check() -> None:
            if pipeline == "guest" and parse.call_count - read >= 5:
                raise UnreadJournalError("not all read", where=pipeline, fix="load the page again")

        yield check

    journal.limit_reading(replace(journal._PARSED.limits, watch=watch))
    for _ in range(2):
        guest, own = twin(web, "/quality")["pipelines"]
        assert [it["found"] for it in guest["problems"]] == ["not all read"]
        assert (guest["runs"], len(own["runs"]), own["problems"]) == ([], 2, [])
    guest, _ = twin(web, "/quality")["pipelines"]
    assert ([run["run"] for run in guest["runs"]], guest["problems"]) == ([1, 2, 3, 4, 5, 6], [])
    assert parse.call_count == 4 + 12, "each entry of both once"


def test_a_page_reads_a_journal_no_longer_than_it_may(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    web = client("shop")
    with reading_limits.limit_page(0.0):
        with pytest.raises(UnreadJournalError, match="it takes longer than a page may") as refused:
            journal.read_runs(settings.warehouse, "shop")
        assert refused.value.fix == "load the page again: it goes on with the rest"
    monkeypatch.setattr(reading_limits, "PAGE_SECONDS", 0.0)
    assert "not all read yet" in web.get("/ledger/shop.json").json()["error"]["found"]
    monkeypatch.setattr(reading_limits, "PAGE_SECONDS", 60.0)
    with reading_limits.watch_journal("shop"):
        reading_limits._SPENT["shop"].journal = 100.0
    assert "reading them took more than 10 s" in web.get("/ledger/shop.json").json()["error"]["found"]
    monkeypatch.setattr(reading_limits, "SPAN", 0.0)
    assert web.get("/ledger/shop.json").status_code == 200
    monkeypatch.setattr(reading_limits, "PAGE_SECONDS", 0.0)
    assert web.get("/ledger/shop.json").status_code == 200, "what was read is kept"


def test_a_page_does_not_wait_long_for_one_that_reads_the_same_journal(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_limits, "WAIT_SECONDS", 0.0)
    web = client("guest")
    add_runs(settings, "guest", 1)
    journal.read_runs(settings.warehouse, "guest")
    journal.append_entry(settings.warehouse, bare_run("guest", 2, T0))
    (reader,) = (reader for path, reader in journal._PARSED._kept.items() if Path(path).parent.name == "guest")
    with reader.lock:
        (line,) = twin(web, "/quality")["pipelines"]
        assert "another page is reading it at this moment" in line["problems"][0]["found"]
    assert twin(web, "/quality")["pipelines"][0]["problems"] == []


def test_a_forked_process_does_not_wait_for_a_thread_that_it_has_not_got(settings: Settings) -> None:
    add_runs(settings, "guest", 1)
    for pipeline in ("guest", "shop"):
        journal.read_runs(settings.warehouse, pipeline)
    (reader,) = (reader for path, reader in journal._PARSED._kept.items() if Path(path).parent.name == "guest")
    with reader.lock, journal._PARSED._lock:
        if not (child := os.fork()):
            os._exit(0 if list_kept() == ["shop"] and journal._PARSED._lock.acquire(blocking=False) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert set(list_kept()) == {"shop", "guest"}


def test_a_report_is_not_shown_unmasked_while_its_journal_is_not_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_runs(settings, "guest", 1)
    (settings.reports / "guest").mkdir(exist_ok=True)
    (settings.reports / "guest" / "run-1.html").write_text("what a former contract marked")
    path = settings.schemas / "guest.yaml"
    path.write_text(path.read_text().partition("inputs:")[0])
    web = client("guest")
    assert web.get("/reports/guest/run-1.html").status_code == 200
    journal._PARSED.clear()
    monkeypatch.setattr(reading_limits, "PAGE_SECONDS", 0.0)
    assert web.get("/reports/guest/run-1.html").status_code == 500


@pytest.mark.usefixtures("settings")
def test_the_pages_read_no_journal_that_takes_too_much_memory() -> None:
    web = client("shop")
    limits = journal._PARSED.limits
    journal.limit_reading(replace(limits, memory=2_000))
    (line,) = twin(web, "/quality")["pipelines"]
    (problem,) = line["problems"]
    assert "takes more than 0 MiB of memory" in problem["found"]
    assert "hindcast runs shop" in problem["mend"]
    journal.limit_reading(limits)
    journal._PARSED.clear()
    assert twin(web, "/quality")["pipelines"][0]["problems"] == []
    assert json.dumps(twin(web, "/quality")["pipelines"][0]["runs"])


def test_all_details_together_are_bounded(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_rows, "MAX_ALL_DETAILS", 1_000)
    with pytest.raises(TableError, match="the entries of the journal have more than 0 MiB"):
        journal.read_runs(settings.warehouse, "shop")


def test_the_ledgers_page_parses_the_report_of_a_run_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = journal.read_runs(settings.warehouse, "shop")
    parse = StoredReport.parse
    parsed = Mock(return_value=None)
    monkeypatch.setattr(StoredReport, "parse", lambda stored: parsed(stored) or parse(stored))
    assert len(twin(client("shop"), "/ledger/shop")["topics"]) == 5
    assert parsed.call_count <= 2 * len(runs), "once for the offsets, once for what its tables need"


def test_whoever_waits_for_a_reader_that_fails_gets_the_error_too(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_details(settings, "planned", "{broken")
    monkeypatch.setattr(ParsedJournals, "_drop", lambda *_: None)  # he has the reader by now
    for _ in range(3):
        with pytest.raises(TableError, match="the journal has an entry that is none"):
            journal.read_planned_runs(settings.warehouse, "shop")
