"""A preview says what the next run then does, and writes nothing."""

from __future__ import annotations

from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reports
from hindcast.common.errors import ContractError, RecordError, TableError
from hindcast.runs import preview
from hindcast.store import file_listing
from hindcast.store.commit_notes import AGES
from pipelines import CORRECTION, RESTAURANT, SEED, Pipeline, pipeline, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect


@pytest.mark.long
@pytest.mark.ci
def test_what_a_late_record_would_change(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        p.run()

        tell(p, CORRECTION)
        versions, states = p.versions(), p.states()
        second = reports.preview_run(spark, p.name)
        assert (p.versions(), p.states()) == (versions, states)
        done = p.run()
        for name, table in done["tables"].items():
            expected = {count: table[count] for count in ("opened", "closed", "corrected")}
            assert {count: second["tables"][name][count] for count in expected} == expected
        bills = second["tables"]["bills"]
        assert sum(bills["ages"].values()) == bills["corrected"] == 1
        (example,) = bills["examples"]
        assert (example["key"], example["change"]) == ({"customer": "candace"}, "changed")
        assert (example["before"]["amount"], example["after"]["amount"]) == ("24.00", "27.00")
        told = second.text
        assert "1 past answer would change" in told
        assert "bills: 1 row to open, 1 to close" in told
        assert "nothing was written" in told
        assert second["topics"]["menu"] == {"offsets": 1, "fates": {"accepted": 1}, "stops": None}
        assert "menu: 1 offset: 1 accepted\norders: 0 offsets: nothing new" in told


def preview_beside_a_run(p: Pipeline, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A preview that has read the first topic when a run publishes all that is new, and reads all else afterwards."""
    assert p.spark is not None
    compare, done = preview._describe_change, list[dict[str, Any]]()

    def run_first(*given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if not done:
            done.append(Context().run(p.run))  # as another process would: it pins nothing
        return compare(*given)

    patch.setattr(preview, "_describe_change", run_first)
    found = reports.preview_run(p.spark, p.name)
    patch.undo()
    assert done[0]["state"] == "completed"
    return found


@pytest.mark.long
@pytest.mark.ci
def test_a_run_beside_a_preview_changes_nothing_of_it(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        p.run()
        tell(p, {**CORRECTION, "orders": [("eve", {"item": "soup", "quantity": 1}, 6)]})
        alone = reports.preview_run(spark, p.name)
        beside = preview_beside_a_run(p, monkeypatch)
        assert [beside[part] for part in ("topics", "tables")] == [alone[part] for part in ("topics", "tables")]
        assert [table["opened"] for table in beside["tables"].values()] == [2, 1, 2]


COUNTED = """
pipeline: counted
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {item: string}}
views:
  totals:
    stream: orders
    semantics: kafka
    aggregate: {n: count(*)}
    expect:
      - expect_column_values_to_be_between: {column: n, max_value: 2}
        on_failure: warn
"""


@pytest.mark.long
def test_a_run_beside_a_preview_changes_nothing_of_what_a_kafka_view_has_kept(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(spark, broker, tmp_path, COUNTED) as p:
        p.send("orders", ("ann", {"item": "soup"}, 0))
        p.run()
        p.send("orders", ("ann", {"item": "soup"}, 1))
        told = preview_beside_a_run(p, monkeypatch)["tables"]["totals"]
        assert (told["opened"], told["closed"], p.believed("totals")[-1][:2]) == (2, 1, ("ann", 2))
        assert told["gates"][0]["outcome"] == "passed", "the second order is counted once"


HOLDING = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    expect:
      - expect_column_values_to_be_between: {column: price, min_value: 1}
        on_failure: quarantine
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    expect:
      - expect_column_values_to_be_between: {column: amount, min_value: 1}
      - expect_column_values_to_be_between: {column: amount, max_value: 99}
        on_failure: quarantine
  sold:
    stream: bills
    group_by: {item: item}
    aggregate: {amount: sum(amount)}
    window: {tumbling: 1 minute}
"""


@pytest.mark.long
def test_what_gates_would_hold_back_is_not_in_it_nor_in_what_is_made_of_it(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """A first run, and one that mends what it held, and holds others."""
    with pipeline(spark, broker, tmp_path, HOLDING) as p:
        rounds: list[dict[str, list[tuple[str, object, int]]]] = [
            {
                "menu": [("curry", {"price": 8}, 0), ("naan", {"price": 0}, 0)],
                "orders": [("ann", {"item": "curry", "quantity": 1}, 1), ("bob", {"item": "naan", "quantity": 2}, 1)],
            },
            {
                "menu": [("curry", {"price": -1}, 2), ("tea", {"price": 30}, 0), ("naan", {"price": 3}, 0)],
                "orders": [("ann", {"item": "curry", "quantity": 2}, 3), ("cy", {"item": "tea", "quantity": 9}, 3)],
            },
        ]
        kept = []
        for sent in rounds:
            for topic, records in sent.items():
                p.send(topic, *records)
            told = reports.preview_run(spark, p.name)
            done = p.run()
            for name, table in done["tables"].items():
                of = told["tables"][name]
                assert [of[count] for count in ("opened", "closed", "corrected")] == [
                    table[count] for count in ("opened", "closed", "corrected")
                ], name
                assert of["held"] == table.get("held", {"keys": 0})["keys"], name
                assert [v["outcome"] for v in of["gates"]] == [v["outcome"] for v in table["gates"]], name
            kept.append({name: of["held"] for name, of in told["tables"].items() if of["held"]})
            assert told.text.count("held back: their changes are") == len(kept[-1])
        assert kept == [{"menu": 1}, {"menu": 1, "bills": 1}]


LARGE = """
pipeline: shop
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    expect:
      - expect_column_values_to_be_between: {column: price, min_value: 1}
        on_failure: quarantine
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
views:
  priced: {stream: orders, join: {table: menu, on: item}, semantics: kafka}
"""


@pytest.mark.long
def test_a_run_beside_a_preview_of_large_tables_holds_and_kafka_views_changes_nothing_of_it(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that Spark reads by Delta's own log; what is held, and mended by the run; what a kafka view keeps."""
    with pytest.MonkeyPatch.context() as large, pipeline(spark, broker, tmp_path, LARGE) as p:
        large.setattr(file_listing, "_MAX_FILES", 0)
        tell(p, {"menu": [("curry", {"price": 8}, 0), ("naan", {"price": 0}, 0)], "orders": []})
        p.run()
        orders = [("ann", {"item": "curry", "quantity": 1}, 1), ("bob", {"item": "naan", "quantity": 40}, 5)]
        tell(p, {"menu": [("naan", {"price": 3}, 4), ("tea", {"price": -1}, 0)], "orders": orders})
        alone = reports.preview_run(spark, p.name)
        beside = preview_beside_a_run(p, monkeypatch)
        assert [beside[part] for part in ("topics", "tables")] == [alone[part] for part in ("topics", "tables")]
        assert [table["held"] for table in beside["tables"].values()] == [2, 0, 0]


@pytest.mark.long
def test_what_would_stop_a_run(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Records that do not decode; columns or an expression of a new definition."""
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        p.run()
        p.send("menu", ("naan", b"{", 9), ("curry", {"price": 9}, 9), ("soup", b"[", 9))
        stopped = reports.preview_run(spark, p.name)
        assert stopped["topics"]["menu"]["fates"] == {"accepted": 1, "malformed": 2}
        assert stopped["tables"]["menu"]["opened"] == 2
        told = stopped.text
        assert "menu: 3 offsets: 1 accepted, 2 malformed\nthe run would stop: topic" in told
        assert "2 of the run's records do not decode, and the limit is 0; the first: the value is not a JSON" in told
        strict = RESTAURANT.replace(
            '{price: "decimal(8,2)"}', '{price: "decimal(8,2)", note: string}\n    json: strict'
        )
        p.write(strict)
        with pytest.raises(RecordError, match=r"a record of the log no longer decodes: .* offset \d+: ") as refused:
            reports.preview_run(spark, p.name)
        assert "or read them with json: typed: strict accepts no record that lacks a column" in refused.value.fix

        p.write(RESTAURANT.replace("select:", "where: 1 / (quantity - quantity) > 0\n    select:"))
        with pytest.raises(ContractError, match=r"bills has a record on which .* fails"):
            reports.preview_run(spark, p.name)


@pytest.mark.long
def test_what_a_first_run_and_a_new_definition_would_change(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        first = reports.preview_run(spark, p.name)
        assert first["tables"]["bills"] | {"gates": []} == {
            "opened": 3,
            "closed": 0,
            "corrected": 0,
            "ages": dict.fromkeys(AGES, 0),
            "held": 0,
            "examples": [],
            "gates": [],
        }
        assert p.states() == []
        p.run()
        tell(p, CORRECTION)
        p.run()

        p.write(RESTAURANT.replace("select:", "where: quantity > 1\n    select:"))
        told = reports.preview_run(spark, p.name)
        assert "run 2:\n  views.bills.where added: quantity > 1\nmenu: 0 offsets" in told.text
        changed = told["tables"]
        assert (changed["menu"]["opened"], changed["bills"]["opened"], changed["bills"]["corrected"]) == (0, 0, 1)

        p.write(RESTAURANT.replace("amount: quantity * price", "amount: cast(quantity * price AS string)"))
        with pytest.raises(TableError, match=r"amount changed from decimal\(19,2\) to string"):
            reports.preview_run(spark, p.name)
