"""Rows as aligned text or Markdown for people, or as JSON for programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from hindcast.delta.store_formats import UNKNOWN


def aligned(rows: pa.Table) -> str:
    """A header, a rule, and one line per row; numbers to the right; null as `-`; times in UTC.

    A validFrom that nobody knows is `unknown`.
    """
    names = rows.column_names
    cells = [
        ["unknown" if (name, value) in _UNKNOWN else cell(value) for name, value in row.items()]
        for row in rows.to_pylist()
    ]
    widths = [max(len(name), *(len(row[n]) for row in cells), 0) for n, name in enumerate(names)]
    right = [
        pa.types.is_integer(f.type) or pa.types.is_floating(f.type) or pa.types.is_decimal(f.type) for f in rows.schema
    ]

    def line(texts: Sequence[str]) -> str:
        placed = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True))
        return "  ".join(placed).rstrip()

    counted = "1 row" if len(cells) == 1 else f"{len(cells):,} rows"
    return "\n".join([line(names), "  ".join("-" * w for w in widths), *map(line, cells), f"({counted})"])


def markdown(rows: pa.Table) -> str:
    """A table in Markdown; what stands in its cells is text, whatever it looks like."""
    cells = [[_PUNCTUATION.sub(r"\\\g<0>", cell(value)) for value in row.values()] for row in rows.to_pylist()]
    lines = [rows.column_names, ["---"] * rows.num_columns, *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_UNKNOWN = (("validFrom", UNKNOWN), ("validFrom", UNKNOWN.isoformat()))
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def as_json(rows: pa.Table) -> str:
    """A JSON list of objects; times as ISO 8601 in UTC, decimals as numbers in text, bytes as hexadecimal text.

    JSON has no NaN and no infinity: they are the texts "NaN", "Infinity", "-Infinity".
    """
    return json.dumps([{name: plain(value) for name, value in row.items()} for row in rows.to_pylist()], indent=2)


def cell(value: Any) -> str:
    """One value as text; control characters are escaped, so that a value stays on its line."""
    told = plain(value, human=True)
    if told is None:
        return "-"
    text = told if isinstance(told, str) else json.dumps(told)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def text(value: Any) -> str:
    """One value as JSON has it, a text without quotes."""
    told = plain(value)
    return told if isinstance(told, str) else json.dumps(told)


def plain(value: Any, *, human: bool = False) -> Any:
    """A value as JSON has it (`as_json`); for people a moment without its zone."""
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return moment.replace(tzinfo=None).isoformat(" ") if human else moment.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: plain(part, human=human) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part, human=human) for part in value]
    return value
