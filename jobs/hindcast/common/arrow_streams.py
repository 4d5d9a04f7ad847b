"""Rows as one value that Spark moves without looking into it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_PACKING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""To compress takes less than Spark takes to move the bytes that it saves. All cores have tasks: threads of one would
only wake each other, column by column.
"""


def open_rows(value: bytes | pa.Buffer, places: Sequence[int] = ()) -> pa.RecordBatchStreamReader:
    """Return a reader of rows that were packed; of the columns at these places, if any are given."""
    return pa.ipc.open_stream(value, options=pa.ipc.IpcReadOptions(included_fields=[*places], use_threads=False))


def pack_rows(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Return rows in Arrow's stream format, compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_PACKING) as writer:
        writer.write(rows)
    value: bytes = sink.getvalue().to_pybytes()
    return value
