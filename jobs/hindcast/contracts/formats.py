"""What a topic's format asks of its columns, and what the columns ask of the format. Pure, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from hindcast.contracts import avro
from hindcast.contracts.topic import Topic
from hindcast.contracts.views import Complaint
from hindcast.errors import nearest

PRIMITIVES = ("smallint", "int", "bigint", "float", "double", "boolean", "string", "binary")
"""The types of columns that Kafka's own serializers write."""


def asked(topic: Topic, part: Literal["key", "value"]) -> dict[str, str]:
    """The columns that are read from a record's key or value: those of headers are not."""
    columns = topic.key if part == "key" else topic.value
    return {name: kind for name, kind in columns.items() if part == "key" or name not in topic.headers}


def form(topic: Topic, part: Literal["key", "value"]) -> str:
    """The format of a record's key or value."""
    return topic.keyed_as if part == "key" else topic.value_format


def complaints(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    """What does not go together in how a topic's records are written."""
    yield from _headers(location, topic)
    for part in ("key", "value"):
        yield from _columns((*location, f"{part}_format"), topic, part)
        yield from _schema((*location, f"{part}_schema"), topic, part)
    if topic.as_json != "typed" and "json" not in (topic.keyed_as, topic.value_format):
        yield Complaint((*location, "json"), "neither key nor value is JSON here", "remove it")
    yield from _renamed(location, topic)


def _headers(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    for column in topic.headers:
        if column not in topic.value:
            mend = f"name it with its type under value:, or {nearest(column, topic.value)}"
            yield Complaint((*location, "headers", column), f"no column '{column}' of the value", mend)
    if not asked(topic, "value"):
        yield Complaint(
            (*location, "headers"), "no column is read from the value itself", "add a column that the value has"
        )


def _columns(location: tuple[Any, ...], topic: Topic, part: Literal["key", "value"]) -> Iterator[Complaint]:
    columns, form_ = asked(topic, part), form(topic, part)
    if form_ not in ("string", "primitive"):
        return
    if len(columns) != 1:
        yield Complaint(
            location, f"a {form_} {part} has one column, found {len(columns)}", f"write {part}_format: json"
        )
        return
    ((name, kind),) = columns.items()
    if form_ == "primitive" and kind not in PRIMITIVES:
        mend = f"give it one of {', '.join(PRIMITIVES)}, or write {part}_format: string if it is text"
        yield Complaint((*location[:-1], part, name), f"none of Kafka's own serializers writes {kind}", mend)
    if isinstance(avro.declared(kind), avro.Array | avro.Record):
        yield Complaint((*location[:-1], part, name), f"{kind} is not a type that text can have", "write a scalar type")


def _schema(location: tuple[Any, ...], topic: Topic, part: Literal["key", "value"]) -> Iterator[Complaint]:
    given = topic.key_schema if part == "key" else topic.value_schema
    if given is None:
        return
    if form(topic, part) != "avro":
        yield Complaint(location, f"the {part} is {form(topic, part)}, not Avro", f"write {part}_format: avro")
        return
    schema, columns = avro.written(json.loads(given.text)), asked(topic, part)
    for found in avro.unfit(schema, columns, topic.renamed):
        mend = f"the columns are {avro.told(columns)}; the schema writes {schema}; make one fit the other"
        yield Complaint(location, f"{given.file} does not fit the columns: {found}", mend)


def _renamed(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    for part in ("key", "value"):
        columns = asked(topic, part)
        taken = {name: name for name in columns}
        for column, names in topic.renamed.items():
            if column not in columns:
                continue
            if form(topic, part) not in ("json", "avro"):
                found = f"a {form(topic, part)} {part} has no fields with names"
                yield Complaint((*location, "renamed", column), found, "remove it")
            for name in names:
                if name in taken:
                    found = f"'{name}' is the field of column '{taken[name]}' already"
                    yield Complaint((*location, "renamed", column), found, "name each field once")
                taken[name] = column
    known = {**asked(topic, "key"), **asked(topic, "value")}
    for column in topic.renamed:
        if column not in known:
            mend = nearest(column, known)
            yield Complaint((*location, "renamed", column), f"no column '{column}' of key or value", mend)
