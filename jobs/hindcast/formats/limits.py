"""How many records of a run may be malformed."""

from __future__ import annotations

from decimal import Decimal

from hindcast.contract import Topic


def malformed_limit(topic: Topic, records: int) -> int:
    """Return how many of a run's records may be malformed; a percentage is rounded down: 1% of 250 is 2."""
    allowed = topic.max_malformed
    return allowed if isinstance(allowed, int) else int(records * Decimal(allowed.removesuffix("%")) / 100)
