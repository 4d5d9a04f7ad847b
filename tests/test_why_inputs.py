"""The inputs that an explanation shows are those that the row was made of, or it shows none."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import warehouses
from hindcast.common import clock
from hindcast.common.errors import ContractError
from hindcast.contract import load
from hindcast.plan import definitions, journal
from hindcast.plan.marks import find_bound_contract
from hindcast.plan.runs import Abandoned, Completed, Outcome, Run
from hindcast.query import answers
from hindcast.query.explain_limits import NotExplainedError, refuse_unfit
from warehouses import RUNS, at, place, plan, report, row, shop, version, write

SOURCE = """
pipeline: src
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {cost: bigint}}
"""
READER = """
pipeline: rep
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {item: string}}
inputs:
  menu: {table: src.menu, key: {item: string}, value: {cost: bigint}}
views:
  costs: {stream: orders, join: {table: menu, on: item}, select: {item: orders.item, cost: cost}}
"""
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("outcome", "cost"),
    [
        (Abandoned("by a test", (), None), 8),
        (Abandoned("by a test", ("costs",), None), 99),
    ],
    ids=["abandoned", "abandoned once it was published"],
)
def test_an_input_is_read_as_the_run_read_it_that_made_the_row(tmp_path: Path, outcome: Outcome, cost: int) -> None:
    with shop(tmp_path, SOURCE, READER) as settings:
        source, reader = (find_bound_contract(settings, name) for name in ("src", "rep"))
        for number in (1, 2):
            warehouses.complete(settings, source, number)
        menu = [
            version(1, 2, 0, None, item="tea", cost=8, **place(0)),
            version(2, None, 0, None, item="tea", cost=99, **place(1)),
        ]
        write(settings, source, "menu", menu)

        def enter(number: int, known_at: datetime, pin: datetime, outcome: Outcome) -> None:
            past = journal.read_runs(settings.warehouse, "rep")
            run = Run(
                replace(
                    plan(reader, 1),
                    run=number,
                    run_id=f"run {number}",
                    known_at=known_at,
                    as_of_system_times={"menu": pin},
                    definition=definitions.list_unstored_fields(past, reader),
                )
            )
            journal.append_entry(settings.warehouse, run)
            journal.append_entry(settings.warehouse, replace(run, outcome=outcome))

        known_at = RUNS[0] + MINUTE
        enter(1, known_at, RUNS[0], Completed(report(reader, 1)))
        event = row(1, customer="ann", item="tea", timestamp=at(1), **place(0)) | {"systemFrom": known_at}
        write(settings, reader, "orders", [event])
        write(settings, reader, "costs", [event | {"cost": 8}])
        enter(2, RUNS[1] + MINUTE, RUNS[1], outcome)
        (answer,) = answers.explain_answers(
            settings, reader, "costs", ["ann"], clock.now(), RUNS[1] + 2 * MINUTE, {"rep", "src"}
        )
        shown = {part["name"]: [it["values"]["cost"] for it in part["rows"]] for part in answer.parts[1:]}
        assert shown == {"menu": [cost]}


def test_a_group_that_is_a_struct_is_not_looked_up() -> None:
    for value in ({"city": None, "zip": 9}, ["a"]):
        with pytest.raises(NotExplainedError, match="does not look up lists and structs"):
            refuse_unfit(["x", value])
    with pytest.raises(NotExplainedError, match="more than 1,000 characters"):
        refuse_unfit([None, "x" * 1_001])
    refuse_unfit([None, 1, "x", b"x"])


def test_a_key_that_is_cast_to_a_decimal_fits_that_decimal(tmp_path: Path) -> None:
    path = tmp_path / "cents.yaml"
    path.write_text(CENTS, encoding="utf-8")
    assert load(path).views["labels"].join is not None
    path.write_text(CENTS.replace("(8, 2))", "(9, 2))"), encoding="utf-8")
    with pytest.raises(ContractError, match=r"is decimal\(9,2\), but the key of cents is decimal\(8,2\)"):
        load(path)


CENTS = """
pipeline: cents
start: 2026-01-01
topics:
  sales: {read: stream, key: {id: string}, value: {amount: "decimal(8,2)"}}
  cents: {read: table, key: {cent: "decimal(8,2)"}, value: {label: string}}
views:
  labels: {stream: sales, join: {table: cents, on: "cast(amount * 2 as decimal(8, 2))"}, select: {label: label}}
"""
