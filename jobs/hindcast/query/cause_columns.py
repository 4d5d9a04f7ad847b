"""The column `causes` beside lines of changes: the records that caused each (change_causes.py)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pyarrow as pa

from hindcast.query.change_causes import Cause

NAME = "causes"
_TYPE = pa.list_(
    pa.struct([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("lateMs", pa.int64())])
)


def append_causes(rows: pa.Table, causes: Sequence[Sequence[Cause]]) -> pa.Table:
    """Return rows with the records that caused each: their places, and `lateMs`, null if that is not known."""
    found = [[{**cause.place, "lateMs": _count_late(cause)} for cause in some] for some in causes]
    return rows.append_column(_choose_name(rows), pa.array(found, _TYPE))


def append_texts(rows: pa.Table, causes: Sequence[Sequence[Cause]]) -> pa.Table:
    """Return rows with the records that caused each as a text for people."""
    texts = ["; ".join(map(str, some)) or None for some in causes]
    return rows.append_column(_choose_name(rows), pa.array(texts, pa.string()))


def _choose_name(rows: pa.Table) -> str:
    """Return the name of the column: with underscores if others have it."""
    name = NAME
    while name in rows.column_names:
        name += "_"
    return name


def _count_late(cause: Cause) -> int | None:
    return None if cause.late is None else cause.late // timedelta(milliseconds=1)
