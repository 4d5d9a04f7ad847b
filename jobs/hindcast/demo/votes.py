"""The votes example: votes joined with their voters' regions, counted by region, some of them out of order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hindcast.kafka.produce import Record

VOTES, REGIONS = "votes.votes", "votes.regions"
_START = datetime(2026, 1, 1, tzinfo=UTC)


def first() -> dict[str, list[Record]]:
    """What is there before run one: Cleo changes her vote at t=6, Dan moves to the south at t=4."""
    regions = [("ann", "north", 0), ("ben", "north", 0), ("cleo", "south", 0), ("dan", "north", 0), ("dan", "south", 4)]
    votes = [("ann", "red", 1), ("ben", "blue", 2), ("cleo", "red", 3), ("dan", "red", 2), ("cleo", "blue", 6)]
    return {
        REGIONS: [_record(voter, {"region": region}, t) for voter, region, t in regions],
        VOTES: [_record(voter, {"candidate": candidate}, t) for voter, candidate, t in votes],
    }


def late() -> dict[str, list[Record]]:
    """What arrives before run two: Ben had voted red at t=1 before he chose blue, and Ann withdrew hers at t=5."""
    return {VOTES: [_record("ben", {"candidate": "red"}, 1), _record("ann", None, 5)]}


def wrong() -> dict[str, list[Record]]:
    """What a gate of the contract stops: nobody named green is a candidate."""
    return {VOTES: [_record("dan", {"candidate": "green"}, 8)]}


def _record(voter: str, value: dict[str, str] | None, t: int) -> Record:
    told = None if value is None else json.dumps(value).encode()
    return Record(voter.encode(), told, _START + timedelta(hours=t))
