"""Since when something is held (`hold: row`): what came long before, or has another name now, is released too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.ops.erase import forget, records
from hindcast.runs import incremental_state
from pipelines import pipeline, wrong
from test_row_holds import CONTRACT, VIEWS, held, order, release, told_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SITTINGS = VIEWS[: VIEWS.index("views:")] + VIEWS[VIEWS.index("  sittings:") : VIEWS.index("  settled:")]
SITTINGS = SITTINGS.replace("  sittings:", "views:\n  sittings:")


@pytest.mark.long
def test_a_held_session_that_grows_is_released_with_all_that_came_since_its_key_is_held(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, SITTINGS) as p:
        p.send("orders", order("dave", 1, 1))
        p.run()
        p.send("orders", *(order("anna", 1, second) for second in (1, 2, 3)))
        p.run()
        # The grown session is held under another name; none of its orders is believed.
        p.send("orders", order("anna", 1, 7))
        assert p.run()["tables"]["sittings"]["held"] == {"keys": 1, "rows": 1, "newly": 0, "grown": 1}
        release(p, "sittings", "anna")
        assert told_of(p, "sittings") == {("dave", 1, 1, 1), ("anna", 4, 1, 7)}


MEANS = SITTINGS.replace("orders: count(*)", "mean: avg(quantity)").replace(
    "{column: orders, max_value: 2}", "{column: mean, max_value: 10}"
)


@pytest.mark.long
def test_of_a_held_session_that_grows_and_passes_no_part_is_published(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, MEANS) as p:
        p.send("orders", order("dave", 1, 1))
        p.run()
        p.send("orders", order("anna", 30, 1), order("anna", 1, 5))
        assert p.run()["tables"]["sittings"]["held"]["keys"] == 1
        p.send("orders", order("anna", 2, 9), order("anna", 2, 10))
        p.run()
        assert told_of(p, "sittings") == {("dave", 1, 1, 1), ("anna", 8.75, 1, 10)}


@pytest.mark.long
def test_a_held_record_that_came_long_before_it_was_held_is_released(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        # Nobody sees the second record, for the third takes its place; until that is forgotten.
        p.send("quotes", ("a", {"price": 8}, 0), ("a", {"price": 1}, 4), ("a", {"price": 7}, 4))
        p.run()
        assert not held(p)
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "quotes", None, ["0/2"]))
        p.run()
        assert held(p) == {('{"item":"a"}', 1)}
        p.run()
        release(p, "quotes", "a")
        assert p.believed("quotes") == [("a", 8, 0, 4), ("a", 1, 4, None)]
        assert not held(p)


MOVED = """
pipeline: moved
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {cook: string, price: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string}}
views:
  cooked:
    stream: orders
    join: {table: menu, on: item}
    key: {cook: cook}
    select: {price: price}
    hold: row
    expect: [{expect_column_values_to_be_between: {column: price, max_value: 100}, on_failure: quarantine}]
"""


@pytest.mark.long
@pytest.mark.parametrize("whole", [incremental_state.MAX_WHOLE_ROWS, -1], ids=["whole", "by increments"])
def test_a_held_event_that_moves_to_another_key_is_released(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    """It is one unit, though its row is closed at one key and opened at another."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", whole)
    with pipeline(spark, broker, tmp_path, MOVED) as p:
        p.send("menu", ("curry", {"cook": "al", "price": 5}, 0))
        p.send("orders", ("anna", {"item": "curry"}, 2))
        p.run()
        p.send("menu", ("curry", {"cook": "bo", "price": 500}, 1))
        p.run()
        assert p.believed("cooked") == [("al", 5, 2)]
        release(p, "cooked", "bo")
        assert p.believed("cooked") == [("bo", 500, 2)]
        assert not held(p, "cooked")


SELECTIONS = """
pipeline: restaurant
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  sold:
    stream: orders
    key: {item: item}
    select: {quantity: quantity}
    expect:
      - expect_column_values_to_be_between: {column: quantity, max_value: 50}
        on_failure: quarantine
"""


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["on", "off"])
@pytest.mark.parametrize("hold", ["key", "row"])
def test_of_a_view_that_only_selects_what_was_published_since_a_hold_is_not_published_again(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold: str, kernels: str
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    monkeypatch.setenv("HINDCAST_KERNELS", kernels)
    with pipeline(spark, broker, tmp_path, SELECTIONS.replace("    select:", f"    hold: {hold}\n    select:")) as p:
        for second, told in enumerate(("curry 1", "curry 70, naan 2", "naan 80", "curry 3, naan 4")):
            items = (it.split() for it in told.split(", "))
            p.send("orders", *(("anna", {"item": item, "quantity": int(n)}, second) for item, n in items))
            p.run()
        for item in ("curry", "naan"):
            release(p, "sold", item)
        sold = [("curry", 1, 0), ("curry", 3, 3), ("curry", 70, 1), ("naan", 2, 1), ("naan", 4, 3), ("naan", 80, 2)]
        assert p.believed("sold") == sold


NAMED = """
pipeline: named
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
  dishes: {read: table, key: {item: string}, value: {name: string}}
views:
  named:
    table: menu
    join: {table: dishes, how: left}
    select: {price: price, name: name}
    expect: [{expect_column_values_to_be_between: {column: price, max_value: 100}, on_failure: quarantine}]
"""


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["on", "off"])
def test_what_was_published_of_a_key_before_it_was_held_is_corrected_when_it_passes(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    """Since the first hold, that of a, the menu says nothing else of b from 0 to 3; but since that of b it does."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    monkeypatch.setenv("HINDCAST_KERNELS", kernels)
    first, others = (
        "a 1 0, b 2 0, b 4 3, b 6 4",
        ("a 500 1", "b 3 0", "b 500 5", "b 2 0, a 600 2", "a 7 1, a 8 2, b 9 5"),
    )
    with pipeline(spark, broker, tmp_path, NAMED) as p:
        for sent in (first, *others):
            prices = (it.split() for it in sent.split(", "))
            p.send("menu", *((item, {"price": int(price)}, int(second)) for item, price, second in prices))
            p.run()
        found = {(key, price, since) for key, price, _, since, _ in p.believed("named")}
        assert {it for it in found if it[0] == "b"} == {("b", 2, 0), ("b", 4, 3), ("b", 6, 4), ("b", 9, 5)}
        assert not wrong(p)


BY_COOK = MOVED.replace("    hold: row\n", "")


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["on", "off"])
def test_what_was_published_of_a_key_before_an_event_of_another_held_key_moved_to_it_is_corrected(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    """The event is held since the hold of al, its first key; of bo, its other one, naan was published after that."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    monkeypatch.setenv("HINDCAST_KERNELS", kernels)
    first, others = (
        "curry al 1, soup al 1, naan bo 1, tea bo 1",
        ("soup al 500", "naan bo 2", "curry bo 3, tea bo 500", "naan bo 1", "curry al 1, tea bo 1"),
    )
    with pipeline(spark, broker, tmp_path, BY_COOK) as p:
        items = enumerate(("curry", "soup", "naan", "tea"), 1)
        p.send("orders", *(("anna", {"item": item}, second) for second, item in items))
        for sent in (first, *others):
            dishes = (it.split() for it in sent.split(", "))
            p.send("menu", *((item, {"cook": cook, "price": int(price)}, 0) for item, cook, price in dishes))
            p.run()
        assert p.believed("cooked") == [("al", 1, 1), ("al", 1, 2), ("bo", 1, 3), ("bo", 1, 4)]
        assert {key for key, _ in held(p, "cooked")} == {'{"cook":"al"}'}
        assert not wrong(p)


BY_CUSTOMER = MOVED.replace("    key: {cook: cook}\n", "")


@pytest.mark.long
@pytest.mark.parametrize("kernels", ["on", "off"])
def test_a_row_that_was_published_while_another_of_its_key_was_held_stays_held_itself(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    """Since soup is held curry costs the same again: 500, which a person had released; 2 was published meanwhile."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    monkeypatch.setenv("HINDCAST_KERNELS", kernels)
    with pipeline(spark, broker, tmp_path, BY_CUSTOMER) as p:
        items = enumerate(("curry", "soup", "naan"), 1)
        p.send("orders", *(("anna", {"item": item}, second) for second, item in items))
        for sent in ("curry 500, soup 1, naan 1", "soup 600", "curry 2", "curry 500", "naan 2"):
            dishes = (it.split() for it in sent.split(", "))
            p.send("menu", *((item, {"cook": "al", "price": int(price)}, 0) for item, price in dishes))
            p.run()
            if sent.startswith("curry 500, "):
                release(p, "cooked", "anna")
        assert {offset for _, offset in held(p, "cooked")} == {0, 1}
        assert not wrong(p)
        release(p, "cooked", "anna")
        assert not held(p, "cooked")
        assert p.believed("cooked") == [("anna", 2, 3), ("anna", 500, 1), ("anna", 600, 2)]
