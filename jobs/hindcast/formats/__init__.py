"""How keys and values are written, one module per format: bytes into columns, as Spark expressions.

| format | module | |
| --- | --- | --- |
| json | `json` | an object of the columns: typed, strict or lenient |
| string | `text` | the text of one column |
| primitive | `primitive` | one column as Kafka's own serializers write it |
| avro | `avro` | a record of the columns, with the schema of a file or of the schema registry |

A format has two functions. `parsed` gives what is evaluated once per record, however many columns are taken of it; None
if there is no such thing. `read` gives `struct`, the part's columns, null where the bytes are null or wrong, and
`problem`, what is wrong with them: text, null where nothing is. No record makes them fail.

`decode.decode` puts key and value together with headers, fates and reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from pyspark.sql import Column

from hindcast import envelopes
from hindcast.contracts import Topic
from hindcast.contracts.formats import asked, form
from hindcast.formats import avro, json, primitive, text
from hindcast.formats.part import Part


class Format(Protocol):
    """What a format's module has."""

    def parsed(self, raw: Column, part: Part) -> Column | None:
        """What is evaluated once per record."""

    def read(self, raw: Column, parsed: Column, part: Part) -> Column:
        """struct<struct, problem>: the part's columns, and what is wrong."""


FORMATS: dict[str, Format] = {"json": json, "string": text, "primitive": primitive, "avro": avro}


Writers = Mapping[Literal["key", "value"], Mapping[int, str]]
"""Of keys and of values, schemas of the schema registry by id, as JSON."""


def columns_of(topic: Topic, name: Literal["key", "value"]) -> Mapping[str, str]:
    """The columns that a format is asked for: the contract's, or those of an envelope around them."""
    if topic.envelope is None or (name == "key" and form(topic, name) != "json"):
        return asked(topic, name)
    if name == "key":
        return envelopes.asked_of_key(topic)
    return envelopes.asked(topic, json=form(topic, name) == "json")


def part(topic: Topic, name: Literal["key", "value"], writers: Writers | None) -> Part:
    """What is asked of a topic's keys or values."""
    file = topic.key_schema if name == "key" else topic.value_schema
    columns = columns_of(topic, name)
    renamed = {column: names for column, names in topic.renamed.items() if column in columns}
    named = (writers or {}).get(name, {})
    return Part(name, columns, form(topic, name), topic.as_json, renamed, file.text if file else None, named)


__all__ = ["FORMATS", "Format", "Part", "Writers", "columns_of", "part"]
