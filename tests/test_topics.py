"""What a real broker says: which offsets there are, and where an interval ends."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from hindcast.common.errors import TopicError
from hindcast.kafka import access_errors, json_lines, produce
from hindcast.kafka import cluster as cluster_module
from hindcast.kafka.cluster import Cluster, millis
from hindcast.kafka.topics import OffsetRange
from hindcast_local import ports

T0 = datetime(2026, 1, 1, tzinfo=UTC)
TOMORROW = T0 + timedelta(days=1)
Y2099 = datetime(2099, 1, 1, tzinfo=UTC)
_numbers = itertools.count(1)


def filled(broker: str, *moments: datetime, partitions: int = 1) -> str:
    """A new topic with one record dated each moment, all of one key."""
    name = f"topics.{next(_numbers)}"
    produce.create_topics(broker, name, partitions=partitions)
    produce.send_records(broker, name, [produce.ProducerRecord(b"k", b"{}", moment) for moment in moments])
    return name


def after(**of: float) -> datetime:
    return T0 + timedelta(**of)


@pytest.mark.parametrize(
    ("rule", "dated", "asked", "hit"),
    [
        ("the first record dated at the moment", [after(seconds=n) for n in (1, 2, 3)], after(seconds=2), 1),
        ("or after it", [after(seconds=n) for n in (1, 3)], after(seconds=2), 1),
        ("none is dated so late", [after(seconds=n) for n in (1, 2)], after(seconds=3), None),
        ("an empty topic has none", [], T0, None),
        ("late records behind it do not matter", [after(seconds=n) for n in (1, 3, 2)], after(seconds=2), 1),
        ("one dated 2099 is passed over", [after(seconds=1), Y2099, after(seconds=2)], after(seconds=2), 2),
        ("also where it is the last", [after(seconds=1), Y2099], after(seconds=2), None),
        (
            "what lies behind it but before the moment too",
            [Y2099, after(seconds=1), after(seconds=3)],
            after(seconds=2),
            2,
        ),
        ("the latest believed moment is believed", [TOMORROW], after(seconds=2), 0),
        ("one millisecond after it is not", [TOMORROW + timedelta(milliseconds=1)], after(seconds=2), None),
        ("a moment within a millisecond", [after(milliseconds=1), after(milliseconds=2)], after(microseconds=1001), 1),
    ],
)
def test_where_an_interval_ends(
    broker: str, rule: str, dated: list[datetime], asked: datetime, hit: int | None
) -> None:
    with Cluster(broker) as cluster:
        assert cluster.find_offsets_for_time(filled(broker, *dated), asked, TOMORROW) == {0: hit}, rule


def test_each_partition_has_its_own_offsets_and_bound(broker: str) -> None:
    name = filled(broker, after(seconds=1), after(seconds=5), partitions=3)
    with Cluster(broker) as cluster:
        available, bound = (
            cluster.read_offset_ranges(name),
            cluster.find_offsets_for_time(name, after(seconds=2), TOMORROW),
        )
    assert sorted(available.values()) == [(0, 0), (0, 0), (0, 2)]
    assert {p: bound[p] for p, offsets in available.items() if offsets.end} == {
        p: 1 for p, offsets in available.items() if offsets.end
    }
    assert [bound[p] for p, offsets in available.items() if not offsets.end] == [None, None]


def test_a_topic_made_anew_has_another_id(broker: str) -> None:
    name = filled(broker, T0)
    with Cluster(broker) as cluster:
        first = cluster.topic_id(name)
        assert cluster.topic_id(name) == first
        cluster._admin.delete_topics([name])[name].result(20)
        produce.create_topics(broker, name)
        for _ in range(50):
            with contextlib.suppress(TopicError):  # the broker learns of it a moment after its controller
                assert cluster.topic_id(name) != first
                return
            time.sleep(0.1)
    pytest.fail("the topic did not come back")


@pytest.mark.parametrize("question", ["read_offset_ranges", "topic_id", "find_offsets_for_time"])
def test_a_topic_that_is_not_there(broker: str, question: str) -> None:
    arguments = ("nowhere", T0, T0) if question == "find_offsets_for_time" else ("nowhere",)
    with Cluster(broker) as cluster, pytest.raises(TopicError, match="the topic does not exist") as caught:
        getattr(cluster, question)(*arguments)
    assert caught.value.where == f"{broker}, topic nowhere"
    assert "create it, or name the right one in the contract" in caught.value.fix


def test_a_broker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "TIMEOUT", 1.0)
    nowhere = f"127.0.0.1:{ports.find_free_port()}"
    with Cluster(nowhere) as cluster, pytest.raises(TopicError, match="no Kafka broker answers") as caught:
        cluster.read_offset_ranges("menu")
    assert caught.value.where == f"{nowhere}, topic menu"
    assert "make up" in caught.value.fix
    assert "HINDCAST_KAFKA" in caught.value.fix


def test_producing_to_a_broker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "TIMEOUT", 1.0)
    with pytest.raises(TopicError, match=r"fail|time|transport|Local") as caught:
        produce.create_topics(f"127.0.0.1:{ports.find_free_port()}", "menu")
    assert "make up" in caught.value.fix


def test_making_a_topic_that_is_there_changes_nothing(broker: str) -> None:
    name = filled(broker, T0)
    produce.create_topics(broker, name, partitions=4)
    with Cluster(broker) as cluster:
        assert cluster.read_offset_ranges(name) == {0: OffsetRange(0, 1)}


def test_lines_are_records(tmp_path: Path) -> None:
    path = tmp_path / "menu.jsonl"
    path.write_text(
        '{"key": "curry", "value": {"price": 8}, "timestamp": "2026-01-01T00:00:00Z"}\n'
        "\n"
        '{"key": {"row": 1}, "value": null, "timestamp": "2026-01-01 02:00:00"}\n'
        '{"key": null, "value": "as it is"}\n'
        '{"key_base64": "AAAAKg==", "value_base64": "/w==", "timestamp": null}\n'
        '{"key": "a", "value": 1, "timestamp": 1767225600000, "headers": {"by": "ann", "no": null}}\n'
        '{"key": "a", "value": 1, "timestamp": -5, "headers": [["by", "a"], ["by", {"base64": "/w=="}]]}\n',
        encoding="utf-8",
    )
    assert list(json_lines.read_records(path)) == [
        produce.ProducerRecord(b"curry", b'{"price": 8}', T0),
        produce.ProducerRecord(b'{"row": 1}', None, after(hours=2)),
        produce.ProducerRecord(None, b"as it is", None),
        produce.ProducerRecord(b"\0\0\0*", b"\xff", -1),
        produce.ProducerRecord(b"a", b"1", 1_767_225_600_000, (("by", "ann"), ("no", None))),
        produce.ProducerRecord(b"a", b"1", -5, (("by", "a"), ("by", b"\xff"))),
    ]


@pytest.mark.parametrize(
    ("line", "found", "fix"),
    [
        (b"curry", "it is not valid JSON from character 1 on", '{"key": "curry"'),
        (b'{"key": 1,', "it is not valid JSON from character 11 on", "on one line"),
        (b'{"key": "\xff"}', "it is not UTF-8", "key_base64"),
        (b"[" * 100_000, "beyond what can be read", "value_base64"),
        (b'{"key": 1, "value": ' + b"1" * 5_000 + b"}", "beyond what can be read", "value_base64"),
        (b"[]", "it is a list, not an object", '{"key": "curry"'),
        (b"{}", "no key", "null for none"),
        (b'{"key": 1}', "no value", "value_base64"),
        (b'{"key": 1, "key_base64": "", "value": 2}', "both key and key_base64", "one of them"),
        (b'{"key_base64": "AAA", "value": 2}', 'key_base64 is not base64: "AAA"', "padding"),
        (b'{"key_base64": 7, "value": 2}', "key_base64 is not base64: 7", "padding"),
        (b'{"key": "\\ud83d", "value": 2}', "the key has half a character", "key_base64"),
        (b'{"key": 1, "value": 2, "timestamp": "noon"}', 'timestamp is not a valid time: "noon"', "milliseconds"),
        (b'{"key": 1, "value": 2, "timestamp": 1.5}', "timestamp is not a valid time: 1.5", "milliseconds"),
        (b'{"key": 1, "value": 2, "timestamp": true}', "timestamp is not a valid time: true", "null for none"),
        (b'{"key": 1, "value": 2, "timestmap": "noon"}', "unknown field 'timestmap'", "did you mean 'timestamp'?"),
        (b'{"key": 1, "value": 2, "headers": "by"}', "headers are a text, not an object", '{"origin": "shop"}'),
        (b'{"key": 1, "value": 2, "headers": {"by": 1}}', 'not ["by", 1]', '{"origin": "shop"}'),
    ],
)
def test_a_line_that_is_no_record(tmp_path: Path, line: bytes, found: str, fix: str) -> None:
    path = tmp_path / "menu.jsonl"
    path.write_bytes(b'{"key": 1, "value": 2}\n' + line + b"\n")
    with pytest.raises(TopicError, match="is not a record") as caught:
        list(json_lines.read_records(path))
    assert caught.value.where == f"{path}:2"
    assert (found in caught.value.found, fix in caught.value.fix) == (True, True), str(caught.value)


def test_bytes_headers_and_no_timestamp_are_sent_as_they_are(broker: str) -> None:
    produce.create_topics(broker, "topics.lines")
    sent = [
        produce.ProducerRecord(b"\xff", None, -1, (("by", b"\xff"), ("by", "ann"))),
        produce.ProducerRecord(None, b"", 5),
    ]
    assert produce.send_records(broker, "topics.lines", sent) == 2
    with Cluster(broker) as cluster:
        [found] = cluster.read_committed_records("topics.lines", {0: OffsetRange(0, 2)})
    assert [(it.key(), it.value(), it.timestamp()[1], it.headers()) for it in found] == [
        (b"\xff", None, -1, [("by", b"\xff"), ("by", b"ann")]),
        (None, b"", 5, None),
    ]
    with pytest.raises(TopicError, match=r"record 2 was not accepted: .*those before it were"):
        produce.send_records(
            broker,
            "topics.lines",
            [produce.ProducerRecord(b"a", b"", None), produce.ProducerRecord(b"a", b"x" * 2**21, None)],
        )


class Sent(NamedTuple):
    """A message of a broker, as its client has it."""

    its_partition: int
    its_offset: int

    def partition(self) -> int:
        return self.its_partition

    def offset(self) -> int:
        return self.its_offset

    def error(self) -> None:
        return None


def read_fake(monkeypatch: pytest.MonkeyPatch, polls: Iterable[list[Sent]]) -> Iterator[list[Any]]:
    """The records of 2 of partition 0, and 2 of partition 1, if polling takes 5 s each time, and using them 60 s."""
    clock, came = itertools.count(0, 5), iter(polls)
    spent = [0.0]
    cluster = Cluster.__new__(Cluster)
    cluster.servers = "broker:9092"
    monkeypatch.setattr(cluster, "has_topic", lambda _: True)
    monkeypatch.setattr(cluster, "read_offset_ranges", lambda _: dict.fromkeys((0, 1), OffsetRange(0, 2)))
    known = {"assign": lambda _: None, "unassign": lambda: None, "list_topics": lambda *_: None}
    consumer = SimpleNamespace(**known)
    monkeypatch.setattr(cluster, "_consumer", consumer, raising=False)
    monkeypatch.setattr(cluster, "_ask", lambda question, *_: question())
    monkeypatch.setattr(cluster, "_poll_messages", lambda: (next(came), []))
    monkeypatch.setattr(cluster_module, "time", SimpleNamespace(monotonic=lambda: next(clock) + spent[0]))
    for records in cluster.read_committed_records("menu", {0: OffsetRange(0, 2), 1: OffsetRange(0, 2)}):
        yield records
        spent[0] += 60


def test_a_partition_that_sends_nothing_is_missed_while_others_send_more(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = ([Sent(0, n)] for n in range(100))
    with pytest.raises(TopicError, match="the broker sends no records") as caught:
        list(read_fake(monkeypatch, polls))
    assert caught.value.where == "broker:9092, topic menu, partition 1"
    assert 5 < next(polls)[0].its_offset < 20


def test_time_that_a_reader_takes_is_not_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = [[Sent(0, 0)], [], [Sent(1, 0)], [], [Sent(0, 1), Sent(0, 2)], [], [Sent(1, 1)]]
    came = [record for records in read_fake(monkeypatch, polls) for record in records]
    assert came == [Sent(0, 0), Sent(1, 0), Sent(0, 1), Sent(1, 1)]


def test_milliseconds_are_exact() -> None:
    for n in range(1_356_998_400_000, 1_356_998_400_000 + 10**9, 999_983):
        assert millis(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=n)) == n


def test_the_epoch_itself_cannot_be_sent(broker: str) -> None:
    with pytest.raises(TopicError, match="cannot send a record dated 1970"):
        filled(broker, datetime(1970, 1, 1, tzinfo=UTC))


def test_greeting_a_broker_takes_no_record(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, greet = filled(broker, *(after(seconds=n) for n in range(3))), access_errors.await_broker

    def slowly(client: Any, *rest: Any) -> None:
        greet(client, *rest)
        client.poll(1)

    monkeypatch.setattr(access_errors, "await_broker", slowly)
    with Cluster(broker) as cluster:
        came = [
            message.offset()
            for some in cluster.read_committed_records(name, {0: OffsetRange(0, 3)})
            for message in some
        ]
    assert came == [0, 1, 2]
