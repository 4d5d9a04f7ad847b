"""The restaurant of the versioned-store example: an order pays the price that was valid when it was placed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast.kafka.produce import ProducerRecord

MENU, ORDERS = "restaurant.menu", "restaurant.orders"
_START = datetime(2026, 1, 1, tzinfo=UTC)


def example_time(t: int) -> datetime:
    """Return the example's time t, in minutes from its start."""
    return _START + timedelta(minutes=t)


def first_records() -> dict[str, list[ProducerRecord]]:
    """Return the records before run one, by topic.

    Candace ordered at t=3, but her order arrives last, after the new price. Lassi is free: a gate holds that back.
    """
    menu = [
        _build_record("curry", {"price": 8}, 0),
        _build_record("naan", {"price": 3}, 0),
        _build_record("curry", {"price": 10}, 4),
        _build_record("lassi", {"price": 0}, 0),
    ]
    orders = [
        _build_record("anna", {"item": "curry", "quantity": 2}, 1),
        _build_record("dave", {"item": "naan", "quantity": 2}, 2),
        _build_record("erin", {"item": "pizza", "quantity": 1}, 2),
        _build_record("bob", {"item": "curry", "quantity": 1}, 5),
        _build_record("candace", {"item": "curry", "quantity": 3}, 3),
    ]
    return {MENU: menu, ORDERS: orders}


def late_records() -> dict[str, list[ProducerRecord]]:
    """Return the records that arrive before run two: naan has cost 2.50 since t=1, which nobody knew."""
    return {MENU: [_build_record("naan", {"price": 2.5}, 1)]}


def _build_record(key: str, value: dict[str, Any], t: int) -> ProducerRecord:
    return ProducerRecord(key.encode(), json.dumps(value).encode(), example_time(t))
