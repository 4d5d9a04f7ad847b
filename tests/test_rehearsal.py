"""Rehearsed runs: what was known at a date is what the records that had arrived by then give."""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast import read
from hindcast.bitemporal import valid_time
from hindcast.cli.main import main
from hindcast.common import progress
from hindcast.common.errors import HindcastError, RequestError
from hindcast.common.settings import read_settings
from hindcast.plan import journal
from hindcast.plan.purposes import ArrivalInterval
from hindcast.runs import rehearsal
from pipelines import T0, Pipeline, at, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: hindsight
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    arrival: header sent
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
    arrival: header sent
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
"""


def moment(second: float) -> datetime:
    return at(second)


def sent(second: float) -> tuple[str, bytes]:
    return ("sent", at(second).isoformat().encode())


MENU = [("curry", 8, 0, 0), ("curry", 10, 4, 5), ("soup", 5, 2, 12), ("curry", 9, 2, 25), ("soup", None, 20, 27)]
ORDERS = [("ann", "curry", 1, 1), ("bob", "curry", 5, 6), ("eve", "soup", 3, 7), ("dan", "curry", 3, 26)]
"""(key, value, second at which it is true, second at which it arrived)"""


def send(p: Pipeline) -> None:
    for item, price, true, arrived in MENU:
        p.send("menu", (item, None if price is None else {"price": price}, true, sent(arrived)))
    for customer, item, true, arrived in ORDERS:
        p.send("orders", (customer, {"item": item, "quantity": 2}, true, sent(arrived)))


def define_bills(known_at: float) -> list[tuple[str, int | None]]:
    """The definition, over the records that arrived before a moment."""
    versions = [(true, n, item, price) for n, (item, price, true, arrived) in enumerate(MENU) if arrived < known_at]
    bills = []
    for customer, item, true, arrived in ORDERS:
        if arrived < known_at:
            past = [(v[:2], v[3]) for v in versions if v[2] == item and v[0] <= true]
            price = max(past)[1] if past else None
            if price is not None:
                bills.append((customer, 2 * price))
    return sorted(bills)


def known_bills(p: Pipeline, known_at: datetime | None) -> list[tuple[str, int]]:
    rows = read.query(p.warehouse, p.contract, "bills", read.Question(known_at=known_at)).to_pylist()
    return sorted((row["customer"], row["amount"]) for row in rows)


def rehearse(p: Pipeline, since: float, until: float, every: str = "10 seconds", **options: Any) -> list[Any]:
    assert p.spark is not None
    intervals = [*rehearsal.list_intervals(at(since), at(until), every)]
    return [*rehearsal.rehearse_runs(p.spark, read_settings(), p.name, intervals, **options)]


@pytest.mark.parametrize(
    ("since", "until", "every", "ends"),
    [
        ("2026-01-15", "2026-03-01", "month", ["2026-02-01", "2026-03-01"]),
        ("2026-01-15", "2026-02-10", "month", ["2026-02-01", "2026-02-10"]),
        ("2025-12-31", "2026-07-01", "quarter", ["2026-01-01", "2026-04-01", "2026-07-01"]),
        ("2026-01-01", "2026-01-04", "36 hours", ["2026-01-02T12:00", "2026-01-04"]),
        ("2026-01-01", "2026-01-02", "1000000 weeks", ["2026-01-02"]),
    ],
)
def test_intervals_are_of_one_length_or_the_calendars_and_the_last_may_be_shorter(
    since: str, until: str, every: str, ends: list[str]
) -> None:
    first, *others = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (since, until, *ends))
    found = [*rehearsal.list_intervals(first, others[0], every)]
    assert [it.until for it in found] == others[1:]
    assert [it.since for it in found] == [first, *others[1:-1]]


@pytest.mark.parametrize("every", ["soon", "0 days", "-1 day"])
def test_what_is_no_length_is_refused(every: str) -> None:
    with pytest.raises(RequestError):
        [*rehearsal.list_intervals(T0, T0 + timedelta(days=1), every)]


def test_what_was_known_at_each_date_is_the_definition_over_what_had_arrived(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        reports = rehearse(p, 0, 30)
        assert [report.known_at for report in reports] == [at(10), at(20), at(30)]
        assert reports[0].rehearsed == ArrivalInterval(at(0), at(10))
        for second in (10, 20, 30):
            assert known_bills(p, at(second)) == define_bills(second), second
        assert define_bills(20) != define_bills(10), "late soup"
        assert wrong(p) == []

        assert rehearse(p, 0, 30) == [], "done before: nothing is written"
        p.send("orders", ("fay", {"item": "curry", "quantity": 2}, 6, sent(31)))
        more = rehearse(p, 30, 40)
        assert [report.known_at for report in more] == [at(40)]
        p.send("orders", ("gus", {"item": "curry", "quantity": 2}, 7))
        after = p.run()
        assert after["knownAt"] > at(40).isoformat(), "and it goes on by the clock"
        assert ("gus", 20) in known_bills(p, None)
        assert known_bills(p, at(20)) == define_bills(20), "what was known then stays"
        with pytest.raises(RequestError, match="was no rehearsed one"):
            rehearse(p, 40, 50)


@pytest.mark.parametrize("in_passes", [True, False], ids=["in a pass", "date by date"])
def test_an_update_that_comes_out_of_order_and_a_delete_leave_six_rows(
    spark: SparkSession, broker: str, tmp_path: Path, in_passes: bool
) -> None:
    """As of the company in the documentation of Databricks' bitemporal AUTO CDC: the third record is dated before the
    second; the last ends it.
    """
    records = [(1, 0, 1), (2, 20, 11), (3, 10, 21), (None, 30, 31)]
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        for price, true, arrived in records:
            p.send("menu", ("A", None if price is None else {"price": price}, true, sent(arrived)))
        rehearse(p, 0, 40, in_passes=in_passes)
        rows = [
            (row["price"], *(row[name] for name in ("validFrom", "validTo", "systemFrom", "systemTo")))
            for row in p.raw("menu")
        ]
        assert sorted(rows, key=lambda row: (row[3], row[1])) == [
            (1, at(0), None, at(10), at(20)),
            (1, at(0), at(20), at(20), at(30)),
            (2, at(20), None, at(20), at(40)),
            (1, at(0), at(10), at(30), None),
            (3, at(10), at(20), at(30), None),
            (2, at(20), at(30), at(40), None),
        ]
        for as_of, known_at, price in ((15, 40, 3), (15, 20, 1), (15, 30, 3), (35, 40, None), (35, 30, 2)):
            question = read.Question(as_of=at(as_of), known_at=at(known_at))
            found = [row["price"] for row in read.query(p.warehouse, p.contract, "menu", question).to_pylist()]
            assert found == ([] if price is None else [price]), (as_of, known_at)


def test_what_makes_no_sense_is_refused_before_anything_is_written(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("    arrival: header sent\n", "", 1)) as p:
        send(p)
        with pytest.raises(RequestError, match=r"topics\.menu does not say when its records arrived"):
            rehearse(p, 0, 30)
        p.write(CONTRACT)
        with pytest.raises(RequestError, match="arrived before") as refused:
            rehearse(p, 3, 30)
        assert refused.value.where == f"topic {p.kafka('menu')}, partition 0, offset 0"
        assert "--earlier" in refused.value.fix
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        intervals = [ArrivalInterval(at(0), tomorrow)]
        with pytest.raises(RequestError, match="would be known at"):
            [*rehearsal.rehearse_runs(spark, read_settings(), p.name, intervals)]
        assert p.states() == []
        assert [report.known_at for report in rehearse(p, 3, 10, with_earlier=True)] == [at(10)]
        assert known_bills(p, at(10)) == define_bills(10)
        with pytest.raises(RequestError, match="the next interval does not begin there"):
            rehearse(p, 15, 30)
        p.write(CONTRACT.replace("quantity * price", "quantity * price + 1"))
        with pytest.raises(RequestError, match="the definition of a table was changed since run 1"):
            rehearse(p, 10, 30)


def test_a_stopped_date_is_rehearsed_again_after_it_was_mended(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Those before it stay; limits may change meanwhile, and definitions not."""
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        p.send("orders", ("tom", b"{", 8, sent(28)))
        with pytest.raises(HindcastError, match="do not decode"):
            rehearse(p, 0, 30)
        assert known_bills(p, at(20)) == define_bills(20)
        p.write(CONTRACT.replace("read: stream", "read: stream\n    max_malformed: 1"))
        (report,) = rehearse(p, 0, 30)
        assert report.known_at in (at(30), at(30) + timedelta(microseconds=1))
        assert known_bills(p, report.known_at) == define_bills(30)
        assert known_bills(p, at(20)) == define_bills(20)
        assert [state for _, state in p.states()] == ["completed", "completed", "abandoned", "completed"]


def test_the_command_prints_the_report_of_each_date(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        monkeypatch.setattr("hindcast.cli.commands.running.open_session", lambda *_: spark)
        moments = ["--from", at(0).isoformat(), "--to", at(30).isoformat()]
        monkeypatch.setattr(progress, "INTERVAL", 0.02)
        assert main(["rehearse", p.name, *moments, "--every", "15 seconds"]) == 0
        shown, told = capsys.readouterr()
        assert re.search(r"^replay orders: 1 of 2 runs \(50%\), .*about \d+ s left$", told, re.MULTILINE)
        assert f"rehearsed: what arrived from {at(0).isoformat()} to {at(15).isoformat()}" in shown
        assert f"again: hindcast rehearse hindsight --from {at(15).isoformat()}" in shown
        page = Path(read_settings().reports, p.name, "run-1.html").read_text(encoding="utf-8")
        assert f'arrived from <time datetime="{at(0).isoformat()}">' in page
        assert journal.read_runs(p.warehouse, p.name)[0].plan.interval_end == at(15)
        assert main(["rehearse", p.name, *moments]) == 0
        assert "was rehearsed before; nothing was done" in capsys.readouterr().out
        assert main(["rehearse", p.name, *moments, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == []
        assert main(["rehearse", p.name, *reversed_moments(moments)]) == 1
        assert "is not before --to" in capsys.readouterr().err
        assert main(["rehearse", p.name, *moments, "--every", "1 ms"]) == 1
        assert "more than 10,000 runs" in capsys.readouterr().err
        for odd in (["--end", *moments], ["--from", moments[1]]):
            assert main(["rehearse", p.name, *odd]) == 1
        assert "a rehearsal needs --from and --to" in capsys.readouterr().err

        p.send("orders", ("gus", {"item": "curry", "quantity": 2}, 7, sent(31)))
        before, now = known_bills(p, at(30)), datetime.now(UTC)
        with pytest.raises(HindcastError, match="a rehearsal may go on"):
            known_bills(p, now)
        assert main(["rehearse", p.name, "--end", "--format", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["reason"], report["tables"]["orders"]["opened"]) == ("the rehearsal was ended", 0)
        assert known_bills(p, None) == known_bills(p, at(30)) == before
        assert main(["rehearse", p.name, "--end"]) == 0
        assert "no rehearsal is open; nothing was done" in capsys.readouterr().err
        p.run()
        assert ("gus", 20) in known_bills(p, None), "what was left is replayed"


def reversed_moments(moments: list[str]) -> list[str]:
    return [moments[0], moments[3], moments[2], moments[1]]


def test_random_histories_are_known_at_each_date_by_what_had_arrived_in_every_partition(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """With arrivals that are missing and that go back, ties, tombstones and late records; beside the definition."""
    chance = random.Random(7)  # noqa: S311  # any will do
    with pipeline(spark, broker, tmp_path, CONTRACT, partitions=3) as p:
        for n in range(90):
            arrived = chance.choice([n, n - chance.randrange(20), None])
            headers = [] if arrived is None else [sent(arrived)]
            price = chance.choice([n, n, n, None])
            value = None if price is None else {"price": price}
            p.send("menu", (f"dish{chance.randrange(7)}", value, chance.randrange(40), *headers))
            order = {"item": f"dish{chance.randrange(7)}", "quantity": 1}
            p.send("orders", (f"guest{n}", order, chance.randrange(40), *headers))
        rehearse(p, -30, 90, "20 seconds", with_earlier=True)
        known = {topic: list_arrivals(p, topic) for topic in ("menu", "orders")}
        for second in range(-10, 91, 20):
            versions = {item: define_versions(known["menu"], item, second) for item in (f"dish{n}" for n in range(7))}
            rows = read.query(p.warehouse, p.contract, "menu", read.Question(known_at=at(second), from_time=at(-1)))
            found = [(r["item"], r["price"], r["validFrom"], r["validTo"]) for r in rows.to_pylist()]
            assert sorted(found, key=str) == sorted(chain.from_iterable(versions.values()), key=str), second
            bills = []
            for row in known["orders"]:
                if row["known"] < at(second):
                    item = json.loads(row["value"])["item"]
                    priced = [
                        v
                        for v in versions[item]
                        if v[2] <= row["timestamp"] and (v[3] is None or row["timestamp"] < v[3])
                    ]
                    bills += [(row["key"].decode(), v[1]) for v in priced]
            assert known_bills(p, at(second)) == sorted(bills), second
        assert wrong(p) == []


def list_arrivals(p: Pipeline, topic: str) -> list[dict[str, Any]]:
    """The rows of a log in offset order, with when each could be `known`: from its header and those before it."""
    reached: dict[int, datetime] = {}
    rows = sorted(p.raw(f"logs/{topic}"), key=lambda row: (row["partition"], row["offset"]))
    for row in rows:
        own = [datetime.fromisoformat(value.decode()) for name, value in map(dict.values, row["headers"] or [])]
        before = reached.get(row["partition"], valid_time.FIRST_MOMENT)
        row["known"] = reached[row["partition"]] = max([before, *own])
        assert row["arrival"] == row["known"]
    return rows


def define_versions(rows: list[dict[str, Any]], item: str, second: int) -> list[tuple[Any, ...]]:
    """The versions of a key by the records that had arrived before a moment: of equal timestamps the last counts."""
    own = [row for row in rows if row["key"].decode() == item and row["known"] < at(second)]
    prices = {row["timestamp"]: row["value"] for row in own}
    moments = sorted(prices)
    return [
        (item, json.loads(prices[start])["price"], start, end)
        for start, end in pairwise([*moments, None])
        if prices[start] is not None
    ]
