"""Texts that only Spark knows to be today's date: it evaluates them, and tells where it casts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.cli import main
from hindcast.common.errors import ContractError
from hindcast.contract import load
from hindcast.runs import expression_checks
from hindcast.runs.date_literals import find_date_literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TODAYS = {
    "o.at > 'yesterday'": "'yesterday'",
    "coalesce(o.at, 'now')": "'now'",
    "CASE WHEN o.n = 1 THEN 'today' ELSE o.day END": "'today'",
    "o.day IN ('2026-01-01', 'today')": "'today'",
    "to_date(if(true, 'today', o.name))": "'today'",
    "to_date(reverse('yadot'))": "reverse('yadot')",
    "CAST(UNHEX('6e6f77') AS STRING) = o.at": "CAST(UNHEX('6e6f77') AS STRING)",
    "date_trunc('day', '12:30')": "'12:30'",
    "try_to_timestamp(concat('no', 'w'))": "concat('no', 'w')",
    "make_interval(1) + to_timestamp_ntz(lower('NOW'))": "'NOW'",
    "o.at > r'now'": "'now'",
    "o.at > 'n\\ow'": "'now'",
    "coalesce(o.ats, array('12:30'))": "'12:30'",
    "nvl(o.at, lower('NOW'))": "lower('NOW')",
    "interval 1 day + 'now'": "'now'",
    "interval 1 day + '12:30'": "'12:30'",
    "try_add(lower('NOW'), interval 1 day)": "lower('NOW')",
    "try_subtract('now', interval 1 day)": "'now'",
    "try_add('no' 'w', interval 1 day) > o.at": "'now'",
    "o.name = 'now'": None,
    "if(true, 1, 'now')": None,
    "length('today') + o.n": None,
    "split('now,12:30', ',')": None,
    "sequence(1, 1000000000)": None,
    "collate(o.name, 'UTF8_LCASE')": None,
    "concat(o.name, 'today')": None,
    "if(o.n = 1, 'now', 'later')": None,
    "coalesce(o.name, 'today')": None,
    "to_timestamp('epoch')": None,
    "date_diff(o.day, '2026-01-01')": None,
    "o.at + INTERVAL '1' DAY": None,
    "CAST(o.name AS date) = DATE '2026-01-01'": None,
}


def test_spark_tells_which_texts_are_cast_to_a_day_of_today(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "o struct<day: date, at: timestamp, name: string, n: int, ats: array<timestamp>>")
    found = {text: find_date_literal(spark, text, rows.select, lambda it: it) for text in TODAYS}
    assert found == TODAYS


CONTRACT = """\
pipeline: days
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {id: int}
    value: {at: timestamp, name: string}
    valid_time: %s
views:
  shown: {stream: orders, select: {day: %s}}
  last: {stream: orders, group_by: {name: name}, aggregate: {most: %s}}
"""
SOUND = ("at", "at", "max(at)")


@pytest.mark.parametrize(
    ("place", "text", "line"),
    [
        (0, "coalesce(at, lower('NOW'))", 8),
        (1, "nvl(at, btrim('tomorrow'))", 10),
        (2, "max(coalesce(at, reverse('yadot')))", 11),
    ],
)
def test_what_only_spark_finds_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, place: int, text: str, line: int
) -> None:
    assert spark.version  # the session that the check takes
    path = tmp_path / "days.yaml"
    path.write_text(CONTRACT % tuple(f'"{text if n == place else it}"' for n, it in enumerate(SOUND)))
    contract = load(path)
    with pytest.raises(ContractError, match="is cast to a date, which is another one every day") as caught:
        expression_checks.refuse_unfit_contract(spark, tmp_path, contract)
    assert (caught.value.where, "write it out" in caught.value.fix) == (f"{path}:{line}", True)


def test_check_asks_spark_where_it_is_told_to(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hindcast.cli.commands.shared.open_session", lambda *_: spark)
    good, bad = tmp_path / "good.yaml", tmp_path / "days.yaml"
    good.write_text((CONTRACT % SOUND).replace("pipeline: days", "pipeline: good"))
    bad.write_text(CONTRACT % ("at", "\"coalesce(at, lower('NOW'))\"", "max(at)"))
    assert main.main(["check", str(good), str(bad)]) == 0
    assert main.main(["check", "--spark", str(good), str(bad)]) == 1
    captured = capsys.readouterr()
    assert captured.out.endswith(f"{good}: 1 topic, 2 views, fine\n")
    assert f"{bad}:10: coalesce(orders.at, lower('NOW')): lower('NOW') is cast to a date" in captured.err
