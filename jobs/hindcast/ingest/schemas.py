"""The Avro schemas that a topic's records name, kept beside its log: history needs no schema registry.

| column | type | |
| --- | --- | --- |
| part, id | string, bigint | `key` or `value`, and the schema's id in the registry |
| schema | string | the Avro schema as JSON, complete |
| run, systemFrom | bigint, timestamp | the run that first met it, and its known-at |

One table for each topic whose keys or values are Avro without a schema in the contract. A schema is stored before the
first commit of records that name it, and never changes. A pipeline keeps its registry for life: another's ids differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from hindcast.common.errors import RecordError
from hindcast.contract import Topic, avro, avro_compatibility
from hindcast.contract.bound import BoundContract
from hindcast.contract.formats import part_format
from hindcast.formats import parsed_columns, registry
from hindcast.formats.avro import schema_id
from hindcast.formats.record_part import PartName
from hindcast.kafka.topic_patterns import describe_partition
from hindcast.plan import journal, planner
from hindcast.plan.plans import Plan
from hindcast.store import row_reader, table_creation, tables
from hindcast.store.tables import Table

SCHEMA = StructType(
    [
        StructField("part", StringType()),
        StructField("id", LongType()),
        StructField("schema", StringType()),
        StructField("run", LongType()),
        StructField("systemFrom", TimestampType()),
    ]
)


PARTS: tuple[PartName, ...] = ("key", "value")
SchemasById = dict[PartName, dict[int, str]]
"""The schemas of keys and of values, by id."""


class SchemaUse(NamedTuple):
    """The first use of a schema: in the key or value of the record at `partition` and `offset`."""

    part: PartName
    id: int
    partition: int
    offset: int


def read_schemas(spark: SparkSession, contract: BoundContract, name: str) -> SchemasById:
    """Return the schemas that the records of a topic's log name; none for a topic without such schemas.

    Raises RecordError if a record was accepted whose schema does not fit, or no longer fits, the contract's columns.
    """
    topic = contract.topics[name]
    if not list_parts_with_ids(topic):
        return {}
    stored = _read_stored(contract, name)
    if stored != (fitting := _select_fitting(topic, stored)):
        log = tables.log_table(contract.warehouse, contract.pipeline, name)
        records = row_reader.load_rows(spark, log).where("fate IN ('accepted', 'expired')")
        stays = "its records are in the log and stay; under another name the topic's entry is a new table"
        _refuse_misfits(contract, name, _find_schema_uses(records, topic), stored, stays)
    return fitting


def resolve_schemas(contract: BoundContract, name: str, records: DataFrame, plan: Plan | None = None) -> SchemasById:
    """Return the schemas that these records and the log's name, with new ones fetched from the registry.

    `records`: partition, offset, key and value; read once. With `plan`, of the run that meets them, new schemas are
    stored. Ids that the registry does not know are left out: such records are malformed. Raises RecordError, before
    storing anything, if a schema does not fit the contract's columns; it shows the first record that names it.
    """
    topic = contract.topics[name]
    if not list_parts_with_ids(topic):
        return {}
    uses, schemas_by_id = _find_schema_uses(records, topic), _read_stored(contract, name)
    missing = {use.id for use in uses if use.id not in schemas_by_id[use.part]}
    fetched = registry.fetch_schemas(contract.settings, missing, f"topic {contract.kafka_topic(name)}")
    new = [use for use in uses if use.id in fetched and use.id not in schemas_by_id[use.part]]
    for use in new:
        schemas_by_id[use.part][use.id] = fetched[use.id]
    _refuse_misfits(contract, name, uses, schemas_by_id, _describe_written(contract, name, plan))
    if new and plan is not None:
        _store_schemas(contract, plan, name, {(use.part, use.id): fetched[use.id] for use in new})
    return _select_fitting(topic, schemas_by_id)


def schemas_table(warehouse: str, pipeline: str, topic: str) -> Table:
    """Return the table of the schemas of a topic's records."""
    return Table(warehouse, pipeline, f"schemas/{topic}", "schemas")


def list_parts_with_ids(topic: Topic) -> list[PartName]:
    """Return the parts of a record that name their schema."""
    given = {"key": topic.key_schema, "value": topic.value_schema}
    return [part for part in PARTS if part_format(topic, part) == "avro" and given[part] is None]


def _find_schema_uses(records: DataFrame, topic: Topic) -> list[SchemaUse]:
    """Return the first use of each schema in keys and in values; in one pass."""
    named = [
        F.struct(F.lit(part).alias("part"), schema_id(F.col(part)).alias("id")) for part in list_parts_with_ids(topic)
    ]
    each = records.select("partition", "offset", F.explode(F.array(*named)).alias("_named")).select("*", "_named.*")
    first = each.where("id IS NOT NULL").groupBy("part", "id").agg(F.min(F.struct("partition", "offset")).alias("at"))
    uses = [SchemaUse(row["part"], row["id"], row["at"]["partition"], row["at"]["offset"]) for row in first.collect()]
    return sorted(uses, key=lambda use: (use.partition, use.offset, use.part))


def _refuse_misfits(
    contract: BoundContract, name: str, uses: Iterable[SchemaUse], schemas: SchemasById, written: str
) -> None:
    """Raise RecordError for the first record whose schema does not fit the contract's columns; it shows both.

    `written`: what has been written of the topic already, in words.
    """
    topic, known = contract.topics[name], journal.read_members(contract.warehouse, contract, name)
    for use in uses:
        schema = schemas[use.part].get(use.id)
        problems = _find_problems(schema, topic, use.part) if schema else []
        if schema and problems:
            raise RecordError(
                f"schema {use.id} of the {use.part} does not fit the contract: {'; '.join(problems)}\n"
                f"  the contract's columns: {avro.format_columns(parsed_columns(topic, use.part))}\n  the "
                f"schema's: {_format_schema(schema)}",
                where=f"{describe_partition(contract.kafka_topic(name), known, use.partition)}, offset {use.offset}",
                fix=f"make topics.{name}.{use.part} in the contract fit the schema; {written}",
            )


def _describe_written(contract: BoundContract, name: str, plan: Plan | None) -> str:
    """Return what a run has written of a topic before the records at hand, in words."""
    chunks = plan.topics[name].chunks if plan else []
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    done = tables.read_last_run(log) - (plan.run - len(chunks)) if plan and chunks else 0
    return planner.describe_written(contract.warehouse, contract, plan, max(done, 0), len(chunks))


def _select_fitting(topic: Topic, stored: SchemasById) -> SchemasById:
    """Return the schemas that fit the contract's columns."""
    return {
        part: {id_: schema for id_, schema in schemas.items() if not _find_problems(schema, topic, part)}
        for part, schemas in stored.items()
    }


def _find_problems(schema: str, topic: Topic, part: PartName) -> list[str]:
    try:
        return list(
            avro_compatibility.check_columns(
                avro.parse_schema(json.loads(schema)), parsed_columns(topic, part), topic.renamed
            )
        )
    except avro.SchemaError as error:
        return [f"it {error}"]


def _format_schema(schema: str) -> str:
    try:
        written = avro.parse_schema(json.loads(schema))
    except avro.SchemaError:
        return schema
    return avro.format_columns(written.fields) if isinstance(written, avro.RecordType) else str(written)


def _read_stored(contract: BoundContract, name: str) -> SchemasById:
    delta_table = tables.open_table(schemas_table(contract.warehouse, contract.pipeline, name))
    rows = row_reader.open_dataset(delta_table).to_table(["part", "id", "schema"]).to_pylist() if delta_table else []
    return {part: {row["id"]: row["schema"] for row in rows if row["part"] == part} for part in PARTS}


def _store_schemas(contract: BoundContract, plan: Plan, name: str, new: Mapping[tuple[PartName, int], str]) -> None:
    table = schemas_table(contract.warehouse, contract.pipeline, name)
    origin = {"run": plan.run, "systemFrom": plan.known_at}
    fields = [{"part": part, "id": id_, "schema": schema, **origin} for (part, id_), schema in new.items()]
    rows = pa.Table.from_pylist(fields, schema=table_creation.arrow_schema(SCHEMA))
    delta_table = table_creation.ensure_table(table, SCHEMA)
    try:
        write_deltalake(delta_table, rows, mode="append")
    except (DeltaError, OSError) as error:
        raise table_creation.explain_write_error(error, table.path) from None
