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

from hindcast.contract.avro_compatibility import parse_declared_type
from hindcast.formats.json.records import ColumnShape, RecordShape
from hindcast.formats.record_part import RecordPart, ddl_columns


def record_shape(part: RecordPart) -> RecordShape:
    """Return what to read from a part's records."""
    what = part.what or f"a JSON object of {'exactly ' if part.json == 'strict' else ''}{ddl_columns(part.columns)}"
    columns = (
        ColumnShape(name, (name, *part.renamed.get(name, ())), parse_declared_type(kind))
        for name, kind in part.columns.items()
    )
    return RecordShape(tuple(columns), part.json, f"the {part.name} is not {what}: ", f"the {part.name}'s ")
