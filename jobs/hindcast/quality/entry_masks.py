"""Hides what is sensitive today in entries of `failing`, which may be older than the marks of it (plan/marks.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from hindcast.common.errors import TableError
from hindcast.common.json_values import JsonObject
from hindcast.contract import list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import marks
from hindcast.quality import failing_rows


class EntryMasks(NamedTuple):
    """By table the `columns` that rows may show, and those of its key (`keys`).

    Columns that left the contract are none of these: they may have been marked before. `path`: of the table `failing`.
    """

    columns: Mapping[str, frozenset[str]]
    keys: Mapping[str, frozenset[str]]
    path: str

    def hides_key(self, table: str, key: str) -> bool:
        """Return whether a key (JSON) has a column that may not be shown: a sensitive one, or one of a former key."""
        if table not in self.keys or not self.keys[table] <= self.columns[table]:
            return True
        return not parse_object(key, self.path).keys() <= self.keys[table]


def parse_object(text: str, path: str, parse_float: Callable[[str], float | str] = float) -> JsonObject:
    """Return a key or a row from its JSON; raise TableError, which does not quote it, if it is no object.

    `path`: of the table.
    """
    with suppress(ValueError, RecursionError):
        if isinstance(parsed := json.loads(text, parse_float=parse_float), dict):
            return parsed
    found = "the key or the row of an entry is not the JSON of an object. Hindcast did not write this"
    fix = "RESTORE the table to the last version that Hindcast wrote (DESCRIBE HISTORY names the writers)"
    raise TableError(found, where=path, fix=fix)


def find_masks(contract: BoundContract, names: Collection[str]) -> EntryMasks:
    """Return what to hide in entries of these tables, of which those that are not in the contract are left out."""
    known = {*names}.intersection((*contract.topics, *contract.views))
    shapes, marked = list_shapes(contract), marks.find_marked_columns(contract.settings, contract, known)
    return EntryMasks(
        {name: frozenset({*shapes[name].columns, *PERIOD_COLUMNS}) - hidden for name, hidden in marked.items()},
        {name: frozenset(shapes[name].key) for name in known},
        failing_rows.failing_table(contract.warehouse, contract.pipeline).path,
    )


def mask_entries(contract: BoundContract, rows: pa.Table) -> pa.Table:
    """Return entries with `***` for keys that have a sensitive column, and rows without sensitive columns.

    The record's place still identifies them. A table that is not in the contract may have had any column marked: its
    keys are hidden, and its rows are null.
    """
    names, keys, texts = (rows.column(column).to_pylist() for column in ("table", "key", "row"))
    masks = find_masks(contract, {*names})
    masked = {
        "key": ["***" if masks.hides_key(name, key) else key for name, key in zip(names, keys, strict=True)],
        "row": [
            mask_row(text, masks.columns[name], masks.path) if text is not None and name in masks.columns else None
            for name, text in zip(names, texts, strict=True)
        ],
    }
    for column, values in masked.items():
        rows = rows.set_column(rows.column_names.index(column), column, pa.array(values, pa.string()))
    return rows


def mask_row(row: str, shown: Collection[str], path: str) -> str:
    """Return a row (JSON) with only those of its columns that may be shown; numbers keep their digits.

    `path`: of the table, for the error of a row that is none (`parse_object`).

    >>> mask_row('{"item":"curry","price":8.00}', ["price"], "warehouse/shop/failing")
    '{"price":8.00}'
    """
    columns = parse_object(row, path, mark_digits)
    if columns.keys() <= {*shown}:
        return row
    left = {name: value for name, value in columns.items() if name in shown}
    return dump_digits(left, (",", ":"))


def mark_digits(digits: str) -> str:
    """Return a number's digits, for `parse_float`, as a text that `dump_digits` knows."""
    return f"\0{digits}\0"


def dump_digits(fields: JsonObject, separators: tuple[str, str] | None = None, *, is_ascii: bool = False) -> str:
    """Return the JSON of an object in which numbers have their digits (`mark_digits`)."""
    text = json.dumps(fields, ensure_ascii=is_ascii, separators=separators)
    return re.sub(r'"\\u0000([-+.0-9eE]+)\\u0000"', r"\1", text)
