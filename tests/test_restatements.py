"""Restatements: the figures of a closed period, then and now, and why they differ, beside sums of whole answers."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from hindcast.bitemporal.predicates import Question
from hindcast.cli.main import main
from hindcast.common.errors import UnknownError
from hindcast.common.settings import read_settings
from hindcast.ingest import requeue
from hindcast.ops import close_periods
from hindcast.ops.erase import forget, records
from hindcast.plan import journal
from hindcast.query import read, restatements
from hindcast.query.restatements import Figure
from hindcast.runs import special_runs
from pipelines import Pipeline, at, cloned, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
  orders:
    read: stream
    key: {guest: string}
    value: {item: string, quantity: int}
    max_malformed: 9
    max_record_bytes: 60
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {amount: quantity * price, weight: cast(price AS double) / 4}
  sold:
    stream: orders
    group_by: {item: item}
    aggregate: {sum: sum(quantity)}
    window: {tumbling: 4 seconds, grace: 100 days}
"""
LONG = {"item": "tea", "quantity": 100, "note": "x" * 60}


def order(quantity: int, item: str = "tea") -> dict[str, Any]:
    return {"item": item, "quantity": quantity}


@pytest.fixture(scope="module")
def shop(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Closed after its first run: then late records, another definition, a requeue, and an erasure."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("restated"), CONTRACT) as p:
        p.send("menu", ("tea", {"price": 2}, 0), ("rice", {"price": 5}, 1))
        p.send("orders", ("ann", order(1), 1), ("bob", order(2), 5), ("cat", order(3, "rice"), 6), ("eve", LONG, 7))
        p.send("orders", ("zoe", order(50), 200))
        p.run()
        close_periods.close_period(p.contract, "Q1", at(0), at(100), None, "eva")
        p.send("menu", ("tea", {"price": 3}, 4))
        p.send("orders", ("dan", order(7), 9), ("zoe", order(60), 201))
        p.run()
        changed = CONTRACT.replace("quantity * price", "quantity * price + 1000")
        p.write(changed)
        p.run()
        p.write(changed.replace("bytes: 60", "bytes: 600"))
        asked = requeue.build_request(p.contract)
        special_runs.run_requeue(spark, read_settings(), p.name, "requeue-1", asked)
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "bob", ()))
    return p


def sums(p: Pipeline, table: str, known_at: datetime, *columns: str) -> dict[str, float]:
    """The number of rows of the period, and sums of columns, as whole answers have them."""
    asked = Question(known_at=known_at, from_time=at(0), to_time=at(99))
    rows = read.query(p.warehouse, p.contract, table, asked).to_pylist()
    return {"rows": len(rows), **{column: sum(row[column] for row in rows) for column in columns}}


def test_each_figure_is_what_whole_answers_say_and_its_causes_add_up(shop: Pipeline) -> None:
    with shop.here():
        known = [run.known_at for run in journal.read_completed_runs(shop.warehouse, shop.name)]
        for last in known[1:]:
            found = restatements.restate_close(shop.warehouse, shop.contract, "Q1", last)
            figures = {(it.table, it.name): it for it in found.figures}
            for table, columns in {"bills": ("amount", "weight"), "orders": ("quantity",), "sold": ("sum",)}.items():
                then, now = (sums(shop, table, moment, *columns) for moment in (known[0], last))
                for name, before in then.items():
                    figure = figures.get((table, name), Figure(table, name, name, before, {}, before))
                    assert (float(figure.closed or 0), float(figure.now or 0)) == (before, now[name]), figure
                    assert float(sum(figure.differences.values())) == now[name] - before, figure


def test_what_made_an_answer_another_one_is_named(shop: Pipeline) -> None:
    with shop.here():
        last = read.read_last_known_at(shop.warehouse, shop.name)
        found = restatements.restate_close(shop.warehouse, shop.contract, "Q1", last)
        causes = {(it.table, it.name): {c: n for c, n in it.differences.items() if n} for it in found.figures}
        # dan came late; then each of three bills had 1000 more; eve's record was too long; bob's bill is gone, then too
        assert causes["bills", "amount"] == {"records": 21, "definition": 3000, "requeue": 1300}
        assert causes["orders", "quantity"] == {"records": 7, "requeue": 100}
        assert causes["menu", "changed periods"] == {"records": 1}
        assert causes["sold", "sum"] == {"records": 7, "requeue": 100, "erasure": -2}
        back = restatements.restate_close(shop.warehouse, shop.contract, "Q1", found.close.known_at)
        assert back.figures == []
        with pytest.raises(UnknownError, match="no close 'Q2'"):
            restatements.restate_close(shop.warehouse, shop.contract, "Q2", last)


def test_figures_by_group_are_those_of_the_rows_of_each_value(
    shop: Pipeline, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with shop.here():
        last = read.read_last_known_at(shop.warehouse, shop.name)
        whole = restatements.restate_close(shop.warehouse, shop.contract, "Q1", last)
        found = restatements.restate_close(shop.warehouse, shop.contract, "Q1", last, group_by="item")
        sums = {(it.table, it.name): it.differences for it in whole.figures}
        for table, name in {(it.table, it.name) for it in found.figures}:
            groups = [it for it in found.figures if (it.table, it.name) == (table, name)]
            causes = {cause for it in groups for cause in it.differences}
            added = {cause: sum(it.differences.get(cause, 0) for it in groups) for cause in causes}
            assert {c: n for c, n in added.items() if n} == {c: n for c, n in sums[table, name].items() if n}
        tea = {it.name: it for it in found.figures if (it.table, it.group) == ("orders", "tea")}
        assert (tea["quantity"].closed, tea["quantity"].differences["records"]) == (1, 7), "the row of bob was erased"
        assert "menu" not in {it.table for it in found.figures}, "it has versions"
        into = str(tmp_path / "restated")
        assert main(["restate", shop.name, "Q1", "--group-by", "item", "--into", into]) == 0
        titles = capsys.readouterr().out.splitlines()[1].split()
        assert titles[:4] == ["table", "group", "figure", "closed"]
        assert "group" in DeltaTable(into).to_pyarrow_table().column_names
        assert main(["restate", shop.name, "Q1", "--group-by", "color"]) == 1
        assert "no table of events or windows has the column 'color'" in capsys.readouterr().err


def test_records_of_the_period_that_became_known_since_are_listed(
    shop: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop.here():
        assert main(["restate", shop.name, "Q1", "--records", "--format", "csv"]) == 0
        titles, *lines = capsys.readouterr().out.splitlines()
        assert titles == "topic,partition,offset,timestamp,key,run"
        found = [[*line.split(",")[:3], line.split(",")[4]] for line in lines]
        # Of zoe's two records none is of the period.
        assert found == [["menu", "0", "2", "tea"], ["orders", "0", "5", "dan"], ["orders", "0", "3", "eve"]]
        assert main(["restate", shop.name, "Q1", "--records", "--known-at", "run:1"]) == 0
        assert "(0 rows)" in capsys.readouterr().out
        assert main(["restate", shop.name, "Q1", "--records", "--page", "x.html"]) == 1
        assert "a page and a table have figures" in capsys.readouterr().err


def test_the_command_shows_a_line_for_each_figure(shop: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    with shop.here():
        assert main(["restate", shop.name, "close:Q1"]) == 0
        first, titles, _, *lines = capsys.readouterr().out.splitlines()
        assert first.startswith("shop: Q1: 2026-01-01T00:00:00+00:00 to ")
        assert titles.split() == ["table", "figure", "closed", "records", "definition", "requeue", "erasure", "now"]
        assert ["bills", "amount", "17", "21", "3000", "1300", "0", "4338"] in [line.split() for line in lines]
        assert main(["restate", shop.name, "Q1", "--known-at", "run:1"]) == 0
        assert "nothing has changed in 4 tables" in capsys.readouterr().out
        assert main(["restate", shop.name, "Q1", "--format", "json"]) == 0
        (menu, *_) = json.loads(capsys.readouterr().out)
        assert menu["figure"] == "changed periods"
        assert main(["restate", shop.name, "Q2"]) == 1
        assert "no close 'Q2'" in capsys.readouterr().err


def test_of_runs_of_a_rebuilt_journal_only_what_tables_tell_is_a_cause(shop: Pipeline, tmp_path: Path) -> None:
    p = cloned(shop, tmp_path)
    shutil.copytree(shop.settings.reports, p.settings.reports)
    with p.here():
        first, *_ = journal.read_runs(p.warehouse, p.name)
        shutil.rmtree(Path(p.warehouse, p.name, "runs"))
        assert main(["ledger", p.name, "--rebuild"]) == 0
        p.run()
        close_periods.close_period(p.contract, "Q1", at(0), at(100), first.known_at, "eva")
        last = read.read_last_known_at(p.warehouse, p.name)
        found = restatements.restate_close(p.warehouse, p.contract, "Q1", last)
        causes = {(it.table, it.name): {c: n for c, n in it.differences.items() if n} for it in found.figures}
        # Whether dan's record or another definition changed an answer is not known.
        assert causes["bills", "amount"] == {"requeue": 1300, "unknown": 3021}
        assert causes["orders", "quantity"] == {"requeue": 100, "unknown": 7}
        assert causes["sold", "sum"] == {"unknown": 7, "requeue": 100, "erasure": -2}
        assert main(["restate", p.name, "Q1", "--page", str(tmp_path / "page.html")]) == 0
        assert "+3,021 by unknown cause" in (tmp_path / "page.html").read_text()
