"""The demo of hindsight: what it prints is what its records say, added up by themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hindcast.kafka.produce import ProducerRecord
from hindcast_demo import hindsight

QUARTER = datetime(2025, 4, 1, tzinfo=UTC)


@pytest.fixture
def own_environment(tmp_path: Path) -> Iterator[None]:
    before = dict(os.environ)
    os.environ["HINDCAST_VAR"] = str(tmp_path)
    yield
    os.environ.clear()
    os.environ.update(before)


def read_header(record: ProducerRecord) -> datetime:
    ((_, sent),) = record.headers
    assert isinstance(sent, str)
    return datetime.fromisoformat(sent)


def sum_quarter(known: datetime, *more: ProducerRecord) -> int:
    """Return what the trips of the quarter cost by the prices, both as sent before a moment."""
    prices = [it for it in hindsight.list_prices() if read_header(it) < known] + [*more]
    total = 0
    for trip in hindsight.list_trips():
        assert isinstance(trip.timestamp, datetime)
        if read_header(trip) < known and trip.timestamp < QUARTER:
            route = (trip.key or b"").decode().partition("-")[0].encode()
            valid = [it for it in prices if it.key == route and it.timestamp <= trip.timestamp]  # type: ignore[operator]
            last = sorted(valid, key=lambda it: it.timestamp)[-1]  # type: ignore[arg-type, return-value]  # of equals the later
            total += int(re.findall(rb"[0-9]+", last.value or b"")[0])
    return total


@pytest.mark.long
@pytest.mark.usefixtures("own_environment")
def test_the_demo_of_hindsight_says_what_its_records_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hindsight.main() == 0
    output = capsys.readouterr().out
    late = ProducerRecord(b"coast", b'{"price": 15}', datetime(2025, 2, 1, tzinfo=UTC))
    closed, now = sum_quarter(QUARTER), sum_quarter(datetime.now(UTC), late)
    assert re.search(rf"revenue  price +{closed} +{now - closed} +{now}\n", output)
    assert re.findall(r"hills-030  hills +(\d+)", output) == ["12", "19"]
    page = (tmp_path / "demo-hindsight" / "restated.html").read_text(encoding="utf-8")
    assert f"{closed:,} as closed, +{now - closed} by later records, {now:,} now" in page
