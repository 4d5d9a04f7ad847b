"""The Avro schemas that a topic's records name, kept beside its log: history needs no schema registry.

| column | type | |
| --- | --- | --- |
| part, id | string, bigint | `key` or `value`, and the schema's id in the registry |
| schema | string | the Avro schema as JSON, complete |
| run, systemFrom | bigint, timestamp | the run that met it first, and its known-at |

One table for each topic whose keys or values are Avro without a schema in the contract. A schema is stored before the
first commit of records that name it, and never changes. One registry for a pipeline's life: ids of another mean others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from hindcast.contracts import Contract, Topic, avro
from hindcast.contracts.formats import form
from hindcast.delta import contents, making, tables
from hindcast.delta.tables import Table
from hindcast.errors import RecordError
from hindcast.formats import columns_of, registry
from hindcast.formats.avro import schema_id
from hindcast.kafka.members import place
from hindcast.planning import planner, plans
from hindcast.planning.plans import Plan
from hindcast.settings import settings

SCHEMA = StructType(
    [
        StructField("part", StringType()),
        StructField("id", LongType()),
        StructField("schema", StringType()),
        StructField("run", LongType()),
        StructField("systemFrom", TimestampType()),
    ]
)


Part = Literal["key", "value"]
PARTS: tuple[Part, ...] = ("key", "value")
Writers = dict[Part, dict[int, str]]
"""Of keys and of values, the schemas by id."""


class Met(NamedTuple):
    """Where a schema is named first: in the key or value of the record at `partition` and `offset`."""

    part: Part
    id: int
    partition: int
    offset: int


def known(spark: SparkSession, contract: Contract, name: str) -> Writers:
    """The schemas that the records of a topic's log name; none for a topic that names none.

    RecordError if a record was accepted whose schema does not fit the contract's columns (any more).
    """
    topic = contract.topics[name]
    if not _naming(topic):
        return {}
    found = _stored(contract, name)
    if found != (fitting := _fitting(topic, found)):
        log = tables.log(settings().warehouse, contract.pipeline, name)
        records = contents.load(spark, log).where("fate IN ('accepted', 'expired')")
        stays = "its records are in the log and stay; under another name the topic's entry is a new table"
        _refuse(contract, name, _met(records, topic), found, stays)
    return fitting


def of(contract: Contract, name: str, records: DataFrame, todo: Plan | None = None) -> Writers:
    """The schemas that these records name, and all that the log's do; new ones from the registry. With `todo`, the run
    that meets them, they are stored.

    `records` has `partition`, `offset`, `key` and `value`, and is read once. An id that the registry does not know is
    left out: such records are malformed. RecordError if a schema does not fit the contract's columns, with the first
    record that names it; then nothing is stored.
    """
    topic = contract.topics[name]
    if not _naming(topic):
        return {}
    met, found = _met(records, topic), _stored(contract, name)
    wanted = {it.id for it in met if it.id not in found[it.part]}
    fetched = registry.fetch(settings(), wanted, f"topic {contract.kafka_topic(name)}")
    new = [it for it in met if it.id in fetched and it.id not in found[it.part]]
    for it in new:
        found[it.part][it.id] = fetched[it.id]
    _refuse(contract, name, met, found, _written(contract, name, todo))
    if new and todo is not None:
        _store(contract, todo, name, {(it.part, it.id): fetched[it.id] for it in new})
    return _fitting(topic, found)


def table(warehouse: str, pipeline: str, topic: str) -> Table:
    """Where the schemas of a topic's records are kept."""
    return Table(warehouse, pipeline, f"schemas/{topic}", "schemas")


def _naming(topic: Topic) -> list[Part]:
    """The parts of a record that name their schema."""
    given = {"key": topic.key_schema, "value": topic.value_schema}
    return [part for part in PARTS if form(topic, part) == "avro" and given[part] is None]


def _met(records: DataFrame, topic: Topic) -> list[Met]:
    """Each schema that records name, where it is named first, of keys and of values; in one pass."""
    named = [F.struct(F.lit(part).alias("part"), schema_id(F.col(part)).alias("id")) for part in _naming(topic)]
    each = records.select("partition", "offset", F.explode(F.array(*named)).alias("_named")).select("*", "_named.*")
    first = each.where("id IS NOT NULL").groupBy("part", "id").agg(F.min(F.struct("partition", "offset")).alias("at"))
    found = [Met(row["part"], row["id"], row["at"]["partition"], row["at"]["offset"]) for row in first.collect()]
    return sorted(found, key=lambda it: (it.partition, it.offset, it.part))


def _refuse(contract: Contract, name: str, met: Iterable[Met], schemas: Writers, written: str) -> None:
    """RecordError for the first record whose schema does not fit the contract's columns; it shows both.

    `written`: what there is of the topic already, in words.
    """
    topic, known = contract.topics[name], plans.known_members(settings().warehouse, contract, name)
    for it in met:
        schema = schemas[it.part].get(it.id)
        problems = _problems(schema, topic, it.part) if schema else []
        if schema and problems:
            raise RecordError(
                f"schema {it.id} of the {it.part} does not fit the contract: {'; '.join(problems)}\n"
                f"  the contract's columns: {avro.told(columns_of(topic, it.part))}\n  the schema's: {_told(schema)}",
                where=f"{place(contract.kafka_topic(name), known, it.partition)}, offset {it.offset}",
                mend=f"make topics.{name}.{it.part} in the contract fit the schema; {written}",
            )


def _written(contract: Contract, name: str, todo: Plan | None) -> str:
    """What a run has written of a topic, in words, when it meets records that it is to write."""
    chunks = todo.topics[name].chunks if todo else []
    log = tables.log(settings().warehouse, contract.pipeline, name)
    done = tables.published(log) - (todo.run - len(chunks)) if todo and chunks else 0
    return planner.stays(settings().warehouse, contract, todo, max(done, 0), len(chunks))


def _fitting(topic: Topic, found: Writers) -> Writers:
    """The schemas that fit the contract's columns."""
    return {
        part: {id_: schema for id_, schema in of.items() if not _problems(schema, topic, part)}
        for part, of in found.items()
    }


def _problems(schema: str, topic: Topic, part: Part) -> list[str]:
    try:
        return list(avro.unfit(avro.written(json.loads(schema)), columns_of(topic, part), topic.renamed))
    except avro.SchemaError as error:
        return [f"it {error}"]


def _told(schema: str) -> str:
    try:
        written = avro.written(json.loads(schema))
    except avro.SchemaError:
        return schema
    return avro.told(written.fields) if isinstance(written, avro.Record) else str(written)


def _stored(contract: Contract, name: str) -> Writers:
    found = tables.opened(table(settings().warehouse, contract.pipeline, name))
    rows = contents.dataset(found).to_table(columns=["part", "id", "schema"]).to_pylist() if found else []
    return {part: {row["id"]: row["schema"] for row in rows if row["part"] == part} for part in PARTS}


def _store(contract: Contract, todo: Plan, name: str, new: Mapping[tuple[Part, int], str]) -> None:
    place = table(settings().warehouse, contract.pipeline, name)
    told = {"run": todo.run, "systemFrom": todo.known_at}
    rows = [{"part": part, "id": id_, "schema": schema, **told} for (part, id_), schema in new.items()]
    found = making.ensure(place, SCHEMA)
    try:
        write_deltalake(found, pa.Table.from_pylist(rows, schema=making.arrow_schema(SCHEMA)), mode="append")
    except (DeltaError, OSError) as error:
        raise making.unwritten(error, place.path) from None
