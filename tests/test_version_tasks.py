"""The tasks that write the first rows of a topic's table: the same from rows of Spark and from those of tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from hindcast.bitemporal import derivation, ties
from hindcast.contract import Contract, list_shapes, load
from hindcast.engine import flat_records, increment_plans, row_exchange, version_tasks, version_ties
from hindcast.engine.spec import VersionIncrement
from hindcast.runs import derive_whole, tie_counts
from hindcast.store import table_columns, table_creation, tables
from hindcast.store.commit_notes import TieCounts
from hindcast.store.tables import ARROW_TIMESTAMP, Table
from hindcast.store.task_rows import TaskRows, map_rows
from pipelines import T0

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  texts: {read: table, key: {shop: string, item: int}, value: &value
    {price: "decimal(8,2)", share: double, at: timestamp, text: string,
     lines: "array<struct<sku: string, part: double>>"}}
  days: {read: table, ttl: 3 seconds, key: {day: date}, value: *value}
  moments: {read: table, key: {at_: timestamp, is_new: boolean}, value: *value}
  numbers: {read: table, key: {tiny: tinyint, small: smallint, large: bigint}, value: *value}
"""
LINES = pa.list_(pa.struct([("sku", pa.string()), ("part", pa.float64())]))
PLAIN = [("price", pa.decimal128(8, 2)), ("share", pa.float64()), ("at", ARROW_TIMESTAMP), ("text", pa.string())]
VALUE = pa.struct([*PLAIN, ("lines", LINES)])
KEYS = {
    "texts": pa.struct([("shop", pa.string()), ("item", pa.int32())]),
    "days": pa.struct([("day", pa.date32())]),
    "moments": pa.struct([("at_", ARROW_TIMESTAMP), ("is_new", pa.bool_())]),
    "numbers": pa.struct([("tiny", pa.int8()), ("small", pa.int16()), ("large", pa.int64())]),
}
CHOICES: dict[str, dict[str, tuple[Any, ...]]] = {
    "texts": {"shop": ("", "x", "ä€😀", "y\0", None), "item": (-1, 0, 2**31 - 1, None)},
    "days": {"day": (date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31), None)},
    "moments": {"at_": (datetime(1, 1, 1, tzinfo=UTC), T0, None), "is_new": (True, False, None)},
    "numbers": {"tiny": (-128, 127, None), "small": (0, None), "large": (-(2**63), 2**63 - 1, 0, None)},
}
PARTS = 3
RECORDS = 400


def build_records(topic: str, dice: random.Random) -> pa.Table:
    """Decoded records of a topic in no order of time, many of them at one moment; every sixth is a tombstone."""

    def build_one(offset: int) -> dict[str, Any]:
        part = dice.choice((0.0, -0.0, float("nan")))
        lines = [{"sku": "x", "part": part}]
        usual = {"price": Decimal("1.00"), "share": part, "at": None, "text": "", "lines": lines}
        value = {
            "price": dice.choice((None, Decimal("0.00"), Decimal("-1.50"), Decimal("999999.99"))),
            "share": dice.choice((0.1, 0.0, -0.0, float("nan"), None)),
            "at": dice.choice((T0, None)),
            "text": dice.choice(("", "x" * 300, None)),
            "lines": dice.choice((None, [], [None], lines, lines * 2)),
        }
        return {
            "key": {column: dice.choice(values) for column, values in CHOICES[topic].items()},
            "value": dice.choice((None, usual, usual, value, value, value)),
            "timestamp": T0 + timedelta(seconds=dice.randrange(40)),
            "epoch": dice.randrange(2),
            "partition": dice.randrange(-1, 3),  # -1: a row of an adopted table
            "offset": offset,
            "run": 1,
        }

    kinds = [("key", KEYS[topic]), ("value", VALUE), ("timestamp", ARROW_TIMESTAMP), ("epoch", pa.int32())]
    kinds += [("partition", pa.int32()), ("offset", pa.int64()), ("run", pa.int64())]
    return pa.Table.from_pylist([build_one(offset) for offset in range(RECORDS)], pa.schema(kinds))


def spread_rows(spark: SparkSession, records: pa.Table) -> TaskRows:
    """Rows that three tasks make, each of them in several batches, one of which has none."""

    def make_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in given for number in batch.column(0).to_pylist()):
            own = records.slice(number * 60, 60 if number < 2 else None)
            yield pa.RecordBatch.from_pylist([], own.schema)
            yield from own.to_batches(max_chunksize=17)

    return TaskRows(spark.range(0, 3, 1, 3), make_batches, from_arrow_schema(records.schema))


class Opened(NamedTuple):
    """A topic's empty table, and how its first rows are written."""

    contract: Contract
    name: str
    table: Table
    form: VersionIncrement

    def flatten(self, records: DataFrame | Sequence[TaskRows]) -> DataFrame | list[TaskRows]:
        found = tables.open_table(self.table)
        assert found is not None
        types = table_columns.spark_schema(found)
        return flat_records.flatten_new_records(list_shapes(self.contract)[self.name], types, records)

    def write(
        self, records: DataFrame | Sequence[TaskRows], parts: int, cuts: Sequence[int]
    ) -> tuple[list[pa.Table], TieCounts]:
        """The rows of the files that tasks report, by file in the order of their starts; and the ties they report."""
        reports = version_tasks.write_versions(self.form, self.flatten(records), parts, cuts).collect()
        paths = [Path(self.table.path) / row["path"] for row in reports if row["path"]]
        read = [pq.read_table(path, partitioning=None) for path in paths]
        read.sort(key=lambda rows: (rows.column("validFrom")[0].as_py(), rows.column("validTo")[0].is_valid))
        return read, version_ties.sum_reports(row["ties"] for row in reports if row["ties"])


def open_topic(spark: SparkSession, folder: Path, name: str) -> Opened:
    file = folder / "shop.yaml"
    file.write_text(CONTRACT, encoding="utf-8")
    contract = load(file)
    key = tuple(contract.topics[name].key)
    table = Table(str(folder), "shop", name, "versions", key)
    rows = derive_whole.derive_topic_rows(contract.topics[name], as_frame(spark, build_records(name, random.Random())))  # noqa: S311
    system = "*", "validFrom AS systemFrom", "validFrom AS systemTo", "'x' AS _belief"
    table_creation.ensure_table(table, table_creation.make_nullable(rows.selectExpr(*system).schema))
    assert increment_plans.plan_topic(contract, name, table, T0) is None, "increments compare values"
    form = increment_plans.plan_topic(contract, name, table, T0, nested=True)
    assert form is not None
    return Opened(contract, name, table, form)


def as_frame(spark: SparkSession, records: pa.Table) -> DataFrame:
    return spark.createDataFrame(records.combine_chunks(), from_arrow_schema(records.schema))


def list_rows(read: pa.Table | Sequence[pa.Table], columns: Sequence[str]) -> list[str]:
    tables_ = [read] if isinstance(read, pa.Table) else read
    return sorted(repr(row) for some in tables_ for row in some.select(columns).to_pylist())


def cut_time(*seconds: int) -> list[int]:
    return [int((T0 + timedelta(seconds=second)).timestamp() * 1e6) for second in seconds]


@pytest.mark.parametrize("name", KEYS)
def test_rows_of_tasks_give_the_versions_that_rows_of_spark_give(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Of random records in one chunk or two, against `derivation.derive_topic_versions`."""
    records = build_records(name, random.Random(name))  # noqa: S311
    opened = open_topic(spark, tmp_path, name)
    frame, cut = as_frame(spark, records), 150
    chunks = [spread_rows(spark, some) for some in (records.slice(0, cut), records.slice(cut))]
    columns = [*opened.form.columns]
    wanted = list_rows(derivation.derive_topic_versions(frame, opened.contract.topics[name].ttl).toArrow(), columns)
    assert len(wanted) > 20
    cuts = cut_time(12, 25)
    (counted,) = ties.count_ties(ties.find_ties(derivation.add_position(frame))).collect()
    expected = tie_counts.summarize_ties(counted.asDict(recursive=True)["ties"])
    assert min(expected.scattered, expected.lost, expected.replaced) > 0
    for source in (chunks, frame):
        read, found = opened.write(source, PARTS, cuts)
        assert found == expected
        assert list_rows(read, columns) == wanted
        # rule: a slice's files have the versions that begin in it, in order
        spans = [[moment.as_py() for moment in rows.column("validFrom")] for rows in read]
        assert all(span == sorted(span) for span in spans)
        slices = [{sum(moment.timestamp() * 1e6 >= cut for cut in cuts) for moment in span} for span in spans]
        assert all(len(numbers) == 1 for numbers in slices), "a file is of one slice"
        assert len({next(iter(numbers)) for numbers in slices}) == 3
        assert len(read) <= 6, "an open and a past one of each slice"
        whole, found = opened.write(source, 1, [])
        assert list_rows(whole, columns) == wanted
        assert found == expected


@pytest.mark.parametrize("name", KEYS)
def test_all_records_of_a_key_are_in_one_part_whichever_task_has_them(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    records = build_records(name, random.Random(name))  # noqa: S311
    opened = open_topic(spark, tmp_path, name)
    divide = partial(version_tasks._divide_records, opened.form.view.key, PARTS)
    parts: dict[str, int] = {}
    count = 0
    flat = opened.flatten([spread_rows(spark, records), spread_rows(spark, records.slice(100))])
    assert isinstance(flat, list)
    for rows in flat:
        for row in map_rows(rows, divide, "part int, rows binary").collect():
            for record in pa.ipc.open_stream(bytes(row["rows"])).read_all().to_pylist():
                count += 1
                key = repr([record[column] for column in opened.form.view.key])
                assert parts.setdefault(key, row["part"]) == row["part"], key
    assert count == 2 * RECORDS - 100, "each is in one part"
    assert len({*parts.values()}) > 1
    assert len(parts) == len({*(repr(key) for key in records.column("key").to_pylist())})


def test_flat_records_of_tasks_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    records, opened = build_records("texts", random.Random(3)), open_topic(spark, tmp_path, "texts")  # noqa: S311
    flat, expected = opened.flatten([spread_rows(spark, records)]), opened.flatten(as_frame(spark, records))
    assert isinstance(flat, list)
    assert not isinstance(expected, list)
    (own,) = flat
    kinds = [(field.name, field.dataType) for field in own.schema]
    assert kinds == [(field.name, field.dataType) for field in expected.schema]
    assert list_rows(own.as_frame().toArrow(), own.columns) == list_rows(expected.toArrow(), own.columns)


def test_records_of_other_types_are_cast_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    records, opened = build_records("texts", random.Random(3)), open_topic(spark, tmp_path, "texts")  # noqa: S311
    smaller = pa.struct([("shop", pa.string()), ("item", pa.int16())])
    keys = [
        key | {"item": None if key["item"] is None else min(key["item"], 9)}
        for key in records.column("key").to_pylist()
    ]
    records = records.set_column(0, "key", pa.array(keys, smaller))
    flat = opened.flatten([spread_rows(spark, records.slice(0, 9)), spread_rows(spark, records.slice(9))])
    assert not isinstance(flat, list)
    assert flat.schema["item"].dataType.simpleString() == "int"
    assert flat.count() == RECORDS


def test_large_records_are_handed_over_in_several_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_exchange, "BYTES_PER_VALUE", 2_000)
    rows = pa.table({"k": [n % 5 for n in range(500)], "v": ["x" * 50] * 500})
    batches = rows.to_batches(max_chunksize=40)
    yielded = [*version_tasks._divide_records(["k"], 2, iter(batches))]
    assert {batch.num_rows for batch in yielded} == {2}, "Spark takes its time for each batch"
    monkeypatch.setattr(row_exchange, "BYTES_PER_BATCH", 1)
    assert [batch.num_rows for batch in version_tasks._divide_records(["k"], 2, iter(batches))] == [1] * 2 * len(
        yielded
    )
    values = [value.as_buffer() for batch in yielded for value in batch.column("rows")]
    assert all(len(value) < 5_000 for value in values)
    read = pa.Table.from_batches([*row_exchange.open_values(values)])
    assert read.sort_by("k").equals(rows.sort_by("k"))
    assert [*version_tasks._divide_records(["k"], 2, iter([batches[0].slice(0, 0)]))] == []


@pytest.mark.parametrize("whole", [True, False])
def test_rows_of_a_group_are_in_one_part_and_those_without_one_in_all(whole: bool) -> None:
    dice = random.Random(9)  # noqa: S311
    texts = [dice.choice([*(f"group {n}" for n in range(90)), None]) for _ in range(3_000)]
    numbers = [dice.choice([1, 2, None]) for _ in texts]
    rows = pa.table({"g": pa.array(texts).dictionary_encode(), "n": numbers, "row": range(3_000)})
    of_two = pa.concat_tables([rows.slice(0, 1_000), rows.slice(1_000).unify_dictionaries()])
    found: dict[int, list[dict[str, Any]]] = {}
    for batch in row_exchange.divide_rows([of_two, rows.slice(0, 0)], ["g", "n"], 4, whole=whole):
        for part, value in zip(batch.column("_part").to_pylist(), batch.column("rows"), strict=True):
            for some in row_exchange.open_values([value.as_buffer()]):
                column = some.column("g")
                assert {*column.dictionary.to_pylist()} == {*column.to_pylist()} - {None}, "texts of other parts"
                found.setdefault(part, []).extend(some.to_pylist())
    assert sorted((it for own in found.values() for it in own), key=lambda it: it["row"]) == rows.to_pylist()
    is_grouped = all if whole else any
    parts: dict[tuple[Any, Any] | None, set[int]] = {}
    for part, own in found.items():
        for it in own:
            group = (it["g"], it["n"])
            parts.setdefault(group if is_grouped(v is not None for v in group) else None, set()).add(part)
    assert parts.pop(None) == {0, 1, 2, 3}
    assert {len(own) for own in parts.values()} == {1}
