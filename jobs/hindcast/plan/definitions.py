"""How the contract has changed since earlier runs, field by field.

The first plan under a contract stores its text; the plans of later runs store only its hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.common.plurals import format_count
from hindcast.common.processor_time import ExpiredError, limit_processor_time
from hindcast.contract import Contract, bounds
from hindcast.contract.definition import list_fields, parse_fields
from hindcast.plan.runs import Run, find_last_completed

MOST, LONGEST = 50, 160
"""How many fields are listed at most, and how many characters of a text."""


def find_fields(past: Iterable[Run], contract_hash: str) -> dict[str, str] | None:
    """Return the fields of the contract with that hash; None if no plan has stored them."""
    plans = (run.plan for run in past if run.plan.contract == contract_hash)
    return next((dict(plan.definition) for plan in plans if plan.definition), None)


def list_tables(past: Iterable[Run], contract_hash: str) -> list[str]:
    """Return the topics and views of the contract with that hash; none if no plan has stored it."""
    places = (place.split(".") for place in find_fields(past, contract_hash) or {})
    return sorted({place[1] for place in places if place[0] in ("topics", "views")})


def find_contract(past: Iterable[Run], contract_hash: str) -> Contract | None:
    """Return the contract with that hash, without its gates; None if no plan has stored it, or it is none today."""
    fields = find_fields(past, contract_hash)
    return None if fields is None else parse_stored_fields(tuple(fields.items()))


@lru_cache(maxsize=256)
def parse_stored_fields(fields: tuple[tuple[str, str], ...]) -> Contract | None:
    """Return the contract with these fields, without its gates; None if it is none today, or takes too long to read."""
    try:
        with limit_processor_time(bounds.FIRST_SECONDS):
            return parse_fields(dict(fields))
    except (ValueError, ExpiredError):
        return None


def has_marked_entry(past: Sequence[Run], contract_hash: str, kafka: str) -> bool:
    """Return whether the contract with that hash had sensitive columns of a topic in Kafka; False if it is not stored.

    Of one that is no contract today: of any topic.
    """
    contract = find_contract(past, contract_hash)
    if contract is not None:
        return contract.has_sensitive_entry(kafka)
    return has_marks(find_fields(past, contract_hash) or {})


def has_marks(fields: Mapping[str, str]) -> bool:
    """Return whether the stored fields of a contract mark anything as sensitive."""
    return any(place.split(".")[2:] == ["sensitive"] for place in fields)


def find_last_contract(past: Sequence[Run]) -> Contract | None:
    """Return the contract of the last run (`find_contract`)."""
    return find_contract(past, past[-1].plan.contract) if past else None


def find_contract_with(past: Sequence[Run], table: str) -> Contract | None:
    """Return the contract with a topic or view that was stored last; None if there is none, or it is none today."""
    starts = (f"topics.{table}.", f"views.{table}.")
    definitions = (run.plan.definition for run in reversed(past))
    fields = next((it for it in definitions if any(place.startswith(starts) for place in it)), None)
    return None if fields is None else parse_stored_fields(tuple(fields.items()))


def list_unstored_fields(past: Iterable[Run], contract: Contract) -> dict[str, str]:
    """Return the fields of a contract for a plan to store; none if an earlier plan has them."""
    return {} if find_fields(past, contract.hash) is not None else list_fields(contract)


@dataclass(frozen=True)
class FieldChange:
    """One changed field of a contract, with its text `before` and `after` (None: it was or is absent)."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class ContractChange:
    """How a contract differs from that of the completed run `since`.

    `changes`: None if a text was not stored; `more`: how many changes are not listed.
    """

    since: int
    changes: tuple[FieldChange, ...] | None = None
    more: int = 0

    def as_json(self) -> JsonObject:
        """Return the form in reports and previews."""
        changes = None if self.changes is None else [vars(change) for change in self.changes]
        return {"since": self.since, "changes": changes, "more": self.more}

    @classmethod
    def from_json(cls, change: StoredObject) -> ContractChange:
        """Return the change from its form in a report."""
        changes = change["changes"]
        return cls(
            change["since"], None if changes is None else tuple(FieldChange(**of) for of in changes), change["more"]
        )


def describe_change(past: Iterable[Run], contract_hash: str, fields: Mapping[str, str] | None) -> ContractChange | None:
    """Return how a contract, given its `fields`, differs from that of the last completed run; None if it does not."""
    runs = list(past)
    last = find_last_completed(runs)
    if last is None or last.plan.contract == contract_hash:
        return None
    before = find_fields(runs, last.plan.contract)
    if before is None or fields is None:
        return ContractChange(last.number)
    places = [place for place in {**before, **fields} if before.get(place) != fields.get(place)]
    changes = tuple(_describe_field(place, before.get(place), fields.get(place)) for place in places[:MOST])
    return ContractChange(last.number, changes, len(places) - len(changes))


def format_change(change: ContractChange | None) -> list[str]:
    """Return the change of a contract as lines of text; none for None."""
    if change is None:
        return []
    if change.changes is None:
        return [f"the contract was changed since run {change.since}; its former text is not stored"]
    lines = [f"the contract was changed since run {change.since}:"]
    for field in change.changes:
        if field.before is None or field.after is None:
            what, text = ("added", field.after) if field.before is None else ("removed", field.before)
            lines.append(f"  {field.field} {what}: {text}")
        else:
            lines.append(f"  {field.field}: {field.before} -> {field.after}")
    return [*lines, *([f"  and {format_count(change.more, 'more field')}"] if change.more else [])]


def _describe_field(place: str, before: str | None, after: str | None) -> FieldChange:
    """Return one change, its texts cut to `LONGEST` around the first place where they differ."""
    pairs = enumerate(zip(before or "", after or "", strict=False))
    differ = next((n for n, (old, new) in pairs if old != new), min(len(before or ""), len(after or "")))
    start = max(0, differ - LONGEST // 4)
    return FieldChange(_cut_text(place, 0), _shorten_text(before, start), _shorten_text(after, start))


def _shorten_text(text: str | None, start: int) -> str | None:
    return None if text is None else _cut_text(text, start)


def _cut_text(text: str, start: int) -> str:
    if len(text) <= LONGEST:
        return " ".join(text.split())
    start = max(0, min(start, len(text) - LONGEST))
    end = start + LONGEST
    shown = " ".join(text[start:end].split())
    return ("... " if start else "") + shown + (f" ... ({len(text):,} characters)" if end < len(text) else "")
