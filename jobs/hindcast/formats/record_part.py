"""Record parts: what to read from the bytes of a key or value; and what formats share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F


class RecordPart(NamedTuple):
    """A record's key or value: the columns to read from it, with their types, and its format.

    `renamed`: by column, further names of its field, in order of preference. `schema`: the Avro schema of all records,
    as JSON; without it each record has the id of one of `writers`. `what`: what the bytes should be, for errors of a
    part whose columns are not the contract's.
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
    def single_column(self) -> tuple[str, str]:
        """The only column of a format that has one, and its type."""
        ((name, kind),) = self.columns.items()
        return name, kind


def part_result(struct: Column, problem: Column) -> Column:
    """Return the result of a format's `read_value`: a struct of `struct` and `problem`."""
    return F.struct(struct.alias("struct"), problem.alias("problem"))


def ddl_columns(columns: Mapping[str, str], between: str = " ") -> str:
    """Return columns and their types in Spark's DDL; `between` stands between name and type."""
    return ", ".join(f"{quote_name(name)}{between}{kind}" for name, kind in columns.items())


def quote_name(name: str) -> str:
    """Return a name quoted for Spark's DDL."""
    return f"`{name.replace('`', '``')}`"


def is_utf8(raw: Column) -> Column:
    """Return whether bytes are UTF-8."""
    return F.is_valid_utf8(raw.cast("string"))


def shorten_text(text: Column) -> Column:
    """Return the beginning of a text for an error message, always valid UTF-8."""
    valid = F.make_valid_utf8(text)
    return F.when(F.length(valid) > 200, F.concat(F.substring(valid, 1, 200), F.lit("..."))).otherwise(valid)


def shorten_bytes(raw: Column) -> Column:
    """Return the beginning of bytes in hex for an error message: 0x00000A."""
    more = F.when(F.length(raw) > 50, F.lit("...")).otherwise(F.lit(""))
    return F.concat(F.lit("0x"), F.hex(F.substring(raw, 1, 50)), more)
