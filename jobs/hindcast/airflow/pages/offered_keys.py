"""The keys that the time machine offers to look at: those that changed, and those like a mistyped one."""

from __future__ import annotations

from collections.abc import Sequence

from hindcast.common.column_values import ColumnValue
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.plan.runs import Run
from hindcast.query import key_lists, near_keys, read
from hindcast.query.key_lists import ListedKey
from hindcast.query.show import format_key_label
from hindcast.store import tables
from hindcast.store.tables import Table


def list_keys(table: Table, past: Sequence[Run]) -> JsonObject | None:
    """Return some keys to look at: those that the last run changed, those most often corrected, and the first."""
    last = next(run for run in reversed(past) if run.state == "completed")
    found = key_lists.read_key_lists(table, last.known_at)
    if found is None:
        return None

    def show_keys(keys: Sequence[ListedKey]) -> list[JsonValue]:
        return [{**_show_key(table, key.values), "corrections": key.corrections} for key in keys]

    return {
        "total": found.total,
        "run": last.number,
        "changedTotal": found.changed_total,
        "changed": show_keys(found.changed),
        "corrected": show_keys(found.corrected),
        "first": show_keys(found.first),
    }


def list_other_keys(table: Table, past: Sequence[Run], text: str) -> JsonObject:
    """Return the keys to choose from in place of a text that is none: those `near` it, and some `keys` to look at."""
    if tables.open_table(table) is None:
        return {}
    last = read.read_last_known_at(table.warehouse, table.pipeline)
    near = [_show_key(table, key) for key in near_keys.find_near_keys(table, text, last)]
    return {"near": [*near], "keys": list_keys(table, past)}


def _show_key(table: Table, key: Sequence[ColumnValue]) -> JsonObject:
    return {"key": read.format_key(table, key), "label": format_key_label(key)}
