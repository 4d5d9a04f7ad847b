"""Rows as one value that Spark moves without looking into it."""

from __future__ import annotations

import pyarrow as pa

_PACKING = pa.ipc.IpcWriteOptions(compression="lz4")
"""To compress takes less than Spark takes to move the bytes that it saves."""


def pack_rows(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Return rows in Arrow's stream format, compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_PACKING) as writer:
        writer.write(rows)
    value: bytes = sink.getvalue().to_pybytes()
    return value
