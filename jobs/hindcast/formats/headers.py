"""Columns of the value that are read from a record's headers."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.formats import text
from hindcast.formats.record_part import shorten_text
from hindcast.kafka.topics import UNREADABLE_HEADERS


def add_header_columns(value: Column, columns: Mapping[str, str], headers: Mapping[str, str]) -> tuple[Column, Column]:
    """Return a value with the columns read from headers, in the order of `columns`, and what is wrong with those.

    The records have `headers` (array of key and value, or null); of several of one name the last counts, as in Kafka's
    `lastHeader`, and without one the column is null. A null value stays null, whatever the headers say.
    """
    found = {name: _last_header(header) for name, header in headers.items()}
    read = {name: text.cast_text(raw, columns[name]) for name, raw in found.items()}
    fields = [(read[name][0] if name in read else value.getField(name)).alias(name) for name in columns]
    problems = [
        F.when(bad, _describe_problem(headers[name], columns[name], found[name])) for name, (_, bad) in read.items()
    ]
    unreadable = F.exists("headers", lambda header: header["key"] == UNREADABLE_HEADERS)
    problems.insert(0, F.when(unreadable, "the record's headers cannot be read: a name is not UTF-8"))
    return F.when(value.isNotNull(), F.struct(*fields)), F.when(value.isNotNull(), F.coalesce(*problems))


def _last_header(name: str) -> Column:
    of_name = F.filter(F.col("headers"), lambda header: header["key"] == name)
    return F.try_element_at(of_name, F.lit(-1))["value"]


def _describe_problem(name: str, kind: str, raw: Column) -> Column:
    return F.concat(F.lit(f"the header {name} is not {kind}: "), shorten_text(raw.cast("string")))
