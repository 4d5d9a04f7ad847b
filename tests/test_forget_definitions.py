"""Forgetting where a view was defined otherwise before: the proof names it, for not all of its rows can be found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hindcast.ops.erase import forget, records, redefinitions
from hindcast.plan import journal
from pipelines import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, tip: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, price: price}
  tips:
    stream: orders
    aggregate: {n: count(*), best: max(tip)}
  sums:
    stream: bills
    aggregate: {n: count(*)}
  visits:
    stream: orders
    select: {item: item}
"""
CHANGED = (
    CONTRACT.replace("    join: {table: menu, on: item}\n", "")
    .replace("{item: orders.item, price: price}", "{item: item}")
    .replace(", best: max(tip)", "")
    .replace(
        "select: {item: item}\n",
        "select: {item: item}\n    expect: [{expect_table_row_count_to_be_between: {min_value: 0}}]\n",
    )
)


def test_the_proof_names_views_whose_earlier_definitions_it_does_not_follow(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        p.send("menu", ("curry", {"price": 4711}, 0))
        p.send("orders", *(("ann", {"item": "curry", "tip": tip}, tip) for tip in (1, 99)))
        p.run()
        p.write(CHANGED)
        p.run()
        past = journal.read_runs(p.warehouse, p.name)
        assert redefinitions.find_redefined_views(past, p.contract, "menu") == ["bills", "sums"]
        assert redefinitions.find_redefined_views(past[:0], p.contract, "menu") == []
        proof = forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", None, ["0/1"]))
        assert proof.redefined == ("bills", "tips", "sums")
        assert type(proof).from_json(proof.as_json()) == proof
        assert "Defined otherwise before: bills, tips, sums." in forget.format_proof(proof)
        best = {row["best"] for row in p.raw("tips")}
    assert 99 in best, "if it is gone, such views need not be named"
