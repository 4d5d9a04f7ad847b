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

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf

from hindcast.common.spark_workers import freeze_modules
from hindcast.contract.avro_compatibility import parse_declared_type
from hindcast.formats.json.batches import BatchReader
from hindcast.formats.json.records import ColumnShape, RecordShape
from hindcast.formats.record_part import RecordPart, ddl_columns


def read_value(raw: Column, _: Column, part: RecordPart) -> Column:
    """Return `struct` and `problem` (`record_part.part_result`) of JSON objects; a variant is a string."""
    shape = record_shape(part)

    def read(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        freeze_modules()
        return map(BatchReader(shape).read, batches)

    struct = ddl_columns({name: str(type_) for name, _, type_ in shape.columns}, ": ").replace(": variant", ": string")
    result = f"struct<struct: struct<{struct}>, problem: string>"
    return arrow_udf(read, result)(raw)  # type: ignore[call-overload,no-any-return]  # its stubs know no type hints


STEPS = (read_value,)


def record_shape(part: RecordPart) -> RecordShape:
    """Return what to read from a part's records."""
    what = part.what or f"a JSON object of {'exactly ' if part.json == 'strict' else ''}{ddl_columns(part.columns)}"
    columns = (
        ColumnShape(name, (name, *part.renamed.get(name, ())), parse_declared_type(kind))
        for name, kind in part.columns.items()
    )
    return RecordShape(tuple(columns), part.json, f"the {part.name} is not {what}: ", f"the {part.name}'s ")
