"""Damage to the files of one pipeline: its own line of the overview tells it, and all other pipelines are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hindcast.contracts import find
from hindcast.planning import journal
from hindcast.planning.journal import Run
from hindcast.reports import page
from hindcast.settings import Settings
from test_pages import GUEST, client, text, twin
from warehouses import HOSTILE, RUNS, plan, report, shop


@pytest.fixture(scope="module", autouse=True)
def now(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """`shop` is whole; `guest` has one run, which was stopped, and its report."""
    with shop(tmp_path_factory.mktemp("shop"), GUEST) as found:
        contract = find(found.schemas, "guest")
        planned = plan(contract, 1)
        run = Run(1, "manual__1", RUNS[0], "planned", planned, planned)
        journal.write(found.warehouse, run)
        journal.write(found.warehouse, replace(run, state="stopped", detail={"found": f"bad {HOSTILE}"}))
        page.write(found.reports, report(contract, 1, state="stopped"))
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
    "a count is huge": b'{"runId": "manual__1", "tables": {"a": {"corrected": 1' + b"0" * 400 + b"}}}",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_report_counts_as_none_and_is_told_in_its_pipelines_line(
    web: TestClient, now: Settings, content: bytes
) -> None:
    whole = line_of(web, "shop")
    path = now.reports / "guest" / "run-1.json"
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        line = line_of(web, "guest")
        assert line_of(web, "shop") == whole
        assert str(path) in text(web, "/quality/guest")
    finally:
        path.write_bytes(before)
    assert line["last"]["sentence"] == "Run 1 of guest was stopped."
    (problem,) = line["problems"]
    assert problem["where"] == str(path)
    assert problem["found"].startswith("is not a report: ")
    assert problem["mend"] == f"write it again: hindcast report guest 1 --format json > {path}"
    assert line_of(web, "guest")["problems"] == []


@pytest.mark.parametrize("files", ["_delta_log/*1.json", "*.parquet"])
def test_a_damaged_journal_is_told_in_its_pipelines_line(web: TestClient, now: Settings, files: str) -> None:
    whole = line_of(web, "shop")
    folder = Path(journal.table(now.warehouse, "guest").path)
    path = sorted(folder.glob(files))[0]
    before = path.read_bytes()
    path.write_bytes(before[:20])
    try:
        line = line_of(web, "guest")
        assert line_of(web, "shop") == whole
        assert " ".join(line["problems"][0]["found"].split()) in text(web, "/quality")
    finally:
        path.write_bytes(before)
    assert (line["last"], line["runs"]) == (None, [])
    (problem,) = line["problems"]
    assert problem["where"] == str(folder)
    assert "cannot be read" in problem["found"]


def test_a_plan_in_the_journal_that_is_none_is_told_in_its_pipelines_line(web: TestClient, now: Settings) -> None:
    whole = line_of(web, "shop")
    kept = journal.history(now.warehouse, "guest", 1)
    malformed = replace(kept[0], detail={"x": 1})
    journal.replace(now.warehouse, "guest", [malformed])
    try:
        (problem,) = line_of(web, "guest")["problems"]
        assert line_of(web, "shop") == whole
    finally:
        journal.replace(now.warehouse, "guest", kept)
    assert problem["found"] == "the runs cannot be shown: KeyError: 'pipeline'"
    assert problem["mend"] == "hindcast verify guest --quick says what is wrong with the journal"


def test_a_report_is_replaced_whole_or_not_at_all(now: Settings, tmp_path: Path) -> None:
    contract = find(now.schemas, "guest")
    path = page.write(tmp_path, report(contract, 1))
    read_before = path.open(encoding="utf-8"), path.with_suffix(".json").open(encoding="utf-8")
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    page.write(tmp_path, report(contract, 1, state="stopped", reason="x" * 100_000))
    for file in read_before:
        with file:
            assert file.read().encode() == before[Path(file.name).name], "who has opened it reads all of the old one"
    assert sorted(file.name for file in path.parent.iterdir()) == ["run-1.html", "run-1.json"]
    after = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(UnicodeEncodeError):
        page._replace(path, "half of it, then \ud800")
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == after
