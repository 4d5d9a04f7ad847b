"""How large the entries of a journal may be, and how much memory the journals that a process has read take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bare_runs import bare_run
from hindcast.common.errors import RequestError, TableError
from hindcast.common.settings import Settings
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import journal, journal_rows, parsed_journals
from hindcast.plan.parsed_journals import ParsedJournals
from hindcast.plan.plans import TopicPlan
from hindcast.plan.runs import Completed, Run, StoredReport
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
    with pytest.raises(TableError, match=r"runs? [12] .*: no run writes so much") as refused:
        journal.read_runs(settings.warehouse, "shop")
    assert refused.value.where == journal.runs_table(settings.warehouse, "shop").path
    assert "RESTORE the table" in refused.value.fix
    read = Mock(side_effect=journal._parse_runs)
    monkeypatch.setattr(journal, "_parse_runs", read)
    for _ in range(2):
        guest, own = sorted(twin(client("shop", "guest"), "/quality")["pipelines"], key=lambda it: str(it["pipeline"]))
        assert (guest["problems"], [it["found"] for it in own["problems"]]) == ([], [refused.value.found])
    assert read.call_count == 0, "it is known that the files are too large"


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
    fields = {f"views.v{n}.select.c": '"é", [1]' * 100 for n in range(1_100)}
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


def test_all_journals_together_take_bounded_memory(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    other = bare_run("guest", 1, T0)
    journal.append_entry(settings.warehouse, other)
    for pipeline in ("shop", "guest"):
        journal.read_runs(settings.warehouse, pipeline)
    assert len(journal._PARSED._kept) == 2
    monkeypatch.setattr(parsed_journals, "MAX_KEPT", 100)
    journal.append_entry(settings.warehouse, replace(other, outcome=Completed({"run": 1})))
    journal.read_runs(settings.warehouse, "guest")
    assert [Path(path).parent.name for path in journal._PARSED._kept] == ["guest"]


@pytest.mark.usefixtures("settings")
def test_the_pages_read_no_journal_that_takes_too_much_memory() -> None:
    web = client("shop")
    assert journal._PARSED.most == parsed_journals.MAX_PAGE_MEMORY
    journal.limit_memory(2_000)
    (line,) = twin(web, "/quality")["pipelines"]
    (problem,) = line["problems"]
    assert "takes more than 0 MiB of memory" in problem["found"]
    assert "hindcast runs shop" in problem["mend"]
    journal.limit_memory(1 << 20)
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
