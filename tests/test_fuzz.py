"""Decoding is fuzzed: whatever is sent, there is one fate; what is taken is what an independent oracle reads."""

from __future__ import annotations

import json
import os
import random
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from fuzz import COLUMNS, Refused, mutated, oracle
from hindcast.contract import Topic
from hindcast.formats.spark_decoding import decode_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENTS = Topic.model_validate({"read": "stream", "key": {"id": "string"}, "value": COLUMNS})
KEYED = Topic.model_validate({"read": "table", "key": COLUMNS, "value": {"n": "int"}})


_VERY_LONG = re.compile(rb'"[de]": ?-?(?:[1-9][0-9.]{39}|0\.[0-9]{39}|[0-9][0-9.]{15,}[eE])|[0-9.]{1001}')


def judged(spark: SparkSession, sent: list[bytes], part: str) -> list[tuple[str | None, dict[str, Any] | None]]:
    """The fate of each record, and its columns."""
    other = b'{"n": 1}'
    rows = [(n, NOON, it if part == "key" else b"k", it if part == "value" else other) for n, it in enumerate(sent)]
    frame = spark.createDataFrame(rows, "n int, timestamp timestamp, key binary, value binary").repartition(2)
    topic = KEYED if part == "key" else EVENTS
    read = decode_records(frame, topic, NOON)
    found = sorted(read.collect(), key=lambda row: int(row.n))
    assert [row.n for row in found] == list(range(len(sent))), "each record once"
    return [(row.fate, row[part] and row[part].asDict()) for row in found]


def same(column: str, ours: Any, theirs: Any) -> bool:
    """Whether a column has what the oracle says; of a text in place of which stands another value, that value."""
    if column == "text" and ours is not None and not isinstance(theirs, str):
        return bool(_plain(json.loads(ours)) == _plain(theirs))
    if isinstance(ours, datetime):
        return bool(ours.replace(tzinfo=UTC) == theirs)
    return type(ours) in (type(theirs), bytearray) and bool(ours == theirs)


def _plain(value: Any) -> Any:
    """A JSON value with numbers as doubles; half of what a text says of numbers is how they are written."""
    if isinstance(value, dict):
        return {name: _plain(it) for name, it in value.items()}
    if isinstance(value, list):
        return [_plain(it) for it in value]
    if isinstance(value, bool) or value is None:
        return value
    try:
        return float(value)
    except ValueError:
        return value


def tried(spark: SparkSession, seed: int, records: int, part: str) -> tuple[int, list[str]]:
    """How many records were accepted, and of which the oracle says another thing."""
    rng = random.Random(seed)  # noqa: S311  # it is to be repeated
    sent = [mutated(rng) for _ in range(records)]
    accepted, wrong = 0, []
    for raw, (fate, found) in zip(sent, judged(spark, sent, part), strict=True):
        try:
            wanted = oracle(raw)
        except Refused:
            if fate != "malformed":
                wrong.append(f"taken, and is none: {raw!r}")
            continue
        if fate == "malformed":
            if not cautious(raw):
                wrong.append(f"refused, and is one: {raw!r}")
            continue
        accepted += 1
        assert fate is None
        assert found is not None
        other = {c: (found[c], wanted[c]) for c in COLUMNS if not same(c, found[c], wanted[c])}
        if other:
            wrong.append(f"{other}: {raw!r}")
    return accepted, wrong


def cautious(raw: bytes) -> bool:
    """Whether a record may be refused though it is one: a long number beside a repeated field, or a very long one."""
    pairs = json.loads(raw, object_pairs_hook=lambda it: it)
    twice = len({name for name, _ in pairs}) < len(pairs)
    return (twice and re.search(rb"[0-9.]{16}", raw) is not None) or _VERY_LONG.search(raw) is not None


@pytest.mark.parametrize("part", ["value", "key"])
def test_what_is_taken_is_what_the_oracle_reads(spark: SparkSession, part: str) -> None:
    accepted, wrong = tried(spark, seed=9, records=1_000, part=part)
    assert wrong == []
    assert accepted > 150


@pytest.mark.long
def test_much_of_what_is_taken_is_what_the_oracle_reads(spark: SparkSession) -> None:
    seeds = range(int(os.environ.get("HINDCAST_SEEDS", "10")))
    for seed in seeds:
        for part in ("value", "key"):
            accepted, wrong = tried(spark, 100 + seed, records=20_000, part=part)
            assert wrong == [], seed
            assert accepted > 4_000
