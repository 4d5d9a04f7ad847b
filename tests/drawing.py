"""Random records for an operation of the vectors' format.

Times are small and drawn from the operation's own durations, so that ties, records out of order, tombstones on the
timestamps of others, and both sides of the edges of retention, grace and windows happen all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

Json = Any
Records = list[dict[str, Json]]
Make = Callable[[Random, int], Json]
"""Makes the value of a record of this number."""

FURTHEST = 1000
KEYS = ("a", "b", "c", "d", "e")
BYTEWISE = ("", "B", "a", "aa", "é", "｡", "😀")
"""Keys whose bytes do not sort as letters do, the last two not as UTF-16 either."""


def drawn(
    rng: Random,
    operation: Mapping[str, Json],
    makes: dict[str, Make],
    *,
    null_key: float,
    null: float | None = None,
    keys: dict[str, Sequence[str]] | None = None,
) -> Records:
    """Records of the topics of `makes`, which makes their values; `null` is the chance of a null value."""
    shared, weight = few_keys(rng), rng.choice((0.3, 0.5, 0.5, 0.7))
    null = rng.choice((0, 0.1, 0.2, 0.3)) if null is None else null
    topics = list(makes)
    records = []
    for place, time in enumerate(timestamps(rng, operation, length(rng))):
        topic = topics[0] if rng.random() < weight else topics[-1]
        key = None if rng.random() < null_key else rng.choice((keys or {}).get(topic, shared))
        value = None if rng.random() < null else makes[topic](rng, place)
        records.append({"topic": topic, "key": key, "value": value, "timestamp": time})
    return records


def records(operation: Mapping[str, Json], count: int, keys: Sequence[str], seed: int = 0) -> Records:
    """As many random records for an operation, of these keys; their values are JSON objects."""
    rng = Random(seed)  # noqa: S311
    makes = dict.fromkeys(TOPICS[operation["type"]], row)
    if operation["type"] == "foreign_key_join":
        makes["left"] = reference(keys)
    if operation["type"] == "table_aggregate":
        makes["table"] = member
    times = timestamps(rng, operation, count)
    return [
        {
            "topic": (topic := rng.choice(list(makes))),
            "key": rng.choice(keys),
            "value": None if rng.random() < 0.15 else makes[topic](rng, place),
            "timestamp": time,
        }
        for place, time in enumerate(times)
    ]


TOPICS = {
    "stream_table_join": ("table", "stream"),
    "table_table_join": ("left", "right"),
    "foreign_key_join": ("left", "right"),
    "table_aggregate": ("table",),
    "stream_aggregate": ("stream",),
    "windowed_aggregate": ("stream",),
    "stream_stream_join": ("left", "right"),
}
"""The topics of each type of operation."""


def number(rng: Random, place: int) -> Json:
    return place if rng.random() < 0.7 else rng.choice((1, 2, 3))


def digit(rng: Random, _: int) -> Json:
    return rng.randint(1, 9)


def row(_: Random, place: int) -> Json:
    return {"n": place}


def member(rng: Random, _: int) -> Json:
    value = None if rng.random() < 0.05 else rng.randint(1, 9)
    return {"g": None if rng.random() < 0.05 else rng.choice(("x", "y", "z")), "n": value}


def reference(foreign: Sequence[str]) -> Make:
    def make(rng: Random, place: int) -> Json:
        return {"fk": None if rng.random() < 0.1 else rng.choice(foreign), "v": number(rng, place)}

    return make


def few_keys(rng: Random) -> Sequence[str]:
    """Keys to choose from: few, the first ones more often."""
    alphabet = BYTEWISE if rng.random() < 0.06 else KEYS
    few = alphabet[: rng.choice((1, 2, 2, 3, 3, 5, len(alphabet)))]
    return [key for number, key in enumerate(few) for _ in range(len(few) - number)]


def length(rng: Random) -> int:
    return rng.randint(5, 16) if rng.random() < 0.8 else rng.choice((18, 20, 25, 30, 40, 60))


def timestamps(rng: Random, operation: Mapping[str, Json], count: int) -> list[int]:
    """Timestamps in the order of processing, of one temper: steady, with ties, late, or at the edges of durations."""
    spans = _spans(operation)
    chances = rng.choice(
        (
            {"forward": 8, "tie": 2},
            {"forward": 4, "tie": 4, "late": 3},
            {"forward": 4, "again": 3, "late": 4, "edge": 2},
            {"forward": 3, "tie": 1, "edge": 5, "again": 2},
            {"forward": 3, "again": 2, "edge": 3, "jump": 2},
            {"forward": 2, "tie": 2, "again": 3, "late": 2, "edge": 2, "jump": 1, "zero": 1},
        )
    )
    step = rng.choice((1, 2, 4, 10))
    latest = last = rng.choice((0, 0, rng.randint(0, 10), 100, rng.randint(90, 110)))
    times = [latest]
    while len(times) < count:
        temper = rng.choices(list(chances), list(chances.values()))[0]
        if temper == "forward":
            last = latest + rng.randint(0, step)
        elif temper == "again":
            last = rng.choice(times)
        elif temper == "late":
            last = latest - rng.randint(1, rng.choice((3, 10, 30)))
        elif temper in ("edge", "jump") and spans:
            last = latest + rng.choice(spans) * (-1 if temper == "edge" else 1) + rng.choice((-1, 0, 0, 1))
        elif temper == "zero":
            last = rng.randint(0, 4)
        last = max(last, 0)
        times.append(last)
        latest = max(latest, last)
    if spans and rng.random() < 0.4:
        times[-1] = latest + rng.choice(spans) + 1  # what waited comes out
    return times


def _spans(operation: Mapping[str, Json]) -> list[int]:
    """The operation's durations and the sums of two, as far as they matter to the times that are drawn."""

    def found(spec: Json, name: str = "") -> Iterator[int]:
        if isinstance(spec, dict):
            for field, inner in spec.items():
                yield from found(inner, field)
        elif isinstance(spec, list):
            for inner in spec:
                yield from found(inner)
        elif name.endswith("Ms"):
            yield spec

    spans = sorted(set(found(operation)))
    return [span for span in {*spans, *(one + other for one, other in combinations(spans, 2))} if 0 <= span <= FURTHEST]
