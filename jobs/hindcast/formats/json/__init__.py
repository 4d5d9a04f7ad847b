"""`json`: an object of the columns.

| mode | fields | values |
| --- | --- | --- |
| typed | one that is missing is null, others are passed over | of the column's type |
| strict | exactly the columns, each once | of the column's type |
| lenient | as typed | numbers and booleans also as text; comments, single quotes, names without quotes, leading zeros |

Modes are about the object itself; objects within it are read as typed.

Records are read in Python, in Arrow's batches: `batches` reads plain ones fast, `records` all others.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.formats.json.batches import read_batch
from hindcast.formats.json.records import RecordShape
from hindcast.formats.json.types import parse_type
from hindcast.formats.record_part import RecordPart, ddl_columns


def read_value(raw: Column, _: Column, part: RecordPart) -> Column:
    """Return `struct` and `problem` (`record_part.part_result`) of JSON objects."""
    shape = record_shape(part)

    def read(records: pa.Array) -> pa.Array:
        return read_batch(records, shape)

    struct = ddl_columns({column: type_.ddl for column, _, type_ in shape.fields}, ": ")
    return F.arrow_udf(read, f"struct<struct: struct<{struct}>, problem: string>")(raw)


STEPS = (read_value,)


def record_shape(part: RecordPart) -> RecordShape:
    """Return what to read from a part's records."""
    what = part.what or f"a JSON object of {'exactly ' if part.json == 'strict' else ''}{ddl_columns(part.columns)}"
    fields = ((name, (name, *part.renamed.get(name, ())), parse_type(kind)) for name, kind in part.columns.items())
    return RecordShape(tuple(fields), part.json, f"the {part.name} is not {what}: ", f"the {part.name}'s ")
