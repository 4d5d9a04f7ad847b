"""A real Kafka Streams application on the real broker, two partitions: what it writes, and in which order it reads.

Where nothing is repartitioned its output is a matter of the topics alone: it equals the test driver's, fed in the order
in which a task reads. Where something is, tasks race: fed one by one it equals the driver's, and at once what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import drawing
import oracle
import topologies

pytestmark = pytest.mark.long

Json = Any
SECOND, BASE = 1000, 1_767_225_600_000
KEYS = tuple(f"key-{number}" for number in range(6))
AT_ONCE = {"__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": "0"}
"""An application emits at most every second, by the wall clock, what outer joins held back."""

VERSIONED, UNVERSIONED = {"versioned": True, "historyRetentionMs": 20}, {"versioned": False}
FOREVER = {"versioned": True, "historyRetentionMs": 100_000}
GROUPED = {"groupBy": {"keyField": "g", "valueField": "n"}, "aggregation": "sum"}


def stream_table(join: str, table: Json, **grace: int) -> Json:
    return {"type": "stream_table_join", "join": join, "table": table, **grace}


def table_table(join: str, left: Json, right: Json) -> Json:
    return {"type": "table_table_join", "join": join, "left": left, "right": right}


def windowed(window: Json, emit: str = "update") -> Json:
    return {"type": "windowed_aggregate", "aggregation": "sum", "valueField": "n", "window": window, "emit": emit}


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


@pytest.mark.parametrize("name", ON_THE_KEY)
def test_an_application_equals_the_driver_in_the_order_of_its_tasks(broker: str, name: str) -> None:
    operation, records = scenario(ON_THE_KEY[name], 150)
    run = oracle.live_output(broker, operation, records, config=AT_ONCE)
    for partition in (0, 1):
        mine = [record for record, placed in zip(records, run.partitions, strict=True) if placed == partition]
        wanted = emitted(operation, in_task_order(mine))
        assert len(wanted) > 10
        assert [tuple(row[:3]) for row in run.rows if row.partition == partition] == wanted


def test_at_equal_timestamps_a_task_reads_its_two_topics_in_turn(broker: str) -> None:
    operation = stream_table("inner", UNVERSIONED)
    tied = [(topic, {"n": number}, BASE + SECOND) for topic in ("stream", "table") for number in range(8)]
    log = [("table", {"n": -1}, BASE), *tied]
    records = [{"topic": topic, "key": "a", "value": value, "timestamp": time} for topic, value, time in log]
    rows = oracle.live_output(broker, operation, records).rows
    assert [(row.value["left"]["n"], row.value["right"]["n"]) for row in rows] == [(n, n - 1) for n in range(8)]


@pytest.mark.parametrize("name", ON_ANOTHER)
def test_fed_one_by_one_it_equals_the_driver_through_its_own_topics(broker: str, name: str) -> None:
    operation, records = scenario(ON_ANOTHER[name], 24)
    run = oracle.live_output(broker, operation, records, one_by_one=True)
    wanted = emitted(operation, records)
    assert len(wanted) > 10
    home = {row.key: row.partition for row in run.rows}
    for partition in (0, 1):
        of_it = [row for row in wanted if home[row[0]] == partition]
        assert [tuple(row[:3]) for row in run.rows if row.partition == partition] == of_it


@pytest.mark.parametrize("name", ON_ANOTHER)
def test_what_is_left_of_racing_tasks_is_the_same(broker: str, name: str) -> None:
    operation, records = scenario(ON_ANOTHER[name], 150)
    run = oracle.live_output(broker, operation, records)
    left = {row.key: row.value for row in run.rows}
    wanted = {key: value for key, value, _ in emitted(operation, records)}
    assert {key for key in left | wanted if left.get(key) != wanted.get(key)} == set()


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


def emitted(operation: Json, records: Sequence[Json]) -> list[tuple[Json, Json, int]]:
    [made] = oracle.expected([{"name": "live", "operation": operation, "records": list(records)}])
    return [(row["key"], row["value"], row["timestamp"]) for row in made["expected"]["emitted"]]


def in_task_order(records: Sequence[Json]) -> list[Json]:
    """Records of one partition as a task reads them from one topic or two, all of them there when it starts.

    The topic goes first whose next record has the smaller timestamp; at a tie the one that was not read last, as
    PartitionGroup's queue puts a topic that was read behind those with the same timestamp.
    """
    waiting: dict[str, list[Json]] = {}
    for record in records:
        waiting.setdefault(record["topic"], []).append(record)
    read: list[Json] = []
    while any(waiting.values()):
        heads = [(queue[0]["timestamp"], bool(read) and read[-1]["topic"] == topic, topic)
                 for topic, queue in waiting.items() if queue]  # fmt: skip
        assert read or len({head[0] for head in heads}) == len(heads), "which topic was fetched first decides"
        read.append(waiting[min(heads)[2]].pop(0))
    return read
