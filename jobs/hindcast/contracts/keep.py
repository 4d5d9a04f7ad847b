"""How long history is kept: what `keep` of one table means to the others of a contract. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from hindcast.contracts.model import Contract
from hindcast.contracts.types import written
from hindcast.contracts.views import Complaint


def complaints(contract: Contract) -> Iterator[Complaint]:
    """Every `keep` that would remove what is still needed."""
    for name, topic in contract.topics.items():
        place, kept = ("topics", name, "keep"), topic.kept
        if kept is None or kept.log is None:
            continue
        if not kept.table:
            yield Complaint(place, "a history of no duration is none", "write for example 90 days")
        if kept.log < kept.table:
            found = f"the log is kept for {written(kept.log)}, its table for {written(kept.table)}"
            mend = "keep the log at least as long: the table is derived from it whenever the contract changes"
            yield Complaint(place, found, mend)
        if topic.history_retention is not None and kept.table < topic.history_retention:
            found = f"the table is kept for {written(kept.table)}, and takes versions for"
            found += f" {written(topic.history_retention)} (history_retention)"
            mend = f"keep it for at least {written(topic.history_retention)}, or shorten history_retention"
            yield Complaint(place, found, mend)
    for name, view in contract.views.items():
        if view.keep is not None and not view.keep:
            yield Complaint(("views", name, "keep"), "a history of no duration is none", "write for example 90 days")
        if view.keep is not None and view.semantics == "kafka":
            found = "keep on a kafka view: what it has emitted stands"
            yield Complaint(
                ("views", name, "keep"), found, "remove it; keep the topics that it reads as long as you like"
            )
        yield from _needed(name, contract)


def length(contract: Contract, name: str) -> timedelta | None:
    """How long the table of a topic or view is kept; None: for ever."""
    if name in contract.topics:
        kept = contract.topics[name].kept
        return kept.table if kept is not None else None
    return contract.views[name].keep


def _needed(name: str, contract: Contract) -> Iterator[Complaint]:
    """What an aggregate of a stream needs of its events."""
    view = contract.views[name]
    if view.aggregate is None or view.stream is None or view.semantics == "kafka":
        return
    if view.first not in contract.topics and view.first not in contract.views:
        return
    kept = length(contract, view.first)
    if kept is None:
        return
    part = "topics" if view.first in contract.topics else "views"
    place = (part, view.first, "keep")
    if view.window is None:
        found = f"views.{name} aggregates all events of {view.first} so far: it needs those that keep would remove"
        yield Complaint(place, found, f"give views.{name} a window, or remove keep")
    elif kept < view.window.reach:
        found = f"the events of {view.first} are kept for {written(kept)}, a window of views.{name} takes them for"
        found += f" {written(view.window.reach)}"
        yield Complaint(place, found, f"keep them for at least {written(view.window.reach)}")
