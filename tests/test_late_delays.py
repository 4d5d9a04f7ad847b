"""By how much the late records of a run were late, as its report has it."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import reports
from hindcast.ingest.late_delays import LateDelays, describe_ranges, list_delays, measure_delays
from hindcast.report.run_report import TopicReport
from hindcast.store import tables
from test_ledger_limits import LOG, log_row, write_rows
from warehouses import at


def delays(*minutes: float) -> LateDelays:
    return LateDelays(*(timedelta(minutes=n) for n in minutes))


def test_the_late_records_of_one_run_are_measured(tmp_path: Path) -> None:
    log = tables.log_table(str(tmp_path), "shop", "prices")
    assert measure_delays(log, 3, 3) == {}
    late = [log_row(n, timestamp=at(100 - n), streamTime=at(100)) for n in range(1, 21)]
    others = [
        log_row(30, timestamp=at(100), streamTime=at(100)),
        log_row(31, timestamp=at(0), streamTime=None),
        log_row(32, timestamp=at(0), streamTime=at(900), run=4),
    ]
    write_rows(log, LOG, [*late, *others])
    assert measure_delays(log, 3, 5) == {3: delays(10, 19, 20), 4: delays(900, 900, 900)}
    assert measure_delays(log, 5, 5) == {}


def test_delays_are_described() -> None:
    assert delays(5, 120, 190).describe() == "median 5 min, 95 % at most 2 h, largest 3 h 10 min"
    assert delays(0.005, 0.005, 0.005).describe() == "by 300 ms"
    same = delays(5, 120, 190)
    assert describe_ranges([same, same]) == same.describe()
    assert describe_ranges([same, delays(7, 120, 130)]) == (
        "median 5 min to 7 min, 95 % at most 2 h, largest 3 h 10 min"
    )


def test_a_few_delays_are_listed() -> None:
    one, two = (1, delays(60, 60, 60)), (2, delays(5, 300, 300))
    assert list_delays([one, two]) == ["5 min", "1 h", "5 h"]
    assert list_delays([one, (3, delays(5, 300, 300))]) is None, "of three only the middle and the largest are known"
    assert list_delays([one, (1, None)]) is None
    assert list_delays([one] * 5) is None


def test_a_report_keeps_them_and_may_lack_them() -> None:
    topic = TopicReport("t", 9, 3, delays=delays(1, 2, 3))
    assert topic.as_json()["lateBy"] == {"median": 60, "p95": 120, "largest": 180}
    assert TopicReport.from_json("t", topic.as_json()) == topic
    assert TopicReport.from_json("t", {"offsets": 9, "late": 3}).delays is None


@pytest.mark.parametrize(
    "odd", [{"median": 1}, {"median": "x", "p95": 2, "largest": 3}, {"median": 4, "p95": 2, "largest": 3}, 7]
)
def test_odd_delays_are_refused(odd: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        TopicReport.from_json("t", {"lateBy": odd})


def test_the_page_of_a_report_has_them() -> None:
    part = {"partition": 0, "start": 0, "end": 1, "fates": {"accepted": 1}}
    late = {"lateBy": {"median": 60, "p95": 60, "largest": 60}}
    topic = {"topic": "t", "offsets": 1, "late": 1, "partitions": [part], **late}
    page = reports.render_page({"pipeline": "p", "run": 1, "knownAt": None, "topics": {"t": topic}, "tables": {}})
    assert "1 late: by 1 min" in re.sub(r"<[^>]+>", " ", page)
