"""The votes example: votes joined with their voters' regions, counted by region, some of them out of order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hindcast.kafka.produce import ProducerRecord

VOTES, REGIONS = "votes.votes", "votes.regions"
_START = datetime(2026, 1, 1, tzinfo=UTC)


def first_records() -> dict[str, list[ProducerRecord]]:
    """Return the records before run one: Cleo changes her vote at t=6, Dan moves to the south at t=4."""
    regions = [("ann", "north", 0), ("ben", "north", 0), ("cleo", "south", 0), ("dan", "north", 0), ("dan", "south", 4)]
    votes = [("ann", "red", 1), ("ben", "blue", 2), ("cleo", "red", 3), ("dan", "red", 2), ("cleo", "blue", 6)]
    return {
        REGIONS: [_build_record(voter, {"region": region}, t) for voter, region, t in regions],
        VOTES: [_build_record(voter, {"candidate": candidate}, t) for voter, candidate, t in votes],
    }


def late_records() -> dict[str, list[ProducerRecord]]:
    """Return the records before run two: Ben had voted red at t=1, before blue, and Ann withdrew her vote at t=5."""
    return {VOTES: [_build_record("ben", {"candidate": "red"}, 1), _build_record("ann", None, 5)]}


def invalid_records() -> dict[str, list[ProducerRecord]]:
    """Return a record that a gate of the contract stops: green is not a candidate."""
    return {VOTES: [_build_record("dan", {"candidate": "green"}, 8)]}


def _build_record(voter: str, value: dict[str, str] | None, t: int) -> ProducerRecord:
    encoded = None if value is None else json.dumps(value).encode()
    return ProducerRecord(voter.encode(), encoded, _START + timedelta(hours=t))
