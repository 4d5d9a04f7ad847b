"""What another definition, or a forgetting, changes of a held key is held with it, and published with it: also what it
makes of records of before.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.common.settings import read_settings
from hindcast.ops.erase import forget, records
from hindcast.quality import held_changes
from hindcast.runs import incremental_state, special_runs
from pipelines import Pipeline, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GATE = "expect: [{expect_column_values_to_be_between: {column: n, min_value: 5}, on_failure: quarantine}]"
CONTRACT = f"""
pipeline: shop
start: 2026-01-01
topics:
  orders: {{read: stream, key: {{id: string}}, value: {{n: int}}, {GATE}}}
  visits: {{read: stream, key: {{id: string}}, value: {{n: int}}, hold: row, {GATE}}}
  menu: {{read: table, key: {{id: string}}, value: {{n: int}}, {GATE}}}
"""
ANOTHER = CONTRACT.replace("value: {n: int}, ", "value: {n: int, of: string}, ")


def release(p: Pipeline, name: str, *keys: str) -> None:
    assert p.spark is not None
    named = {name: held_changes.find_held_keys(p.warehouse, p.name, name, keys)}
    special_runs.run_release(
        p.spark, read_settings(), p.name, f"release {name} {keys}", named, "ann", datetime.now(UTC)
    )


def believed(p: Pipeline, name: str) -> set[tuple[Any, ...]]:
    return {*p.believed(name)}


def held(p: Pipeline) -> set[tuple[str, str]]:
    return {(row["table"], row["key"][7:-2]) for row in held_changes.read_held_rows(p.warehouse, p.name).to_pylist()}


@pytest.mark.long
def test_what_another_definition_changes_of_a_held_key_is_held_and_published_whole(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        for name in ("orders", "visits"):
            p.send(name, ("ann", {"n": 1, "of": "x"}, 1), ("bob", {"n": 7, "of": "x"}, 2), ("eve", {"n": 2}, 1))
        p.send("menu", ("tea", {"n": 1, "of": "x"}, 0), ("tea", {"n": 7, "of": "x"}, 10), ("pie", {"n": 2}, 0))
        p.run()
        for name in p.contract.topics:
            release(p, name)
        assert not held(p)
        # Everything is decoded anew; what fails of it is held, as it is decoded now.
        p.write(ANOTHER)
        p.run()
        everybody = {("orders", "ann"), ("visits", "ann"), ("menu", "tea")}
        assert held(p) == everybody
        of_ann, of_eve = ("ann", 1, None, 1), ("eve", 2, None, 1)
        before = {of_ann, ("bob", 7, "x", 2), of_eve}
        assert believed(p, "orders") == believed(p, "visits") == before
        assert p.believed("menu") == [("pie", 2, None, 0, None), ("tea", 1, None, 0, 10), ("tea", 7, None, 10, None)]

        # A right record of a held key does not make those of before right.
        for name in ("orders", "visits"):
            p.send(name, ("ann", {"n": 8, "of": "x"}, 3))
        p.send("menu", ("tea", {"n": 8, "of": "x"}, 20))
        p.run()
        assert held(p) == everybody
        assert believed(p, "orders") == before
        assert believed(p, "visits") == {*before, ("ann", 8, "x", 3)}
        assert len(p.believed("menu")) == 3
        assert not wrong(p)

        # Released, all of it is published: what was believed of before is closed.
        for name in p.contract.topics:
            release(p, name)
        assert not held(p)
        events = {("ann", 1, "x", 1), ("ann", 8, "x", 3), ("bob", 7, "x", 2), of_eve}
        assert believed(p, "orders") == believed(p, "visits") == events
        assert len(p.believed("visits")) == len(events)
        assert [row for row in p.believed("menu") if row[0] == "tea"] == [
            ("tea", 1, "x", 0, 10),
            ("tea", 7, "x", 10, 20),
            ("tea", 8, "x", 20, None),
        ]
        assert not wrong(p)


@pytest.mark.long
def test_what_a_forgetting_changes_of_a_held_key_is_held_and_published_whole(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        p.send("menu", ("tea", {"n": 1}, 0), ("tea", {"n": 7}, 10), ("tea", {"n": 8}, 20))
        p.run()
        release(p, "menu")
        # Without the second record the first lasts longer, which is a row that fails anew.
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "menu", None, ["0/1"]))
        assert held(p) == {("menu", "tea")}
        p.send("menu", ("tea", {"n": 9}, 30))
        p.run()
        assert held(p) == {("menu", "tea")}
        assert p.believed("menu") == [("tea", 1, 0, 10), ("tea", 8, 20, None)]
        release(p, "menu")
        assert p.believed("menu") == [("tea", 1, 0, 20), ("tea", 8, 20, 30), ("tea", 9, 30, None)]
        assert not held(p)
        assert not wrong(p)
