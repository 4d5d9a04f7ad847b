"""The rows that a run's gates found, as changes: what is now, what is proposed, and which record proposes it.

For the quality page and for the report of a run (templates: hindcast/report/failing.html).
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from hindcast.common.column_values import ColumnValue
from hindcast.common.json_values import JsonObject, JsonValue, StoredObject
from hindcast.common.settings import Settings
from hindcast.contract import Contract, list_shapes
from hindcast.contract.bound import bind_contract
from hindcast.quality import entry_masks, failing_sample, held_change, rows_before
from hindcast.query import read
from hindcast.query.cut_values import cut_text

MAX_ROWS = 20
"""How many failing rows of a gate are shown; `hindcast failing` lists all."""

MAX_SECONDS = 2.0
"""How long finding what was there before may take for a page; other rows are shown as they are proposed."""

FailingRows: TypeAlias = Mapping[tuple[str, int], list[JsonObject]]
"""Rows by table and number of the gate."""


def read_failing_rows(
    settings: Settings, contract: Contract, run: int, of_key: tuple[str, str] | None = None
) -> FailingRows:
    """Return the first rows that a run's gates found, without what is sensitive; TableError if they are unreadable.

    `of_key`: only those of this table and key (JSON).

    Each has `key` (JSON), `row`, `cells` (`held_change.Cell`), `valid`, `entry`, `change`, the `record`, `isNew` (the
    table had no row there before the run), and `plane`: what the address of its plane asks, None if the key is hidden.
    `entry` of a row that the run released is `released`; such a row has `heldBy`, the run that held it back.
    """
    entries = failing_sample.sample_entries(settings.warehouse, contract.pipeline, run, MAX_ROWS, of_key).to_pylist()
    masks = entry_masks.find_masks(bind_contract(contract, settings), {entry["table"] for entry in entries})
    shapes, found = list_shapes(contract), dict[tuple[str, int], list[JsonObject]]()
    masked = [
        entry_masks.mask_row(entry["row"], masks.columns[entry["table"]], masks.path)
        if entry["row"] is not None and entry["table"] in masks.columns
        else None
        for entry in entries
    ]
    replaced, new = _find_replaced_rows(settings, contract, run, entries, masked)
    for n, (entry, row) in enumerate(zip(entries, masked, strict=True)):
        is_released = entry["run"] != run
        if entry["gate"] is None or (is_released and not _has_gate(contract, entry)):
            continue
        name, is_hidden = entry["table"], masks.hides_key(entry["table"], entry["key"])
        key = shapes[name].key if name in shapes else ()
        cells = held_change.list_cells(row, replaced.get(n), key) if row is not None else []
        place = {column: entry[column] for column in ("topic", "partition", "offset")}
        found.setdefault((name, entry["gate"]), []).append(
            {
                "entry": "released" if is_released else entry["entry"],
                **({"heldBy": entry["run"]} if is_released else {}),
                "change": entry["change"],
                "isNew": n in new,
                "key": "***" if is_hidden else entry["key"],
                "row": entry_masks.parse_object(row, masks.path) if row is not None else None,
                "cells": [
                    {**cell._asdict(), "before": cut_text(cell.before), "after": cut_text(cell.after)} for cell in cells
                ],
                "valid": held_change.describe_period(row) if row is not None else "",
                "record": None if None in place.values() else place,
                "plane": None if is_hidden else _ask_plane(settings, contract, name, entry["key"], row, masks.path),
            }
        )
    return found


def _has_gate(contract: Contract, entry: StoredObject) -> bool:
    """Return whether the gate of an entry is still in the contract, which may have another of this number."""
    known = contract.expectations(entry["table"]) if entry["table"] in (*contract.topics, *contract.views) else ()
    return entry["expectation"] in [gate.type for gate in known[entry["gate"] :][:1]]


def _find_replaced_rows(
    settings: Settings,
    contract: Contract,
    run: int,
    entries: Sequence[StoredObject],
    masked: Sequence[str | None],
) -> tuple[dict[int, str], set[int]]:
    """Return what failing rows replace, by their places, and the places of those that replace nothing.

    A held change says what it would close; for other rows it is in their table (rows_before.py).
    """
    closed: dict[_ChangeGroup, list[str]] = {}
    for entry, row in zip(entries, masked, strict=True):
        if entry["change"] == "close" and row is not None:
            closed.setdefault(_group_change(entry, row), []).append(row)
    replaced, new, left = dict[int, str](), set[int](), dict[str, list[int]]()
    for n, (entry, row) in enumerate(zip(entries, masked, strict=True)):
        if row is None or entry["gate"] is None or entry["change"] != "open":
            continue
        former = held_change.find_replaced_row(row, closed.get(_group_change(entry, row), []))
        if former is None:
            left.setdefault(entry["table"], []).append(n)
        else:
            replaced[n] = former
    end = time.monotonic() + MAX_SECONDS
    for name, places in left.items():
        rows = [{"key": entries[n]["key"], "row": masked[n], "offset": entries[n]["offset"]} for n in places]
        seconds = end - time.monotonic()
        if seconds <= 0:
            break
        found = rows_before.find_rows_before(settings.warehouse, contract, name, run, rows, seconds)
        for place, former in found.items():
            if former is None:
                new.add(places[place])
            else:
                replaced[places[place]] = former
    return replaced, new


_ChangeGroup: TypeAlias = tuple[str, str, held_change.Record | None]


def _group_change(entry: StoredObject, row: str) -> _ChangeGroup:
    """Return what an entry has in common with that of the row which it replaces: the table, the key, and the event."""
    record = entry["topic"], entry["partition"], entry["offset"]
    return entry["table"], entry["key"], held_change.find_event(row, record)


def _ask_plane(
    settings: Settings, contract: Contract, name: str, key: str, row: str | None, path: str
) -> JsonObject | None:
    """Return what the address of the plane of a failing row asks; None if the contract has no such table."""
    if name not in (*contract.topics, *contract.views):
        return None
    table, kinds = read.locate_table(settings.warehouse, contract, name), list_shapes(contract)[name].key
    fields = entry_masks.parse_object(key, path, str)  # decimals keep their digits
    if {*fields} != {*table.key} or None in fields.values():
        return None
    values = [
        _decode_bytes(fields[column]) if kinds.get(column) == "binary" else fields[column] for column in table.key
    ]
    begin, _ = held_change.find_period(row) if row is not None else ("", "")
    asked: JsonObject = {"table": name, "key": read.format_key(table, values)}
    return {**asked, "asOf": begin} if begin else asked


def _decode_bytes(text: JsonValue) -> ColumnValue:
    """Return the bytes that an entry has as base64; other texts as they are."""
    try:
        return b64decode(str(text), validate=True)
    except ValueError:
        return text
