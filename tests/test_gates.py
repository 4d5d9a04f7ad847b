"""Gates: what they look at, what becomes of them, and that none passes what it did not check."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from bare_runs import OUTCOMES
from hindcast.common import time_limits
from hindcast.common.errors import GateError
from hindcast.common.settings import read_settings
from hindcast.contract import load, locate_complaint_in_file, query_limits
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.plan import journal
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import Release, ReleasedKeys, Replay
from hindcast.plan.runs import Run
from hindcast.quality import expectations, gate_evaluation, gate_results, json_schemas
from hindcast.quality.gate_results import GateResult
from hindcast.quality.staged_change import StagedChange
from hindcast.store import table_creation, tables
from pipelines import T0, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAD = """
pipeline: shop
start: 2026-01-01
topics:
  sales:
    read: table
    key: {id: int}
    value: {price: int, note: string, email: string}
    sensitive: [email]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HINDCAST_VAR", str(tmp_path / "var"))
    return tmp_path


def contract(folder: Path, expect: str, head: str = HEAD) -> BoundContract:
    path = folder / "shop.yaml"
    path.write_text(head.lstrip() + "    expect:\n" + expect, encoding="utf-8")
    return bind_contract(load(path), read_settings())


def checked(spark: SparkSession, it: BoundContract, rows: list[tuple[Any, ...]]) -> list[GateResult]:
    """The verdicts on rows (id, price, note, email, seconds from and to) that a run would open in an empty table."""
    with candidate_of(spark, it, rows) as candidate:
        return gate_evaluation.evaluate_gates(candidate, it.expectations("sales"))


def candidate_of(spark: SparkSession, it: BoundContract, rows: list[tuple[Any, ...]]) -> StagedChange:
    schema = "id int, price int, note string, email string, start int, end int"
    change = spark.createDataFrame(rows, schema).selectExpr(
        "id", "price", "note", "email", "timestamp_seconds(start) AS validFrom", "timestamp_seconds(end) AS validTo",
        "0 AS _partition", "CAST(id AS bigint) AS _offset", "'open' AS _change",
    )  # fmt: skip
    plan = Plan("shop", 1, "first", datetime.now(UTC), None, it.hash, {"sales": TopicPlan("id", 0, 0, {}, {}, {})})
    return StagedChange(it, plan, "sales", change, len(rows), 0)


ROWS = [(1, 5, None, "a@x", 0, 10), (2, -1, None, "b@x", 0, None), (3, 0, None, "b@x", 5, None)]


@pytest.mark.filterwarnings("ignore:The condition_parser", "ignore:Passing a string to the row_condition")
def test_what_becomes_of_gates(spark: SparkSession, folder: Path) -> None:
    it = contract(
        folder,
        """\
      - expect_column_values_to_be_between: {column: price, min_value: 0}
      - expect_column_values_to_be_between: {column: price, min_value: 0, mostly: 0.6}
      - expect_column_values_to_match_regex: {column: note, regex: "^x$"}
      - expect_column_values_to_not_be_null: {column: note}
        on_failure: warn
      - expect_column_mean_to_be_between: {column: price, min_value: 1, max_value: 2}
      - expect_column_values_to_be_unique: {column: email}
        on_failure: quarantine
      - unexpected_rows_expectation: {unexpected_rows_query: "SELECT * FROM {batch} WHERE price = 0"}
      - unexpected_rows_expectation: {unexpected_rows_query: "SELECT * FROM {batch} WHERE _cost = 0"}
        on_failure: quarantine
      - expect_column_values_to_be_between:
          {column: price, min_value: 0, row_condition: "id > 7", condition_parser: spark}
      - expect_offsets_to_be_conserved:
""",
    )
    told = checked(spark, it, ROWS)
    assert [(v.outcome, v.checked, v.failing, v.is_stopping, v.is_holding) for v in told] == [
        ("failed", 3, 1, True, False),
        ("passed", 3, 1, False, False),
        ("unchecked", 0, None, False, False),
        ("failed", 3, 3, False, False),
        ("passed", 3, None, False, False),
        ("failed", 3, 2, False, True),
        ("failed", 3, 1, True, False),
        ("error", None, None, True, False),
        ("unchecked", 0, None, False, False),
        ("unchecked", 0, None, False, False),
    ]
    assert [v.gate for v in told] == list(range(10))
    assert told[0].detail == "1 of 3 rows fail, for example -1"
    assert told[1].observed == pytest.approx(1 / 3)
    assert told[4].observed == pytest.approx(4 / 3)
    assert told[5].detail == "2 of 3 rows fail", "the column is sensitive: no examples"
    assert told[7].detail.startswith("could not be evaluated:")
    assert "@x" not in str(told)
    with pytest.raises(GateError, match="3 of 10 gates stopped it") as stopped:
        gate_evaluation.refuse_failed_gates("shop", "sales", 1, told)
    assert str(stopped.value).startswith("shop.sales, run 1: ")
    assert "`hindcast failing shop --table sales` has the rows" in stopped.value.fix


def test_a_gate_that_errs_stops_the_table_unless_it_only_warns(spark: SparkSession, folder: Path) -> None:
    it = contract(
        folder,
        """\
      - unexpected_rows_expectation: {unexpected_rows_query: "SELECT * FROM {batch} WHERE _cost = 0"}
      - unexpected_rows_expectation: {unexpected_rows_query: "SELECT * FROM {batch} WHERE _cost = 1"}
        on_failure: quarantine
      - unexpected_rows_expectation: {unexpected_rows_query: "SELECT price, upper(note) FROM {batch} WHERE price = 0"}
        on_failure: quarantine
      - unexpected_rows_expectation: {unexpected_rows_query: "SELECT * FROM {batch} WHERE _cost = 2"}
        on_failure: warn
""",
    )
    told = checked(spark, it, ROWS)
    assert [(v.outcome, v.is_stopping, v.is_holding) for v in told] == [("error", True, False)] * 3 + [
        ("error", False, False)
    ]
    assert told[0].detail.startswith("could not be evaluated: UNRESOLVED_COLUMN")
    assert "\n" not in told[0].detail, "Spark's plan is no part of what is told"
    assert told[2].detail.startswith("its query gives no id, validFrom")
    for verdict in told[:3]:
        with pytest.raises(GateError, match="nothing of it was published") as stopped:
            gate_evaluation.refuse_failed_gates("shop", "sales", 1, [verdict])
        assert "has the rows" not in str(stopped.value), "none was found"
    gate_evaluation.refuse_failed_gates("shop", "sales", 1, told[3:])


@pytest.mark.parametrize(
    ("columns", "detail"),
    [
        ("id + 100 AS id, validFrom", "its query gives rows with another id, validFrom than any that it looked at"),
        ("id, validFrom - INTERVAL 1 SECOND AS validFrom", "its query gives rows with another id, validFrom than any"),
        ("cast(id AS string) AS id, validFrom", "its query gives id with another type"),
    ],
)
def test_rows_that_a_query_makes_up_are_not_taken_for_those_to_hold(
    spark: SparkSession, folder: Path, columns: str, detail: str
) -> None:
    query = f"SELECT {columns} FROM {{batch}} WHERE price < 1"  # a test's
    gate = (
        f'      - unexpected_rows_expectation: {{unexpected_rows_query: "{query}"}}\n        on_failure: quarantine\n'
    )
    (verdict,) = checked(spark, contract(folder, gate), ROWS)
    assert (verdict.outcome, verdict.is_stopping, verdict.detail.startswith(detail)) == ("error", True, True), verdict


def test_a_query_calls_no_sensitive_value_by_another_name(spark: SparkSession, folder: Path) -> None:
    queries = {
        "SELECT id, validFrom, upper(email) AS note FROM {batch} WHERE price < 1": {2, 3},
        "SELECT 1 AS id, email AS note FROM {batch}": set(),
        "SELECT * FROM {batch} WHERE price < 0": {2},
    }
    for query, ids in queries.items():
        gate = f'      - unexpected_rows_expectation: {{unexpected_rows_query: "{query}"}}\n        on_failure: warn\n'
        it = contract(folder, gate)
        with candidate_of(spark, it, ROWS) as candidate:
            found = gate_evaluation.find_presentable_rows(candidate, it.expectations("sales")[0]).collect()
        assert ({row["id"] for row in found}, {row["note"] for row in found} - {None}) == (ids, set())


def test_examples_are_words_of_their_sentence_however_long_they_are(spark: SparkSession, folder: Path) -> None:
    it = contract(
        folder,
        "      - expect_column_values_to_be_in_set: {column: note, value_set: [fine]}\n"
        "      - expect_column_distinct_values_to_be_in_set: {column: note, value_set: [fine]}\n",
    )
    each, all_ = checked(spark, it, [(1, 1, "\x1b[2J\npassed", None, 0, 1), (2, 1, "x" * 9999, None, 0, 1)])
    assert r"\x1b[2J\npassed" in each.detail
    assert f"{'x' * 200}... (9,999 characters)" in each.detail
    for verdict in (each, all_):
        assert verdict.outcome == "failed"
        assert len(verdict.detail) < 1200
        assert verdict.detail.isprintable()


@pytest.mark.long
@pytest.mark.ci
def test_a_json_schema_is_read_from_nowhere_and_what_is_no_json_does_not_match_it(
    spark: SparkSession, folder: Path
) -> None:
    beside = folder / "number.json"
    beside.write_text('{"type": "number"}', encoding="utf-8")
    gate = "expect_column_values_to_match_json_schema: {column: note, json_schema: "
    head = HEAD.replace("    sensitive: [email]\n", "")
    it = contract(folder, f"      - {gate}{{type: number}}}}\n      - {gate}{{$ref: '{beside.as_uri()}'}}}}\n", head)
    rows = [(n, 1, note, None, 0, 1) for n, note in enumerate(("1", "no JSON", "[" * 9999, '"text"', "2.5"))]
    own, far = checked(spark, it, rows)
    assert (own.outcome, own.failing, own.checked) == ("failed", 3, 5), own.detail
    assert far.outcome == "error"
    assert "Unresolvable" in far.detail


@pytest.mark.long
@pytest.mark.ci
def test_a_regular_expression_that_exhausts_the_stack_is_an_error_of_its_gate(
    spark: SparkSession, folder: Path
) -> None:
    head = HEAD.replace("    sensitive: [email]\n", "")
    it = contract(folder, "      - expect_column_values_to_match_regex: {column: note, regex: '(a|b)*'}\n", head)
    [verdict] = checked(spark, it, [(1, 1, "a" * 1_000_000, None, 0, 1)])
    assert (verdict.outcome, "StackOverflowError" in verdict.detail) == ("error", True)
    assert spark.range(1).count() == 1


def test_what_a_json_schema_cannot_judge_does_not_match_it(spark: SparkSession, folder: Path) -> None:
    gate = "expect_column_values_to_match_json_schema: {column: note, json_schema: "
    schemas = "{multipleOf: 0.5}", "{uniqueItems: true, items: {$ref: '#'}}", "{type: number}"
    head = HEAD.replace("    sensitive: [email]\n", "")
    it = contract(folder, "".join(f"      - {gate}{schema}}}\n" for schema in schemas), head)
    deep = "[" * 900 + "]" * 900
    notes = "1", "1e400", "NaN", "-Infinity", "9" * 4000, f"[{deep}, {deep}]"
    verdicts = checked(spark, it, [(n, 1, note, None, 0, 1) for n, note in enumerate(notes)])
    assert [(it.outcome, it.failing) for it in verdicts] == [("failed", 4), ("failed", 3), ("failed", 3)]


@pytest.mark.long
@pytest.mark.ci
def test_a_json_schema_that_takes_too_long_is_an_error_of_its_gate(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "MAX_SECONDS", 1.0)
    gate = "expect_column_values_to_match_json_schema: {column: note, json_schema: "
    schemas = "{pattern: '^(a+)+c$'}", "{pattern: '^a*$'}"
    head = HEAD.replace("    sensitive: [email]\n", "")
    it = contract(folder, "".join(f"      - {gate}{schema}}}\n" for schema in schemas), head)
    verdicts = checked(spark, it, [(1, 1, f'"{"a" * 60}"', None, 0, 1)])
    assert [it.outcome for it in verdicts] == ["error", "passed"]
    assert "a value took more than 1 seconds to match" in verdicts[0].detail


@pytest.mark.long
@pytest.mark.ci
def test_a_regular_expression_that_takes_too_long_is_an_error_of_its_gate(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "MAX_SECONDS", 1.0)
    slow, quick = "^(.*x){25}y$", "^(x{2})+$"
    lines = [
        *(f"match_regex: {{column: note, regex: '{it}'}}" for it in (slow, quick, r"^(?<all>\p{Lower}+)+$")),
        r"match_regex: {column: note, regex: '^(.*\p{Lower}){25}y$'}",
        f"not_match_regex: {{column: note, regex: '{quick}'}}",
        f"match_regex_list: {{column: note, regex_list: ['{slow}', '{quick}'], match_on: any}}",
        f"match_regex_list: {{column: note, regex_list: ['{quick}', '^(x)+$'], match_on: all}}",
        f"match_regex_list: {{column: note, regex_list: ['{quick}', '^(y)+$'], match_on: all}}",
        "match_regex_list: {column: note, regex_list: ['^(y)+$', '^(x)+$']}",
        "match_regex_list: {column: note, regex_list: ['^(.*x|.*z', '.*xx){25}y$']}",
        f"not_match_regex_list: {{column: note, regex_list: ['^(y)+$', '{quick}']}}",
        "not_match_regex_list: {column: note, regex_list: ['^(y)+$', 'z']}",
    ]
    head = HEAD.replace("    sensitive: [email]\n", "")
    it = contract(folder, "".join(f"      - expect_column_values_to_{line}\n" for line in lines), head)
    verdicts = checked(spark, it, [(1, 1, "x" * 60, None, 0, 1), (2, 1, None, None, 0, 2)])
    each = "error passed passed error failed error passed failed passed error failed passed"
    assert [it.outcome for it in verdicts] == each.split()
    assert "a value took more than 1 seconds to match" in verdicts[0].detail


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Passing a string to the row_condition:DeprecationWarning")
def test_a_pattern_in_sql_that_takes_too_long_is_an_error_of_its_gate(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(query_limits, "IN_TIME", "match_within_a_second")
    rows, only = "unexpected_rows_expectation", "expect_column_values_to_not_be_null: {column: note, row_condition"
    conditions = [
        ("note RLIKE '^(.*x){{25}}y$' /* too slow */", "error"),
        ("note NOT REGEXP concat('^(.*x){{25}}', 'y$')", "error"),
        ("length(regexp_replace(note, '^.*x.*x.*x.*x.*x.*x.*x.*x.*x.*x.*y$', '')) = 0", "error"),
        ("size(split(regexp_extract(note, '^(xx)+', 0), '(x|x)+y')) = 2", "error"),
        ("regexp_extract(note, '^(xx)+', 0) <> note", "passed"),
        ("note || 'y' RLIKE '^(xx)+y$' AND id = 1", "failed"),
        ("id RLIKE '^([2-9])+$'", "failed"),
    ]
    lines = [f'      - {rows}: {{unexpected_rows_query: "SELECT * FROM {{batch}} WHERE {it}"}}' for it, _ in conditions]
    lines += [f"""      - {only}: "note RLIKE '{it}'"}}""" for it in ("^(.*x){25}y$", "^(x{2})+$")]
    head = HEAD.replace("    sensitive: [email]\n", "")
    it = contract(folder, "\n".join([*lines, ""]), head)
    verdicts = checked(spark, it, [(1, 1, "x" * 60, None, 0, 1), (2, 1, None, None, 0, 2)])
    told = [(verdict.outcome, verdict.kwargs) for verdict in verdicts]
    assert [outcome for outcome, _ in told] == [*(outcome for _, outcome in conditions), "error", "passed"]
    assert [kwargs for _, kwargs in told] == [gate.kwargs for gate in it.expectations("sales")], "as they are written"
    assert "a value took more than 1 seconds to match" in verdicts[0].detail
    assert spark.range(1).count() == 1


@pytest.mark.parametrize(
    ("schema", "far"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, None),
        ({"$id": "https://a.org/b", "items": [{"$ref": "c#/x"}], "$defs": {"c": {"$id": "c"}}}, None),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, None),
        ({"properties": {"$ref": {"type": "string"}}}, None),
        ({"items": [{"$ref": "https://a.org/b"}]}, "https://a.org/b"),
        ({"$id": "file:///etc/a", "$dynamicRef": "passwd"}, "passwd"),
        ({"$ref": "http://[a"}, "http://[a"),
        ("text", None),
    ],
)
def test_what_a_json_schema_refers_to_is_in_it(schema: object, far: str | None) -> None:
    assert json_schemas.find_outside_reference(schema) == far


def test_candidates_alive_at_once_see_their_own_rows(spark: SparkSession, folder: Path) -> None:
    head = HEAD.replace("topics:\n", "topics:\n  shops: {read: table, key: {id: int}, value: {name: string}}\n")
    it = contract(folder, "      - expect_foreign_keys_to_be_found: {column: price, table: shops}\n", head)
    [gate] = it.expectations("sales")
    plan = Plan("shop", 1, "first", datetime.now(UTC), None, it.hash, {"sales": TopicPlan("id", 0, 0, {}, {}, {})})

    def candidate(sold: int, shop: int) -> StagedChange:
        change = spark.range(sold, sold + 1).withColumn("_change", F.lit("open"))
        return StagedChange(it, plan, "sales", change, 1, 0, {"shops": spark.range(shop, shop + 1)})

    def seen(view: str) -> list[int]:
        return [row["id"] for row in spark.table(view).collect()]

    with candidate(1, 10) as first:
        views = first.create_view(first.rows("change")), first.gate_facts(gate)["found_in"]
        with candidate(2, 20) as second:
            others = second.create_view(second.rows("change")), second.gate_facts(gate)["found_in"]
            assert [*map(seen, (*views, *others))] == [[1], [10], [2], [20]]
        assert [*map(seen, views)] == [[1], [10]], "the other's end takes nothing away"


def test_without_rows_nothing_passes(spark: SparkSession, folder: Path) -> None:
    it = contract(folder, "      - expect_column_values_to_be_between: {column: price, min_value: 0}\n")
    assert [(v.outcome, v.checked) for v in checked(spark, it, [])] == [("unchecked", 0)]


def test_failing_rows_come_whole_whatever_finds_them(spark: SparkSession, folder: Path) -> None:
    it = contract(
        folder,
        """\
      - expect_column_values_to_be_between: {column: price, min_value: 0}
      - expect_column_values_to_be_unique: {column: email}
      - expect_column_pair_values_a_to_be_greater_than_b: {column_A: price, column_B: id}
      - unexpected_rows_expectation: {unexpected_rows_query: "SELECT * FROM {batch} WHERE price = 0"}
      - expect_periods_to_not_be_empty:
""",
    )
    rows = [*ROWS, (4, 9, "x", "c@x", 3, 3)]
    change = spark.createDataFrame(rows, "id int, price int, note string, email string, start int, end int").selectExpr(
        "id", "price", "note", "email", "timestamp_seconds(start) AS validFrom", "timestamp_seconds(end) AS validTo",
        "'open' AS _change",
    )  # fmt: skip
    plan = Plan("shop", 1, "first", datetime.now(UTC), None, it.hash, {"sales": TopicPlan("id", 0, 0, {}, {}, {})})
    with StagedChange(it, plan, "sales", change, len(rows), 0) as candidate:
        found = [gate_evaluation.select_failing_rows(candidate, gate) for gate in it.expectations("sales")]
        assert all({"id", "note", "validTo", "systemFrom"} <= set(rows.columns) for rows in found)
        assert [sorted(row["id"] for row in rows.collect()) for rows in found] == [[2], [2, 3], [2, 3], [3], [4]]


def test_runs_are_compared_with_completed_ones_and_shares_are_of_all_that_is_new_to_the_table(
    spark: SparkSession, folder: Path
) -> None:
    it = contract(
        folder,
        """\
      - expect_row_count_to_be_near_last_runs: {factor: 2}
      - expect_share_of_records_to_be_at_most: {which: late, share: 0.1}
      - expect_offsets_to_be_conserved: {}
""",
    )
    place, gate = (read_settings().warehouse, "shop"), it.expectations("sales")[0]
    told = {1: (20.0, "completed"), 2: (90.0, "stopped"), 3: (4.0, "completed"), 4: (95.0, "abandoned")}

    def plan(run: int) -> Plan:
        purpose = Release({"sales": ReleasedKeys(T0, (), "ann")}) if run == 3 else Replay()
        return Plan("shop", run, f"run {run}", T0 + timedelta(hours=run), None, it.hash, {}, purpose=purpose)

    for run, (observed, state) in told.items():
        # Each run allowed something else.
        judged = GateResult(0, gate.type, {"factor": run}, "stop", "passed", 1, None, observed, "")
        gate_results.append_results(*place, run, "sales", [judged])
        entry = Run(plan(run))
        journal.append_entry(place[0], entry)
        for ending in [state, *(["abandoned"] if state == "stopped" else [])]:
            journal.append_entry(place[0], replace(entry, outcome=OUTCOMES[ending]))
    log = tables.log_table(*place, "sales")
    table_creation.ensure_table(log, StructType([StructField("run", LongType())]))
    write_deltalake(log.path, pa.table({"run": pa.array([1, 2, 3, 4, 4, 5])}), mode="append")
    change = spark.createDataFrame([(1, T0)], "id int, validFrom timestamp").withColumn("_change", F.lit("open"))
    for run, earlier in [(5, [20.0]), (3, [])]:
        with StagedChange(it, plan(run), "sales", change, 1, 0) as candidate:
            assert candidate.gate_facts(gate)["earlier"] == earlier, "a release is like no other run"
            if run == 5:
                seen = {which: sorted(row["run"] for row in candidate.rows(which).collect()) for which in LOGGED}
                assert seen == {"records": [5], "unpublished": [4, 4, 5]}
    assert [(run.stop_error, run.has_report) for run in journal.read_runs(*place)] == [
        (None, True), ("", True), (None, True), (None, False),
    ]  # fmt: skip


LOGGED = ("records", "unpublished")


def test_verdicts_of_the_last_try_count_and_tell_a_trend(folder: Path) -> None:
    def verdict(observed: float | None, outcome: Any = "passed", on_failure: str = "stop") -> GateResult:
        return GateResult(0, "expect_it", {"column": "a"}, on_failure, outcome, 1, None, observed, "")

    place = (str(folder / "warehouse"), "shop")
    for run, told in [(1, verdict(1.0)), (2, verdict(9.0, "failed")), (3, verdict(None, "error")), (3, verdict(2.0))]:
        gate_results.append_results(*place, run, "sales", [told])
    gate_results.append_results(*place, 4, "sales", [])
    gate = gate_results.measurement_key("expect_it", {"column": "a", "factor": 2})
    assert gate_results.read_measurements(*place, "sales", [1, 3]) == {gate: [1.0, 2.0]}
    told = gate_results.read_results(*place, 3)["sales"]
    assert [(v.outcome, v.trend) for v in told] == [("passed", [1.0, 9.0, 2.0])]
    assert gate_results.read_results(*place, 4) == {}


REFUSED = [
    ("expect_rain: {}", "no expectation 'expect_rain'"),
    ("expect_column_values_to_be_between: {column: price, max_valu: 3}", "max_valu"),
    (
        "expect_column_mean_to_be_between: {column: price, min_value: 0}\n        on_failure: quarantine",
        "judges all rows",
    ),
    (
        "expect_column_values_to_be_null: {column: price}\n        rows: table\n        on_failure: quarantine",
        "held back",
    ),
    ("expect_offsets_to_be_conserved:\n        rows: table", "leave rows out"),
    ("expect_periods_to_not_overlap: {key: [id]}", "key is set by the run"),
    ("expect_table_to_be_fresh: {within: soon}", "soon"),
    ("expect_share_of_records_to_be_at_most: {which: late, share: 7}", "share"),
    ("expect_share_of_unmatched_to_be_at_most: {share: 0.5}", "a stream that is joined"),
    ("expect_foreign_keys_to_be_found: {column: price, table: shops}", "no table 'shops'"),
    ("expect_foreign_keys_to_be_found: {column: price, table: [shops]}", "no table '.'shops'.' here"),
    ("expect_foreign_keys_to_be_found: {column_list: 5, table: shops}", "no table 'shops'"),
    ("expect_foreign_keys_to_be_found: {column: price, table: later}", "'later' does not exist yet"),
    ("expect_row_count_to_be_near_last_runs: {factor: 0.5}", "factor"),
    (
        'expect_column_values_to_match_json_schema: {column: note, json_schema: {$ref: "file:///etc/passwd"}}',
        "refers to file:///etc/passwd, which is not in it",
    ),
    (
        'expect_column_values_to_be_between: {column: price, min_value: {$PARAMETER: "now()"}}',
        "is a suite's, and there is none",
    ),
    ("expect_ties_to_be_ordered: {}\n        on_failure: quarantine", "write stop or warn"),
]


@pytest.mark.parametrize(("gate", "told"), REFUSED, ids=[gate.partition(":")[0] + told[:6] for gate, told in REFUSED])
def test_a_gate_that_cannot_mean_anything_is_refused(folder: Path, gate: str, told: str) -> None:
    later = "  later:\n    read: table\n    key: {id: int}\n    value: {x: int}\n"
    path = folder / "shop.yaml"
    path.write_text(f"{HEAD.lstrip()}    expect:\n      - {gate}\n{later}", encoding="utf-8")
    first = next(expectations.check_expectations(load(path)))
    assert re.search(told, f"{first.found}\n{first.fix}"), first
    assert first.found.startswith("sales.expect.0: ")
    assert locate_complaint_in_file(path, first).where == f"{path}:10"
    assert first.fix


UNFIT = [
    # the parameters, what was found, what would do
    ("expect_column_values_to_be_between: {column: price, min_value: 0, mostly: 2}",
     "mostly: ensure this value is less than or equal to 1.0", "docs/quality.md"),
    ("expect_column_values_to_be_between: {column: price, min_value: zero}",
     "min_value: value is not a valid float", "docs/quality.md"),
    ("expect_column_values_to_be_between: {column: price, min_value: 0, strict_min: perhaps}",
     "strict_min: value could not be parsed to a boolean", "docs/quality.md"),
    ("expect_column_values_to_be_between: {column: price}",
     "min_value and max_value cannot both be None", "docs/quality.md"),
    ("expect_column_values_to_be_between: {column: 5, min_value: 0}", "column: str type expected", "docs/quality.md"),
    ("expect_column_values_to_be_between: {min_value: 0}", "parameter 'column' is missing",
     "it takes column, condition_parser, max_value, min_value, mostly, row_condition, strict_max, strict_min"),
    ("expect_column_values_to_be_in_set: {column: price, value_set: 5}",
     "value_set: value is not a valid list", "docs/quality.md"),
    ("expect_column_values_to_be_in_set: {column: price, values: [5]}", "no parameter 'values'",
     "did you mean 'value_set'? known here: column, condition_parser, mostly, row_condition, value_set"),
    ("unexpected_rows_expectation: {query: SELECT 1}", "no parameter 'query'", "known here: unexpected_rows_query"),
    ("unexpected_rows_expectation: {unexpected_rows_query: 'SELECT { FROM {batch}'}",
     ("unexpected_rows_query contains an unpaired or malformed brace: unexpected '{' in field name. To include a "
      "literal brace in the query, double it: `{{` and `}}`. Query: SELECT { FROM {batch}"), "docs/quality.md"),
    ("expect_table_to_be_fresh: {withn: 2 hours}", "no parameter 'withn'", "did you mean 'within'? known here: within"),
    ("expect_table_to_be_fresh: {within: soon}",
     "within is 'soon'", "write a duration: 30 days, 90 minutes, 500 ms"),
    ("expect_table_to_be_fresh:", "parameter 'within' is missing", "it takes within"),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "found", "fix"), UNFIT, ids=[gate[:70] for gate, *_ in UNFIT])
def test_a_parameter_that_does_not_fit_is_told_in_the_one_clause_that_helps(
    folder: Path, gate: str, found: str, fix: str
) -> None:
    [complaint] = expectations.check_expectations(contract(folder, f"      - {gate}\n"))
    assert complaint.found.partition("): ")[2] == found
    assert complaint.fix.startswith(fix)


def test_the_rules_that_look_beyond_the_change_are_those_of_the_contract(folder: Path) -> None:
    it = contract(folder, "      - expect_table_to_be_fresh: {within: 1 hour}\n")
    for name in expectations.import_gx().expectations.registry.list_registered_expectation_implementations():
        about = getattr(expectations.find_implementation(name), "row_set", None)
        gate = it.expectations("sales")[0].model_copy(update={"type": name})
        assert gate.can_fail_without_change == (about in ("records", "unpublished", "table", "events", "ties")), name


PERIODS = """
pipeline: shop
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    expect:
      - expect_periods_to_not_overlap:
      - expect_keys_to_have_at_most_one_open_version:
      - expect_periods_to_have_no_gaps: {shorter_than: 1 hour}
      - expect_system_from_to_not_run_backwards:
"""


@pytest.mark.long
@pytest.mark.parametrize("more", [False, True])
def test_periods_are_judged_with_the_rows_that_are_believed(
    spark: SparkSession, broker: str, tmp_path: Path, more: bool
) -> None:
    with pipeline(spark, broker, tmp_path, PERIODS) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("curry", {"price": 9}, 10), ("naan", {"price": 3}, 0))
        p.run()

        def verdicts_on(*rows: tuple[str, str, int, int, int | None], early: bool = False) -> list[str]:
            """Of a change: open or close, item, price, seconds from and to."""
            schema = "_change string, item string, price int, start int, end int"
            change = spark.createDataFrame(rows, schema).selectExpr(
                "_change", "item", "price", f"timestamp_seconds({int(T0.timestamp())} + start) AS validFrom",
                f"timestamp_seconds({int(T0.timestamp())} + end) AS validTo", "0 AS _partition", "0L AS _offset",
            )  # fmt: skip
            known_at = T0 if early else datetime.now(UTC)
            plan = Plan("shop", 2, "second", known_at, None, "hash", {"menu": TopicPlan("id", 0, 0, {}, {}, {})})
            opened = sum(row[0] == "open" for row in rows)
            with StagedChange(p.contract, plan, "menu", change, opened, len(rows) - opened) as candidate:
                return [v.outcome for v in gate_evaluation.evaluate_gates(candidate, p.contract.expectations("menu"))]

        right = [("close", "curry", 9, 10, None), ("open", "curry", 9, 10, 20), ("open", "curry", 7, 20, None)]
        assert verdicts_on(*right) == ["passed"] * 4
        assert verdicts_on(*right[1:]) == ["failed", "failed", "passed", "passed"]
        assert verdicts_on(*right[:1], ("open", "curry", 7, 11, None), early=True) == [
            *("passed", "passed", "failed", "failed")
        ]
        if more:
            assert verdicts_on(("open", "curry", 7, 5, 6)) == ["failed", "passed", "passed", "passed"]
            assert verdicts_on(*right[:1], ("open", "curry", 7, 11, None)) == ["passed", "passed", "failed", "passed"]
            assert verdicts_on(("open", "tea", 1, 0, None), early=True)[3] == "passed"
            assert verdicts_on(*right, early=True)[3] == "failed"
