"""The versions of application ids in a table: what delta-rs says of each, which is asked once."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from hindcast.store import commit_ids


def commit_run(place: Path, run: int) -> None:
    properties = CommitProperties(app_transactions=[Transaction("bills", run)])
    write_deltalake(place, pa.table({"n": [run]}), mode="append", commit_properties=properties)


def test_an_open_table_is_asked_once_for_each_id_and_again_after_it_has_gone_on(tmp_path: Path) -> None:
    commit_run(tmp_path, 1)
    table, asked = DeltaTable(tmp_path), list[str]()
    ask = table.transaction_version
    table.transaction_version = lambda app_id: asked.append(app_id) or ask(app_id)  # type: ignore[method-assign]
    for _ in range(2):
        assert commit_ids.read_version(table, "bills") == 1
        assert commit_ids.read_version(table, "prices") is None
    assert asked == ["bills", "prices"]
    commit_run(tmp_path, 2)
    assert commit_ids.read_version(table, "bills") == 1, "of the version that was opened"
    table.update_incremental()
    assert commit_ids.read_version(table, "bills") == 2
    assert commit_ids.read_version(DeltaTable(tmp_path, version=0), "bills") == 1


def test_what_closed_tables_were_asked_is_not_kept(tmp_path: Path) -> None:
    commit_run(tmp_path, 1)
    table = DeltaTable(tmp_path)
    before = len(commit_ids._VERSIONS)
    assert commit_ids.read_version(table, "bills") == 1
    assert len(commit_ids._VERSIONS) == before + 1
    del table
    gc.collect()
    assert len(commit_ids._VERSIONS) <= before
