"""Gates that are asked about many dates at once: those that judge each row that a run would open by itself.

What such a gate says of a date does not depend on other dates, nor on other rows. So the rows of all dates are looked
at together, and counted by the date that opened them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Contract, Expectation
from hindcast.quality import expectations, gate_evaluation, slow_patterns
from hindcast.quality.gate_results import GateResult
from hindcast.store.task_rows import collect_table

ROW_WISE = frozenset(
    {
        "expect_column_pair_values_a_to_be_greater_than_b",
        "expect_column_pair_values_to_be_equal",
        "expect_column_pair_values_to_be_in_set",
        "expect_column_value_lengths_to_be_between",
        "expect_column_value_lengths_to_equal",
        "expect_column_values_to_be_between",
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_be_null",
        "expect_column_values_to_match_json_schema",
        "expect_column_values_to_match_regex",
        "expect_column_values_to_match_regex_list",
        "expect_column_values_to_not_be_in_set",
        "expect_column_values_to_not_be_null",
        "expect_column_values_to_not_match_regex",
        "expect_column_values_to_not_match_regex_list",
        "expect_multicolumn_sum_to_equal",
        "expect_periods_to_not_be_empty",
        "expect_select_column_values_to_be_unique_within_record",
    }
)
"""The expectations that judge each row by itself (docs/hindsight.md)."""


class DateCounts(NamedTuple):
    """How many rows that a date opened a gate `checked`, and how many of them are `failing`."""

    checked: int
    failing: int


def find_other_gate(contract: Contract) -> tuple[str, Expectation] | None:
    """Return the first gate that does not judge each row by itself, with the name of its table; None if all do."""
    for name in (*contract.topics, *contract.views):
        for gate in contract.expectations(name):
            if gate.type not in ROW_WISE or gate.rows != "change" or "mostly" in gate.kwargs:
                return name, gate
    return None


def count_by_date(rows: DataFrame, contract: Contract, name: str, gate: Expectation) -> Mapping[datetime, DateCounts]:
    """Return what a gate of a table counts of the rows that each date opened, by the `systemFrom` of these; dates
    without a row that it checked are missing. `rows`: the table's columns and `systemFrom`.
    """
    facts = expectations.contract_facts(contract, name, gate)
    limited = slow_patterns.limit_gate(rows.sparkSession, gate)
    judged = gate_evaluation.judge_rows(rows, expectations.configure_gate(limited, facts).to_domain_obj())
    failing = F.count_if(gate_evaluation.FAILING).alias("failing")
    counts = collect_table(judged.groupBy("systemFrom").agg(F.count("*").alias("checked"), failing)).to_pylist()
    return {row["systemFrom"]: DateCounts(row["checked"], row["failing"]) for row in counts}


def describe_passed(number: int, gate: Expectation, counts: DateCounts | None) -> GateResult:
    """Return the result of a gate for a date of which no row fails it; None: it checked none."""
    return gate_evaluation.describe_passed(number, gate, counts.checked if counts is not None else 0)


def find_first_failing(counts: Sequence[Mapping[datetime, DateCounts]]) -> datetime | None:
    """Return the first date that some gate fails; None if all pass."""
    return min((date for by_date in counts for date, it in by_date.items() if it.failing), default=None)
