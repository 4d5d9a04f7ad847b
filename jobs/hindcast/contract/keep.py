"""Checks of `keep`: whether one table removes history that another one needs. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from hindcast.contract.model import Contract
from hindcast.contract.types import format_duration
from hindcast.contract.view_checks import Complaint


def check_keep(contract: Contract) -> Iterator[Complaint]:
    """Yield a complaint about every `keep` that would remove what is still needed."""
    for name, topic in contract.topics.items():
        place, retention = ("topics", name, "keep"), topic.retention
        if retention is None or retention.log is None:
            continue
        if not retention.table:
            yield Complaint(place, "keep must be longer than zero", "write for example 90 days")
        if retention.log < retention.table:
            found = f"the log is kept for {format_duration(retention.log)}, but its table for "
            found += format_duration(retention.table)
            fix = "keep the log at least as long: the table is derived from it whenever the contract changes"
            yield Complaint(place, found, fix)
        if topic.history_retention is not None and retention.table < topic.history_retention:
            found = f"the table is kept for {format_duration(retention.table)}, but takes versions for"
            found += f" {format_duration(topic.history_retention)} (history_retention)"
            fix = f"keep it for at least {format_duration(topic.history_retention)}, or shorten history_retention"
            yield Complaint(place, found, fix)
    for name, view in contract.views.items():
        if view.keep is not None and not view.keep:
            yield Complaint(("views", name, "keep"), "keep must be longer than zero", "write for example 90 days")
        if view.keep is not None and view.semantics == "kafka":
            found = "keep cannot be set on a kafka view: what it has emitted stands"
            yield Complaint(("views", name, "keep"), found, "remove it; set keep on the topics that it reads")
        yield from _check_needed(name, contract)


def find_retention(contract: Contract, name: str) -> timedelta | None:
    """Return how long the table of a topic or view is kept, None for ever."""
    if name in contract.topics:
        retention = contract.topics[name].retention
        return retention.table if retention is not None else None
    return contract.views[name].keep


def _check_needed(name: str, contract: Contract) -> Iterator[Complaint]:
    """Yield complaints about a stream's `keep` that removes events which an aggregate needs."""
    view = contract.views[name]
    if view.aggregate is None or view.stream is None or view.semantics == "kafka":
        return
    if view.first_input not in contract.topics and view.first_input not in contract.views:
        return
    retention = find_retention(contract, view.first_input)
    if retention is None:
        return
    part = "topics" if view.first_input in contract.topics else "views"
    place = (part, view.first_input, "keep")
    if view.window is None:
        found = (
            f"views.{name} aggregates all events of {view.first_input} so far: it needs those that keep would remove"
        )
        yield Complaint(place, found, f"give views.{name} a window, or remove keep")
    elif retention < view.window.least_store_retention:
        found = (
            f"the events of {view.first_input} are kept for {format_duration(retention)}, but a window of "
            f"views.{name} takes them for"
        )
        found += f" {format_duration(view.window.least_store_retention)}"
        yield Complaint(place, found, f"keep them for at least {format_duration(view.window.least_store_retention)}")
