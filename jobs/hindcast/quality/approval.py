"""Approval: held changes as a person is shown them, one line per key, and the keys that the person chooses.

A key's `label` stays the same while what is held of the key does, so a chosen label leads back to its key.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from hindcast.common.errors import RequestError, show_briefly
from hindcast.common.plurals import format_count
from hindcast.contract import Contract, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.quality import entry_masks, failing_rows, gate_words, held_change, held_changes
from hindcast.quality.expectations import format_gate
from hindcast.query import cut_values, show
from hindcast.store import tables

MAX_SHOWN_KEYS = 200
"""The number of keys that a form shows; `hindcast failing` lists the others."""

MAX_SHOWN_CHARACTERS, MAX_SHOWN_BYTES = 300, 100_000
"""How much of a key, a row and a reason a form shows, and of all together, as Markdown."""


ASK_AGAIN = "clear the task approve in Airflow, and answer what it asks; nothing was published or rejected"
"""How a person who has not answered can."""


class HeldKey(NamedTuple):
    """A key (JSON) whose change is held, with the number of its `rows` and of those that are `failing`.

    `row` (JSON), `reason` and the place of the record are those of the first failing row. `label`, `shown` and `row`
    have no sensitive values; `label` is cut, with a hash of the whole. `hidden_label`: what it is while the key is
    sensitive.
    """

    label: str
    hidden_label: str
    table: str
    key: str
    shown: str
    rows: int
    failing: int
    row: str
    reason: str
    topic: str | None
    partition: int | None
    offset: int | None
    replaced: str | None = None
    """The row (JSON) that `row` would replace."""


def read_held_keys(contract: BoundContract, until: datetime | None = None) -> list[HeldKey]:
    """Return the keys that are held and not rejected, by table; with `until` those whose entries are not newer.

    Keys of tables that are no longer in the contract are left out: nothing of these can be published.
    """
    warehouse = contract.warehouse
    by_key: dict[tuple[str, str], list[_HeldRow]] = {}
    for row in held_changes.read_held_rows(warehouse, contract.pipeline).to_pylist():
        if row["entry"] == "held" and row["table"] in (*contract.topics, *contract.views):
            held = _HeldRow(*map(row.get, _HeldRow._fields))
            by_key.setdefault((row["table"], row["key"]), []).append(held)
    masks = entry_masks.find_masks(contract, {table for table, _ in by_key})
    secret = identify_table(contract) if by_key else ""
    return [
        _build_held_key(table, key, rows, secret, masks)
        for (table, key), rows in sorted(by_key.items())
        if until is None or all(row.at <= until for row in rows)
    ]


def describe_keys(
    contract: Contract, keys: Sequence[HeldKey], gate_lines: Mapping[tuple[str, int], str] = MappingProxyType({})
) -> tuple[str, list[str]]:
    """Return Markdown for the person who decides, and the labels of the keys that it shows.

    It is a table with a line per key, which has its first failing row as a change: what is proposed, and what it would
    replace. The text says what the table leaves out. `gate_lines`: where gates stand (`gate_words.locate_gates`).
    """
    rows = [
        {
            "table": key.table,
            "key": _cut(key.shown),
            "now → proposed": _cut(held_change.describe_values(key.row, key.replaced, _list_key(contract, key.table))),
            "valid": _cut(held_change.describe_period(key.row)),
            "gate": _cut(describe_gates(contract, key.table, key.reason, gate_lines)),
            "failing rows": f"{key.failing:,} of {key.rows:,}",
            "record": _describe_record(key),
        }
        for key in keys[:MAX_SHOWN_KEYS]
    ]
    lines = show.format_markdown(pa.Table.from_pylist(rows)).split("\n")
    sizes = accumulate(len(line.encode()) + 1 for line in lines)
    lines = [line for line, size in zip(lines, sizes, strict=True) if size <= MAX_SHOWN_BYTES]
    shown = keys[: len(lines) - _HEADER_LINES]
    rest, command = len(keys) - len(shown), f"hindcast failing {contract.pipeline} --held"
    more = [f"... and {format_count(rest, 'more key')}: {command}"] if rest else []
    if any(len(text) > MAX_SHOWN_CHARACTERS for key in shown for text in (key.shown, key.row, key.reason)):
        more.append(f"Long texts are cut; this shows them whole: {command}")
    return "\n\n".join(["\n".join(lines), *more]), [key.label for key in shown]


def describe_gates(
    contract: Contract, table: str, reasons: str, lines: Mapping[tuple[str, int], str] = MappingProxyType({})
) -> str:
    """Return the gates that a key fails, its `reasons`: those of the contract in words, with their `lines` in it."""
    known = {format_gate(gate.type, gate.kwargs): n for n, gate in enumerate(contract.expectations(table))}
    texts = []
    for reason in reasons.split(_AND):
        if (number := known.get(reason)) is None:
            texts.append(reason)
            continue
        gate = contract.expectations(table)[number]
        line = lines.get((table, number))
        texts.append(gate_words.describe_rule(gate.type, gate.kwargs) + (f" ({line})" if line else ""))
    return _AND.join(texts)


_AND = "; "


def _list_key(contract: Contract, table: str) -> tuple[str, ...]:
    return tuple(list_shapes(contract)[table].key)


def _describe_record(key: HeldKey) -> str:
    return "" if key.topic is None else f"{key.topic}, partition {key.partition}, offset {key.offset}"


_HEADER_LINES, _HIDDEN = 2, "***"


def _cut(text: str) -> str:
    return cut_values.cut_text(text, MAX_SHOWN_CHARACTERS)


def identify_table(contract: BoundContract) -> str:
    """Return what tells the table of what is held back from that of a pipeline that takes the name; empty if none."""
    delta_table = tables.open_table(failing_rows.failing_table(contract.warehouse, contract.pipeline))
    return str(delta_table.metadata().id) if delta_table else ""


def refuse_other_table(contract: BoundContract, asked: str) -> None:
    """Raise RequestError if a question was about another table (`identify_table`); an older question does not say."""
    if asked and asked != identify_table(contract):
        found = "another pipeline has taken its place since the question was asked"
        fix = f"trigger {contract.pipeline}__release again: it asks about what is held now"
        raise RequestError(found, where=contract.pipeline, fix=fix)


def choose_keys(contract: BoundContract, until: datetime, labels: str) -> dict[str, list[str]]:
    """Return the keys (JSON), by table, that `labels` (a JSON list) name and that were held at `until`.

    Print the labels whose keys are no longer held as they were shown. RequestError for no labels: they do not mean all
    keys, of which a person may have been shown only some. Also for keys that were shown and are hidden now.
    """
    try:
        asked = json.loads(labels or "null")
    except (ValueError, RecursionError):
        asked = labels
    if not asked:
        raise RequestError("the answer is about no keys", where=contract.pipeline, fix=ASK_AGAIN)
    if not isinstance(asked, list) or not all(isinstance(label, str) for label in asked):
        raise RequestError("the chosen keys are no list of texts", where=contract.pipeline, fix="choose from the form")
    keys, chosen_labels = read_held_keys(contract, until), {*asked}
    chosen: dict[str, list[str]] = {}
    for key in keys:
        if not chosen_labels.isdisjoint((key.label, key.hidden_label)):  # also if it was sensitive when it was shown
            chosen.setdefault(key.table, []).append(key.key)
    hidden = {_cut(f"{key.table} {key.key}"): key.table for key in keys if key.shown == _HIDDEN}
    for label in sorted(chosen_labels - {label for key in keys for label in (key.label, key.hidden_label)}):
        if label in hidden:
            found = f"the keys of {hidden[label]} are hidden now, and were shown when the question was asked"
            raise RequestError(found, where=contract.pipeline, fix=ASK_AGAIN)
        in_contract = any(label.startswith(f"{name} ") for name in (*contract.topics, *contract.views))
        reason = "is no longer held as it was shown" if in_contract else "its table is no longer in the contract"
        print(f"{show_briefly(label)}: {reason}; it is left unchanged")
    return chosen


class _HeldRow(NamedTuple):
    """A row of a held change, and the first gate that it fails with all reasons, if it fails any (failing_rows.py)."""

    run: int
    at: datetime
    gate: int | None
    expectation: str | None
    reason: str | None
    row: str
    topic: str | None
    partition: int | None
    offset: int | None
    change: str


def _build_held_key(
    table: str, key: str, rows: Sequence[_HeldRow], secret: str, masks: entry_masks.EntryMasks
) -> HeldKey:
    """Return the held key of some rows.

    With the `secret` a key that is hidden is replaced by a mark that cannot be checked by guessing keys.
    """
    failing = [row for row in rows if row.expectation is not None]
    first = min(failing or rows, key=lambda row: (row.gate or 0, row.offset or 0, row.row))
    place = first.topic, first.partition, first.offset
    reason = _AND.join(dict.fromkeys(row.reason for row in failing if row.reason))
    at = f"topic {place[0]}, partition {place[1]}, offset {place[2]}" if place[0] else f"held by run {first.run}"
    mark = hmac.digest(secret.encode(), f"{table} {key}".encode(), "sha256").hex()[:8]
    shown = _HIDDEN if masks.hides_key(table, key) else key
    hidden_label = _cut(f"{table} {_HIDDEN} ({at}) {mark}")
    label = hidden_label if shown == _HIDDEN else _cut(f"{table} {key}")
    event = held_change.find_event(first.row, place)
    closed = [
        row.row
        for row in rows
        if row.change == "close" and held_change.find_event(row.row, (row.topic, row.partition, row.offset)) == event
    ]
    replaced = held_change.find_replaced_row(first.row, closed)
    row, former = (
        entry_masks.mask_row(text, masks.columns[table], masks.path) if text is not None else None
        for text in (first.row, replaced)
    )
    return HeldKey(label, hidden_label, table, key, shown, len(rows), len(failing), row or "{}", reason, *place, former)
