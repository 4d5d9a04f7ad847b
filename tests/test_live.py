"""A real Kafka Streams application on the real broker, two partitions: what it writes, in which order it reads, and our
replay of the same topics.

Where nothing is repartitioned its output is a matter of the topics alone: it equals the test driver's, fed in the order
in which a task reads, and our replay. Where something is, tasks race: fed one by one it equals both, and at once what
is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import oracle
import replays
from hindcast.cli import main
from pipelines import Pipeline
from scenarios import (
    BASE,
    ON_ANOTHER,
    ON_THE_KEY,
    SECOND,
    UNVERSIONED,
    apart,
    in_processing_order,
    partition,
    scenario,
    stream_table,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

Json = Any
AT_ONCE = {"__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": "0"}
"""An application emits at most every second, by the wall clock, what outer joins held back."""


class Application(NamedTuple):
    """An application that has run: its operation, the records that it was given, and what it wrote."""

    operation: Json
    records: list[Json]
    run: oracle.Run


Applications = Callable[..., Application]


@pytest.fixture(scope="module")
def application(broker: str) -> Applications:
    """The application of an operation, by its name; run the first time."""

    @cache
    def ran(name: str, *, one_by_one: bool = False) -> Application:
        operation, records = scenario((ON_THE_KEY | ON_ANOTHER)[name], 24 if one_by_one else 150)
        records = list(apart(records))
        if one_by_one:
            records = in_processing_order(records, replays.inputs(operation))
        config = AT_ONCE if name in ON_THE_KEY else None
        run = oracle.live_output(broker, operation, records, one_by_one=one_by_one, config=config)
        return Application(operation, records, run)

    return ran


@pytest.fixture(scope="module")
def replay(
    spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory, application: Applications
) -> Any:
    """What a run has emitted of all topics that applications have read, by operation and whether one by one."""
    them = {name: application(name) for name in ON_THE_KEY | ON_ANOTHER}
    them |= {f"{name}, one by one": application(name, one_by_one=True) for name in ON_ANOTHER}
    said = replays.contract({name: (it.operation, it.run.prefix) for name, it in them.items()})
    p = Pipeline(spark, broker, tmp_path_factory.mktemp("live"), said)
    p.run()
    return {name: replays.emitted(p, name) for name in them}


@pytest.mark.parametrize("name", ON_THE_KEY)
def test_an_application_equals_the_driver_in_the_order_of_its_tasks(application: Applications, name: str) -> None:
    assert_the_driver_tells_the_same(*application(name))


@pytest.mark.long
@pytest.mark.parametrize("name", ON_THE_KEY)
def test_our_replay_equals_what_an_application_wrote(application: Applications, replay: Any, name: str) -> None:
    assert replay[name] == application(name).run.rows


def test_at_equal_timestamps_a_task_reads_its_two_topics_in_turn(broker: str) -> None:
    operation = stream_table("inner", UNVERSIONED)
    tied = [(topic, {"n": number}, BASE + SECOND) for topic in ("stream", "table") for number in range(8)]
    log = [("table", {"n": -1}, BASE), *tied]
    records = [{"topic": topic, "key": "a", "value": value, "timestamp": time} for topic, value, time in log]
    rows = oracle.live_output(broker, operation, records).rows
    assert [(row.value["left"]["n"], row.value["right"]["n"]) for row in rows] == [(n, n - 1) for n in range(8)]


@pytest.mark.parametrize("name", ["stream-table, unversioned", "stream-stream"])
def test_so_it_does_where_records_are_out_of_order(broker: str, name: str) -> None:
    operation, records = scenario(ON_THE_KEY[name], 150)
    assert_the_driver_tells_the_same(operation, records, oracle.live_output(broker, operation, records, config=AT_ONCE))


def assert_the_driver_tells_the_same(operation: Json, records: Sequence[Json], run: oracle.Run) -> None:
    """Of each partition, fed in the order of its task."""
    for number in (0, 1):
        mine = [record for record, placed in zip(records, run.partitions, strict=True) if placed == number]
        wanted = emitted(operation, in_task_order(mine))
        assert len(wanted) > 10
        assert [tuple(row[:3]) for row in run.rows if row.partition == number] == wanted


@pytest.mark.parametrize("name", ON_ANOTHER)
def test_fed_one_by_one_it_equals_the_driver_through_its_own_topics(application: Applications, name: str) -> None:
    operation, records, run = application(name, one_by_one=True)
    wanted = emitted(operation, records)
    assert len(wanted) > 10
    home = {row.key: row.partition for row in run.rows}
    for number in (0, 1):
        of_it = [row for row in wanted if home[row[0]] == number]
        assert [tuple(row[:3]) for row in run.rows if row.partition == number] == of_it


@pytest.mark.long
@pytest.mark.parametrize("name", ON_ANOTHER)
def test_our_replay_equals_what_an_application_wrote_that_was_fed_one_by_one(
    application: Applications, replay: Any, name: str
) -> None:
    assert replay[f"{name}, one by one"] == application(name, one_by_one=True).run.rows


@pytest.mark.parametrize("name", ON_ANOTHER)
def test_what_is_left_of_racing_tasks_is_the_same(application: Applications, name: str) -> None:
    operation, records, run = application(name)
    wanted = {key: value for key, value, _ in emitted(operation, records)}
    assert unlike(left(run.rows), wanted) == set()


@pytest.mark.long
@pytest.mark.parametrize("name", ON_ANOTHER)
def test_what_is_left_of_our_replay_is_what_racing_tasks_left(
    application: Applications, replay: Any, name: str
) -> None:
    assert len(replay[name]) > 50
    assert unlike(left(replay[name]), left(application(name).run.rows)) == set()


@pytest.mark.long
def test_compare_tells_equal_and_what_another_history_retention_changes(
    spark: SparkSession, broker: str, tmp_path: Path, application: Applications, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "stream-table, versioned"
    operation, _, run = application(name)
    p = Pipeline(spark, broker, tmp_path, replays.contract({name: (operation, run.prefix)}))
    p.run()
    code, told = compared(p, name, run, capsys)
    assert (code, f"equal{len(run.rows):>17}  in both" in told) == (0, True)
    shorter = {**operation, "table": {**operation["table"], "historyRetentionMs": SECOND}}
    p.write(replays.contract({name: (shorter, run.prefix)}))
    p.run()
    code, told = compared(p, name, run, capsys)
    assert (code, "likely History retention" in told) == (1, True)


def compared(p: Pipeline, name: str, run: oracle.Run, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of `hindcast compare`, and what it prints."""
    capsys.readouterr()
    with p.here():
        code = main.main(["compare", f"{p.name}.{replays.view(name)}", "--topic", f"{run.prefix}output"])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


@pytest.mark.parametrize("name", ON_THE_KEY | ON_ANOTHER)
def test_the_records_are_of_every_kind(name: str) -> None:
    _, records = scenario((ON_THE_KEY | ON_ANOTHER)[name], 150)
    reached: dict[Json, int] = {}
    seen: Counter[str] = Counter()
    met: dict[int, set[str]] = {}
    for record in apart(records):
        topic, time = record["topic"], record["timestamp"]
        place = topic, partition(record["key"])
        seen["tombstone"] += record["value"] is None
        seen["tie"] += time == reached.get(place)
        seen["out of order"] += time < reached.get(place, 0)
        seen["expired"] += time < reached.get(place, 0) - 20 * SECOND
        reached[place] = max(time, reached.get(place, 0))
        met.setdefault(time, set()).add(topic)
    assert {kind for kind in ("tombstone", "tie", "out of order", "expired") if seen[kind] < 10} == set()
    assert {len(topics) for topics in met.values()} == {1}


def left(rows: Sequence[oracle.Row]) -> dict[Json, Json]:
    """The last value of each key."""
    return {row.key: row.value for row in rows}


def unlike(one: Json, other: Json) -> set[Json]:
    """The keys that have different values; a tombstone is as no value."""
    return {key for key in one | other if one.get(key) != other.get(key)}


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
