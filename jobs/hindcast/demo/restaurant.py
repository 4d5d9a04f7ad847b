"""The restaurant of the versioned-store example: orders pay the price that was valid when they were placed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast.kafka.produce import Record

MENU, ORDERS = "restaurant.menu", "restaurant.orders"
_START = datetime(2026, 1, 1, tzinfo=UTC)


def minute(t: int) -> datetime:
    """The example's time t."""
    return _START + timedelta(minutes=t)


def first() -> dict[str, list[Record]]:
    """What is there before run one. Candace ordered at t=3 and arrives last, when the new price is known already.

    Lassi is free, which a gate of the contract holds back.
    """
    menu = [_record("curry", {"price": 8}, 0), _record("naan", {"price": 3}, 0), _record("curry", {"price": 10}, 4)]
    menu.append(_record("lassi", {"price": 0}, 0))
    orders = [
        _record("anna", {"item": "curry", "quantity": 2}, 1),
        _record("dave", {"item": "naan", "quantity": 2}, 2),
        _record("erin", {"item": "pizza", "quantity": 1}, 2),
        _record("bob", {"item": "curry", "quantity": 1}, 5),
        _record("candace", {"item": "curry", "quantity": 3}, 3),
    ]
    return {MENU: menu, ORDERS: orders}


def late() -> dict[str, list[Record]]:
    """What arrives before run two: naan has cost 2.50 from t=1 on, which nobody knew."""
    return {MENU: [_record("naan", {"price": 2.5}, 1)]}


def _record(key: str, value: dict[str, Any], t: int) -> Record:
    return Record(key.encode(), json.dumps(value).encode(), minute(t))
