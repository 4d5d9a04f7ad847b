"""Kernels: tables that they make are those of Spark's plan, row for row, whatever happens on the way."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from hindcast import changes, commits, read, runs, session, tables
from hindcast.compiled import NOTHING
from hindcast.errors import ContractError, GateError, HindcastError, RunError
from hindcast.kernels import chosen, cuts, numbers, sweeps, task, writing
from hindcast.kernels.form import Form, Side, Span
from hindcast.kernels.sweeps import FOREVER
from hindcast.kernels.writing import Written
from hindcast.questions import Question
from hindcast.tables import Table
from hindcast.upkeep import maintenance
from pipelines import T0, Pipeline, pipeline, wrong

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
  nothing:
    read: table
    key: {kind: string}
    value: {x: int}
  sales:
    read: stream
    key: {shop: string, item: int}
    value: {flag: boolean, day: date, at: timestamp, big: bigint, kind: string, note: string, price: "decimal(8,2)"}
views:
  by_key:
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
    select: {label: label, share: share}
  both:
    table: items
    join: {table: stock}
    select: {price: price, left: left, kind: stock.kind}
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
  on_top:
    table: both
    group_by: {kind: kind}
    aggregate: {left: sum(left), many: count(*)}
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
"""
OPERATORS = {
    **dict.fromkeys(("by_key", "by_key_left", "by_marks", "by_kind", "with_nothing", "keyed"), "stream_table"),
    "both": "table_table",
    **dict.fromkeys(("per_item", "per_kind", "per_moment", "on_top", "of_nothing"), "of_table"),
}
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
            "sales": {**marks(), "note": dice.choice(NOTES), "price": price},
        }
        if topic == "marks":
            key = json.dumps(marks())
        if topic == "kinds":
            key = dice.choice(KINDS[:3])
        gone = topic != "sales" and dice.random() < 0.1
        return key, None if gone else values[topic], dice.randrange(rows)

    every = {topic: [one(topic) for _ in range(rows)] for topic in ("items", "stock", "marks", "kinds", "sales")}
    every["sales"].append((None, {"kind": "a"}, 3))
    return every


@pytest.fixture(scope="module")
def replayed(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """The topics of a first run are there, no view is. To be copied, not to be run."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("replayed"), CONTRACT) as p:
        for topic, records in told(random.Random(11), 60).items():  # noqa: S311
            p.send(topic, *records)
        begin(p, "first")
        yield p


def begin(p: Pipeline, run_id: str) -> int:
    """Plans a run and replays its topics; its number."""
    assert p.spark is not None
    with p.here():
        number = runs.plan(p.name, run_id)
        for topic in p.contract.topics:
            runs.replay(p.spark, p.name, number, topic)
    return number


def twin(p: Pipeline, folder: Path) -> Pipeline:
    """The same pipeline, with all its tables, in another folder."""
    for name in ("schemas", "warehouse"):
        shutil.copytree(p.folder / name, folder / name)
    made = copy.copy(p)
    made.folder = folder
    return made


@contextmanager
def kernels(*, on: bool = True) -> Iterator[None]:
    """Kernels make all views that they can, in small slices of time; or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HINDCAST_KERNELS", "on" if on else "off")
        patch.setattr(chosen, "FEWEST", 0)
        patch.setattr(cuts, "ROWS", 15)
        patch.setattr(session, "cores", lambda _: 3)
        yield


def build(p: Pipeline, *views: str, run: int = 1, on: bool = True) -> dict[str, dict[str, Any]]:
    """What the commits of some views note, or of all."""
    assert p.spark is not None
    with p.here(), kernels(on=on):
        return {view: runs.build(p.spark, p.name, run, view) for view in views or p.contract.ordered}


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
        runs.finish(p.name, 1)
    return p


def stored(p: Pipeline, name: str) -> list[str]:
    """All rows of a table with all their columns, as Spark and as Arrow read them."""
    assert p.spark is not None
    found = tables.load(p.spark, p.table(name)).toArrow()
    own = p.raw(name)
    read_by_both = [column for column in found.column_names if not own or column in own[0]]
    assert sorted(map(repr, found.select(read_by_both).to_pylist())) == sorted(
        repr({column: row[column] for column in read_by_both}) for row in own
    )
    return sorted(map(repr, found.to_pylist()))


def note(p: Pipeline, name: str, run: int = 1) -> dict[str, Any]:
    return tables.notes(p.table(name)).get(run, {})


def files(p: Pipeline, name: str) -> set[str]:
    """The files of data in a table's folder, whoever has them."""
    folder = Path(p.table(name).path)
    return {str(path.relative_to(folder)) for path in folder.glob("_belief=*/*.parquet")}


def live(p: Pipeline, name: str) -> set[str]:
    """Those that a reader sees."""
    return {*pa.table(DeltaTable(p.table(name).path).get_add_actions(flatten=True)).column("path").to_pylist()}


@pytest.mark.slow
def test_tables_made_by_kernels_are_those_of_sparks_plan(made: Pipeline, plain: Pipeline) -> None:
    for name in made.contract.ordered:
        expected = {} if name in EMPTY else {"kernel": OPERATORS[name]}
        own, other = note(made, name), note(plain, name)
        assert {k: v for k, v in own.items() if k not in other} == expected, name
        assert {k: own[k] for k in other} == other, name
        rows = stored(made, name)
        assert rows == stored(plain, name), name
        assert bool(rows) != (name in EMPTY), name
    assert all(note(made, name)["leftOut"]["no_key"] for name in ("per_kind", "per_item"))
    assert len(live(made, "by_key_left")) > 2, "several tasks have made it"
    with made.here():
        assert wrong(made) == []


@pytest.mark.long
def test_later_runs_on_what_kernels_made_end_as_without_them(
    made: Pipeline, plain: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By increments: late records, tombstones, new keys; MERGE closes rows of the kernels' files."""
    one, other = twin(made, tmp_path / "one"), twin(plain, tmp_path / "other")
    for topic, records in told(random.Random(12), 25).items():  # noqa: S311
        one.send(topic, *(it for it in records if it[0] != NO_KEY))  # which increments pass over
    one.send("nothing", ("a", {"x": 1}, 5), ("b", {"x": 2}, 7))
    monkeypatch.setattr(changes, "WHOLE", 0)
    monkeypatch.setattr(tables, "LARGE", 0)
    for p, on in ((one, True), (other, False)):
        with p.here(), kernels(on=on):
            p.run("second")
    for name in one.contract.ordered:
        assert one.history(name) == other.history(name), name
        assert any(row[-1] for row in one.history(name)) != (name in EMPTY), name
        assert "kernel" not in note(one, name, 2), "it is no first run"
    with one.here():
        assert wrong(one) == []


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_step_that_dies_is_done_once_by_a_repeat(
    replayed: Pipeline, plain: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, real = twin(replayed, tmp_path), commits.add

    def before(*_: Any, **__: Any) -> bool:
        raise DeathError

    def after(*args: Any, **kwargs: Any) -> bool:
        assert real(*args, **kwargs)
        raise DeathError

    for view, dying in (("by_key", before), ("per_kind", before), ("both", after)):
        with monkeypatch.context() as patch:
            patch.setattr(commits, "add", dying)
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

    for view, death in (("by_kind", raising), ("per_item", killed)):
        with in_tasks(after=death), pytest.raises(HindcastError, match="Spark failed"):
            build(p, view)
        assert files(p, view)
        assert not live(p, view)
        assert "kernel" in build(p, view)[view]
        assert stored(p, view) == stored(plain, view)
        assert files(p, view) > live(p, view)
        with p.here():
            maintenance._vacuumed(p.spark, p.table(view), timedelta(0))  # type: ignore[arg-type]
        assert files(p, view) == live(p, view)
        assert stored(p, view) == stored(plain, view)


@contextmanager
def in_tasks(before: Callable[[], None] | None = None, after: Callable[[], None] | None = None) -> Iterator[None]:
    """Has tasks of kernels call something, in their process, before and after they write."""
    real = task.batches

    def batches(form: Form, parts: list[Span]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        mapped = real(form, parts)

        def disturbed(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            if before is not None:
                before()
            told = list(mapped(given))
            if after is not None:
                after()
            yield from told

        return disturbed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "batches", batches)
        yield


@pytest.mark.slow
def test_what_a_kernel_refuses_and_what_is_off_is_made_by_sparks_plan(
    replayed: Pipeline, plain: Pipeline, tmp_path: Path
) -> None:
    p = twin(replayed, tmp_path)

    def few() -> None:
        from hindcast.kernels import reading

        reading.MOST = 20

    def many() -> None:
        from hindcast.kernels import reading

        reading.MOST = 20_000_000

    with in_tasks(before=few, after=many):
        refused = build(p, "by_marks", "per_kind")
    assert not any("kernel" in it for it in refused.values())
    for view in refused:
        assert stored(p, view) == stored(plain, view)
    assert live(p, "by_marks") < files(p, "by_marks"), "a part of it was written"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "batches", None)
        assert "kernel" not in build(p, "both", on=False)["both"]
        patch.setattr(chosen, "FEWEST", 10**9)
        with p.here():
            assert p.spark is not None
            assert "kernel" not in runs.build(p.spark, p.name, 1, "by_kind")
    assert stored(p, "both") == stored(plain, "both")


GATED = """
pipeline: inn
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, n: int}
  huge:
    read: table
    key: {id: string}
    value: {amount: bigint, to: string}
views:
  held:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, price: price}
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 20}
        on_failure: quarantine
  held_sums:
    table: menu
    aggregate: {sum: sum(price)}
    expect:
      - expect_column_values_to_be_between: {column: sum, max_value: 20}
        on_failure: quarantine
  warned:
    stream: orders
    join: {table: menu, on: item, how: left}
    select: {item: orders.item, price: price}
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 20}
        on_failure: warn
  below:
    stream: held
    join: {table: menu, on: item}
    select: {cost: menu.price}
  stopped:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, price: price}
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 20}
  over:
    table: huge
    group_by: {to: to}
    aggregate: {sum: sum(amount)}
"""


PASSING = ("held", "held_sums", "warned", "below")


@contextmanager
def gated(spark: SparkSession, broker: str, folder: Path) -> Iterator[tuple[Pipeline, Pipeline]]:
    """What gates pass, made by kernels and not; cake is too dear, and of huge there is too much."""
    with pipeline(spark, broker, folder / "first", GATED) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("cake", {"price": 30}, 0), ("tea", {}, 1))
        p.send("orders", *((name, {"item": item, "n": 1}, 5) for name, item in (("ann", "curry"), ("bob", "cake"))))
        p.send("orders", ("bob", {"item": "curry", "n": 1}, 6), ("cy", {"item": "rice", "n": 1}, 6))
        p.send("huge", *((name, {"amount": 2**62, "to": to}, 0) for name, to in (("a", "x"), ("b", "x"), ("c", "y"))))
        begin(p, "first")
        one, other = twin(p, folder / "a {b} *"), twin(p, folder / "other")
        made, without = build(one, *PASSING), build(other, *PASSING, on=False)
        assert [it.get("kernel") for it in made.values()] == ["stream_table", "of_table", *["stream_table"] * 2]
        for view in PASSING:
            assert {k: v for k, v in made[view].items() if k != "kernel"} == without[view], view
            assert stored(one, view) == stored(other, view)
        assert made["held"]["opened"] == 1, "bob's two are held"
        assert made["held_sums"]["leftOut"] == {"no_key": 0, "no_value": 1, "too_late": 0}
        assert _entered(one) == _entered(other) != []
        yield one, other


@pytest.mark.slow
def test_what_gates_stop_and_sums_that_overflow_are_not_visible(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with gated(spark, broker, tmp_path) as (one, other):
        for it, view, error, told in (
            (one, "stopped", GateError, "1 gates stopped it"),
            (other, "over", ContractError, "overflow"),
        ):
            with pytest.raises(error, match=told):
                build(it, view)
            assert it.states()[-1][1] == "stopped"
            assert not live(it, view)
        assert files(one, "stopped")
        with one.here():
            maintenance._vacuumed(spark, one.table("stopped"), timedelta(0))
        assert not files(one, "stopped")


@pytest.mark.long
def test_what_was_stopped_or_held_is_published_when_it_is_mended(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with gated(spark, broker, tmp_path) as (one, other):
        for it, on in ((one, True), (other, False)):
            with pytest.raises(ContractError, match="overflow"):
                build(it, "over", on=on)
            with it.here(), kernels(on=on), pytest.raises(GateError, match="1 gates stopped it"):
                it.run("second")
        assert not live(one, "stopped")
        one.send("menu", ("cake", {"price": 9}, 0))
        one.send("huge", ("b", None, 0))
        for it, on in ((one, True), (other, False)):
            with it.here(), kernels(on=on):
                it.run("third")
        assert note(one, "stopped", 3)["kernel"] == "stream_table"
        assert note(one, "over", 3)["kernel"] == "of_table"
        for view in one.contract.ordered:
            assert one.believed(view) == other.believed(view) != [], view
        assert _entered(one) == _entered(other)
        with one.here():
            assert wrong(one) == []


def _entered(p: Pipeline) -> list[Any]:
    """What gates have entered, without the clock's moments."""
    return sorted(str({k: v for k, v in row.items() if k != "at"}) for row in p.raw("failing"))


EVOLVING = """
pipeline: inn
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int, share: smallint, d: "decimal(8,2)", gone: string, kind: string}
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, n: int}
views:
  empty:
    stream: orders
    join: {table: menu, on: customer}
    select: {price: price, d: d}
"""
EVOLVED = (
    EVOLVING.replace("price: int, share: smallint", "price: bigint, share: int")
    .replace("decimal(8,2)", "decimal(12,2)")
    .replace("gone: string", "more: string")
    .replace("n: int", "n: bigint, code: string")
)
ANEW = """\
  priced:
    stream: orders
    join: {table: menu, on: item, how: left}
    key: {code: code, n: n}
    select: {item: orders.item, price: price, d: d, more: more}
  per_more:
    table: menu
    group_by: {more: more, kind: kind}
    aggregate: {many: count(*), prices: sum(price), shares: avg(share), d: sum(d)}
  per_dish:
    table: menu
    aggregate: {prices: sum(price)}
"""
READER = """
pipeline: reader
start: 2026-01-01
topics:
  tips:
    read: stream
    key: {customer: string}
    value: {item: string, percent: int}
inputs:
  dishes: {table: inn.menu, key: {item: string}, value: {price: bigint, kind: string}}
  eaten: {table: inn.orders, read: stream, key: {customer: string}, value: {item: string, n: bigint}}
views:
  tipped:
    stream: tips
    join: {table: dishes, on: item}
    select: {price: price, percent: percent}
  eaten_for:
    stream: eaten
    join: {table: dishes, on: item, how: left}
    select: {price: price, n: n}
  per_kind:
    table: dishes
    group_by: {kind: kind}
    aggregate: {prices: sum(price), many: count(*)}
"""


@pytest.mark.slow
def test_inputs_that_have_changed_and_those_of_another_pipeline(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns added, widened and dropped, rows that deletion vectors mark, superseded rows; inputs at a known-at."""
    monkeypatch.setattr(tables, "LARGE", 0)
    begun = tmp_path / "begun"
    with pipeline(spark, broker, begun, EVOLVING) as p, pipeline(spark, broker, begun, READER) as reader:
        dishes = ("curry", "soup", "tea", "cake")
        values = {"price": 8, "share": 3, "d": 1.5, "gone": "old", "kind": "warm"}
        p.send("menu", *((dish, values | {"price": n}, n) for n, dish in enumerate(dishes)))
        p.send("orders", *((f"c{n}", {"item": dish, "n": n}, n) for n, dish in enumerate((*dishes, "rice"))))
        with p.here():
            p.run("first")
        assert not live(p, "empty")
        p.write(EVOLVED)
        values = {"price": 2**40, "share": 70_000, "d": 12345678.25, "more": "new", "kind": "cold"}
        p.send("menu", ("curry", values, 1), ("soup", None, 7), ("cake", values | {"more": None}, 9))
        p.send("orders", *((f"d{n}", {"item": dish, "n": 2**40, "code": "x"}, 8) for n, dish in enumerate(dishes)))
        with p.here():
            p.run("second")
        found = DeltaTable(p.table("menu").path)
        assert {"deletionVectors", "typeWidening"} <= {*found.protocol().reader_features}
        assert any(row["systemTo"] is not None for row in p.raw("menu"))
        reader.send("tips", ("ann", {"item": "curry", "percent": 10}, 5), ("bob", {"item": "soup", "percent": 5}, 8))
        begin(reader, "first")
        p.write(EVOLVED + ANEW)
        p.send("menu", ("curry", values | {"price": 77, "kind": None}, 3))  # the reader is not to see it
        p.send("orders", ("curry", {"item": "tea", "n": 2**41, "code": "y"}, 6))  # fills what was empty and has grown
        begin(p, "third")
        one, other = twin(p, tmp_path / "one"), twin(p, tmp_path / "other")
        built, without = build(one, run=3), build(other, run=3, on=False)
        assert {view: it.get("kernel") for view, it in built.items()} == {
            "empty": None,
            "priced": "stream_table",  # delta-rs writes no table that has type widening
            **dict.fromkeys(("per_more", "per_dish"), "of_table"),
        }
        for view in one.contract.ordered:
            assert {k: v for k, v in built[view].items() if k != "kernel"} == without[view], view
            assert stored(one, view) == stored(other, view) != [], view
        with one.here():
            runs.finish(one.name, 3)
            assert wrong(one) == []
        pinned, apart = copy.copy(reader), copy.copy(reader)
        pinned.folder, apart.folder = one.folder, other.folder
        built, without = build(pinned), build(apart, on=False)
        assert [it.get("kernel") for it in built.values()] == ["stream_table", "stream_table", "of_table"]
        for view in reader.contract.ordered:
            assert {k: v for k, v in built[view].items() if k != "kernel"} == without[view], view
            assert stored(pinned, view) == stored(apart, view) != [], view
        assert "'price': 77," in str(stored(one, "menu"))
        assert "'price': 77," not in str(stored(pinned, "tipped"))


def _table(folder: Path) -> Table:
    """A table of a view, empty."""
    table = Table(str(folder), "shop", "made", "versions", ("k",))
    moments = [StructField(name, TimestampType()) for name in ("validFrom", "validTo", "systemFrom", "systemTo")]
    tables.ensure(table, StructType([StructField("k", StringType()), *moments, StructField("_belief", StringType())]))
    return table


FILE = Written("_belief=open/none.parquet", "open", 1, 1, json.dumps({"numRecords": 1}))


def _named(number: int) -> Written:
    return replace(FILE, path=f"_belief=open/{number}.parquet")


def test_of_those_that_commit_at_once_one_does(tmp_path: Path) -> None:
    table = _table(tmp_path)
    assert commits.add([_named(1)], table, 3, {"run": 3}, after=0)
    assert not commits.add([_named(2)], table, 3, {"run": 3}, after=0)
    with pytest.raises(RunError, match="run 3 has written to the table since run 4 read it"):
        commits.add([_named(4)], table, 4, {"run": 4}, after=0)
    together = Barrier(4)

    def add(number: int) -> bool:
        together.wait()
        return commits.add([_named(number)], table, 5, {"run": 5}, after=3)

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(add, range(50, 54))) == [False, False, False, True]
    assert tables.size(table) == 2
    assert tables.published(table) == 5


def test_a_commit_between_asking_and_committing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the version was read: another property is passed over, another run is not."""
    table, others = _table(tmp_path), []
    now = commits._now

    def meanwhile() -> int:
        if others:
            others.pop()()
        return now()

    def property_() -> None:
        DeltaTable(table.path).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})

    monkeypatch.setattr(commits, "_now", meanwhile)
    others.append(property_)
    assert commits.add([_named(1)], table, 1, {"run": 1}, after=0)
    others.append(lambda: commits.add([_named(2)], table, 2, {"run": 2}, after=1))
    with pytest.raises(RunError, match="run 2 has written to the table since run 3 read it"):
        commits.add([_named(3)], table, 3, {"run": 3}, after=1)
    others.append(lambda: commits.add([_named(4)], table, 4, {"run": 4}, after=2))
    assert not commits.add([_named(40)], table, 4, {"run": 4}, after=2)
    assert tables.size(table) == 3
    assert sorted(tables.notes(table)) == [1, 2, 4]


HOUR = timedelta(hours=1)


def test_slices_tile_time_and_have_about_as_many_rows() -> None:
    dice = random.Random(5)  # noqa: S311
    for _ in range(200):
        starts = [T0 + dice.randrange(500) * HOUR for _ in range(dice.randrange(1, 9))]
        some = [(low, low + dice.choice((0, 1, 90)) * HOUR, dice.choice((0, 1, 1000))) for low in starts]
        wanted = dice.randrange(1, 7)
        spans = cuts.spans(some, wanted)
        assert 1 <= len(spans) <= wanted
        assert spans[0].start is None
        assert spans[-1].end is None
        assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
        inner = [span.start for span in spans[1:]]
        assert inner == sorted(set(inner))
    even = cuts.spans([(T0, T0 + 100 * HOUR, 1000), (T0 + 100 * HOUR, T0 + 200 * HOUR, 1000)], 4)
    assert [(span.start - T0) / HOUR for span in even[1:] if span.start] == pytest.approx([50, 100, 150], abs=5)
    assert cuts.spans([(T0, T0, 10**7)], 4) == [Span()], "one moment is not cut"


def test_files_without_times_in_deltas_log_are_not_cut(tmp_path: Path) -> None:
    table = _table(tmp_path)
    side = Side(table.path, 0, "versions", ("k",), (), None)
    form = Form("table_table", (side, side), False, True, {}, {}, pa.schema([]), "", "versions", T0)
    assert cuts.parts(form, [DeltaTable(table.path)] * 2, 4) == [Span()], "no file is no work"
    told = {
        "minValues": {"validFrom": "2026-01-01T00:00:00.000Z"},
        "maxValues": {"validFrom": "2026-01-02T00:00:00.000Z"},
    }
    bounded = replace(FILE, statistics=json.dumps({"numRecords": 10**6, **told}))
    commits.add([bounded], table, 1, {}, after=0)
    whole = cuts.parts(form, [DeltaTable(table.path)] * 2, 4)
    assert whole is not None
    assert len(whole) == 4
    commits.add([replace(_named(2), belief="superseded")], table, 2, {}, after=1)
    assert cuts.parts(form, [DeltaTable(table.path)] * 2, 4) == whole, "nobody believes those rows"
    commits.add([_named(3)], table, 3, {}, after=2)
    assert cuts.parts(form, [DeltaTable(table.path)] * 2, 4) is None
    beyond = {**told, "maxValues": {"validFrom": "+10000-01-01T00:00:00.000Z"}}
    (tmp_path / "far").mkdir()
    far = _table(tmp_path / "far")
    commits.add([replace(FILE, statistics=json.dumps({"numRecords": 9, **beyond}))], far, 1, {}, after=0)
    assert cuts.parts(form, [DeltaTable(far.path)] * 2, 4) is None, "Python has no such year"


def test_keys_are_equal_numbers_where_they_are_equal() -> None:
    kinds = pa.schema([("a", pa.string()), ("b", pa.int32())])
    one = pa.table({"a": ["x", "x", None, None, "y"], "b": [1, None, 1, None, 2]}, kinds)
    packed = pa.chunked_array([pa.array(["q", "y"]).dictionary_encode(), pa.array(["x", None]).dictionary_encode()])
    other = pa.table({"a": packed, "b": pa.chunked_array([[2, 2, 1, None]], pa.int32())})
    key = ("a", "b")
    (left, right), count = numbers.keys([one.cast(kinds), other.cast(kinds)], [key, key], whole=False)
    assert left[3] == right[3] == NOTHING, "nothing of it is there"
    assert left[4] == right[1]
    assert left[0] == right[2]
    assert len({*left, *right}) == 6
    assert count > max(*left, *right)
    (left, right), _ = numbers.keys([one, other.cast(kinds)], [key, key], whole=True)
    assert [n == NOTHING for n in left] == [False, True, True, True, False]
    assert [n == NOTHING for n in right] == [False, False, False, True]
    (left, right), _ = numbers.keys([one, other.cast(kinds)], [key, key], whole=None)
    assert left[3] == right[3] not in {*left[:3], left[4], NOTHING}, "nothing is a value"
    none = kinds.empty_table()
    (left, right), count = numbers.keys([none, pa.Table.from_batches([], kinds)], [key, key], whole=True)
    assert len(left) == len(right) == 0


def test_keys_of_many_columns_are_numbers_that_fit() -> None:
    dice = np.random.default_rng(3)
    rows = pa.table({f"c{n}": dice.integers(0, 900, 1000) for n in range(9)})
    (found,), count = numbers.keys([rows], [tuple(rows.column_names)], whole=False)
    same = {}
    for number, row in zip(
        found.tolist(), zip(*(rows.column(n).to_pylist() for n in range(9)), strict=True), strict=True
    ):
        assert same.setdefault(number, row) == row
    assert len(same) == len({*same.values()}) <= count


def test_the_first_of_each_number_passes_over_nothing() -> None:
    assert numbers.first_of(np.array([NOTHING, 2, 0, 2, NOTHING, 0]), 3).tolist() == [2, NOTHING, 1]
    assert numbers.first_of(np.array([], np.int64), 2).tolist() == [NOTHING, NOTHING]


MOST, LEAST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [MOST, LEAST, -1, 0, 1, 2**32, -(2**32), 2**32 - 1]),
        (pa.int64(), [MOST, MOST, LEAST, LEAST, 1]),
        (pa.int16(), [-32768, 32767, None]),
        (
            pa.decimal128(18, 4),
            [Decimal("-99999999999999.9999"), Decimal("99999999999999.9999"), Decimal("-0.0001"), None],
        ),
        (pa.decimal128(18, 4), [Decimal("-99999999999999.9999")] * 50),
    ],
)
def test_halves_add_up_exactly(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.chunked_array([pa.array([None, *values], kind).slice(1)])  # which does not begin where its buffers do
    high, low = numbers.halves(column)
    whole, none = pa.decimal128(28, 4) if pa.types.is_decimal(kind) else pa.int64(), np.array([False, True])
    total = sum(value for value in values if value is not None)
    made = numbers.sums(np.array([high.sum(), 0]), np.array([low.sum(), 0]), whole, none)
    assert made.to_pylist() == [total, None]
    each = numbers.sums(high, low, whole, np.zeros(len(values), bool))
    assert each.to_pylist() == [value or 0 for value in values]


@pytest.mark.parametrize("values", [[MOST, 1], [LEAST, -1], [MOST] * 5, [LEAST] * 4])
def test_a_sum_that_is_no_bigint_is_told(values: list[int]) -> None:
    high, low = numbers.halves(pa.chunked_array([pa.array(values)]))
    with pytest.raises(OverflowError):
        numbers.sums(np.array([high.sum()]), np.array([low.sum()]), pa.int64(), np.array([False]))


def test_texts_that_are_too_long_for_one_array_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.2 GB as Arrow counts them, in one piece of memory."""
    column = pa.chunked_array([pa.array(["x" * 1000] * 50_000)] * 44)
    moments = pa.array(np.arange(len(column))).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"k": pa.nulls(len(column), pa.int32()), "s": column, "timestamp": moments})
    versions = pa.table({"k": rows.column("k"), "s": column, "validFrom": moments, "validTo": moments})
    from hindcast.kernels import reading

    monkeypatch.setattr(reading, "rows", lambda side, _: rows if side.kind == "events" else versions)
    sides = tuple(Side("", 0, kind, ("k",), ("s",), None) for kind in ("events", "versions"))
    form = Form("stream_table", sides, True, False, {"s": (1, "s")}, {}, pa.schema([]), "", "events", T0)  # type: ignore[arg-type]
    (batch,) = task.part(form, [Span()], 0)
    assert "offset overflow" in batch.to_pylist()[0]["refused"]


def _swept(*numbers_: Sequence[int | None]) -> list[np.ndarray[Any, Any]]:
    return [np.array([FOREVER if n is None else n for n in some], np.int64) for some in numbers_]


def test_an_event_meets_the_version_that_is_valid_at_its_moment() -> None:
    on, at_, key, start, end = _swept(
        [0, 0, 0, 1, NOTHING, 0], [1, 3, 4, 4, 4, 9], [0, NOTHING, 0], [2, 2, 4], [4, None, 8]
    )
    assert sweeps.valid(on, at_, key, start, end, 2).tolist() == [NOTHING, 0, 2, NOTHING, NOTHING, NOTHING]


def test_versions_that_overlap_meet_from_the_later_start_on() -> None:
    left, right = (
        ([0, 1, NOTHING], [0, 5, 5], [8, None, None]),
        ([0, 0, 1, 0, NOTHING], [2, 4, 5, 6, 6], [4, 5, 6, None, None]),
    )
    for since, expected in ((-FOREVER, [(0, 0), (0, 1), (1, 2), (0, 3)]), (4, [(0, 1), (1, 2), (0, 3)]), (6, [(0, 3)])):
        met = sweeps.overlaps(*_swept(*left), *_swept(*right), since, 2)
        assert list(zip(*(some.tolist() for some in met), strict=True)) == expected


def test_steps_add_up_what_is_there() -> None:
    key, start, end = _swept([0, 0, 1, 0], [0, 4, 4, 8], [8, 8, 4 + 1, None])
    by_end = np.array([2, 0, 1])
    counted, high, low = np.array([[1, 0, 1, 1]]), np.array([[1, 2, 3, 4]]), np.array([[10, 20, 30, 40]])
    of, since, until, counts, highs, lows = sweeps.steps(key, start, end, by_end, counted, high, low, 2)
    steps = zip(
        of.tolist(),
        since.tolist(),
        until.tolist(),
        counts[0].tolist(),
        highs[0].tolist(),
        lows[0].tolist(),
        strict=True,
    )
    assert sorted(steps) == [(0, 0, 4, 1, 1, 10), (0, 4, 8, 1, 3, 30), (0, 8, FOREVER, 1, 4, 40), (1, 4, 5, 1, 3, 30)]


def test_what_the_log_is_told_of_a_file() -> None:
    far = pa.array([T0, None], pa.timestamp("us", "UTC"))
    beyond = pa.array([2**62, None], pa.int64()).cast(far.type)
    columns = {
        "at": pa.array([T0 + timedelta(microseconds=1999), None], far.type),
        "before": pa.array([datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), T0]),
        "beyond": beyond,
        "money": pa.array([Decimal("-1.50"), Decimal("999999.99")], pa.decimal128(8, 2)),
        "exact": pa.array([Decimal("1" * 30), None], pa.decimal128(38, 2)),
        "nan": pa.array([1.0, float("nan")]),
        "long": pa.array(["x" * 5000, "y"]),
        "text": pa.array(["é", "\U0010ffff"]).dictionary_encode(),
        "none": pa.nulls(2, pa.string()),
        "left_out": pa.array([1, 2]),
    }
    rows, collected = pa.table(columns), []
    with pq.ParquetWriter(BytesIO(), rows.schema, metadata_collector=collected) as writer:
        writer.write_table(rows, row_group_size=1)
    told = json.loads(writing.statistics(collected[0], [*rows.column_names[:-1], "absent"]))
    assert told["numRecords"] == 2
    assert told["nullCount"] == {n: rows.column(n).null_count for n in rows.column_names[:-1]}
    bounds = {
        "at": ("2026-01-01T00:00:00.001Z",) * 2,
        "before": ("1969-12-31T23:59:59.999Z", "2026-01-01T00:00:00.000Z"),
        "money": (-1.5, 999999.99),
        "text": ("é", "\U0010ffff"),
    }
    assert {n: (told["minValues"][n], told["maxValues"][n]) for n in told["minValues"]} == bounds


def test_delta_reads_bounds_as_they_are(tmp_path: Path) -> None:
    texts = pa.table({"k": ["😀", 'a"b\\', "\U0010ffff" * 2]})
    collected: list[Any] = []
    with pq.ParquetWriter(BytesIO(), texts.schema, metadata_collector=collected) as writer:
        writer.write_table(texts)
    table = _table(tmp_path)
    commits.add([replace(FILE, statistics=writing.statistics(collected[0], ["k"]))], table, 1, {}, after=0)
    (told,) = pa.table(DeltaTable(table.path).get_add_actions(flatten=True)).to_pylist()
    assert (told["min.k"], told["max.k"], told["null_count.k"]) == ('a"b\\', "\U0010ffff" * 2, 0)


CHILD = """
import os, signal, sys
from hindcast import commits, runs
from hindcast.kernels import chosen, cuts, task
from hindcast.session import session

dying, number, view, flag = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
chosen.FEWEST, cuts.ROWS, real, batches = 0, 15, commits.add, task.batches

def add(*args, **kwargs):
    if dying == "before":
        os.killpg(0, signal.SIGKILL)
    assert real(*args, **kwargs)
    os.killpg(0, signal.SIGKILL)

def once(form, parts):
    mapped = batches(form, parts)

    def disturbed(given):
        told = list(mapped(given))
        import os, signal
        if not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from told

    return disturbed

commits.add, task.batches = add, once
spark = session("dies", {"spark.master": "local[2,3]", "spark.driver.memory": "1g"}, small=True)
runs.build(spark, "shop", number, view)
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
