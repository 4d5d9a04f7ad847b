"""The records of the inputs, drawn by numpy: the same every time.

Three pipelines differ in how often keys come: `uniform`; `zipf`, by Zipf's law with exponent 1 (of 100,000 keys the
most frequent one has 8% of all records); `hot`, where one key has a tenth of the events, and the versions are uniform.
Of a hundred records one is late, by an exponential delay whose mean is a hundredth of the history; of a hundred records
of a table one is a tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from bench.speed.names import KINDS

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SPAN = timedelta(days=90)
"""How long the history is, whatever its records."""
KNOWN = datetime(2026, 6, 1, tzinfo=UTC)
"""The known-at of all rows."""
CATEGORIES = 1_000
VALUES = {"prices": ("price", "category"), "stock": ("n",), "events": ("quantity",), "shipped": ("quantity",)}
STREAMS = ("events", "shipped")
"""The topics that are read as streams."""


@dataclass(frozen=True)
class Sizes:
    """How many events, records of each table, and keys."""

    events: int
    versions: int
    keys: int

    @property
    def text(self) -> str:
        return f"{self.events:,} events, {self.versions:,} versions, {self.keys:,} keys"


FULL, QUICK = Sizes(10_000_000, 2_000_000, 100_000), Sizes(1_000_000, 200_000, 10_000)


def records(sizes: Sizes, kind: str, name: str) -> pa.Table:
    """The records of a topic in offset order: offset, timestamp, item, and its values, null in a tombstone."""
    count = sizes.events if name in STREAMS else sizes.versions
    chance = np.random.default_rng([KINDS.index(kind), list(VALUES).index(name)])
    numbers = np.arange(count, dtype=np.int64)
    history = int(SPAN.total_seconds() * 1000)
    delay = chance.exponential(history / 100, count) * (chance.random(count) < 0.01)
    millis = np.maximum((numbers * (history / count)).astype(np.int64) - delay.astype(np.int64), 0)
    items = pa.array([f"item-{n:06d}" for n in range(sizes.keys)])
    gone = chance.random(count) < 0.01 if name not in STREAMS else np.zeros(count, dtype=bool)
    drawn = keys(chance, kind if name in STREAMS or kind == "zipf" else "uniform", count, sizes.keys)
    values: dict[str, Any] = {}
    for value in VALUES[name]:
        numbers_of = drawn % CATEGORIES if value == "category" else chance.integers(1, 100, count)
        values[value] = pa.array(numbers_of.astype(np.int32), mask=gone)
    at = pa.array(int(T0.timestamp() * 1000) + millis, pa.timestamp("ms", "UTC"))
    return pa.table({"offset": numbers, "timestamp": at, "item": items.take(pa.array(drawn)), **values})


def keys(chance: np.random.Generator, kind: str, count: int, of: int) -> Any:
    """Numbers of keys as a kind draws them; the smaller, the more frequent."""
    if kind == "zipf":
        shares = 1 / np.arange(1, of + 1)
        return np.searchsorted(np.cumsum(shares) / shares.sum(), chance.random(count)).clip(max=of - 1)
    drawn = chance.integers(0, of, count)
    return np.where(chance.random(count) < 0.1, 0, drawn) if kind == "hot" else drawn
