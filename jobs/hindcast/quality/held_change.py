"""One held change as people read it: what was, what is proposed, and for which time.

held rows of a key    close {"price": 8.00, "validFrom": 0, "validTo": null}
                      open  {"price": 8.00, "validFrom": 0, "validTo": 4}
                      open  {"price": 0.00, "validFrom": 4, "validTo": null}    fails a gate
text                  price 8.00 → 0.00    from 4
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from hindcast.common.json_values import JsonObject
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.query.show import format_text

_PERIODS = (("validFrom", "validTo"), ("windowStart", "windowEnd"), ("timestamp", ""))
"""The columns of the period of each kind of table."""


def find_replaced_row(row: str, closed: Iterable[str]) -> str | None:
    """Return the row (JSON) that a held row (JSON) replaces where it begins: of those that the change would close.

    Of an event these are the rows of its record (`find_event`); of several, nothing tells which of them it is.
    """
    begin, _ = find_period(row)
    found: list[str] = []
    for other in closed:
        fields = json.loads(other)
        first, last = find_period(other)
        if first == begin or ("validFrom" in fields and first < begin and (not last or begin < last)):
            found.append(other)
    return found[0] if len(found) == 1 or (found and not _is_event(row)) else None


Record: TypeAlias = tuple[str | None, int | None, int | None]


def find_event(row: str, record: Record) -> Record | None:
    """Return the record that tells the event of a row (JSON) from others of its key and moment; None if it is no event.

    `record`: the topic, partition and offset of the row's entry.
    """
    return record if _is_event(row) else None


def _is_event(row: str) -> bool:
    fields = json.loads(row)
    return "timestamp" in fields and "validFrom" not in fields and "windowStart" not in fields


def describe_values(row: str, replaced: str | None, key: Collection[str]) -> str:
    """Return the values of a row (JSON) that are not of its key, those that differ with what they replace.

    >>> describe_values('{"item":"curry","price":0.00,"note":"a"}', '{"price":8.00,"note":"a"}', ["item"])
    'price 8.00 → 0.00, note a'
    """
    return ", ".join(
        f"{cell.name} {f'{cell.before} → {cell.after}' if cell.differs else cell.after}"
        for cell in list_cells(row, replaced, key)
    )


class Cell(NamedTuple):
    """A value of a held row as text: what it is now (`before`), and what is proposed (`after`)."""

    name: str
    before: str
    after: str
    differs: bool


def list_cells(row: str, replaced: str | None, key: Collection[str]) -> list[Cell]:
    """Return the values of a row (JSON) that are not of its key, beside those of the row that it replaces."""
    new, old = _parse(row), _parse(replaced) if replaced is not None else {}
    shown = [name for name in new if name not in key and name not in PERIOD_COLUMNS]
    return [
        Cell(
            name,
            format_text(old[name]) if name in old else "",
            format_text(new[name]),
            name in old and old[name] != new[name],
        )
        for name in shown
    ]


def describe_period(row: str) -> str:
    """Return the time that a row (JSON) is about.

    >>> describe_period('{"validFrom":"2026-01-01T00:00:04.000000Z","validTo":null}')
    'from 2026-01-01 00:00:04'
    """
    begin, end = map(_shorten_moment, find_period(row))
    if not begin:
        return ""
    if _is_event(row):
        return f"at {begin}"
    return f"from {begin} to {end}" if end else f"from {begin}"


def _parse(row: str) -> JsonObject:
    """Return a row whose numbers keep their digits, as texts."""
    fields: JsonObject = json.loads(row, parse_float=str)
    return fields


def find_period(row: str) -> tuple[str, str]:
    """Return when the time that a row (JSON) is about begins and ends; empty texts for what it has not."""
    fields = json.loads(row)
    begin, end = next((columns for columns in _PERIODS if columns[0] in fields), ("", ""))
    return str(fields.get(begin) or ""), str(fields.get(end) or "")


def _shorten_moment(text: str) -> str:
    """Return a moment of a row without what is always the same: the zone, and a fraction that is zero."""
    return re.sub(r"\.0+$", "", text.removesuffix("Z").removesuffix("+00:00").replace("T", " "))
