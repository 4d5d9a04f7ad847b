"""`primitive`: one column as Kafka's own serializers write it (org.apache.kafka.common.serialization).

| column | serializer | bytes |
| --- | --- | --- |
| smallint, int, bigint | Short, Integer, Long | 2, 4, 8, the highest first, two's complement |
| float, double | Float, Double | 4, 8, IEEE 754, the highest first |
| boolean | Boolean | one: 00 or 01 |
| string | String, UUID | UTF-8 |
| binary | Bytes, ByteArray, ByteBuffer | as they are |

Another number of bytes is malformed, and so is a boolean of another byte.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.formats.json.columns import column_type
from hindcast.formats.reasons import state_each
from hindcast.formats.record_part import RecordPart, part_result
from hindcast.formats.text import TextReader

_TYPES = {"smallint": ">i2", "int": ">i4", "bigint": ">i8", "float": ">f4", "double": ">f8", "boolean": "u1"}
"""The types that numpy reads from the bytes."""
_SHOWN = 50


def open_reader(part: RecordPart) -> PrimitiveReader | TextReader:
    """Return what reads such keys or values; `string` and `binary` are read as text."""
    return PrimitiveReader(part) if part.single_column[1] in _TYPES else TextReader(part)


class PrimitiveReader:
    """Reads batches of records of one number or boolean."""

    def __init__(self, part: RecordPart) -> None:
        self._name, self._kind = part.single_column
        self._bytes, self._type = np.dtype(_TYPES[self._kind]), column_type(self._kind)
        size = self._bytes.itemsize
        self._refusal = f"the {part.name} is not {self._kind} in {size} byte{'s' * (size > 1)}: "

    def read(self, raw: pa.Array) -> pa.StructArray:
        """Return `part_result` for each record: 0x0000002A is int 42."""
        right = pc.equal(pc.binary_length(raw), self._bytes.itemsize).fill_null(False)
        found = np.zeros(len(raw), self._bytes)
        places = np.flatnonzero(right.to_numpy(zero_copy_only=False))
        found[places] = np.frombuffer(b"".join(raw.filter(right).to_pylist()), self._bytes)
        if self._kind == "boolean":
            right = pc.and_(right, pa.array(found <= 1))
            found = found.astype(bool)
        null = pc.invert(right)
        native = found.astype(found.dtype.newbyteorder("="))
        values = pa.array(native, self._type, mask=null.to_numpy(zero_copy_only=False))
        is_bad = pc.and_(null, raw.is_valid())
        problems = state_each(is_bad, lambda place: f"{self._refusal}{show_hex(raw[place].as_py())}")
        return part_result(self._name, values, problems)


def serialize_value(value: Column, kind: str) -> Column:
    """Return an integer as these serializers write it, and any other value as text in UTF-8."""
    if kind not in ("smallint", "int", "bigint"):
        return value.cast("string").cast("binary")
    digits = 2 * np.dtype(_TYPES[kind]).itemsize
    return F.unhex(F.right(F.lpad(F.hex(value.cast("bigint")), 16, "0"), F.lit(digits)))


def show_hex(raw: bytes) -> str:
    """Return the beginning of bytes in hex for an error message: 0x00000A."""
    return f"0x{raw[:_SHOWN].hex().upper()}{'...' if len(raw) > _SHOWN else ''}"
