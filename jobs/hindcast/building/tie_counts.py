"""The ties of what a run brings to a topic's table (corrected/ties.py): found beside the change, counted with it.

What is held back ties with nothing: its ties are counted by the run that publishes it. Looked at are the records that a
run publishes and what lies near them, so the cost follows the change; of a topic of one partition
the run's records alone: whatever they tie with before, they are rightly the later ones. Not looked for they are where
nobody could miss one, in one partition without a gate; and, but for the gate `expect_ties_to_be_ordered`, where more
than a million records are derived whole, which would take all of them once more.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.contracts.expectation import TIES
from hindcast.corrected import derive, ties
from hindcast.corrected.islands import Near
from hindcast.delta import tables
from hindcast.planning.plans import Plan


def are_scattered(todo: Plan, name: str) -> bool:
    """Return whether a topic has several partitions, so that one key can be in more than one of them."""
    return name in todo.topics and len(todo.topics[name].ranges) > 1


def are_looked_for(contract: Contract, todo: Plan, name: str, derived: int = 0) -> bool:
    """Return whether a run counts the ties of a topic; `derived`: of how many records its table is derived whole."""
    gates = contract.expectations(name)
    if any(gate.type == TIES for gate in gates):
        return True
    return derived <= tables.LARGE and (bool(gates) or are_scattered(todo, name))


def find_in_increment(
    contract: Contract, todo: Plan, name: str, new: DataFrame, log: Near, believed: DataFrame
) -> DataFrame:
    """Return the ties of new records (`TopicRecords.unpublished`); `log` gives those accepted before near some periods,
    `believed` rows of keys.
    """
    own = derive.positioned(new)
    if not are_scattered(todo, name):
        return ties.find_ties(own)
    instants = new.select(F.col("timestamp").alias("start"), F.col("timestamp").alias("end"))
    earlier = _of_keys(derive.positioned(log(instants)), own)
    near = None
    if todo.topics[name].epoch == 0:  # rows do not tell of what epoch they are
        key = derive.keyed({column: F.col(f"`{column}`") for column in contract.topics[name].key})
        near = believed.select(key.alias("key"), derive.position(*derive.PLACES["position"]))
    return ties.find_ties(own, earlier, near)


def find_in_whole(todo: Plan, name: str, came: DataFrame, earlier: DataFrame | None) -> DataFrame:
    """Return the ties of records of a topic that is derived whole, among themselves and with those `earlier`."""
    new = derive.positioned(came)
    if earlier is None or not are_scattered(todo, name):
        return ties.find_ties(new)
    return ties.find_ties(new, _of_keys(derive.positioned(earlier), new))


def _of_keys(records: DataFrame, new: DataFrame) -> DataFrame:
    return records.join(new.select("key").distinct(), "key", "left_semi")


def note(told: dict[str, Any]) -> dict[str, Any]:
    """Return counts as a commit notes them: nothing where there are none, places as [partition, offset]."""
    counts = {what: told[what] for what in ("scattered", "lost", "replaced") if told[what]}
    if told["lost"]:
        counts |= {side: [told[side]["partition"], told[side]["offset"]] for side in ("loser", "winner")}
    return counts
