"""Hindcast's own expectations: each catches what it is for, also where barely broken, and passes what is barely fine.

Times are microseconds since T0. A case is its rows and what is expected: of a row rule which rows fail, by their
numbers; of a share rule success, observed value and checked. A third part are parameters of its own.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hindcast.common.session import SMALL_STEP_SETTINGS, override_conf
from hindcast.quality import expectations
from pipelines import T0

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Judge = Callable[..., Any]

SECOND = 1_000_000
LONG_AGO = -80 * 365 * 86_400 * SECOND
KEYS = "k string, validFrom timestamp, validTo timestamp"
LOG = "partition int, offset bigint, offsets bigint, fate string"
READ = "timestamp timestamp, streamTime timestamp, fate string, offsets bigint"
ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}
HOSTILE = ["a`b", "{batch}", "a{0}b", "}{", "it's", 'a "b"', "a b", "a.b", "a`; --", "/*", "$x", "_row", "naïve"]


@pytest.fixture(scope="module")
def gx() -> Any:
    """Great Expectations with our rules registered; importing takes seconds, so it is not done at the top."""
    import hindcast.quality.own_rules  # noqa: F401

    return expectations.import_gx()


@pytest.fixture(scope="module")
def rule(gx: Any) -> Callable[..., Any]:
    """An expectation by its type, as Great Expectations finds it."""
    return lambda name, **parameters: gx.expectations.registry.get_expectation_impl(name)(**parameters)


@pytest.fixture(scope="module")
def judge(spark: SparkSession, gx: Any) -> Iterator[Judge]:
    """What Great Expectations says of rows, by an expectation or a suite."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_spark("candidate", persist=False)
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")

    def judged(rows: DataFrame, expected: Any, result_format: str = "BASIC") -> Any:
        return batch.get_batch({"dataframe": rows}).validate(expected, result_format=result_format)

    with override_conf(spark, SMALL_STEP_SETTINGS):
        yield judged


def frame(spark: SparkSession, columns: str, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Rows with their number besides, as `row`; of Arrow, because Spark plans such as a local table."""
    fields = [pa.field(name, ARROW[kind]) for name, kind in (c.split() for c in f"{columns}, row int".split(", "))]
    values = [pa.array([row[n] for row in numbered(columns, rows)], field.type) for n, field in enumerate(fields)]
    return spark.createDataFrame(pa.table(values, schema=pa.schema(fields)))


def numbered(columns: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    kinds = [column.split()[-1] for column in columns.split(", ")]
    return [(*map(_typed, kinds, row), n) for n, row in enumerate(rows)]


def _typed(kind: str, value: Any) -> Any:
    moment = kind == "timestamp" and value is not None
    return T0.replace(tzinfo=None) + timedelta(microseconds=value) if moment else value


def found(spark: SparkSession, rows: DataFrame, expectation: Any) -> DataFrame:
    """What a row rule's own query finds."""
    rows.createOrReplaceTempView("rules_batch")
    return spark.sql(expectation.unexpected_rows_query.format(batch="rules_batch"))


def cases(name: str, parameters: Mapping[str, Any], columns: str, table: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    return [
        pytest.param(name, {**parameters, **dict(*more)}, columns, rows, expected, id=f"{name}-{case}")
        for case, (rows, expected, *more) in table.items()
    ]


ROW_RULES = [
    *cases(
        "expect_periods_to_not_overlap",
        {"key": ["k"]},
        KEYS,
        {
            "touching": ([("a", 0, 5), ("a", 5, None)], []),
            "one microsecond": ([("a", 0, 6), ("a", 5, None)], [1]),
            "a long one holds several": ([("a", 0, 100), ("a", 10, 20), ("a", 20, 30), ("a", 99, None)], [1, 2, 3]),
            "after a long one": ([("a", 0, 100), ("a", 10, 20), ("a", 100, None)], [1]),
            "one without an end holds all": ([("a", 0, None), ("a", 5, 6), ("a", 9, None)], [1, 2]),
            "the same start": ([("a", 0, 7), ("a", 0, 5)], [0]),
            "other keys": ([("a", 0, None), ("b", 0, None), (None, 0, None)], []),
            "null is a key": ([(None, 0, 6), (None, 5, None), ("a", 0, 5)], [1]),
            "empty ones": ([("a", 0, 9), ("a", 4, 4), ("a", 6, 5), ("a", 9, 9), ("a", 9, None)], []),
            "an empty one hides nothing": ([("a", 0, 9), ("a", 8, 8), ("a", 8, None)], [2]),
            "in any order": ([("a", 5, None), ("a", 0, 6)], [0]),
            "no start": ([("a", None, 5), ("a", 0, None)], []),
            "no rows": ([], []),
        },
    ),
    *cases(
        "expect_periods_to_not_be_empty",
        {},
        "validFrom timestamp, validTo timestamp",
        {
            "one microsecond long": ([(0, 1)], []),
            "ends as it starts": ([(0, 1), (5, 5)], [1]),
            "ends before": ([(5, 4)], [0]),
            "no end": ([(5, None)], []),
            "no start": ([(None, 5), (None, None)], [0, 1]),
        },
    ),
    *cases(
        "expect_periods_to_have_no_gaps",
        {"key": ["k"]},
        KEYS,
        {
            "touching": ([("a", 0, 5), ("a", 5, None)], []),
            "one microsecond": ([("a", 0, 5), ("a", 6, None)], [1]),
            "within a long one": ([("a", 0, 9), ("a", 1, 2), ("a", 9, None)], []),
            "after a long one": ([("a", 0, 9), ("a", 1, 2), ("a", 10, None)], [2]),
            "after one without an end": ([("a", 0, None), ("a", 5, 6)], []),
            "twice": ([("a", 9, None), ("a", 0, 3), ("a", 5, 8)], [0, 2]),
            "the first": ([("a", 7, 8), ("b", 0, 1)], []),
            "null is a key": ([(None, 0, 5), (None, 6, None), ("a", 5, 6)], [1]),
            "an empty one fills nothing": ([("a", 0, 5), ("a", 7, 7), ("a", 8, 6), ("a", 9, None)], [3]),
            "as long as is meant": ([("a", 0, 5), ("a", 1005, None)], [], {"shorter_than": "1 ms"}),
            "one microsecond shorter": ([("a", 0, 5), ("a", 1004, None)], [1], {"shorter_than": "1 ms"}),
            "never meant": ([("a", LONG_AGO, 5), ("a", 6, 7)], [1], {"shorter_than": "999999999 days"}),
            "long ago": ([("a", LONG_AGO, None), ("a", LONG_AGO + 5, 6)], [], {"shorter_than": "1 day"}),
        },
    ),
    *cases(
        "expect_keys_to_have_at_most_one_open_version",
        {"key": ["k"]},
        KEYS,
        {
            "one": ([("a", 0, 5), ("a", 5, None), ("b", 0, None), (None, 0, None)], []),
            "two": ([("a", 0, None), ("a", 0, 5), ("a", 5, None), ("b", 0, None)], [0, 2]),
            "three of null": ([(None, 0, None), (None, 0, None), (None, None, None)], [0, 1, 2]),
            "none": ([("a", 0, 5), ("a", 5, 6)], []),
        },
    ),
    *cases(
        "expect_system_from_to_not_run_backwards",
        {"known_at": "2026-01-01T00:00:00.000005+00:00"},
        "systemFrom timestamp",
        {
            "then": ([(5,), (4,)], []),
            "one microsecond later": ([(5,), (6,)], [1]),
            "null": ([(5,), (None,)], [1]),
            "elsewhere": ([(5,), (6,)], [1], {"known_at": "2026-01-01T02:00:00.000005+02:00"}),
            "no zone": ([(5,), (6,)], [1], {"known_at": "2026-01-01 00:00:00.000005"}),
        },
    ),
    *cases(
        "expect_foreign_keys_to_be_found",
        {"column": "item", "table": "menu", "found_in": "menu of today", "found_key": ["name"]},
        "item string, size int, validFrom timestamp",
        {
            "from its start to its end": ([("curry", 1, 0), ("curry", 1, 4), ("curry", 1, 9), ("naan", 1, 9)], []),
            "as it ends": ([("curry", 1, 4), ("curry", 1, 5)], [1]),
            "one microsecond early": ([("curry", 1, -1), ("curry", 1, 0)], [0]),
            "one microsecond before it is there again": ([("curry", 1, 7), ("curry", 1, 8)], [0]),
            "unknown": ([("tea", 1, 3), ("naan", 1, 3)], [0]),
            "null": ([(None, 1, 3)], []),
            "no start": ([("curry", 1, None)], [0]),
            "two columns": (
                [("curry", 1, 3), ("curry", 2, 3), ("naan", 2, 3), (None, 9, 3), ("tea", None, 3)],
                [1],
                {"column": None, "column_list": ["item", "size"], "found_key": ["name", "of size"]},
            ),
        },
    ),
    *cases(
        "expect_foreign_keys_to_be_found",
        {"column": "item", "table": "menu", "found_in": "menu of today", "found_key": ["name"], "whole_period": True},
        "item string, size int, validFrom timestamp, validTo timestamp",
        {
            "a whole period": (
                [
                    *(("curry", 1, 0, 5), ("curry", 1, 1, 4), ("curry", 1, 8, None), ("naan", 1, 3, None)),
                    *(("soup", 1, 2, 9), ("soup", 1, 0, None), (None, 1, 0, None)),  # soup is there in two rows
                    *(("curry", 1, 0, 6), ("curry", 1, -1, 4), ("curry", 1, 7, 9)),  # a microsecond late, or early
                    *(("curry", 1, 4, 9), ("curry", 1, 1, None), ("tea", 1, 0, 1)),  # over a gap; for ever; unknown
                ],
                [7, 8, 9, 10, 11, 12],
            ),
            "a whole period, a moment": (
                [("curry", 1, 4, 4), ("curry", 1, 5, 5), ("soup", 1, 5, 5)],
                [1],
                {"finish": "validFrom"},
            ),
            "a whole period, two columns": (
                [("soup", 1, 2, 6), ("soup", 2, 2, 6), ("naan", 2, 0, None), (None, 2, 0, 1)],
                [1],
                {"column": None, "column_list": ["item", "size"], "found_key": ["name", "of size"]},
            ),
        },
    ),
    *cases(
        "expect_ties_to_be_ordered",
        {},
        "_unordered boolean, _replaced boolean",
        {
            "a replaced one is in order": ([(False, False), (True, False), (False, True)], [1]),
            "a replaced one too": ([(False, True), (True, True), (False, False)], [0, 1], {"also_replaced": True}),
        },
    ),
]

SHARE_RULES = [
    *cases(
        "expect_table_to_be_fresh",
        {"within": "1 second", "until": "2026-01-01T00:00:10+00:00"},
        "validFrom timestamp",
        {
            "just within": ([(9 * SECOND,)], (True, 1.0, 1)),
            "one microsecond behind": ([(9 * SECOND - 1,)], (False, 1.000001, 1)),
            "the newest counts": ([(9 * SECOND,), (0,), (None,)], (True, 1.0, 3)),
            "up to then": ([(10 * SECOND,)], (True, 0.0, 1)),
            "a later one says nothing": ([(9 * SECOND - 1,), (10 * SECOND + 1,)], (False, 1.000001, 2)),
            "only later ones": ([(11 * SECOND,), (12 * SECOND,)], (False, None, 2)),
            "no start": ([(None,)], (False, None, 1)),
            "no rows": ([], (False, None, 0)),
        },
    ),
    *cases(
        "expect_offsets_to_be_conserved",
        {"planned": {0: [[3, 6]], 1: [[0, 1]]}},
        LOG,
        {
            "each has one": (
                [(1, 0, 1, "malformed"), (0, 5, 1, "accepted"), (0, 3, 1, "accepted"), (0, 4, 1, "expired")],
                (True, 0, 4),
            ),
            "one row for several": ([(0, 3, 1, "accepted"), (0, 4, 2, "gone"), (1, 0, 1, "no_record")], (True, 0, 4)),
            "the first is missing": ([(0, 4, 2, "gone"), (1, 0, 1, "accepted")], (False, 1, 4)),
            "the last is missing": ([(0, 3, 2, "gone"), (1, 0, 1, "accepted")], (False, 1, 4)),
            "one in between": ([(0, 3, 1, "gone"), (0, 5, 1, "gone"), (1, 0, 1, "accepted")], (False, 1, 4)),
            "a partition": ([(0, 3, 3, "gone")], (False, 1, 4)),
            "all": ([], (False, 4, 4)),
            "one twice": ([(0, 3, 3, "gone"), (0, 4, 1, "accepted"), (1, 0, 1, "accepted")], (False, 1, 4)),
            "one thrice": ([(0, 3, 3, "gone"), *[(1, 0, 1, "accepted")] * 3], (False, 1, 4)),
            "one too late": ([(0, 3, 4, "gone"), (1, 0, 1, "accepted")], (False, 1, 4)),
            "one too early": ([(0, 2, 4, "gone"), (1, 0, 1, "accepted")], (False, 1, 4)),
            "one for another": ([(0, 4, 3, "gone"), (1, 0, 1, "accepted")], (False, 2, 4)),
            "another partition": ([(0, 3, 3, "gone"), (1, 0, 1, "gone"), (2, 0, 1, "gone")], (False, 1, 4)),
            "no fate": ([(0, 3, 3, "gone"), (1, 0, 1, None)], (False, 1, 4)),
            "no known fate": ([(0, 3, 3, "lost"), (1, 0, 1, "accepted")], (False, 3, 4)),
            "a row for none": ([(0, 3, 3, "gone"), (1, 0, 0, "accepted")], (False, 1, 4)),
            "one more for none": ([(0, 3, 3, "gone"), (1, 0, 1, "gone"), (1, 0, 0, "gone")], (False, 1, 4)),
            "a row for less": ([(0, 3, 3, "gone"), (1, 0, 1, "accepted"), (0, 3, -1, "accepted")], (False, 1, 4)),
            "a row for who knows": ([(0, 3, 3, "gone"), (1, 0, None, "accepted")], (False, 1, 4)),
            "no offset": ([(0, 3, 3, "gone"), (1, 0, 1, "gone"), (0, None, 1, "gone")], (False, 1, 4)),
            "no partition": ([(0, 3, 3, "gone"), (1, 0, 1, "gone"), (None, 3, 1, "gone")], (False, 1, 4)),
            "two ranges": ([(0, 0, 2, "gone"), (0, 5, 1, "gone")], (True, 0, 3), {"planned": {"0": [[0, 2], [5, 6]]}}),
            "between two ranges": ([(0, 0, 6, "gone")], (False, 3, 3), {"planned": {0: [[0, 2], [5, 6]]}}),
            "ranges that touch": ([(0, 0, 6, "gone")], (True, 0, 6), {"planned": {0: [[0, 2], [2, 6]]}}),
            "very many": (
                [(0, 0, 2**40, "gone"), (0, 2**40, 1, "accepted")],
                (True, 0, 2**40 + 1),
                {"planned": {0: [[0, 2**40 + 1]]}},
            ),
            "nothing planned, nothing read": ([], (False, 0, 0), {"planned": {}}),
            "nothing planned, one read": ([(0, 3, 1, "accepted")], (False, 1, 1), {"planned": {}}),
            "an empty range": ([], (False, 0, 0), {"planned": {0: [[3, 3]]}}),
        },
    ),
    *cases(
        "expect_share_of_records_to_be_at_most",
        {"which": "late", "share": 0.25},
        READ,
        {
            "just": ([(4, 5, "accepted", 1), (5, 5, "accepted", 2), (5, None, "accepted", 1)], (True, 0.25, 4)),
            "one more": ([(4, 5, "accepted", 251), (5, 5, "accepted", 749)], (False, 0.251, 1000)),
            "refused ones too": ([(4, 5, "expired", 1), (4, 5, "malformed", 1), (5, 5, "expired", 2)], (False, 0.5, 4)),
            "no time": ([(None, 5, "no_timestamp", 1), (None, None, "accepted", 1)], (True, 0.0, 2)),
            "gaps are no records": (
                [(4, 5, "accepted", 2), (5, 5, "accepted", 2), (None, 5, "gone", 90), (None, 5, "no_record", 6)],
                (False, 0.5, 4),
            ),
            "only gaps": ([(None, 5, "gone", 90)], (False, None, 0)),
            "no rows": ([], (False, None, 0)),
            "expired": (
                [(1, 5, "expired", 3), (1, 5, "accepted", 6), (1, 5, "malformed", 1)],
                (True, 0.3, 10),
                {"which": "expired", "share": 0.3},
            ),
            "one more expired": (
                [(1, 5, "expired", 301), (1, 5, "accepted", 699)],
                (False, 0.301, 1000),
                {"which": "expired", "share": 0.3},
            ),
            "quarantined": (
                [(5, 5, fate, 1) for fate in ("accepted", "expired", "null_key", "gone", "no_record")],
                (False, 2 / 3, 3),
                {"which": "quarantined", "share": 0.66},
            ),
            "all quarantined": (
                [(5, 5, fate, 1) for fate in ("expired", "malformed", "null_key", "no_timestamp", "time_skew")],
                (True, 1.0, 5),
                {"which": "quarantined", "share": 1},
            ),
            "none quarantined": ([(4, 5, "accepted", 9)], (True, 0.0, 9), {"which": "quarantined", "share": 0}),
            "no fate": ([(5, 5, None, 1)], (False, 1.0, 1), {"which": "quarantined", "share": 0}),
        },
    ),
    *cases(
        "expect_share_of_unmatched_to_be_at_most",
        {"share": 0.1},
        "matched boolean",
        {
            "just": ([(True,)] * 9 + [(False,)], (True, 0.1, 10)),
            "one more": ([(True,)] * 89 + [(False,)] * 11, (False, 0.11, 100)),
            "null has met none": ([(True,)] * 8 + [(None,)] * 2, (False, 0.2, 10)),
            "no rows": ([], (False, None, 0)),
        },
    ),
    *cases(
        "expect_row_count_to_be_near_last_runs",
        {"factor": 2, "earlier": [10]},
        "n int",
        {
            "half": ([(1,)] * 5, (True, 5, 1)),
            "less than half": ([(1,)] * 4, (False, 4, 1)),
            "half a row less than half": ([(1,)] * 4, (False, 4, 1), {"earlier": [9]}),
            "twice": ([(1,)] * 20, (True, 20, 1)),
            "more than twice": ([(None,)] * 21, (False, 21, 1)),
            "half a row more": ([(1,)] * 14, (False, 14, 1), {"factor": 1.5, "earlier": [9]}),
            "the last runs": ([(1,)] * 10, (True, 10, 3), {"runs": 3, "earlier": [1000, 1000, 4, 5, 6]}),
            "one more than those": ([(1,)] * 11, (False, 11, 3), {"runs": 3, "earlier": [1000, 1000, 4, 5, 6]}),
            "between two": ([(1,)] * 10, (True, 10, 2), {"earlier": [9, 1]}),
            "as it is written": ([(1,)] * 115, (True, 115, 1), {"factor": 1.15, "earlier": [100]}),
            "one more than is written": ([(1,)] * 116, (False, 116, 1), {"factor": 1.15, "earlier": [100]}),
            "no rows": ([], (False, 0, 1)),
            "none, as before": ([], (True, 0, 2), {"earlier": [0, 0]}),
            "no earlier run": ([(1,)] * 3, (False, 3, 0), {"earlier": []}),
        },
    ),
    *cases(
        "expect_null_share_to_be_near_last_runs",
        {"column": "v", "at_most": 0.3, "earlier": [0.1]},
        "v int",
        {
            "just above": ([(None,)] * 4 + [(1,)] * 6, (True, 0.4, 10)),
            "one more": ([(None,)] * 41 + [(1,)] * 59, (False, 0.41, 100)),
            "just below": ([(None,)] * 3 + [(1,)] * 7, (True, 0.3, 10), {"at_most": 0.1, "earlier": [0.4]}),
            "one less": ([(None,)] * 29 + [(1,)] * 71, (False, 0.29, 100), {"at_most": 0.1, "earlier": [0.4]}),
            "the last run": ([(None,), (1,)], (True, 0.5, 2), {"runs": 1, "at_most": 0, "earlier": [0.9, 0.5]}),
            "no nulls": ([(1,)], (True, 0.0, 1)),
            "no earlier run": ([(None,), (1,)], (False, 0.5, 0), {"earlier": []}),
            "no rows": ([], (False, None, 0)),
        },
    ),
]

GOOD: dict[str, dict[str, Any]] = {case.values[0]: case.values[1] for case in reversed([*ROW_RULES, *SHARE_RULES])}
GOOD["expect_closed_periods_to_stay"] = {
    "kind": "versions",
    "key": ["k"],
    "known_at": "2026-01-01T00:00:00+00:00",
    "closed": [],
    "closing": "rows",
    "closing_by": ["k"],
    "content": ["v"],
    "maps": [],
    "judged": "",
}
"""Its rows are in test_restatement_approval.py."""
"""Parameters that do, of each rule."""

NAMELESS = (
    "expect_system_from_to_not_run_backwards",
    "expect_offsets_to_be_conserved",
    "expect_share_of_records_to_be_at_most",
    "expect_share_of_unmatched_to_be_at_most",
    "expect_row_count_to_be_near_last_runs",
    "expect_ties_to_be_ordered",
)
"""Rules that take no name of a column."""

BAD = [
    ("expect_periods_to_not_overlap", {"key": "k"}, "key is 'k'; write a list of names"),
    ("expect_periods_to_not_overlap", {"key": []}, r"key is \[\]; write"),
    ("expect_periods_to_not_overlap", {"key": [1]}, r"key is \[1\]; write"),
    ("expect_periods_to_not_overlap", {"start": ""}, "start is ''; write a name"),
    ("expect_periods_to_not_overlap", {"end": None}, "end is None; write a name"),
    ("expect_periods_to_not_overlap", {"end": "${env:PATH}"}, "end is '.{env:PATH}'; write a name, without"),
    ("expect_periods_to_not_overlap", {"kee": ["k"]}, "no parameter 'kee'; did you mean 'key'"),
    ("expect_periods_to_not_overlap", {"unexpected_rows_query": "SELECT 1 FROM {batch}"}, "leave it out"),
    ("expect_periods_to_have_no_gaps", {"shorter_than": "a while"}, "shorter_than is 'a while'; write a duration"),
    ("expect_periods_to_have_no_gaps", {"shorter_than": "-1 day"}, "shorter_than is '-1 day'; write a duration"),
    ("expect_periods_to_have_no_gaps", {"shorter_than": "0 days"}, "shorter_than is '0 days'; write a duration"),
    ("expect_periods_to_have_no_gaps", {"shorter_than": 5}, "shorter_than is 5; write a duration"),
    ("expect_periods_to_have_no_gaps", {"shorter_than": "9999999999 days"}, "shorter_than is '9999999999 days'"),
    ("expect_system_from_to_not_run_backwards", {"known_at": "today"}, "known_at is 'today'; write a moment"),
    ("expect_foreign_keys_to_be_found", {"column_list": ["item"]}, "column or a column_list; write one of them"),
    ("expect_foreign_keys_to_be_found", {"column": None}, "column or a column_list; write one of them"),
    ("expect_foreign_keys_to_be_found", {"found_key": ["a", "b"]}, "the key of menu is a, b; write a column for each"),
    ("expect_foreign_keys_to_be_found", {"whole_period": "yes"}, "whole_period is 'yes'; write true or false"),
    ("expect_table_to_be_fresh", {"within": "soon"}, "within is 'soon'; write a duration"),
    ("expect_table_to_be_fresh", {"until": 3}, "until is 3; write a moment"),
    ("expect_table_to_be_fresh", {"query": "SELECT 1"}, "query does not match the other parameters"),
    ("expect_offsets_to_be_conserved", {"planned": []}, r"planned is \[\]; write for each partition its ranges"),
    ("expect_offsets_to_be_conserved", {"planned": {"x": []}}, "planned is {'x'"),
    ("expect_offsets_to_be_conserved", {"planned": {0: [[0]]}}, "planned is {0: "),
    ("expect_offsets_to_be_conserved", {"planned": {0: [["0", "1"]]}}, "planned is {0: "),
    ("expect_offsets_to_be_conserved", {"planned": {0: [[2, 1]]}}, "planned is {0: "),
    ("expect_offsets_to_be_conserved", {"planned": {0: [[-1, 1]]}}, "planned is {0: "),
    ("expect_offsets_to_be_conserved", {"planned": {0: [[0, 2], [1, 3]]}}, "planned is {0: "),
    ("expect_offsets_to_be_conserved", {"planned": {0: [[0, 2]], "0": [[0, 2]]}}, "planned is {0: "),
    ("expect_share_of_records_to_be_at_most", {"which": "lost"}, "which is 'lost'; write one of late, expired, quar"),
    ("expect_share_of_records_to_be_at_most", {"which": ["late"]}, r"which is \['late'\]; write one of"),
    ("expect_share_of_records_to_be_at_most", {"share": 1.01}, "share is 1.01; write a number from 0 to 1"),
    ("expect_share_of_unmatched_to_be_at_most", {"share": -0.1}, "share is -0.1; write a number from 0 to 1"),
    ("expect_share_of_unmatched_to_be_at_most", {"share": float("nan")}, "share is nan; write a number from 0 to 1"),
    ("expect_share_of_unmatched_to_be_at_most", {"share": True}, "share is True; write a number from 0 to 1"),
    ("expect_share_of_unmatched_to_be_at_most", {"share": "0.5"}, "share is '0.5'; write a number from 0 to 1"),
    ("expect_row_count_to_be_near_last_runs", {"factor": 1}, "factor is 1; write a number above 1"),
    ("expect_row_count_to_be_near_last_runs", {"factor": float("inf")}, "factor is inf; write a number above 1"),
    ("expect_row_count_to_be_near_last_runs", {"runs": 0}, "runs is 0; write a whole number above 0"),
    ("expect_row_count_to_be_near_last_runs", {"runs": 1.5}, "runs is 1.5; write a whole number above 0"),
    ("expect_row_count_to_be_near_last_runs", {"runs": True}, "runs is True; write a whole number above 0"),
    ("expect_row_count_to_be_near_last_runs", {"earlier": [1, None]}, r"earlier is \[1, None\]; write a list of num"),
    ("expect_null_share_to_be_near_last_runs", {"at_most": 2}, "at_most is 2; write a number from 0 to 1"),
    ("expect_null_share_to_be_near_last_runs", {"column": 7}, "column is 7; write a name"),
]


@pytest.fixture(scope="module", autouse=True)
def _menu(spark: SparkSession) -> None:
    sold = [("curry", 1, 0, 5), ("curry", 1, 8, None), ("naan", 1, 0, None), ("naan", 2, 0, None), (None, 9, 0, None)]
    sold += [("soup", 1, 0, 5), ("soup", 1, 5, None), ("soup", 2, 2, 5)]
    menu = frame(spark, "name string, size int, validFrom timestamp, validTo timestamp", sold)
    menu.withColumnRenamed("size", "of size").createOrReplaceTempView("`menu of today`")


@pytest.mark.parametrize(("name", "parameters", "columns", "rows", "failing"), ROW_RULES)
def test_a_row_rule_finds_exactly_the_rows_that_fail(
    spark: SparkSession,
    rule: Callable[..., Any],
    judge: Judge,
    name: str,
    parameters: dict[str, Any],
    columns: str,
    rows: list[tuple[Any, ...]],
    failing: list[int],
) -> None:
    batch, expectation = frame(spark, columns, rows), rule(name, **parameters)
    result = judge(batch, expectation)
    assert (result.success, result.result.get("observed_value")) == (not failing, len(failing)), result
    told = found(spark, batch, expectation)
    assert told.dtypes == batch.dtypes
    given = numbered(columns, rows)
    assert sorted((tuple(row) for row in told.collect()), key=lambda row: row[-1]) == [given[n] for n in failing]


@pytest.mark.parametrize(("name", "parameters", "columns", "rows", "expected"), SHARE_RULES)
def test_a_share_rule_says_success_and_what_it_observed_over_how_much(
    spark: SparkSession,
    rule: Callable[..., Any],
    judge: Judge,
    name: str,
    parameters: dict[str, Any],
    columns: str,
    rows: list[tuple[Any, ...]],
    expected: tuple[bool, float | None, int],
) -> None:
    result = judge(frame(spark, columns, rows), rule(name, **parameters))
    assert (result.success, result.result.get("observed_value"), result.result.get("checked")) == expected, result


def test_rows_that_are_equal_in_key_and_period_overlap_but_for_one(
    spark: SparkSession, rule: Callable[..., Any]
) -> None:
    batch = frame(spark, KEYS, [("a", 0, 5)] * 3)
    assert found(spark, batch, rule("expect_periods_to_not_overlap", key=["k"])).count() == 2


def test_of_random_histories_the_same_rows_fail_as_by_definition(
    spark: SparkSession, rule: Callable[..., Any], judge: Judge
) -> None:
    draw = random.Random(6)  # noqa: S311
    rows = []
    for n in range(300):
        for _ in range(draw.randint(1, 6)):
            start = draw.randint(0, 12)
            rows.append((f"k{n}", start, draw.choice([None, start + draw.randint(-1, 6), start + draw.randint(1, 4)])))
    batch = frame(spark, KEYS, rows)
    overlaps, gaps = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for key in {row[0] for row in rows}:
        ends = sorted((s, float("inf") if e is None else e) for k, s, e in rows if k == key)
        real = [(start, end) for start, end in ends if start < end]
        for n, (start, end) in enumerate(real):
            reached = max((until for _, until in real[:n]), default=start)
            overlaps[key, start, end] += reached > start
            gaps[key, start, end] += reached < start
    for name, expected in (("overlap", overlaps), ("have_no_gaps", gaps)):
        prefix = "expect_periods_to_not_" if name == "overlap" else "expect_periods_to_"
        expectation = rule(f"{prefix}{name}", key=["k"])
        told = [rows[row["row"]] for row in found(spark, batch, expectation).collect()]
        assert Counter((k, s, float("inf") if e is None else e) for k, s, e in told) == +expected
        assert judge(batch, expectation).result["observed_value"] == expected.total() > 0


def test_of_random_logs_as_many_offsets_are_wrong_as_by_definition(
    spark: SparkSession, rule: Callable[..., Any], judge: Judge
) -> None:
    draw = random.Random(8)  # noqa: S311
    for _ in range(12):
        planned = {p: [[(cut := sorted(draw.sample(range(20), 4)))[0], cut[1]], cut[2:]] for p in range(3)}
        rows = [
            (p, first + draw.choice([0] * 9 + [1]), draw.choice([1] * 9 + [2]), draw.choice(["gone"] * 19 + [None]))
            for p, ranges in planned.items()
            for start, end in ranges
            for first in range(start, end)
        ]
        due = {(p, offset) for p, ranges in planned.items() for start, end in ranges for offset in range(start, end)}
        seen = Counter((p, offset) for p, first, many, _ in rows for offset in range(first, first + many))
        fated = {(p, offset) for p, first, many, fate in rows if fate for offset in range(first, first + many)}
        wrong = sum(not (place in due and seen[place] == 1 and place in fated) for place in due | seen.keys())
        result = judge(frame(spark, LOG, rows), rule("expect_offsets_to_be_conserved", planned=planned))
        assert (result.result["observed_value"], result.result["checked"]) == (wrong, len(due))
        assert result.success == (wrong == 0)


def test_foreign_keys_are_hashed(
    spark: SparkSession, rule: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    batch = frame(spark, "item string, validFrom timestamp", [("curry", 0)])
    found(spark, batch, rule("expect_foreign_keys_to_be_found", **GOOD["expect_foreign_keys_to_be_found"])).explain()
    plan = capsys.readouterr().out
    assert "HashJoin" in plan or "SortMergeJoin" in plan
    assert "LeftAnti" in plan
    assert "NestedLoop" not in plan


@pytest.mark.parametrize("name", [name for name in GOOD if name not in NAMELESS])
def test_no_name_breaks_out_of_its_quotes(
    spark: SparkSession, rule: Callable[..., Any], judge: Judge, name: str
) -> None:
    kinds = {"key": "string", "column_list": "string", "column": "string", "start": "timestamp", "end": "timestamp"}
    parameters = {**GOOD[name]}
    taken = {field: kind for field, kind in kinds.items() if field in type(rule(name, **parameters)).__fields__}
    if "column_list" in taken:
        del taken["column"], parameters["column"]
        parameters |= {"found_key": HOSTILE, "found_in": "a `view` of {it}"}
    columns: dict[str, str] = {}
    for field, kind in taken.items():
        names = HOSTILE if field in ("key", "column_list") else [f"{field} {' '.join(HOSTILE)}"]
        parameters[field] = names if field in ("key", "column_list") else names[0]
        columns |= dict.fromkeys(names, kind)
    rows = frame(spark, ", ".join(f"c{n} {kind}" for n, kind in enumerate(columns.values())), [])
    rows = rows.toDF(*columns, "row")
    if "column_list" in taken:
        found_in = rows.toDF(*HOSTILE, "validFrom", "row").selectExpr("*", "validFrom AS validTo")
        found_in.createOrReplaceTempView("`a ``view`` of {it}`")
    result = judge(rows, rule(name, **parameters))
    assert not any(part.get("raised_exception") for part in _parts(result.exception_info)), result


def _parts(info: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [info] if not info or "raised_exception" in info else list(info.values())


@pytest.mark.parametrize(("name", "parameters", "told"), BAD)
def test_parameters_that_do_not_do_are_refused(
    rule: Callable[..., Any], name: str, parameters: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        rule(name, **{**GOOD[name], **parameters})


def test_rules_are_registered_and_say_what_they_are_about(gx: Any, rule: Callable[..., Any]) -> None:
    registry = gx.expectations.registry
    ours = {
        name
        for name in registry.list_registered_expectation_implementations()
        if registry.get_expectation_impl(name).__module__.startswith("hindcast.quality.own_rules.")
    }
    assert ours == GOOD.keys()
    about = {name: (rule(name, **GOOD[name]).row_set, rule(name, **GOOD[name]).row_level) for name in GOOD}
    assert about == {
        "expect_periods_to_not_overlap": ("near", True),
        "expect_periods_to_not_be_empty": ("change", True),
        "expect_periods_to_have_no_gaps": ("keys", True),
        "expect_keys_to_have_at_most_one_open_version": ("near", True),
        "expect_system_from_to_not_run_backwards": ("plane", True),
        "expect_foreign_keys_to_be_found": ("change", True),
        "expect_ties_to_be_ordered": ("ties", True),
        "expect_closed_periods_to_stay": ("plane", True),
        "expect_table_to_be_fresh": ("table", False),
        "expect_offsets_to_be_conserved": ("records", False),
        "expect_share_of_records_to_be_at_most": ("unpublished", False),
        "expect_share_of_unmatched_to_be_at_most": ("events", False),
        "expect_row_count_to_be_near_last_runs": ("change", False),
        "expect_null_share_to_be_near_last_runs": ("change", False),
    }


FOUND = [
    ("expect_table_to_be_fresh", {"within": "1 day", "until": "2026-01-03T00:00:00+00:00"}, 97200.0, 9,
     "the newest row starts 1 day, 3:00:00 before 2026-01-03T00:00:00+00:00; at most 1 day is fine"),
    ("expect_table_to_be_fresh", {"until": "2026-01-03T00:00:00+00:00"}, None, 9,
     "none of 9 rows starts at 2026-01-03T00:00:00+00:00 or before"),
    ("expect_offsets_to_be_conserved", {}, 2.0, 1200,
     "2 offsets have no fate, more than one, or were not planned; 1,200 were planned"),
    ("expect_share_of_records_to_be_at_most", {"which": "late", "share": 0.05}, 2 / 17, 34,
     "11.8% of 34 records are late; at most 5.0% is fine"),
    ("expect_share_of_unmatched_to_be_at_most", {"share": 0.05}, 0.25, 4,
     "25.0% of 4 events meet no version; at most 5.0% is fine"),
    ("expect_row_count_to_be_near_last_runs", {"factor": 1.5, "earlier": [20.0, 30.0]}, 60.0, 2,
     "60 rows; by the last 2 runs, 17 to 37 are fine"),
    ("expect_null_share_to_be_near_last_runs", {"column": "v", "at_most": 0.1, "earlier": [0.1]}, 0.3, 10,
     "30.0% of 10 rows are null; the last runs had 10.0%, and at most 10.0% more or less is fine"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "observed", "checked", "told"), FOUND, ids=[c[4][:20] for c in FOUND])
def test_what_failed_is_told_in_words(
    rule: Callable[..., Any], name: str, parameters: dict[str, Any], observed: float | None, checked: int, told: str
) -> None:
    assert rule(name, **{**GOOD[name], **parameters}).describe_failure(observed, checked) == told


def test_a_suite_of_them_is_read_back_and_judged_as_any_other(spark: SparkSession, gx: Any, judge: Judge) -> None:
    configured = [{"type": name, "kwargs": GOOD[name]} for name in GOOD]
    told = gx.ExpectationSuite(name="ours", expectations=configured).to_json_dict()
    read = gx.ExpectationSuite(**json.loads(json.dumps(told)))
    assert read.expectations == gx.ExpectationSuite(name="ours", expectations=configured).expectations

    batch = frame(spark, f"{KEYS}, item string, v int, systemFrom timestamp", [("a", 0, 0, "tea", None, 9)])
    others = ("records", "offsets", "unmatched", "ties")
    wanted = [name for name in GOOD if not any(it in name for it in others)]
    suite = gx.ExpectationSuite(name="some", expectations=[{"type": n, "kwargs": GOOD[n]} for n in wanted])
    results = judge(batch, suite).results
    assert {r.expectation_config.type for r in results if not r.success} == {
        "expect_periods_to_not_be_empty",
        "expect_system_from_to_not_run_backwards",
        "expect_foreign_keys_to_be_found",
        "expect_table_to_be_fresh",
        "expect_row_count_to_be_near_last_runs",
        "expect_null_share_to_be_near_last_runs",
    }


def test_rows_are_fetched_only_when_all_details_are_asked_for(
    spark: SparkSession, rule: Callable[..., Any], judge: Judge
) -> None:
    batch, expectation = frame(spark, KEYS, [("a", 5, 5)]), rule("expect_periods_to_not_be_empty")
    assert judge(batch, expectation, "BOOLEAN_ONLY").result == {}
    assert judge(batch, expectation, "SUMMARY").result == {"observed_value": 1}
    [row] = judge(batch, expectation, "COMPLETE").result["details"]["unexpected_rows"]
    assert (row["k"], row["row"]) == ("a", 0)
    share = judge(batch.selectExpr("true AS matched"), rule("expect_share_of_unmatched_to_be_at_most", share=0))
    assert (share.success, share.result) == (True, {"observed_value": 0.0, "checked": 1})


def test_what_cannot_be_judged_has_not_succeeded(spark: SparkSession, rule: Callable[..., Any], judge: Judge) -> None:
    batch = frame(spark, "v int", [(1,)])
    for expectation in (
        rule("expect_periods_to_not_overlap", key=["missing"]),
        rule("expect_null_share_to_be_near_last_runs", column="missing", at_most=1, earlier=[0]),
    ):
        result = judge(batch, expectation)
        assert not result.success
        assert any(part.get("raised_exception") for part in _parts(result.exception_info))
