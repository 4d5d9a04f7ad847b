"""Record parts: what to read from the bytes of a key or value; and what formats share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

PartName: TypeAlias = Literal["key", "value"]


class RecordPart(NamedTuple):
    """A record's key or value: the columns to read from it, with their types, and its format.

    `renamed`: by column, further names of its field, in order of preference. `schema`: the Avro schema of all records,
    as JSON; without it each record has the id of one of `writers`. `what`: what the bytes should be, for errors of a
    part whose columns are not the contract's.
    """

    name: PartName
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


def part_result(name: str, values: pa.Array, problems: pa.Array) -> pa.StructArray:
    """Return what a part of one column is: `struct`, null where the value is, and `problem`, what is wrong with it."""
    struct = pa.StructArray.from_arrays([values], [name], mask=values.is_null())
    return pa.StructArray.from_arrays([struct, problems], ["struct", "problem"])


def take_field(struct: pa.Array, name: str) -> pa.Array:
    """Return a field of structs, null where they are."""
    return pc.struct_field(struct, struct.type.get_field_index(name))


def ddl_columns(columns: Mapping[str, str], between: str = " ") -> str:
    """Return columns and their types in Spark's DDL; `between` stands between name and type."""
    return ", ".join(f"{quote_name(name)}{between}{kind}" for name, kind in columns.items())


def quote_name(name: str) -> str:
    """Return a name quoted for Spark's DDL."""
    return f"`{name.replace('`', '``')}`"
