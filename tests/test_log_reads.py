"""How often a step reads the log of a Delta table: once, and twice more for each commit that it makes to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from hindcast.common.settings import read_settings
from hindcast.runs import run_steps
from pipelines import SEED, pipeline, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def count_log_reads(step: Callable[[], object]) -> Counter[str]:
    """Return how often a step opened each Delta table that exists, by its path."""
    reads: Counter[str] = Counter()
    open_table = DeltaTable.__init__

    def opened(self: DeltaTable, path: Any, *rest: Any, **options: Any) -> None:
        open_table(self, path, *rest, **options)
        reads[str(path)] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaTable, "__init__", opened)
        step()
    return reads


@pytest.mark.long
@pytest.mark.ci
def test_a_step_reads_each_log_once_and_again_for_its_own_commits(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        p.run("first")
        p.send("menu", ("curry", {"price": 9}, 9))
        p.send("orders", ("ann", {"item": "curry", "quantity": 1}, 11))
        number = run_steps.plan_run(read_settings(), p.name, "second")
        steps = {
            "menu": lambda: run_steps.replay_topic(spark, read_settings(), p.name, number, "menu"),
            "orders": lambda: run_steps.replay_topic(spark, read_settings(), p.name, number, "orders"),
            "bills": lambda: run_steps.build_view(spark, read_settings(), p.name, number, "bills"),
        }
        for name, step in steps.items():
            folders = [str(log.parent) for log in Path(p.warehouse).rglob("_delta_log")]
            before = {folder: DeltaTable(folder).version() for folder in folders}
            reads = count_log_reads(step)
            commits = {folder: DeltaTable(folder).version() - version for folder, version in before.items()}
            assert commits[f"{p.warehouse}/{p.name}/{name}"] == 1
            allowed = {folder: 1 + 2 * commits.get(folder, 0) for folder in reads}
            assert {folder: n for folder, n in reads.items() if n > allowed[folder]} == {}, name
            assert reads[f"{p.warehouse}/{p.name}/runs"] <= 1, "the journal"
