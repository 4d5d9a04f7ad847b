"""`hold: row` on a topic that is read as a table: failing records count as not yet known.

The table is derived without them, and asked anew, until no gate finds another record to hold. A rule about values
blames the record of the failing row, one about periods all records of its key that the run has brought: one of them
made it fail. What is known already is never taken back, nor what a person has released: a rule about values passes over
a row that says what was believed before, for its end alone has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Expectation
from hindcast.contracts.shapes import PERIODS
from hindcast.corrected.plane import matching, without
from hindcast.quality import gates, holds
from hindcast.quality.candidates import Candidate
from hindcast.quality.expectations import looks_at, named
from hindcast.quality.units import RECORD
from hindcast.quality.verdicts import Verdict


class Records(NamedTuple):
    """The records that a table is derived of, as far as they can be held.

    `judged`: `record_rows`, and `_fresh`: whether a run brings it now, be it for the first time or once more. `derive`:
    makes the change of the table without some records (`RECORD`). `released`: those that a person has let pass, in this
    run or before.
    """

    judged: DataFrame
    derive: Callable[[DataFrame], DataFrame]
    released: DataFrame


def record_rows(records: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return decoded records as rows: the columns of key and value, `validFrom`, `RECORD`, `_key`, `_unit`, `_digest`.

    A tombstone has null in the columns of the value.
    """
    place = F.col("partition").alias(RECORD[0]), F.col("offset").alias(RECORD[1])
    rows = records.select("key.*", "value.*", F.col("timestamp").alias("validFrom"), *place, "_fresh")
    content = [F.col(f"`{column}`") for column in rows.columns if not column.startswith("_")]
    return rows.withColumns(
        {"_key": holds.key_of(key), "_unit": holds.key_of(RECORD), "_digest": F.xxhash64(holds.keyed(*content))}
    )


@contextmanager
def sifted_records(
    candidate: Candidate, expected: Sequence[Expectation], records: Records
) -> Iterator[tuple[Candidate, DataFrame | None, list[Verdict]]]:
    """Give what of a candidate may be published, the records that are held, and the verdicts of all gates, those of the
    others on what is left; as long as the block lasts.

    The records have `RECORD`, `_gate`, `_expectation` and `_reason`; None where none is held.
    """
    verdicts, passed, held = gates.check(candidate, expected), candidate, None
    failing = [v for v in verdicts if v.holds]
    try:
        while failing:
            more = _blamed_now(passed, expected, failing, records, held)
            if not more.take(1):
                break
            held = more if held is None else held.unionByName(more).localCheckpoint()
            change = records.derive(held.select(*RECORD).distinct()).persist()
            _close(passed, candidate)
            passed = candidate.replaced(change, held, RECORD)
            again = gates.check(passed, expected)
            failing = [v for v in again if v.holds]
            verdicts = [v if v.holds else anew for v, anew in zip(verdicts, again, strict=True)]
        yield passed, held, verdicts
    finally:
        _close(passed, candidate)


def _close(passed: Candidate, candidate: Candidate) -> None:
    if passed is not candidate:
        passed.close()
        passed.change.unpersist()


def _blamed_now(
    passed: Candidate,
    expected: Sequence[Expectation],
    failing: Sequence[Verdict],
    records: Records,
    held: DataFrame | None,
) -> DataFrame:
    """Return the records that failing gates blame and that are not held yet, each with the gate."""
    blamed = [
        _blamed(passed, expected[v.gate], records).select(
            *RECORD,
            F.lit(v.gate).alias("_gate"),
            F.lit(v.expectation).alias("_expectation"),
            F.lit(named(v.expectation, v.kwargs)).alias("_reason"),
        )
        for v in failing
    ]
    every = matching(reduce(DataFrame.unionByName, blamed), records.judged, RECORD)
    every = without(every, records.released, RECORD)
    return (every if held is None else without(every, held, RECORD)).localCheckpoint()


def _blamed(passed: Candidate, gate: Expectation, records: Records) -> DataFrame:
    """Return the records (`RECORD`) because of which a gate fails."""
    identity = passed.table.identity
    rows = matching(passed.rows(looks_at(gate)), gates.failing(passed, gate).select(*identity).distinct(), identity)
    if not is_about_periods(gate):
        closed = passed.change.where("change = 'close'")
        content = [c for c in closed.columns if not c.startswith("_") and c not in ("change", "validTo")]
        return without(rows, closed, content).select(*RECORD)
    rows = without(rows, records.released, RECORD).withColumn("_key", holds.key_of(passed.table.key))
    brought = records.judged.where("_fresh")
    alone = without(rows, brought, ["_key"]).select(*RECORD)
    return matching(brought, rows, ["_key"]).select(*RECORD).unionByName(alone)


def is_about_periods(gate: Expectation) -> bool:
    """Whether what a gate says of a row depends on how long it is valid, or on the rows beside it."""
    text = json.dumps(gate.kwargs, default=str)
    return looks_at(gate) != "change" or any(column in text for column in PERIODS["versions"])
