"""Programs of users beside runs: Spark's OPTIMIZE, REORG and VACUUM of any table, and those of delta-rs."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from crashes import watched
from hindcast.common.errors import HindcastError
from hindcast.common.session import override_conf
from pipelines import Pipeline, pipeline, tell, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: cafe
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: "decimal(8,2)"}
    history_retention: 10 seconds
    max_malformed: 5
  orders:
    read: stream
    max_malformed: 5
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    expect:
      - expect_column_values_to_be_between: {column: amount, max_value: 25}
        on_failure: quarantine
  spent: {stream: bills, aggregate: {spent: sum(amount), most: max(item)}}
  served: {stream: orders, join: {table: menu, on: item}, select: {item: orders.item, price: price}, semantics: kafka}
"""
STORY = (
    {
        "menu": [("curry", {"price": 8}, 0), ("soup", {"price": 5}, 0), ("curry", {"price": 10}, 4)],
        "orders": [("anna", {"item": "curry", "quantity": 1}, 1), ("bob", {"item": "soup", "quantity": 3}, 5)],
    },
    {
        "menu": [("curry", {"price": 9}, 2), ("cake", b"{", 5)],
        "orders": [("anna", {"item": "curry", "quantity": 3}, 3), ("bob", b"{", 6)],
    },
)


class Neighbour:
    """Somebody who works on the tables of a pipeline with programs of his own, at each commit of a run."""

    def __init__(self, spark: SparkSession, p: Pipeline, seed: int) -> None:
        self._spark, self._folder = spark, Path(p.warehouse, p.name)
        self._chance = random.Random(seed)  # noqa: S311
        self.done: list[str] = []

    def work(self, place: str) -> None:
        """Rewrite the files of a table before a run commits to it; after it remove what no version needs any more."""
        when, _, rest = place.partition(" committing to ")
        if not rest:
            return
        others = sorted(log.parent for log in self._folder.rglob("_delta_log"))
        tables = [self._folder / rest.split(" in run")[0], self._chance.choice(others)]
        for path in filter(Path.exists, tables):
            program = self._chance.choice(REWRITING) if when == "before" else "VACUUM ... RETAIN 0 HOURS"
            with contextlib.suppress(PySparkException, Py4JJavaError, DeltaError):  # his own affair
                self._do(program, path)
                self.done.append(f"{program}: {path.relative_to(self._folder)}")

    def _do(self, program: str, path: Path) -> None:
        match program:
            case "compact":
                DeltaTable(path).optimize.compact()
            case "z_order":
                DeltaTable(path).optimize.z_order([DeltaTable(path).schema().fields[0].name])
            case "REORG ... APPLY (PURGE)":
                self._spark.sql(f"REORG TABLE delta.`{path}` APPLY (PURGE)").collect()
            case "OPTIMIZE":
                self._spark.sql(f"OPTIMIZE delta.`{path}`").collect()
            case _:
                with override_conf(self._spark, AT_ONCE):
                    self._spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS").collect()


AT_ONCE = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",  # or there are 10,000 tasks
}
REWRITING = ("OPTIMIZE", "REORG ... APPLY (PURGE)", "compact", "z_order")


def undisturbed(spark: SparkSession, broker: str, folder: Path) -> dict[str, object]:
    folder.mkdir()
    with pipeline(spark, broker, folder, CONTRACT) as p:
        for story in STORY:
            tell(p, story)
            p.run()
        return said(p)


def said(p: Pipeline) -> dict[str, object]:
    names = (*p.contract.topics, *p.contract.views)
    return {name: p.history(name) for name in names} | {topic: p.fates(topic) for topic in p.contract.topics}


@pytest.mark.long
def test_programs_of_users_beside_runs(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Runs succeed or fail with an error of ours, a repeat succeeds, and what tables say is as without them."""
    expected = undisturbed(spark, broker, tmp_path / "calm")
    (tmp_path / "busy").mkdir()
    with pipeline(spark, broker, tmp_path / "busy", CONTRACT) as p:
        for number, story in enumerate(STORY, 1):
            tell(p, story)
            neighbour = Neighbour(spark, p, number)
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(HindcastError):
                watched(neighbour.work, patch.setattr)
                p.run(f"run {number}")
            assert len({done.partition(":")[0] for done in neighbour.done}) > 2, neighbour.done
            if p.states()[-1] != (number, "completed"):
                p.run(f"run {number}")
            assert p.states()[-1] == (number, "completed")
        assert said(p) == expected
        assert wrong(p) == []
