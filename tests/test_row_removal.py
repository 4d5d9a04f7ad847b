"""What forgetting takes from small tables goes without Spark, as a MERGE takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from hindcast.ingest import quarantine
from hindcast.ops.erase import row_removal
from hindcast.store import commit_once, commits, delta_rs_writer, rewriting, row_reader, table_creation, tables
from hindcast.store.tables import Table
from pipelines import T0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN = float("nan")
FOUND = "key struct<item: string, size: double>, at timestamp, price decimal(12,2), row string, detail string, n int"
ENTRIES = [
    (("soup", 1.0), T0, None, "a", "keep", 1),
    (("soup", NAN), T0, None, "a", "tell ann", 2),
    (("soup", None), None, None, None, None, 3),
    (None, T0, None, "ann", "", 4),
    ((None, -0.5), T0, None, "ann", "ann", 5),
]
LOG = (
    "partition int, offset bigint, key binary, value binary, headers array<struct<key: string, value: binary>>, "
    "reason string"
)
RECORDS = [
    (0, 0, b"ann", b"1", [("trace", b"ann"), ("none", None)], None),
    (0, 1, None, None, None, "says ann"),
    (0, 2, None, b"2", None, quarantine.REQUEUED_REASON),
    (0, 3, b"ann", b"3", [], "says ann"),
    (1, 0, b"bob", b"4", None, "says bob"),
    (1, 1, None, None, None, None),
]


def write(spark: SparkSession, it: Table, columns: str, *parts: list[tuple[Any, ...]]) -> None:
    """Puts a table down, each part as a file of its own."""
    table_creation.ensure_table(it, table_creation.make_nullable(spark.createDataFrame([], columns).schema))
    for run, rows in enumerate(parts, 1):
        commits.append_rows(spark.createDataFrame(rows, columns), it, run, {"run": run}, few=True)


def told(spark: SparkSession, it: Table) -> list[str]:
    rows = row_reader.load_stored_rows(spark, it).select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
    return sorted(text for (text,) in rows.collect())


def operations(it: Table) -> list[str]:
    return [commit["operation"] for commit in DeltaTable(it.path).history()]


def files(it: Table) -> set[str]:
    return {*DeltaTable(it.path).file_uris()}


def forget(spark: SparkSession, found: Table, log: Table, run: int) -> list[int]:
    """Takes from both tables what this module's functions can take; how many rows there were."""
    rows = row_reader.load_rows(spark, found)
    counts = [row_removal.clear_column(rows.where("row = 'ann'"), found, "row", run)]
    row_removal.rewrite_column(spark, found, ["n"], "detail", run, lambda text, _: text.replace("ann", "?"))
    counts.append(row_removal.remove_rows(rows.where("isnan(key.size) OR at IS NULL"), found, ["key", "at"], run))
    places = spark.createDataFrame([(0, n) for n in (0, 1, 2, 2)] + [(1, 1), (7, 7)], "p int, o bigint")
    row_removal.blank_records(places, log, {"partition": "p", "offset": "o"}, run)
    return counts


@pytest.mark.long
@pytest.mark.ci
def test_what_is_forgotten_goes_from_small_tables_as_a_merge_takes_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {}
    for way in ("here", "merged"):
        found, log = (
            Table(str(tmp_path / way), "shop", "found", "failing"),
            Table(str(tmp_path / way), "shop", "logs/orders", "log"),
        )
        write(spark, found, FOUND, ENTRIES[:2], ENTRIES[2:])
        write(spark, log, LOG, RECORDS[:4], RECORDS[4:])
        before = files(found)
        with monkeypatch.context() as patch:
            if way == "merged":
                patch.setattr(delta_rs_writer, "try_rewrite_rows", lambda *_: False)
            assert forget(spark, found, log, 9) == [2, 2]
        assert not before & files(found)
        ways[way] = told(spark, found), told(spark, log)
        assert ("MERGE" in operations(found), "MERGE" in operations(log)) == (way == "merged", way == "merged")
        notes = [json.loads(commit.get("userMetadata") or "{}") for commit in DeltaTable(log.path).history(1)]
        assert notes == [{"forgets": 9}]
        assert [row_removal.count_removed(found, run) for run in (8, 9)] == [0, 4], "two cleared, two removed"
    assert ways["here"] == ways["merged"]
    found, log = (Table(str(tmp_path / "here"), "shop", it.name, it.kind) for it in (found, log))
    versions = [DeltaTable(it.path).version() for it in (found, log)]
    assert forget(spark, found, log, 9) == [0, 0]
    assert [DeltaTable(it.path).version() for it in (found, log)] == versions, "the second time nothing is left"
    entries, records = ([json.loads(text) for text in texts] for texts in ways["here"])
    assert sorted((row["n"], row["row"], row["detail"]) for row in entries) == [
        (1, "a", "keep"),
        (4, None, ""),
        (5, None, "?"),
    ]
    assert [(r["value"] is None, r["reason"], r["forgotten"]) for r in records] == [
        (True, None, 9),
        (True, "forgotten", 9),
        (True, quarantine.REQUEUED_REASON, 9),
        (False, "says ann", None),
        (False, "says bob", None),
        (True, None, 9),
    ]


def test_files_that_others_have_written_anew_meanwhile_are_rewritten_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Table(str(tmp_path), "shop", "found", "failing")
    write(spark, it, FOUND, ENTRIES[:2], ENTRIES[2:])
    real, tried = rewriting.rewrite_small_table, []

    def meanwhile(*args: Any) -> Any:
        found = real(*args)
        if not tried:
            assert DeltaTable(it.path).optimize.compact()["numFilesRemoved"] == 2
        tried.append(found)
        return found

    monkeypatch.setattr(rewriting, "rewrite_small_table", meanwhile)
    monkeypatch.setattr(commit_once.time, "sleep", lambda _: None)
    row_removal.rewrite_column(spark, it, ["n"], "detail", 3, lambda text, _: text.replace("ann", "?"))
    assert len(tried) == 2
    assert sorted(json.loads(text)["detail"] or "" for text in told(spark, it)) == ["", "", "?", "keep", "tell ?"]


@pytest.mark.parametrize("reason", ["large", "promises more", "append only", "of an older format"])
def test_other_tables_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    it = Table(str(tmp_path), "shop", "found", "failing")
    write(spark, it, FOUND, ENTRIES)
    match reason:
        case "large":
            monkeypatch.setattr(rewriting.files, "SMALL_BYTES", 10)
        case "promises more":
            commits.set_properties(spark, it, {tables.DELETION_VECTORS: "true"})
        case "append only":
            commits.set_properties(spark, it, {"delta.appendOnly": "true"})
        case _:
            monkeypatch.setattr(tables, "read_older_format", lambda _: "latest")
    version = DeltaTable(it.path).version()
    assert not delta_rs_writer.try_rewrite_rows(it, lambda rows: rows.slice(0, 0), {})
    assert DeltaTable(it.path).version() == version
