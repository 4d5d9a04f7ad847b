"""How tables grow, and how long a first run takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from bare_runs import bare_run
from hindcast.cli.main import main
from hindcast.common.errors import TableError, TopicError
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.ops import forecast
from hindcast.ops.forecast import Certainty, RunTime, estimate_first_run
from hindcast.plan import journal, planner
from hindcast.plan.runs import Completed, Planned
from hindcast.store import tables
from warehouses import RUNS, shop


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """No broker answers, at once."""

    def refuse(*_: object) -> NoReturn:
        raise TopicError("no broker answers", where="127.0.0.1:1", fix="start it")

    with shop(tmp_path) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "propose_plan", refuse)
        yield made


@pytest.fixture
def contract(settings: Settings) -> BoundContract:
    return bind_contract(load(settings.schemas / "shop.yaml"), settings)


def test_superseded_rows_and_bytes_are_those_of_deltas_log(contract: BoundContract) -> None:
    result = forecast.forecast_pipeline(contract, ["shop"])
    prices = next(it for it in result.tables if it.table == "prices")
    assert (prices.rows, prices.superseded) == (4, 1)
    table = DeltaTable(tables.locate_table(contract.warehouse, contract, "prices").path)
    assert prices.bytes == sum(Path(uri).stat().st_size for uri in table.file_uris())


def test_growth_is_what_runs_after_the_first_have_opened(contract: BoundContract) -> None:
    """The two runs of the shop lie a day apart."""
    table = tables.locate_table(contract.warehouse, contract, "prices")
    rows = DeltaTable(table.path).to_pyarrow_table()
    for run, opened in ((1, 1000), (2, 5)):
        note = json.dumps({"run": run, "opened": opened, "closed": 0, "corrected": 0, "ages": {}})
        write_deltalake(table.path, rows.slice(0, 0), mode="append", commit_properties=commit(note))
    result = forecast.forecast_pipeline(contract, ["shop"])
    prices = next(it for it in result.tables if it.table == "prices")
    assert result.runs == 1
    assert result.days == pytest.approx(1, abs=0.01)
    assert prices.rows_a_week == pytest.approx(35, rel=0.01)
    assert prices.bytes_a_week == pytest.approx(prices.rows_a_week / 4 * prices.bytes)


def commit(note: str) -> object:
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata={"userMetadata": note})


def test_a_table_without_rows_grows_by_an_unknown_size(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"n": pa.array([], pa.int64())}))
    growth = forecast._measure_table("t", DeltaTable(str(tmp_path)), 1000, timedelta(weeks=1))
    assert (growth.rows_a_week, growth.bytes_a_week) == (1000, None)


def test_a_damaged_journal_of_another_pipeline_is_no_run_time(settings: Settings) -> None:
    for name, report in (("one", {"topics": 5}), ("two", {"topics": {"t": {"offsets": "many"}}})):
        damaged = replace(bare_run(name, 1, RUNS[0]), outcome=Completed(report))
        journal.append_entry(settings.warehouse, replace(damaged, outcome=Planned()))
        journal.append_entry(settings.warehouse, damaged)
        assert [*forecast._read_run_times(settings.warehouse, name)] == []
        with pytest.raises(TableError, match="the report in the journal is malformed"):
            assert damaged.offsets


LARGE = [RunTime(1_000_000, 110.0), RunTime(900_000, 100.0), RunTime(1_100_000, 120.0), RunTime(10, 10.0)]


@pytest.mark.parametrize(
    ("offsets", "times", "certainty", "low", "high"),
    [
        (2_000_000, LARGE, "measured", 190, 225),
        (20_000_000, LARGE, "extrapolated", 1800, 2250),
        (1_000_000, LARGE[:1], "extrapolated", 100, 115),
        (2_000, LARGE, "measured", 9.9, 10.5),
        (1_000_000, LARGE[3:], "guessed", 12, 40),
        (1_000_000, [], "guessed", 12, 40),
    ],
)
def test_a_first_run_is_estimated_by_others(
    offsets: int, times: list[RunTime], certainty: Certainty, low: float, high: float
) -> None:
    first = estimate_first_run(offsets, times, cores=2)
    assert first.certainty == certainty
    assert low <= first.seconds[0] <= first.seconds[1] <= high


def test_without_kafka_only_the_first_run_is_unknown(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    assert settings
    assert main(["forecast", "shop"]) == 0
    text = capsys.readouterr().out
    assert "superseded" in text
    assert "a first run: unknown: 127.0.0.1:1" in text
    assert main(["forecast", "shop", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["firstRun"] is None
    assert {it["table"] for it in data["tables"]} >= {"prices", "bills"}


def test_what_a_first_run_would_ingest_is_asked_of_kafka(broker: str, tmp_path: Path) -> None:
    from hindcast.kafka import produce

    with shop(tmp_path) as settings:
        contract = bind_contract(load(settings.schemas / "shop.yaml"), replace(settings, kafka=broker))
        names = {name: contract.kafka_topic(name) for name in contract.topics}
        produce.create_topics(broker, *names.values())
        produce.send_records(broker, names["visits"], [produce.ProducerRecord(b"k", b"{}", None)] * 3)
        first = forecast.forecast_pipeline(contract, ["shop"]).first_run
    assert first is not None
    assert (first.offsets, first.certainty) == (3, "extrapolated"), "the runs of the shop have had two offsets at most"


def test_times_are_told_in_a_unit_that_fits() -> None:
    texts = [forecast._format_seconds(seconds) for seconds in (0.2, 100, 301, timedelta(hours=5).total_seconds())]
    assert texts == ["1 second", "100 seconds", "5 minutes", "5 hours"]
