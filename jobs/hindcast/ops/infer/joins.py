"""Joins between topics: a field of one that has the keys of another. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hindcast.contract.bounds import NAME
from hindcast.ops.infer.columns import DraftColumn, quote_column
from hindcast.ops.infer.topic_draft import TopicDraft

_LEAST_SHARE, _LEAST_VALUES = 0.5, 20
"""Without the same name, so many of the field's values must be keys, and there must be so many different ones."""

_NUMBERS = ("int", "bigint", "smallint")


@dataclass(frozen=True)
class JoinProposal:
    """A view that joins a table to a stream or a table, and the reason.

    `on`: SQL over the first topic, one text for each column of the table's key, none for its own key; `in_force`:
    whether the names say the same as the values.
    """

    name: str
    first: TopicDraft
    table: TopicDraft
    on: Sequence[str]
    reason: str
    in_force: bool


MAX_SELECTED = 4_000
"""The most columns that all joins in force select: a contract is bounded (contract/bounds.py)."""

MAX_COMMENTED = 20
"""The most joins that are comments."""


def split_joins(joins: Sequence[JoinProposal]) -> tuple[list[JoinProposal], list[JoinProposal]]:
    """Return the joins that a contract has room for, and those that it has not."""
    fit: list[JoinProposal] = []
    left_out: list[JoinProposal] = []
    selected = commented = 0
    for join in joins:
        count = len(join.first.columns) + len(join.table.value)
        if join.in_force and selected + count <= MAX_SELECTED:
            selected += count
            fit.append(join)
        elif not join.in_force and commented < MAX_COMMENTED:
            commented += 1
            fit.append(join)
        else:
            left_out.append(join)
    return fit, left_out


def propose_joins(topics: Sequence[TopicDraft]) -> list[JoinProposal]:
    """Return a join for each topic and table where the topic has a field with the table's keys: the best field."""
    taken = {topic.name for topic in topics}
    proposals: list[JoinProposal] = []
    for first in topics:
        for table in topics:
            if table is first or table.read != "table":
                continue
            found = sorted(_find_joins(first, table), key=lambda it: (-it.in_force, -_count(it.reason)))
            for proposal in found[:1]:
                name = next(n for n in _list_names(proposal.name) if n not in taken)
                taken.add(name)
                proposals.append(JoinProposal(name, first, table, proposal.on, proposal.reason, proposal.in_force))
    return proposals


def _list_names(name: str) -> Iterator[str]:
    """Yield names for a view, none of which is too long."""
    yield name
    yield f"{name[: NAME - 7]}_joined"
    yield from (f"{name[: NAME - 7]}_{n}" for n in range(2, 1_000_000))


def _count(reason: str) -> int:
    return int(reason.partition(" ")[0].replace(",", ""))


def _find_joins(first: TopicDraft, table: TopicDraft) -> Iterator[JoinProposal]:
    name = f"{first.name}_{table.name}"[:NAME]
    if len(table.key) > 1:
        yield from _find_join_on_several(first, table, name)
        return
    (key,) = table.key
    if not key.values:
        return
    own = first.key if len(first.key) == 1 and first.read == "stream" else ()
    for column in (*first.value, *own):
        expression = _convert(column, key)
        shared = len(column.values & key.values)
        if expression is None or not shared:
            continue
        is_named = _have_same_name(column.name, key.name, table.name)
        if is_named or (shared >= _LEAST_SHARE * len(column.values) and shared >= _LEAST_VALUES):
            reason = (
                f"{shared:,} of the {len(column.values):,} values seen of {column.name} are keys seen of {table.name}"
            )
            if not is_named:
                reason += "; the names differ"
            yield JoinProposal(name, first, table, [expression], reason, is_named)


def _find_join_on_several(first: TopicDraft, table: TopicDraft, name: str) -> Iterator[JoinProposal]:
    """Yield a join on a key of several columns, if each has a field of its name that shares values."""
    columns = {column.name.lower(): column for column in first.columns}
    pairs = [(columns.get(key.name.lower()), key) for key in table.key]
    on, least = [], 0
    for column, key in pairs:
        expression = _convert(column, key) if column is not None else None
        if column is None or expression is None or not column.values & key.values:
            return
        on.append(expression)
        shared = len(column.values & key.values)
        least = min(least, shared) if least else shared
    reason = f"{least:,} or more values seen of each of {', '.join(key.name for _, key in pairs)} are in both"
    yield JoinProposal(name, first, table, on, reason, in_force=True)


def _convert(column: DraftColumn, key: DraftColumn) -> str | None:
    """Return the SQL that gives a column in the type of a key; None if values would be lost or differ in form."""
    name = quote_column(column.name)
    if column.kind == key.kind:
        return name
    numbers = column.kind in _NUMBERS and key.kind in _NUMBERS
    if (numbers and _NUMBERS.index(key.kind) < 2) or (key.kind == "string" and column.kind in _NUMBERS):
        return f"cast({name} AS {key.kind})"
    return None


def _have_same_name(column: str, key: str, table: str) -> bool:
    """Return whether a column's name means a table's key: customer_id and the id of customers, item and item.

    >>> _have_same_name("customerId", "id", "customers"), _have_same_name("id", "id", "items")
    (True, False)
    """
    plain, its, owner = (re.sub(r"[^a-z0-9]", "", text.lower()) for text in (column, key, table))
    singular = owner.removesuffix("s")
    meant = {owner, singular, *(f"{one}{end}" for one in (owner, singular) for end in ("id", "key", "code", "no", its))}
    if its in ("id", "key", "code", "uuid", "no"):
        return plain in meant
    return plain in {its, f"{its}id", *meant}
