"""What the time machine shows of a key at a moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from hindcast.contract import Window
from hindcast.query.key_history import KeyHistory
from hindcast.store.tables import Table

T0, HOUR = datetime(2026, 3, 1, tzinfo=UTC), timedelta(hours=1)
MOMENT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("window", "at", "starts"),
    [
        ({"tumbling": "1 hour"}, 1, [1]),
        ({"tumbling": "1 hour"}, 1.5, [1]),
        ({"hopping": "1 hour", "advance": "1 hour"}, 2, [2]),
        ({"session": "1 hour"}, 1, [1, 0]),
        ({"sliding": "1 hour"}, 3, [2]),
    ],
)
def test_a_window_that_ends_where_the_next_begins_is_not_shown_there(
    window: dict[str, str], at: float, starts: list[int]
) -> None:
    """A session and a sliding window contain their last moment, a tumbling and a hopping one do not."""
    moments = {
        "windowStart": [T0 + n * HOUR for n in range(3)],
        "windowEnd": [T0 + (n + 1) * HOUR for n in range(3)],
        "systemFrom": [T0] * 3,
        "systemTo": [None] * 3,
    }
    rows = pa.table({name: pa.array(values, MOMENT) for name, values in moments.items()})
    history = KeyHistory(Table("", "shop", "hourly", "windows"), rows)
    found = history.find_answer(T0 + at * HOUR, T0, 10, Window.model_validate(window)).rows
    assert [(row["windowStart"] - T0) // HOUR for row in found] == starts
