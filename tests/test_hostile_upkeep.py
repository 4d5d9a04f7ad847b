"""Somebody may write the files of one pipeline: upkeep, forgetting and reports show and harm nothing of others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from bare_runs import bare_run
from hindcast.airflow.pages import run_reports
from hindcast.common.errors import PlatformError, RunError, TableError
from hindcast.common.settings import Settings
from hindcast.contract import find
from hindcast.ops import file_layout, journal_rebuild, maintenance
from hindcast.ops.erase import erasure_step, forget, purge, row_removal
from hindcast.plan import journal, lease, notices
from hindcast.plan.runs import Completed, Run
from hindcast.quality import failing_rows
from hindcast.report import page
from hindcast.runs import inventory, run_steps
from hindcast.store import closing, commits, own_tables, table_creation
from hindcast.store.files import TableFile
from hindcast.store.folder import WarehouseFolder
from hindcast.store.tables import Table
from pipelines import T0
from test_pages import GUEST, client
from warehouses import RUNS, plan, report, shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = 4242


def write_table(table: Table, count: int = 1) -> Table:
    """A table of our own with so many files of a row."""
    for n in range(count):
        marks = {"name": f"{table.pipeline}.{table.name}", "description": table.description}
        write_deltalake(table.path, pa.table({"n": [n]}), mode="append", **marks)  # type: ignore[call-overload]
    return table


def commit(table: Table, action: dict[str, Any]) -> None:
    """Write a commit to a table's log, whatever it says."""
    version = DeltaTable(table.path).version() + 1
    Path(table.path, "_delta_log", f"{version:020}.json").write_text(json.dumps(action), encoding="utf-8")


def add_path(table: Table, path: str, size: int = 400) -> None:
    entry = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    commit(table, {"add": entry | {"stats": '{"numRecords": 1}'}})


def add_file(table: Table, rows: pa.Table) -> None:
    """Add a file of any columns to a table."""
    place = Path(table.path, "odd.parquet")
    pq.write_table(rows, place)
    add_path(table, place.name, place.stat().st_size)


def describe_deeply(table: Table) -> None:
    """Give a table a description that no parser takes."""
    lines = Path(table.path, "_delta_log", f"{0:020}.json").read_text(encoding="utf-8").splitlines()
    (found,) = [action["metaData"] for action in map(json.loads, lines) if "metaData" in action]
    commit(table, {"metaData": found | {"description": "[" * 100_000}})


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of another pipeline."""
    place = tmp_path / "warehouse" / "theirs" / "secret.parquet"
    place.parent.mkdir(parents=True)
    pq.write_table(pa.table({"n": [SECRET]}), place)
    return place


def mine(tmp_path: Path, name: str = "t", kind: Any = "gates") -> Table:
    return Table(str(tmp_path / "warehouse"), "mine", name, kind)


def link_file(table: Table, secret: Path) -> None:
    Path(table.path, "x.parquet").symlink_to(secret)
    add_path(table, "x.parquet")


FOREIGN: dict[str, Callable[[Table, Path], None]] = {
    "dots": lambda table, _: add_path(table, "../../theirs/secret.parquet"),
    "absolute": lambda table, secret: add_path(table, str(secret)),
    "escaped": lambda table, secret: add_path(table, str(secret).replace("/", "%2F")),
    "uri": lambda table, secret: add_path(table, secret.as_uri()),
    "link": link_file,
}


def no_spark() -> Any:
    raise AssertionError("Spark would read a file of others")


@pytest.mark.parametrize("how", FOREIGN)
def test_files_of_others_are_not_rewritten_into_a_table(tmp_path: Path, secret: Path, how: str) -> None:
    table = write_table(mine(tmp_path), file_layout.MIN_FILES)
    FOREIGN[how](table, secret)
    week, found = timedelta(days=7), r"out of its folder|is a link|a link or a pipe"
    for dry_run in (False, True):
        with pytest.raises(TableError, match=found):
            maintenance._maintain_table(no_spark, table, 7, week, dry_run=dry_run)
    with pytest.raises(TableError, match=found):
        maintenance._optimize_files(None, table, "OPTIMIZE")  # type: ignore[arg-type]
    with pytest.raises(TableError, match=found):
        own_tables.run_statement(None, table.path, "DELETE")  # type: ignore[arg-type]


def test_no_statement_of_spark_reads_files_of_others(spark: SparkSession, tmp_path: Path, secret: Path) -> None:
    table = write_table(mine(tmp_path))
    add_path(table, str(secret))
    version, rows = DeltaTable(table.path).version(), spark.createDataFrame([(1,)], "n bigint")
    for rewrite in (
        lambda: row_removal.empty_table(spark, table, 1),
        lambda: row_removal._merge_rows(rows, table, ["n"], "WHEN MATCHED THEN DELETE", {}),
        lambda: commits.delete_rows(spark, table, "n = 1", {}),
        lambda: commits.clear_columns(spark, table, ["n"], "n = 1", {}),
        lambda: commits.replace_rows(rows, table, 1, {}, "n = 1"),
    ):
        with pytest.raises(TableError, match="its log names a file out of its folder"):
            rewrite()
    assert DeltaTable(table.path).version() == version


def test_no_run_closes_rows_of_others(tmp_path: Path, secret: Path) -> None:
    """The other rows of a file with a row to close are written anew."""
    table = write_table(mine(tmp_path, kind="versions"))
    opened, close = DeltaTable(table.path), pa.table({"validFrom": pa.array([T0])})
    for path in ("../../theirs/secret.parquet", str(secret), secret.as_uri()):
        with pytest.raises(TableError, match="out of its folder"):
            closing.write_closed_rows(opened, table, close, T0, [TableFile(path, 400, "open")])


def test_links_in_a_circle_do_not_hold_up_maintenance(tmp_path: Path) -> None:
    table = write_table(mine(tmp_path))
    Path(table.path, "a").symlink_to(".")
    assert file_layout.count_stored_files(DeltaTable(table.path))[0] == 1
    with pytest.raises(TableError, match="is a link to"):
        maintenance._maintain_table(no_spark, table, 7, timedelta(days=7), dry_run=True)


def test_a_link_to_anothers_table_is_no_state_of_a_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = write_table(Table(str(tmp_path / "warehouse"), "theirs", "people", "versions"))
    state = mine(tmp_path, "kept/v/1", "kept")
    Path(state.path).parent.mkdir(parents=True)
    Path(state.path).symlink_to(theirs.path)
    monkeypatch.setattr(inventory, "find_state_table", lambda *_: state)
    monkeypatch.setattr(inventory, "list_possible_tables", lambda *_: iter(()))
    contract: Any = SimpleNamespace(pipeline="mine", topics={}, views={"v": SimpleNamespace(semantics="kafka")})
    with pytest.raises(TableError, match="a Delta table that Hindcast did not make"):
        list(inventory.list_existing_tables(state.warehouse, contract))
    Path(state.path).unlink()
    assert list(inventory.list_existing_tables(state.warehouse, contract)) == []
    write_table(state)
    assert list(inventory.list_existing_tables(state.warehouse, contract)) == [state]


# Forgetting


def purge_one(table: Table) -> None:
    folder = WarehouseFolder(f"{table.warehouse}/{table.pipeline}")
    purge.purge_table(None, folder, table.name, table.path, str)  # type: ignore[arg-type]


def test_a_purge_follows_no_link_that_is_made_while_it_deletes(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, listed = write_table(mine(tmp_path)), purge.list_data_files
    own = Path(table.path, "x", secret.name)
    own.parent.mkdir()
    shutil.copy(secret, own)

    def list_early(folder: WarehouseFolder, name: str) -> list[str]:
        found = listed(folder, name)
        shutil.rmtree(own.parent)
        own.parent.symlink_to(secret.parent)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(purge, "list_data_files", list_early)
        with pytest.raises(TableError, match="a link"):
            purge_one(table)
    assert secret.exists()
    with pytest.raises(TableError, match="is a link to"):
        purge_one(table)
    own.parent.unlink()
    purge_one(table)


def test_a_purge_writes_no_log_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is exchanged for a link to another's after the table was opened."""
    table, theirs = write_table(mine(tmp_path)), write_table(Table(str(tmp_path / "warehouse"), "theirs", "t", "gates"))
    listed, log = purge.list_data_files, Path(table.path, "_delta_log")
    crc = Path(theirs.path, "_delta_log", f"{0:020}.crc")
    crc.write_text("{}")

    def list_early(folder: WarehouseFolder, name: str) -> list[str]:
        log.rename(tmp_path / "log")
        log.symlink_to(crc.parent)
        shutil.copy(tmp_path / "log" / f"{0:020}.json", log)
        return listed(folder, name)

    monkeypatch.setattr(purge, "list_data_files", list_early)
    with pytest.raises(TableError, match="a link"):
        purge_one(table)
    assert crc.exists()


def test_what_is_not_the_pipelines_own_table_is_not_purged(tmp_path: Path) -> None:
    other = Table(str(tmp_path / "other"), "prod", "people", "versions")
    for n in range(2):
        write_deltalake(other.path, pa.table({"n": [n]}), mode="overwrite", name="prod.people")
    before = {*Path(other.path).rglob("*.parquet")}
    link = mine(tmp_path, "zz")
    journal.append_entry(link.warehouse, bare_run("mine", 1, T0))
    Path(link.path).symlink_to(other.path)
    with pytest.raises(TableError, match=r"is not the table mine\.zz, and is not purged"):
        purge_one(link)
    with pytest.raises(TableError, match=r"is not the table mine\.zz, and is not purged"):
        forget._refuse_links(SimpleNamespace(warehouse=link.warehouse, pipeline="mine"))  # type: ignore[arg-type]
    assert {*Path(other.path).rglob("*.parquet")} == before


# Reports


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with shop(tmp_path, GUEST) as found:
        yield found


def list_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "warehouse" not in path.parts}


def test_a_report_that_names_another_run_is_written_nowhere(settings: Settings, tmp_path: Path) -> None:
    contract = find(settings.schemas, "guest")
    before = list_files(tmp_path)
    for number, (pipeline, run) in enumerate(
        [("shop", 2), ("../../escaped", 2), (str(tmp_path / "x"), "x/../../y")], 1
    ):
        begun = Run(replace(plan(contract, 1), run=number, run_id=f"r{number}"))
        written = report(contract, 1) | {"pipeline": pipeline, "run": run, "runId": f"r{number}"}
        ended = replace(begun, outcome=Completed(written))
        for entry in (begun, ended):
            journal.append_entry(settings.warehouse, entry)
        with pytest.raises(TableError, match="the report in the journal is of") as refused:
            run_steps.write_missing_page(settings, "guest")
        assert refused.value.fix == "hindcast ledger guest --rebuild"
        with pytest.raises(TableError, match="the report in the journal is of"):
            run_steps.finish_run(settings, "guest", number)
        assert journal_rebuild.has_malformed_report(ended)
    assert list_files(tmp_path) == before
    last = journal.read_runs(settings.warehouse, "shop")[-1]
    assert not journal_rebuild.has_malformed_report(last)


def test_a_report_file_that_names_another_run_is_removed_by_a_forgetting(settings: Settings) -> None:
    own, texts = settings.reports / "guest", SimpleNamespace(scrub_json=lambda it: {**it, "found": "scrubbed"})
    own.mkdir()
    before = list_files(settings.reports)
    for name, fields in {
        "run-1": {"pipeline": "shop"},
        "run-2": {"run": 1},
        "run-x": {},
        "run-3": {"topics": 5},
    }.items():
        path = own / f"{name}.json"
        path.write_text(json.dumps(report(find(settings.schemas, "guest"), 1) | fields))
        erasure_step._scrub_report(settings.reports, "guest", path, texts)  # type: ignore[arg-type]
        assert list_files(settings.reports) == before
    path = own / "run-1.json"
    path.write_text(json.dumps(report(find(settings.schemas, "guest"), 1)))
    erasure_step._scrub_report(settings.reports, "guest", path, texts)  # type: ignore[arg-type]
    assert json.loads(path.read_text())["found"] == "scrubbed"


def test_a_link_to_the_reports_of_others_is_not_followed(settings: Settings) -> None:
    contract, link = find(settings.schemas, "guest"), settings.reports / "guest"
    entry = Run(plan(contract, 1))
    journal.append_entry(settings.warehouse, entry)
    journal.append_entry(settings.warehouse, replace(entry, outcome=Completed(report(contract, 1))))
    link.symlink_to(settings.reports / "shop")
    before, web = list_files(settings.reports), client("guest")
    answer = web.get("/reports/guest/run-1.json")
    assert (answer.status_code, "is a link, which can lead to the reports of others" in answer.text) == (500, True)
    shown = web.get("/reports/guest/run-1.html")  # of what the journal has, not of the file
    assert (shown.status_code, "of guest" in shown.text, "of shop" in shown.text) == (200, True, False)
    assert "is a link, which can lead" in web.get("/quality/guest").text
    with pytest.raises(PlatformError, match="is a link"):
        run_steps.finish_run(settings, "guest", 1)
    with pytest.raises(PlatformError, match="is a link"):
        maintenance._remove_old_reports(replace(settings, keep_reports=1), "guest", dry_run=False)
    with pytest.raises(PlatformError, match="is a link"):
        run_reports._read_file(entry, link / "run-1.json")
    with pytest.raises(PlatformError, match="is a link"):
        page.open_folder(settings.reports, "guest")
    assert list_files(settings.reports) == before


# Journals, tables and notices that nobody of ours wrote


def change_column(name: str, values: pa.Array) -> Callable[[Table, pa.Table], None]:
    def change(table: Table, rows: pa.Table) -> None:
        add_file(table, rows.set_column(rows.schema.get_field_index(name), name, values))

    return change


VECTORS = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
FAR = pa.array([1 << 62], pa.int64()).cast(pa.timestamp("us", "UTC"))
ODD: dict[str, Callable[[Table, pa.Table], None]] = {
    "a moment too late": change_column("at", FAR),
    "a moment too early": change_column("at", pa.array([-1 << 62], pa.int64()).cast(pa.timestamp("us", "UTC"))),
    "vectors": lambda table, _: commit(table, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **VECTORS}}),
    "a deep description": lambda table, _: describe_deeply(table),
}
ODD_JOURNALS = ODD | {
    "a list": change_column("detail", pa.array([["x"]])),
    "an object": change_column("detail", pa.array([{"a": 1}])),
    "a state": change_column("entry", pa.array(["x"])),
    "bytes": change_column("detail", pa.array([b"\xff"])),
}
ODD_FAILING = {name: odd for name, odd in ODD.items() if name != "vectors"}  # which DuckDB's reader knows
ODD_FAILING["an object"] = change_column("key", pa.array([{"a": 1}]))


@pytest.mark.parametrize("odd", ODD_JOURNALS)
def test_an_odd_journal_is_an_error_of_ours(tmp_path: Path, odd: str) -> None:
    warehouse = str(tmp_path)
    journal.append_entry(warehouse, bare_run("mine", 1, T0))
    row = {"run": 1, "entry": "stopped", "at": T0, "runId": "x", "knownAt": T0, "detail": "{}", "sequence": 9}
    ODD_JOURNALS[odd](journal.runs_table(warehouse, "mine"), pa.Table.from_pylist([row], schema=journal._ARROW))
    with pytest.raises(TableError):
        journal.read_runs(warehouse, "mine")
    for read in (
        lambda: journal.find_damage(warehouse, "mine"),
        lambda: journal.read_run_history(warehouse, "mine", 1),
        lambda: journal.append_entry(warehouse, bare_run("mine", 1, T0, "completed")),
        lambda: journal.replace_entries(warehouse, "mine", [], [1]),
    ):
        with suppress(TableError):  # some do not read what is odd
            read()


@pytest.mark.parametrize("odd", ODD_FAILING)
def test_odd_failing_rows_are_an_error_of_ours(tmp_path: Path, odd: str) -> None:
    table = failing_rows.failing_table(str(tmp_path), "mine")
    table_creation.ensure_table(table, failing_rows.SCHEMA)
    rows = pa.Table.from_pylist([{"run": 1, "at": RUNS[0]}], schema=table_creation.arrow_schema(failing_rows.SCHEMA))
    ODD_FAILING[odd](table, rows)
    with pytest.raises(TableError):
        failing_rows.list_entries(str(tmp_path), "mine")
    with pytest.raises(TableError):
        failing_rows.read_last_entry_time(str(tmp_path), "mine")


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "{}", '{"what": 5}', "[" * 100_000, "\udcff"])
def test_a_notice_that_says_nothing_holds_nobody_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    warehouse = str(tmp_path)
    journal.append_entry(warehouse, bare_run("p", 1, T0, "planned"))
    notice = tmp_path / "p" / lease.FOLDER / "a.json"
    notice.parent.mkdir()
    notice.write_bytes(text.encode(errors="surrogateescape"))
    with notices.post_alone(warehouse, "p", "trimming"):
        assert notice.exists()
    monkeypatch.setattr(notices, "DEAD_AFTER", 0.0)
    monkeypatch.setattr(notices, "_PAUSE", 0.01)
    with notices.post_forgetting(warehouse, "p"):
        assert not notice.exists()


def test_a_notice_that_somebody_wrote_over_is_lost(tmp_path: Path) -> None:
    journal.append_entry(str(tmp_path), bare_run("p", 1, T0, "planned"))
    with notices.post_notice(str(tmp_path), "p", "trimming") as path:
        (tmp_path / "p" / path).write_text("")
        with pytest.raises(RunError, match="others may have taken it for dead"):
            notices.refuse_lost_notice()
