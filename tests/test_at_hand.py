"""Tables that are kept open between questions: as they are now, whoever has committed meanwhile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from hindcast.common.errors import TableError
from hindcast.ops.erase import row_removal
from hindcast.ops.verify import emitted_checks
from hindcast.store import commit_history, commit_notes, table_cache, tables
from hindcast.store.commit_notes import EmissionNote, FatesNote, LogNote, TableNote
from hindcast.store.tables import Table


def make(folder: Path, *values: int, name: str = "menu", mode: str = "append") -> Table:
    table = Table(str(folder), "bistro", name, "versions", ("item",))
    rows = pa.table({"item": [*values]})
    write_deltalake(table.path, rows, mode=mode, name=f"bistro.{name}", description=table.description)  # type: ignore[call-overload]
    return table


def items(table: Table) -> list[int]:
    found = tables.open_table(table)
    assert found is not None
    return sorted(found.to_pyarrow_table().column("item").to_pylist())


def test_an_unchanged_table_is_not_opened_again(tmp_path: Path) -> None:
    table = make(tmp_path, 1)
    assert tables.open_table(table) is tables.open_table(table)


def test_a_commit_is_seen_at_once(tmp_path: Path) -> None:
    table = make(tmp_path, 1)
    for n in range(2, 14):  # past a checkpoint
        assert items(table) == [*range(1, n)]
        make(tmp_path, n)
    assert items(table) == [*range(1, 14)]


def test_a_table_made_anew_in_its_place_is_another(tmp_path: Path) -> None:
    table = make(tmp_path, 1)
    assert items(table) == [1]
    shutil.rmtree(table.path)
    assert tables.open_table(table) is None
    make(tmp_path, 2)
    assert items(table) == [2]
    log = Path(table.path, "_delta_log")
    shutil.rmtree(log)
    make(tmp_path, 3, mode="overwrite")
    assert items(table) == [3]


def test_a_commit_written_anew_is_read_anew(tmp_path: Path) -> None:
    table = make(tmp_path, 1)
    before = tables.open_table(table)
    commit = next(Path(table.path, "_delta_log").glob("*.json"))
    text = commit.read_text(encoding="utf-8")
    commit.unlink()
    commit.write_text(text, encoding="utf-8")
    assert tables.open_table(table) is not before


def test_tables_are_kept_in_bounded_memory_and_the_largest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_cache, "_CACHE", {})
    some = [make(tmp_path, n, name=f"menu{n}") for n in range(4)]
    for n in range(3):
        make(tmp_path, n, name="menu1")
    kept = [tables.open_table(table) for table in some[:3]]
    sizes = [cached.size for cached in table_cache._CACHE.values()]
    assert sizes[0] == sizes[2] < sizes[1]
    monkeypatch.setattr(table_cache, "MAX_MEMORY", sum(sizes))
    last = tables.open_table(some[3])
    assert [tables.open_table(some[n]) is it for n, it in ((0, kept[0]), (2, kept[2]), (3, last))] == [True] * 3
    monkeypatch.setattr(table_cache, "MAX_MEMORY", 1)
    large = tables.open_table(some[1])
    assert large is not kept[1]
    assert (tables.open_table(some[1]) is large, len(table_cache._CACHE)) == (True, 1), "one alone is kept"


def test_a_hint_to_a_checkpoint_that_is_gone_is_named_with_what_to_do(tmp_path: Path) -> None:
    table = make(tmp_path, 1)
    hint = Path(table.path, "_delta_log", "_last_checkpoint")
    hint.write_text('{"version": 7, "size": 3}', encoding="utf-8")
    with pytest.raises(TableError, match="_last_checkpoint names a checkpoint that is not there") as error:
        tables.open_table(table)
    assert f"rm {hint} " in str(error.value)
    hint.unlink()
    assert items(table) == [1]


FOREIGN_NOTES = [
    *(
        "nightly",
        "[1]",
        "7",
        '{"run": "nightly"}',
        '{"run": 1}',
        '{"run": true, "opened": 3}',
        '{"run": 1, "opened": "3"}',
    ),
    *('{"run": 2, "runId": "nightly"}', '{"run": 1, "opened": 0, "ages": 3}', '{"run": 1, "opened": 0, "ties": [1]}'),
    '{"forgets": 1, "removed": "all"}',
]


@pytest.mark.parametrize("note", FOREIGN_NOTES)
def test_notes_that_others_write_are_none_of_ours(tmp_path: Path, note: str) -> None:
    table = make(tmp_path, 1)
    own = json.dumps(TableNote(1, opened=2).as_json())
    for text in (own, note):
        properties = CommitProperties(custom_metadata={"userMetadata": text})
        write_deltalake(table.path, pa.table({"item": [2]}), mode="append", commit_properties=properties)
    assert commit_history.read_notes(table, TableNote.from_json) == {1: TableNote(1, opened=2)}
    assert row_removal.count_removed(table, 1) == 0


@pytest.mark.parametrize("note", ['{"run": 3}', '{"run": 3, "refused": "no"}', '{"epoch": 1}', '{"forgets": []}'])
def test_no_kind_of_note_is_read_from_what_others_write(tmp_path: Path, note: str) -> None:
    """The newest commit has the text, and the notes of our own are found behind it."""
    table = make(tmp_path, 1)
    log, fates = LogNote(3, "own", 1, None), FatesNote(3, 1)
    emission = EmissionNote(3, "2026-01-01T00:00:00+00:00", 1, "definition")
    for own in (log, fates, emission):
        for text in (json.dumps(own.as_json()), note):
            properties = CommitProperties(custom_metadata={"userMetadata": text})
            write_deltalake(table.path, pa.table({"item": [2]}), mode="append", commit_properties=properties)
        assert commit_history.read_notes(table, type(own).from_json) == {3: own}
        assert commit_history.read_notes(table, commit_notes.parse_own_note) == {3: own.as_json()}
    delta_table = tables.open_table(table)
    assert delta_table is not None
    assert list(emitted_checks.check_emptied(table, delta_table)) == []
