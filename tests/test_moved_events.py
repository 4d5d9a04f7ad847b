"""Events and pairs whose key changes while it, or the one that they go to, is held back."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from hindcast.common.settings import read_settings
from hindcast.ops.verify import definition
from hindcast.ops.verify.verify import verify_tables
from hindcast.quality import entry_rows, held_changes
from hindcast.runs import incremental_state, special_runs
from pipelines import Pipeline, derive_whole_up_to, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("HINDCAST_SEED", "1"))

CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {dish: string, price: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string, n: int}}
views:
  bydish:
    stream: orders
    join: {table: menu, on: item}
    key: {dish: menu.dish}
    select: {n: n * price, customer: customer}
    expect:
      - expect_column_values_to_be_between: {column: n, max_value: 5}
        on_failure: quarantine
"""
ROWS = CONTRACT.replace("    expect:", "    hold: row\n    expect:")
PAIRS = """
pipeline: pairs
start: 2026-01-01
topics:
  l: {read: stream, key: {k: string}, value: {n: int, g: string}}
  r: {read: stream, key: {k: string}, value: {m: int, h: string}}
views:
  both:
    stream: l
    join: {stream: r, before: 5 seconds, after: 5 seconds, how: left}
    key: {x: "coalesce(h, g)"}
    select: {n: n, m: m}
    expect:
      - expect_column_values_to_be_between: {column: n, max_value: 5}
        on_failure: quarantine
"""


def serve(p: Pipeline, second: float, **dishes: str) -> None:
    """Give items another dish, at a price of 1."""
    p.send("menu", *((item, {"dish": dish, "price": 1}, second) for item, dish in dishes.items()))


def order(p: Pipeline, second: float, *orders: tuple[str, str, int]) -> None:
    p.send("orders", *((customer, {"item": item, "n": n}, second) for customer, item, n in orders))


def release(p: Pipeline, name: str, *keys: str, until: datetime | None = None) -> None:
    assert p.spark is not None
    with p.here():
        named = {name: held_changes.find_held_keys(p.warehouse, p.name, name, keys)}
        run_id = f"release-{len(p.states())}"
        special_runs.run_release(p.spark, read_settings(), p.name, run_id, named, "ann", until or datetime.now(UTC))


def shown(p: Pipeline, name: str = "bydish") -> set[tuple[Any, ...]]:
    """The current rows of a view, without their moment."""
    return {row[:-1] for row in p.believed(name)}


def held(p: Pipeline) -> set[tuple[str, str, str]]:
    """Key, change and row of what is held, as people are shown them."""
    rows = held_changes.read_held_rows(p.warehouse, p.name).to_pylist()
    return {(row["key"], row["change"], row["row"].partition(',"customer"')[0] + "}") for row in rows}


@pytest.mark.ci
@pytest.mark.long
def test_an_event_that_leaves_a_held_key_stays_until_the_key_is_released(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        serve(p, 0, i="A", j="A")
        order(p, 10, ("c", "i", 1))
        p.run()
        serve(p, 5, i="B")
        order(p, 11, ("d", "j", 9))
        p.run()
        assert shown(p) == {("A", 1, "c")}
        moved = {("close", '{"dish":"A","n":1}'), ("open", '{"dish":"B","n":1}'), ("open", '{"dish":"A","n":9}')}
        assert held(p) == {('{"dish":"A"}', *row) for row in moved}
        serve(p, 6, i="A")
        p.run()
        assert shown(p) == {("A", 1, "c")}
        serve(p, 7, i="C")
        p.run()
        assert shown(p) == {("A", 1, "c")}
        assert not wrong(p)
        release(p, "bydish", "A")
        assert shown(p) == {("C", 1, "c"), ("A", 9, "d")}
        assert not held(p)
        assert not wrong(p)


@pytest.mark.long
def test_verify_samples_no_half_of_the_events_that_are_held(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition, "SAMPLE_SIZE", 4)  # of eight rows: every second key
    names = spark.sql("SELECT id, pmod(xxhash64(string(id)), 2L) = 0 AS sampled FROM range(40)").collect()
    former = next(str(row["id"]) for row in names if not row["sampled"])
    later = [str(row["id"]) for row in names if row["sampled"]][:8]
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        serve(p, 0, **{f"i{n}": former for n in range(9)})
        order(p, 10, *((f"c{n}", f"i{n}", 1) for n in range(8)))
        p.run()
        serve(p, 5, **{f"i{n}": dish for n, dish in enumerate(later)})
        order(p, 11, ("d", "i8", 9))
        p.run()
        assert {key for key, _, _ in held(p)} == {json.dumps({"dish": former}, separators=(",", ":"))}
        report = verify_tables(p.contract, spark=lambda: spark)
        assert not report.findings
        assert not report.not_checked


@pytest.mark.long
def test_a_pair_is_not_published_beside_the_event_alone_while_that_is_held(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, PAIRS) as p:
        p.send("l", ("a", {"n": 1, "g": "G"}, 10))
        p.run()
        p.send("r", ("a", {"m": 1, "h": "H"}, 11))
        p.send("l", ("b", {"n": 9, "g": "G"}, 10))
        p.run()
        assert shown(p, "both") == {("G", 1, None)}
        assert not wrong(p)
        release(p, "both", "G")
        assert shown(p, "both") == {("H", 1, 1), ("G", 9, None)}
        # The other way round: the pair is held, and the event alone is of a key that is not.
        p.send("l", ("c", {"n": 1, "g": "G"}, 30), ("d", {"n": 9, "g": "H"}, 30))
        p.run()
        assert ("G", 1, None) in shown(p, "both")
        p.send("r", ("c", {"m": 2, "h": "H"}, 31))
        p.run()
        assert {row for row in shown(p, "both") if row[1] == 1} == {("H", 1, 1), ("G", 1, None)}
        assert not wrong(p)
        release(p, "both", "H")
        assert shown(p, "both") == {("H", 1, 1), ("G", 9, None), ("H", 9, None), ("H", 1, 2)}
        assert not wrong(p)


@pytest.mark.long
def test_a_pair_that_stays_held_leaves_the_event_alone_in_a_table_that_is_derived_whole(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    gate = "expect_column_values_to_be_between: {column: n, max_value: 5}"
    text = PAIRS.replace(gate, gate.replace("column: n", "column: m")).replace(
        "    expect:", "    hold: row\n    expect:"
    )
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("l", ("a", {"n": 1, "g": "G"}, 10))
        p.run()
        p.send("r", ("a", {"m": 9, "h": "H"}, 11))
        p.run()
        assert shown(p, "both") == {("G", 1, None)}
        p.send("l", ("b", {"n": 2, "g": "G"}, 20))
        p.run()
        assert shown(p, "both") == {("G", 1, None), ("G", 2, None)}
        assert not wrong(p)


@pytest.mark.long
@pytest.mark.parametrize("known", [True, False], ids=["a row that was published", "a new row"])
def test_a_release_of_a_row_publishes_nothing_that_it_became_under_another_key(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, ROWS) as p:
        p.send("menu", ("i", {"dish": "A", "price": 1}, 0))
        order(p, 11, *([("d", "i", 4)] if known else []))
        p.run()
        before = shown(p)
        p.send("menu", ("i", {"dish": "B", "price": 2}, 5))
        order(p, 11, *([] if known else [("d", "i", 4)]))
        p.run()
        looked_at = datetime.now(UTC)
        stale = held_changes.find_held_keys(p.warehouse, p.name, "bydish", ["B"])
        p.send("menu", ("i", {"dish": "C", "price": 3}, 6))
        p.run()
        assert '{"dish":"B"}' not in held_changes.find_held_keys(p.warehouse, p.name, "bydish", [])
        special_runs.run_release(spark, p.settings, p.name, "stale", {"bydish": stale}, "ann", looked_at)
        assert shown(p) == before
        release(p, "bydish", "C")
        assert shown(p) == {("C", 12, "d")}
        assert not held(p)


class Story(NamedTuple):
    """What a run brings: dishes of items, and orders."""

    dishes: dict[str, str]
    orders: list[tuple[str, str, int]]


def stories(dice: random.Random, runs: int) -> list[Story]:
    """At first few orders; in each run some items change their dish, and one order in three is too large."""
    items, names = "ijklm", "ABCD"
    told = [Story({item: dice.choice(names) for item in items}, [(f"c{item}", item, 1) for item in items])]
    for run in range(1, runs):
        moved = {item: dice.choice(names) for item in dice.sample(items, 3)}
        sizes = (dice.choice((1, 2, 9)) for _ in range(2))
        told.append(Story(moved, [(f"o{run}{n}", dice.choice(items), size) for n, size in enumerate(sizes)]))
    return told


@pytest.mark.long
@pytest.mark.parametrize("whole", [incremental_state.MAX_WHOLE_ROWS, -1], ids=["whole", "by increments"])
@pytest.mark.parametrize("text", [CONTRACT, ROWS], ids=["key", "row"])
def test_no_event_is_shown_twice_or_lost_whatever_moves_while_keys_are_held(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int, text: str
) -> None:
    derive_whole_up_to(whole, monkeypatch)
    dice, menu, ordered = random.Random(SEED), {}, {}  # noqa: S311 - histories, not secrets
    with pipeline(spark, broker, tmp_path, text) as p:

        def check(before: set[tuple[Any, ...]]) -> None:
            """Each event is as defined, or as before if what is held names it."""
            rows = shown(p)
            waiting = {row[2] for row in held_customers(p)}
            defined = {(menu[item], n, customer) for customer, (item, n) in ordered.items()}
            assert len({row[2] for row in rows}) == len(rows)
            assert {row for row in rows if row[2] not in waiting} == {row for row in defined if row[2] not in waiting}
            assert {row for row in rows if row[2] in waiting} == {row for row in before if row[2] in waiting}
            assert not wrong(p)

        for second, story in enumerate(stories(dice, runs=5)):
            before = shown(p)
            menu |= story.dishes
            ordered |= {customer: (item, n) for customer, item, n in story.orders}
            serve(p, second, **story.dishes)
            order(p, 100, *story.orders)
            p.run()
            check(before)
            if second % 2 and (keys := sorted({key for key, *_ in held(p)})):
                before = shown(p)
                named = {"bydish": [dice.choice(keys)]}
                special_runs.run_release(spark, p.settings, p.name, f"r{second}", named, "ann", datetime.now(UTC))
                check(before)
        for _ in range(3):
            if held(p):
                release(p, "bydish")
        assert shown(p) == {(menu[item], n, customer) for customer, (item, n) in ordered.items()}
        assert not held(p)


def held_customers(p: Pipeline) -> list[tuple[str, str, str]]:
    rows = held_changes.read_held_rows(p.warehouse, p.name).to_pylist()
    return [(row["key"], row["change"], json.loads(row["row"])["customer"]) for row in rows]


@pytest.mark.long
def test_zeros_of_either_sign_are_one_held_key(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    text = """
pipeline: zeros
start: 2026-01-01
topics:
  menu:
    read: table
    key: {k: double}
    value: {n: int}
    expect: [{expect_column_values_to_be_between: {column: n, max_value: 5}, on_failure: quarantine}]
"""
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("menu", ("0.0", {"n": 1}, 0))
        p.run()
        p.send("menu", ("-0.0", {"n": 9}, 4))
        p.run()
        assert held_changes.find_held_keys(p.warehouse, p.name, "menu", []) == ['{"k":0.0}']
        p.send("menu", ("0.0", {"n": 2}, 6))
        p.run()
        assert p.believed("menu") == [(0.0, 1, 0, None)]


def test_a_zero_in_a_text_is_left_as_it_is(spark: SparkSession) -> None:
    row = spark.sql("""SELECT -0.0D AS a, named_struct('b', -0.0F) AS s, '":-0.0,"x":-0.0}' AS t, -0.05D AS c""")
    (text,) = row.select(entry_rows.format_row_key(row.columns)).first() or ()
    assert json.loads(text) == {"a": 0.0, "s": {"b": 0.0}, "t": '":-0.0,"x":-0.0}', "c": -0.05}
    assert '"a":0.0,"s":{"b":0.0}' in text
