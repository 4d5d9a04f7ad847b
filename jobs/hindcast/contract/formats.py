"""Checks of a topic's formats against its columns. Pure, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from hindcast.common.errors import suggest_nearest
from hindcast.contract import avro, avro_compatibility
from hindcast.contract.shapes import FieldPath
from hindcast.contract.topic import Topic
from hindcast.contract.view_checks import Complaint

PRIMITIVES = ("smallint", "int", "bigint", "float", "double", "boolean", "string", "binary")
"""The types that Kafka's own serializers write."""


def record_columns(topic: Topic, part: Literal["key", "value"]) -> dict[str, str]:
    """Return the columns, with their types, that are read from a record's key or value itself, not from headers."""
    columns = topic.key if part == "key" else topic.value
    return {name: kind for name, kind in columns.items() if part == "key" or name not in topic.headers}


def part_format(topic: Topic, part: Literal["key", "value"]) -> str:
    """Return the format of a record's key or value."""
    return topic.effective_key_format if part == "key" else topic.value_format


def check_formats(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    """Yield every complaint about the formats, schemas, headers and renamed fields of a topic."""
    yield from _check_headers(location, topic)
    for part in ("key", "value"):
        yield from _check_columns((*location, f"{part}_format"), topic, part)
        yield from _check_schema((*location, f"{part}_schema"), topic, part)
    if topic.as_json != "typed" and "json" not in (topic.effective_key_format, topic.value_format):
        yield Complaint((*location, "json"), "neither key nor value is JSON", "remove it")
    yield from _check_renamed(location, topic)


def _check_headers(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    for column in topic.headers:
        if column not in topic.value:
            fix = f"name it with its type under value:, or {suggest_nearest(column, topic.value)}"
            yield Complaint((*location, "headers", column), f"no column '{column}' of the value", fix)
    if not record_columns(topic, "value"):
        yield Complaint(
            (*location, "headers"), "no column is read from the value itself", "add a column that the value has"
        )


def _check_columns(location: FieldPath, topic: Topic, part: Literal["key", "value"]) -> Iterator[Complaint]:
    columns, format_ = record_columns(topic, part), part_format(topic, part)
    if format_ not in ("string", "primitive"):
        return
    if len(columns) != 1:
        yield Complaint(
            location, f"a {format_} {part} has one column, found {len(columns)}", f"write {part}_format: json"
        )
        return
    ((name, kind),) = columns.items()
    if format_ == "primitive" and kind not in PRIMITIVES:
        fix = f"give it one of {', '.join(PRIMITIVES)}, or write {part}_format: string if it is text"
        yield Complaint((*location[:-1], part, name), f"none of Kafka's own serializers writes {kind}", fix)
    if isinstance(avro_compatibility.parse_declared_type(kind), avro.ArrayType | avro.RecordType):
        yield Complaint((*location[:-1], part, name), f"{kind} cannot be written as text", "write a scalar type")


def _check_schema(location: FieldPath, topic: Topic, part: Literal["key", "value"]) -> Iterator[Complaint]:
    given = topic.key_schema if part == "key" else topic.value_schema
    if given is None:
        return
    if part_format(topic, part) != "avro":
        yield Complaint(location, f"the {part} is {part_format(topic, part)}, not Avro", f"write {part}_format: avro")
        return
    schema, columns = avro.parse_schema(json.loads(given.text)), record_columns(topic, part)
    for found in avro_compatibility.check_columns(schema, columns, topic.renamed):
        fix = f"the columns are {avro.format_columns(columns)}; the schema writes {schema}; make one fit the other"
        yield Complaint(location, f"{given.file} does not fit the columns: {found}", fix)


def _check_renamed(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    for part in ("key", "value"):
        columns = record_columns(topic, part)
        taken = {name: name for name in columns}
        for column, names in topic.renamed.items():
            if column not in columns:
                continue
            if part_format(topic, part) not in ("json", "avro"):
                found = f"a {part_format(topic, part)} {part} has no fields with names"
                yield Complaint((*location, "renamed", column), found, "remove it")
            for name in names:
                if name in taken:
                    found = f"'{name}' is already the field of column '{taken[name]}'"
                    yield Complaint((*location, "renamed", column), found, "name each field once")
                taken[name] = column
    known = {**record_columns(topic, "key"), **record_columns(topic, "value")}
    for column in topic.renamed:
        if column not in known:
            fix = suggest_nearest(column, known)
            yield Complaint((*location, "renamed", column), f"no column '{column}' of key or value", fix)
