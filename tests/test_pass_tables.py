"""The rows of a table over the dates of a pass, beside a plain list of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hindcast.engine import pass_tables
from hindcast.engine.increment_rows import Among
from hindcast.engine.pass_tables import NEVER, ROW, STORED, PassTable
from hindcast.engine.sweeps import FOREVER
from hindcast.store.tables import ARROW_TIMESTAMP


def build(rows: list[dict[str, Any]], periods: tuple[str, ...]) -> pa.Table:
    columns = {"id": pa.array([row["id"] for row in rows], pa.int64())}
    columns["key"] = pa.array([row["key"] for row in rows], pa.string())
    for name in periods:
        columns[name] = pa.array([row[name] for row in rows], pa.int64()).cast(ARROW_TIMESTAMP)
    return pa.table(columns)


def last(row: dict[str, Any], periods: tuple[str, ...]) -> int:
    end = row[periods[-1]]
    return FOREVER if end is None else end


@pytest.mark.parametrize("periods", [("timestamp",), ("validFrom", "validTo")])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_near_is_found_whatever_was_closed_and_merged(
    monkeypatch: pytest.MonkeyPatch, periods: tuple[str, ...], seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  # any will do
    monkeypatch.setattr(pass_tables, "_MERGED", 3)
    numbers = iter(range(10_000))

    def draw(count: int) -> list[dict[str, Any]]:
        rows = []
        for _ in range(count):
            start = chance.randrange(50)
            ends = {"validTo": chance.choice([None, start + chance.randrange(1, 20)])} if periods[1:] else {}
            rows.append({"id": next(numbers), "key": chance.choice("abcd"), periods[0]: start, **ends})
        return rows

    stored = draw(chance.choice([0, 5]))
    table = PassTable(periods, build(stored, periods))
    dates = {row["id"]: [STORED, NEVER] for row in stored}
    known = list(stored)
    for date in range(25):
        current = [row for row in known if dates[row["id"]][1] == NEVER]
        low = chance.randrange(50)
        high = chance.choice([FOREVER, low + chance.randrange(20)])
        touching = {row["id"] for row in current if row[periods[0]] <= high and last(row, periods) >= low}
        near = table.read_near((low, high))
        assert {*near.column("id").to_pylist()} == touching
        assert near.column(periods[0]).to_pylist() == sorted(near.column(periods[0]).to_pylist())

        keys = chance.sample("abcd", 2)
        lows = np.array([chance.randrange(50) for _ in keys])
        among = Among(("key",), (pa.chunked_array([keys]),), lows, lows + chance.randrange(9))
        found = {*table.read_near((low, high), among).column("id").to_pylist()}
        assert found <= touching
        spans = dict(zip(keys, zip(among.low, among.high, strict=True), strict=True))
        needed = {
            row["id"]
            for row in current
            if row["id"] in touching and row["key"] in spans
            if row[periods[0]] <= spans[row["key"]][1] and last(row, periods) >= spans[row["key"]][0]
        }
        assert needed <= found

        closed = near.filter(pa.array([chance.random() < 0.3 for _ in range(near.num_rows)], pa.bool_()))
        opened = draw(chance.choice([0, 1, 8]))
        change = table.change_rows(date, build(opened, periods), closed)
        assert {*change.opened.column("id").to_pylist()} == {row["id"] for row in opened}
        assert {*change.closed.column("id").to_pylist()} == {*closed.column("id").to_pylist()}
        assert ROW not in change.closed.column_names
        for number in closed.column("id").to_pylist():
            dates[number][1] = date
        dates |= {row["id"]: [date, NEVER] for row in opened}
        known += opened
    history = table.list_history()
    assert {
        number: [*both]
        for number, *both in zip(
            history.rows.column("id").to_pylist(), history.opened.tolist(), history.closed.tolist(), strict=True
        )
    } == dates
