"""`string`: the text of one column, in UTF-8, read exactly; of a binary column the bytes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.formats.json.batches import decode_texts
from hindcast.formats.json.columns import column_type
from hindcast.formats.json.records import show_bytes
from hindcast.formats.json.values import parse_text
from hindcast.formats.reasons import state_each
from hindcast.formats.record_part import RecordPart, part_result


class TextReader:
    """Reads batches of records whose one column is their text; of a binary column, their bytes."""

    def __init__(self, part: RecordPart) -> None:
        self._name, kind = part.single_column
        self._column = TextColumn(kind, f"the {part.name} is not {kind}: ")

    def read(self, raw: pa.Array) -> pa.StructArray:
        """Return `part_result` for each record: `2026-01-01` as a date, `4.20` as a decimal."""
        return part_result(self._name, *self._column.read(raw))


class TextColumn:
    """Reads texts as values of a type; `refusal`: the beginning of a message for what is none."""

    def __init__(self, kind: str, refusal: str) -> None:
        self._kind, self._refusal = kind, refusal
        self._type = column_type(kind)

    def read(self, raw: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the values of texts, null where there is none, or no such one; and what is wrong with each."""
        values = self.read_values(raw)
        is_bad = pc.and_(raw.is_valid(), values.is_null())
        return values, state_each(is_bad, lambda place: f"{self._refusal}{show_bytes(raw[place].as_py())}")

    def read_values(self, raw: pa.Array) -> pa.Array:
        """Return the values of texts, null where there is none, or no such one."""
        if self._kind == "binary":
            return raw
        texts = decode_texts(raw)
        if self._kind == "string":
            return texts
        values = (None if text is None else parse_text(text, self._kind) for text in texts.to_pylist())
        return pa.array(values, self._type)
