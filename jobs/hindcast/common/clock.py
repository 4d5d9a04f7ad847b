"""The clock of this machine, read in one place. It may be wrong or go back: nothing is ordered by it."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the moment that this machine's clock shows, in UTC."""
    return datetime.now(UTC)
