"""Format rows: as aligned text or Markdown for people, as JSON or CSV for programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from hindcast.common.column_values import ColumnValue
from hindcast.common.json_values import JsonValue
from hindcast.common.plurals import format_count
from hindcast.common.python_values import list_rows
from hindcast.store.store_formats import UNKNOWN_TIME


def format_aligned(rows: pa.Table, width: int | None = None) -> str:
    """Return rows as text: a header, a rule, and one line per row; numbers right-aligned, null as `-`, times in UTC.

    An unknown validFrom is shown as `unknown`. If lines would be longer than `width`, there is one per value.
    """
    names, cells = rows.column_names, _format_cells(rows)
    widths = [max(len(name), *(len(row[n]) for row in cells), 0) for n, name in enumerate(names)]
    is_right = [
        pa.types.is_integer(f.type) or pa.types.is_floating(f.type) or pa.types.is_decimal(f.type) for f in rows.schema
    ]

    def line(texts: Sequence[str]) -> str:
        placed = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, is_right, strict=True))
        return "  ".join(placed).rstrip()

    if width is not None and cells and sum(widths) + 2 * (len(widths) - 1) > width:
        return _format_vertically(names, cells, width)
    row_count = format_count(len(cells), "row")
    return "\n".join([line(names), "  ".join("-" * w for w in widths), *map(line, cells), f"({row_count})"])


def _format_cells(rows: pa.Table) -> list[list[str]]:
    return [
        ["unknown" if (name, value) in _UNKNOWN_CELLS else format_cell(value) for name, value in row.items()]
        for row in list_rows(rows)
    ]


def _format_vertically(names: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> str:
    """Return rows as blocks of lines `name  value`, with the number of the row above each."""
    widest, lines = max(map(len, names)), []
    for number, row in enumerate(cells, 1):
        lines.append(f"-- {number:,} of {format_count(len(cells), 'row')} ".ljust(min(width, 60), "-"))
        lines += [f"{name.ljust(widest)}  {cell}" for name, cell in zip(names, row, strict=True)]
    return "\n".join(lines)


def format_moment(moment: datetime) -> str:
    """Return a moment in its shortest form: `2026-01-01`, `2026-01-01 00:03`, `2026-01-01 00:03:00.5`, `unknown`."""
    if moment == UNKNOWN_TIME:
        return "unknown"
    text = moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    if "." in text:
        return text.rstrip("0")
    return text.removesuffix(":00").removesuffix(" 00:00")


def format_markdown(rows: pa.Table) -> str:
    """Return rows as a Markdown table; punctuation in cells is escaped."""
    cells = [[_PUNCTUATION.sub(r"\\\g<0>", format_cell(value)) for value in row.values()] for row in list_rows(rows)]
    lines = [rows.column_names, ["---"] * rows.num_columns, *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_UNKNOWN_CELLS = (("validFrom", UNKNOWN_TIME), ("validFrom", UNKNOWN_TIME.isoformat()))
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def as_json(rows: pa.Table) -> str:
    """Return rows as a JSON list of objects; times as ISO 8601 in UTC, decimals as text, bytes as hexadecimal text.

    JSON has no NaN and no infinity: they become the texts "NaN", "Infinity" and "-Infinity".
    """
    return json.dumps([{name: plain_value(value) for name, value in row.items()} for row in list_rows(rows)], indent=2)


def as_csv(rows: pa.Table, *, for_spreadsheets: bool = False) -> str:
    """Return rows as CSV with a header: null is empty, an empty text is "", nested values are JSON.

    Other values are as in `as_json`. `for_spreadsheets`: an apostrophe is before what a spreadsheet would run as a
    formula; numbers stay as they are.
    """

    def quote(text: str) -> str:
        return '"{}"'.format(text.replace('"', '""')) if not text or _CSV_SPECIAL.intersection(text) else text

    lines = [[quote(name) for name in rows.column_names]]
    for row in list_rows(rows):
        texts = [_format_for_csv(value, for_spreadsheets=for_spreadsheets) for value in row.values()]
        lines.append(["" if text is None else quote(text) for text in texts])
    return "".join(f"{','.join(line)}\n" for line in lines)


_CSV_SPECIAL = frozenset(',"\r\n')


def _format_for_csv(value: ColumnValue, *, for_spreadsheets: bool) -> str | None:
    plain = plain_value(value)
    if plain is None:
        return None
    text = plain if isinstance(plain, str) else json.dumps(plain)
    return _disarm_formula(text) if for_spreadsheets and isinstance(value, str | list | tuple | dict) else text


def _disarm_formula(text: str) -> str:
    """Return a text with an apostrophe before each part of it that begins like a formula.

    Where the list separator is not a comma, a spreadsheet ends a cell at semicolons, tabs or lines within it, whatever
    the quotation marks.
    """
    return _FORMULA_START.sub("'", text)


_SKIPPED = r'[\s"\x00-\x1f\xa0\xad\u200b-\u200f\u2060\ufeff]*'
_FORMULA_START = re.compile(rf"(?:^|(?<=[;\t\r\n]))(?={_SKIPPED}[=+\-@＝＋－＠])")  # noqa: RUF001  # full-width ones too
"""The beginning of a text or of a part of it, before what spreadsheets skip and a sign that begins a formula."""


def format_key_label(values: Sequence[ColumnValue]) -> str:
    """Return the values of a key for people: `north · blue`."""
    return " · ".join(map(format_cell, values))


def format_cell(value: ColumnValue) -> str:
    """Return one value as text on one line: control characters are escaped."""
    plain = plain_value(value, human=True)
    if plain is None:
        return "-"
    text = plain if isinstance(plain, str) else json.dumps(plain)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def format_text(value: ColumnValue) -> str:
    """Return one value as JSON, but a text without quotes."""
    plain = plain_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def plain_value(value: ColumnValue, *, human: bool = False) -> JsonValue:
    """Return a value as JSON can hold it (`as_json`); with `human`, a timestamp without its zone."""
    match value:
        case datetime():
            moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
            return moment.replace(tzinfo=None).isoformat(" ") if human else moment.isoformat()
        case float() if not math.isfinite(value):
            return json.dumps(value)
        case date() | Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case bool() | int() | float() | str() | None:
            return value
        case Mapping():
            return {name: plain_value(part, human=human) for name, part in value.items()}
        case _:
            return [plain_value(part, human=human) for part in value]
