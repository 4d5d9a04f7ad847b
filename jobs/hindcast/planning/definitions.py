"""What the contract said in earlier runs, and what has changed in it since: field by field.

The first plan that is made under a contract keeps its text; the plans of later runs keep its hash only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hindcast.contracts import Contract
from hindcast.contracts.definition import list_fields
from hindcast.planning.journal import Run
from hindcast.words import counted

MOST, LONGEST = 50, 160
"""So many fields are listed at most, with so many characters of a text."""


def find_fields(past: Iterable[Run], contract_hash: str) -> dict[str, str] | None:
    """Return the fields of the contract with that hash; None if no plan has kept them."""
    plans = (run.plan for run in past if run.plan["contract"] == contract_hash)
    return next((dict(plan["definition"]) for plan in plans if plan.get("definition")), None)


def list_unkept(past: Iterable[Run], contract: Contract) -> list[list[str]]:
    """Return the fields of a contract for a plan to keep; none if an earlier one has them."""
    if find_fields(past, contract.hash) is not None:
        return []
    return [list(field) for field in list_fields(contract).items()]


def describe_change(past: Iterable[Run], contract_hash: str, fields: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Return how a contract, given its `fields`, differs from that of the last completed run; None if it does not.

    JSON: `since`, that run; `changes`, the `field`, what it said `before` and what `after` (null: nothing); `more`, how
    many changes are not listed. `changes` is null where a text was not kept.
    """
    runs = list(past)
    last = next((run for run in reversed(runs) if run.state == "completed"), None)
    if last is None or last.plan["contract"] == contract_hash:
        return None
    before = find_fields(runs, last.plan["contract"])
    if before is None or fields is None:
        return {"since": last.number, "changes": None, "more": 0}
    places = [place for place in {**before, **fields} if before.get(place) != fields.get(place)]
    changes = [_describe_field(place, before.get(place), fields.get(place)) for place in places[:MOST]]
    return {"since": last.number, "changes": changes, "more": len(places) - len(changes)}


def list_lines(told: Mapping[str, Any] | None) -> list[str]:
    """Return what `describe_change` found as lines for people; none for None."""
    if told is None:
        return []
    if told["changes"] is None:
        return [f"the contract was changed since run {told['since']}; its former text is not stored"]
    lines = [f"the contract was changed since run {told['since']}:"]
    for change in told["changes"]:
        place, before, after = (change[part] for part in ("field", "before", "after"))
        if before is None or after is None:
            lines.append(f"  {place} {'added' if before is None else 'removed'}: {after if before is None else before}")
        else:
            lines.append(f"  {place}: {before} -> {after}")
    return [*lines, *([f"  and {counted(told['more'], 'more field')}"] if told["more"] else [])]


def _describe_field(place: str, before: str | None, after: str | None) -> dict[str, str | None]:
    """Return one change, its texts cut to `LONGEST` around the first place where they differ."""
    pairs = enumerate(zip(before or "", after or "", strict=False))
    differ = next((n for n, (old, new) in pairs if old != new), min(len(before or ""), len(after or "")))
    start = max(0, differ - LONGEST // 4)
    return {"field": _cut(place, 0), "before": _cut(before, start), "after": _cut(after, start)}


def _cut(text: str | None, start: int) -> str | None:
    if text is None or len(text) <= LONGEST:
        return text and " ".join(text.split())
    start = max(0, min(start, len(text) - LONGEST))
    end = start + LONGEST
    kept = " ".join(text[start:end].split())
    return ("... " if start else "") + kept + (f" ... ({len(text):,} characters)" if end < len(text) else "")
