"""What can be wrong with a topic of change events. Pure, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hindcast.contracts.topic import Topic
from hindcast.contracts.views import Complaint
from hindcast.errors import nearest

_TIMES = ("ts_ms", "ts_us", "ts_ns")
_PLACES = "op, ts_ms, ts_us, ts_ns, source.<field> or transaction.<field>"
_TEXTS = ("op", "transaction.id", *(f"source.{field}" for field in ("version", "connector", "name", "db", "table")))
"""Places of an envelope that hold text, whatever the database."""

_ENCODED = re.compile(r"decimal|date|timestamp", re.IGNORECASE)
_KINDS = {"Decimal": "decimal", "VariableScaleDecimal": "decimal", "Number": "decimal", "Date": "date"}

_APART = {
    "as_json": "remove it: an envelope has more fields than the columns",
    "value_schema": "remove it: an envelope in Avro names its schema in the schema registry",
    "renamed": "give the column a new name in a view's select",
    "headers": "remove it, and read what the envelope has with metadata",
}
"""Fields of a topic that an envelope has no use for, and what to do instead."""


def complaints(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    """Every complaint about `envelope`, `metadata` and `encoded` of a topic."""
    if topic.envelope is None:
        for field in ("metadata", "encoded"):
            if getattr(topic, field):
                yield Complaint((*location, field), f"{field} without an envelope", "write envelope: debezium")
        return
    if topic.read == "stream":
        found = "change events read as a stream: a row that is deleted has no value, so it would be no event"
        yield Complaint((*location, "read"), found, "write read: table")
    if topic.key_format in ("string", "primitive"):
        yield Complaint((*location, "key_format"), "Debezium's keys are objects", "leave key_format out, or write avro")
    if topic.value_format not in ("json", "avro"):
        yield Complaint((*location, "value_format"), "Debezium's values are objects", "write json or avro")
    for field, mend in _APART.items():
        if field in topic.model_fields_set:
            told = {"as_json": "json"}.get(field, field)
            yield Complaint((*location, told), f"{told} is not for envelopes", mend)
    yield from _key(location, topic)
    yield from _metadata(location, topic)
    yield from _encoded(location, topic)


def _key(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    for name, kind in topic.key.items():
        if name in ("payload", "schema"):
            found = f"'{name}' is what Kafka Connect has around a key, so it can be no column of one"
            yield Complaint((*location, "key", name), found, "let Debezium name it otherwise (message.key.columns)")
        if _ENCODED.search(kind):
            found = f"a key of type {kind}, which Debezium encodes as a number or base64"
            yield Complaint((*location, "key", name), found, "write bigint or string, and convert it in a view")


def _metadata(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    if not topic.value.keys() - topic.metadata.keys():
        yield Complaint((*location, "value"), "no column of the row: all are metadata", "add columns of the table")
    types: dict[str, str] = {}
    for column, path in topic.metadata.items():
        place = (*location, "metadata", column)
        if column not in topic.value:
            yield Complaint(place, f"no column '{column}' in value", nearest(column, topic.value))
            continue
        first, *below = path.split(".")
        if (first, len(below)) not in {("op", 0), *((t, 0) for t in _TIMES), ("source", 1), ("transaction", 1)}:
            yield Complaint(place, f"'{path}' is no place in an envelope", f"write {_PLACES}")
            continue
        kind = topic.value[column]
        if path in _TEXTS and kind != "string":
            yield Complaint((*location, "value", column), f"{path} is text, {column} is {kind}", "write string")
            continue
        if path.split(".")[-1] in _TIMES:
            if kind not in ("bigint", "timestamp"):
                found = f"{path} is a number of units since 1970, {column} is {kind}"
                yield Complaint((*location, "value", column), found, "write timestamp, or bigint for the number")
        elif _ENCODED.search(kind):
            yield Complaint((*location, "value", column), f"{path} as {kind}", "write bigint or string")
        elif types.setdefault(path, kind) != kind:
            found = f"{path} is read as {types[path]} and as {kind}"
            yield Complaint((*location, "value", column), found, "write the same type")


def _encoded(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    for column, encoding in topic.encoded.items():
        place, kind = (*location, "encoded", column), topic.value.get(column)
        wanted = _KINDS.get(encoding, "timestamp")
        if kind is None:
            yield Complaint(place, f"no column '{column}' in value", nearest(column, topic.value))
        elif column in topic.metadata:
            yield Complaint(place, f"{column} is read from the envelope, not from the row", "remove it")
        elif not kind.startswith(wanted):
            yield Complaint(place, f"{encoding} is for {wanted}, {column} is {kind}", f"write {wanted} in value")
    for column, kind in topic.value.items():
        if ("<" in kind) and _ENCODED.search(kind):
            found = f"{kind}: Debezium encodes what is inside as numbers or base64"
            yield Complaint((*location, "value", column), found, "write bigint or string, and convert it in a view")
