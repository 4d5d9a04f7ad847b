"""The stores of tables: puts and look-ups answered in processing order.

Source: docs/kafka-parity.md, rules 1-17; KIP-258 for the store that is not versioned: it has the row that came last,
whatever its timestamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop
from hindcast.streams.versioned import (
    REJECTED,
    StoreState,
    get_as_of,
    get_latest,
    open_store,
    put_version,
    snapshot_store,
)

if TYPE_CHECKING:
    from hindcast.common.jit import Integers
    from hindcast.streams.versioned import VersionedStore

PUT, PUT_UNLESS_ABSENT, GET, GET_AT = 0, 1, 2, 3
"""The kinds of requests to a store. PUT_UNLESS_ABSENT puts no tombstone where there is no row."""

LEFT_OUT = REJECTED + 1
"""The code of a tombstone that was not put because there was no row."""


class StoreRequests(NamedTuple):
    """Requests to a store in processing order: kind, key, time (ms), and for a put the value; keys are never null."""

    what: Integers
    key: Integers
    time: Integers
    value: Integers


class StoreAnswers(NamedTuple):
    """For each request: the `code` of a put (`versioned.put_version`), and the value and time that a get finds, or that
    a put finds as the latest before it; NOTHING where there is none. `state`: that of the store after all requests.
    """

    code: Integers
    value: Integers
    time: Integers
    state: StoreState


def build_requests(what: int, key: Integers, time: Integers, value: Integers | None = None) -> StoreRequests:
    """Return requests of one kind for many keys and times."""
    return StoreRequests(np.full(len(key), what), key, time, np.full(len(key), NOTHING) if value is None else value)


def answer_requests(state: StoreState, requests: StoreRequests, home: Integers, retention: int | None) -> StoreAnswers:
    """Return the answers of a store that starts with `state`. `retention` in ms; None: the store is not versioned.

    `home`: the partition of each key; each partition has a store of its own.
    """
    answers = np.full((len(requests.key), 3), NOTHING)
    if retention is None:
        value, time = np.full(len(home), NOTHING), np.full(len(home), NOTHING)
        value[state.key], time[state.key] = state.value, state.time
        _answer_unversioned(value, time, *requests, answers)
        key = np.flatnonzero(value != NOTHING)
        new_state = StoreState(key, time[key], value[key], np.ones(len(key), np.bool_), state.stream_time)
    else:
        store, slot = open_store(state, requests.key, requests.time, home)
        _answer_versioned(store, *requests, slot, retention, answers)
        new_state = snapshot_store(store, retention)
    return StoreAnswers(answers[:, 0], answers[:, 1], answers[:, 2], new_state)


@compile_loop
def _answer_versioned(
    store: VersionedStore,
    what: Integers,
    key: Integers,
    time: Integers,  # noqa: ARG001  # the slots contain it
    value: Integers,
    slot: Integers,
    retention: int,
    answers: Integers,
) -> None:
    """Write rows of code, value and time into `answers`; update the store."""
    for n in range(len(key)):
        if what[n] == GET_AT:  # rule: the value before a put is the latest
            before, at = get_as_of(store, key[n], slot[n], retention)
        else:
            before, at = get_latest(store, key[n])
        if what[n] == PUT_UNLESS_ABSENT and value[n] == NOTHING and before == NOTHING:
            answers[n, 0] = LEFT_OUT  # rule: a tombstone left out does not move the store's time
        elif what[n] <= PUT_UNLESS_ABSENT:
            answers[n, 0] = put_version(store, key[n], slot[n], value[n], retention)
        answers[n, 1], answers[n, 2] = before, at


@compile_loop
def _answer_unversioned(
    held_value: Integers,
    held_time: Integers,
    what: Integers,
    key: Integers,
    time: Integers,
    value: Integers,
    answers: Integers,
) -> None:
    """Write rows of code, value and time into `answers`; update the value and time that each key has."""
    for n in range(len(key)):
        k = key[n]
        before, at = held_value[k], held_time[k]
        if what[n] == PUT_UNLESS_ABSENT and value[n] == NOTHING and before == NOTHING:
            answers[n, 0] = LEFT_OUT
        elif what[n] <= PUT_UNLESS_ABSENT:
            held_value[k] = value[n]  # rule: a store that is not versioned takes what is older
            held_time[k] = time[n] if value[n] != NOTHING else NOTHING
        answers[n, 1], answers[n, 2] = before, at
