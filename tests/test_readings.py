"""On logs in strictly increasing time both readings tell the same history, up to what docs/semantics.md lists; and
partitions do not know of each other.

`corrected` by the plain-Python reference, `kafka` by the operators that the jobs run; random operations and records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import reference
import topologies
from hindcast.streams.spec import ProcessorSpec
from hindcast_conformance.topology import compute_vector
from hindcast_conformance.translator import translate_operation
from hindcast_conformance.vectors import DeclinedVector, Vector
from histories import history
from test_emits_task import NONE, form, rows, run

Json = Any
Held = dict[tuple[str | None, int], Json]
_LONG = 1_000_000


def in_time(seed: str) -> tuple[Json, list[Json]] | None:
    """An operation that both readings have, and a log of it in which each record is later than all before."""
    drawn = history(seed, expiring=False)
    operation = {name: told for name, told in drawn.operation.items() if name != "semantics"}
    plain = not any(word in str(operation) for word in ("rekey", "onField", "ttlMs", "'join': {", "left.g", "right.g"))
    if not plain or operation.get("aggregation") in ("min", "max", "avg"):
        return None
    dice = random.Random(seed)  # noqa: S311 - histories, not secrets
    moments = sorted(dice.sample(range(4 * len(drawn.records)), len(drawn.records)))
    records = [{**r, "timestamp": t, "run": 1, "partition": 0} for r, t in zip(drawn.records, moments, strict=True)]
    if "window" in operation:
        # Null values count in Kafka's windows, and grace holds nothing back where nothing is late.
        records = [record for record in records if record["value"] is not None]
        operation["window"] = {**operation["window"], "graceMs": 0, "storeRetentionMs": _LONG}
    if operation["type"] == "windowed_aggregate":
        operation["emit"] = "update"
    try:
        _ = translate_operation(operation).checked
    except DeclinedVector:  # windows that a contract does not have
        return None
    return operation, records


def both(operation: Json, records: list[Json]) -> tuple[list[Json], list[Json]]:
    """The rows that `corrected` believes, and what `kafka` emits."""
    rows = reference.expected({**operation, "semantics": "corrected"}, records)["rows"]
    expected = compute_vector(Vector("drawn", "drawn", operation, tuple(records), {}))
    return [row for row in rows if row["systemTo"] is None], expected["emitted"]


def over_time(rows: list[Json], moments: range) -> Held:
    """What each key has at each moment, by rows with periods."""
    return {
        (row["key"], t): row["value"]
        for row in rows
        for t in moments
        if row["validFrom"] <= t and (row["validTo"] is None or t < row["validTo"])
    }


def amounting(emitted: list[Json], moments: range) -> Held:
    """What each key has at each moment, by records of a table: the last one of its time, until the key's next."""
    latest: dict[str, dict[int, Json]] = {}
    for row in emitted:
        latest.setdefault(row["key"], {})[row["timestamp"]] = row["value"]
    found: Held = {}
    for key, versions in latest.items():
        for t in moments:
            upto = [start for start in versions if start <= t]
            if upto and versions[max(upto)] is not None:
                found[key, t] = versions[max(upto)]
    return found


def told(rows: list[Json], *columns: str) -> list[str]:
    return sorted(str([row[column] for column in columns]) for row in rows)


def as_table(operation: Json, rows: list[Json], emitted: list[Json]) -> tuple[Any, Any]:
    """Tables by what they hold at each moment. A group without members is absent, in Kafka it has 0 (5)."""
    moments = range(_last(emitted, rows) + 2)
    corrected, kafka = over_time(rows, moments), amounting(emitted, moments)
    if operation["type"] == "table_aggregate":
        kafka = {place: value for place, value in kafka.items() if place in corrected or value != 0}
    return corrected, kafka


def as_events(_operation: Json, rows: list[Json], emitted: list[Json]) -> tuple[Any, Any]:
    return told(rows, "key", "value", "timestamp"), told(emitted, "key", "value", "timestamp")


def as_pairs(_operation: Json, rows: list[Json], emitted: list[Json]) -> tuple[Any, Any]:
    """Pairs; what has no match is held back by Kafka for a while, or for ever (9)."""
    of_rows, of_kafka = (
        [row for row in some if row["value"]["left"] is not None and row["value"]["right"] is not None]
        for some in (rows, emitted)
    )
    alone = {str(row["value"]) for row in rows}
    assert {str(row["value"]) for row in emitted} <= alone
    return as_events(_operation, of_rows, of_kafka)


def as_windows(_operation: Json, rows: list[Json], emitted: list[Json]) -> tuple[Any, Any]:
    """Of each window what came last."""
    last = {str(row["key"]): {**row["key"], "value": row["value"]} for row in emitted}
    kafka = [row for row in last.values() if row["value"] is not None]
    return told(rows, "key", "start", "end", "value"), told(kafka, "key", "start", "end", "value")


AS: dict[str, Callable[[Json, list[Json], list[Json]], tuple[Any, Any]]] = {
    "table_transform": as_table,
    "table_table_join": as_table,
    "foreign_key_join": as_table,
    "table_aggregate": as_table,
    "stream_aggregate": as_table,
    "stream_table_join": as_events,
    "stream_stream_join": as_pairs,
    "windowed_aggregate": as_windows,
}


def _last(*logs: list[Json]) -> int:
    return max((row.get("timestamp", row.get("validFrom", 0)) for log in logs for row in log), default=0)


@pytest.mark.long
@pytest.mark.ci
def test_both_readings_tell_the_same_of_what_comes_in_order() -> None:
    compared = dict.fromkeys(AS, 0)
    for number in range(3_000):
        drawn = in_time(f"order/{number}")
        if drawn is None:
            continue
        operation, records = drawn
        rows, emitted = both(operation, records)
        corrected, kafka = AS[operation["type"]](operation, rows, emitted)
        assert kafka == corrected, (operation, records)
        compared[operation["type"]] += bool(rows)
    assert min(compared.values()) > 30, compared


FAMILIES = [
    "stream_table_join",
    "stream_table_join_grace",
    "table_table_join",
    "foreign_key_join",
    "stream_aggregate",
    "table_suppress",
    "stream_stream_join",
    "windowed_hopping",
    "windowed_sliding",
    "windowed_session",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_partitions_do_not_know_of_each_other(family: str) -> None:
    """Two logs as two partitions of one task emit what each emits alone."""
    drawn = list(topologies.vectors(family, 80, seed=3))
    compared = 0
    for one, other in zip(drawn[::2], drawn[1::2], strict=True):
        its = form(one["operation"])
        if its is None:
            continue
        logs = [rows(vector) for vector in (one, {**other, "operation": one["operation"]})]
        alone = [told_apart(its, log)[0] for log in logs]
        dice = random.Random(family)  # noqa: S311 - histories, not secrets
        sides = [0] * len(logs[0]) + [1] * len(logs[1])
        dice.shuffle(sides)
        left = [iter(log) for log in logs]
        together = [{**next(left[side]), "partition": side, "home": side} for side in sides]
        emitted = told_apart(its, together)
        assert emitted == dict(enumerate(alone)), one["operation"]
        compared += bool(alone[0])
    assert compared > 5


def told_apart(its: ProcessorSpec, given: list[Json]) -> dict[int, list[Json]]:
    """What rows emit, by partition: all but where its causes stand among those of others."""
    emitted, _ = run(its, given, NONE)
    found: dict[int, list[Json]] = {0: [], 1: []}
    for row in emitted:
        found[row["partition"]].append({k: v for k, v in row.items() if k not in ("order", "partition", "home")})
    return found
