"""Vectors of a versioned store by itself: what it answers, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.conformance.vectors import Declined, Json, Refused
from hindcast.emits import stores, versioned
from hindcast.emits.stores import GET, GET_AT, PUT, Asked
from hindcast.emits.versioned import REJECTED, UNLIMITED, Versions

_SEGMENTS = ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000))
"""Of retentions up to one, in ms, how many segments a store has, and how long each is at least; longer ones: _LONG."""

_LONG = (24, 300_000)


class Steps:
    """The steps of a vector. A delete is a look-up and a put. `code`: the code of each key."""

    def __init__(
        self, operation: Mapping[str, Json], steps: Sequence[Mapping[str, Json]], code: Mapping[str, int]
    ) -> None:
        self.retention = operation["historyRetentionMs"]
        if self.retention < 0:
            raise Refused("java.lang.IllegalArgumentException", "historyRetention cannot be negative")
        self.interval = operation.get("segmentIntervalMs") or segment_interval(self.retention)
        self.steps = steps
        self.code = code
        self.home = np.zeros(len(code), np.int64)

    def results(self) -> list[Json]:
        """What each step answers."""
        return [self._result(number) for number in range(len(self.steps))]

    def history(self, upto: int | None = None) -> Versions:
        """What the store holds after some steps, or all."""
        return self._asked(self.steps[:upto], self.retention)[1]

    def _result(self, number: int) -> Json:
        step = self.steps[number]
        match step["op"]:
            case "put":
                return self._asked(self.steps[: number + 1], self.retention)[0][-1][0]
            case "get":
                return self._found(self._asked(self.steps[: number + 1], self.retention)[0][-1])
            case "delete":
                looked_up, ended = self._asked(self.steps[: number + 1], self.retention)[0][-2:]
                return None if ended[0] == REJECTED else self._found(looked_up)
            case "queryAsOf":
                found = self._asked([*self.steps[:number], {**step, "op": "get"}], self.retention)[0][-1]
                every = self._versions(number, step["key"])
                return next((v for v in every if found[1] != NOTHING and v["validFrom"] == found[2]), None)
            case "query":
                return self._between(number, step)
            case other:
                raise Declined(f"no step {other!r}")

    def _between(self, number: int, step: Mapping[str, Json]) -> list[Json]:
        """The versions of a key that meet an interval, as the store's segments show them (rule 11)."""
        start, end = step.get("from"), step.get("to")
        kept = self.history(number)
        every = self._versions(number, step["key"])
        latest = [v for v in every if v["validTo"] is None]
        bound = int(kept.reached[0]) - self.retention
        if end is not None and end < bound:
            every = latest
        found = [
            v
            for v in every
            if (end is None or v["validFrom"] <= end)
            and (start is None or v["validTo"] is None or v["validTo"] > start)
            and (v["validTo"] is None or self._shown(v["validTo"], bound, end))
        ]
        return sorted(found, key=lambda v: v["validFrom"], reverse=step.get("order") != "asc")

    def _shown(self, valid_to: int, bound: int, end: int | None) -> bool:
        """Whether the segment of a version that has ended is still there, and is not later than what is asked for."""
        segment = valid_to // self.interval
        return segment >= max(bound, 0) // self.interval and (end is None or segment <= end // self.interval)

    def _versions(self, number: int, key: str) -> list[Json]:
        """The versions of a key after some steps, none forgotten for its age."""
        left = self._asked(self.steps[:number], self.retention, UNLIMITED)[1]
        return versions(left, self.code[key], [step.get("value") for step in self.steps])

    def _found(self, answer: tuple[int, int, int]) -> Json:
        _, value, time = answer
        return None if value == NOTHING else {"value": self.steps[value]["value"], "timestamp": time}

    def _asked(
        self, steps: Sequence[Mapping[str, Json]], retention: int, kept: int | None = None
    ) -> tuple[list[tuple[int, int, int]], Versions]:
        """The answers, and what the store holds then; of a delete there are two answers."""
        rows = []
        for number, step in enumerate(steps):
            key, time = self.code[step["key"]], step.get("timestamp", 0)
            match step["op"]:
                case "put":
                    rows.append((PUT, key, time, NOTHING if step["value"] is None else number))
                case "get" if step.get("asOf") is None:
                    rows.append((GET, key, 0, NOTHING))
                case "get":
                    rows.append((GET_AT, key, step["asOf"], NOTHING))
                case "delete":
                    rows += [(GET_AT, key, time, NOTHING), (PUT, key, time, NOTHING)]
        columns = np.array(rows, np.int64).reshape(-1, 4).T.copy()
        questions = Asked(*columns)
        if kept is None:
            answered = stores.answer(versioned.empty(), questions, self.home, retention)
            return list(zip(*(c.tolist() for c in answered[:3]), strict=True)), answered.kept
        store, slot = versioned.opened(versioned.empty(), questions.key, questions.time, self.home)
        for n in range(len(slot)):
            if questions.what[n] == PUT:
                versioned.put(store, questions.key[n], slot[n], questions.value[n], retention)
        return [], versioned.held(store, kept)


def segment_interval(retention: int) -> int:
    """Return how long the segments of a versioned store are for a history retention, unless its user says so."""
    count, least = next(((n, least) for most, n, least in _SEGMENTS if retention <= most), _LONG)
    return max(retention // count, least)


def versions(left: Versions, key: int, values: Sequence[Json]) -> list[Json]:
    """The versions of a key that a look-up can find, in ascending order."""
    rows = np.flatnonzero(left.key == key)
    ends = [*left.time[rows[1:]].tolist(), None][: len(rows)]
    found = [
        {"value": values[left.value[row]], "validFrom": int(left.time[row]), "validTo": end}
        for row, end in zip(rows, ends, strict=True)
        if left.value[row] != NOTHING
    ]
    return [version for version in found if version["validFrom"] != version["validTo"]]
