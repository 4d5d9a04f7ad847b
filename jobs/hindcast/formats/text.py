"""`string`: the text of one column, in UTF-8, read exactly (`exact.parse_text`). For a binary column the bytes."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.formats import exact
from hindcast.formats.record_part import RecordPart, is_utf8, part_result, shorten_text


def read_value(raw: Column, _: Column, part: RecordPart) -> Column:
    """Return `struct` and `problem` (`record_part.part_result`): `2026-01-01` as a date, `4.20` as a decimal."""
    name, kind = part.single_column
    typed, bad = cast_text(raw, kind)
    problem = F.when(bad, F.concat(F.lit(f"the {part.name} is not {kind}: "), shorten_text(raw.cast("string"))))
    return part_result(F.when(raw.isNotNull() & ~bad, F.struct(typed.alias(name))), problem)


STEPS = (read_value,)


def cast_text(raw: Column, kind: str) -> tuple[Column, Column]:
    """Return bytes as a value of a type, and whether they are invalid; null bytes are null."""
    text = raw.cast("string")
    typed = raw.cast("binary") if kind == "binary" else exact.parse_text(text, kind)
    return typed, raw.isNotNull() & (typed.isNull() | (~is_utf8(raw) if kind != "binary" else F.lit(False)))
