"""Hides what the contract calls sensitive today in entries of `failing`, which may be older than its marks."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

import pyarrow as pa

from hindcast.contract import Contract, list_shapes
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.contract.types import PERIOD_COLUMNS


def mask_entries(contract: Contract, rows: pa.Table) -> pa.Table:
    """Return entries with `***` for keys that have a sensitive column, and rows without sensitive columns.

    The record's place still identifies them. A table that is not in the contract may have had any column marked: its
    keys are hidden, and its rows are null.
    """
    tables = {*contract.topics, *contract.views}
    shown, shown_keys = find_shown_columns(contract), tables - find_hidden_keys(contract)
    names, keys, texts = (rows.column(column).to_pylist() for column in ("table", "key", "row"))
    masked = {
        "key": [key if name in shown_keys else "***" for name, key in zip(names, keys, strict=True)],
        "row": [
            mask_row(text, shown[name]) if text is not None and name in tables else None
            for name, text in zip(names, texts, strict=True)
        ],
    }
    for column, values in masked.items():
        rows = rows.set_column(rows.column_names.index(column), column, pa.array(values, pa.string()))
    return rows


def find_hidden_keys(contract: Contract) -> frozenset[str]:
    """Return the tables whose key has a sensitive column."""
    shapes = list_shapes(contract)
    return frozenset(
        name for name, columns in find_sensitive_columns(contract).items() if columns & {*shapes[name].key}
    )


def find_shown_columns(contract: Contract) -> dict[str, frozenset[str]]:
    """Return the columns of each table that rows may show: not those that left the contract, which may have been marked
    before.
    """
    hidden = find_sensitive_columns(contract)
    return {
        name: frozenset({*shape.columns, *PERIOD_COLUMNS}) - hidden[name]
        for name, shape in list_shapes(contract).items()
    }


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
