"""Which records are to be forgotten: those of a key, or some by their places; and what they said."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import read
from hindcast.contracts import Contract
from hindcast.delta import contents, tables
from hindcast.errors import AskedError, QueryError, nearest
from hindcast.formats.decode import decode
from hindcast.planning.inputs import located
from hindcast.replay import base, forgotten, schemas
from hindcast.settings import settings
from hindcast.upkeep.forgetting.lineage import PLACE
from hindcast.upkeep.forgetting.texts import Texts, strings


@dataclass(frozen=True)
class Asked:
    """What is to be forgotten of a topic: a `key` (its columns' values), or `places` (partition and offset in its log).

    `text`: as it was asked for, never stored.
    """

    topic: str
    text: str
    key: tuple[Any, ...] = ()
    places: tuple[tuple[int, int], ...] = ()

    def digest(self, spark: SparkSession, contract: Contract) -> str:
        """What tells it apart, in the journal and in the proof. QueryError for a key that the topic cannot have."""
        if self.places:
            return sha256(json.dumps([self.topic, self.places]).encode()).hexdigest()
        types = contract.topics[self.topic].key
        typed = {c: _typed(str(types[c]), value) for c, value in zip(types, self.key, strict=True)}
        key = F.struct(*(value.alias(c) for c, value in typed.items()))
        row = spark.range(1).select(forgotten.digest(self.topic, key), *typed.values()).first()
        if row is None or any(it is None and value is not None for it, value in zip(row[1:], self.key, strict=True)):
            columns = ", ".join(f"{c} {kind}" for c, kind in types.items())
            raise QueryError("no key of it can be written so", where=f"{contract.pipeline}.{self.topic}", mend=columns)
        return str(row[0])


_RECORD = "partition int, offset bigint, topic string, topicPartition int, said array<string>"


def asked(contract: Contract, name: str, key: str | None, places: Sequence[str] = ()) -> Asked:
    """What a user asks for; QueryError for what names nothing.

    `name`: a topic of the contract. `key`: as `read.key_of` takes it. `places`: texts as `partition/offset`.
    """
    if name in contract.views or name in contract.inputs:
        made_of = [i for i in contract.upstream(name) if i in contract.topics]
        found = f"{name} is made of others; what is to be forgotten is a key of a topic"
        raise QueryError(
            found, where=contract.pipeline, mend=f"name the topic: {', '.join(made_of) or 'of its pipeline'}"
        )
    if name not in contract.topics:
        raise QueryError(f"no topic '{name}'", where=contract.pipeline, mend=nearest(name, contract.topics))
    if (key is None) == (not places):
        given = "both a key and places were given" if places else "neither a key nor places were given"
        raise QueryError(given, mend="hindcast forget PIPELINE.TOPIC --key K, or --offset P/O")
    if key is None:
        return Asked(name, " ".join(sorted(places)), places=tuple(sorted(_place(text) for text in places)))
    table = located(contract, name)
    return Asked(name, key, key=tuple(read.key_of(table, key)))


def records(spark: SparkSession, contract: Contract, what: Asked, marked: set[int]) -> DataFrame:
    """The records that are to be forgotten, or were by one of these runs, as the log has them; and what they `said`.

    Columns: partition, offset; topic and topicPartition, the place in Kafka; said (JSON and texts).
    """
    name, topic = what.topic, contract.topics[what.topic]
    log = tables.log(settings().warehouse, contract.pipeline, name)
    if tables.opened(log) is None:
        if tables.opened(located(contract, name)) is None:
            raise AskedError("nothing of it has been replayed", where=f"{contract.pipeline}.{name}")
        return spark.createDataFrame([], _RECORD)  # its table was adopted
    rows = contents.load(spark, log)
    raw = {"_rawKey": F.col("key"), "_rawValue": F.col("value")}
    decoded = decode(rows.withColumns(raw), topic, writers=schemas.known(spark, contract, name))
    if what.places:
        wanted = reduce(Column.__or__, ((F.col("partition") == p) & (F.col("offset") == o) for p, o in what.places))
    else:
        ours = F.col("key").isNotNull() & _of_key(contract, what, "key.")
        spelt = decoded.where(ours).select("_rawKey").distinct().collect()
        ways = {bytes(row[0]) for row in spelt if row[0] is not None} | {what.text.encode()}
        wanted = ours | F.col("_rawKey").isin(*(F.lit(way) for way in ways))
    before = forgotten.is_forgotten(rows)
    was = F.col(forgotten.MARK).isin(*marked) if marked and forgotten.MARK in rows.columns else F.lit(False)
    there = {"topic": F.lit(contract.kafka_topic(name)), "topicPartition": F.col("partition")}
    there = {} if "topicPartition" in rows.columns else there
    said = [F.to_json("key"), F.to_json("value"), *(F.make_valid_utf8(F.col(c).cast("string")) for c in raw)]
    if "headers" in rows.columns:
        texts = F.transform("headers", lambda it: F.make_valid_utf8(it.getField("value").cast("string")))
        said.append(F.to_json(texts))
    places = decoded.where((~before & F.coalesce(wanted, F.lit(False))) | was).withColumns(there)
    return places.select("partition", "offset", "topic", "topicPartition", F.array(*said).alias("said"))


def gone(contract: Contract, what: Asked) -> Column:
    """The rows of the topic's own table that go."""
    if what.places:
        return reduce(Column.__or__, ((F.col(PLACE[0]) == p) & (F.col(PLACE[1]) == o) for p, o in what.places))
    return _of_key(contract, what)


def adopted(spark: SparkSession, contract: Contract, what: Asked) -> DataFrame | None:
    """The records of the topic's base (base.py) that are to be forgotten; None if it has none, or they have places."""
    it = base.table(settings().warehouse, contract.pipeline, what.topic)
    if what.places or tables.opened(it) is None:
        return None
    return contents.load(spark, it).where(_of_key(contract, what, "key."))


def _of_key(contract: Contract, what: Asked, struct: str = "") -> Column:
    """Whether columns are those of the key; they may be fields of a struct."""
    types = contract.topics[what.topic].key
    keys = zip(types, what.key, strict=True)
    return reduce(Column.__and__, (F.col(f"{struct}`{c}`").eqNullSafe(_typed(str(types[c]), v)) for c, v in keys))


def _typed(kind: str, value: Any) -> Column:
    return F.lit(value).try_cast(kind)


def texts(contract: Contract, what: Asked, records: DataFrame, adopted: DataFrame | None) -> Texts:
    """All texts that the records of log and base said, and the key."""
    keys = {str(value) for value in what.key if value is not None}
    told = records.select("said")
    if adopted is not None:
        told = told.unionByName(adopted.select(F.array(F.to_json("key"), F.to_json("value")).alias("said")))
    said = {it for row in told.collect() for text in row[0] if text for it in strings(text)}
    below = contract.below(what.topic)
    return Texts(frozenset(keys), frozenset(said | keys), below)


def _place(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,18})", text)
    if found is None:
        raise QueryError(f"'{text}' is no place", mend="write the partition and the offset: 0/42")
    return int(found[1]), int(found[2])
