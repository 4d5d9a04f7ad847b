"""`string`: the text of one column, in UTF-8, as exactly what it says (exact.of_text). Of a binary column the bytes."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.formats import exact
from hindcast.formats.part import Part, result, shown, utf8


def read(raw: Column, _: Column, part: Part) -> Column:
    """The text as a value: `2026-01-01` as a date, `4.20` as a decimal."""
    name, kind = part.only
    typed, bad = cast(raw, kind)
    problem = F.when(bad, F.concat(F.lit(f"the {part.name} is not {kind}: "), shown(raw.cast("string"))))
    return result(F.when(raw.isNotNull() & ~bad, F.struct(typed.alias(name))), problem)


STEPS = (read,)


def cast(raw: Column, kind: str) -> tuple[Column, Column]:
    """Bytes as a value of a type, and whether they are none; null bytes are null."""
    text = raw.cast("string")
    typed = raw.cast("binary") if kind == "binary" else exact.of_text(text, kind)
    return typed, raw.isNotNull() & (typed.isNull() | (~utf8(raw) if kind != "binary" else F.lit(False)))
