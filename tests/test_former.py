"""What an installation of former module names left on its disk is read, run, verified, trimmed and upgraded.

`former/warehouse.tar.xz` was written by commit cc61b57, before the modules had today's names (former/write.py):
the warehouse and reports of the example pipelines after runs through Airflow, with Kafka's data and Airflow's database.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import running
from hindcast.bitemporal.predicates import FIRST_MOMENT, Question
from hindcast.cli import main
from hindcast.common.settings import Settings, read_settings
from hindcast.contract import Contract, find
from hindcast.kafka import produce
from hindcast.ops import maintenance, retention
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import journal
from hindcast.plan.marks import find_bound_contract
from hindcast.query import read, show
from hindcast.runs import run_steps
from hindcast_demo import restaurant
from hindcast_local.broker import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMER = Path(__file__).parent / "former"
ANSWERS: dict[str, list[dict[str, object]]] = json.loads((FORMER / "answers.json").read_text("utf-8"))


def unpack(folder: Path) -> None:
    with tarfile.open(FORMER / "warehouse.tar.xz") as packed:
        packed.extractall(folder, filter="data")


@pytest.fixture
def former(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The former warehouse with copies of its contracts, without a broker."""
    unpack(tmp_path)
    (tmp_path / "schemas").mkdir()
    for contract in ("restaurant", "votes"):
        text = (FORMER / "schemas" / f"{contract}.yaml").read_text("utf-8")
        (tmp_path / "schemas" / f"{contract}.yaml").write_text(text, "utf-8")
    monkeypatch.setenv("HINDCAST_VAR", str(tmp_path))
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(tmp_path / "schemas"))
    return read_settings()


@pytest.fixture
def former_with_kafka(former: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The same with a broker on its data: the topics are those of the former runs."""
    with run_broker(former.var / "kafka") as servers:
        monkeypatch.setenv("HINDCAST_KAFKA", servers)
        yield read_settings()


def history(settings: Settings, contract: Contract, table: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(show.as_json(read.history(settings.warehouse, contract, table)))
    return rows


def test_every_row_ever_believed_is_read_as_the_former_code_read_it(former: Settings) -> None:
    assert len(ANSWERS) == 8
    for name, rows in ANSWERS.items():
        pipeline, _, table = name.partition(".")
        assert history(former, find(former.schemas, pipeline), table) == rows, name


@pytest.mark.usefixtures("former")
def test_commands_show_its_runs_reports_and_held_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "runs restaurant",
        "report restaurant 1",
        "ledger votes",
        "failing restaurant",
        "query restaurant.bills --known-at run:1",
        "verify votes --quick",
    ):
        code = main.main(command.split())
        shown = capsys.readouterr()
        assert (code, shown.err) == (0, ""), (command, shown)
    assert main.main(["report", "votes", "4"]) == 0
    assert "green" in capsys.readouterr().out, "a gate stopped that run"


@pytest.mark.long
@pytest.mark.ci
def test_runs_go_on_from_it_and_it_is_verified_maintained_and_trimmed(
    former_with_kafka: Settings, spark: SparkSession
) -> None:
    former = former_with_kafka
    curry = produce.ProducerRecord(b"curry", b'{"price": 9}', restaurant.example_time(4) + timedelta(seconds=30))
    produce.send_records(former.kafka, restaurant.MENU, [curry])
    contract = find_bound_contract(former, "restaurant")
    before = history(former, contract, "bills")

    report = run_steps.run_pipeline(spark, former, "restaurant", "after").as_json()
    assert report["topics"]["menu"]["offsets"] == 1
    believed = read.query(former.warehouse, contract, "bills", Question(from_time=FIRST_MOMENT)).to_pylist()
    assert {str(row["amount"]) for row in believed if row["customer"] == "bob"} == {"9.00"}
    then = read.moment_of(former.warehouse, "restaurant", "run:2")
    bob = read.query(former.warehouse, contract, "bills", Question(from_time=FIRST_MOMENT, known_at=then)).to_pylist()
    assert {str(row["amount"]) for row in bob if row["customer"] == "bob"} == {"10.00"}
    closed = [row for row in before if row["customer"] != "bob"]
    assert [row for row in history(former, contract, "bills") if row["customer"] != "bob"] == closed

    assert not verify_tables(contract, spark=lambda: spark).findings
    maintenance.maintain_tables(lambda: spark, former, contract)
    text = (former.schemas / "restaurant.yaml").read_text("utf-8")
    text = text.replace(
        "    history_retention: 30 days\n", "    history_retention: 30 days\n    keep: {table: 30 days}\n"
    )
    (former.schemas / "restaurant.yaml").write_text(text, "utf-8")
    contract = find_bound_contract(former, "restaurant")
    run_steps.run_pipeline(spark, former, "restaurant", "keeps")
    retention.trim_pipeline(spark, contract)
    assert not verify_tables(contract, spark=lambda: spark).findings
    assert [run.state for run in journal.read_runs(former.warehouse, "restaurant")][-2:] == ["completed", "completed"]


@pytest.mark.long
@pytest.mark.ci
def test_a_run_that_was_stopped_is_planned_again(former_with_kafka: Settings, spark: SparkSession) -> None:
    """The next run takes what the stopped one left; the contract now takes votes for green."""
    former = former_with_kafka
    text = (former.schemas / "votes.yaml").read_text("utf-8")
    (former.schemas / "votes.yaml").write_text(text.replace("[red, blue]", "[red, blue, green]"), "utf-8")
    report = run_steps.run_pipeline(spark, former, "votes", "after").as_json()
    assert report["state"] == "completed"
    contract = find_bound_contract(former, "votes")
    assert "green" in {row["candidate"] for row in history(former, contract, "votes")}
    assert not verify_tables(contract, spark=lambda: spark).findings


@pytest.mark.long
def test_airflow_goes_on_with_its_database(tmp_path: Path) -> None:
    """Runs that were there are there; DAGs that refer to former names of classes are read, and run again."""
    unpack(tmp_path)
    contracts = [FORMER / "schemas" / f"{name}.yaml" for name in ("restaurant", "votes")]
    with running(tmp_path, *contracts) as (settings, web):
        assert list(web.read_run_states("restaurant").values())[:2] == ["success", "success"]
        assert "failed" in web.read_run_states("votes").values()
        web.wait("restaurant", web.trigger("restaurant"))
        assert [run.state for run in journal.read_runs(settings.warehouse, "restaurant")][-1] == "completed"
