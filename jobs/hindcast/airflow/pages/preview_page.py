"""The answer of a preview, as the report tab of its run shows it: what a run would change, before and after.

templates/preview.html lays it out; the file is written by the preview (report/preview_files.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.common.plurals import format_count, format_counts
from hindcast.contract import Contract, list_shapes
from hindcast.quality import gate_words, held_change
from hindcast.query.cut_values import cut_text
from hindcast.report.summaries import OUTCOMES


def build_page(contract: Contract, answer: StoredObject | None) -> JsonObject:
    """Return the fields of a page; only the pipeline without an answer."""
    if answer is None:
        return {"pipeline": contract.pipeline, "answer": None}
    tables = {name: _describe_table(contract, name, table) for name, table in answer["tables"].items()}
    topics = [
        {"name": name, "offsets": topic["offsets"], "fates": format_counts(topic["fates"]), "stops": topic["stops"]}
        for name, topic in answer["topics"].items()
    ]
    corrected, held = (sum(table[name] for table in answer["tables"].values()) for name in ("corrected", "held"))
    is_stopped = any(topic["stops"] for topic in answer["topics"].values()) or any(
        bool(table["isStopping"]) for table in tables.values()
    )
    changed = any(table["opened"] or table["closed"] for table in answer["tables"].values())
    return {
        "pipeline": contract.pipeline,
        "answer": {name: answer[name] for name in ("knownAt", "intervalEnd", "underWay")},
        "kind": "stopped" if is_stopped else "attention" if held else "passed",
        "sentence": _summarize(is_stopped, corrected, held, changed),
        "topics": topics,
        "tables": [{"name": name, **table} for name, table in tables.items()],
    }


def _summarize(is_stopped: bool, corrected: int, held: int, changed: bool) -> str:
    if is_stopped:
        return "A run would stop."
    parts = [f"change {format_count(corrected, 'past answer')}"] if corrected else []
    parts += [f"hold back {format_count(held, 'key')}"] if held else []
    if not parts:
        parts = ["add new answers, and change no past answer" if changed else "change nothing"]
    return f"A run would {' and '.join(parts)}."


def _describe_table(contract: Contract, name: str, table: StoredObject) -> JsonObject:
    """Return the counts of a table, its changed answers as rows, and the gates that would not pass."""
    key = tuple(list_shapes(contract)[name].key) if name in (*contract.topics, *contract.views) else ()
    gates = [gate for gate in table["gates"] if gate["outcome"] != "passed"]
    return {
        **{count: table[count] for count in ("opened", "closed", "corrected", "held")},
        "ages": format_counts(table["ages"]),
        "rows": _pair_examples(table["examples"], key),
        "isStopping": any(
            (gate["outcome"], gate["on_failure"]) == ("failed", "stop")
            or (gate["outcome"] == "error" and gate["on_failure"] != "warn")
            for gate in gates
        ),
        "gates": [
            {
                "outcome": gate["outcome"],
                "onFailure": gate["on_failure"],
                "words": cut_text(gate_words.describe_rule(gate["expectation"], gate["kwargs"])),
                "detail": cut_text(gate["detail"]),
            }
            for gate in sorted(gates, key=lambda gate: OUTCOMES.index(gate["outcome"]))
        ],
    }


def _pair_examples(examples: Sequence[StoredObject], key: Sequence[str]) -> list[JsonObject]:
    """Return the rows that a run would open, with what they replace, and those that it would only close."""
    rows: list[JsonObject] = []
    by_key: dict[str, list[StoredObject]] = {}
    for example in examples:
        by_key.setdefault(json.dumps([example.get(column) for column in key]), []).append(example)
    for parts in by_key.values():
        texts = {
            change: [
                json.dumps({n: v for n, v in it.items() if n != "change"}) for it in parts if it["change"] == change
            ]
            for change in ("close", "open")
        }
        replaced = [held_change.find_replaced_row(text, texts["close"]) for text in texts["open"]]
        gone = [text for text in texts["close"] if text not in replaced]
        pairs = [*zip(texts["open"], replaced, strict=True), *((text, None) for text in gone)]
        for text, former in pairs:
            named = {column: parts[0].get(column) for column in key}
            cells = held_change.list_cells(text, former, key)
            rows.append(
                {
                    "key": ", ".join(str(value) for value in named.values()),
                    "change": "removed" if text in gone else "changed" if former else "added",
                    "valid": held_change.describe_period(text),
                    "cells": [
                        {**it._asdict(), "before": cut_text(it.before), "after": cut_text(it.after)} for it in cells
                    ],
                }
            )
    return rows
