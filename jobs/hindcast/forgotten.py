"""Records that were forgotten (upkeep/forget.py): their places stay in the log, their bytes do not.

A forgotten record keeps its offset, its time, its fate and the run that brought it, so that the ledger tells the same.
Its key, value and headers are null, and `forgotten` in the log is the run that forgot it. No table is made of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.journal import Run

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
