"""Hides what the contract calls sensitive today in entries of `failing`, which may be older than its marks."""

from __future__ import annotations

import json
from collections.abc import Collection

import pyarrow as pa

from hindcast.contract import Contract, list_shapes
from hindcast.contract.sensitive import find_sensitive_columns


def mask_entries(contract: Contract, rows: pa.Table) -> pa.Table:
    """Return entries with `***` for keys that have a sensitive column, and rows without sensitive columns.

    The record's place still identifies them. A table that is not in the contract may have had any column marked: its
    keys are hidden, and its rows are null.
    """
    hidden, tables = find_sensitive_columns(contract), {*contract.topics, *contract.views}
    shown_keys = tables - find_hidden_keys(contract)
    names, keys, texts = (rows.column(column).to_pylist() for column in ("table", "key", "row"))
    masked = {
        "key": [key if name in shown_keys else "***" for name, key in zip(names, keys, strict=True)],
        "row": [
            mask_row(text, hidden[name]) if text is not None and name in tables else None
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


def mask_row(row: str, hidden: Collection[str]) -> str:
    """Return a row (JSON) without its hidden columns.

    >>> mask_row('{"item":"curry","price":8}', ["item"])
    '{"price":8}'
    """
    columns = json.loads(row)
    if columns.keys().isdisjoint(hidden):
        return row
    left = {name: value for name, value in columns.items() if name not in hidden}
    return json.dumps(left, ensure_ascii=False, separators=(",", ":"))
