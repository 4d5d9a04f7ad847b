"""What a table passes on: its records as changes, through filters and stores.

Source: the conformance README, "What a table passes on"; KIP-914.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.emits import stores
from hindcast.emits.stores import GET, GET_AT, LEFT_OUT, PUT, PUT_UNLESS_ABSENT, Asked
from hindcast.emits.versioned import REJECTED, Versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindcast.compiled import Booleans, Integers


class Changes(NamedTuple):
    """What a table passes on, in processing order: the key's new value and the one before, NOTHING for none.

    `order`: the place, among all records of the task, of the record that caused it. `latest`: it is not out of order.
    """

    order: Integers
    key: Integers
    value: Integers
    before: Integers
    time: Integers
    latest: Booleans

    def where(self, condition: Booleans) -> Changes:
        """Those that a condition is true of."""
        return Changes(*[column[condition] for column in self])  # type: ignore[arg-type]  # the last one is of booleans


class Kept(NamedTuple):
    """A store of a table: what it is to hold at first, and for how long back; retention None: not versioned."""

    versions: Versions
    retention: int | None


class Stored(NamedTuple):
    """The puts of a store, from which look-ups can be answered, and what it holds after them."""

    order: Integers
    asked: Asked
    kept: Kept
    left: Versions


class Side(NamedTuple):
    """A table as a side of a join: its changes, the store that look-ups go to, and of each value of the store whether
    the filters below it let it pass.
    """

    changes: Changes
    stored: Stored
    passing: Booleans


def source(
    order: Integers,
    key: Integers,
    time: Integers,
    value: Integers,
    kept: Kept,
    home: Integers,
    puts: Integers | None = None,
) -> tuple[Changes, Stored]:
    """The table of a topic's records; keys are never null. What its store rejects is not passed on. `puts` as below."""
    changes = Changes(order, key, value, np.full(len(key), NOTHING), time, np.ones(len(key), np.bool_))
    return materialized(changes, kept, home, puts=puts)


def materialized(
    changes: Changes, kept: Kept, home: Integers, *, unless_absent: bool = False, puts: Integers | None = None
) -> tuple[Changes, Stored]:
    """Changes as a store passes them on that they are put in: the value before is its own, and so is what is latest.

    `unless_absent`: tombstones for keys without a row are left out, and not put (`filtered`). `puts`: the places from
    which look-ups find the changes, if these are not their own.
    """
    what = np.full(len(changes.key), PUT_UNLESS_ABSENT if unless_absent else PUT)
    order = changes.order if puts is None else puts
    ascending = np.argsort(order, kind="stable")
    questions = Asked(*(column[ascending] for column in (what, changes.key, changes.time, changes.value)))
    answered = stores.answer(kept.versions, questions, home, kept.retention)
    code, before = np.empty_like(answered.code), np.empty_like(answered.value)
    code[ascending], before[ascending] = answered.code, answered.value
    passed = (code != REJECTED) & (code != LEFT_OUT)
    stored = changes._replace(before=before, latest=code < 0).where(passed)
    return stored, Stored(order[ascending], questions, kept, answered.kept)


def filtered(changes: Changes, passing: Booleans, *, leaves_out: bool) -> Changes:
    """Changes where values that do not pass are tombstones. `passing`: of each value whether it passes.

    `leaves_out`: a tombstone is left out where the value before did not pass either: what a filter does on a table that
    is not versioned, if it knows what was before.
    """
    there = np.append(passing, False)  # NOTHING, the last one, does not pass
    value = np.where(there[changes.value], changes.value, NOTHING)
    before = np.where(there[changes.before], changes.before, NOTHING)
    kept = (value != NOTHING) | (before != NOTHING) | (not leaves_out)
    return changes._replace(value=value, before=before).where(kept)


def looked_up(
    table: Side, order: Integers, key: Integers, home: Integers, at: Integers | None = None
) -> tuple[Integers, Integers]:
    """What a table has for keys when the records at `order` are processed: values and their times, or NOTHING.

    `order` ascends; `at`: the moment that is asked for, the latest if left out. Null keys have nothing.
    """
    stored = table.stored
    there = np.flatnonzero(key != NOTHING)
    what = GET if at is None else GET_AT
    gets = stores.asked(what, key[there], at[there] if at is not None else np.zeros(len(there), np.int64))
    merged = np.argsort(np.concatenate((stored.order, order[there])), kind="stable")
    questions = Asked(*(np.concatenate(columns)[merged] for columns in zip(stored.asked, gets, strict=True)))
    answered = stores.answer(stored.kept.versions, questions, home, stored.kept.retention)
    back = np.empty(len(merged), np.int64)
    back[merged] = np.arange(len(merged))
    found = np.full((2, len(key)), NOTHING)
    found[:, there] = answered.value[back[len(stored.order) :]], answered.time[back[len(stored.order) :]]
    passing = np.append(table.passing, False)[found[0]]
    return np.where(passing, found[0], NOTHING), np.where(passing, found[1], NOTHING)


class Step(NamedTuple):
    """What is done to a table's changes: a filter or a projection, maybe into a store of its own."""

    filters: bool
    materialized: bool


ASKS_NOTHING, ASKS, INSISTS = 0, 1, 2
"""Whether an operator wants to know what was before: no; where that is known; or so that a source keeps a store."""


def leaves_out(steps: Sequence[Step], *, source_materialized: bool, versioned: Sequence[bool], asks: int) -> list[bool]:
    """Of each step whether it leaves out tombstones for what did not pass before either.

    `versioned`: of the source and of each step whether its table is; `asks`: what the operator below the last one asks.
    """
    asked = [asks]  # of each step from the last to the source
    for number in range(len(steps) - 1, -1, -1):
        step, of_it = steps[number], asked[-1]
        passes_on = ASKS_NOTHING if step.materialized else of_it
        asked.append(max(passes_on, ASKS if step.filters else ASKS_NOTHING))
    asked.reverse()
    known = source_materialized or asked[0] == INSISTS
    found = []
    for number, step in enumerate(steps):
        knows = known or (step.materialized and asked[number + 1] != ASKS_NOTHING)
        found.append(step.filters and knows and not versioned[number])
        known = known or step.materialized
    return found
