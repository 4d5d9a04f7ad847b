"""Sensitive columns: what is made of them is sensitive too, and no report, no preview and no error shows a value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import reports
from hindcast.bitemporal import derivation
from hindcast.cli import main
from hindcast.common.errors import ContractError, HindcastError, RecordError
from hindcast.common.settings import read_settings
from hindcast.contract import load
from hindcast.contract.bound import bind_contract
from hindcast.contract.sensitive import find_sensitive_columns, redact_message
from hindcast.ingest import topic_log
from hindcast.quality import failing_rows
from hindcast.runs import expression_errors
from hindcast.runs.spark_errors import explain_spark_errors
from pipelines import at, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "5ecret"  # noqa: S105  # what must not be shown
CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  customers:
    read: table
    key: {email: string}
    value: {name: string, city: string, age: int}
    sensitive: [email, name]
    expect:
      - expect_column_values_to_not_match_regex: {column: name, regex: "^5ecret bad"}
        on_failure: quarantine
      - expect_column_values_to_not_match_regex: {column: name, regex: "^5ecret warned"}
        on_failure: warn
views:
  initials:
    table: customers
    select: {first: "substr(name, 1, 1)", city: city}
  towns:
    table: initials
    group_by: {city: city}
    aggregate: {last: max(first), n: count(*)}
  numbers:
    table: customers
    select: {number: "CAST(name AS int)"}
"""


def test_what_is_made_of_sensitive_columns_is_sensitive(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT.lstrip(), encoding="utf-8")
    contract = load(path)
    assert find_sensitive_columns(contract) == {
        "customers": {"email", "name"},
        "initials": {"email", "first"},
        "towns": {"last"},
        "numbers": {"email", "number"},
    }
    path.write_text(CONTRACT.lstrip().replace("[email, name]", "true"), encoding="utf-8")
    assert find_sensitive_columns(load(path))["towns"] == {"city", "last"}
    told = "[CAST_INVALID_INPUT] The value '5ecret' cannot be cast"
    assert redact_message(contract, "towns", told) == "CAST_INVALID_INPUT (hidden: the table has sensitive columns)"
    path.write_text(CONTRACT.lstrip().replace("    sensitive: [email, name]\n", ""), encoding="utf-8")
    assert redact_message(load(path), "towns", told) == told


@pytest.mark.parametrize(
    "message",
    [
        "[CAST_INVALID_INPUT] The value 'x [ANN.SMITH] y' cannot be cast",
        "org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value '[ANN.SMITH]'",
        "(org.apache.spark.SparkNumberFormatException) [CAST_INVALID_INPUT] The value '[ANN.SMITH]'",
        (
            "An error occurred while calling o12.collect.\n: org.apache.spark.SparkException: Job aborted due to stage "
            "failure: Task 0 in stage 7.0 failed 1 times, most recent failure: Lost task 0.0 in stage 7.0 (TID 7) "
            "(10.0.0.1 executor driver): org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value"
        ),
        "The value 'x [ANN.SMITH] y' cannot be cast",
        "Conversion Error: Could not convert string '[ANN.SMITH]' to INT32",
    ],
)
def test_an_error_class_is_read_only_where_spark_writes_it(tmp_path: Path, message: str) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT.lstrip(), encoding="utf-8")
    hidden = "hidden: the table has sensitive columns"
    expected = f"CAST_INVALID_INPUT ({hidden})" if "[CAST_INVALID_INPUT]" in message else hidden
    assert redact_message(load(path), "numbers", message) == expected


@pytest.mark.parametrize("name", ["Dr. Ann Smith, Main St. 5", "x [ANN.SMITH] y", "Ann Exception: Smith. [ANN] Smith"])
def test_neither_an_error_nor_its_fix_shows_a_value(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT.lstrip(), encoding="utf-8")
    contract = load(path)
    columns = "email string, name string, city string, age int, validFrom timestamp, validTo timestamp"
    rows = spark.createDataFrame([("a", name, "york", 1, at(0), None)], columns)
    with (
        pytest.raises(ContractError, match="numbers has a record on which CAST") as refused,
        expression_errors.explain_expression_errors(tmp_path, contract, "numbers"),
    ):
        derivation.derive_view(contract, "numbers", {"customers": rows}).collect()
    assert refused.value.found.endswith("fails: CAST_INVALID_INPUT (hidden: the table has sensitive columns)")
    assert refused.value.fix == "make the expression return null for such records"
    assert "smith" not in str(refused.value).lower()


@pytest.mark.parametrize(
    "reason", ['the value is {"name": "Ann: Smith", "vip": true}', "x partition 1 offset 2: Smith"]
)
def test_a_record_that_no_longer_decodes_is_named_but_not_shown(
    spark: SparkSession, tmp_path: Path, reason: str
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT.lstrip(), encoding="utf-8")
    rows = spark.createDataFrame(
        [(0, 7, "malformed", reason, "")], "partition int, offset long, fate string, reason string, value string"
    )
    found = "a record of the log no longer decodes: topic shop.customers partition 0 offset 7: "
    contract = bind_contract(load(path), read_settings({}))
    with pytest.raises(RecordError) as refused, explain_spark_errors(contract, "customers"):
        topic_log.refuse_undecodable(rows, "shop.customers").collect()
    assert refused.value.found == found + "hidden: the table has sensitive columns"


@pytest.mark.parametrize(
    ("read", "join", "marked"),
    [
        ("table", "{table: persons, how: outer}", {"id", "b"}),
        ("stream", "{stream: persons, how: outer, before: 1 hour}", {"id", "b"}),
        ("table", "{table: persons, how: left}", {"b"}),
        ("table", "{table: persons, how: outer}, key: {id: visits.id, b: persons.b}", {"b"}),
    ],
)
def test_the_key_of_an_outer_join_is_sensitive_if_that_of_either_side_is(
    tmp_path: Path, read: str, join: str, marked: set[str]
) -> None:
    """Rows that only the second side has carry its key under the name of the first side's."""
    path = tmp_path / "clinic.yaml"
    path.write_text(
        f"""
pipeline: clinic
start: 2026-01-01
topics:
  visits: {{read: {read}, key: {{id: string}}, value: {{a: int}}}}
  persons: {{read: {read}, key: {{ssn: string}}, value: {{b: int}}, sensitive: true}}
views:
  both: {{{read}: visits, join: {join}}}
  copied: {{{read}: both}}
""".lstrip().replace("copied: {stream: both}", "none: {stream: visits}"),
        encoding="utf-8",
    )
    found = find_sensitive_columns(load(path))
    assert found["both"] == marked
    assert found.get("copied", marked) == marked


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT.lstrip().replace("[email, name]", "[email, nam]"), encoding="utf-8")
    with pytest.raises(HindcastError, match="no column 'nam' here") as refused:
        load(path)
    assert "shop.yaml:8" in str(refused.value)


@pytest.mark.long
@pytest.mark.ci
def test_no_value_is_shown_whatever_happens(
    spark: SparkSession, broker: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    text = CONTRACT.partition("  initials:")[0] + "  numbers:" + CONTRACT.partition("  numbers:")[2]
    with pipeline(spark, broker, tmp_path, text) as p:
        # A record that does not decode: neither its reason nor its key.
        p.send("customers", (f"{SECRET}@x", f'{{"name": "{SECRET}", "age": "{SECRET}"}}'.encode(), 0))
        with pytest.raises(HindcastError, match="offset 0, key \\*\\*\\*: 1 of the run's records") as refused:
            p.run("first")
        told.append(str(refused.value))
        # An expression that fails on a value; and a change that is held back.
        p.write(text.replace("    sensitive:", "    max_malformed: 1\n    sensitive:"))
        p.send("customers", (f"{SECRET}@y", {"name": f"{SECRET} warned", "city": "york", "age": 1}, 1))
        p.send("customers", (f"{SECRET}@z", {"name": f"{SECRET} bad", "city": "york", "age": 1}, 1))
        with pytest.raises(HindcastError, match="hidden: the table has sensitive columns") as refused:
            p.run("first")
        told.append(str(refused.value))
        chain = refused.value.__cause__
        told.append(str(chain))
        p.write(text.partition("views:")[0].replace("    sensitive:", "    max_malformed: 1\n    sensitive:"))
        done = p.run()
        assert done["tables"]["customers"]["held"] == {"keys": 1, "rows": 1, "newly": 1, "grown": 0}
        assert [gate["outcome"] for gate in done["tables"]["customers"]["gates"]] == ["failed", "unchecked"]
        gates = [
            {**gate, "kwargs": {}} for gate in done["tables"]["customers"]["gates"]
        ]  # what a contract says, is said
        told += [json.dumps(gates), json.dumps(done["topics"])]
        shown = {**done, "tables": {**done["tables"], "customers": {**done["tables"]["customers"], "gates": gates}}}
        told += [reports.format_report(shown), reports.render_page(shown)]
        told.append(str(reports.preview_run(spark, "shop")["tables"]["customers"]["examples"]))
        rows = failing_rows.list_entries(p.warehouse, "shop").drop("reason")
        told.append(str([row["row"] for row in rows.to_pylist()]))
        capfd.readouterr()
        assert main.main(["failing", "shop", "--format", "json"]) == 0
        listed = json.loads(capfd.readouterr().out)
        assert {row["key"] for row in listed} == {"***"}
        assert {row["offset"] for row in listed} == {1, 2}
        told.append(str([{**row, "reason": ""} for row in listed]))
    assert [text for text in told if SECRET in text] == []
