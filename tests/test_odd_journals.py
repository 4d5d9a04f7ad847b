"""A journal that somebody wrote by hand: it shows nothing of other pipelines, and harms none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake

import reports
from bare_runs import bare_run
from hindcast.airflow.pages import quality
from hindcast.cli import main
from hindcast.common.errors import TableError
from hindcast.common.json_values import StoredObject
from hindcast.common.settings import Settings
from hindcast.contract import bounds, find
from hindcast.kafka.topics import OffsetRange
from hindcast.ops import doctor
from hindcast.ops.journal_rebuild import has_malformed_report
from hindcast.plan import definitions, former_marks, inputs, journal, journal_rows, parsed_journals
from hindcast.plan.former_marks import list_sources
from hindcast.plan.parsed_journals import ParsedJournals
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import Erasure, Release, ReleasedKeys, Requeue, Upgrade
from hindcast.plan.runs import MALFORMED, Completed, Run, parse_plan
from hindcast.report.run_report import RunReport
from hindcast.store.table_creation import ensure_table
from test_pages import client, twin
from warehouses import RUNS, T0, report, shop

GUEST = """
pipeline: guest
start: 2026-01-01
topics:
  prices: {read: stream, key: {id: string}, value: {item: string}}
inputs:
  folks: {table: shop.people, key: {id: int}, value: {name: string}, sensitive: [name]}
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setattr(journal, "_PARSED", ParsedJournals())
    with shop(tmp_path, GUEST) as found:
        yield found


def build_plan(settings: Settings, number: int = 1) -> StoredObject:
    contract = find(settings.schemas, "guest")
    topics = {"prices": TopicPlan("t", 0, 0, {0: 0}, {0: OffsetRange(0, 2)}, {}, T0)}
    fields = definitions.list_unstored_fields([], contract)
    plan = Plan("guest", number, f"manual__{number}", RUNS[0], RUNS[0], contract.hash, topics, {"folks": RUNS[0]})
    return replace(plan, definition=fields).as_json()


def write_journal(settings: Settings, rows: list[tuple[int, str, str]], pipeline: str = "guest") -> None:
    """Write the journal of a pipeline as somebody who may write its files: runs, states and details."""
    fields = ("run", "entry", "detail")
    entries = [
        dict(zip(fields, row, strict=True)) | {"at": RUNS[0], "runId": "x", "knownAt": RUNS[0], "sequence": n}
        for n, row in enumerate(rows, 1)
    ]
    data = pa.Table.from_pylist(entries, schema=journal._ARROW)
    table = ensure_table(journal.runs_table(settings.warehouse, pipeline), journal.SCHEMA)
    write_deltalake(table, data, mode="overwrite")


PAGES = ("/quality/guest", "/ledger/guest", "/changes/guest", "/reports/guest/run-2.html", "/reports/guest/run-2.json")


def test_a_plan_that_names_another_pipeline_shows_nothing_of_it(settings: Settings) -> None:
    made = report(find(settings.schemas, "shop"), 2, state="stopped", found="SECRET of shop")
    reports.write_page(settings.reports, made)
    write_journal(
        settings,
        [
            (2, "planned", json.dumps({**build_plan(settings, 2), "pipeline": "shop"})),
            (2, "stopped", json.dumps({"table": "prices", "found": "x"})),
        ],
    )
    with pytest.raises(TableError, match="the journal lacks a valid plan of run 2"):
        journal.read_runs(settings.warehouse, "guest")
    web = client("guest")
    for address in (*PAGES, "/quality"):
        assert "SECRET" not in web.get(address).text
    assert [it["runs"] for it in twin(web, "/quality")["pipelines"]] == [[]]


ODD_PLANS: dict[str, dict[str, Any]] = {
    "another pipeline": {"pipeline": "shop"},
    "another run": {"run": 2},
    "a run that is none": {"run": True},
    "a run that is a text": {"run": "1"},
    "more numbers than there are": {"numbers": 2},
    "a name that is a number": {"runId": 5},
    "no name": {"runId": None},
    "a moment without a zone": {"knownAt": "2026-01-01T00:00:00"},
    "a moment that no other zone has": {"knownAt": "0001-01-01T00:00:00+14:00"},
    "a moment too late to be shown": {"knownAt": "9999-12-31T23:59:59+00:00"},
    "an interval's end without a zone": {"intervalEnd": "2026-01-01"},
    "an input's moment without a zone": {"inputs": {"folks": "2026-01-01"}},
    "inputs that are a list": {"inputs": []},
    "a contract that is none": {"contract": None},
    "a reason that is none": {"reason": 5},
    "decodings that are none": {"decodings": {"prices": 5}},
    "a definition that is none": {"definition": {"a": "b"}},
    "a definition of threes": {"definition": [["a", "b", "c"]]},
    "a definition of numbers": {"definition": [["a", 5]]},
    "too many inputs": {"definition": [[f"inputs.i{n}.table", f"p{n}.t"] for n in range(bounds.TABLES + 1)]},
    "a topic that is none": {"topics": {"prices": 5}},
    "an offset that is none": {"topics": {"prices": {"id": "t", "epoch": 0, "after": 0, "partitions": [5]}}},
    "a release without a moment": {"releases": {"prices": {"until": "x", "keys": []}}},
    "released keys that are none": {"releases": {"prices": {"until": T0.isoformat(), "keys": 5}}},
    "an upgrade of no kind": {"upgrade": {"table": "prices", "mode": "x", "step": "begin"}},
    "a table that is none": {"only": ["prices"]},
}


@pytest.mark.parametrize("change", ODD_PLANS.values(), ids=list(ODD_PLANS))
def test_an_odd_plan_is_none(settings: Settings, change: Mapping[str, Any]) -> None:
    whole = build_plan(settings)
    assert parse_plan(json.loads(json.dumps(whole)), "guest", 1) is not None
    assert parse_plan(json.loads(json.dumps({**whole, **change})), "guest", 1) is None


@pytest.mark.parametrize("place", ["id", "epoch", "after", "from", "chunk", "validTime", "members"])
def test_an_odd_value_of_a_topics_plan_makes_it_none(settings: Settings, place: str) -> None:
    whole = json.loads(json.dumps(build_plan(settings)))
    whole["topics"]["prices"][place] = [{}]
    assert parse_plan(whole, "guest", 1) is None


@pytest.mark.parametrize(
    "purpose",
    [
        Release({"prices": ReleasedKeys(T0, ('{"id": "a"}',), None)}),
        Release({"prices": ReleasedKeys(T0, ('{"id": "a"}',), "ann", T0)}),
        Requeue(("prices",), "t", "bad", 0, (1, 2)),
        Erasure("prices", "abc", ("bills",)),
        Upgrade("prices", "in-place", "begin", "1", 3, ("bills",)),
    ],
)
def test_a_plan_of_each_purpose_is_read_as_it_was_stored(purpose: Any) -> None:
    plan = replace(bare_run("guest", 3, T0).plan, purpose=purpose, numbers=2, run_id="a\ud800")
    assert parse_plan(json.loads(json.dumps(plan.as_json())), "guest", 3) == plan


def test_what_nobody_foresaw_of_one_pipeline_stays_in_its_line(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append_entry(settings.warehouse, bare_run("guest", 1, T0))
    build = quality.RunEntry.as_json

    def fail(entry: quality.RunEntry) -> Any:
        if entry.run.plan.pipeline == "guest":
            raise ZeroDivisionError("a value")
        return build(entry)

    monkeypatch.setattr(quality.RunEntry, "as_json", fail)
    guest, own = twin(client("guest", "shop"), "/quality")["pipelines"]
    assert [it["found"] for it in guest["problems"]] == ["the runs cannot be shown: ZeroDivisionError"]
    assert (len(own["runs"]), own["problems"]) == (2, [])


@pytest.mark.parametrize("name", ["a\0b.t", "\ud800.t", "../x.t", "shop", "shop.", "a.b.c", "n" * 500 + ".t", "Shop.t"])
def test_a_stored_contract_reads_no_table_whose_name_is_none(settings: Settings, name: str) -> None:
    assert list_sources({"inputs.x.table": name, "inputs.x.key.id": "int"}) == {}
    assert list_sources({"inputs.x.table": "shop.t_2", "inputs.x.key.id": "int"}) == {"shop.t_2": {"id"}}
    plan = {**build_plan(settings), "pipeline": "shop", "contract": "x", "definition": [["inputs.x.table", name]]}
    write_journal(settings, [(1, "planned", json.dumps(plan)), (1, "completed", "{}")], "shop")
    answers = [client("guest", "shop").get(f"{address}.json") for address in ("/quality", "/quality/guest")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert "ValueError" not in answers[0].text


def test_only_so_many_tables_of_former_contracts_are_looked_at(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former_marks, "MAX_SOURCES", 3)
    contract, find_marks = find(settings.schemas, "guest"), Mock(return_value=frozenset())
    runs = []
    for number in (1, 2):
        fields = {f"inputs.i{n}.table": f"p{number}.t{n}" for n in range(2)} | {"topics.prices.read": "stream"}
        run = bare_run("guest", number, T0, "completed", contract=f"old {number}", definition=fields)
        runs.append(run)
    hidden = former_marks.find_former_marks(contract, runs, find_marks)
    assert find_marks.call_count == 3
    assert hidden["prices"] == {"id", "item"}, "whether the fourth marks anything is not known"


def replace_file(settings: Settings, data: pa.Table, **options: Any) -> None:
    """Put a file in place of the only one of the journal of `guest`."""
    table = DeltaTable(journal.runs_table(settings.warehouse, "guest").path)
    (path,) = table.file_uris()
    size = Path(path).stat().st_size
    pa.parquet.write_table(data, path, **options)
    for log in Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*.json"):
        text = log.read_text(encoding="utf-8").replace(f'"size":{size}', f'"size":{Path(path).stat().st_size}')
        log.write_text(text, encoding="utf-8")


def build_rows(count: int, **columns: pa.Array) -> pa.Table:
    nulls = {field.name: pa.nulls(count, field.type) for field in journal._ARROW}
    return pa.table(nulls | {"run": pa.array(np.full(count, 1, np.int64))} | columns, schema=journal._ARROW)


FILES: dict[str, tuple[pa.Table, dict[str, Any], str]] = {
    "rows": (build_rows(1_000_001), {}, "has 1,000,001 rows, more than 1,000,000"),
    "row groups": (build_rows(1_001), {"row_group_size": 1}, "has 1,001 parts, more than 1,000"),
    "states": (build_rows(1, entry=pa.array(["x" * 100_000])), {}, "bytes in the column entry"),
}


@pytest.mark.parametrize(("data", "options", "found"), FILES.values(), ids=list(FILES))
def test_a_file_with_more_than_runs_write_is_refused_unread(
    settings: Settings, data: pa.Table, options: Mapping[str, Any], found: str
) -> None:
    write_journal(settings, [(1, "planned", "{}")])
    replace_file(settings, data, **options)
    for read in (journal.read_runs, journal.find_damage):
        with pytest.raises(TableError, match=rf"the file .*{found}.*: no run writes so much"):
            read(settings.warehouse, "guest")


def test_a_state_that_is_none_ends_the_reading(settings: Settings) -> None:
    write_journal(settings, [(1, "planned", json.dumps(build_plan(settings))), (1, "x", "{}")])
    with pytest.raises(TableError, match="'x' is not a state of a run"):
        journal.read_runs(settings.warehouse, "guest")


def test_the_names_of_runs_are_not_read_twice() -> None:
    assert "runId" not in parsed_journals.COLUMNS, "a plan has it: a long one would take memory that nobody counts"


@pytest.mark.usefixtures("settings")
def test_a_journal_of_too_many_files_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_rows, "MAX_FILES", 2)
    open_dataset = Mock(side_effect=journal_rows.open_dataset)
    monkeypatch.setattr(journal_rows, "open_dataset", open_dataset)
    open_files = Mock(side_effect=parsed_journals.open_files)
    monkeypatch.setattr(parsed_journals, "open_files", open_files)
    for _ in range(3):
        (line,) = twin(client("shop"), "/quality")["pipelines"]
        (problem,) = line["problems"]
        assert problem["found"] == "the journal has 4 files, more than 2: no run writes so much"
    assert (open_files.call_count, open_dataset.call_count) == (1, 0), "they are not even listed"


ODD_REPORTS: list[dict[str, Any]] = [
    {"topics": {"prices": {"late": "x", "partitions": [{"end": 2}]}}},
    {"topics": {"prices": {"offsets": "x"}}},
    {"topics": {"prices": {"decidedAnew": {"accepted": "x"}}}},
    {"topics": {"prices": {"fates": {"accepted": "x"}}}},
    {"tables": {"prices": {"widened": {"item": "x"}}}},
    {"tables": {"prices": {"corrected": "x"}}},
    {"tables": {"prices": {"ages": {"a day": "x"}}}},
    {"tables": {"prices": {"held": {"keys": "x"}}}},
    {"tables": {"prices": {"gates": [{"on_failure": []}]}}},
    {"tables": {"prices": {"gates": [{"expectation": 5}]}}},
]


ODD_COUNTS: list[dict[str, Any]] = [
    {"topics": {"prices": {"offsets": "5"}}},
    {"topics": {"prices": {"offsets": -1}}},
    {"topics": {f"t{n}": {"offsets": 1 << 62} for n in range(2)}},
    {"tables": {f"t{n}": {"opened": 1 << 62} for n in range(2)}},
]


@pytest.mark.parametrize("change", ODD_REPORTS, ids=json.dumps)
def test_a_report_with_odd_values_is_malformed(settings: Settings, change: Mapping[str, Any]) -> None:
    with pytest.raises(MALFORMED):
        RunReport.from_json({"runId": "x", **change})
    run = replace(bare_run("guest", 1, T0), outcome=Completed({"runId": "run-1", **change}))
    journal.append_entry(settings.warehouse, Run(run.plan))
    journal.append_entry(settings.warehouse, run)
    for answer in map(client("guest").get, ("/quality", "/quality/guest", "/ledger/guest")):
        assert "page cannot be shown" not in answer.text
    assert main.main(["report", "guest"]) == 1
    failed, fix = doctor._check_journals(settings), "hindcast ledger guest --rebuild"
    assert [(it.found, it.fix) for it in failed if it.state == "failed"] == [
        ("guest: malformed reports, of run 1", fix)
    ]


@pytest.mark.parametrize("detail", ["{", "[]", '{"topics": 5}', *map(json.dumps, ODD_COUNTS)])
def test_a_malformed_report_is_an_error_of_ours(
    settings: Settings, detail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where each count is one, and their sum is none."""
    write_journal(settings, [(1, "planned", json.dumps(build_plan(settings))), (1, "completed", detail)])
    assert main.main(["runs", "guest"]) == 1
    assert "guest, run 1: the report in the journal is malformed: " in capsys.readouterr().err
    (run,) = journal.read_runs(settings.warehouse, "guest")
    assert has_malformed_report(run)


def test_a_stored_contract_is_parsed_only_for_the_marks_of_a_table_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse = Mock(side_effect=definitions.parse_stored_fields)
    monkeypatch.setattr(definitions, "parse_stored_fields", parse)
    having, lacking = ({f"topics.{name}.read": "x", "topics.a.sensitive": "true"} for name in ("prices", "others"))
    runs = [
        bare_run("guest", number, T0, "completed", contract=f"old {number}", definition=fields)
        for number, fields in enumerate([having, lacking, lacking], 1)
    ]
    assert inputs.list_stored_marks(runs, ["prices", "menu"]) == {"prices": None, "menu": None}
    assert parse.call_count == 1
