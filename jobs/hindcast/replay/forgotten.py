"""Records that were forgotten (upkeep/forgetting/forget.py): their places stay in the log, their bytes do not.

A forgotten record keeps its offset, its time, its fate and the run that brought it, so that the ledger tells the same.
Its key, value and headers are null, and `forgotten` in the log is the run that forgot it. No table is made of it.

A key that was forgotten is known by its `digest`. Offsets that come before those which its run had passed, because
`from` has moved back, are of the past that was to be forgotten: of that key they are forgotten as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.kafka.topics import Offsets
from hindcast.planning.journal import Run

MARK = "forgotten"
"""The column of a log with the run that forgot the record; null for one that is not forgotten."""

SAID = "forgotten"
"""What stands in the place of a text that told of the key."""


def is_forgotten(rows: DataFrame) -> Column:
    """Whether a row of a log is forgotten; a log of which nothing ever was does not have the column."""
    return F.col(MARK).isNotNull() if MARK in rows.columns else F.lit(False)


def remembered(rows: DataFrame) -> DataFrame:
    """The rows of a log that are not forgotten."""
    return rows.where(~is_forgotten(rows)) if MARK in rows.columns else rows


def since(past: Iterable[Run], contract: Contract, name: str, after: int) -> bool:
    """Whether a run after the run `after` forgot something of which a table is made, be it finished or not.

    Then rows went from the tables without a trace on the system axis: what is made of them has to be derived whole.
    """
    topics = {run.plan["forgets"]["topic"] for run in past if run.number > after and "forgets" in run.plan}
    return any(topic in contract.topics and name in contract.below(topic) for topic in topics)


def digest(topic: str, key: Column) -> Column:
    """What tells a key of a topic apart without saying it: a sha256. `key`: a struct of the contract's columns."""
    return F.sha2(F.concat(F.lit(f"{topic}\n"), F.to_json(key, {"ignoreNullFields": "false"})), 256)


def again(judged: DataFrame, past: Iterable[Run], name: str, ranges: Mapping[int, Offsets]) -> DataFrame:
    """Judged records of a topic, of which those are forgotten whose key was, and that are older than its run.

    `judged` has the bytes (`key`, `value`, `headers`) and what they say (`_key`, `_value`); `ranges`: its offsets.
    """
    passed = [
        (run.number, run.plan["forgets"]["sha256"], it["partition"], it["start"])
        for run in past
        if run.plan.get("forgets", {}).get("topic") == name
        for it in run.plan["topics"].get(name, {}).get("partitions", ())
        if it["partition"] in ranges and ranges[it["partition"]].start < it["start"]
    ]
    if not passed:
        return judged
    its = digest(name, F.col("_key"))
    by = [
        F.when((its == sha256) & (F.col("partition") == partition) & (F.col("offset") < start), run)
        for run, sha256, partition, start in passed
    ]
    run = F.coalesce(*by).cast("long")
    gone = ("key", "value", "headers", "_key", "_value")
    marked = judged.withColumn(MARK, run)
    told = {name: F.when(~is_forgotten(marked), F.col(name)) for name in gone}
    reason = F.when(~is_forgotten(marked), F.col("reason")).otherwise(F.when(F.col("reason").isNotNull(), SAID))
    return marked.withColumns({**told, "reason": reason})
