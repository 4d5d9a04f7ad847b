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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from hindcast import changes, direct, read, runs, session, tables
from hindcast.errors import ContractError, GateError, HindcastError
from hindcast.kernels import chosen, cuts, task
from hindcast.kernels.form import Form, Span
from hindcast.questions import Question
from hindcast.upkeep import maintenance
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
    p, real = twin(replayed, tmp_path), direct.add

    def before(*_: Any, **__: Any) -> bool:
        raise DeathError

    def after(*args: Any, **kwargs: Any) -> bool:
        assert real(*args, **kwargs)
        raise DeathError

    for view, dying in (("by_key", before), ("per_kind", before), ("both", after)):
        with monkeypatch.context() as patch:
            patch.setattr(direct, "add", dying)
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


@pytest.mark.long
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


@pytest.mark.long
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


CHILD = """
import os, signal, sys
from hindcast import direct, runs
from hindcast.kernels import chosen, cuts, task
from hindcast.session import session

dying, number, view, flag = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
chosen.FEWEST, cuts.ROWS, real, batches = 0, 15, direct.add, task.batches

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

direct.add, task.batches = add, once
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
