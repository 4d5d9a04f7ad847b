"""Hides what is sensitive today in entries of `failing`, which may be older than the marks of it (plan/marks.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import pyarrow as pa

from hindcast.contract import list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import marks


class EntryMasks(NamedTuple):
    """By table the `columns` that rows may show, and those of its key (`keys`).

    Columns that left the contract are none of these: they may have been marked before.
    """

    columns: Mapping[str, frozenset[str]]
    keys: Mapping[str, frozenset[str]]

    def hides_key(self, table: str, key: str) -> bool:
        """Return whether a key (JSON) has a column that may not be shown: a sensitive one, or one of a former key."""
        if table not in self.keys or not self.keys[table] <= self.columns[table]:
            return True
        return not json.loads(key).keys() <= self.keys[table]


def find_masks(contract: BoundContract, names: Collection[str]) -> EntryMasks:
    """Return what to hide in entries of these tables, of which those that are not in the contract are left out."""
    known = {*names}.intersection((*contract.topics, *contract.views))
    shapes, marked = list_shapes(contract), marks.find_marked_columns(contract.settings, contract, known)
    return EntryMasks(
        {name: frozenset({*shapes[name].columns, *PERIOD_COLUMNS}) - hidden for name, hidden in marked.items()},
        {name: frozenset(shapes[name].key) for name in known},
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
            mask_row(text, masks.columns[name]) if text is not None and name in masks.columns else None
            for name, text in zip(names, texts, strict=True)
        ],
    }
    for column, values in masked.items():
        rows = rows.set_column(rows.column_names.index(column), column, pa.array(values, pa.string()))
    return rows


def mask_row(row: str, shown: Collection[str]) -> str:
    """Return a row (JSON) with only those of its columns that may be shown; numbers keep their digits.

    >>> mask_row('{"item":"curry","price":8.00}', ["price"])
    '{"price":8.00}'
    """
    columns = json.loads(row, parse_float=lambda digits: f"\0{digits}\0")
    if columns.keys() <= {*shown}:
        return row
    left = {name: value for name, value in columns.items() if name in shown}
    text = json.dumps(left, ensure_ascii=False, separators=(",", ":"))
    return re.sub(r'"\\u0000([-+.0-9eE]+)\\u0000"', r"\1", text)
