"""What a person is asked about changes that are held back: one line for each key, of which some can be chosen.

A key is named by its `label`, which is the same as long as what is held of it is: so an answer can be read back.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from hindcast import show
from hindcast.contracts import Contract, shapes
from hindcast.contracts.sensitive import sensitive
from hindcast.delta import tables
from hindcast.errors import show_briefly
from hindcast.quality import holds
from hindcast.words import counted

SHOWN = 200
"""So many keys a form shows; the others are found by `hindcast failing`."""


class HeldKey(NamedTuple):
    """A key (JSON) whose change is held: `rows` of the change, of which so many are `failing`.

    `row` (JSON), `reason` and the place of the record are those of the first failing row. `label` and `shown` name the
    key without what is sensitive.
    """

    label: str
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


def read_held_keys(warehouse: str, contract: Contract, until: datetime | None = None) -> list[HeldKey]:
    """Return the keys that are held and not rejected, by table; with `until` those that have been held so since.

    Of a table that is not in the contract any more nothing can be published: its keys are left out.
    """
    by_key: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in holds.held(warehouse, contract.pipeline).to_pylist():
        if row["entry"] == "held" and row["table"] in (*contract.topics, *contract.views):
            by_key.setdefault((row["table"], row["key"]), []).append(row)
    hidden = {name for name, columns in sensitive(contract).items() if columns & {*shapes(contract)[name].key}}
    found = tables.opened(holds.table(warehouse, contract.pipeline)) if hidden else None
    secret = str(found.metadata().id) if found else ""
    return [
        _held_key(table, key, rows, secret if table in hidden else "")
        for (table, key), rows in sorted(by_key.items())
        if until is None or all(row["at"] <= until for row in rows)
    ]


def describe(contract: Contract, keys: Sequence[HeldKey]) -> str:
    """Return keys for a person who decides, in Markdown: one line each, with its first failing row."""
    lines: list[dict[str, Any]] = [
        {"table": key.table, "key": key.shown, "row": key.row, "reason": key.reason}
        | {"failing rows": f"{key.failing:,} of {key.rows:,}", "topic": key.topic, "offset": key.offset}
        for key in keys[:SHOWN]
    ]
    rest = len(keys) - SHOWN
    more = f"\n\n... and {counted(rest, 'more key')}: hindcast failing {contract.pipeline} --held" if rest > 0 else ""
    return f"{show.markdown(pa.Table.from_pylist(lines))}{more}"


def choose_keys(warehouse: str, contract: Contract, until: datetime, labels: str) -> dict[str, list[str]]:
    """Return the keys (JSON) by table that labels (a JSON list) name, all for none, of what was held so at `until`.

    Says which are not held any more as they were shown.
    """
    keys, wanted = read_held_keys(warehouse, contract, until), json.loads(labels or "[]") or []
    chosen: dict[str, list[str]] = {}
    for key in keys:
        if not wanted or key.label in wanted:
            chosen.setdefault(key.table, []).append(key.key)
    for label in sorted({*wanted} - {key.label for key in keys}):
        of_known = any(label.startswith(f"{name} ") for name in (*contract.topics, *contract.views))
        why = "is not held any more as it was shown" if of_known else "its table is not in the contract any more"
        print(f"{show_briefly(label)}: {why}; it is left as it is")
    return chosen


def _held_key(table: str, key: str, rows: Sequence[dict[str, Any]], secret: str) -> HeldKey:
    """Return what is held of a key; `secret` hides it behind a mark that no guess of the key leads to."""
    failing = [row for row in rows if row["expectation"] is not None]
    first = min(failing or rows, key=lambda row: (row["gate"] or 0, row["offset"] or 0, row["row"]))
    place = first["topic"], first["partition"], first["offset"]
    reason = "; ".join(dict.fromkeys(row["reason"] for row in failing if row["reason"]))
    label, shown = f"{table} {key}", key
    if secret:
        at = f"topic {place[0]}, partition {place[1]}, offset {place[2]}" if place[0] else f"held by run {first['run']}"
        mark = hmac.digest(secret.encode(), f"{table} {key}".encode(), "sha256").hex()[:8]
        label, shown = f"{table} *** ({at}) {mark}", "***"
    return HeldKey(label, table, key, shown, len(rows), len(failing), first["row"], reason, *place)
