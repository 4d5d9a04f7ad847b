"""The model of what a contract closes by schedule, and the calendar's periods. Pure.

A period is closed as known at the first run of all tables that is at least `after` later than its end
(ops/close_periods.py): which that is depends on no clock but those of the runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import MAXYEAR, UTC, datetime
from typing import Literal

from pydantic import Field

from hindcast.contract.types import ContractModel, Duration

_MONTHS = {"month": 1, "quarter": 3, "year": 12}


class Closing(ContractModel):
    """Which periods are closed, in UTC, and how long after their end."""

    every: Literal["month", "quarter", "year"] = Field(
        description="The length of the periods: their closes are called 2026-07, 2026-Q3 and 2026."
    )
    after: Duration | None = Field(
        None,
        description="How long late records are waited for: the close has what the first run knew that is so much later "
        "than the end of its period, or at its end.",
    )

    def list_periods(self, since: datetime, until: datetime) -> Iterator[tuple[str, datetime, datetime]]:
        """Yield name, start and end of the periods from that which `since` is in, as far as they end by `until`.

        every: quarter    2026-05-20, 2026-10-01    ->    2026-Q2 from April to July, 2026-Q3 from July to October
        """
        length = _MONTHS[self.every]
        month = (since.year * 12 + since.month - 1) // length * length
        while (month + length) // 12 <= MAXYEAR:
            start, end = _begin_month(month), _begin_month(month + length)
            if end > until:
                return
            yield self._name_period(start), start, end
            month += length

    def _name_period(self, start: datetime) -> str:
        match self.every:
            case "month":
                return f"{start.year:04}-{start.month:02}"
            case "quarter":
                return f"{start.year:04}-Q{start.month // 3 + 1}"
            case _:
                return f"{start.year:04}"


def _begin_month(number: int) -> datetime:
    """Return when a month begins, given how many are before it since the year 0."""
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)
