"""Tables that are read in one version while others commit to them."""

from __future__ import annotations

from contextvars import Context
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from hindcast.common.errors import BusyError
from hindcast.store import commit_history, pinning, tables
from hindcast.store.tables import Table

KINDS = ("logs/menu", "menu", "bills")


def commit(folder: Path, name: str, run: int) -> None:
    """A commit of a run to a table, as another process makes it."""
    table = Table(str(folder), "shop", name, "log")
    note = CommitProperties(
        app_transactions=[Transaction(table.app_id(), run)], custom_metadata={"userMetadata": f'{{"run": {run}}}'}
    )
    rows = pa.table({"run": [run]})
    write_deltalake(
        table.path,
        rows,
        mode="append",
        name=f"shop.{name}",
        description=table.description,
        commit_properties=note,
    )


def read(folder: Path, name: str) -> tuple[int, list[int], int]:
    """The last run that has published a table, all that noted something, newest first, and how many rows there are."""
    table = Table(str(folder), "shop", name, "log")
    return tables.read_last_run(table), list(commit_history.read_notes(table, dict)), tables.count_rows(table)


def test_what_was_pinned_is_read_as_it_was_and_afterwards_as_it_is(tmp_path: Path) -> None:
    for run in (1, 2):
        commit(tmp_path, "menu", run)
    with pinning.pin_versions(lambda: [read(tmp_path, name) for name in ("menu", "bills")]):
        for run in (3, 4, 5):
            commit(tmp_path, "menu", run)
            commit(tmp_path, "bills", run)
        assert read(tmp_path, "menu") == (2, [2, 1], 2)
        assert read(tmp_path, "bills") == (0, [], 0), "it was not there"
        assert Context().run(read, tmp_path, "menu") == (5, [5, 4, 3, 2, 1], 5)
    assert read(tmp_path, "menu") == (5, [5, 4, 3, 2, 1], 5)


def test_notes_are_bounded_by_the_commits_before_the_pin(tmp_path: Path) -> None:
    for run in (1, 2, 3):
        commit(tmp_path, "menu", run)
    with pinning.pin_versions(lambda: read(tmp_path, "menu")):
        for run in (4, 5):
            commit(tmp_path, "menu", run)
        assert list(commit_history.read_notes(Table(str(tmp_path), "shop", "menu", "log"), dict, limit=2)) == [3, 2]


@pytest.mark.parametrize("amid", range(1, 4))
def test_all_are_pinned_as_they_were_at_one_moment(tmp_path: Path, amid: int) -> None:
    """A run commits to each table in turn while they are opened, after so many of them."""
    for name in KINDS:
        commit(tmp_path, name, 1)
    runs = iter((2, 3))

    def open_tables() -> None:
        for number, name in enumerate(KINDS, 1):
            read(tmp_path, name)
            if number == amid and (run := next(runs, None)):
                for each in KINDS:
                    commit(tmp_path, each, run)

    with pinning.pin_versions(open_tables):
        assert [read(tmp_path, name)[0] for name in KINDS] == [3, 3, 3]


def test_where_commits_never_end_the_reader_is_told_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "PATIENCE_SECONDS", 0.0)
    runs = iter(range(1, 9))

    def open_tables() -> None:
        read(tmp_path, "menu")
        commit(tmp_path, "menu", next(runs))

    with pytest.raises(BusyError, match="committed to the tables without a pause"), pinning.pin_versions(open_tables):
        pytest.fail("nothing was pinned")
    assert tables.PINNED_TABLES.get() is None
