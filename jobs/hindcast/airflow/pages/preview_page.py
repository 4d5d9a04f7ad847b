"""The answer of a preview, as the report tab of its run shows it: what a run would change, before and after.

templates/preview.html lays it out; the file is written by the preview (report/preview_files.py).
"""

from __future__ import annotations

import json

from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.common.plurals import format_count, format_counts
from hindcast.contract import Contract
from hindcast.plan import definitions
from hindcast.plan.definitions import ContractChange
from hindcast.quality import gate_words, held_change
from hindcast.query.cut_values import cut_text
from hindcast.report.summaries import OUTCOMES
from hindcast.runs.widening import describe_widening


def build_page(contract: Contract, answer: StoredObject | None) -> JsonObject:
    """Return the fields of a page; only the pipeline without an answer."""
    if answer is None:
        return {"pipeline": contract.pipeline, "answer": None}
    tables = {name: _describe_table(name, table) for name, table in answer["tables"].items()}
    topics = [
        {"name": name, "offsets": topic["offsets"], "fates": format_counts(topic["fates"]), "stops": topic["stops"]}
        for name, topic in answer["topics"].items()
    ]
    corrected, held = (sum(table[name] for table in answer["tables"].values()) for name in ("corrected", "held"))
    is_stopped = any(topic["stops"] for topic in answer["topics"].values()) or any(
        bool(table["isStopping"]) for table in tables.values()
    )
    is_new = any(table["opened"] or table["closed"] for table in answer["tables"].values())
    edited = answer["contract"]
    return {
        "pipeline": contract.pipeline,
        "answer": {name: answer[name] for name in ("knownAt", "intervalEnd", "underWay")},
        "kind": "stopped" if is_stopped else "attention" if held else "passed",
        "sentence": _summarize(is_stopped, corrected, held, is_new),
        "contract": definitions.format_change(ContractChange.from_json(edited)) if edited else [],
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


def _describe_table(name: str, table: StoredObject) -> JsonObject:
    """Return the counts of a table, its changed answers as rows, and the gates that would not pass."""
    gates = [gate for gate in table["gates"] if gate["outcome"] != "passed"]
    return {
        **{count: table[count] for count in ("opened", "closed", "corrected", "held")},
        "ages": format_counts(table["ages"]),
        "widened": describe_widening(name, table["widened"], table["widen"]) if table.get("widened") else "",
        "rows": [_describe_example(example) for example in table["examples"]],
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


def _describe_example(example: StoredObject) -> JsonObject:
    """Return an answer that would differ, as people read it: what it is now, and what it would be."""
    sides = [json.dumps(example[side]) for side in ("after", "before") if example[side] is not None]
    cells = held_change.list_cells(sides[0], sides[1] if len(sides) > 1 else None, ())
    return {
        "key": ", ".join(map(str, example["key"].values())),
        "change": example["change"],
        "valid": held_change.describe_period(json.dumps(example)),
        "cells": [{**it._asdict(), "before": cut_text(it.before), "after": cut_text(it.after)} for it in cells],
    }
