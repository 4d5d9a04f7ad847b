"""Text of users and of records means itself wherever it meets Spark SQL: `${env:X}` is not what stands in X."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from hindcast.bitemporal.predicates import Question
from hindcast.common.session import SPARK_SETTINGS, fit_to_rows, format_defaults_file
from hindcast.common.settings import read_settings
from hindcast.query import read
from pipelines import T0, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBSTITUTE = "spark.sql.variable.substitute"
PATH, NAME = "${env:PATH}", "${spark.app.name}"
GONE = "${none}"
"""What Spark knows no value of becomes nothing."""

MEETING = f"""
pipeline: literal
start: 2026-01-01
topics:
  menu:
    read: table
    key: {{item: string}}
    value: {{price: int, note: string}}
    valid_time: "if(note = '{PATH}', record_timestamp + INTERVAL '1' HOUR, record_timestamp)"
    expect:
      - expect_column_values_to_be_in_set: {{column: note, value_set: ["{PATH}", "plain"]}}
      - expect_column_values_to_match_regex: {{column: note, regex: "^([$].env:PATH.|plain)$"}}
      - expect_column_values_to_be_between: {{column: price, max_value: 0, condition_parser: spark,
          row_condition: "note = concat('{GONE}', 'plain')"}}
      - unexpected_rows_expectation: {{unexpected_rows_query: "SELECT * FROM {{batch}} WHERE
          note NOT IN ('plain', '$' || '{{{{env:PATH}}}}') OR note LIKE '${{{{system:java.home}}}}%'"}}
      - expect_column_values_to_be_between: {{column: price, min_value: 0}}
        on_failure: quarantine
  orders: {{read: stream, key: {{customer: string}}, value: {{item: string}}}}
views:
  shown:
    table: menu
    where: "note = '{PATH}'"
    select: {{same: "note = '{PATH}'", text: "concat('{PATH}', '{NAME}', '{GONE}')"}}
  grouped:
    table: menu
    group_by: {{named: "'{NAME}'"}}
    aggregate: {{most: "max(concat(note, '{GONE}'))"}}
  keyed: {{stream: orders, key: {{other: "concat(customer, '{GONE}')"}}}}
  joined: {{stream: orders, join: {{table: menu, on: "concat(item, '{GONE}')"}}, select: {{price: price}}}}
  copied: {{stream: orders, where: "item <> '{GONE}'", select: {{text: "'{NAME}'"}}, semantics: kafka}}
"""


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:The condition_parser", "ignore:Passing a string to the row_condition")
def test_a_name_in_braces_is_put_in_nobodys_place(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """In expressions, conditions, gates, keys and values; also in a session whose client has asked for substitution."""
    assert spark.conf.get(SUBSTITUTE) == "false"
    spark.conf.set(SUBSTITUTE, "true")
    try:
        with pipeline(spark, broker, tmp_path, MEETING) as p:
            p.send("menu", ("curry", {"price": 1, "note": "plain"}, 0), (f"curry{GONE}", {"price": 2, "note": PATH}, 0))
            p.send("menu", (NAME, {"price": -3, "note": "plain"}, 0), (NAME, {"price": 4, "note": "plain"}, 9))
            p.send("orders", ("anna", {"item": "curry"}, 7200))
            p.run()
            hour = timedelta(hours=1)
            assert p.believed("menu") == [
                *(("curry", 1, "plain", 0, None), (f"curry{GONE}", 2, PATH, hour.total_seconds(), None))
            ]
            assert [row[:3] for row in p.believed("shown")] == [(f"curry{GONE}", True, f"{PATH}{NAME}{GONE}")]
            assert p.believed("grouped")[-1][:2] == (NAME, f"plain{GONE}")
            assert p.believed("keyed")[0][0] == f"anna{GONE}"
            assert [row["price"] for row in p.raw("joined")] == [2]
            assert [row["text"] for row in p.raw("copied")] == [NAME]
            asked = {"warehouse": p.warehouse, "contract": p.contract, "name": "menu"}
            later = T0 + timedelta(hours=2)
            for key, price in (("curry", 1), (f"curry{GONE}", 2)):
                question = Question(key=[key], as_of=later)
                assert _prices(read.frame(spark, question=question, **asked).collect()) == [price], key
                assert read.query(question=question, **asked).column("price").to_pylist() == [price]
            p.send("menu", (NAME, {"price": 5, "note": "plain"}, 0))
            p.run()
            assert [row[:2] for row in p.believed("menu") if row[0] == NAME] == [(NAME, 5), (NAME, 4)]
    finally:
        spark.conf.set(SUBSTITUTE, "false")


def test_every_session_takes_text_literally(spark: SparkSession) -> None:
    """What every JVM is started with, the shared server's and spark-submit's, and what a step says of its session."""
    assert SPARK_SETTINGS[SUBSTITUTE] == "false"
    for small in (False, True):
        assert f"{SUBSTITUTE} false" in format_defaults_file(read_settings(), small=small).splitlines()
    other = spark.newSession()
    assert other.conf.get(SUBSTITUTE) == "false"
    other.conf.set(SUBSTITUTE, "true")
    with fit_to_rows(other, 10**9):
        assert other.sql(f"SELECT '{PATH}'").collect() == [(PATH,)]


def test_sparks_parts_in_docker_are_started_with_these_settings() -> None:
    told: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "docker-compose.yaml").read_text("utf-8"))
    commands = [it["command"] for it in told["services"].values() if "spark-submit" in str(it.get("command"))]
    assert commands
    for command in commands:
        assert command[command.index("--properties-file") + 1].endswith("/spark-conf/spark-defaults.conf")
        assert SUBSTITUTE not in str(command)


def test_moments_of_a_question_are_not_cut(spark: SparkSession) -> None:
    from hindcast.bitemporal.predicates import translate_to_spark as for_spark

    text = "it's ${a} and ${env:PATH}$"
    condition = for_spark("x = 'it''s ${a} and ${env:PATH}$' AND at <= TIMESTAMPTZ '2026-01-01 00:00:00+00:00'")
    rows = spark.createDataFrame(
        [(text, datetime(2026, 1, 1, tzinfo=UTC)), ("it's  and $", T0)], "x string, at timestamp"
    )
    assert [row.x for row in rows.where(condition).collect()] == [text]


def _prices(rows: list[Any]) -> list[int]:
    return [row.price for row in rows]
