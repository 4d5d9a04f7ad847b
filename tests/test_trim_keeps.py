"""What a trim must not take: records and rows that something still needs, though `keep` says that they may go."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import StructType

from hindcast.cli import main
from hindcast.common.errors import RequestError, TableError
from hindcast.common.settings import read_settings
from hindcast.ops import retention, trim_horizons
from hindcast.ops.erase import forget, records
from hindcast.ops.erase.erasure_step import ErasureStep
from hindcast.ops.erase.proof import Proof, format_proof
from hindcast.plan import definitions, journal, planner
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.purposes import Requeue
from hindcast.quality import failing_rows, held_changes
from hindcast.runs import special_runs
from hindcast.store import commits, table_creation
from pipelines import T0, Pipeline, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ORDERS = """
pipeline: shop
start: 2026-01-01
topics:
  orders: {read: stream, key: {id: string}, value: {n: int}, keep: 10 seconds}
"""
COUNTED = ORDERS + "views:\n  counted: {stream: orders, aggregate: {n: count(*)}, semantics: kafka}\n"


class DeadError(Exception):
    """What a run dies of."""


def send(p: Pipeline, *orders: tuple[str, int, float]) -> None:
    p.send("orders", *((key, {"n": n}, second) for key, n, second in orders))


def trimmed(spark: SparkSession, p: Pipeline, name: str = "orders") -> tuple[int, float | None]:
    """How many records a trim removes of a log, and the log's horizon, in seconds."""
    log = retention.trim_pipeline(spark, p.contract).logs[name]
    return log.removed, log.horizon and (log.horizon.moment - T0).total_seconds()


@pytest.mark.long
def test_a_kafka_view_over_a_trimmed_log_goes_on_after_its_first_run_died_between_its_commits(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(spark, broker, tmp_path, ORDERS) as p:
        send(p, ("a", 1, 0), ("b", 1, 30))
        p.run()
        assert trimmed(spark, p) == (1, 20)
        p.write(COUNTED)
        die_between_commits(p, monkeypatch)
        send(p, ("b", 2, 60))
        p.run()
        counted = [row[:2] for row in p.believed("counted")]
        assert counted == [("b", 1), ("b", 2)]
        send(p, ("b", 3, 61))
        die_between_commits(p, monkeypatch)
        assert trimmed(spark, p) == (0, 20), "the view may need what it had read"
        p.run()
        assert [row[:2] for row in p.believed("counted")] == [*counted, ("b", 3)]
        assert trimmed(spark, p) == (1, 51)


@pytest.mark.long
def test_nothing_is_trimmed_before_all_is_derived_again_after_an_abandoned_forgetting(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise DeadError

    with pipeline(spark, broker, tmp_path, COUNTED) as p:
        send(p, ("a", 1, 0), ("b", 1, 1), ("b", 1, 30))
        p.run()
        with monkeypatch.context() as patch:
            patch.setattr(ErasureStep, "remove_rows", die)
            with pytest.raises(DeadError):
                forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "a"))
        planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "it died")
        with pytest.raises(RequestError, match="the forgetting of run 2 has ended before"):
            trimmed(spark, p)
        p.run()
        assert [row[:2] for row in p.believed("counted")] == [("a", 1), ("b", 1), ("b", 2)]
        assert trimmed(spark, p) == (2, 20)


def die_between_commits(p: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is given up when it has published what a kafka view emits, but not the view's state."""

    def die(*_: Any, **__: Any) -> None:
        raise DeadError

    with monkeypatch.context() as patch:
        patch.setattr(commits, "replace_rows", die)
        with pytest.raises(DeadError):
            p.run(f"given up {len(p.states())}")
    planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "it died")


GATE = "[{expect_column_values_to_be_between: {column: n, min_value: 5}, on_failure: quarantine}]"
BILLS = ORDERS + f"views:\n  bills: {{stream: orders, select: {{n: n}}, expect: {GATE}}}\n"
GATED = ORDERS.replace("keep: 10 seconds", f"keep: 10 seconds, expect: {GATE}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "table", "removed"), [pytest.param(BILLS, "bills", 2, marks=pytest.mark.ci), (GATED, "orders", 1)]
)
def test_what_is_held_of_events_is_not_trimmed_away_before_somebody_decides(
    spark: SparkSession, broker: str, tmp_path: Path, text: str, table: str, removed: int
) -> None:
    with pipeline(spark, broker, tmp_path, text) as p:
        send(p, ("low", 1, 0), ("high", 9, 1))
        p.run()
        send(p, ("later", 9, 30))
        p.run()
        report = retention.trim_pipeline(spark, p.contract)
        assert report.logs["orders"].undecided == report.tables["orders"].undecided == (table,)
        assert (report.logs["orders"].removed, report.tables["orders"].removed) == (0, 0)
        assert f"held back by {table}" in retention.format_report(report)
        held_changes.reject_keys(p.warehouse, p.name, {table: ['{"id":"low"}']}, "eve", datetime.now(UTC))
        assert trimmed(spark, p) == (removed, 20)


GATED_INVOICES = f"""
pipeline: ledger
start: 2026-01-01
topics:
  none: {{read: stream, key: {{a: string}}, value: {{b: int}}}}
inputs:
  orders: {{table: shop.orders, read: stream, key: {{id: string}}, value: {{n: int}}}}
views:
  invoices: {{stream: orders, select: {{n: n}}, expect: {GATE}}}
"""


@pytest.mark.long
@pytest.mark.ci
def test_what_another_pipeline_holds_is_not_trimmed_away_before_somebody_decides(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(spark, broker, tmp_path, ORDERS) as shop, pipeline(spark, broker, tmp_path, GATED_INVOICES) as ledger:
        send(shop, ("low", 1, 0), ("high", 9, 1))
        shop.run()
        ledger.run()
        send(shop, ("later", 9, 30))
        shop.run()
        report = retention.trim_pipeline(spark, shop.contract)
        assert report.tables["orders"].undecided == ("ledger.invoices",)
        assert report.tables["orders"].removed == 0
        assert "held back by ledger.invoices" in retention.format_report(report)
        valid = ledger.path.read_text(encoding="utf-8")
        for broken in (valid.replace("stream: orders", "stream: order"), "pipeline: ledger\nviews: [", "\0"):
            ledger.path.write_text(broken, encoding="utf-8")
            assert retention.trim_pipeline(spark, shop.contract).tables["orders"].undecided == ("ledger.invoices",)
        ledger.path.rename(ledger.path.with_name("z.yaml")).write_text("pipeline: ledger\nviews: [", encoding="utf-8")
        assert retention.trim_pipeline(spark, shop.contract).tables["orders"].undecided == ("ledger.invoices",)
        ledger.path.with_name("z.yaml").unlink()
        ledger.path.with_name("caf\udce9.yaml").write_text("topics: [", encoding="utf-8")
        ledger.path.with_name("...yaml").write_text("topics: [", encoding="utf-8")
        with monkeypatch.context() as patch:
            ledger.path.write_text("pipeline: ledger\nviews: [", encoding="utf-8")
            patch.setattr(definitions, "find_last_contract", lambda _: None)
            report = retention.trim_pipeline(spark, shop.contract)
            assert report.tables["orders"].undecided == ("ledger",), "which may read it"
            assert "of which changes are held, or may be" in retention.format_report(report)
        ledger.path.write_text(valid, encoding="utf-8")
        ledger.run()
        keys = {"invoices": held_changes.find_held_keys(ledger.warehouse, "ledger", "invoices", ["low"])}
        special_runs.run_release(spark, ledger.settings, "ledger", "released", keys, "eve", datetime.now(UTC))
        assert [row[0] for row in ledger.believed("invoices")] == ["high", "later", "low"]
        assert retention.trim_pipeline(spark, shop.contract).tables["orders"].removed == 2


def test_damaged_pipelines_hold_back_only_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"shop": ORDERS, "ledger": GATED_INVOICES, "cellar": ORDERS.replace("shop", "cellar")}
    for name, text in others.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    read_held_rows = held_changes.read_held_rows

    def read_damaged(warehouse: str, pipeline: str) -> Any:
        if pipeline != "shop":
            raise TableError("is damaged")
        return read_held_rows(warehouse, pipeline)

    monkeypatch.setattr(held_changes, "read_held_rows", read_damaged)
    contract = find_bound_contract(replace(read_settings(), warehouse=str(tmp_path / "w")), "shop")
    assert trim_horizons.find_undecided_tables(contract) == {"orders": {"ledger.invoices"}}


@pytest.mark.parametrize("damage", ["cut", "gone", "columns"])
def test_a_damaged_table_of_what_others_hold_holds_back_what_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    for name, text in {"shop": ORDERS, "ledger": GATED_INVOICES}.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path))
    failing = failing_rows.failing_table(str(tmp_path / "w"), "ledger")
    schema = failing_rows.SCHEMA if damage != "columns" else StructType(failing_rows.SCHEMA.fields[:3])
    rows = pa.Table.from_pylist([{"run": 1, "table": "invoices"}], table_creation.arrow_schema(schema))
    write_deltalake(table_creation.ensure_table(failing, schema), rows, mode="append")
    for path in Path(failing.path).glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:50]) if damage == "cut" else damage == "gone" and path.unlink()
    contract = find_bound_contract(replace(read_settings(), warehouse=str(tmp_path / "w")), "shop")
    assert trim_horizons.find_undecided_tables(contract) == {"orders": {"ledger.invoices"}}


MENU = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    keep: 10 seconds
    expect: [{expect_column_values_to_be_between: {column: price, min_value: 5}, on_failure: quarantine}]
"""


@pytest.mark.long
def test_a_held_record_does_not_count_as_what_was_in_force(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, MENU) as p:
        p.send("menu", ("tea", {"price": 8}, 0), ("soup", {"price": 8}, 0))
        p.run()
        p.send("menu", ("tea", {"price": 1}, 1), ("soup", {"price": 9}, 1), ("cake", {"price": 9}, 30))
        p.run()
        assert trimmed(spark, p, "menu") == (1, 20)
        assert [row["offset"] for row in p.raw("logs/menu")] == [0, 2, 3, 4], "only the soup's first price"


@pytest.mark.long
def test_what_is_held_of_versions_is_released_whatever_is_trimmed_until_then(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, MENU) as p:
        p.send("menu", ("tea", {"price": 8}, 0), ("cake", {"price": 9}, 30))
        p.run()
        assert trimmed(spark, p, "menu")[1] == 20
        p.send("menu", ("tea", {"price": 1}, 5))
        p.run()
        shown = held_changes.find_held_keys(p.warehouse, p.name, "menu", ["tea"])
        p.send("menu", ("cake", {"price": 10}, 45))
        report = p.run()
        assert report["tables"]["menu"]["held"] == {"keys": 1, "rows": 3, "newly": 0, "grown": 0}
        assert trimmed(spark, p, "menu")[1] == 35
        special_runs.run_release(spark, read_settings(), p.name, "released", {"menu": shown}, "ann", datetime.now(UTC))
        assert p.believed("menu") == [
            ("cake", 9, 30, 45),
            ("cake", 10, 45, None),
            ("tea", 8, 0, 35),
            ("tea", 1, 35, None),
        ]
        assert not held_changes.read_held_rows(p.warehouse, p.name).num_rows
        assert not wrong(p)


INVOICES = """
pipeline: ledger
start: 2026-01-01
topics:
  none: {read: stream, key: {a: string}, value: {b: int}}
inputs:
  orders: {table: shop.orders, read: stream, key: {id: string}, value: {n: int}}
views:
  invoices: {stream: orders, select: {n: n}, keep: 7 seconds}
"""


@pytest.mark.long
def test_a_horizon_counts_the_input_as_the_last_run_read_it(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, ORDERS) as shop, pipeline(spark, broker, tmp_path, INVOICES) as ledger:
        send(shop, ("a", 1, 10))
        shop.run()
        ledger.run()
        send(shop, ("b", 1, 20), ("c", 1, 40))
        shop.run()
        at = retention.trim_pipeline(spark, ledger.contract).tables["invoices"].horizon
        assert at is not None
        assert at.moment == T0 + timedelta(seconds=3)
        ledger.run()
        assert [row[0] for row in ledger.believed("invoices")] == ["a", "b", "c"]


LATE = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}, history_retention: 5 seconds, keep: 10 seconds}
  orders: {read: stream, key: {id: string}, value: {item: string}}
views:
  bills: {stream: orders, join: {table: menu, on: item}, select: {price: price}, semantics: kafka, wait: true}
"""


@pytest.mark.long
def test_an_expired_record_that_a_view_has_not_processed_stays_expired(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, LATE) as p:
        p.send("menu", *((item, {"price": 8}, second) for item, second in (("tea", 0), ("tea", 1), ("cake", 100))))
        p.send("menu", ("soup", {"price": 8}, 10))
        p.send("orders", ("a", {"item": "tea"}, 1), ("b", {"item": "tea"}, 50))
        p.run()
        assert p.fates("menu")[3] == (3, "expired")
        assert trimmed(spark, p, "menu") == (0, 40)
        believed = p.believed("menu")
        p.run(only="menu")
        assert p.believed("menu") == believed
        p.send("orders", ("c", {"item": "tea"}, 200))
        p.send("menu", ("cake", {"price": 9}, 201))
        p.run()
        assert trimmed(spark, p, "menu") == (2, 190)


@pytest.mark.long
def test_a_requeued_record_does_not_move_a_horizon(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, ORDERS.replace("keep", "max_record_bytes: 12, max_malformed: 1, keep")) as p:
        send(p, ("a", 1, 0), ("b", 1, 30), ("b", 100000, 300))
        p.run()
        p.write(ORDERS)
        special_runs.run_requeue(spark, read_settings(), p.name, "again", Requeue(("orders",)))
        assert [row[:2] for row in p.believed("orders")] == [("a", 1), ("b", 1), ("b", 100000)]
        assert trimmed(spark, p) == (1, 20)


NOTES = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int, note: string}
    keep: 10 seconds
    hold: row
    expect: [{expect_column_values_to_not_be_in_set: {column: note, value_set: [bad]}, on_failure: quarantine}]
"""
PLAIN = NOTES.partition("    hold")[0].replace(", note: string", "")


@pytest.mark.long
def test_a_record_in_force_at_the_horizon_is_not_held_and_the_proof_says_what_is_lost_when_it_is_forgotten(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(spark, broker, tmp_path, PLAIN) as p:
        p.send("menu", *(("tea", {"price": n, "note": "bad"}, n) for n in (1, 2)), ("soup", {"price": 8}, 30))
        p.run()
        assert trimmed(spark, p, "menu") == (1, 20)
        p.write(NOTES)
        p.send("menu", ("cake", {"price": 1, "note": "bad"}, 3))
        p.run()
        believed = [("soup", 8, None, 30, None), ("tea", 2, None, 2, 20), ("tea", 2, "bad", 20, None)]
        assert p.believed("menu") == believed, "the cake came after the trim"

        lost = "has no value from 2026-01-01T00:00:20+00:00 until its next record"
        assert main.main(["forget", f"{p.name}.menu", "--offset", "0/1", "--dry-run"]) == 0
        assert lost in capsys.readouterr().out
        proof = forget.forget_records(spark, p.contract, records.parse_request(p.contract, "menu", None, ["0/1"]))
        assert proof.evidence.is_proven
        assert Proof.from_json(proof.as_json()) == proof
        assert lost in format_proof(proof)
        assert p.believed("menu") == believed[:1]
        proof = forget.forget_records(spark, p.contract, records.parse_request(p.contract, "menu", None, ["0/2"]))
        assert proof.lost_since is None, "later than the horizon"
        assert wrong(p) == []
