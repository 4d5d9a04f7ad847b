"""Maintenance: fewer files, the same rows and answers, whatever runs meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from deltalake import DeltaTable, Field, Schema

from bare_runs import bare_run
from crashes import watched
from hindcast.bitemporal.predicates import Question
from hindcast.cli import main
from hindcast.common import clock
from hindcast.common.settings import Settings, read_settings
from hindcast.ops import file_layout, maintenance
from hindcast.ops.file_layout import LiveFile, overlap_depth
from hindcast.ops.maintenance import file_retention, maintain_tables
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import journal
from hindcast.query import read
from hindcast.store import commit_history
from hindcast.store.tables import Table
from pipelines import CORRECTION, RESTAURANT, SEED, Pipeline, pipeline, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("menu", "orders", "bills")
T0, HOUR, DAY = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1), timedelta(days=1)


@pytest.fixture
def here(restaurant: Pipeline, tmp_path: Path) -> Iterator[Pipeline]:
    """The restaurant after three runs, its own to maintain, as the environment has it."""
    made = Pipeline(restaurant.spark, restaurant.servers, tmp_path, RESTAURANT)
    made.prefix = restaurant.prefix
    made.write(RESTAURANT)
    shutil.copytree(restaurant.warehouse, made.warehouse)
    with made.here():
        yield made


def no_spark() -> SparkSession:
    raise AssertionError("Spark is not needed here")


def own(p: Pipeline) -> Callable[[], SparkSession]:
    """A session of its own, as another process has one; over Spark Connect the one there is."""
    spark = p.spark
    assert spark is not None
    return spark.newSession if hasattr(spark, "newSession") else lambda: spark


def answers(p: Pipeline) -> dict[str, Any]:
    """What every reader says of every table, as known at every run."""
    told: dict[str, Any] = {}
    assert p.spark is not None
    for name in NAMES:
        told[name] = p.history(name)
        path = p.table(name).path
        told[f"{name} by DuckDB"] = sorted(
            map(str, duckdb.from_arrow(DeltaTable(path).to_pyarrow_dataset()).fetchall())
        )
        told[f"{name} by Spark"] = sorted(map(str, p.spark.read.format("delta").load(path).collect()))
        for run in (1, 2):
            known = Question(known_at=read.moment_of(p.warehouse, p.name, f"run:{run}"))
            told[f"{name}, run {run}"] = read.query(p.warehouse, p.contract, name, known).to_pylist()
            told[f"{name}, run {run}, frame"] = sorted(
                map(str, read.frame(p.spark, p.warehouse, p.contract, name, known).collect())
            )
    return told


def test_what_would_be_done_is_told_without_spark(here: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(not it.steps for it in maintain_tables(no_spark, read_settings(), here.contract).tables), (
        "there is too little"
    )
    monkeypatch.setattr(file_layout, "MIN_FILES", 2)
    before = here.versions()
    told = {it.table: it for it in maintain_tables(no_spark, read_settings(), here.contract, dry_run=True).tables}
    assert told["logs/menu"].steps == ["compact 2 files"]
    assert told["runs"].steps == ["compact 6 files"]
    assert told["menu"].files == (len(DeltaTable(here.table("menu").path).file_uris()),) * 2
    assert here.versions() == before


@pytest.mark.long
@pytest.mark.ci
def test_files_become_few_and_no_answer_changes(
    here: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(file_layout, "MIN_FILES", 2)
    before, old = answers(here), DeltaTable(here.table("menu").path).version()
    noted = {name: commit_history.read_notes(here.table(name), dict) for name in NAMES}
    assert main.main(["maintain", here.name, "--format", "json"]) == 0
    told = {it["table"]: it for it in json.loads(capsys.readouterr().out)["tables"]}
    assert told["logs/menu"]["files"] == [2, 1]
    assert told["runs"]["files"] == [6, 1]
    assert answers(here) == before
    assert {name: commit_history.read_notes(here.table(name), dict) for name in NAMES} == noted
    log = Table(here.warehouse, here.name, "logs/menu", "log")
    newest = DeltaTable(log.path).history(1)[0]
    assert (newest["operation"], json.loads(newest["userMetadata"])["run"]) == ("OPTIMIZE", 2), "notes are kept alive"
    assert DeltaTable(here.table("menu").path, version=old).to_pyarrow_table().num_rows == len(here.history("menu"))
    assert verify_tables(here.contract).findings == []
    assert main.main(["maintain", here.name]) == 0
    assert "versions of the last 7 days can be read" in capsys.readouterr().out
    assert all(not it.steps for it in maintain_tables(no_spark, read_settings(), here.contract).tables), (
        "nothing is left to do"
    )


def test_what_no_version_needs_is_removed_without_a_commit(here: Pipeline) -> None:
    table = here.table("orders")
    left = Path(table.path, "_belief=past", "part-00000-of-a-run-that-died.snappy.parquet")
    fresh = left.with_name("part-00000-of-one-under-way.snappy.parquet")
    for file in (left, fresh):
        shutil.copy(DeltaTable(table.path).file_uris()[0].removeprefix("file://"), file)
    os.utime(left, times=(0, time.time() - 8 * 86_400))
    os.utime(fresh, times=(0, time.time() - 6 * 86_400))
    rows, version = here.history("orders"), DeltaTable(table.path).version()
    done = maintenance._maintain_table(own(here), table, 7, 7 * DAY, dry_run=False)
    assert done.steps == ["vacuum 1 file"]
    assert done.disk[0] > done.disk[1]
    assert (left.exists(), fresh.exists()) == (False, True)
    assert (here.history("orders"), DeltaTable(table.path).version()) == (rows, version)
    done = maintenance._maintain_table(own(here), table, 5, 5 * DAY, dry_run=False)
    assert done.steps == ["promise versions of 5 days", "vacuum 1 file"]
    assert not fresh.exists()
    assert here.history("orders") == rows
    assert maintenance._missing_properties(DeltaTable(table.path), 5) == ""


@pytest.mark.parametrize(
    ("days", "there", "lacking"),
    [
        (7, {}, []),
        (5, {}, ["deletedFileRetentionDuration' = 'interval 5 days"]),
        (30, {}, ["deletedFileRetentionDuration' = 'interval 30 days"]),
        (40, {}, ["deletedFileRetentionDuration' = 'interval 40 days", "logRetentionDuration' = 'interval 40 days"]),
        (7, {"deletedFileRetentionDuration": "interval 5 days"}, ["deletedFileRetentionDuration' = 'interval 7 days"]),
    ],
)
def test_delta_is_told_for_how_long_versions_are_promised(
    tmp_path: Path, days: int, there: dict[str, str], lacking: list[str]
) -> None:
    configuration = {f"delta.{name}": text for name, text in there.items()}
    made = DeltaTable.create(str(tmp_path), Schema([Field("n", "long")]), configuration=configuration)
    assert maintenance._missing_properties(made, days) == ", ".join(f"'delta.{text}'" for text in lacking)


def span(least: int, most: int, size: int = file_layout.SMALL_FILE_BYTES) -> LiveFile:
    return LiveFile(size, T0 + least * HOUR, T0 + most * HOUR)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([span(n, n) for n in range(8)], 0),
        ([span(0, 9) for _ in range(8)], 7),
        ([span(0, 9) for _ in range(7)], 0),
        ([span(n, n + 1) for n in range(8)], 2 - 2 / 8),
        ([span(n, n) for n in range(9)] + [span(0, 9)], 18 / 10),
        ([span(0, 9, 5) for _ in range(99)], 0),
    ],
)
def test_how_much_files_overlap(files: list[LiveFile], expected: float) -> None:
    assert overlap_depth(files) == expected


@pytest.mark.long
@pytest.mark.ci
def test_files_that_overlap_are_sorted_by_time(here: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    table = here.table("bills")
    spark = own(here)()
    rows = spark.read.format("delta").load(table.path).where("systemTo IS NULL").limit(1)
    times = "timestamp + make_interval(0, 0, 0, 0, 0, 0, id)"
    for start in range(8):
        many = rows.drop("timestamp").crossJoin(rows.select("timestamp")).crossJoin(spark.range(start, 800, 8))
        many.selectExpr("* EXCEPT (id, timestamp)", f"{times} AS timestamp").coalesce(1).write.format("delta").mode(
            "append"
        ).save(table.path)
    before = sorted(map(str, spark.read.format("delta").load(table.path).collect()))
    monkeypatch.setattr(file_layout, "SMALL_FILE_BYTES", 1_000)
    monkeypatch.setattr(maintenance, "LARGE_FILE_BYTES", 8_000)
    [done] = [it for it in maintain_tables(own(here), read_settings(), here.contract).tables if it.table == "bills"]
    assert [step.split(" files ")[1] for step in done.steps] == ["of past rows by timestamp"]
    files = file_layout.list_live_files(DeltaTable(table.path), "timestamp").values()
    assert overlap_depth(chain(*files)) <= 1
    assert sorted(map(str, spark.read.format("delta").load(table.path).collect())) == before
    [again] = [it for it in maintain_tables(no_spark, read_settings(), here.contract).tables if it.table == "bills"]
    assert again.steps == []


@pytest.fixture
def set_to_two_days(tmp_path: Path) -> Settings:
    return read_settings({"HINDCAST_WAREHOUSE": str(tmp_path), "HINDCAST_TIME_TRAVEL": "2"})


def enter(settings: Settings, monkeypatch: pytest.MonkeyPatch, *entries: tuple[int, str, timedelta]) -> None:
    """Entries of the journal, each so long ago."""
    for number, state, ago in entries:
        moment = datetime.now(UTC) - ago
        monkeypatch.setattr(clock, "now", lambda moment=moment: moment)
        journal.append_entry(settings.warehouse, bare_run("p", number, moment, state))


def test_files_are_kept_as_long_as_is_set(set_to_two_days: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_retention(set_to_two_days, "p") == 2 * DAY
    enter(set_to_two_days, monkeypatch, (1, "planned", 9 * HOUR), (1, "completed", 2 * HOUR))
    assert file_retention(set_to_two_days, "p") == 2 * DAY
    assert file_retention(read_settings({"HINDCAST_WAREHOUSE": set_to_two_days.warehouse}), "p") == 7 * DAY


def test_but_twice_what_the_longest_run_has_taken(set_to_two_days: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(set_to_two_days, monkeypatch, (1, "planned", 30 * DAY), (1, "completed", 28 * DAY))
    enter(set_to_two_days, monkeypatch, (2, "planned", 9 * DAY), (2, "completed", 9 * DAY))
    assert round(file_retention(set_to_two_days, "p") / DAY, 3) == 4


def test_one_that_is_under_way_still_counts(set_to_two_days: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(set_to_two_days, monkeypatch, (1, "planned", 5 * DAY), (1, "stopped", 4 * DAY))
    assert round(file_retention(set_to_two_days, "p") / DAY, 3) == 10


def test_old_reports_are_removed_if_that_is_set(
    here: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reports" / here.name
    folder.mkdir(parents=True)
    for number, days in ((1, 40), (2, 20)):
        for ending in ("html", "json"):
            (folder / f"run-{number}.{ending}").write_text("{}")
            os.utime(folder / f"run-{number}.{ending}", times=(0, time.time() - days * 86_400))
    monkeypatch.setenv("HINDCAST_REPORTS", str(tmp_path / "reports"))
    assert maintain_tables(no_spark, read_settings(), here.contract).reports == 0, "they are kept unless it is set"
    monkeypatch.setenv("HINDCAST_KEEP_REPORTS", "30")
    assert maintain_tables(no_spark, read_settings(), here.contract, dry_run=True).reports == 1
    assert maintain_tables(no_spark, read_settings(), here.contract).reports == 1
    assert sorted(path.name for path in folder.iterdir()) == ["run-2.html", "run-2.json"]


@pytest.mark.long
def test_runs_go_on_while_tables_are_maintained(
    spark: SparkSession, broker: str, tmp_path: Path, restaurant: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each commit of the second run maintenance begins beside it; after it, all else that it finds is done."""
    monkeypatch.setattr(file_layout, "MIN_FILES", 1)
    with pipeline(spark, broker, tmp_path) as p, pytest.MonkeyPatch.context() as patch:
        alongside: list[threading.Thread] = []
        done: list[maintenance.MaintenanceReport] = []
        failed: list[Exception] = []

        def work() -> None:
            try:
                done.append(maintain_tables(own(p), read_settings(), p.contract))
            except Exception as error:  # noqa: BLE001  # told below
                failed.append(error)

        def beside(place: str) -> None:
            if " committing to " in place and place.startswith("before") and not any(it.is_alive() for it in alongside):
                alongside.append(threading.Thread(target=work))
                alongside[-1].start()

        tell(p, SEED)
        p.run("first")
        watched(beside, patch.setattr)
        tell(p, CORRECTION)
        p.run("second")
        p.run("third")
        for thread in alongside:
            thread.join()
        assert failed == []
        assert any(it.steps for told in done for it in told.tables)
        assert {n: p.history(n) for n in NAMES} == {n: restaurant.history(n) for n in NAMES}
        assert p.states() == [(n, "completed") for n in (1, 2, 3)]
        assert verify_tables(p.contract, spark=lambda: spark).findings == []
