"""The keys whose changes wait for a person's decision: which they are, by which gate, and of which record."""

from __future__ import annotations

from functools import partial

import duckdb

from hindcast.common.errors import HindcastError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.bound import bind_contract
from hindcast.contract.sensitive import REDACTED
from hindcast.quality import approval, entry_masks, held_changes
from hindcast.query.cut_values import cut_text
from hindcast.query.explain_limits import EngineLimitError, open_limited_engine

MAX_KEYS = 5
"""How many keys are named."""
SECONDS, MEMORY = 1.0, 256 << 20
"""How long finding them may take, and the memory for it: a page does without."""


def list_waiting_keys(settings: Settings, contract: Contract) -> list[JsonObject]:
    """Return the first keys that wait, each with its `table`, the `rule` that it fails as a sentence, the `run` since
    which it waits, and the place of its `record` (None: it is of several); none if they are not found in time.
    """
    engine = partial(open_limited_engine, seconds=SECONDS, memory=MEMORY)
    try:
        found = held_changes.list_first_keys(settings.warehouse, contract.pipeline, MAX_KEYS, engine).to_pylist()
        masks = entry_masks.find_masks(bind_contract(contract, settings), {row["table"] for row in found})
        return [
            {
                "table": row["table"],
                "key": REDACTED if masks.hides_key(row["table"], row["key"]) else _name_key(row["key"], masks.path),
                "rule": cut_text(approval.describe_gates(contract, row["table"], row["reason"] or "")),
                "run": row["run"],
                "record": {name: row[name] for name in ("topic", "partition", "offset")} if row["topic"] else None,
            }
            for row in found
            if row["table"] in masks.keys
        ]
    except (HindcastError, EngineLimitError, duckdb.OutOfMemoryException):
        return []  # how many wait is known without them


def _name_key(key: str, path: str) -> str:
    return cut_text(" · ".join(map(str, entry_masks.parse_object(key, path, str).values())))
