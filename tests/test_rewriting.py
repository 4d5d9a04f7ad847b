"""A few rows are closed and opened by this process as a MERGE of Spark's does it."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from hindcast.store import commit_once, commits, files, rewriting, row_reader, table_creation, tables
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
    return spark.createDataFrame(rows, f"{VERSIONS}, change string")


def publish(changes: DataFrame, it: Table, run: int, *, few: bool) -> None:
    closing = changes.agg(commits.closing_summary(it)).first()
    assert closing is not None
    told = ClosedRows(**closing["closing"].asDict())
    told = told if told.open + told.past else None
    note = TableNote(run)
    after = tables.read_last_run(it)
    commits.commit_change(changes, it, run, T0 + timedelta(days=run), closing=told, note=note, after=after, few=few)


def told(spark: SparkSession, it: Table) -> list[str]:
    rows = row_reader.load_stored_rows(spark, it).select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
    return sorted(text for (text,) in rows.collect())


def history(dice: random.Random) -> list[list[tuple[Any, ...]]]:
    """Changes of one run after the other: what is closed was opened by an earlier one."""
    believed: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    runs = []
    for _ in range(4):
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
        runs.append(change)
    return runs


@pytest.mark.long
@pytest.mark.ci
def test_a_few_rows_end_as_a_merge_leaves_them(spark: SparkSession, tmp_path: Path) -> None:
    both = [table(tmp_path / name, spark) for name in ("here", "merged")]
    for run, rows in enumerate(history(random.Random(7)), 1):  # noqa: S311
        changes = changed(spark, rows).localCheckpoint()
        for it, few in zip(both, (True, False), strict=True):
            publish(changes, it, run, few=few)
        here, merged = (told(spark, it) for it in both)
        assert here == merged
        assert tables.read_last_run(both[0]) == run
        publish(changes, both[0], run, few=True)
        assert told(spark, both[0]) == here, "a run publishes once"
    assert any('"systemTo":"' in row for row in here)
    operations = [[commit["operation"] for commit in DeltaTable(it.path).history()] for it in both]
    assert "MERGE" not in operations[0]
    assert "MERGE" in operations[1]


def test_files_that_others_have_written_anew_meanwhile_are_read_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = table(tmp_path, spark)
    row = ("a", 1.0, None, None, T0, None)
    publish(changed(spark, [(*row, "open"), ("b", *row[1:], "open")]), it, 1, few=True)
    publish(changed(spark, [("c", *row[1:], "open")]), it, 2, few=True)
    real, tried = rewriting.find_files_to_rewrite, []

    def meanwhile(*args: Any) -> Any:
        found = real(*args)
        if not tried:
            assert DeltaTable(it.path).optimize.compact()["numFilesRemoved"] == 2
        tried.append(found)
        return found

    monkeypatch.setattr(rewriting, "find_files_to_rewrite", meanwhile)
    monkeypatch.setattr(commit_once.time, "sleep", lambda _: None)
    publish(changed(spark, [(*row, "close"), ("a", 1.0, Decimal("2.50"), ["new"], T0, None, "open")]), it, 3, few=True)
    assert len(tried) == 2
    rows = [json.loads(text) for text in told(spark, it)]
    assert sorted((r["name"], str(r["money"]), r["systemTo"] is None) for r in rows) == [
        ("a", "2.5", True),
        ("a", "None", False),
        ("b", "None", True),
        ("c", "None", True),
    ]


def test_what_is_large_or_promises_more_is_sparks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = table(tmp_path / "a", spark)
    row = ("a", 1.0, None, None, T0, None)
    publish(changed(spark, [(*row, "open")]), it, 1, few=True)
    found, close = DeltaTable(it.path), pa.table({"name": ["a"], "size": [1.0], "validFrom": pa.array([T0])})
    at = T0 + timedelta(days=2)
    assert [one.closed.num_rows for one in rewriting.find_files_to_rewrite(found, it, close, at) or []] == [1]
    other = close.set_column(1, "size", [[2.0]])
    assert rewriting.find_files_to_rewrite(found, it, other, at) is None, "a row that is not there"
    assert rewriting.find_files_to_rewrite(found, it, close.slice(0, 0), at) is None
    monkeypatch.setattr(files, "SMALL_BYTES", 100)
    assert rewriting.find_files_to_rewrite(found, it, close, at) is None, "its file is larger than that"
    monkeypatch.undo()
    rows = row_reader.load_stored_rows(spark, it)
    assert files.collect_rows(rows, found) is not None
    assert files.collect_rows(rows.withColumn("more", F.lit(1)), found) is None
    found.alter.add_constraint({"positive": "size > 0"})
    assert files.collect_rows(rows, DeltaTable(it.path)) is None, "Delta checks each row"
    marked = table(tmp_path / "b", spark)
    DeltaTable(marked.path).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    assert files.collect_rows(row_reader.load_stored_rows(spark, marked), DeltaTable(marked.path)) is None


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
