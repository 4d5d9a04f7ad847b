"""Horizons: what `keep` may say, what goes and what stays, and which questions are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.bitemporal.predicates import FIRST_MOMENT, Question
from hindcast.common.errors import ContractError, QueryError
from hindcast.contract import Contract, Keep, load
from hindcast.ops import trim_records
from hindcast.plan import horizon
from hindcast.plan.horizon import Horizon
from hindcast.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """\
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    history_retention: 30 days
    keep: 90 days
  orders:
    read: stream
    key: {customer: string}
    value: {item: string}
    keep: {table: 2 hours, quarantine: 1 week}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    keep: 1 hour
  busy:
    stream: orders
    aggregate: {n: count(*)}
    window: {hopping: 1 hour, advance: 10 minutes, grace: 1 hour}
  calm:
    stream: orders
    aggregate: {n: count(*)}
    window: {session: 5 minutes}
"""
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def contract(folder: Path, text: str = CONTRACT) -> Contract:
    path = folder / "restaurant.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def at(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


def test_keep_is_of_table_log_and_quarantine_or_of_each(tmp_path: Path) -> None:
    told = contract(tmp_path)
    assert told.topics["menu"].retention == Keep(table="90 days", log="90 days", quarantine="90 days")
    assert told.topics["orders"].retention == Keep(table="2 hours", log="2 hours", quarantine="1 week")
    assert contract(tmp_path, CONTRACT.replace("    keep: 90 days\n", "")).topics["menu"].retention is None


def test_keep_changes_no_answer_so_no_hash_no_decoding_and_no_definition(tmp_path: Path) -> None:
    before, after = (
        contract(tmp_path),
        contract(tmp_path, CONTRACT.replace("90 days", "60 days").replace("keep: 1 hour", "")),
    )
    assert before.hash == after.hash
    assert [before.topics["menu"].hash_decoding, before.hash_definition("bills")] == [
        after.topics["menu"].hash_decoding,
        after.hash_definition("bills"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "found", "fix"),
    [
        ("keep: 90 days", "keep: 29 days", 9, "kept for 29 days, but takes versions for 30 days", "at least 30 days"),
        ("keep: 90 days", "keep: {table: 2 days, log: 1 day}", 9, "for 1 day, but its table for 2 days", "as long"),
        ("keep: 90 days", "keep: 0 days", 9, "keep must be longer than zero", "90 days"),
        ("keep: 90 days", "keep: {log: 90 days}", 9, "'topics.menu.keep.table' is missing", "add 'table:'"),
        ("keep: 90 days", "keep: {table: 90 days, logs: 1 day}", 9, "unknown field 'topics.menu.keep.logs'", "log"),
        ("keep: 1 hour", "keep: 0 ms", 19, "keep must be longer than zero", "90 days"),
        ("keep: 1 hour", "keep: 1 hour\n    semantics: kafka", 19, "keep cannot be set on a kafka view", "remove it"),
        ("{table: 2 hours, ", "{table: 119 minutes, ", 14, "a window of views.busy takes them for 2 hours", "2 hours"),
        ("    window: {session: 5 minutes}\n", "", 14, "views.calm aggregates all events of orders so far", "a window"),
    ],
)  # fmt: skip
def test_a_keep_that_would_remove_what_is_needed_is_refused(
    tmp_path: Path, old: str, new: str, line: int, found: str, fix: str
) -> None:
    assert old in CONTRACT
    with pytest.raises(ContractError) as refused:
        contract(tmp_path, CONTRACT.replace(old, new))
    assert found in str(refused.value)
    assert fix in refused.value.fix
    assert refused.value.where == f"{tmp_path}/restaurant.yaml:{line}"


def test_what_is_made_of_sessions_and_pairs_looks_back(tmp_path: Path) -> None:
    told = contract(tmp_path)
    assert {name: horizon.lookback_period(view) for name, view in told.views.items()} == {
        "bills": timedelta(0),
        "busy": timedelta(0),
        "calm": timedelta(minutes=5),
    }


BELIEVED = [  # key, value, validFrom, validTo
    ("ended before", 1, 0, 4),
    ("reaching over", 2, 0, 8),
    ("as it was", 3, 1, None),
    ("ends elsewhere", 4, 2, None),
    ("later", 5, 6, None),
    ("gone since", 6, 0, None),
]
DERIVED = [
    ("ended before", 9, 0, 4),
    ("reaching over", 7, 3, 8),
    ("as it was", 3, 2, None),
    ("ends elsewhere", 4, 2, 9),
    ("later", 5, 7, None),
    ("new", 8, 1, None),
]
CHANGES = [
    ("ends elsewhere", 4, 2, 9, "open"),
    ("ends elsewhere", 4, 2, None, "close"),
    ("gone since", 6, 0, 4, "open"),
    ("gone since", 6, 0, None, "close"),
    ("later", 5, 6, None, "close"),
    ("later", 5, 7, None, "open"),
    ("new", 8, 4, None, "open"),
    ("reaching over", 2, 0, 4, "open"),
    ("reaching over", 2, 0, 8, "close"),
    ("reaching over", 7, 4, 8, "open"),
]


def test_only_what_is_true_from_the_horizon_on_is_replaced_and_rows_are_split_there(spark: SparkSession) -> None:
    columns = "key string, value int, validFrom timestamp, validTo timestamp"

    def rows(of: list[tuple[Any, ...]]) -> Any:
        moments = [(k, v, at(s), at(e) if e is not None else None) for k, v, s, e in of]
        return spark.createDataFrame(moments, columns)

    found = horizon.diff_rows_since(
        rows(BELIEVED), rows(DERIVED), ["key", "validFrom"], ["value", "validTo"], "versions", at(4)
    )
    told = found.selectExpr(
        "key", "value", *(f"unix_seconds({c}) - {int(T0.timestamp())}" for c in ("validFrom", "validTo")), "_change"
    ).collect()
    assert sorted(map(tuple, told), key=lambda row: (row[0], row[2], row[4] != "open")) == CHANGES


def test_events_before_the_horizon_are_neither_closed_nor_opened(spark: SparkSession) -> None:
    columns = "key string, timestamp timestamp"
    old = spark.createDataFrame([("a", at(3)), ("b", at(4))], columns)
    new = spark.createDataFrame([("c", at(3)), ("d", at(4))], columns)
    found = horizon.diff_rows_since(old, new, ["key", "timestamp"], [], "events", at(4)).collect()
    assert sorted((row["key"], row["_change"]) for row in found) == [("b", "close"), ("d", "open")]


LOG = [  # offset, key, value, timestamp, fate, known-at; horizon at 6, refused before 20
    (0, "curry", b"8", 0, "accepted", 10),
    (1, "curry", b"10", 4, "accepted", 10),  # in force at the horizon
    (2, "curry", b"7", 4, "accepted", 10),  # but this one came later, of the same time
    (3, "curry", b"12", 9, "accepted", 10),
    (4, "cake", b"3", 1, "accepted", 10),
    (5, "cake", None, 2, "accepted", 10),  # a tombstone, in force
    (6, "soup", b"5", 6, "accepted", 10),  # true from the horizon on
    (7, "curry", b"9", 5, "expired", 10),
    (8, "curry", b"9", 7, "expired", 10),  # another history retention may take it
    (9, "tea", b"{", 3, "malformed", 10),
    (10, "tea", b"{", 3, "malformed", 20),
    (11, None, b"1", 3, "null_key", 10),
    (12, "tea", b"1", 99, "time_skew", 10),
]


@pytest.mark.parametrize(("table", "gone"), [(True, [0, 1, 4, 7, 9, 11, 12]), (False, [0, 1, 2, 4, 5, 7, 9, 11, 12])])
def test_of_a_log_each_keys_record_in_force_at_the_horizon_stays_and_all_later_ones(
    spark: SparkSession, table: bool, gone: list[int]
) -> None:
    rows = [(0, 0, o, k and k.encode(), v, at(t), fate, at(known)) for o, k, v, t, fate, known in LOG]
    columns = (
        "epoch int, partition int, offset long, key binary, value binary, timestamp timestamp, fate string, "
        "systemFrom timestamp"
    )
    found = trim_records.find_unneeded_records(
        spark.createDataFrame(rows, columns), Horizon(at(6), at(20)), table=table
    )
    assert sorted(row["offset"] for row in found.collect()) == gone


@pytest.mark.parametrize(
    ("question", "known", "refused"),
    [
        (Question(as_of=at(5.999)), at(9), f"what was true at {at(5.999).isoformat()}"),
        (Question(as_of=at(6)), at(6), None),
        (Question(as_of=at(9)), at(5), f"what was known at {at(5).isoformat()}"),
        (Question(from_time=at(5), to_time=at(9)), at(9), f"what was true at {at(5).isoformat()}"),
        (Question(to_time=at(5)), at(9), f"what was true at {at(5).isoformat()}"),
        (Question(from_time=FIRST_MOMENT), at(9), None),
        (Question(), at(9), None),
    ],
)
def test_a_question_about_the_time_before_the_horizon_is_refused(
    question: Question, known: datetime, refused: str | None
) -> None:
    table = Table("/w", "restaurant", "menu", "versions", ("item",))
    horizon.refuse_question(table, None, question, known)
    if refused is None:
        horizon.refuse_question(table, Horizon(at(6)), question, known)
        return
    with pytest.raises(QueryError) as told:
        horizon.refuse_question(table, Horizon(at(6)), question, known)
    assert str(told.value).startswith("/w/restaurant/menu: " + refused) or refused in str(told.value)
    assert f"ask from {at(6).isoformat()} on" in told.value.fix
