"""Widening a column's type locks out readers: refused unless the contract consents, and told by check, preview, run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import reports
from hindcast.cli import main
from hindcast.common.column_values import Row
from hindcast.common.errors import ContractError, TableError
from hindcast.common.settings import read_settings
from hindcast.contract.expressions import find_plain_type
from hindcast.query import key_history
from hindcast.runs import preview, run_preview, widening
from hindcast.store.columns import parse_type
from hindcast.store.table_creation import REWRITING, WIDENING_WARNING
from pipelines import Pipeline, at, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: cafe
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: TYPE, note: string}
views:
  plain:
    table: menu
    select: {price: price}
  doubled:
    table: menu
    select: {twice: price * 2}
"""
NARROW, WIDE = CONTRACT.replace("TYPE", "int"), CONTRACT.replace("TYPE", "bigint")


def consenting(text: str, *names: str, widen: str = "spark_only") -> str:
    for name in names:
        text = text.replace(f"  {name}:\n", f"  {name}:\n    widen: {widen}\n")
    return text


def rows_by_delta_rs(p: Pipeline, name: str) -> int:
    return len(DeltaTable(p.table(name).path).to_pyarrow_table())


@pytest.mark.long
@pytest.mark.ci
def test_widening_is_refused_before_anything_is_written_unless_the_contract_consents(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(spark, broker, tmp_path, NARROW) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run()
        before = p.versions()

        p.write(WIDE)
        assert main.main(["check", str(p.path)]) == 1
        shown = capsys.readouterr().err
        line = next(n for n, text in enumerate(p.path.read_text().splitlines(), 1) if "price: bigint" in text)
        assert f"cafe.yaml:{line}: menu would be widened: price from int to bigint; " in shown
        assert "plain would be widened: price from int to bigint" in shown
        assert "write widen: rewrite under menu and plain" in shown
        for attempt in (lambda: reports.preview_run(spark, p.name), lambda: p.run("refused")):
            with pytest.raises(ContractError, match="menu would be widened"):
                attempt()
        assert (p.versions(), p.states()) == (before, [(1, "completed")])

        p.write(consenting(WIDE, "menu", "plain"))
        assert main.main(["check", str(p.path)]) == 0
        assert f"plain would be widened: price from int to bigint. {WIDENING_WARNING}" in capsys.readouterr().out
        with pytest.raises(TableError, match=r"would be widened \(twice from int to bigint\)") as caught:
            p.run("second")  # the type of an expression only Spark knows
        assert "widen: rewrite under doubled" in caught.value.fix
        assert rows_by_delta_rs(p, "doubled") == 1

        p.write(consenting(WIDE, "doubled"))  # menu and plain are widened already: nobody else is locked out
        assert main.main(["check", str(p.path)]) == 0
        assert "would be widened" not in capsys.readouterr().out
        p.send("menu", ("soup", {"price": 2**40}, 1))
        told = p.run("second")
        assert {name: table.get("widened") for name, table in told["tables"].items()} == {
            "menu": {"price": ["int", "bigint"]},
            "plain": {"price": ["int", "bigint"]},
            "doubled": {"twice": ["int", "bigint"]},
        }
        assert f"widened: twice from int to bigint. {WIDENING_WARNING}" in reports.format_report(told)
        assert "widened: twice from int to bigint" in reports.render_page(told)
        p.run("third")  # the second one had been planned before the soup came
        assert p.believed("doubled") == [("curry", 16, 0, None), ("soup", 2**41, 1, None)]
        with pytest.raises(DeltaError, match="typeWidening"):
            rows_by_delta_rs(p, "doubled")


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_a_table_that_is_rewritten_for_a_wider_type_stays_readable_by_all(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    menu = NARROW.partition("views:")[0].replace("note: string", "note: string, at: 'struct<street:string,no:int>'")
    wide = menu.replace("int,", "bigint,").replace("no:int", "no:bigint").replace("note: string, ", "")
    with pipeline(spark, broker, tmp_path, menu) as p:
        p.send("menu", ("curry", {"price": 8, "note": "hot", "at": {"street": "A", "no": 1}}, 0))
        p.send("menu", ("curry", {"price": 9, "note": "hot", "at": {"street": "A", "no": 2}}, 5))
        p.run()
        p.send("menu", ("curry", {"price": 7, "note": "late"}, 3))
        p.run()
        before = p.history("menu")
        p.write(consenting(wide, "menu", widen="rewrite"))
        assert main.main(["check", str(p.path)]) == 0
        shown = capsys.readouterr().out
        assert f"menu would be widened: price from int to bigint, at.no from int to bigint. {REWRITING}" in shown
        assert REWRITING in run_preview.format_preview(preview.preview_run(spark, read_settings(), p.name))
        p.send("menu", ("soup", {"price": 2**40, "at": {"street": "B", "no": 2**41}}, 1))
        told = p.run()
        assert told["tables"]["menu"]["widened"] == {"price": ["int", "bigint"], "at.no": ["int", "bigint"]}
        assert "at.no from int to bigint. The whole table was written again" in reports.format_report(told)
        assert [row for row in p.history("menu") if row[0] == "curry"] == before, "no row was closed or opened"
        read = DeltaTable(p.table("menu").path).to_pyarrow_table().select(["item", "price", "at"]).to_pylist()
        assert {"item": "soup", "price": 2**40, "at": {"street": "B", "no": 2**41}} in read
        assert len(read) == len(before) + 1


def test_consent_changes_neither_the_definition_nor_the_hash(tmp_path: Path) -> None:
    p = Pipeline(None, "", tmp_path, WIDE)
    plain = p.contract
    p.write(consenting(WIDE, "menu", "plain", "doubled"))
    consented = p.contract
    assert (plain.find_widen("doubled"), consented.find_widen("doubled")) == ("refuse", "spark_only")
    assert (plain.hash, plain.hash_definition("plain")) == (consented.hash, consented.hash_definition("plain"))
    assert plain.topics["menu"].hash_decoding == consented.topics["menu"].hash_decoding


def test_a_warehouse_without_tables_has_nothing_to_widen(tmp_path: Path) -> None:
    p = Pipeline(None, "", tmp_path, WIDE)
    assert widening.find_widenings(p.warehouse, p.contract) == {}


@pytest.mark.parametrize(
    "kind",
    [
        *("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp"),
        *("binary", "decimal(8,2)", "decimal(10,0)", "array<int>", "struct<x:array<decimal(3,1)>,y:string>"),
    ],
)
def test_every_type_of_a_contract_is_one_of_sparks(kind: str) -> None:
    known = parse_type(kind)
    assert known is not None
    assert known.simpleString() == kind


CASTS = (
    *("boolean", "byte", "short", "int", "long", "float", "real", "double", "decimal", "dec(5)", "numeric(8, 2)"),
    *("string", "char(3)", "varchar(3)", "binary", "date", "timestamp", "timestamp_ltz", "timestamp_ntz", "variant"),
    *("interval day to second", "interval year", "array<timestamp_ntz>", "array<map<string, int>>"),
    *("struct<Street: timestamp_ntz, `House No`: array<decimal>>", "struct<x: variant>", "map<string, int>"),
)


def test_the_type_of_a_cast_is_sparks_or_one_that_only_spark_knows(spark: SparkSession) -> None:
    written = [text for kind in CASTS for text in (f"cast(null AS {kind})", f"try_cast(null AS {kind})")]
    written += [*(f"null::{kind}" for kind in CASTS), "timestamp_ntz '2026-01-01'", "date '2026-01-01'", "1.5BD"]
    kinds = spark.sql(f"SELECT {', '.join(written)}").schema
    unknown = set()
    for text, field in zip(written, kinds, strict=True):
        inferred = find_plain_type(text, {})
        assert inferred is not None, text
        if (known := parse_type(inferred)) is None:
            unknown.add(type(field.dataType).__name__)
        else:
            assert known.simpleString() == field.dataType.simpleString(), text
    assert unknown == {
        *("ArrayType", "DayTimeIntervalType", "MapType", "StructType"),
        *("TimestampType", "VariantType", "YearMonthIntervalType"),
    }
    assert [parse_type(kind) for kind in ("json", "array")] == [None] * 2


ODD = """
pipeline: odd
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string, size: int}, value: {at: timestamp, until: date}}
views:
  local: {table: menu, select: {at: cast(at AS timestamp_ntz), in: "cast(struct(item) AS struct<Name: string>)"}}
  plain: {table: menu, select: {until: until}}
  ends:
    table: menu
    select: {day: "date_add(until, 1)", at: at + interval 3000000 days}
    expect: [{expect_column_values_to_be_between: {column: day, max_value: "2026-01-01"}, on_failure: warn}]
"""


def test_columns_that_contracts_cannot_declare_are_published_changed_and_read(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Moments without a zone, which a table must name in its protocol, and dates that Python does not have."""

    def read(*command: str) -> str:
        assert main.main([*command]) == 0
        return capsys.readouterr().out

    with pipeline(spark, broker, tmp_path, ODD) as p:
        key, value = json.dumps({"item": "soup", "size": 1}), {"at": "2026-01-01T00:00:00Z", "until": "9999-12-31"}
        p.send("menu", (key, value, 0))
        assert "1 of 1 rows fail, for example +10000-01-01" in reports.format_report(p.run())
        p.write(ODD.replace("{until: until}", "{until: until, more: array(cast(at AS timestamp_ntz))}"))
        assert "fine" in read("check", str(p.path))
        p.send("menu", (key, value | {"at": "2026-01-02T00:00:00Z"}, 1))
        p.run()
        local, moment = datetime(2026, 1, 1), datetime(2026, 1, 2)  # noqa: DTZ001  # they have no zone
        stored = [DeltaTable(p.table(name).path).to_pyarrow_table().to_pylist() for name in ("local", "plain")]
        assert {row["at"] for row in stored[0]} == {local, moment}
        assert {row["in"]["Name"] for row in stored[0]} == {"soup"}
        assert [moment] in [row["more"] for row in stored[1]]
        for command in (
            *(["query", "odd.ends", "--format", form] for form in ("table", "json", "csv")),
            *(["history", "odd.ends", "--key", key], ["diff", "odd.ends", "--run", "1"]),
            *(["why", "odd.ends", "--key", key], ["failing", "odd"]),
        ):
            assert "+10000-01-01" in read(*command), command
        shown = history_at(p, "ends", ["soup", 1])
        assert (shown["day"], shown["at"]) == ("+10000-01-01", "+10239-09-23T00:00:00+00:00")
        assert "2026-01-02 00:00:00" in read("query", "odd.plain")
        assert not wrong(p)


def history_at(p: Pipeline, name: str, key: list[str | int]) -> Row:
    """The last version of a key, as the time machine's page has it."""
    history = key_history.read_history(p.table(name), key)
    return history.find_answer(at(9), datetime.now(UTC), 1).rows[0]
