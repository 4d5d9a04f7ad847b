"""The ties of the records that a run adds to a topic's table (bitemporal/ties.py), counted with its change.

Held records tie with nothing; the run that publishes them counts their ties. Only the records that a run publishes and
records near them are read, so the cost follows the change. In a topic of one partition only the run's records are read,
because they come after any earlier ones. Ties are not counted in one partition without a gate, where none can be wrong.
A kernel that derives a topic's versions counts the ties of its records, too (engine/version_ties.py).
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, ties
from hindcast.bitemporal.affected_periods import NearbyRows
from hindcast.contract import Contract
from hindcast.plan.plans import Plan
from hindcast.runs.change_statistics import CountedRow
from hindcast.store.commit_notes import TieCounts


def is_scattered(plan: Plan, name: str) -> bool:
    """Return whether a topic has several partitions, so that one key can be in more than one of them."""
    return name in plan.topics and len(plan.topics[name].ranges) > 1


def needs_tie_counts(contract: Contract, plan: Plan, name: str) -> bool:
    """Return whether a run counts the ties of a topic."""
    return bool(contract.expectations(name)) or is_scattered(plan, name)


def find_ties_in_increment(
    contract: Contract, plan: Plan, name: str, new: DataFrame, log: NearbyRows, current: DataFrame
) -> DataFrame:
    """Return the ties of new records (`TopicRecords.select_unpublished`) among themselves and with earlier ones.

    `log` returns the earlier accepted records near some periods; `current` are the table's rows of the keys concerned.
    """
    own = derivation.add_position(new)
    if not is_scattered(plan, name):
        return ties.find_ties(own)
    instants = new.select(F.col("timestamp").alias("start"), F.col("timestamp").alias("end"))
    earlier = _select_keys_of(derivation.add_position(log(instants)), own)
    near = None
    if plan.topics[name].epoch == 0:  # rows do not say which epoch they are from
        key = derivation.key_struct({column: F.col(f"`{column}`") for column in contract.topics[name].key})
        near = current.select(key.alias("key"), derivation.position_struct(*derivation.POSITION_COLUMNS["position"]))
    return ties.find_ties(own, earlier, near)


def find_ties_in_whole(plan: Plan, name: str, new: DataFrame, earlier: DataFrame | None) -> DataFrame:
    """Return the ties of new records of a topic that is derived whole, among themselves and with `earlier` ones."""
    new = derivation.add_position(new)
    if earlier is None or not is_scattered(plan, name):
        return ties.find_ties(new)
    return ties.find_ties(new, _select_keys_of(derivation.add_position(earlier), new))


def _select_keys_of(records: DataFrame, new: DataFrame) -> DataFrame:
    """Return the records whose key a new record has."""
    return records.join(new.select("key").distinct(), "key", "left_semi")


def summarize_ties(counted: CountedRow) -> TieCounts:
    """Return the tie counts of a row of `ties.count_ties`."""
    numbers = counted["scattered"], counted["lost"], counted["replaced"]
    sides = ((counted[side]["partition"], counted[side]["offset"]) for side in ("loser", "winner") if counted["lost"])
    return TieCounts(*numbers, *sides)
