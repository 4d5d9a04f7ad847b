"""Formats of keys and values, one module per format: bytes into columns.

| format | module | |
| --- | --- | --- |
| json | `json` | an object of the columns: typed, strict or lenient |
| string | `text` | the text of one column |
| primitive | `primitive` | one column as Kafka's own serializers write it |
| avro | `avro` | a record of the columns, with the schema of a file or of the schema registry; Spark reads it |

A format gives `struct`, the part's columns, null where the bytes are null or wrong, and `problem`, a text that says
what is wrong with them, null if nothing is. No record makes it fail.

`decoder` puts key and value together with headers, fates and reasons, where tasks read a topic; `decode` does it for
records that Spark has.
"""

from __future__ import annotations

from collections.abc import Mapping

from hindcast.contract import Topic
from hindcast.contract.formats import part_format, record_columns
from hindcast.formats import envelopes
from hindcast.formats.record_part import PartName, RecordPart

WriterSchemas = Mapping[PartName, Mapping[int, str]]
"""Of keys and of values, schemas of the schema registry by id, as JSON."""


def parsed_columns(topic: Topic, name: PartName) -> Mapping[str, str]:
    """Return the columns, with types, that a format must parse: the contract's, or those of an envelope around them."""
    if topic.envelope is None or (name == "key" and part_format(topic, name) != "json"):
        return record_columns(topic, name)
    if name == "key":
        return envelopes.key_parser_columns(topic)
    return envelopes.value_parser_columns(envelopes.shape_envelope(topic))


def record_part(topic: Topic, name: PartName, writers: WriterSchemas | None) -> RecordPart:
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


__all__ = ["RecordPart", "WriterSchemas", "parsed_columns", "record_part"]
