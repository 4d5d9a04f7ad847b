"""Right to erasure: a key, or a record, goes from everything that a pipeline has, and the ledger stays whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast import ledger
from hindcast.upkeep import forget
from pipelines import Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: town
start: 2026-01-01
topics:
  people:
    read: table
    key: {id: string}
    value: {name: string, city: string, age: int}
    history_retention: 100 seconds
    max_malformed: 5
    expect:
      - expect_column_values_to_be_between: {column: age, max_value: 150}
        on_failure: quarantine
  jobs: {read: table, key: {id: string}, value: {job: string}}
  pets: {read: table, key: {pet: string}, value: {owner: string, kind: string}}
  visits: {read: stream, key: {visitor: string}, value: {host: string, gift: string}}
  calls: {read: stream, key: {visitor: string}, value: {words: string}}
views:
  met: {stream: visits, join: {table: people, on: host, how: left}, select: {gift: gift, name: name}}
  gifts: {stream: met, where: gift <> 'none', select: {gift: gift, name: name}}
  named: {table: people, where: age > 1, select: {name: upper(name)}, key: {id: id, city: city}}
  work: {table: people, join: {table: jobs, how: outer}, select: {name: name, job: job}}
  owned: {table: pets, join: {table: people, on: owner}, select: {kind: kind, name: name}}
  cities: {table: people, group_by: {city: city}, aggregate: {n: count(*), ages: sum(age)}}
  first: {table: people, group_by: {city: city}, aggregate: {least: min(name)}}
  hosts: {stream: visits, aggregate: {n: count(*), best: max(gift)}, window: {tumbling: 10 seconds}}
  told: {stream: visits, join: {stream: calls, before: 10 seconds, after: 10 seconds}, select: {gift: gift, words: words}}
  said: {stream: visits, join: {table: people, on: host}, select: {gift: gift, name: name}, semantics: kafka}
  often: {table: people, group_by: {city: city}, aggregate: {n: count(*)}, semantics: kafka}
"""

ANN = "ann-7f3a"
SECRETS = (ANN, "Ann Marker", "Markerville", "Old Markerton", "marked malformed", "too old a marker", "Marker Held")
"""What Ann's records say, and nobody else's."""

FIRST: dict[str, list[Any]] = {
    "people": [
        (ANN, {"name": "Ann Marker", "city": "Old Markerton", "age": 30}, 0),
        ("bob", {"name": "Bob Baker", "city": "Rome", "age": 40}, 0),
        ("cyd", {"name": "Cyd Cook", "city": "Rome", "age": 50}, 0),
        (ANN, {"name": "Ann Marker", "city": "Rome", "age": 31}, 10),
        (ANN, b'{"name": "marked malformed", ', 11),
    ],
    "jobs": [("bob", {"job": "baker"}, 0), ("cyd", {"job": "cook"}, 5)],
    "pets": [("rex", {"owner": ANN, "kind": "dog"}, 1), ("tom", {"owner": "bob", "kind": "cat"}, 1)],
    "visits": [
        ("bob", {"host": ANN, "gift": "wine from Bob"}, 5),
        ("cyd", {"host": "bob", "gift": "bread of Cyd"}, 6),
        ("bob", {"host": ANN, "gift": "more wine of Bob"}, 12),
    ],
    "calls": [("bob", {"words": "hello there"}, 7)],
}
SECOND: dict[str, list[Any]] = {
    "people": [
        (ANN, {"name": "Ann Marker", "city": "Markerville", "age": 32}, 4),
        ("bob", {"name": "Bob Baker", "city": "Paris", "age": 41}, 150),
        (ANN, {"name": "too old a marker", "city": "Rome", "age": 33}, 20),
        (ANN, {"name": "Marker Held", "city": "Rome", "age": 999}, 160),
    ],
    "jobs": [(ANN, {"job": "a judge"}, 3)],
    "pets": [("rex", {"owner": "cyd", "kind": "dog"}, 20)],
    "visits": [("cyd", {"host": ANN, "gift": "flowers of Cyd"}, 30)],
    "calls": [],
}


def brought(p: Pipeline) -> None:
    for records in (FIRST, SECOND):
        for topic, sent in records.items():
            if sent:
                p.send(topic, *sent)
        p.run()


def forgotten(p: Pipeline, topic: str, key: str | None = None, *places: str) -> dict[str, Any]:
    assert p.spark is not None
    return forget.forget(p.spark, p.contract, forget.asked(p.contract, topic, key, places))


def containing(folder: Path, text: str) -> list[str]:
    """The files whose bytes have a text."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


@pytest.mark.long
def test_a_key_is_forgotten_everywhere_and_the_ledger_stays_whole(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        brought(p)
        before = ledger.fates(p.warehouse, p.name).to_pylist()
        histories = {name: p.history(name) for name in (*p.contract.topics, *p.contract.views)}
        assert containing(tmp_path / "warehouse", ANN)
        told = forgotten(p, "people", ANN)
        print(json.dumps(told, indent=2))
        for name, was in histories.items():
            print(name)
            for row in was:
                print("   was ", row)
            for row in p.history(name):
                print("   is  ", row)
        assert told["proven"]
        after = ledger.fates(p.warehouse, p.name).to_pylist()
        assert after[: len(before)] == before
