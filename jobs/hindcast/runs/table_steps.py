"""The steps that a run does for each table, between its plan and its report. Importing this module needs no Spark.

The DAG makes a task of each step and table (airflow/dag_factory.py), spark-submit starts jobs/NAME.py for one of them,
and `run_steps.execute_table_steps` does them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from hindcast.contract import Contract


class TableStep(NamedTuple):
    """A step by the name that its job, its task group and its events have (`run_steps.execute_step`)."""

    name: str
    per: Literal["topic", "view"]
    summary: str

    def list_tables(self, contract: Contract) -> tuple[str, ...]:
        """Return the topics, or the views in the order in which they need each other."""
        return tuple(contract.topics) if self.per == "topic" else contract.ordered_views


TABLE_STEPS = {
    step.name: step
    for step in (
        TableStep("replay", "topic", "Kafka to log and table"),
        TableStep("build", "view", "derive, gate, publish"),
    )
}
"""The steps by name, in the order of a run."""
