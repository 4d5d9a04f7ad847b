"""What is asked of the bytes of a record's key or value; and what formats share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F


class Part(NamedTuple):
    """A record's key or value: the columns that are read from it, with their types, and how it is written.

    `renamed`: further names of a column's field, in the order in which they are looked for. `schema`: the Avro schema
    of all records, as JSON; without it each has the id of one of `writers`. `what`: what the object is called where it
    is none, of a format whose columns are not the contract's.
    """

    name: Literal["key", "value"]
    columns: Mapping[str, str]
    format: str
    json: Literal["typed", "strict", "lenient"] = "typed"
    renamed: Mapping[str, tuple[str, ...]] = {}
    schema: str | None = None
    writers: Mapping[int, str] = {}
    what: str = ""

    @property
    def only(self) -> tuple[str, str]:
        """The one column of a format that has one, and its type."""
        ((name, kind),) = self.columns.items()
        return name, kind


def result(struct: Column, problem: Column) -> Column:
    """What a format's `read` gives."""
    return F.struct(struct.alias("struct"), problem.alias("problem"))


def typed(columns: Mapping[str, str], between: str = " ") -> str:
    """Columns as Spark's DDL has them."""
    return ", ".join(f"{quoted(name)}{between}{kind}" for name, kind in columns.items())


def quoted(name: str) -> str:
    """A name as Spark's DDL takes any."""
    return f"`{name.replace('`', '``')}`"


def utf8(raw: Column) -> Column:
    """Whether bytes are UTF-8."""
    return F.is_valid_utf8(raw.cast("string"))


def shown(text: Column) -> Column:
    """The beginning of a text, as an error may show it: valid UTF-8 whatever was sent."""
    valid = F.make_valid_utf8(text)
    return F.when(F.length(valid) > 200, F.concat(F.substring(valid, 1, 200), F.lit("..."))).otherwise(valid)


def shown_bytes(raw: Column) -> Column:
    """The beginning of bytes that are no text: 0x00000A."""
    more = F.when(F.length(raw) > 50, F.lit("...")).otherwise(F.lit(""))
    return F.concat(F.lit("0x"), F.hex(F.substring(raw, 1, 50)), more)
