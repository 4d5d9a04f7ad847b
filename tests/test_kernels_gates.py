"""Kernels and gates: what is stopped or held back of what a kernel has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.common.errors import ContractError, GateError
from hindcast.ops import maintenance
from kernel_runs import begin, build, files, kernels, live, note, stored, twin
from pipelines import Pipeline, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        by = [None, None, "stream_table", "stream_table"]  # what is left of a change that is held is written by Spark
        assert [it.get("kernel") for it in made.values()] == by
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
            maintenance._vacuum_table(spark, one.table("stopped"), timedelta(0))
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
        for view in one.contract.ordered_views:
            assert one.believed(view) == other.believed(view) != [], view
        assert _entered(one) == _entered(other)
        with one.here():
            assert wrong(one) == []


def _entered(p: Pipeline) -> list[Any]:
    """What gates have entered, without the clock's moments."""
    return sorted(str({k: v for k, v in row.items() if k != "at"}) for row in p.raw("failing"))
