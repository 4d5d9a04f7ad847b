"""Closes by schedule: which periods are due, and what was known of them; whenever maintenance comes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import pytest

from hindcast.cli import main
from hindcast.common import clock
from hindcast.common.errors import ContractError, RunError
from hindcast.contract import load
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.closing import Closing
from hindcast.ops import close_periods, maintenance
from hindcast.plan import closes, journal, planner
from hindcast.plan.closes import Close
from hindcast.plan.purposes import Replay
from hindcast.plan.runs import Abandoned, Completed, Run
from hindcast.runs import inventory
from warehouses import SHOP, plan, report, settings_of


def day(month: int, number: int, hour: int = 0) -> datetime:
    return datetime(2026, month, number, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("every", "since", "until", "periods"),
    [
        ("month", day(1, 31), day(3, 1), [("2026-01", day(1, 1), day(2, 1)), ("2026-02", day(2, 1), day(3, 1))]),
        ("month", day(2, 1), day(2, 28, 23), []),
        (
            "month",
            datetime(2025, 12, 31, 23, tzinfo=UTC),
            day(1, 1),
            [("2025-12", datetime(2025, 12, 1, tzinfo=UTC), day(1, 1))],
        ),
        ("quarter", day(5, 20), day(10, 1), [("2026-Q2", day(4, 1), day(7, 1)), ("2026-Q3", day(7, 1), day(10, 1))]),
        (
            "quarter",
            day(12, 31),
            datetime(2027, 1, 1, tzinfo=UTC),
            [("2026-Q4", day(10, 1), datetime(2027, 1, 1, tzinfo=UTC))],
        ),
        ("year", day(5, 20), datetime(2027, 5, 1, tzinfo=UTC), [("2026", day(1, 1), datetime(2027, 1, 1, tzinfo=UTC))]),
        (
            "year",
            datetime(9998, 5, 1, tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
            [("9998", datetime(9998, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))],
        ),
    ],
)
def test_periods_are_those_of_the_calendar(
    every: str, since: datetime, until: datetime, periods: list[tuple[str, datetime, datetime]]
) -> None:
    assert [*Closing.model_validate({"every": every}).list_periods(since, until)] == periods


def shop(folder: Path, closing: str) -> BoundContract:
    path = folder / "schemas" / "shop.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SHOP.replace("topics:", f"close: {closing}\ntopics:", 1), encoding="utf-8")
    settings = replace(settings_of(path.parent), warehouse=str(folder / "warehouse"), reports=folder / "reports")
    return bind_contract(load(path), settings)


def run(p: BoundContract, number: int, known_at: datetime, until: datetime | None = None, *, ends: bool = True) -> None:
    """A run of all tables, completed or abandoned, with what Kafka had until some time."""
    names = {"run": number, "run_id": f"manual__{number}", "known_at": known_at, "interval_end": until}
    begun = Run(replace(plan(p, 1), **names))
    journal.append_entry(p.warehouse, begun)
    outcome = Completed(report(p, 1) | {"run": number, "knownAt": known_at.isoformat()}) if ends else Abandoned("no")
    journal.append_entry(p.warehouse, replace(begun, outcome=outcome))


def kept(p: BoundContract) -> list[tuple[str, datetime, datetime, datetime]]:
    return [(it.name, it.start, it.end, it.known_at) for it in closes.list_kept(p.warehouse, "shop")]


def no_spark() -> NoReturn:
    raise AssertionError("Spark is not needed here")


def test_a_period_is_closed_as_known_at_the_first_run_that_is_late_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "list_existing_tables", lambda *_: [])  # the journal's small files
    p = shop(tmp_path, "{every: month, after: 2 days}")
    assert close_periods.close_due_periods(p) == []
    run(p, 1, day(1, 20))
    run(p, 2, day(2, 2, 23))
    run(p, 3, day(2, 4), until=day(1, 31))
    run(p, 4, day(2, 4, 12), ends=False)
    assert close_periods.close_due_periods(p) == [], "none of the runs is late enough and has all of January"
    run(p, 5, day(2, 5), until=day(2, 1))
    run(p, 6, day(3, 3))
    run(p, 7, day(3, 9))
    report = maintenance.maintain_tables(no_spark, p.settings, p)
    assert kept(p) == [("2026-01", day(1, 1), day(2, 1), day(2, 5)), ("2026-02", day(2, 1), day(3, 1), day(3, 3))]
    assert "shop: closed 2026-02: 2026-02-01T00:00:00+00:00 to 2026-03-01" in maintenance.format_report(report)
    assert close_periods.close_due_periods(p) == []
    closes.drop_close(p.warehouse, "shop", "2026-01", "eva", "a mistake")
    assert close_periods.close_due_periods(p) == [], "a name is used once"
    assert len(kept(p)) == 1


def test_a_name_that_was_given_by_hand_is_left_alone_and_a_dry_run_closes_nothing(tmp_path: Path) -> None:
    p = shop(tmp_path, "{every: quarter}")
    run(p, 1, day(2, 20))
    run(p, 2, day(7, 1))
    closes.add_close(p.warehouse, "shop", Close("2026-Q1", day(1, 5), day(4, 1), day(2, 20), day(4, 2), "eva"))
    maintenance.maintain_tables(no_spark, p.settings, p, dry_run=True)
    assert [it[0] for it in kept(p)] == ["2026-Q1"]
    (line,) = maintenance.maintain_tables(no_spark, p.settings, p).closed
    assert line.startswith("closed 2026-Q2: 2026-04-01")
    assert kept(p)[0] == ("2026-Q1", day(1, 5), day(4, 1), day(2, 20))


def test_a_period_that_cannot_be_closed_is_named_and_the_others_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closes, "MOST", 1)
    p = shop(tmp_path, "{every: month}")
    run(p, 1, day(1, 20))
    run(p, 2, day(3, 1))
    closed, refused = close_periods.close_due_periods(p)
    assert closed.startswith("closed 2026-01: ")
    assert refused.startswith("not closed: 2026-02: shop: the pipeline has 1 closes")


def test_what_is_closed_changes_no_answer_and_so_no_hash(tmp_path: Path) -> None:
    assert shop(tmp_path, "{every: month}").hash == shop(tmp_path, "{every: year, after: 3 days}").hash
    for wrong in ("{every: week}", "{after: 3 days}", "monthly", "{every: month, after: 367 days}"):
        with pytest.raises(ContractError, match=r"shop.yaml:5: .*close"):
            shop(tmp_path, wrong)


def test_several_pipelines_are_closed_or_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pipeline without a run, and of one that has the name already."""
    p = shop(tmp_path, "{every: year}")
    other = tmp_path / "schemas" / "stock.yaml"
    other.write_text(SHOP.replace("pipeline: shop", "pipeline: stock"), encoding="utf-8")
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(other.parent))
    monkeypatch.setenv("HINDCAST_WAREHOUSE", p.warehouse)
    run(p, 1, day(1, 20))
    given = ["close", "shop,stock", "q", "--from", "2026-01-01", "--to", "2026-01-10", "--by", "eva"]
    assert main.main(given) == 1
    assert "stock" in capsys.readouterr().err
    assert kept(p) == []
    closes.add_close(p.warehouse, "shop", Close("q", day(1, 1), day(1, 10), day(1, 20), day(1, 20), "eva"))
    assert main.main(given) == 1
    assert [it[0] for it in kept(p)] == ["q"], "what was closed before stays"
    for times in (["--from", "close:q", "--to", "2026-02-01"], ["--from", "2026-01-01", "--to", "close:q"]):
        assert main.main(["close", "shop", "other", *times, "--by", "eva"]) == 1
        assert "a close is a state of knowledge, no time: close:q" in capsys.readouterr().err
    assert main.main(["closes", "shop", "--drop", "q", "--reason", " "]) == 1


def test_no_run_comes_before_a_close_whatever_the_clock_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = shop(tmp_path, "{every: year}")
    run(p, 1, day(1, 20))
    closes.add_close(p.warehouse, "shop", Close("q", day(1, 1), day(1, 10), day(1, 21), day(1, 21), "eva"))
    monkeypatch.setattr(clock, "now", lambda: day(1, 20, 12))
    with patch.object(planner, "MAX_AHEAD", timedelta(days=1)):
        known_at, _ = planner._next_known_at(p, journal.read_runs(p.warehouse, "shop"), Replay(), consented=False)
    assert known_at == day(1, 21) + timedelta(microseconds=1)
    with pytest.raises(RunError, match="the close 'q' is known at 2026-01-21"):
        planner._next_known_at(p, journal.read_runs(p.warehouse, "shop"), Replay(), consented=False)
    closes.drop_close(p.warehouse, "shop", "q", "eva", "a mistake")
    known_at, _ = planner._next_known_at(p, journal.read_runs(p.warehouse, "shop"), Replay(), consented=False)
    assert known_at == day(1, 20, 12)


def test_a_run_of_one_topic_alone_does_not_make_a_period_due(tmp_path: Path) -> None:
    p = shop(tmp_path, "{every: month, after: 3 days}")
    run(p, 1, day(1, 20))
    of_menu = {"run": 2, "run_id": "manual__2", "known_at": day(2, 4), "interval_end": None, "purpose": Replay("menu")}
    begun = Run(replace(plan(p, 1), **of_menu))
    journal.append_entry(p.warehouse, begun)
    told = report(p, 1) | {"run": 2, "knownAt": day(2, 4).isoformat()}
    journal.append_entry(p.warehouse, replace(begun, outcome=Completed(told)))
    assert close_periods.close_due_periods(p) == []
    run(p, 3, day(2, 5))
    close_periods.close_due_periods(p)
    (close,) = closes.read_closes(p.warehouse, "shop")
    assert close.known_at == day(2, 5)
