"""`restatement: approve`: what would change an answer about a closed period waits for a person."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.cli.main import main
from hindcast.common.errors import GateError
from hindcast.contract import load
from hindcast.plan import closes
from hindcast.plan.closes import Close
from hindcast.quality import held_changes
from hindcast.quality.own_rules.closed_periods import ExpectClosedPeriodsToStay
from pipelines import Pipeline, at, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: shop
start: 2026-01-01
restatement: approve
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
  spent:
    stream: bills
    window: {tumbling: 20 seconds}
    group_by: {item: item}
    aggregate: {total: sum(amount)}
"""


@pytest.fixture(autouse=True)
def _one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hindcast.cli.commands.running.open_session", lambda *_: spark)


def close(p: Pipeline, name: str, since: float, until: float) -> None:
    known_at = datetime.fromisoformat(p.run()["knownAt"])
    closes.add_close(p.warehouse, p.name, Close(name, at(since), at(until), known_at, known_at, "ann"))


def price(item: str, value: int | None, second: float) -> tuple[Any, ...]:
    return (item, None if value is None else {"price": value}, second)


def held(p: Pipeline) -> set[tuple[str, str]]:
    rows = held_changes.read_held_rows(p.warehouse, p.name).to_pylist()
    return {(row["table"], row["key"]) for row in rows if row["entry"] == "held"}


def order(customer: str, item: str, second: float) -> tuple[Any, ...]:
    return (customer, {"item": item, "quantity": 1}, second)


def test_only_what_changes_an_answer_about_a_closed_period_waits(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        p.send("menu", *(price(f"dish{n}", 8, 0) for n in range(8)), price("dish0", 9, 50))
        p.send("orders", order("ann", "dish1", 5), order("bob", "dish2", 5), order("eve", "dish2", 45))
        close(p, "q1", 0, 40)
        p.send("menu", price("dish0", 10, 60))  # after the period
        p.send("menu", price("dish1", 7, 3))  # in it
        p.send("menu", price("dish2", 8, 3))  # in it, as it was
        p.send("menu", price("dish3", None, 20))  # ends in it
        p.send("menu", price("dish4", None, 0))  # was never there
        p.send("menu", price("dish5", 5, 40))  # at its end
        p.send("menu", price("new", 5, 39))  # began in it
        p.send("menu", price("dish6", None, 41))
        p.send("orders", order("gus", "dish6", 30), order("hal", "dish6", 40))
        p.run()
        keys = {(table, key) for table, key in held(p)}
        assert {key for table, key in keys if table == "menu"} == {
            *(f'{{"item":"{item}"}}' for item in ("dish1", "dish3", "dish4", "new"))
        }
        assert {key for table, key in keys if table == "orders"} == {'{"customer":"gus"}'}
        assert {key for table, key in keys if table in ("bills", "spent")} == set(), "their inputs have not changed"
        assert wrong(p) == []

        assert main(["release", f"{p.name}.menu", "--key", "dish1"]) == 0
        assert next(row for row in p.believed("bills") if row[0] == "ann")[2] == 7, "nobody is asked again"
        assert {key for table, key in held(p) if table == "menu"} == {
            *(f'{{"item":"{item}"}}' for item in ("dish3", "dish4", "new"))
        }
        p.send("menu", price("dish7", 3, 70))
        p.run()
        assert ("spent", '{"item":"dish1"}') not in held(p)
        assert wrong(p) == []
        closes.drop_close(p.warehouse, p.name, "q1", "ann", "reopened")
        p.send("menu", price("dish3", 4, 30))
        p.run()
        assert ("menu", '{"item":"dish3"}') not in held(p), "a dropped close keeps nothing"
        assert wrong(p) == []


def test_with_hold_row_only_the_late_record_waits(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    text = CONTRACT[: CONTRACT.index("  orders:")].replace("value: {price: int}", "value: {price: int}\n    hold: row")
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("menu", price("curry", 8, 0))
        close(p, "q1", 0, 40)
        p.send("menu", price("curry", 7, 3))
        p.run()
        assert held(p) == {("menu", '{"item":"curry"}')}
        p.send("menu", price("curry", 9, 50))
        p.run()
        assert [row[:4] for row in p.believed("menu")] == [("curry", 8, 0, 50), ("curry", 9, 50, None)]
        assert main(["release", f"{p.name}.menu"]) == 0
        assert [row[1:4] for row in p.believed("menu")] == [(8, 0, 3), (7, 3, 50), (9, 50, None)]
        assert wrong(p) == []


def test_a_release_or_a_forgetting_publishes_nothing_else_about_a_closed_period(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """What waits for other keys, an answer of no, another definition."""

    def price_of(customer: str) -> int:
        return next(row[2] for row in p.believed("bills") if row[0] == customer)

    with pipeline(spark, broker, tmp_path, CONTRACT[: CONTRACT.index("  spent:")]) as p:
        p.send("menu", *(price(f"dish{n}", 8, 0) for n in range(4)))
        p.send("orders", order("ann", "dish1", 5), order("bob", "dish2", 5), order("eve", "dish3", 5))
        close(p, "q1", 0, 40)
        p.send("menu", price("dish1", 7, 3), price("dish2", 6, 3), price("dish0", 5, 3))
        p.run()
        waiting = {("menu", f'{{"item":"dish{n}"}}') for n in (0, 1, 2)}
        assert held(p) == waiting
        assert main(["release", f"{p.name}.menu", "--key", "dish2", "--reject"]) == 0
        assert main(["forget", f"{p.name}.menu", "--key", "dish3"]) == 0
        assert held(p) == waiting - {("menu", '{"item":"dish2"}')}
        assert [row[:4] for row in p.believed("menu")] == [(f"dish{n}", 8, 0, None) for n in range(3)]
        assert [row[0] for row in p.believed("bills")] == ["ann", "bob"], "what was forgotten is gone, unasked"

        text = p.path.read_text(encoding="utf-8")
        p.path.write_text(text.replace("quantity * price", "quantity * price * 10"), encoding="utf-8")
        assert main(["release", f"{p.name}.menu", "--key", "dish0"]) == 0
        assert (price_of("ann"), price_of("bob")) == (8, 8), "nobody has agreed to the definition"
        bills = {("bills", '{"customer":"ann"}'), ("bills", '{"customer":"bob"}')}
        assert held(p) == bills | {("menu", '{"item":"dish1"}')}
        assert main(["release", f"{p.name}.menu", "--key", "dish1"]) == 0
        assert held(p) == bills, "it waits for its own sake"
        assert main(["forget", f"{p.name}.menu", "--key", "dish0"]) == 0
        assert held(p) == bills
        assert (price_of("ann"), price_of("bob")) == (8, 8)
        assert main(["release", f"{p.name}.bills"]) == 0
        assert (price_of("ann"), price_of("bob")) == (70, 80)
        assert wrong(p) == []


CARTE = "pipeline: carte\nstart: 2026-01-01\ntopics: {menu: {read: table, key: {item: string}, value: {price: int}}}\n"
READER = """
pipeline: reader
start: 2026-01-01
restatement: approve
topics:
  extra: {read: table, hold: row, key: {item: string}, value: {price: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
inputs:
  menu: {table: carte.menu, key: {item: string}, value: {price: int}}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
"""


def test_a_release_publishes_nothing_about_a_closed_period_that_an_input_brings(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CARTE) as carte, pipeline(spark, broker, tmp_path, READER) as p:
        carte.send("menu", price("dish1", 8, 0))
        carte.run()
        p.send("extra", price("x", 1, 0), price("y", 1, 0))
        p.send("orders", order("ann", "dish1", 5))
        close(p, "q1", 0, 40)
        p.send("extra", price("x", 2, 3), price("y", 2, 3))
        p.run()
        carte.send("menu", price("dish1", 99, 2))
        carte.run()
        assert main(["release", "reader.extra", "--key", "x"]) == 0
        assert [row[2] for row in p.believed("bills")] == [8]
        assert held(p) == {("extra", '{"item":"y"}'), ("bills", '{"customer":"ann"}')}
        assert main(["forget", "reader.extra", "--key", "x"]) == 0
        assert held(p) == {("extra", '{"item":"y"}'), ("bills", '{"customer":"ann"}')}
        assert [row[:2] for row in p.believed("extra")] == [("y", 1)]
        closes.drop_close(p.warehouse, p.name, "q1", "ann", "reopened")
        p.run()
        assert held(p) == set(), "nothing is closed, and no record has come"
        assert [row[2] for row in p.believed("bills")] == [99]
        assert [row[1] for row in p.believed("extra")] == [1, 2]
        assert wrong(p) == []


STOPPING = CONTRACT.replace("restatement: approve\n", "").replace(
    "value: {price: int}", "value: {price: int}\n    expect:\n      - expect_closed_periods_to_stay:"
)


def test_the_rule_can_stop_a_table_and_no_period_is_closed_before_the_table_began(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, STOPPING) as p:
        p.send("menu", price("curry", 8, 0))
        close(p, "q1", 0, 40)
        p.send("menu", price("curry", 9, 10))
        with pytest.raises(GateError, match=r"expect_closed_periods_to_stay\(\): [0-9]+ of [0-9]+ rows fail"):
            p.run()
        text = p.path.read_text(encoding="utf-8").replace(
            "    expect:\n    - expect_closed_periods_to_stay: null\n", ""
        )
        p.path.write_text(text, encoding="utf-8")
        p.run()
        more = """
  dear:
    table: menu
    where: price > 8
    expect: [{expect_closed_periods_to_stay: {}}]
"""
        p.path.write_text(f"{text.rstrip()}{more}", encoding="utf-8")
        p.run()
        assert [row[0] for row in p.believed("dear")] == ["curry"]


def test_kafka_views_have_no_such_gate(tmp_path: Path) -> None:
    text = f"{CONTRACT}    semantics: kafka\n"
    text = text.replace("amount: quantity * price}", "amount: quantity * price}\n    semantics: kafka")
    (tmp_path / "shop.yaml").write_text(text, encoding="utf-8")
    contract = load(tmp_path / "shop.yaml")
    assert [[gate.type for gate in contract.expectations(name)] for name in ("menu", "spent")] == [
        ["expect_closed_periods_to_stay"],
        [],
    ]
    assert contract.can_hold


def test_a_key_fails_exactly_if_its_answers_in_a_closed_period_differ(spark: SparkSession) -> None:
    """Random versions before and after, each beside a step function of whole seconds; also nulls and maps."""
    chance = random.Random(11)  # noqa: S311  # any will do
    known, periods = at(1_000), [(10, 20), (30, 33)]

    def versions() -> list[tuple[int, int | None, int | None]]:
        edges = sorted(chance.sample(range(40), chance.randrange(1, 6)))
        ends = [*edges[1:], chance.choice([None, 45])]
        steps = [(a, b, chance.choice([1, 2, None])) for a, b in zip(edges, ends, strict=True)]
        return [step for step in steps if chance.random() < 0.8]

    def answer(rows: list[tuple[int, int | None, int | None]], second: int) -> list[int | None]:
        return [value for since, until, value in rows if since <= second and (until is None or second < until)]

    batch, closing, expected = [], [], set()
    for n in range(400):
        before = versions()
        after = [chance.choice([it, (it[0], it[1], 1)]) for it in before] if chance.random() < 0.5 else versions()
        gone, come = [it for it in before if it not in after], [it for it in after if it not in before]
        batch += [(n, *row(it), at(1)) for it in before] + [(n, *row(it), known) for it in come]
        closing += [(n, at(it[0])) for it in gone]
        inside = [second for since, until in periods for second in range(since, until)]
        if any(answer(before, second) != answer(after, second) for second in inside):
            expected.add(n)
    columns = "k int, v int, m map<string, int>, validFrom timestamp, validTo timestamp, systemFrom timestamp"
    spark.createDataFrame(batch, columns).createOrReplaceTempView("closed_batch")
    spark.createDataFrame(closing, "k int, validFrom timestamp").createOrReplaceTempView("closed_closing")
    rule = ExpectClosedPeriodsToStay(
        kind="versions",
        key=["k"],
        known_at=known.isoformat(),
        closed=[[at(since).isoformat(), at(until).isoformat()] for since, until in periods],
        closing="closed_closing",
        closing_by=["k", "validFrom"],
        content=["v", "m"],
        maps=["m"],
        judged="",
    )
    failing = spark.sql(rule.build_query().format(batch="closed_batch")).collect()
    assert {it["k"] for it in failing} == expected
    assert 100 < len(expected) < 300


def row(version: tuple[int, int | None, int | None]) -> tuple[Any, ...]:
    since, until, value = version
    return (value, {"a": value}, at(since), None if until is None else at(until))
