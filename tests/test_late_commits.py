"""Runs that are abandoned while they commit: what they write is refused, or found by the next run if it comes late."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context
from functools import partial
from itertools import product
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.bitemporal.predicates import Question
from hindcast.common import clock
from hindcast.common.errors import RunError, TableError
from hindcast.common.session import override_conf
from hindcast.common.settings import read_settings
from hindcast.ops import journal_rebuild
from hindcast.ops.upgrade import upgrade
from hindcast.plan import journal, planner
from hindcast.quality import held_changes
from hindcast.query import read
from hindcast.runs import incremental_state, run_steps, special_runs
from hindcast.store import (
    commit_history,
    commit_ids,
    commit_once,
    commits,
    delta_rs_writer,
    files,
    late_commits,
    table_creation,
    tables,
)
from hindcast.store.tables import Table
from pipelines import Pipeline, at, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRICES = """
pipeline: prices
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
views:
  dear: {table: menu, select: {price: price * 2}}
  dearer: {table: dear, select: {price: price + 1}}
"""


@contextmanager
def interrupted(p: Pipeline, name: str, write: str, meanwhile: Callable[[], None], *, guarded: bool) -> Iterator[None]:
    """Before the first commit to a table its run is abandoned, and this is done meanwhile.

    Not `guarded`: the commit was on its way before, and the table takes none that refuses it.
    """
    real, waiting = getattr(commits, write), [name]

    def late(rows: Any, table: Table, *given: Any, **named: Any) -> Any:
        if table.name not in waiting:
            return real(rows, table, *given, **named)
        waiting.clear()
        run = next(run for run in journal.read_runs(p.warehouse, p.name) if not run.is_finished)
        planner.abandon_run(p.warehouse, run, "by a test")
        Context().run(meanwhile)  # as another process would
        with nullcontext() if guarded else commit_once.guard_commits(lambda: None):
            return real(rows, table, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, write, late)
        if not guarded:
            patch.setattr(late_commits, "refuse_late_commits", lambda *_: None)
        yield
    assert not waiting


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize(("guarded", "factor"), [(True, 2), (False, 2), (False, 3)])
def test_a_commit_of_an_abandoned_run_leaves_nothing_wrong(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool, factor: int
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, PRICES) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run("first")
        p.write(PRICES.replace("price * 2", "price * 3"))

        def put_back() -> None:
            p.write(PRICES)
            p.run("third")

        with interrupted(p, "dear", "commit_change", put_back, guarded=guarded), pytest.raises(RunError):
            p.run("second")
        assert p.states() == [(1, "completed"), (2, "abandoned"), (3, "completed")]
        assert p.believed("dear") == [("curry", 16 if guarded else 24, 0, None)]
        p.write(PRICES.replace("price * 2", f"price * {factor}"))
        p.run("fourth")
        assert p.believed("dear") == [("curry", 8 * factor, 0, None)]
        assert p.believed("dearer") == [("curry", 8 * factor + 1, 0, None)]
        assert tables.read_last_run(p.table("dear")) == (1 if guarded else 4), "it is derived once more, not for ever"
        versions = p.versions()
        p.run("fifth")
        assert p.versions() == versions
        assert wrong(p) == []


@pytest.mark.long
@pytest.mark.ci
def test_records_that_an_abandoned_run_ingests_late_come_into_the_table(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, PRICES) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run("first")
        p.send("menu", ("curry", {"price": 9}, 1))

        def release_nothing() -> None:
            number = special_runs.plan_release(read_settings(), p.name, "release", {}, "ann", clock.now())
            run_steps.execute_run(spark, read_settings(), p.name, number)

        with interrupted(p, "logs/menu", "append_rows", release_nothing, guarded=False), pytest.raises(RunError):
            p.run("second")
        assert p.states() == [(1, "completed"), (2, "abandoned"), (3, "completed")]
        p.send("menu", ("soup", {"price": 5}, 0))
        p.run("fourth")
        assert p.believed("menu") == [("curry", 8, 0, 1), ("curry", 9, 1, None), ("soup", 5, 0, None)]
        assert wrong(p) == []


ORDERS = """
pipeline: orders
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {customer: string}
    value: {quantity: int}
    expect:
      - expect_column_values_to_be_between: {column: quantity, min_value: 1}
        on_failure: quarantine
"""


@pytest.mark.long
@pytest.mark.ci
def test_records_of_a_stream_that_come_to_the_log_after_a_release_come_into_the_table(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, ORDERS) as p:
        p.send("orders", ("anna", {"quantity": 0}, 1), ("bob", {"quantity": 2}, 1))
        p.run("first")
        p.send("orders", ("carl", {"quantity": 5}, 2))

        def release_anna() -> None:
            keys = {"orders": held_changes.find_held_keys(p.warehouse, p.name, "orders", ["anna"])}
            special_runs.run_release(spark, read_settings(), p.name, "release", keys, "ann", clock.now())

        with interrupted(p, "logs/orders", "append_rows", release_anna, guarded=False), pytest.raises(RunError):
            p.run("second")
        assert p.states() == [(1, "completed"), (2, "abandoned"), (3, "completed")]
        p.send("orders", ("dave", {"quantity": 6}, 3))
        p.run("fourth")
        assert [row[0] for row in p.believed("orders")] == ["anna", "bob", "carl", "dave"]
        assert wrong(p) == []


@pytest.mark.long
@pytest.mark.ci
def test_an_abandoned_run_changes_no_columns(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, PRICES) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run("first")
        p.write(PRICES.replace("{price: int}", "{price: int, note: string}"))
        run_steps.plan_run(p.settings, p.name, "second")
        run = journal.read_active_run(p.warehouse, p.name, 2)
        with commit_once.guard_commits(partial(journal.read_active_run, p.warehouse, p.name, 2)):
            planner.abandon_run(p.warehouse, run, "by a test")
            with pytest.raises(RunError, match="run 2"):
                commits.set_properties(spark, p.table("menu"), {"hindcast.test": "late"})
        assert "hindcast.test" not in DeltaTable(p.table("menu").path).metadata().configuration


@contextmanager
def standing_still(p: Pipeline, name: str, meanwhile: Callable[[], None]) -> Iterator[list[str]]:
    """Within the first commit to a table, after its run was found active, the run is abandoned and this is done.

    Yield what the commit then raises.
    """
    real, waiting, raised = delta_rs_writer.commit_upon, [f"/{name}"], list[str]()

    def late(delta_table: DeltaTable, *given: Any) -> None:
        if not waiting or not delta_table.table_uri.rstrip("/").endswith(waiting[0]):
            return real(delta_table, *given)
        waiting.clear()
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 2), "by a test")
        Context().run(meanwhile)
        try:
            return real(delta_table, *given)
        except CommitFailedError as error:
            raised.append(str(error))
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_rs_writer, "commit_upon", late)
        yield raised
    assert not waiting


@contextmanager
def stalled(p: Pipeline, mode: str, meanwhile: Callable[[], None]) -> Iterator[None]:
    """Between the moment at which the run was found active and Spark's first write of a mode to `menu`, the run is
    abandoned and this is done.
    """
    real, waiting = DataFrameWriter.save, [p.table("menu").path]

    def late(writer: DataFrameWriter, path: str) -> None:
        if path in waiting and mode in str(writer._jwrite.curmode()):
            waiting.clear()
            run = next(run for run in journal.read_runs(p.warehouse, p.name) if not run.is_finished)
            planner.abandon_run(p.warehouse, run, "by a test")
            Context().run(meanwhile)
        real(writer, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataFrameWriter, "save", late)
        yield
    assert not waiting


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("value", ["{price: bigint}", "{price: int, note: string}"])
def test_spark_changes_no_columns_for_an_abandoned_run(
    spark: SparkSession, broker: str, tmp_path: Path, value: str
) -> None:
    before = PRICES.replace("{price: int}", "{price: int}, widen: rewrite").replace("}}\n", "}, widen: rewrite}\n")
    with pipeline(spark, broker, tmp_path, before) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run("first")
        p.write(before.replace("{price: int}", value))

        def put_back() -> None:
            p.write(before)
            p.send("menu", ("soup", {"price": 5}, 0))
            p.run("third")

        with (
            stalled(p, "Overwrite" if "bigint" in value else "Append", put_back),
            pytest.raises(RunError, match="run 2"),
        ):
            p.run("second")
        assert p.states() == [(1, "completed"), (2, "abandoned"), (3, "completed")]
        assert p.believed("menu") == [("curry", 8, 0, None), ("soup", 5, 0, None)]
        fields = DeltaTable(p.table("menu").path).schema().fields
        assert [field.name for field in fields if not field.name.startswith("_")][:3] == ["item", "price", "validFrom"]
        assert [str(field.type) for field in fields if field.name == "price"] == ['PrimitiveType("integer")']
        assert wrong(p) == []


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("mode", ["offline", "roll-over"])
def test_an_abandoned_upgrade_takes_no_rows_of_a_later_run(
    spark: SparkSession, broker: str, tmp_path: Path, mode: str
) -> None:
    with pipeline(spark, broker, tmp_path, PRICES) as p:
        write_deltalake(
            p.table("menu").path, pa.table({"item": ["curry", "cake"], "price": pa.array([8, 3], pa.int32())})
        )

        def run_third() -> None:
            p.send("menu", ("soup", {"price": 5}, 0), ("curry", {"price": 9}, 2))
            p.run("third")

        with stalled(p, "Overwrite", run_third), pytest.raises(RunError, match="is abandoned"):
            upgrade.upgrade_table(spark, p.contract, "menu", mode)
        expected = [("cake", 3), ("curry", 8), ("curry", 9), ("soup", 5)]
        rows = read.query(p.warehouse, p.contract, "menu", Question(from_time=at(-(10**9)))).to_pylist()
        assert sorted((row["item"], row["price"]) for row in rows) == expected
        upgrade.upgrade_table(spark, p.contract, "menu", mode)
        assert sorted(row[:2] for row in p.believed("menu")) == expected
        assert wrong(p) == []


@pytest.mark.long
@pytest.mark.ci
def test_a_run_that_is_abandoned_commits_nothing_even_before_the_next_is_planned(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, PRICES) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run("first")
        p.send("menu", ("soup", {"price": 5}, 0))
        with standing_still(p, "menu", lambda: None) as raised, pytest.raises(RunError, match="run 2"):
            p.run("second")
        assert raised
        assert p.believed("menu") == [("curry", 8, 0, None)]
        shutil.rmtree(Table(p.warehouse, p.name, "runs", "runs").path)
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract)[-1] == 2
        p.run("third")
        assert [number for number, _ in p.states()] == [1, 2, 3]
        assert p.believed("menu") == [("curry", 8, 0, None), ("soup", 5, 0, None)]


HELD = PRICES.replace(
    "value: {price: int}}",
    "value: {price: int}, expect: [{expect_column_values_to_be_between: {column: price, min_value: 0}, "
    "on_failure: quarantine}]}",
)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("name", ["logs/menu", "failing", "menu"])
def test_a_commit_that_was_on_its_way_is_refused_once_the_next_run_is_planned(
    spark: SparkSession, broker: str, tmp_path: Path, name: str
) -> None:
    with pipeline(spark, broker, tmp_path, HELD) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("soup", {"price": -5}, 0))
        p.run("first")
        p.send("menu", ("curry", {"price": -1}, 4))

        def run_without_the_gate() -> None:
            p.write(PRICES)
            p.run("third")

        with standing_still(p, name, run_without_the_gate) as raised, pytest.raises(RunError, match="run 2"):
            p.run("second")
        assert raised
        assert p.states() == [(1, "completed"), (2, "abandoned"), (3, "completed")]
        expected = [("curry", 8, 0, 4), ("curry", -1, 4, None), ("soup", -5, 0, None)]
        assert p.believed("menu") == expected
        p.run("fourth")
        assert p.believed("menu") == expected
        held = held_changes.read_held_rows(p.warehouse, p.name).to_pylist()
        assert [row for row in held if row["run"] == 2] == []
        assert wrong(p) == []


@pytest.mark.parametrize("adds_columns", [False, True])
def test_a_commit_of_spark_that_was_on_its_way_is_refused(
    spark: SparkSession, tmp_path: Path, adds_columns: bool
) -> None:
    table, arrived = Table(str(tmp_path), "prices", "menu", "log"), tmp_path / "arrived"
    rows = spark.range(1)
    table_creation.ensure_table(table, table_creation.make_nullable(rows.schema))

    def wait(rows: Iterator[Any]) -> Iterator[Any]:
        import time

        deadline = time.monotonic() + 60
        while not arrived.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield from rows

    asked = list[int]()

    def is_active() -> None:
        asked.append(1)
        if arrived.exists():
            raise RunError("run 2 is abandoned", where="prices")

    failures = list[BaseException]()

    def commit() -> None:
        waiting = rows.mapInArrow(wait, "id long")
        try:
            with commit_once.guard_commits(is_active):
                if adds_columns:
                    commits.append_columns(waiting.withColumn("n", waiting.id), table, 2, {}, commit_ids.ADDING)
                else:
                    writer = commits._build_writer(waiting, table, 2, {}).mode("append")
                    published = partial(tables.read_last_run, table)
                    commit_once.commit_once(lambda: writer.save(table.path), published, 2, None, table.path)
        except RunError as error:
            failures.append(error)

    thread = Thread(target=commit)
    thread.start()
    while not asked and thread.is_alive():
        thread.join(0.01)
    thread.join(2)  # Spark has begun its transaction
    late_commits.refuse_late_commits(table, 2, ["", commit_ids.ADDING])
    arrived.touch()
    thread.join(60)
    assert [str(error) for error in failures] == ["prices: run 2 is abandoned"]
    assert len(asked) == 2
    found = DeltaTable(table.path)
    assert ([field.name for field in found.schema().fields], found.file_uris()) == (["id"], [])
    assert tables.read_last_run(table) == 0


def ended_after(answers: int, table: Table, run: int) -> Callable[[], None]:
    """Return what `guard_commits` asks whether `run` goes on; after so many answers, it has ended."""
    asked = list[int]()

    def is_active() -> None:
        asked.append(1)
        if len(asked) > answers:
            raise RunError(f"run {run} is abandoned", where="prices")
        if len(asked) == answers:  # as another process would
            Context().run(late_commits.refuse_late_commits, table, run, commit_ids.PARTS)

    return is_active


def append(rows: DataFrame, table: Table, run: int) -> None:
    writer = commits._build_writer(rows, table, run, {}).mode("append")
    commits._commit_by_spark(lambda: writer.save(table.path), table, run)


def merge(rows: DataFrame, table: Table, run: int) -> None:
    spark, place = rows.sparkSession, "spark.databricks.delta.write"
    with override_conf(spark, {f"{place}.txnAppId": table.app_id(), f"{place}.txnVersion": str(run)}):
        source = "(SELECT * FROM range(9)) s ON t.id = s.id"
        statement = f"MERGE INTO delta.`{table.path}` t USING {source} WHEN NOT MATCHED THEN INSERT *"
        commits._commit_by_spark(lambda: spark.sql(statement).collect(), table, run)


def add_columns(rows: DataFrame, table: Table, run: int) -> None:
    commits.append_columns(rows.where("false").withColumn("n", rows.id), table, run, {}, commit_ids.ADDING)


LATE_WRITES: dict[str, Callable[[DataFrame, Table, int], object]] = {
    "append": append,
    "merge": merge,
    "replace": lambda rows, table, run: commits.replace_rows(rows, table, run, {}),
    "add columns": add_columns,
    "rewrite": lambda rows, table, run: commits.rewrite_table(rows, table, run, {}, commit_ids.REWRITING, (), after=1),
    "convert": lambda rows, table, run: commits.rewrite_table(rows, table, run, {}, commit_ids.CONVERTING, (), after=1),
}
FEATURES = {
    "plain": "'hindcast.test' = '1'",
    "feeding changes": "'delta.enableChangeDataFeed' = 'true'",
    "marked": "'delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true'",
}


@pytest.mark.parametrize(("write", "features"), [*product(LATE_WRITES, ["plain"]), *product(["convert"], FEATURES)])
def test_spark_makes_no_commit_of_a_run_that_ended_before_it_began(
    spark: SparkSession, tmp_path: Path, write: str, features: str
) -> None:
    table, rows, commit = Table(str(tmp_path), "prices", "menu", "log"), spark.range(1), LATE_WRITES[write]
    table_creation.ensure_table(table, table_creation.make_nullable(rows.schema))
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({FEATURES[features]})").collect()
    append(rows, table, 1)
    before = spark.read.format("delta").load(table.path).collect()
    with commit_once.guard_commits(ended_after(1, table, 3)), pytest.raises(RunError, match="run 3 is abandoned"):
        commit(spark.range(5), table, 3)
    with pytest.raises(RunError, match="run 3 has ended"):
        commit(spark.range(5), table, 3)
    found = spark.read.format("delta").load(table.path)
    assert (found.columns, found.collect()) == (["id"], before)
    assert [tables.read_last_run(table, part) for part in commit_ids.PARTS] == [1, 0, 0, 0]
    assert commit_ids.read_ended_run(DeltaTable(table.path), table.app_id()) == 3
    commit(spark.range(5), table, 4)
    assert spark.read.format("delta").load(table.path).collect() != before or write == "add columns"
    assert max(tables.read_last_run(table, part) for part in commit_ids.PARTS) == 4


def test_a_table_with_features_that_we_do_not_know_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(str(tmp_path), "prices", "menu", "log")
    table_creation.ensure_table(table, StructType([StructField("id", LongType())]))
    timed = "'delta.enableInCommitTimestamps' = 'true'"
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({timed})").collect()
    version = DeltaTable(table.path).version()
    late_commits.refuse_late_commits(table, 7)
    assert DeltaTable(table.path).version() == version


@pytest.mark.parametrize("answers", [1, 2])
@pytest.mark.parametrize("adopted", [False, True])
def test_properties_that_were_on_their_way_are_refused(tmp_path: Path, answers: int, adopted: bool) -> None:
    table = Table(str(tmp_path), "prices", "menu", "log")
    if adopted:
        rows = pa.table({"id": pa.array([1]), "_belief": pa.array(["open"])})
        write_deltalake(table.path, rows, name="prices.menu", description=table.description)
    else:
        table_creation.ensure_table(table, StructType([StructField("id", LongType())]))
    with commit_once.guard_commits(ended_after(answers, table, 2)), pytest.raises(RunError, match="run 2"):
        delta_rs_writer.try_set_properties(table, {"hindcast.test": "late"})
    assert "hindcast.test" not in DeltaTable(table.path).metadata().configuration
    assert delta_rs_writer.try_set_properties(table, {"hindcast.test": "in time"})


def test_late_commits_of_a_run_are_refused_by_one_commit(tmp_path: Path) -> None:
    table = Table(str(tmp_path), "prices", "menu", "log")
    table_creation.ensure_table(table, StructType([StructField("id", LongType())]))
    for _ in range(3):
        late_commits.refuse_late_commits(table, 7)
    assert DeltaTable(table.path).version() == 1
    assert tables.read_last_run(table) == 0
    late_commits.refuse_late_commits(table, 8)
    assert DeltaTable(table.path).version() == 2
    assert tables.read_last_run(table) == 0
    late_commits.refuse_late_commits(table, 7)
    assert DeltaTable(table.path).version() == 2


def test_what_is_committed_before_a_run_ends_is_known_after_the_next_one_too(tmp_path: Path) -> None:
    table = Table(str(tmp_path), "prices", "menu", "log")
    table_creation.ensure_table(table, StructType([StructField("id", LongType())]))
    for run, ended in ((1, False), (2, True), (3, False), (3, True), (4, True), (6, False), (7, True)):
        if ended:
            late_commits.refuse_late_commits(table, run)
        else:
            assert delta_rs_writer.add_files([], table, run, {"run": run}, after=None)
        assert tables.read_last_run(table) == {1: 1, 2: 1, 3: 3, 4: 3, 6: 6, 7: 6}[run]
    with pytest.raises(RunError, match="run 7 has ended"):
        delta_rs_writer.add_files([], table, 7, {}, after=None)
    assert delta_rs_writer.add_files([], table, 8, {}, after=6)


def test_nothing_is_committed_to_tables_of_others_or_damaged_ones(tmp_path: Path) -> None:
    foreign, damaged = (Table(str(tmp_path), "prices", name, "log") for name in ("foreign", "damaged"))
    for table in (foreign, damaged):
        write_deltalake(table.path, pa.table({"id": pa.array([1])}))
    (Path(damaged.path) / "_delta_log" / f"{0:020}.json").write_text("garbage", encoding="utf-8")
    for table in (foreign, damaged, Table(str(tmp_path), "prices", "absent", "log")):
        late_commits.refuse_late_commits(table, 7)
    assert [path.name for path in tmp_path.glob("*/*/_delta_log/*.json")] == [f"{0:020}.json"] * 2


def test_notes_are_found_behind_commits_without_one(tmp_path: Path) -> None:
    table = Table(str(tmp_path), "prices", "menu", "log")
    table_creation.ensure_table(table, StructType([StructField("id", LongType())]))
    rows = files.write_files(DeltaTable(table.path), [(None, pa.table({"id": pa.array([1])}))])
    assert delta_rs_writer.add_files(list(rows), table, 1, {"run": 1}, after=None)
    for run in range(2, 8):
        late_commits.refuse_late_commits(table, run)
    assert commit_history.read_notes(table, dict, limit=2) == {1: {"run": 1}}


def test_an_older_version_refuses_a_pipeline_of_which_a_run_was_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the identifiers of `commit_ids.end_run` for commits, and go on after records that nobody has."""
    table = journal.runs_table(str(tmp_path), "prices")
    table_creation.ensure_table(table, journal.SCHEMA)
    for _ in range(2):
        journal.mark_ended_runs(str(tmp_path), "prices")
    opened = tables.open_latest(table)
    assert opened is not None
    assert (opened.version(), tables.read_marks(opened)) == (1, {"hindcast": 2, "kind": "runs", "key": []})
    monkeypatch.setattr(tables, "ENDED_RUNS_NUMBER", 1)
    with pytest.raises(TableError, match="has store format 2, this version knows up to 1"):
        journal.read_runs(str(tmp_path), "prices")
