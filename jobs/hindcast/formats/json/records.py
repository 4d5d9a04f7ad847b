"""One record after the other, exactly: the values of its columns, or what is wrong with it.

This is what a record means. `batches` reads plain records faster, and leaves all others to it.
"""

from __future__ import annotations

from typing import NamedTuple

from hindcast.common.column_values import ColumnValue
from hindcast.contract.avro import FieldType, RecordType
from hindcast.formats.json.syntax import JsonObject, JsonValue, allow_depth, parse_json
from hindcast.formats.json.values import BITS, Misfit, convert, has_json_type, parse_loose

_SHOWN = 200
_LOOSE = {*BITS, "float", "double", "boolean"}
"""Types that lenient reads from text too. Decimals and moments are read from text in any mode."""


def show_bytes(raw: bytes) -> str:
    """Return the beginning of bytes as text, for an error message."""
    text = raw.decode(errors="replace")
    return f"{text[:_SHOWN]}{'...' if len(text) > _SHOWN else ''}"


class ColumnShape(NamedTuple):
    """A column: the names that its field can have, in order of preference, and its type."""

    name: str
    fields: tuple[str, ...]
    type: FieldType


class RecordShape(NamedTuple):
    """What to read from records.

    `mode`: the contract's; `refusal`: the beginning of a message for what is no such object; `place`: of one for what
    is wrong within it.
    """

    columns: tuple[ColumnShape, ...]
    mode: str
    refusal: str
    place: str


class RecordReader:
    """Reads records of a shape."""

    def __init__(self, shape: RecordShape) -> None:
        self._shape = shape
        lenient = shape.mode == "lenient"
        self._columns = [(*column, lenient and str(column.type) in _LOOSE) for column in shape.columns]
        types = {field: type_ for _, fields, type_, is_loose in self._columns for field in fields if not is_loose}
        self._type = RecordType(types)

    def read(self, raw: bytes) -> tuple[dict[str, ColumnValue] | None, str | None]:
        """Return the columns of a record (`values.convert`), or None and what is wrong with it."""
        try:
            text = raw.decode()
            with allow_depth(text):
                return self._read_object(parse_json(text, lenient=self._shape.mode == "lenient")), None
        except Misfit as misfit:
            return None, f"{self._shape.place}{misfit}"
        except ValueError:
            return None, f"{self._shape.refusal}{show_bytes(raw)}"

    def _read_object(self, found: JsonValue) -> dict[str, ColumnValue]:
        if not isinstance(found, JsonObject) or not has_json_type(found, self._type):
            raise ValueError("not such an object")
        last = dict(found.fields)
        if self._shape.mode == "strict" and not self._has_exact_fields(found):
            raise ValueError("other fields")
        sent = [next((last[it] for it in fields if it in last), None) for _, fields, _, _ in self._columns]
        loose = [
            parse_loose(it, str(type_)) if is_loose else None
            for it, (_, _, type_, is_loose) in zip(sent, self._columns, strict=True)
        ]
        return {
            name: known if is_loose else convert(it, type_, name)
            for it, known, (name, _, type_, is_loose) in zip(sent, loose, self._columns, strict=True)
        }

    def _has_exact_fields(self, found: JsonObject) -> bool:
        names = {name for name, _ in found.fields}
        return len(found.fields) == len(self._columns) and all(names & {*fields} for _, fields, _, _ in self._columns)
