"""What somebody else wrote into a table is an error or a finding with its place, whoever meets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from hindcast.common.errors import TableError
from hindcast.common.settings import Settings
from hindcast.contract import find
from hindcast.contract.bound import bind_contract
from hindcast.ops import maintenance
from hindcast.ops.verify.verify import VerifyReport, verify_tables
from hindcast.plan import journal
from hindcast.store import commit_history, tables
from hindcast.store.tables import Table
from test_pages import client
from warehouses import shop


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with shop(tmp_path) as found:
        yield found


def locate_prices(settings: Settings) -> Table:
    return tables.locate_table(settings.warehouse, find(settings.schemas, "shop"), "prices")


def write_commit(table: Table, line: str) -> None:
    version = DeltaTable(table.path).version() + 1
    Path(table.path, "_delta_log", f"{version:020}.json").write_text(line, encoding="utf-8")


def commit(table: Table, action: dict[str, Any]) -> None:
    write_commit(table, json.dumps(action))


def add_path(table: Table, path: str) -> None:
    add = {"path": path, "partitionValues": {"_belief": "open"}, "size": 9, "modificationTime": 0, "dataChange": True}
    commit(table, {"add": add})


def verify_quickly(settings: Settings) -> VerifyReport:
    return verify_tables(bind_contract(find(settings.schemas, "shop"), settings))


def remove_files(table: Table) -> None:
    for path in Path(table.path).rglob("*.parquet"):
        path.unlink()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("_delta_log", "1 file is no file: it is a folder"),
        ("x" * 5_000, "1 file is unreadable: "),
        ("x.parquet", "1 file is missing: "),
    ],
)
def test_a_file_that_is_none_is_a_finding(settings: Settings, path: str, found: str) -> None:
    add_path(locate_prices(settings), path)
    findings = [it for it in verify_quickly(settings).findings if it.table == "prices"]
    assert [it.check for it in findings] == ["files"]
    assert findings[0].found.startswith(found)
    assert len(findings[0].found) < 1_000


def test_a_path_that_no_file_can_have_is_told(settings: Settings) -> None:
    add_path(locate_prices(settings), "a\0b.parquet")
    findings = [it for it in verify_quickly(settings).findings if it.table == "prices"]
    assert [it.check for it in findings] == ["format"]


def test_a_note_that_is_nested_deeply_is_none(settings: Settings) -> None:
    table = locate_prices(settings)
    commit(table, {"commitInfo": {"timestamp": 0, "operation": "WRITE", "userMetadata": "[" * 100_000}})
    assert commit_history.read_notes(table, dict) == {}


ADD = '{"path": "x", "partitionValues": {"_belief": "open"}, "size": 9, "modificationTime": 0, "dataChange": true'


@pytest.mark.parametrize("line", ['{"commitInfo": [1, 2]}', f'{{"add": {ADD}, "path": "y"}}}}'])
def test_a_commit_that_is_none_is_told(settings: Settings, line: str) -> None:
    table = locate_prices(settings)
    write_commit(table, line)
    with pytest.raises(TableError, match="it is not as Delta's writers write logs") as refused:
        commit_history.read_notes(table, dict)
    assert refused.value.where.startswith(f"{table.path}/_delta_log/")
    findings = [it for it in verify_quickly(settings).findings if it.table == "prices"]
    assert [it.check for it in findings] == ["format"]


def test_maintenance_tells_of_a_missing_file_of_the_journal(settings: Settings) -> None:
    table = journal.runs_table(settings.warehouse, "shop")
    remove_files(table)
    with pytest.raises(TableError, match="a data file cannot be read") as refused:
        maintenance.file_retention(settings, "shop")
    assert refused.value.where == table.path


def test_the_page_of_keys_tells_of_a_missing_file(settings: Settings) -> None:
    table = locate_prices(settings)
    remove_files(table)
    answer = client("shop").get("/keys/shop.json", params={"table": "prices", "beginning": ""})
    assert "a data file cannot be read" in answer.json()["error"]["found"]
    assert answer.json()["error"]["where"] == table.path
