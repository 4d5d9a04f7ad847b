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

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from hindcast.formats import text
from hindcast.formats.record_part import RecordPart, part_result, shorten_bytes

_SIZES = {"smallint": 2, "int": 4, "bigint": 8, "float": 4, "double": 8, "boolean": 1}


def read_value(raw: Column, before: Column, part: RecordPart) -> Column:
    """Return `struct` and `problem` (`record_part.part_result`): 0x0000002A is int 42; other sizes are malformed."""
    name, kind = part.single_column
    if kind not in _SIZES:
        return text.read_value(raw, before, part)
    size = _SIZES[kind]
    value = F.when(F.length(raw) == size, _parse_value(raw, kind, size))
    problem = F.when(
        raw.isNotNull() & value.isNull(),
        F.concat(F.lit(f"the {part.name} is not {kind} in {size} byte{'s' * (size > 1)}: "), shorten_bytes(raw)),
    )
    return part_result(F.when(value.isNotNull(), F.struct(value.alias(name))), problem)


STEPS = (read_value,)


def serialize_value(value: Column, kind: str) -> Column:
    """Return an integer as these serializers write it, and any other value as text in UTF-8."""
    if kind not in ("smallint", "int", "bigint"):
        return value.cast("string").cast("binary")
    return F.unhex(F.right(F.lpad(F.hex(value.cast("bigint")), 16, "0"), F.lit(2 * _SIZES[kind])))


def _parse_value(raw: Column, kind: str, size: int) -> Column:
    if kind in ("float", "double"):
        # Avro writes the same bytes, the lowest first; Spark has no other function that reads them.
        turned = F.concat(*(F.substring(raw, place, 1) for place in range(size, 0, -1)))
        return from_avro(turned, f'"{kind}"')
    if kind == "boolean":
        return F.when(F.hex(raw) == "00", False).when(F.hex(raw) == "01", True)
    sign = F.lit("F" * (16 - 2 * size))
    digits = F.when(F.substring(F.hex(raw), 1, 1) > "7", F.concat(sign, F.hex(raw))).otherwise(F.hex(raw))
    return F.conv(digits, 16, -10).cast(kind)
