"""How the contract has changed since earlier runs, field by field.

The first plan under a contract stores its text; the plans of later runs store only its hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hindcast.common.plurals import format_count
from hindcast.contract import Contract
from hindcast.contract.definition import list_fields
from hindcast.plan.journal import Run, find_last_completed

MOST, LONGEST = 50, 160
"""How many fields are listed at most, and how many characters of a text."""


def find_fields(past: Iterable[Run], contract_hash: str) -> dict[str, str] | None:
    """Return the fields of the contract with that hash; None if no plan has stored them."""
    plans = (run.plan for run in past if run.plan.contract == contract_hash)
    return next((dict(plan.definition) for plan in plans if plan.definition), None)


def list_unstored_fields(past: Iterable[Run], contract: Contract) -> dict[str, str]:
    """Return the fields of a contract for a plan to store; none if an earlier plan has them."""
    return {} if find_fields(past, contract.hash) is not None else list_fields(contract)


def describe_change(past: Iterable[Run], contract_hash: str, fields: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Return how a contract, given its `fields`, differs from that of the last completed run; None if it does not.

    JSON: `since`, that run; `changes`, each a `field` with its text `before` and `after` (null: absent); `more`, how
    many changes are not listed. `changes` is null if a text was not stored.
    """
    runs = list(past)
    last = find_last_completed(runs)
    if last is None or last.plan.contract == contract_hash:
        return None
    before = find_fields(runs, last.plan.contract)
    if before is None or fields is None:
        return {"since": last.number, "changes": None, "more": 0}
    places = [place for place in {**before, **fields} if before.get(place) != fields.get(place)]
    changes = [_describe_field(place, before.get(place), fields.get(place)) for place in places[:MOST]]
    return {"since": last.number, "changes": changes, "more": len(places) - len(changes)}


def format_change(change: Mapping[str, Any] | None) -> list[str]:
    """Return the change of a contract that `describe_change` returned as lines of text; none for None."""
    if change is None:
        return []
    if change["changes"] is None:
        return [f"the contract was changed since run {change['since']}; its former text is not stored"]
    lines = [f"the contract was changed since run {change['since']}:"]
    for field in change["changes"]:
        place, before, after = (field[part] for part in ("field", "before", "after"))
        if before is None or after is None:
            lines.append(f"  {place} {'added' if before is None else 'removed'}: {after if before is None else before}")
        else:
            lines.append(f"  {place}: {before} -> {after}")
    return [*lines, *([f"  and {format_count(change['more'], 'more field')}"] if change["more"] else [])]


def _describe_field(place: str, before: str | None, after: str | None) -> dict[str, str | None]:
    """Return one change, its texts cut to `LONGEST` around the first place where they differ."""
    pairs = enumerate(zip(before or "", after or "", strict=False))
    differ = next((n for n, (old, new) in pairs if old != new), min(len(before or ""), len(after or "")))
    start = max(0, differ - LONGEST // 4)
    return {
        "field": _shorten_text(place, 0),
        "before": _shorten_text(before, start),
        "after": _shorten_text(after, start),
    }


def _shorten_text(text: str | None, start: int) -> str | None:
    if text is None or len(text) <= LONGEST:
        return text and " ".join(text.split())
    start = max(0, min(start, len(text) - LONGEST))
    end = start + LONGEST
    shown = " ".join(text[start:end].split())
    return ("... " if start else "") + shown + (f" ... ({len(text):,} characters)" if end < len(text) else "")
