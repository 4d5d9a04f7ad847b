"""The steps that a run does for each table, between its plan and its report. Importing this module needs no Spark.

The DAG makes a task of each step and table (dags/pipelines.py), spark-submit starts jobs/NAME.py for one of them, and
`run_steps.execute_table_steps` does them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hindcast.common.json_values import JsonObject
    from hindcast.contract import Contract
    from hindcast.store.commit_notes import TableNote


class TableStep(NamedTuple):
    """A step by the name that its job, its task group and its events have; `function` is in `run_steps`."""

    name: str
    function: Literal["replay_topic", "build_view"]
    per: Literal["topic", "view"]
    summary: str

    def list_tables(self, contract: Contract) -> tuple[str, ...]:
        """Return the topics, or the views in the order in which they need each other."""
        return tuple(contract.topics) if self.per == "topic" else contract.ordered_views

    def execute(self, spark: SparkSession, pipeline: str, run: int, table: str) -> JsonObject:
        """Do the step for a table, and return the commit's note."""
        function = getattr(import_module("hindcast.runs.run_steps"), self.function)
        note: TableNote = function(spark, pipeline, run, table)
        return note.as_json()


TABLE_STEPS = {
    step.name: step
    for step in (
        TableStep("replay", "replay_topic", "topic", "Kafka to log and table"),
        TableStep("build", "build_view", "view", "derive, gate, publish"),
    )
}
"""The steps by name, in the order of a run."""
