"""Quarantine gates: which changes a run holds back, and what becomes of those that were held before.

The whole change of a key with a failing row is held: the key stays as believed before. Every later run derives what was
held anew (changes.py), so a key whose change passes by then is published (mended); one that a person has released is,
if its change is still the one that was looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Contract, Expectation
from hindcast.contracts.sensitive import sensitive
from hindcast.delta import commits, contents, making, tables
from hindcast.kafka import members
from hindcast.planning import journal, plans
from hindcast.quality import gates, holds
from hindcast.quality.candidates import Candidate
from hindcast.quality.expectations import implementation, named, row_by_row
from hindcast.quality.verdicts import Verdict


class Held(NamedTuple):
    """What is held back: how many keys, the rows of their changes; and what became of keys that were, by entry.

    `rows`: rows of the change, with `_key`, `_since`, `_digest` and, of failing ones, `_gate`, `_expectation` and
    `_reason`; `_new` tells whether the key's change was not held before as it is.
    """

    keys: int
    rows: DataFrame
    ended: dict[str, DataFrame]


def held(candidate: Candidate, failed: Sequence[Expectation], after: int) -> Held | None:
    """What of a candidate is held back, given the quarantine gates that failed; None if none did and nothing was held.

    `after`: the run that had published the table last. What a person has released as it is, is not held.
    """
    spark, todo, table = candidate.change.sparkSession, candidate.todo, candidate.table
    pipeline, release = candidate.contract.pipeline, todo.releases.get(candidate.name)
    waiting = holds.waiting(spark, table.warehouse, pipeline, candidate.name, before=todo.run)
    if waiting is None and not failed:
        return None
    if waiting is None:
        waiting = spark.createDataFrame([], holds.WAITING)
    found = _failing(candidate, failed)
    own = candidate.change.withColumn("_key", holds.key_of(candidate.table.key))
    told = holds.digest(own.join(found.select("_key").distinct(), "_key", "left_semi"), table.key)
    before = waiting.select("key", F.col("since").alias("_before"), F.col("digest").alias("_seen"), "at")
    told = told.join(before, "key", "left")
    known = F.col("digest").eqNullSafe(F.col("_seen"))
    passing = F.lit(False)
    if release is not None:
        looked_at = F.col("at") <= F.lit(datetime.fromisoformat(release["until"]))
        # Rows, not literals: a person may release very many keys.
        keys = spark.createDataFrame([[key] for key in release["keys"]], "key string").distinct()
        told = told.join(keys.withColumn("_released", F.lit(True)), "key", "left")
        passing = known & looked_at & F.coalesce("_released", F.lit(False))
    since = F.coalesce("_before", F.lit(journal.settled(journal.runs(table.warehouse, pipeline), after)))
    judged = told.select(
        "key", "digest", since.alias("since"), (~known).alias("new"), passing.alias("passing")
    ).localCheckpoint()
    keys = judged.where("NOT passing").select(*(F.col(name).alias(f"_{name}") for name in _HELD))
    place = F.struct(*(F.col(f"`{column}`") for column in table.identity))
    why = found.groupBy("_place").agg(
        F.min("_gate").alias("_gate"),
        F.min_by("_expectation", "_gate").alias("_expectation"),
        F.array_join(F.sort_array(F.collect_set("_reason")), "; ").alias("_reason"),
    )
    rows = (
        own.join(keys, "_key")
        .join(why, (place == F.col("_place")) & (F.col("change") == "open"), "left")
        .drop("_place")
    )
    released = judged.where("passing").select("key")
    ended = waiting.join(judged.where("NOT passing").select("key"), "key", "left_anti")
    return Held(
        judged.where("NOT passing").count(),
        rows,
        {"released": ended.join(released, "key", "left_semi"), "mended": ended.join(released, "key", "left_anti")},
    )


@contextmanager
def sifted(
    candidate: Candidate, expected: Sequence[Expectation], after: int
) -> Iterator[tuple[Candidate, Held | None, list[Verdict]]]:
    """What of a candidate quarantine gates let pass, what they hold back (`held`), and the verdicts of all gates, those
    of the others on what is left; as long as the block lasts.
    """
    told = gates.check(candidate, expected)
    passed, found = candidate, held(candidate, _holding(told, expected), after)
    try:
        while found is not None and found.keys:
            # Of what is left other gates may fail, also quarantine gates: until none does that held nothing before.
            _close(passed, candidate)
            passed = candidate.without(found.rows)
            again = gates.check(passed, expected)
            settled = not any(anew.holds and not v.holds for v, anew in zip(told, again, strict=True))
            told = [v if v.holds else anew for v, anew in zip(told, again, strict=True)]
            if settled:
                break
            found = held(candidate, _holding(told, expected), after)
        yield passed, found, told
    finally:
        _close(passed, candidate)


def _holding(told: Sequence[Verdict], expected: Sequence[Expectation]) -> list[Expectation]:
    """The quarantine gates that failed."""
    return [expected[v.gate] for v in told if v.holds]


def _close(passed: Candidate, candidate: Candidate) -> None:
    """Frees what is left of a candidate, unless that is all of it."""
    if passed is not candidate:
        passed.close()
        passed.change.unpersist()


def enter(
    passed: Candidate, failed: Sequence[tuple[Expectation, Verdict]], held: Held | None, *, stopped: bool
) -> None:
    """Enters the failing rows of the other gates that failed, and what is held and released: a commit each.

    Where the table is `stopped`, nothing of it is held or released.
    """
    contract, todo, table = passed.contract, passed.todo, passed.table
    at = contents.next_moment(tables.opened(holds.table(table.warehouse, contract.pipeline)))
    place = _place(contract, table.warehouse, passed.name)
    shown = set(passed.change.columns) - {"change"} - sensitive(contract)[passed.name]
    shown = {column for column in shown if not column.startswith("_")}

    def rows(found: DataFrame, entry: str) -> DataFrame:
        return holds.entries(found, table, entry, run=todo.run, at=at, place=place, shown=shown)

    told = []
    for gate, verdict in failed:
        if row_by_row(implementation(gate.type)) and verdict.failing:
            why = {"_gate": verdict.gate, "_expectation": gate.type, "_reason": named(gate.type, gate.kwargs)}
            found = gates.failing(passed, gate).withColumns({name: F.lit(value) for name, value in why.items()})
            told.append(rows(found, "stopped" if gate.on_failure == "stop" else "warned"))
    _commit(passed, told, passed.name)
    if held is None or stopped:
        return
    by = todo.releases.get(passed.name, {}).get("by")
    changed = [
        holds.ended(keys, table, entry, run=todo.run, at=at, by=by if entry == "released" else None)
        for entry, keys in held.ended.items()
    ]
    _commit(passed, [rows(held.rows.where("_new"), "held"), *changed], f"{passed.name}/held")


def _commit(passed: Candidate, parts: Sequence[DataFrame], name: str) -> None:
    """One commit of entries, unless there are none."""
    if not parts:
        return
    every = reduce(DataFrame.unionByName, parts).persist()
    if every.take(1):
        failing = holds.table(passed.table.warehouse, passed.contract.pipeline)
        making.ensure(failing, holds.SCHEMA)
        commits.append(every, failing, passed.todo.run, {"run": passed.todo.run}, part=name)
    every.unpersist()


_HELD = ("key", "digest", "since", "new")


def _failing(candidate: Candidate, failed: Sequence[Expectation]) -> DataFrame:
    """The failing rows of quarantine gates: `_key`, `_place` (their identity), `_gate`, `_expectation`, `_reason`."""
    expected = candidate.contract.expectations(candidate.name)
    place = F.struct(*(F.col(f"`{column}`") for column in candidate.table.identity)).alias("_place")
    parts = [
        gates.failing(candidate, gate).select(
            holds.key_of(candidate.table.key).alias("_key"),
            place,
            F.lit(expected.index(gate)).alias("_gate"),
            F.lit(gate.type).alias("_expectation"),
            F.lit(named(gate.type, gate.kwargs)).alias("_reason"),
        )
        for gate in failed
    ]
    if not parts:
        none = candidate.change.select(holds.key_of(candidate.table.key).alias("_key"), place).where("false")
        return none.withColumns({"_gate": F.lit(0), "_expectation": F.lit(""), "_reason": F.lit("")})
    return reduce(DataFrame.unionByName, parts).localCheckpoint()


def _place(contract: Contract, warehouse: str, name: str) -> dict[str, Column]:
    """The Kafka topic and partition of the record that `_partition` of a table's rows tells; no topic of another
    pipeline's.
    """
    while name in contract.views:
        name = contract.views[name].first
    kafka = contract.kafka_topic(name) if name in contract.topics else None
    known = members.columns(plans.known_members(warehouse, contract, name), "_partition")
    topic, partition = known.get("topic", F.lit(kafka)), known.get("topicPartition", F.col("_partition"))
    return {"topic": topic, "partition": partition}
