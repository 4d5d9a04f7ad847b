"""`hold: row` on a topic that is read as a table: failing records count as not yet known.

The table is derived without them and judged again, until no gate finds another record to hold. A rule about values
blames the record of the failing row. A rule about periods blames all records of its key that the run has ingested: one
of them made it fail. What is known already is not taken back, nor what a person has released, unless all of it is
judged again: under another contract, or after a forgetting. A rule about values ignores a row whose content was current
before: only its end has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal.plane import drop_matching_rows, keep_matching_rows
from hindcast.contract import Expectation
from hindcast.contract.expectation import RESTATEMENT_RULE
from hindcast.contract.shapes import PERIODS
from hindcast.quality import entry_rows, gate_evaluation
from hindcast.quality.expectations import find_row_set, format_gate
from hindcast.quality.gate_results import GateResult
from hindcast.quality.held_units import RECORD_COLUMNS
from hindcast.quality.staged_change import StagedChange


class HoldableRecords(NamedTuple):
    """The records that a table is derived from, as far as they can be held.

    `rows`: as `record_rows` returns them; `_fresh` is true if this run ingests the record (also again).
    `derive`: returns the change of the table without some records (`RECORD_COLUMNS`). `released`: the records that a
    person has let pass, in this run or before.
    """

    rows: DataFrame
    derive: Callable[[DataFrame], DataFrame]
    released: DataFrame


def record_rows(records: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return decoded records as flat rows.

    Columns: those of key and value, `validFrom`, `RECORD_COLUMNS`, `_fresh`, `_key`, `_unit`, `_digest`. The value
    columns of a tombstone are null.
    """
    place = F.col("partition").alias(RECORD_COLUMNS[0]), F.col("offset").alias(RECORD_COLUMNS[1])
    rows = records.select("key.*", "value.*", F.col("timestamp").alias("validFrom"), *place, "_fresh")
    content = [F.col(f"`{column}`") for column in rows.columns if not column.startswith("_")]
    return rows.withColumns(
        {
            "_key": entry_rows.format_row_key(key),
            "_unit": entry_rows.format_row_key(RECORD_COLUMNS),
            "_digest": F.xxhash64(entry_rows.format_key(*content)),
        }
    )


@contextmanager
def sift_records(
    candidate: StagedChange, expected: Sequence[Expectation], records: HoldableRecords
) -> Iterator[tuple[StagedChange, DataFrame | None, list[GateResult]]]:
    """Yield what may be published of a candidate, the records that are held, and the results of all gates.

    The records have `RECORD_COLUMNS`, `_gate`, `_expectation` and `_reason`; None if none is held. Gates that hold
    nothing are evaluated on what is left. The change that is left is freed when the block ends.
    """
    results, passed, held = gate_evaluation.evaluate_gates(candidate, expected), candidate, None
    failing = [result for result in results if result.is_holding]
    try:
        while failing:
            more = _find_newly_blamed(passed, expected, failing, records, held)
            if not more.take(1):
                break
            held = more if held is None else held.unionByName(more).localCheckpoint()
            change = records.derive(held.select(*RECORD_COLUMNS).distinct()).persist()
            free_change(passed, candidate)
            passed = candidate.replace_change(change, held, RECORD_COLUMNS)
            new_results = gate_evaluation.evaluate_gates(passed, expected)
            failing = [result for result in new_results if result.is_holding]
            results = [old if old.is_holding else new for old, new in zip(results, new_results, strict=True)]
        yield passed, held, results
    finally:
        free_change(passed, candidate)


def free_change(passed: StagedChange, candidate: StagedChange) -> None:
    """Unpersist what is left of a candidate, unless that is the candidate itself."""
    if passed is not candidate:
        passed.close()
        passed.change.unpersist()


def _find_newly_blamed(
    passed: StagedChange,
    expected: Sequence[Expectation],
    failing: Sequence[GateResult],
    records: HoldableRecords,
    held: DataFrame | None,
) -> DataFrame:
    """Return the records that failing gates blame and that are not held yet, each with the gate."""
    blamed = [
        _find_blamed_records(passed, expected[result.gate], records).select(
            *RECORD_COLUMNS,
            F.lit(result.gate).alias("_gate"),
            F.lit(result.expectation).alias("_expectation"),
            F.lit(format_gate(result.expectation, result.kwargs)).alias("_reason"),
        )
        for result in failing
    ]
    holdable = keep_matching_rows(reduce(DataFrame.unionByName, blamed), records.rows, RECORD_COLUMNS)
    holdable = drop_matching_rows(holdable, records.released, RECORD_COLUMNS)
    return (holdable if held is None else drop_matching_rows(holdable, held, RECORD_COLUMNS)).localCheckpoint()


def _find_blamed_records(passed: StagedChange, gate: Expectation, records: HoldableRecords) -> DataFrame:
    """Return the records (`RECORD_COLUMNS`) that make a gate fail."""
    identity = passed.table.identity
    rows = keep_matching_rows(
        passed.rows(find_row_set(gate)),
        gate_evaluation.select_failing_rows(passed, gate).select(*identity).distinct(),
        identity,
    )
    if not is_about_periods(gate):
        closed = passed.change.where("_change = 'close'")
        content = [c for c in closed.columns if not c.startswith("_") and c != "validTo"]
        return drop_matching_rows(rows, closed, content).select(*RECORD_COLUMNS)
    rows = drop_matching_rows(rows, records.released, RECORD_COLUMNS).withColumn(
        "_key", entry_rows.format_row_key(passed.table.key)
    )
    ingested = records.rows.where("_fresh")
    periods = passed.gate_facts(gate)["closed"] if gate.type == RESTATEMENT_RULE else ()
    if ends := [datetime.fromisoformat(end) for _, end in periods]:
        ingested = ingested.where(F.col("validFrom") < F.lit(max(ends)))  # later ones change no closed period
    alone = drop_matching_rows(rows, ingested, ["_key"]).select(*RECORD_COLUMNS)
    return keep_matching_rows(ingested, rows, ["_key"]).select(*RECORD_COLUMNS).unionByName(alone)


def is_about_periods(gate: Expectation) -> bool:
    """Return whether a gate's verdict on a row depends on how long it is valid, or on other rows."""
    text = json.dumps(gate.kwargs, default=str).lower()  # columns are, whatever their case
    return find_row_set(gate) != "change" or any(column.lower() in text for column in PERIODS["versions"])
