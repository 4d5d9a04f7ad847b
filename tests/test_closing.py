"""Rows are closed and opened, by this process or by tasks, as a MERGE of Spark's does it."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.dataset import Dataset
from pyspark.sql import functions as F

from hindcast.store import (
    change_tasks,
    closing,
    commit_once,
    commits,
    deletion_vectors,
    delta_log,
    files,
    row_reader,
    table_creation,
    tables,
)
from hindcast.store.commit_notes import TableNote
from hindcast.store.commits import ClosedRows
from hindcast.store.tables import Table
from pipelines import T0

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "name string, size double, money decimal(12,2), tags array<string>"
VERSIONS = f"{COLUMNS}, validFrom timestamp, validTo timestamp"
NAN = float("nan")
KEYS = [("a", 1.0), ("a", NAN), (None, 1.0), ("b", None), ("", -0.5)]


def table(folder: Path, spark: SparkSession) -> Table:
    made = Table(str(folder), "shop", "made", "versions", ("name", "size"))
    told = f"{VERSIONS}, systemFrom timestamp, systemTo timestamp, _belief string"
    table_creation.ensure_table(made, table_creation.make_nullable(spark.createDataFrame([], told).schema))
    return made


def changed(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, f"{VERSIONS}, _change string")


def publish(changes: DataFrame, it: Table, run: int, *, merge: bool = False) -> None:
    counted = changes.agg(commits.closing_summary(it), F.count_if(F.col("_change") == "open").alias("opened")).first()
    assert counted is not None
    summary = ClosedRows(**counted["closing"].asDict())
    closed = summary.open + summary.past
    note = TableNote(run, counted["opened"], closed)
    after = tables.read_last_run(it)
    commits.commit_change(
        changes,
        it,
        run,
        T0 + timedelta(days=run),
        closing=summary if closed else None,
        note=note,
        after=after,
        text_bytes=1 << 40 if merge else 0,
    )


def told(spark: SparkSession, it: Table) -> list[str]:
    rows = row_reader.load_stored_rows(spark, it).select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
    return sorted(text for (text,) in rows.collect())


def history(dice: random.Random, runs: int) -> list[list[tuple[Any, ...]]]:
    """Changes of one run after the other: what is closed was opened by an earlier one."""
    believed: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    changes = []
    for _ in range(runs):
        closed = dice.sample(sorted(believed, key=str), min(len(believed), dice.randrange(6)))
        change = [(*believed.pop(one), "close") for one in closed]
        for _ in range(dice.randrange(1, 8)):
            key, start = dice.choice(KEYS), T0 + timedelta(milliseconds=dice.randrange(40))
            one = (str(key), start)
            if one not in believed:
                end = start + timedelta(milliseconds=5) if dice.random() < 0.7 else None
                tags = dice.choice([None, [], ["x", None]])
                believed[one] = (*key, Decimal(dice.randrange(-99, 99)) / 100, tags, start, end)
                change.append((*believed[one], "open"))
        changes.append(change)
    return changes


@pytest.mark.long
@pytest.mark.ci
def test_rows_end_as_a_merge_leaves_them(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {"here": (), "marked": (), "tasks": (0, 0), "marked in tasks": (0, 0), "merged": ()}
    every = {name: table(tmp_path / name, spark) for name in ways}
    for name in ("marked", "marked in tasks"):
        commits.set_properties(spark, every[name], {tables.DELETION_VECTORS: "true", tables.CHECKPOINTS: "2"})
    for run, rows in enumerate(history(random.Random(7), 4), 1):  # noqa: S311
        changes = changed(spark, rows).localCheckpoint()
        for name, it in every.items():
            with monkeypatch.context() as patch:
                if ways[name]:
                    patch.setattr(files, "SMALL_BYTES", 0)
                    patch.setattr(files, "is_small", lambda *_: False)
                publish(changes, it, run, merge=name == "merged")
        expected = told(spark, every["merged"])
        for name, it in every.items():
            assert told(spark, it) == expected, (name, run)
            assert tables.read_last_run(it) == run
            assert without_spark(it) == without_spark(every["merged"]), (name, run)
    assert any('"systemTo":"' in row for row in expected)
    publish(changes, every["marked"], run)
    assert told(spark, every["marked"]) == expected, "a run publishes once"
    for name, it in every.items():
        operations = [commit["operation"] for commit in DeltaTable(it.path).history()]
        assert ("MERGE" in operations) == (name == "merged")
    found = DeltaTable(every["marked"].path)
    assert deletion_vectors.read_deletion_vectors(found, {*delta_log.list_paths(found)})


def without_spark(it: Table) -> list[str]:
    """The rows as delta-rs and DuckDB read them, each by its own reading of Delta's log."""
    rows = row_reader.open_arrow_rows(DeltaTable(it.path))
    table_ = rows.to_table() if isinstance(rows, Dataset) else rows.read_all()
    return sorted(
        str(row) for row in table_.select(["name", "size", "validFrom", "systemFrom", "systemTo"]).to_pylist()
    )


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("marked", [False, True])
def test_files_that_others_have_written_anew_meanwhile_are_read_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, marked: bool
) -> None:
    it = table(tmp_path, spark)
    if marked:
        commits.set_properties(spark, it, {tables.DELETION_VECTORS: "true"})
    row = ("a", 1.0, None, None, T0, None)
    b = "b\u2028\x85"  # Delta's log has statistics with it, and other ends of lines
    publish(changed(spark, [(*row, "open"), (b, *row[1:], "open")]), it, 1)
    publish(changed(spark, [("c", *row[1:], "open")]), it, 2)
    real, tried = closing.write_closed_rows, []

    def meanwhile(*args: Any) -> Any:
        found = real(*args)
        if not tried:
            spark.sql(f"OPTIMIZE delta.`{it.path}`").collect()
        tried.append(found)
        return found

    monkeypatch.setattr(closing, "write_closed_rows", meanwhile)
    monkeypatch.setattr(commit_once.time, "sleep", lambda _: None)
    publish(changed(spark, [(*row, "close"), ("a", 1.0, Decimal("2.50"), ["new"], T0, None, "open")]), it, 3)
    assert len(tried) == 2
    rows = [json.loads(text) for text in told(spark, it)]
    assert sorted((r["name"], str(r["money"]), r["systemTo"] is None) for r in rows) == [
        ("a", "2.5", True),
        ("a", "None", False),
        (b, "None", True),
        ("c", "None", True),
    ]
    spark.sql(f"OPTIMIZE delta.`{it.path}`").collect()
    spark.sql(f"REORG TABLE delta.`{it.path}` APPLY (PURGE)").collect()
    assert [json.loads(text) for text in told(spark, it)] == rows


@pytest.mark.parametrize("merge", [False, True])
def test_of_an_event_that_stands_under_two_keys_only_one_row_ends(
    spark: SparkSession, tmp_path: Path, *, merge: bool
) -> None:
    it, columns = Table(str(tmp_path), "shop", "made", "events", ("dish",)), "dish string, timestamp timestamp"
    schema = f"{columns}, systemFrom timestamp, systemTo timestamp, _partition int, _offset long, _belief string"
    table_creation.ensure_table(it, table_creation.make_nullable(spark.createDataFrame([], schema).schema))

    def change(*rows: tuple[str, str]) -> DataFrame:
        told = [(dish, T0, 0, 7, which) for dish, which in rows]
        return spark.createDataFrame(told, f"{columns}, _partition int, _offset long, _change string")

    publish(change(("A", "open"), ("B", "open")), it, 1)
    publish(change(("B", "close"), ("C", "open")), it, 2, merge=merge)
    rows = row_reader.load_stored_rows(spark, it).select("dish", "systemTo").collect()
    assert {row["dish"]: row["systemTo"] is None for row in rows} == {"A": True, "B": False, "C": True}


def test_rows_that_are_not_there_need_a_merge(spark: SparkSession, tmp_path: Path) -> None:
    it = table(tmp_path, spark)
    row = ("a", 1.0, None, None, T0, None)
    publish(changed(spark, [(*row, "open")]), it, 1)
    publish(changed(spark, [("a", 2.0, *row[2:], "close"), ("b", *row[1:], "open")]), it, 2)
    assert [json.loads(text)["systemTo"] for text in told(spark, it)] == [None, None]
    assert DeltaTable(it.path).history(1)[0]["operation"] == "MERGE"


def test_what_promises_more_is_sparks(spark: SparkSession, tmp_path: Path) -> None:
    it = table(tmp_path, spark)
    publish(changed(spark, [("a", 1.0, None, None, T0, None, "open")]), it, 1)
    rows, found = row_reader.load_stored_rows(spark, it), DeltaTable(it.path)
    assert change_tasks.can_write(rows, found)
    more = rows.withColumn("more", F.lit(1))
    assert not change_tasks.can_write(more, found)
    assert not change_tasks.can_write(rows.withColumn("size", F.array(F.lit(1))), found)
    found.alter.add_constraint({"positive": "size > 0"})
    assert not change_tasks.can_write(rows, DeltaTable(it.path)), "Delta checks each row"


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("as_json", ["true", "false"])
def test_rows_are_marked_whatever_form_a_checkpoint_has(spark: SparkSession, tmp_path: Path, *, as_json: str) -> None:
    it = table(tmp_path, spark)
    commits.set_properties(spark, it, {tables.DELETION_VECTORS: "true"})
    row = (1.0, None, None, T0, None)
    publish(changed(spark, [("a", *row, "open"), ("b", *row, "open")]), it, 1)
    form = {"writeStatsAsStruct": "true", "writeStatsAsJson": as_json}
    properties = {tables.CHECKPOINTS: "1", **{f"delta.checkpoint.{name}": value for name, value in form.items()}}
    commits.set_properties(spark, it, properties)
    (checkpoint,) = (tmp_path / "shop" / "made" / "_delta_log").glob("*.checkpoint.parquet")
    (add,) = filter(None, pq.read_table(checkpoint).column("add").to_pylist())
    assert ("stats" in add, add["stats_parsed"]["numRecords"]) == (as_json == "true", 2)
    publish(changed(spark, [("a", *row, "close")]), it, 2)
    rows = [json.loads(text) for text in told(spark, it)]
    assert [(r["name"], r["systemTo"] is None) for r in rows] == [("a", False), ("b", True)]


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 200_000])
def test_bytes_of_deletion_vectors_are_numbers_again(count: int) -> None:
    numbers = np.sort(np.random.default_rng(count).choice(1_000_000, count, replace=False)).astype(np.uint64)
    numbers = np.append(numbers, np.array([2**32 - 1, 2**33 + 7], np.uint64))
    assert [*deletion_vectors.parse_vector(deletion_vectors.format_vector(numbers))] == numbers.tolist()


EXACT = [
    ("123456789012345678.91", "decimals have more digits than a double"),
    ("-99999999999999999999999999999999999.999", "and up to 38"),
    ("0.10", "one that is no double at all"),
    ("1e-7", "small"),
    ("1.7976931348623157E308", "a double"),
    ("-0.0", "zero"),
    ("9223372036854775807", "a bigint"),
]


@pytest.mark.parametrize("bounds", ['"tightBounds":true', '"tightBounds":false', '"nullCount":{"c0":0}'])
def test_statistics_of_a_file_with_marked_rows_are_what_they_were(tmp_path: Path, bounds: str) -> None:
    write_deltalake(tmp_path, pa.table({"c0": ["a", "b"]}))
    values = ",".join(f'"c{n}":{number}' for n, (number, _) in enumerate(EXACT))
    statistics = f'{{"numRecords":2,"minValues":{{{values},"s":"é\\"1.50"}},{bounds}}}'
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    actions = [it | {"add": it["add"] | {"stats": statistics}} if "add" in it else it for it in actions]
    log.write_text("".join(f"{json.dumps(it)}\n" for it in actions), encoding="utf-8")
    it = DeltaTable(tmp_path)
    [path] = delta_log.list_paths(it)
    [_, added] = deletion_vectors.mark_rows(it, {path: np.array([1], np.uint64)})
    found = json.loads(added["add"]["stats"], parse_float=Decimal)  # type: ignore[call-overload, index]
    before = json.loads(statistics, parse_float=Decimal)
    assert found == before | {"tightBounds": False}
    for n, (number, why) in enumerate(EXACT):
        assert Decimal(found["minValues"][f"c{n}"]) == Decimal(number), why


def test_a_row_beside_a_marked_one_is_found_by_its_decimal(spark: SparkSession, tmp_path: Path) -> None:
    path, number = str(tmp_path / "decimals"), "123456789012345678.91"
    rows = spark.sql(f"SELECT * FROM VALUES ({number}BD, 1), ({number}BD, 2) AS t(k, n)").coalesce(1)
    rows.write.format("delta").option("delta.enableDeletionVectors", "true").save(path)
    it = DeltaTable(path)
    [file] = delta_log.list_paths(it)
    delta_log.commit_actions(it, deletion_vectors.mark_rows(it, {file: np.array([1], np.uint64)}), {"test": 1}, "{}")
    found = spark.read.format("delta").load(path).where(f"k = {number}BD").select("n").collect()
    assert [n for (n,) in found] == [1]


@pytest.mark.long
@pytest.mark.ci
def test_many_marked_rows_are_gone_for_every_reader(spark: SparkSession, tmp_path: Path) -> None:
    it = table(tmp_path, spark)
    commits.set_properties(spark, it, {tables.DELETION_VECTORS: "true"})
    key = F.struct(F.col("id").cast("string").alias("name"), F.lit(1.0).alias("size"))
    nothing = "cast(null as decimal(12,2)) money", "cast(null as array<string>) tags"
    start = F.timestamp_micros(F.lit(int(T0.timestamp()) * 1_000_000) + F.col("id")).alias("validFrom")
    end = F.when(F.col("id") < 30_000, F.lit(T0 + timedelta(days=1))).alias("validTo")
    every = spark.range(60_000).withColumn("key", key).select("key.*", *map(F.expr, nothing), start, end, "id")
    publish(every.drop("id").withColumn("_change", F.lit("open")), it, 1)
    for run, of in enumerate((7, 5, 3), 2):
        left = every.where(f"id % {of} = 0" + "".join(f" AND id % {n} <> 0" for n in (7, 5, 3) if n > of))
        publish(left.drop("id").withColumn("_change", F.lit("close")).localCheckpoint(), it, run)
    publish(
        every.where("id % 7 <> 0 AND id % 5 <> 0 AND id % 3 <> 0 AND id >= 30000")
        .drop("id")
        .withColumn("_change", F.lit("close"))
        .localCheckpoint(),
        it,
        5,
    )
    expected = sum(1 for n in range(30_000) if n % 7 and n % 5 and n % 3)
    current = [row for row in without_spark(it) if "'systemTo': None" in row]
    read = spark.read.format("delta").load(it.path)
    assert (len(current), read.where("systemTo is null").count(), read.count()) == (expected, expected, 60_000)
    assert not [path for path in delta_log.list_paths(DeltaTable(it.path)) if path.startswith("_belief=open")]


def test_what_rows_weigh(spark: SparkSession) -> None:
    schema = "a string, b binary, c array<string>, d struct<e: string>, f int"
    rows = spark.createDataFrame([("éé", b"123", ["x" * 50], None, 1), (None, None, [], ("y" * 30,), 2)], schema)
    (weight,) = rows.agg(files.text_size_column(rows)).first() or ()
    assert 4 + 3 + 50 + 30 <= weight < 120
    assert rows.where("false").agg(files.text_size_column(rows)).first() == (None,)
    assert files.is_small(10_000, None)
    assert files.is_small(0, 64 << 20)
    assert not files.is_small(10_001, 0)
    assert not files.is_small(1, (64 << 20) + 1)
