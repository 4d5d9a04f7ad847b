"""Formats of keys and values, one module per format: bytes into columns, as Spark expressions.

| format | module | |
| --- | --- | --- |
| json | `json` | an object of the columns: typed, strict or lenient |
| string | `text` | the text of one column |
| primitive | `primitive` | one column as Kafka's own serializers write it |
| avro | `avro` | a record of the columns, with the schema of a file or of the schema registry |

A format has `STEPS`, each evaluated once per record, however often the next one names it. The last gives `struct`, the
part's columns, null where the bytes are null or wrong, and `problem`, a text that says what is wrong with them, null
if nothing is. No record makes them fail.

`decode.decode_records` puts key and value together with headers, fates and reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Literal, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Topic
from hindcast.contract.formats import part_format, record_columns
from hindcast.formats import avro, envelopes, json, primitive, text
from hindcast.formats.record_part import RecordPart

ParseStep = Callable[[Column, Column, RecordPart], Column]
"""A step from the bytes, the result of the step before (null for the first one) and the record part to its result."""


class FormatModule(Protocol):
    """A module that implements a format."""

    @property
    def STEPS(self) -> tuple[ParseStep, ...]:  # noqa: N802  # a constant of a module
        """The steps that convert the bytes, one after the other."""


FORMATS: dict[str, FormatModule] = {"json": json, "string": text, "primitive": primitive, "avro": avro}


_FEW = 8
"""Up to so many columns a step is compiled together with what is around it."""


def parse_parts(records: DataFrame, parts: Mapping[str, RecordPart], name: str) -> DataFrame:
    """Return records with a struct `name` of the results (`struct`, `problem`) of each part's format.

    `parts`: by the column of its bytes, which is also its field in the struct.
    """
    found = {column: F.lit(None) for column in parts}
    turns = list(zip_longest(*(FORMATS[part.format].STEPS for part in parts.values())))
    for n, steps in enumerate(turns, 1):
        made = zip(parts.items(), steps, strict=True)
        columns = {it: step(F.col(it), found[it], part) if step else found[it] for (it, part), step in made}
        # Computed in a projection of its own and exploded of one: else Spark would compute a step again for each use.
        struct = F.struct(*(column.alias(it) for it, column in columns.items()), *_code_barrier(parts))
        place = name if n == len(turns) else f"{name}{n}"
        records = records.withColumn(f"{place}_", struct).withColumn(place, F.explode(F.array(f"{place}_")))
        found = {it: F.col(f"{place}.{it}") for it in parts}
    passed = [f"{name}{n}" for n in range(1, len(turns))]
    return records.drop(*passed, *(f"{it}_" for it in (*passed, name)))


def _code_barrier(parts: Mapping[str, RecordPart]) -> list[Column]:
    """Return a column, a higher-order function, that keeps a step with many columns out of whole-stage code.

    There all columns would be one method, which would soon be too large for Java to compile.
    """
    if sum(len(part.columns) for part in parts.values()) <= _FEW:
        return []
    return [F.exists(F.array(F.col(next(iter(parts)))), lambda it: it.isNull()).alias("_apart")]


WriterSchemas = Mapping[Literal["key", "value"], Mapping[int, str]]
"""Of keys and of values, schemas of the schema registry by id, as JSON."""


def parsed_columns(topic: Topic, name: Literal["key", "value"]) -> Mapping[str, str]:
    """Return the columns, with types, that a format must parse: the contract's, or those of an envelope around them."""
    if topic.envelope is None or (name == "key" and part_format(topic, name) != "json"):
        return record_columns(topic, name)
    if name == "key":
        return envelopes.key_parser_columns(topic)
    return envelopes.value_parser_columns(topic, json=part_format(topic, name) == "json")


def record_part(topic: Topic, name: Literal["key", "value"], writers: WriterSchemas | None) -> RecordPart:
    """Return the record part that describes how to parse a topic's keys or values.

    `writers`: the schemas that values name by id, for Avro from the registry.
    """
    file = topic.key_schema if name == "key" else topic.value_schema
    columns = parsed_columns(topic, name)
    renamed = {column: names for column, names in topic.renamed.items() if column in columns}
    named = (writers or {}).get(name, {})
    what = envelopes.describe_expected(topic, name) if topic.envelope else ""
    return RecordPart(
        name, columns, part_format(topic, name), topic.as_json, renamed, file.text if file else None, named, what
    )


__all__ = ["FORMATS", "FormatModule", "RecordPart", "WriterSchemas", "parse_parts", "parsed_columns", "record_part"]
