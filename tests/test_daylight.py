"""Daylight saving: the hour that a local clock does not have, and the one that it has twice, are hours as any other.

In Berlin 2026-03-29 02:30 is not, and 2026-10-25 02:30 is twice. All that Hindcast is told without a zone is UTC.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pendulum
import pytest

from hindcast import read
from hindcast.contracts import load
from hindcast.kafka import lines
from hindcast.scheduling import steps

if TYPE_CHECKING:
    pass

BERLIN = "Europe/Berlin"
MISSING, TWICE = "2026-03-29T02:30:00", "2026-10-25T02:30:00"


@pytest.fixture
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has Berlin's local time."""
    monkeypatch.setenv("TZ", BERLIN)
    time.tzset()
    assert datetime.fromtimestamp(0).hour == 1  # noqa: DTZ006  # it is asked what local time is
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_in_berlin")
@pytest.mark.parametrize("text", [MISSING, TWICE])
def test_a_text_without_a_zone_is_utc_wherever_it_is_told(text: str, tmp_path: Path) -> None:
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    assert read.moment_of("", "p", text) == moment
    (tmp_path / "lines").write_text(f'{{"key": "k", "value": 1, "timestamp": "{text}"}}')
    (record,) = lines.records(tmp_path / "lines")
    assert record.timestamp == moment
    contract = f"pipeline: p\nstart: {text}\ntopics:\n  t: {{read: stream, key: {{k: string}}, value: {{v: int}}}}\n"
    (tmp_path / "p.yaml").write_text(contract.replace("value:", f"from: {text}, value:"))
    found = load(tmp_path / "p.yaml")
    assert (found.start, found.topics["t"].since) == (moment, moment)
    form = {"replay": "interval", "until": text, "only": None, "preview": False, "reason": None}
    asked = steps.asked({"params": form, "dag_run": SimpleNamespace(dag_id="p")}, moment + timedelta(days=1))
    assert asked.until == moment


@pytest.mark.usefixtures("_in_berlin")
def test_an_interval_that_ends_in_the_hour_that_comes_twice_ends_where_airflow_says() -> None:
    form = {"replay": "interval", "until": None, "only": None, "preview": False, "reason": None}
    ends = []
    for offset in ("+02:00", "+01:00"):
        end = pendulum.parse(f"{TWICE}{offset}").in_timezone(BERLIN)  # type: ignore[union-attr]
        assert end.isoformat() == f"{TWICE}{offset}"
        given: Any = {"data_interval_start": end.subtract(hours=1), "data_interval_end": end}
        context = {"params": form, "dag_run": SimpleNamespace(dag_id="p"), **given}
        ends.append(steps.asked(context, datetime(2027, 1, 1, tzinfo=UTC)).until)
    assert ends == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)]
