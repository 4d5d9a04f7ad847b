"""Checks of topics of change events. Pure, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hindcast.common.errors import suggest_nearest
from hindcast.contract.shapes import FieldPath
from hindcast.contract.topic import Topic
from hindcast.contract.view_checks import Complaint

_TIMES = ("ts_ms", "ts_us", "ts_ns")
_PLACES = "op, ts_ms, ts_us, ts_ns, source.<field> or transaction.<field>"
_TEXTS = ("op", "transaction.id", *(f"source.{field}" for field in ("version", "connector", "name", "db", "table")))
"""Fields of an envelope that hold text, whatever the database."""

_ENCODED = re.compile(r"decimal|date|timestamp", re.IGNORECASE)
_KINDS = {"Decimal": "decimal", "VariableScaleDecimal": "decimal", "Number": "decimal", "Date": "date"}

_APART = {
    "as_json": "remove it: an envelope has more fields than the columns",
    "value_schema": "remove it: an envelope in Avro names its schema in the schema registry",
    "renamed": "rename the column in a view's select",
    "headers": "remove it, and read fields of the envelope with metadata",
}
"""Fields of a topic that cannot be used with an envelope, and what to do instead."""


def check_envelope(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    """Yield every complaint about `envelope`, `metadata` and `encoded` of a topic."""
    if topic.envelope is None:
        for field in ("metadata", "encoded"):
            if getattr(topic, field):
                yield Complaint((*location, field), f"{field} needs an envelope", "write envelope: debezium")
        return
    if topic.read == "stream":
        found = "change events cannot be read as a stream: a deleted row has no value, so it would not be an event"
        yield Complaint((*location, "read"), found, "write read: table")
    if topic.key_format in ("string", "primitive"):
        yield Complaint((*location, "key_format"), "Debezium's keys are objects", "remove key_format, or write avro")
    if topic.value_format not in ("json", "avro"):
        yield Complaint((*location, "value_format"), "Debezium's values are objects", "write json or avro")
    for field, fix in _APART.items():
        if field in topic.model_fields_set:
            name = {"as_json": "json"}.get(field, field)
            yield Complaint((*location, name), f"{name} cannot be used with an envelope", fix)
    yield from _check_key(location, topic)
    yield from _check_metadata(location, topic)
    yield from _check_encoded(location, topic)


def _check_key(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    for name, kind in topic.key.items():
        if name in ("payload", "schema"):
            found = f"'{name}' is what Kafka Connect wraps a key in, so it cannot be a key column"
            yield Complaint((*location, "key", name), found, "give it another name in Debezium (message.key.columns)")
        if _ENCODED.search(kind):
            found = f"a key cannot have type {kind}, which Debezium encodes as a number or base64"
            yield Complaint((*location, "key", name), found, "write bigint or string, and convert it in a view")


def _check_metadata(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    if not topic.value.keys() - topic.metadata.keys():
        yield Complaint(
            (*location, "value"), "value has no column of the row: all are metadata", "add columns of the table"
        )
    types: dict[str, str] = {}
    for column, path in topic.metadata.items():
        place = (*location, "metadata", column)
        if column not in topic.value:
            yield Complaint(place, f"no column '{column}' in value", suggest_nearest(column, topic.value))
            continue
        first, *below = path.split(".")
        if (first, len(below)) not in {("op", 0), *((t, 0) for t in _TIMES), ("source", 1), ("transaction", 1)}:
            yield Complaint(place, f"'{path}' is not a field of an envelope", f"write {_PLACES}")
            continue
        kind = topic.value[column]
        if path in _TEXTS and kind != "string":
            yield Complaint((*location, "value", column), f"{path} is text, but {column} is {kind}", "write string")
            continue
        if path.split(".")[-1] in _TIMES:
            if kind not in ("bigint", "timestamp"):
                found = f"{path} is a number of units since 1970, but {column} is {kind}"
                yield Complaint((*location, "value", column), found, "write timestamp, or bigint for the number")
        elif _ENCODED.search(kind):
            yield Complaint((*location, "value", column), f"{path} cannot be read as {kind}", "write bigint or string")
        elif types.setdefault(path, kind) != kind:
            found = f"{path} is read as {types[path]} and as {kind}"
            yield Complaint((*location, "value", column), found, "give both columns the same type")


def _check_encoded(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    for column, encoding in topic.encoded.items():
        place, kind = (*location, "encoded", column), topic.value.get(column)
        expected = _KINDS.get(encoding, "timestamp")
        if kind is None:
            yield Complaint(place, f"no column '{column}' in value", suggest_nearest(column, topic.value))
        elif column in topic.metadata:
            yield Complaint(place, f"{column} is read from the envelope, not from the row", "remove it")
        elif not kind.startswith(expected):
            yield Complaint(
                place, f"{encoding} is for {expected}, but {column} is {kind}", f"write {expected} in value"
            )
    for column, kind in topic.value.items():
        if ("<" in kind) and _ENCODED.search(kind):
            found = f"{kind}: Debezium encodes its parts as numbers or base64"
            yield Complaint((*location, "value", column), found, "write bigint or string, and convert it in a view")
