"""What applications are run for: operations that stand for their kinds, and random records for two partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

import drawing
import topologies
from hindcast.streams import murmur2

Json = Any
SECOND, BASE = 1000, 1_767_225_600_000
KEYS = tuple(f"key-{number}" for number in range(6))

VERSIONED, UNVERSIONED = {"versioned": True, "historyRetentionMs": 20}, {"versioned": False}
FOREVER = {"versioned": True, "historyRetentionMs": 100_000}
GROUPED = {"groupBy": {"keyField": "g", "valueField": "n"}, "aggregation": "sum"}


def stream_table(join: str, table: Json, **grace: int) -> Json:
    return {"type": "stream_table_join", "join": join, "table": table, **grace}


def table_table(join: str, left: Json, right: Json) -> Json:
    return {"type": "table_table_join", "join": join, "left": left, "right": right}


def windowed(window: Json, emit: str = "update") -> Json:
    """Of records, not of values: what reduces a null value makes a tombstone, and a contract's aggregates make none."""
    return {"type": "windowed_aggregate", "aggregation": "count", "window": window, "emit": emit}


TUMBLING = {"kind": "tumbling", "sizeMs": 10, "graceMs": 5}
SESSION = {"kind": "session", "inactivityGapMs": 3, "graceMs": 5}
WITHIN = {"beforeMs": 3, "afterMs": 5, "graceMs": 3}

ON_THE_KEY = {
    "stream-table, versioned": stream_table("left", VERSIONED),
    "stream-table, unversioned": stream_table("inner", UNVERSIONED),
    "stream-table, grace": stream_table("left", VERSIONED, graceMs=5),
    "table-table, versioned": table_table("left", VERSIONED, VERSIONED),
    "table-table, mixed": table_table("outer", VERSIONED, UNVERSIONED),
    "stream aggregate": {"type": "stream_aggregate", "aggregation": "sum", "valueField": "n"},
    "tumbling": windowed(TUMBLING),
    "tumbling, suppressed": windowed(TUMBLING, "suppress_until_window_closes"),
    "session": windowed(SESSION),
    "stream-stream": {"type": "stream_stream_join", "join": "left", "window": WITHIN},
}
ON_ANOTHER = {
    "foreign key, unversioned": {
        "type": "foreign_key_join", "join": "left", "foreignKeyField": "fk", "left": UNVERSIONED, "right": UNVERSIONED
    },
    "foreign key, versioned": {
        "type": "foreign_key_join", "join": "inner", "foreignKeyField": "fk", "left": FOREVER, "right": FOREVER
    },
    "table aggregate, unversioned": {"type": "table_aggregate", "table": UNVERSIONED, **GROUPED},
    "table aggregate, versioned": {"type": "table_aggregate", "table": FOREVER, **GROUPED},
}  # fmt: skip


def scenario(operation: Json, count: int) -> tuple[Json, list[Json]]:
    """The operation in seconds, and random records of this century.

    Before them is one of every key in every topic, so that no partition is empty, and none begins with a tie.
    """
    drawn = topologies.scaled({"operation": operation, "records": drawing.records(operation, count, KEYS)}, SECOND)
    topics = sorted({record["topic"] for record in drawn["records"]})
    first = [{**drawn["records"][0], "topic": topic, "key": key, "value": None, "timestamp": BASE + number}
             for key in KEYS for number, topic in enumerate(topics)]  # fmt: skip
    later = [{**record, "timestamp": BASE + SECOND + record["timestamp"]} for record in drawn["records"]]
    return drawn["operation"], first + later


def apart(records: Sequence[Json]) -> Iterator[Json]:
    """The same, later by milliseconds where another topic has the timestamp.

    A task reads tied topics in turn, a contract has them in its own order.
    """
    has: dict[int, str] = {}
    for record in records:
        time = record["timestamp"]
        while has.setdefault(time, record["topic"]) != record["topic"]:
            time += 1
        yield {**record, "timestamp": time}


def in_processing_order(records: Sequence[Json], topics: Sequence[str]) -> list[Json]:
    """Records as one reader of all partitions takes them who always has the next one of each (processing_order)."""
    reached: dict[Json, int] = {}
    placed = []
    for number, record in enumerate(records):
        place = topics.index(record["topic"]), partition(record["key"])
        reached[place] = max(record["timestamp"], reached.get(place, 0))
        placed.append((reached[place], *place, number))
    return [records[number] for *_, number in sorted(placed)]


def partition(key: str) -> int:
    """The partition of a key, of two."""
    return int(murmur2.assign_partitions(pa.array([key.encode()]), 2)[0].as_py())
