"""Vectors of a versioned store alone: the answer to each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams import stores, versioned
from hindcast.streams.stores import GET, GET_AT, PUT, StoreRequests
from hindcast.streams.versioned import REJECTED, UNLIMITED, StoreState
from hindcast_conformance.vectors import DeclinedVector, Json, KafkaStreamsError, Vector

_SEGMENTS = ((60_000, 3, 2_000), (300_000, 5, 20_000), (3_600_000, 12, 60_000))
"""Up to a retention in ms: the number of segments of a store, and their least length in ms. Beyond: _LONG."""

_LONG = (24, 300_000)


class StoreSteps:
    """The steps of a vector. A delete is a look-up and a put. `code` maps each key to its code."""

    def __init__(
        self, operation: Mapping[str, Json], steps: Sequence[Mapping[str, Json]], code: Mapping[str, int]
    ) -> None:
        self.retention = operation["historyRetentionMs"]
        if self.retention < 0:
            raise KafkaStreamsError("java.lang.IllegalArgumentException", "historyRetention cannot be negative")
        self.interval = operation.get("segmentIntervalMs") or segment_interval(self.retention)
        self.steps = steps
        self.code = code
        self.home = np.zeros(len(code), np.int64)

    def run_all(self) -> list[Json]:
        """Return the answer of each step."""
        return [self._run_step(number) for number in range(len(self.steps))]

    def history(self, upto: int | None = None) -> StoreState:
        """Return the store's state after the first `upto` steps, or all."""
        return self._ask_store(self.steps[:upto], self.retention)[1]

    def _run_step(self, number: int) -> Json:
        step = self.steps[number]
        match step["op"]:
            case "put":
                return self._ask_store(self.steps[: number + 1], self.retention)[0][-1][0]
            case "get":
                return self._format_answer(self._ask_store(self.steps[: number + 1], self.retention)[0][-1])
            case "delete":
                looked_up, ended = self._ask_store(self.steps[: number + 1], self.retention)[0][-2:]
                return None if ended[0] == REJECTED else self._format_answer(looked_up)
            case "queryAsOf":
                _, value, time = self._ask_store([*self.steps[:number], {**step, "op": "get"}], self.retention)[0][-1]
                versions = self._find_versions(number, step["key"])
                return next((v for v in versions if value != NOTHING and v["validFrom"] == time), None)
            case "query":
                return self._query_interval(number, step)
            case other:
                raise DeclinedVector(f"no step {other!r}")

    def _query_interval(self, number: int, step: Mapping[str, Json]) -> list[Json]:
        """Return the versions of a key that meet an interval, as the store's segments show them (rule 11)."""
        start, end = step.get("from"), step.get("to")
        versions = self._find_versions(number, step["key"])
        bound = int(self.history(number).stream_time[0]) - self.retention
        if end is not None and end < bound:  # rule: a query to before T - R has the latest version only
            versions = [v for v in versions if v["validTo"] is None]
        # rule: a query meets what begins at its end, not what ends at its start
        shown = [
            v
            for v in versions
            if (end is None or v["validFrom"] <= end)
            and (start is None or v["validTo"] is None or v["validTo"] > start)
            and (v["validTo"] is None or self._is_shown(v["validTo"], bound, end))
        ]
        return sorted(shown, key=lambda v: v["validFrom"], reverse=step.get("order") != "asc")

    def _is_shown(self, valid_to: int, bound: int, end: int | None) -> bool:
        """Return whether the segment of an ended version still exists, and is not later than the queried interval."""
        segment = valid_to // self.interval
        # rule: a query finds no version that ends in a later segment
        return segment >= max(bound, 0) // self.interval and (end is None or segment <= end // self.interval)

    def _find_versions(self, number: int, key: str) -> list[Json]:
        """Return the versions of a key after some steps, including those past retention."""
        state = self._ask_store(self.steps[:number], self.retention, UNLIMITED)[1]
        return visible_versions(state, self.code[key], [step.get("value") for step in self.steps])

    def _format_answer(self, answer: tuple[int, int, int]) -> Json:
        _, value, time = answer
        return None if value == NOTHING else {"value": self.steps[value]["value"], "timestamp": time}

    def _ask_store(
        self, steps: Sequence[Mapping[str, Json]], retention: int, kept: int | None = None
    ) -> tuple[list[tuple[int, int, int]], StoreState]:
        """Return the answers to the steps, two for a delete, and the store's state after them.

        With `kept` there are no answers, and the state has what a store that keeps versions for `kept` ms would hold.
        """
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
        requests = StoreRequests(*columns)
        if kept is None:
            answers = stores.answer_requests(versioned.empty_store_state(), requests, self.home, retention)
            return list(zip(*(c.tolist() for c in answers[:3]), strict=True)), answers.state
        store, slot = versioned.open_store(versioned.empty_store_state(), requests.key, requests.time, self.home)
        for n in range(len(slot)):
            if requests.what[n] == PUT:
                versioned.put_version(store, requests.key[n], slot[n], requests.value[n], retention)
        return [], versioned.snapshot_store(store, kept)


def compute_store(vector: Vector) -> Json:
    """Return the result of a vector of a store alone; KafkaStreamsError for a negative retention."""
    names = sorted({step["key"] for step in vector.records}, key=str.encode)
    code = {name: number for number, name in enumerate(names)}
    steps = StoreSteps(vector.operation, vector.records, code)
    state, values = steps.history(), [step.get("value") for step in vector.records]
    written = {step["key"] for step in vector.records if step["op"] in ("put", "delete")}
    keys = {name: visible_versions(state, number, values) for name, number in code.items() if name in written}
    return {"results": steps.run_all(), "history": {"store": keys}}


def segment_interval(retention: int) -> int:
    """Return the default length of a versioned store's segments for a history retention; both in ms."""
    count, least = next(((n, least) for most, n, least in _SEGMENTS if retention <= most), _LONG)
    return max(retention // count, least)


def visible_versions(state: StoreState, key: int, values: Sequence[Json]) -> list[Json]:
    """Return the versions of a key that a look-up can find, in ascending order."""
    rows = np.flatnonzero(state.key == key)
    ends = [*state.time[rows[1:]].tolist(), None][: len(rows)]
    versions = [
        {"value": values[state.value[row]], "validFrom": int(state.time[row]), "validTo": end}
        for row, end in zip(rows, ends, strict=True)
        if state.value[row] != NOTHING
    ]
    return [version for version in versions if version["validFrom"] != version["validTo"]]
