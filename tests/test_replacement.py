"""A rehearsed pipeline takes the place of another (`hindcast rehearse PIPELINE --replace NAME`), and goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.cli.main import main
from hindcast.ops import journal_rebuild, retention
from hindcast.ops.erase import forget, records
from pipelines import at, pipeline, wrong
from test_rehearsal import CONTRACT, define_bills, known_bills, rehearse, send, sent
from test_rehearsal_into import MOMENTS, beside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

KEEPING = CONTRACT.replace("header sent", "header sent\n    keep: {table: 2 seconds, log: 2 seconds}", 1)
ARCHIVE = "hindsight_replaced_1"
TABLES = "menu", "orders", "bills"


@pytest.fixture(autouse=True)
def _one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hindcast.cli.commands.running.open_session", lambda *_: spark)


def test_the_rehearsed_pipeline_goes_on_from_kafka_like_one_that_was_rehearsed_in_place(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(spark, broker, tmp_path, KEEPING) as p:
        send(p)
        p.run()
        before = {table: p.history(table) for table in TABLES}
        old_text = p.path.read_text(encoding="utf-8")
        then, twin = beside(p, "then"), beside(p, "twin")
        # The copy has another definition, and its author's comments.
        text = "# By arrival.\n" + old_text.replace("quantity * price", "quantity * price * 10")
        then.path.write_text(text.replace("pipeline: hindsight", "pipeline: then  # a copy"), encoding="utf-8")
        twin.path.write_text(text.replace("pipeline: hindsight", "pipeline: twin"), encoding="utf-8")
        assert main(["rehearse", p.name, "--into", "then", *MOMENTS]) == 0
        rehearse(twin, 0, 30)

        p.send("orders", ("gus", {"item": "curry", "quantity": 2}, 7, sent(31)))
        p.run()
        capsys.readouterr()
        assert main(["rehearse", p.name, "--replace", "then"]) == 1
        shown = capsys.readouterr().err
        assert f"hindsight has {p.kafka('orders')} [0] up to offset 5, and then ends at offset 4" in shown
        assert "hindcast run then, look at it, and repeat this" in shown
        then.run("caught-up")
        twin.run("caught-up")

        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "bob", ()))
        assert main(["rehearse", p.name, "--replace", "then"]) == 1
        shown = capsys.readouterr().err
        assert f"then.orders, {p.kafka('orders')} [0], offset 1: hindsight has forgotten the key" in shown
        for other in (then, twin):
            forget.forget_records(spark, other.contract, records.parse_request(other.contract, "orders", "bob", ()))
        before = {table: p.history(table) for table in TABLES}

        assert main(["rehearse", p.name, "--replace", "then"]) == 0
        shown = capsys.readouterr().out
        assert f"what it was is the pipeline {ARCHIVE}, in {p.warehouse}/{ARCHIVE}" in shown
        assert f"to undo this: hindcast run {ARCHIVE}" in shown
        assert main(["rehearse", p.name, "--replace", "then", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["wasDone"] is True
        assert not then.path.exists()
        assert not (tmp_path / "warehouse" / "then").exists()
        assert p.path.read_text(encoding="utf-8") == text.replace(
            "pipeline: hindsight", "pipeline: hindsight  # a copy"
        )
        archive = beside(p, ARCHIVE)
        assert archive.path.read_text(encoding="utf-8") == old_text.replace("hindsight", ARCHIVE)
        assert {table: archive.history(table) for table in TABLES} == before
        assert [known_bills(p, at(second)) for second in (10, 20, 30)] == [
            [(who, 10 * amount) for who, amount in define_bills(second) if who != "bob"] for second in (10, 20, 30)
        ]

        p.send("orders", ("hal", {"item": "curry", "quantity": 2}, 8, sent(32)))
        p.send("menu", ("curry", {"price": 7}, 6, sent(33)))
        for one in (p, twin):
            report = one.run("scheduled__next")
            assert "contract" not in report, "its definition is not another one"
        capsys.readouterr()

        def assert_like_the_twin() -> None:
            for table in TABLES:
                assert p.history(table) == twin.history(table), table
            assert [p.fates(topic) for topic in ("menu", "orders")] == [twin.fates(t) for t in ("menu", "orders")]
            assert p.states() == twin.states()
            assert wrong(p) == []
            assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == []

        assert_like_the_twin()
        for path in (tmp_path / "var" / "reports" / p.name).glob("run-*.json"):
            assert json.loads(path.read_text(encoding="utf-8"))["pipeline"] == p.name
            assert "then" not in path.with_suffix(".html").read_text(encoding="utf-8").split("<title>")[1][:60]
        for command in (
            ["query", "hindsight.bills"],
            ["runs", p.name],
            ["report", p.name],
            ["upgrade", "hindsight.menu"],
        ):
            assert main(command) == 0, command
        for one in (p, twin):
            forget.forget_records(spark, one.contract, records.parse_request(one.contract, "orders", "eve", ()))
            retention.trim_pipeline(spark, one.contract)
        assert_like_the_twin()
        shutil.rmtree(tmp_path / "warehouse" / p.name / "runs")
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [n for n, _ in twin.states()]
        for one in (p, twin):
            one.run("after")
        assert p.fates("orders") == twin.fates("orders")
        assert p.believed("bills") == twin.believed("bills")
        assert main(["rehearse", p.name, "--replace", ARCHIVE]) == 1
        assert f"hindcast run {ARCHIVE}" in capsys.readouterr().err, "it lacks what came since"
        assert wrong(archive) == []
