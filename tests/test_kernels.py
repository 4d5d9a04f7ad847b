"""Kernels: tables that they make are those of Spark's plan, row for row, whatever happens on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from hindcast.bitemporal.predicates import Question
from hindcast.common.errors import HindcastError
from hindcast.common.settings import read_settings
from hindcast.engine import eligibility, task
from hindcast.ops import maintenance
from hindcast.query import read
from hindcast.runs import incremental_state, run_steps
from hindcast.store import delta_rs_writer, tables
from kernel_runs import begin, build, files, kernels, live, note, stored, stored_alike, twin
from pipelines import Pipeline, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  items:
    read: table
    key: {shop: string, item: int}
    value:
      price: decimal(8,2)
      n: int
      small: smallint
      big: bigint
      day: date
      at: timestamp
      flag: boolean
      kind: string
  stock:
    read: table
    key: {shop: string, item: int}
    value: {left: bigint, kind: string}
  marks:
    read: table
    key: {flag: boolean, day: date, at: timestamp, big: bigint, kind: string}
    value: {mark: int}
  kinds:
    read: table
    key: {kind: string}
    value: {label: string, share: double}
  prices:
    read: table
    key: {price: "decimal(8,2)"}
    value: {band: string}
  nothing:
    read: table
    key: {kind: string}
    value: {x: int}
  sales:
    read: stream
    key: {shop: string, item: int}
    value: {flag: boolean, day: date, at: timestamp, big: bigint, kind: string, note: string, price: "decimal(8,2)"}
views:
  both:
    table: items
    join: {table: stock}
    select: {price: price, left: left, kind: stock.kind}
  priced:
    stream: sales
    where: price > 0
"""
EVERY_OPERATOR = """  by_key:
    stream: sales
    join: {table: items}
    select: {kind: sales.kind, price: items.price, small: small, at: items.at}
  by_key_left:
    stream: sales
    join: {table: items, how: left}
    select: {note: note, n: n, shown: items.kind, flag: items.flag, day: items.day}
  by_marks:
    stream: sales
    join: {table: marks, on: [flag, day, at, big, kind], how: left}
    key: {kind: sales.kind, day: sales.day}
    select: {mark: mark, shop: shop}
  by_kind:
    stream: sales
    join: {table: kinds, on: kind}
    select: {label: label, share: share, loud: upper(note)}
  by_price:
    stream: sales
    join: {table: prices, on: price, how: left}
    select: {band: band, kind: kind}
  banded:
    table: items
    join: {table: prices, on: price}
    select: {band: band, n: n}
  per_price:
    table: items
    group_by: {price: price}
    aggregate: {many: count(*), ints: sum(n)}
  per_item:
    table: items
    aggregate: {many: count(*), ints: sum(n), mean: avg(n)}
  per_kind:
    table: items
    group_by: {kind: kind, flag: flag}
    aggregate:
      many: count(*)
      priced: count(price)
      spent: sum(price)
      ints: sum(n)
      smalls: sum(small)
      mean_small: avg(small)
      bigs: sum(big)
      mean_big: avg(big)
  per_moment:
    table: items
    group_by: {day: day, at: at}
    aggregate: {kinds: count(kind), ints: sum(n)}
  sold:
    stream: sales
    group_by: {kind: kind}
    where: big IS NULL OR big >= 0
    aggregate: {many: count(*), spent: sum(price), least: min(big), last: max(at), noted: "max(left(note, 2))"}
  in_parts:
    stream: sales
    where: big IS NULL OR big >= 0
    group_by: {kind: kind, flag: flag, short: "left(note, 3)"}
    window: {tumbling: 7 seconds, grace: 3 seconds}
    aggregate:
      many: count(*)
      spent: sum(price)
      mean: avg(cast(big AS int) + 1)
      least: min(big)
      last: max(at)
      noted: "max(left(note, 2))"
      smallest: "min(price * 2)"
  in_slides:
    stream: sales
    where: big IS NULL OR big >= 0
    group_by: {kind: kind, flag: flag}
    window: {sliding: 3 seconds, grace: 2 seconds}
    aggregate: {many: count(*), spent: sum(price * 2), last: max(at)}
  in_sessions:
    stream: sales
    where: big IS NULL OR big >= 0
    group_by: {kind: kind, flag: flag}
    window: {session: 5 seconds, grace: 2 seconds}
    aggregate: {many: count(*), priced: count(note), spent: sum(price * 2), last: max(at), noted: "max(left(note, 2))"}
  with_nothing:
    stream: sales
    join: {table: nothing, on: kind}
    select: {x: x}
  of_nothing:
    table: nothing
    aggregate: {x: sum(x)}
  keyed:
    stream: sales
    join: {table: kinds, on: kind, how: left}
    key: {note: note, price: price, day: day, at: at, none: label}
    select: {kind: sales.kind}
  computed:
    stream: sales
    join: {table: items, how: left}
    where: items.n IS NULL OR sales.price > 0
    select:
      paid: round(sales.price * items.n, 1)
      kind: coalesce(items.kind, upper(sales.kind), '-')
      later: items.at > sales.at
      missing: items.n IS NULL
  either:
    table: items
    join: {table: stock, how: outer}
    where: NOT (price <=> 0)
    select:
      price: price
      left: left
      both: coalesce(stock.kind, items.kind)
      item_of: items.item
  near_left:
    stream: priced
    join: {stream: sales, after: 4 seconds, how: left}
    key: {note: priced.note}
    select: {text: "concat_ws('/', priced.kind, sales.kind)", alone: sales.flag IS NULL}
"""
MORE_SHAPES = """  per_text:
    table: items
    where: big <> 0 AND n IS NOT NULL
    group_by: {shown: "coalesce(upper(kind), '-')", sign: n > 0}
    aggregate:
      spent: sum(price * n)
      dearest: max(price)
      smallest: min(small)
      text: max(concat(kind, small))
      first_day: min(day)
      last: max(at)
      flagged: min(flag)
      present: count(price > 0)
  by_customer:
    stream: sales
    aggregate: {priced: count(price), spent: sum(price)}
  in_hops:
    stream: sales
    window: {hopping: 20 seconds, advance: 6 seconds, grace: 1 second}
    aggregate: {priced: count(price), spent: sum(price)}
  in_pairs:
    stream: sales
    group_by: {flag: flag}
    window: {hopping: 4 seconds, advance: 2 seconds, grace: 1 day}
    aggregate: {many: count(*), last_day: max(day), text: "max(concat_ws('-', kind, note))"}
  in_sittings:
    stream: sales
    window: {session: 9 seconds, grace: 1 second}
    aggregate: {many: count(*), text: "min(concat_ws('-', kind, note))"}
  distinct:
    table: items
    group_by: {kind: kind}
    aggregate: {many: count(distinct n)}
  on_top:
    table: both
    group_by: {kind: kind}
    aggregate: {left: sum(left), many: count(*)}
  renamed:
    table: items
    select: {sort: kind}
  computed_key:
    stream: sales
    join: {table: kinds, on: kind}
    key:
      label: concat(label, '!')
      year: year(day)
    select:
      note: left(note, 3)
      share: share * 2
  stocked:
    table: items
    join: {table: stock, how: left}
    select:
      price: price
      left: left
      kind: stock.kind
      text: concat_ws('/', items.kind, stock.kind)
  whole:
    table: items
    join: {table: stock, how: outer}
    select: {price: price, left: left}
  described:
    table: items
    join: {table: kinds, on: kind, how: left}
    where: price IS NULL OR price <> 12.25
  labelled:
    table: items
    join: {table: kinds, on: kind}
    select: {label: label, price: price, loud: upper(items.kind)}
  positive:
    table: items
    join: {table: stock}
    where: left > 1
    select: {worth: price * left}
  by_text:
    stream: sales
    join: {table: kinds, on: "coalesce(kind, 'a')", how: left}
    select: {label: label, two: "concat(label, note)"}
  by_items:
    stream: sales
    join: {table: marks, on: [NOT flag, day, at, "big + 0", "concat(kind, '')"]}
    select: {mark: mark, place: upper(shop)}
  named:
    table: items
    join: {table: kinds, on: "left(kind, 1)", how: left}
    select: {price: price, label: label}
  mirrored:
    stream: sales
    join: {table: kinds, on: reverse(kind)}
    select: {label: label}
  near:
    stream: sales
    join: {stream: priced, before: 2 seconds, after: 3 seconds}
    where: sales.big IS NULL OR sales.big >= 0
    select: {kind: sales.kind, other: priced.kind, both: sales.price + priced.price, later: priced.at > sales.at}
  near_outer:
    stream: priced
    join: {stream: sales, before: 1 second, how: outer}
    select: {one: priced.price, other: sales.price}
"""
OPERATORS = {
    **dict.fromkeys(("by_key", "by_key_left", "by_marks", "by_kind", "with_nothing", "keyed"), "stream_table"),
    **dict.fromkeys(("computed", "computed_key", "by_price"), "stream_table"),
    **dict.fromkeys(
        ("both", "stocked", "either", "whole", "described", "labelled", "positive", "banded"), "table_table"
    ),
    "by_text": "stream_table",
    "by_items": "stream_table",
    "named": "table_table",
    **dict.fromkeys(("near", "near_left", "near_outer"), "stream_stream"),
    **dict.fromkeys(
        ("per_item", "per_kind", "per_moment", "per_price", "per_text", "on_top", "of_nothing"), "of_table"
    ),
    **dict.fromkeys(("sold", "by_customer"), "of_stream"),
    **dict.fromkeys(("in_parts", "in_hops", "in_pairs", "in_slides"), "in_windows"),
    **dict.fromkeys(("in_sessions", "in_sittings"), "in_sessions"),
}
for name in (
    "by_kind",
    "labelled",
    "stocked",
    "in_pairs",
    "in_sittings",
    "near_left",
):  # of the first two, a letter beyond ASCII decides
    OPERATORS[name] += "+spark"
EMPTY = ("with_nothing", "of_nothing")
NO_KEY = json.dumps({"shop": None, "item": None})
KINDS = ("a", "b", "ä€😀", "", None)
DAYS = ("0001-01-01", "2026-01-02", "9999-12-31", None)
FAR = "9999-12-31T23:59:59.998999Z"
MOMENTS = ("0001-01-01T00:00:00.000001Z", "1969-12-31T23:59:59.999999Z", FAR, "2026-01-01T00:00:00.123456Z", None)
BIGS = (2**53 + 1, -(2**53) - 1, -1, 0, None)
NOTES = ("x" * 40 + "1", "x" * 40 + "2", "y" * 6000, "😀" * 33, "\U0010ffff" * 40, "short", None)


def told(dice: random.Random, rows: int) -> dict[str, list[Any]]:
    """Records of every topic, in no order of time; every tenth of a table a tombstone."""

    def marks() -> dict[str, Any]:
        values = {"flag": (True, False, None), "day": DAYS[:2], "at": MOMENTS[2:], "big": BIGS[3:], "kind": KINDS[:2]}
        return {name: dice.choice(some) for name, some in values.items()}

    def one(topic: str) -> tuple[Any, Any, float]:
        key = json.dumps({"shop": dice.choice(("x", "y", None)), "item": dice.choice((1, 2, 3, None))})
        price = dice.choice((None, 0, -1.5, 12.25, 999999.99, -999999.99))
        values = {
            "items": {
                "price": price,
                "n": dice.choice((None, 1, -7, 2**31 - 1, 1 - 2**31)),
                "small": dice.choice((None, 3, -32767)),
                "big": dice.choice(BIGS),
                "day": dice.choice(DAYS),
                "at": dice.choice(MOMENTS),
                "flag": dice.choice((True, False, None)),
                "kind": dice.choice(KINDS),
            },
            "stock": {"left": dice.choice((None, 1, 2, 3)), "kind": dice.choice(KINDS)},
            "marks": {"mark": dice.randrange(9)},
            "kinds": {"label": dice.choice(("one", "two", None)), "share": dice.choice((0.5, -0.0, None))},
            "prices": {"band": dice.choice(("low", "high", None))},
            "sales": {**marks(), "note": dice.choice(NOTES), "price": price},
        }
        if topic == "marks":
            key = json.dumps(marks())
        if topic == "kinds":
            key = dice.choice(KINDS[:3])
        if topic == "prices":
            key = json.dumps(dice.choice((0, -1.5, 12.25, 999999.99)))
        gone = topic != "sales" and dice.random() < 0.1
        return key, None if gone else values[topic], dice.randrange(rows)

    every = {
        topic: [one(topic) for _ in range(rows)] for topic in ("items", "stock", "marks", "kinds", "sales", "prices")
    }
    every["sales"].append((None, {"kind": "a"}, 3))
    return every


@pytest.fixture(scope="module", params=["every operator"])
def replayed(
    request: pytest.FixtureRequest, spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """The topics of a first run are there, no view is. To be copied, not to be run."""
    views = EVERY_OPERATOR if request.param == "every operator" else MORE_SHAPES
    with pipeline(spark, broker, tmp_path_factory.mktemp("replayed"), CONTRACT + views) as p:
        for topic, records in told(random.Random(11), 60).items():  # noqa: S311
            p.send(topic, *records)
        begin(p, "first")
        yield p


@pytest.fixture(scope="module")
def made(replayed: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The run with kernels, completed. To be read."""
    return _completed(replayed, tmp_path_factory.mktemp("made"), on=True)


@pytest.fixture(scope="module")
def plain(replayed: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The very run without kernels."""
    return _completed(replayed, tmp_path_factory.mktemp("plain"), on=False)


def _completed(p: Pipeline, folder: Path, *, on: bool) -> Pipeline:
    p = twin(p, folder)
    build(p, on=on)
    with p.here():
        run_steps.finish_run(read_settings(), p.name, 1)
    return p


@pytest.mark.long
@pytest.mark.parametrize(
    "replayed", [pytest.param("every operator", marks=pytest.mark.ci), "more shapes"], indirect=True
)
def test_tables_made_by_kernels_are_those_of_sparks_plan(made: Pipeline, plain: Pipeline) -> None:
    for name in made.contract.ordered_views:
        expected = {} if name in EMPTY or name not in OPERATORS else {"kernel": OPERATORS[name]}
        own, other = note(made, name), note(plain, name)
        assert {k: v for k, v in own.items() if k not in other} == expected, name
        assert {k: own[k] for k in other} == other, name
        assert stored_alike(made, plain, name) != (name in EMPTY), name
    if "per_kind" in made.contract.views:
        assert all(note(made, name)["leftOut"]["no_key"] for name in ("per_kind", "per_item"))
        assert len(live(made, "by_key_left")) > 2, "several tasks have made it"


@pytest.mark.long
@pytest.mark.parametrize("replayed", ["every operator", "more shapes"], indirect=True)
def test_later_runs_on_what_kernels_made_end_as_without_them(
    made: Pipeline, plain: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By increments: late records, tombstones, new keys; rows of the kernels' files are closed."""
    one, other = twin(made, tmp_path / "one"), twin(plain, tmp_path / "other")
    for topic, records in told(random.Random(12), 25).items():  # noqa: S311
        one.send(topic, *(it for it in records if it[0] != NO_KEY))  # which increments pass over
    one.send("nothing", ("a", {"x": 1}, 5), ("b", {"x": 2}, 7))
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)
    monkeypatch.setattr(tables, "LARGE_ROWS", 0)
    for p, on in ((one, True), (other, False)):
        with p.here(), kernels(on=on):
            p.run("second")
    unclosed, done = set(), set()
    for name in one.contract.ordered_views:
        assert one.history(name) == other.history(name), name
        if not any(row[-1] for row in one.history(name)) and not OPERATORS.get(name, "").startswith("in_"):
            unclosed.add(name)  # windows may be closed to what comes
        if "kernel" in note(one, name, 2):
            assert note(one, name, 2)["kernel"] == OPERATORS[name], name
            done.add(name)
        assert "kernel" not in note(other, name, 2), name
    views = {*one.contract.ordered_views}
    assert {*EMPTY, "priced"} & views <= unclosed <= {*EMPTY, "priced", "near", "near_left", "by_items"}
    increments = {"by_key", "by_text", "named", "both", "described", "near", "near_outer", "per_item", "in_parts"}
    assert done >= increments & views
    with one.here():
        assert wrong(one) == []


@pytest.mark.long
def test_delta_tells_of_a_kernels_files_what_they_hold_and_readers_find_every_row(
    made: Pipeline, plain: Pipeline
) -> None:
    assert made.spark is not None
    for name in ("keyed", "by_marks", "both", "per_kind", "per_moment"):
        bounded = []
        for p in (made, plain):
            found = DeltaTable(p.table(name).path)
            bounded.append(_checked(found))
        lacking = bounded[1] - bounded[0]
        assert not lacking, (name, lacking)
    rows = made.spark.read.format("delta").load(made.table("keyed").path)
    every = rows.toArrow().to_pylist()
    assert {row["note"] for row in every} == {*NOTES}
    for column in ("note", "price", "day", "at", "timestamp"):
        for value in {row[column] for row in every}:
            expected = sum(row[column] == value for row in every)
            literal = F.lit(None if value is None else str(value)).cast(rows.schema[column].dataType)
            assert rows.where(rows[column].eqNullSafe(literal)).count() == expected, (column, value)
    asked = [[row[c] for c in ("note", "price", "day", "at", "none")] for row in every]
    with made.here():
        for key, row in zip(asked, every, strict=True):
            told = read.query(made.warehouse, made.contract, "keyed", Question(key=key)).to_pylist()
            assert row["timestamp"] in {it["timestamp"] for it in told}
            assert len(told) == asked.count(key), key
        for moment in sorted({row["timestamp"] for row in every}):
            question = Question(from_time=moment, to_time=moment)
            told = read.query(made.warehouse, made.contract, "keyed", question).to_pylist()
            assert len(told) == sum(row["timestamp"] == moment for row in every)


def _checked(found: DeltaTable) -> set[str]:
    """The columns that Delta knows bounds of in all files; asserts that all values lie within them, nulls counted."""
    bounded: set[str] | None = None
    for path, file in zip(
        pa.table(found.get_add_actions()).column("path").to_pylist(), _statistics(found), strict=True
    ):
        rows = pq.read_table(Path(found.table_uri.removeprefix("file://"), path), partitioning=None).to_pylist()
        assert file["numRecords"] == len(rows)
        bounded = bounded or set()
        for name, nulls in file["nullCount"].items():
            values = [row[name] for row in rows if row[name] is not None]
            assert nulls == len(rows) - len(values), name
            if name in file["minValues"]:
                assert min(values) >= _value(file["minValues"][name], values[0]), (path, name)
            if name in file["maxValues"]:
                slack = timedelta(microseconds=999) if isinstance(values[0], datetime) else None
                most = max(values) - slack if slack else max(values)
                assert most <= _value(file["maxValues"][name], values[0]), (path, name)
                bounded.add(name)
    return bounded or set()


def _statistics(found: DeltaTable) -> list[dict[str, Any]]:
    """What the log tells of each file, as it stands there."""
    log = Path(found.table_uri.removeprefix("file://"), "_delta_log")
    lines = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines()]
    told = {line["add"]["path"]: json.loads(line["add"]["stats"]) for line in lines if "add" in line}
    return [told[path] for path in pa.table(found.get_add_actions()).column("path").to_pylist()]


def _value(told: Any, like: Any) -> Any:
    match like:
        case datetime():
            return datetime.fromisoformat(told)
        case date():
            return date.fromisoformat(told)
        case Decimal():
            return Decimal(str(told))
    return told


class DeathError(Exception):
    """What a step dies of."""


@pytest.mark.long
def test_a_step_that_dies_is_done_once_by_a_repeat(
    replayed: Pipeline, plain: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, real = twin(replayed, tmp_path), delta_rs_writer.add_files

    def before(*_: Any, **__: Any) -> bool:
        raise DeathError

    def after(*args: Any, **kwargs: Any) -> bool:
        assert real(*args, **kwargs)
        raise DeathError

    for view, dying in (("by_key", before), ("per_kind", before), ("both", after)):
        with monkeypatch.context() as patch:
            patch.setattr(delta_rs_writer, "add_files", dying)
            with pytest.raises(DeathError):
                build(p, view)
        assert files(p, view)
        assert bool(live(p, view)) == (dying is after)
        seen = live(p, view)
        assert "kernel" in build(p, view)[view]
        assert stored(p, view) == stored(plain, view)
        assert dying is before or live(p, view) == seen == files(p, view)

    def raising() -> None:
        raise RuntimeError("this task dies")

    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for view, death in (("by_marks", raising), ("per_item", killed)):
        with in_tasks(after=death), pytest.raises(HindcastError, match="Spark failed"):
            build(p, view)
        assert files(p, view)
        assert not live(p, view)
        assert "kernel" in build(p, view)[view]
        assert stored(p, view) == stored(plain, view)
        assert files(p, view) > live(p, view)
        with p.here():
            maintenance._vacuum_table(p.spark, p.table(view), timedelta(0))  # type: ignore[arg-type]
        assert files(p, view) == live(p, view)
        assert stored(p, view) == stored(plain, view)


@contextmanager
def in_tasks(before: Callable[[], None] | None = None, after: Callable[[], None] | None = None) -> Iterator[None]:
    """Has tasks of kernels call something, in their process, before and after they write."""
    real = {name: getattr(task, name) for name in ("build_batch_mapper", "build_aggregator")}

    def disturb(name: str, *arguments: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        mapped = real[name](*arguments)

        def disturbed(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            if before is not None:
                before()
            told = list(mapped(given))
            if after is not None:
                after()
            yield from told

        return disturbed

    with pytest.MonkeyPatch.context() as patch:
        for name in real:
            patch.setattr(task, name, partial(disturb, name))
        yield


@pytest.mark.long
def test_what_a_kernel_refuses_and_what_is_off_is_made_by_sparks_plan(
    replayed: Pipeline, plain: Pipeline, tmp_path: Path
) -> None:
    p = twin(replayed, tmp_path)

    def few() -> None:
        from hindcast.engine import slice_reader

        slice_reader.MAX_ROWS = 20

    def many() -> None:
        from hindcast.engine import slice_reader

        slice_reader.MAX_ROWS = 20_000_000

    with in_tasks(before=few, after=many):
        refused = build(p, "by_marks", "per_kind")
    assert not any("kernel" in it for it in refused.values())
    for view in refused:
        assert stored(p, view) == stored(plain, view)
    assert live(p, "by_marks") < files(p, "by_marks"), "a part of it was written"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "build_batch_mapper", None)
        assert "kernel" not in build(p, "both", on=False)["both"]
        patch.setattr(eligibility, "MIN_ROWS", 10**9)
        with p.here():
            assert p.spark is not None
            assert not run_steps.build_view(p.spark, read_settings(), p.name, 1, "by_kind").kernel
    assert stored(p, "both") == stored(plain, "both")


CHILD = """
import os, signal, sys
from functools import partial
from hindcast.engine import eligibility, task, time_slices
from hindcast.runs import run_steps
from hindcast.store import delta_rs_writer
from hindcast.common.session import open_session
from hindcast.common.settings import read_settings

dying, number, view, flag = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
eligibility.MIN_ROWS, time_slices.ROWS_PER_TASK, time_slices.RECORDS_PER_TASK = 0, 15, 15
real = delta_rs_writer.add_files
mappers = {name: getattr(task, name) for name in ("build_batch_mapper", "build_aggregator")}

def add(*args, **kwargs):
    if dying == "before":
        os.killpg(0, signal.SIGKILL)
    assert real(*args, **kwargs)
    os.killpg(0, signal.SIGKILL)

def once(name, *arguments):
    mapped = mappers[name](*arguments)

    def disturbed(given):
        told = list(mapped(given))
        import os, signal
        if not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from told

    return disturbed

delta_rs_writer.add_files = add
for name in mappers:
    setattr(task, name, partial(once, name))
spark = open_session("dies", {"spark.master": "local[2,3]", "spark.driver.memory": "1g"}, small=True)
run_steps.build_view(spark, read_settings(), "shop", number, view)
"""


@pytest.mark.long
def test_processes_that_are_killed_and_tasks_that_are_tried_again(
    replayed: Pipeline, plain: Pipeline, tmp_path: Path
) -> None:
    """A task is killed after it has written, and is tried again; then the process, before or after its commit."""
    p = twin(replayed, tmp_path)
    environ = {
        **os.environ,
        **p.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "NUMBA_CACHE_DIR": str(tmp_path / "x"),
    }
    environ.pop("SPARK_REMOTE", None)
    for view, dying in (("by_key_left", "before"), ("per_kind", "after")):
        flag = tmp_path / f"{view}.flag"
        command = [sys.executable, "-c", CHILD, dying, "1", view, str(flag)]
        child = subprocess.run(
            command, env=environ, start_new_session=True, capture_output=True, text=True, check=False
        )
        assert child.returncode == -signal.SIGKILL, child.stderr
        assert flag.exists()
        assert bool(live(p, view)) == (dying == "after")
        assert "kernel" in build(p, view)[view]
        assert stored(p, view) == stored(plain, view)
        assert files(p, view) > live(p, view), "the first try's are nobody's"
    assert list((tmp_path / "x").rglob("*.nbc")), "machine code was made anew"
