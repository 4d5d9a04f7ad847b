"""The stores of tables: what each put finds, and what look-ups find, in processing order.

Source: the conformance README, "Versioned store" and "What a table passes on"; KIP-258 for the store that is not
versioned: it has the row that came last, whatever its timestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING, compiled
from hindcast.emits.versioned import REJECTED, Versions, get, held, look_up, opened, put

if TYPE_CHECKING:
    from hindcast.compiled import Integers
    from hindcast.emits.versioned import Store

PUT, PUT_UNLESS_ABSENT, GET, GET_AT = 0, 1, 2, 3
"""What is asked of a store. PUT_UNLESS_ABSENT: no tombstone where there is no row."""

LEFT_OUT = REJECTED + 1
"""What a tombstone answers that was not put, because there was no row."""


class Asked(NamedTuple):
    """What a store is asked, in processing order: key, time, and for a put the value; keys are never null."""

    what: Integers
    key: Integers
    time: Integers
    value: Integers


class Answered(NamedTuple):
    """For each question: `code` of a put (versioned.put); the value and its time that a get finds, or that a put finds
    as the latest before; NOTHING where there is none. And what the store holds then.
    """

    code: Integers
    value: Integers
    time: Integers
    kept: Versions


def asked(what: int, key: Integers, time: Integers, value: Integers | None = None) -> Asked:
    """The same question for many keys and times."""
    return Asked(np.full(len(key), what), key, time, np.full(len(key), NOTHING) if value is None else value)


def answer(kept: Versions, questions: Asked, home: Integers, retention: int | None) -> Answered:
    """What a store answers that holds `kept` at first. `retention` in ms; None: the store is not versioned.

    `home`: the partition of each key; it has a store of its own.
    """
    answers = np.full((len(questions.key), 3), NOTHING)
    if retention is None:
        value, time = np.full(len(home), NOTHING), np.full(len(home), NOTHING)
        value[kept.key], time[kept.key] = kept.value, kept.time
        _unversioned(value, time, *questions, answers)
        key = np.flatnonzero(value != NOTHING)
        left = Versions(key, time[key], value[key], np.ones(len(key), np.bool_), kept.reached)
    else:
        store, slot = opened(kept, questions.key, questions.time, home)
        _versioned(store, *questions, slot, retention, answers)
        left = held(store, retention)
    return Answered(answers[:, 0], answers[:, 1], answers[:, 2], left)


@compiled
def _versioned(
    store: Store,
    what: Integers,
    key: Integers,
    time: Integers,  # noqa: ARG001  # the slots have it
    value: Integers,
    slot: Integers,
    retention: int,
    answers: Integers,
) -> None:
    for n in range(len(key)):
        if what[n] == GET_AT:
            found, at = look_up(store, key[n], slot[n], retention)
        else:
            found, at = get(store, key[n])
        if what[n] == PUT_UNLESS_ABSENT and value[n] == NOTHING and found == NOTHING:
            answers[n, 0] = LEFT_OUT
        elif what[n] <= PUT_UNLESS_ABSENT:
            answers[n, 0] = put(store, key[n], slot[n], value[n], retention)
        answers[n, 1], answers[n, 2] = found, at


@compiled
def _unversioned(
    held_value: Integers,
    held_time: Integers,
    what: Integers,
    key: Integers,
    time: Integers,
    value: Integers,
    answers: Integers,
) -> None:
    for n in range(len(key)):
        k = key[n]
        found, at = held_value[k], held_time[k]
        if what[n] == PUT_UNLESS_ABSENT and value[n] == NOTHING and found == NOTHING:
            answers[n, 0] = LEFT_OUT
        elif what[n] <= PUT_UNLESS_ABSENT:
            held_value[k] = value[n]
            held_time[k] = time[n] if value[n] != NOTHING else NOTHING
        answers[n, 1], answers[n, 2] = found, at
