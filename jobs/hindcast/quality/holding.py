"""Quarantine gates: which changes a run holds back, and what becomes of those that were held before.

The whole change of a key with a failing row is held: the key stays as believed before. With `hold: row` less is
(units.py). A later run that brings something for a held key, or has another contract, derives anew what was held of it
(changes.py), so what passes by then is published (mended); what a person has released is, if it is still as it was
looked at.
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
from hindcast.planning.plans import Plan
from hindcast.quality import gates, holds
from hindcast.quality.candidates import Candidate
from hindcast.quality.expectations import implementation, named, row_by_row
from hindcast.quality.row_holds import Records, sifted_records
from hindcast.quality.units import RECORD, holds_rows, rows_held_back, with_units
from hindcast.quality.verdicts import Verdict


class Held(NamedTuple):
    """What is held back: how many keys, the rows of their changes; and what became of units that were, by entry.

    `rows`: rows of the change, with `_key`, `_unit`, `_since`, `_digest` and, of failing ones, `_gate`, `_expectation`
    and `_reason`; `_new` tells whether the unit's change was not held before as it is. `back`: the rows of the change
    that are not published; None where the change was derived without what is held.
    """

    keys: int
    rows: DataFrame
    ended: dict[str, DataFrame]
    back: DataFrame | None = None


class Judged(NamedTuple):
    """What a step has to say about what is held of its table.

    `again`: of `holds.waiting` what it has derived anew; None: all. What it has not stays held. `records`: for
    `hold: row` on a topic that is read as a table.
    """

    again: DataFrame | None = None
    records: Records | None = None


def held(
    candidate: Candidate, failed: Sequence[Expectation], after: int, again: DataFrame | None = None
) -> Held | None:
    """What of a candidate is held back, given the quarantine gates that failed; None if none did and nothing was held.

    `after`: the run that had published the table last; `again`: as `Judged` has it. What a person has released as it
    is, is not held.
    """
    spark, table = candidate.change.sparkSession, candidate.table
    waiting = _waiting(candidate)
    if waiting is None and not failed:
        return None
    waiting = spark.createDataFrame([], holds.WAITING) if waiting is None else waiting
    found = _failing(candidate, failed)
    own = with_units(candidate.change, candidate.contract, table)
    place = F.struct(*(F.col(f"`{column}`") for column in table.identity))
    alike = found.select(F.col("_place").alias("_failed")).distinct()
    if holds_rows(candidate.contract, candidate.name):
        failing = own.where("change = 'open'").join(alike, place == F.col("_failed"), "left_semi").select("_unit")
    else:
        failing = found.select(F.col("_key").alias("_unit"))
    told = holds.digest(own.join(failing.distinct(), "_unit", "left_semi"))
    judged = _judged(candidate, told, waiting, after)
    keys = judged.where("NOT passing").select(*(F.col(name).alias(f"_{name}") for name in _HELD)).drop("_key")
    back = rows_held_back(own, keys, candidate.contract, table).localCheckpoint()
    why = _reasons(found, "_place")
    rows = (
        own.join(keys, "_unit")
        .join(why, (place == F.col("_place")) & (F.col("change") == "open"), "left")
        .drop("_place")
    )
    asked = waiting if again is None else waiting.join(_units(again), ["key", "unit"], "left_semi")
    return _held(candidate, judged, rows, asked)._replace(back=back)


def held_records(
    candidate: Candidate, blamed: DataFrame | None, records: Records, after: int, again: DataFrame | None
) -> Held | None:
    """The same of records (`row_holds.sifted_records`): those that gates blame, and what became of others."""
    waiting = _waiting(candidate)
    if waiting is None and blamed is None:
        return None
    spark = candidate.change.sparkSession
    waiting = spark.createDataFrame([], holds.WAITING) if waiting is None else waiting
    rows = records.judged.withColumn("change", F.lit("open"))
    if blamed is None:
        rows = rows.where("false").withColumns({"_gate": F.lit(0), "_expectation": F.lit(""), "_reason": F.lit("")})
    else:
        place = F.struct(*RECORD)
        why = _reasons(blamed.withColumn("_place", place), "_place")
        rows = rows.join(why, place == F.col("_place")).drop("_place")
    told = rows.select(*(F.col(f"_{name}").alias(name) for name in ("key", "unit", "digest")))
    judged = _judged(candidate, told, waiting, after)
    keys = judged.select(*(F.col(name).alias(f"_{name}") for name in _HELD)).drop("_key", "_digest")
    asked = waiting if again is None else waiting.join(_units(again), ["key", "unit"], "left_semi")
    return _held(candidate, judged, rows.join(keys, "_unit"), asked)


def released_units(plan: Plan, name: str, waiting: DataFrame) -> DataFrame:
    """Return what of `waiting` a plan releases as it was looked at."""
    release = plan.releases.get(name)
    if release is None:
        return waiting.where("false")
    looked_at = F.col("at") <= F.lit(datetime.fromisoformat(release["until"]))
    # Rows, not literals: a person may release very many keys.
    keys = waiting.sparkSession.createDataFrame([[key] for key in release["keys"]], "key string").distinct()
    return waiting.where(looked_at).join(keys, "key", "left_semi").select(*waiting.columns)


def _waiting(candidate: Candidate) -> DataFrame | None:
    """Return what is held of a table (`holds.waiting`), with `unit` never null: a whole key is its own."""
    table, spark = candidate.table, candidate.change.sparkSession
    found = holds.waiting(spark, table.warehouse, table.pipeline, candidate.name, before=candidate.todo.run)
    return None if found is None else _units(found)


def _units(waiting: DataFrame) -> DataFrame:
    return waiting.withColumn("unit", F.coalesce("unit", "key"))


def _judged(candidate: Candidate, told: DataFrame, waiting: DataFrame, after: int) -> DataFrame:
    """Return failing units (`key`, `unit`, `digest`) with `since`; whether they are `new`; and whether they are
    `passing`, for a person has released them as they are.
    """
    table = candidate.table
    before = waiting.select("unit", F.col("digest").alias("_seen"))
    # Of the key: a unit may have another name when it fails again, as a session that has grown
    behind = waiting.groupBy("key").agg(F.min("since").alias("_before"))
    released = released_units(candidate.todo, candidate.name, waiting).select("unit", F.lit(True).alias("_released"))
    known = F.col("digest").eqNullSafe(F.col("_seen"))
    settled = F.lit(journal.settled(journal.runs(table.warehouse, table.pipeline), after))
    return (
        told.join(before, "unit", "left")
        .join(behind, "key", "left")
        .join(released, "unit", "left")
        .select(
            *("key", "unit", "digest"),
            F.coalesce("_before", settled).alias("since"),
            (~known).alias("new"),
            (known & F.coalesce("_released", F.lit(False))).alias("passing"),
        )
        .localCheckpoint()
    )


def _held(candidate: Candidate, judged: DataFrame, rows: DataFrame, asked: DataFrame) -> Held:
    """Return what is held, given the `judged` units; of what is `asked` anew the others are held no more."""
    ended = asked.join(judged.where("NOT passing").select("unit"), "unit", "left_anti")
    released = released_units(candidate.todo, candidate.name, asked).select("unit")
    return Held(
        judged.where("NOT passing").select("key").distinct().count(),
        rows,
        {"released": ended.join(released, "unit", "left_semi"), "mended": ended.join(released, "unit", "left_anti")},
    )


def _reasons(found: DataFrame, place: str) -> DataFrame:
    """Return for each failing row the first gate that it fails, and all reasons."""
    return found.groupBy(place).agg(
        F.min("_gate").alias("_gate"),
        F.min_by("_expectation", "_gate").alias("_expectation"),
        F.array_join(F.sort_array(F.collect_set("_reason")), "; ").alias("_reason"),
    )


@contextmanager
def sifted(
    candidate: Candidate, expected: Sequence[Expectation], after: int, judged: Judged | None = None
) -> Iterator[tuple[Candidate, Held | None, list[Verdict]]]:
    """What of a candidate quarantine gates let pass, what they hold back (`held`), and the verdicts of all gates, those
    of the others on what is left; as long as the block lasts.
    """
    judged = judged or Judged()
    if judged.records is not None:
        with sifted_records(candidate, expected, judged.records) as (passed, blamed, told):
            yield passed, held_records(candidate, blamed, judged.records, after, judged.again), told
        return
    told = gates.check(candidate, expected)
    passed, found = candidate, held(candidate, _holding(told, expected), after, judged.again)
    try:
        while found is not None and found.keys and found.back is not None:
            # Of what is left other gates may fail, also quarantine gates: until none does that held nothing before.
            _close(passed, candidate)
            passed = candidate.without(found.back)
            again = gates.check(passed, expected)
            settled = not any(anew.holds and not v.holds for v, anew in zip(told, again, strict=True))
            told = [v if v.holds else anew for v, anew in zip(told, again, strict=True)]
            if settled:
                break
            found = held(candidate, _holding(told, expected), after, judged.again)
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
            found = gates.find_failing_rows(passed, gate).withColumns(
                {name: F.lit(value) for name, value in why.items()}
            )
            told.append(rows(found, "stopped" if gate.on_failure == "stop" else "warned"))
    _commit(passed, told, passed.name)
    if held is None or stopped:
        return
    by = todo.releases.get(passed.name, {}).get("by")
    changed = [
        holds.ended(keys, table, entry, run=todo.run, at=at, by=by if entry == "released" else None)
        for entry, keys in held.ended.items()
    ]
    whole_keys_have_none = F.when(F.col("unit") != F.col("key"), F.col("unit"))
    entered = [rows(held.rows.where("_new"), "held"), *changed]
    _commit(passed, [part.withColumn("unit", whole_keys_have_none) for part in entered], f"{passed.name}/held")


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


_HELD = ("key", "unit", "digest", "since", "new")


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
