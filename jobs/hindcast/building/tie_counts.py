"""The ties of what a run brings to a topic's table (corrected/ties.py): found beside the change, counted with it.

Looked at are the run's own records and what lies near them, so the cost follows the change; of a topic of one partition
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
    """Return the ties of new records; `log` gives those accepted before near some periods, `believed` rows of keys."""
    own = derive.positioned(new)
    if not are_scattered(todo, name):
        return ties.find_ties(own)
    instants = new.select(F.col("timestamp").alias("start"), F.col("timestamp").alias("end"))
    earlier = derive.positioned(log(instants))
    near = None
    if todo.topics[name].epoch == 0:  # rows do not tell of what epoch they are
        key = derive.keyed({column: F.col(f"`{column}`") for column in contract.topics[name].key})
        near = believed.select(key.alias("key"), derive.position(*derive.PLACES["position"]))
    return ties.find_ties(own, earlier, near)


def find_in_whole(todo: Plan, name: str, records: DataFrame, after: int) -> DataFrame:
    """Return the ties of all records of a topic that came after a run, among themselves and with those before."""
    new = derive.positioned(records.where(F.col("run") > after))
    if not after or not are_scattered(todo, name):
        return ties.find_ties(new)
    earlier = derive.positioned(records.where(F.col("run") <= after))
    return ties.find_ties(new, earlier.join(new.select("key").distinct(), "key", "left_semi"))


def note(told: dict[str, Any]) -> dict[str, Any]:
    """Return counts as a commit notes them: nothing where there are none, places as [partition, offset]."""
    counts = {what: told[what] for what in ("scattered", "lost", "replaced") if told[what]}
    if told["lost"]:
        counts |= {side: [told[side]["partition"], told[side]["offset"]] for side in ("loser", "winner")}
    return counts


def flatten(rows: DataFrame) -> DataFrame:
    """Return the new records as a gate looks at them: flat rows with `_unordered` and `_replaced`."""
    place = (F.col("position.partition").alias("_partition"), F.col("position.offset").alias("_offset"))
    marks = (F.col(name).alias(f"_{name}") for name in ("unordered", "replaced"))
    period = (F.col("timestamp").alias("validFrom"), F.lit(None).cast("timestamp").alias("validTo"))
    return rows.where("new").select("key.*", "value.*", *period, *place, *marks)
