"""A process that was taken for dead and goes on: it finds out before it writes or deletes anything, and says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bare_runs import bare_run
from hindcast.common.errors import RunError
from hindcast.ops import maintenance, retention
from hindcast.ops.erase import purge
from hindcast.plan import horizon, journal, lease, notices
from hindcast.plan.horizon import Horizon
from hindcast.runs import row_counts
from hindcast.runs.row_counts import RowCounts
from hindcast.store import commit_once, commits
from hindcast.store.folder import WarehouseFolder
from hindcast.store.tables import Table
from pipelines import T0, at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOES_ON = "stood still for so long that others may have taken it for dead and gone on"


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    """A warehouse with a pipeline `p` whose first run has ended, and a table `menu` of it with a file too many."""
    for state in ("planned", "completed"):
        journal.append_entry(str(tmp_path), bare_run("p", 1, T0, state))
    for n in range(2):
        table = menu(str(tmp_path))
        marks = {"name": "p.menu", "description": table.format_mark(0)}
        write_deltalake(table.path, pa.table({"n": [n]}), mode="append", **marks)  # type: ignore[call-overload]
    DeltaTable(table.path).delete("n = 0")
    return str(tmp_path)


def menu(warehouse: str) -> Table:
    return Table(warehouse, "p", "menu", "versions")


def stored_files(warehouse: str) -> set[str]:
    return {file.path for file in WarehouseFolder(f"{warehouse}/p").list_files() if file.path.endswith(".parquet")}


def take_over(warehouse: str) -> None:
    """Remove all notices, as others do who took their holders for dead."""
    folder = WarehouseFolder(f"{warehouse}/p")
    for file in list(folder.list_files(lease.FOLDER)):
        folder.remove(file.path)


def stand_still(patch: pytest.MonkeyPatch) -> None:
    """Let the clock go on as if this process, or its machine, had been suspended for more than the time of a lease."""
    real = lease.read_clock
    patch.setattr(lease, "read_clock", lambda: real() + lease.LOST_AFTER + 1)


HAPPENED: dict[str, Callable[[str, pytest.MonkeyPatch], None]] = {
    "removed": lambda warehouse, _: take_over(warehouse),
    "suspended": lambda _, patch: stand_still(patch),
}


@pytest.mark.parametrize("happened", HAPPENED)
def test_who_has_lost_a_notice_neither_commits_nor_deletes(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, happened: str
) -> None:
    with notices.post_notice(warehouse, "p", "trimming"), notices.post_notice(warehouse, "p", "a rebuild"):
        notices.refuse_lost_notice()
        HAPPENED[happened](warehouse, monkeypatch)
        version, before = DeltaTable(menu(warehouse).path).version(), stored_files(warehouse)
        for effect in (
            notices.refuse_lost_notice,
            lambda: commit_once.commit_repeatable(pytest.fail),
            lambda: commit_once.commit_once(pytest.fail, lambda: 0, 1, None, ""),
            lambda: commits.set_properties(None, menu(warehouse), {"hindcast.x": "1"}),  # type: ignore[arg-type]
            lambda: purge.purge_table(None, WarehouseFolder(f"{warehouse}/p"), "menu", menu(warehouse).path, str),  # type: ignore[arg-type]
            lambda: maintenance._run_statement(None, "OPTIMIZE", {}),  # type: ignore[arg-type]
        ):
            with pytest.raises(RunError, match=GOES_ON) as refused:
                effect()
            assert refused.value.found.startswith("trimming stops here: this process stood still")
            assert refused.value.fix == "start it again; what it had done stays, and is not done twice"
    assert (DeltaTable(menu(warehouse).path).version(), stored_files(warehouse)) == (version, before)
    notices.refuse_lost_notice()  # it holds none any more


def test_a_notice_that_was_removed_is_not_posted_again(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever removed it waits no longer; a notice that came back would stop others, and say that nothing is lost."""
    monkeypatch.setattr(notices, "BEAT", 0.02)
    with notices.post_notice(warehouse, "p", "trimming"):
        take_over(warehouse)
        time.sleep(0.2)
        assert list(WarehouseFolder(f"{warehouse}/p").list_files(lease.FOLDER)) == []
        with pytest.raises(RunError, match=GOES_ON):
            notices.refuse_lost_notice()


def test_a_notice_that_is_written_anew_by_a_process_that_stood_still_meanwhile_is_taken_away(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked whether its notice is there; others remove it before it goes on to write."""
    folder = WarehouseFolder(f"{warehouse}/p")
    own, write = lease.Lease(folder, "p", "trimming"), WarehouseFolder.write

    def write_late(self: WarehouseFolder, path: str, content: bytes) -> None:
        take_over(warehouse)
        stand_still(monkeypatch)
        write(self, path, content)

    monkeypatch.setattr(WarehouseFolder, "write", write_late)
    own.renew()
    assert list(folder.list_files(lease.FOLDER)) == []
    with pytest.raises(RunError, match=GOES_ON):
        own.refuse_lost()


def test_a_waiter_that_stood_still_takes_no_living_process_for_dead(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still between reading a notice and looking at the clock; the notice has changed since."""
    folder, moments, read = WarehouseFolder(f"{warehouse}/p"), [0.0], notices.read_notice
    monkeypatch.setattr(notices, "_PAUSE", 0)
    monkeypatch.setattr(time, "monotonic", lambda: moments[0])
    own = lease.Lease(folder, "p", "maintenance")
    looks = 0

    def read_late(folder: WarehouseFolder, path: str) -> bytes | None:
        nonlocal looks
        text, looks = read(folder, path), looks + 1
        if looks == 2:
            moments[0] += notices.DEAD_AFTER + 1
            own.renew()
        elif looks == 3:
            own.refuse_lost()
            folder.remove(path)
        return text

    monkeypatch.setattr(notices, "read_notice", read_late)
    notices.wait_for_others(warehouse, "p")
    assert looks == 3


@pytest.mark.parametrize("committed", [True, False])
def test_a_purge_deletes_nothing_that_comes_while_it_stands_still(
    warehouse: str, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Another run has committed a file before the purge lists the files of the table, or is about to."""
    path, listed = menu(warehouse).path, purge.list_data_files
    other = Path(path, "part-of-a-run-under-way.parquet")

    def list_late(folder: WarehouseFolder, name: str) -> list[str]:
        if committed:
            write_deltalake(path, pa.table({"n": [2]}), mode="append")
        else:
            take_over(warehouse)
            other.write_bytes(b"PAR1")
        return listed(folder, name)

    monkeypatch.setattr(purge, "list_data_files", list_late)
    with ExitStack() as posted:
        posted.enter_context(notices.post_forgetting(warehouse, "p"))
        if not committed:
            posted.enter_context(pytest.raises(RunError, match=GOES_ON))
        purge.purge_table(None, WarehouseFolder(f"{warehouse}/p"), "menu", path, str)  # type: ignore[arg-type]
    assert other.exists() is not committed
    assert sorted(DeltaTable(path).to_pyarrow_table().column("n").to_pylist()) == [1, 2][: 1 + committed]


def test_a_guard_that_is_added_leaves_those_around_it() -> None:
    seen = list[str]()
    with (
        commit_once.guard_commits(lambda: seen.append("the run goes on")),
        commit_once.add_commit_guard(lambda: seen.append("no other trim has gone further")),
    ):
        commit_once.commit_repeatable(lambda: seen.append("commit"))
    assert seen == ["the run goes on", "no other trim has gone further", "commit"]


@pytest.fixture
def trimmed(warehouse: str) -> Iterator[Table]:
    """The table, which another trim has trimmed up to 9 while this one, which holds a notice, stood still."""
    counts = RowCounts(at(10), 5, 2, at(9))
    commits.set_properties(None, menu(warehouse), {row_counts.PROPERTY: counts.text})  # type: ignore[arg-type]
    commits.set_properties(None, menu(warehouse), {horizon.PROPERTY: Horizon(at(9), at(8)).text})  # type: ignore[arg-type]
    with notices.post_notice(warehouse, "p", "trimming"):
        yield menu(warehouse)


@pytest.mark.parametrize("earlier", [Horizon(at(4), at(8)), Horizon(at(9), at(7)), Horizon(at(9)), Horizon(at(4))])
def test_a_horizon_never_moves_back(trimmed: Table, earlier: Horizon) -> None:
    version = DeltaTable(trimmed.path).version()
    with pytest.raises(RunError, match="another trim has gone further") as refused:
        retention._write_horizon(None, trimmed, earlier)  # type: ignore[arg-type]  # not by Spark
    assert refused.value.fix == "start the trim again"
    assert DeltaTable(trimmed.path).version() == version
    retention._write_horizon(None, trimmed, Horizon(at(11), at(8)))  # type: ignore[arg-type]
    assert horizon.read_horizon(trimmed) == Horizon(at(11), at(8))


def test_a_horizon_that_another_trim_writes_at_the_last_moment_stays(
    trimmed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This trim stands still between its check and its commit: which Delta refuses then, and the next check too."""
    further, is_beyond, late = Horizon(at(20), at(8)), Horizon.is_beyond, list[Horizon]()

    def check_early(self: Horizon, other: Horizon) -> bool:
        answer = is_beyond(self, other)
        if not late:
            late.append(further)
            with commit_once.guard_commits(lambda: None):
                commits.set_properties(None, trimmed, {horizon.PROPERTY: further.text})  # type: ignore[arg-type]
        return answer

    monkeypatch.setattr(Horizon, "is_beyond", check_early)
    with pytest.raises(RunError, match="another trim has gone further"):
        retention._write_horizon(None, trimmed, Horizon(at(11), at(8)))  # type: ignore[arg-type]
    assert horizon.read_horizon(trimmed) == further


@pytest.mark.slow
@pytest.mark.parametrize(("known_at", "further"), [(9, False), (10, True), (12, False)])
def test_row_counts_of_a_trim_that_stood_still_do_not_replace_later_ones(
    spark: SparkSession, trimmed: Table, monkeypatch: pytest.MonkeyPatch, known_at: int, further: bool
) -> None:
    """It counts rows as of an earlier run; or the horizon has moved while it counted."""

    def load_rows(*_: object) -> DataFrame:
        if further:
            commits.set_properties(spark, trimmed, {horizon.PROPERTY: Horizon(at(20), at(8)).text})
        columns = "systemFrom timestamp, systemTo timestamp, validTo timestamp"
        return spark.createDataFrame([(at(9), at(11), None), (at(9), at(10), None)], columns)

    monkeypatch.setattr(row_counts.row_reader, "load_rows", load_rows)
    refused = known_at == 9 or further
    with ExitStack() as stack:
        if refused:
            stack.enter_context(pytest.raises(RunError, match="others have trimmed the table, or counted its rows"))
        row_counts.write_row_counts(spark, trimmed, at(known_at))
    stored = row_counts.read_row_counts(DeltaTable(trimmed.path))
    assert stored == (RowCounts(at(10), 5, 2, at(9)) if refused else RowCounts(at(known_at), 2, 2, at(9)))
