"""What tables and views mean, in plain Python: docs/concepts.md and docs/semantics.md, word for word.

It computes nothing cleverly. Whatever is asked at an instant is answered by looking at all records; rows come of asking
at every instant at which anything can change, and their system periods of asking after every run. Operations and
records are those of the conformance vectors; besides, a record may have a `partition`, a table `ttlMs`, a stream-table
join `onField` (the field of the event's value that names the table's key), and a table the transform
`{"op": "rekey", "field": f}` (its new key is the value's field f and the old key, joined by a slash).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Json = Any


class Record(NamedTuple):
    """One record; `offset` is its index in the log, and orders the records of its partition."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: Json
    timestamp: int
    run: int


class Held(NamedTuple):
    """What a key has at an instant: the records that it is made of, and its value."""

    made_of: Any
    value: Json


def expected(operation: Mapping[str, Json], lines: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    """Every row ever believed, and the fates of all records."""
    log = [
        Record(it["topic"], it.get("partition", 0), offset, it["key"], it["value"], it["timestamp"], it["run"])
        for offset, it in enumerate(lines)
    ]
    runs = range(1, max((record.run for record in log), default=0) + 1)
    believed = [rows(operation, [r for r in log if r.run <= run]) for run in runs]
    contents = {text: row for after in believed for text, row in ((text_of(row), row) for row in after)}
    texts = [{text_of(row) for row in after} for after in believed]
    found = [
        {**contents[text], "systemFrom": start, "systemTo": end}
        for text in contents
        for start, end in stretches(run for run in runs if text in texts[run - 1])
        for end in [None if end == len(texts) else end + 1]
    ]
    return {"rows": found, "fates": fates(operation, log)}


# --- which records count -------------------------------------------------------------------------------------------


def accepted(log: Iterable[Record], topic: str, retention: int) -> list[Record]:
    """What a table takes: records not older than the partition's largest timestamp taken before, less retention."""
    taken: list[Record] = []
    for record in log:
        if record.topic == topic and record.key is not None:
            time = max((r.timestamp for r in taken if r.partition == record.partition), default=-1)
            if not record.timestamp < time - retention:
                taken.append(record)
    return taken


def events(log: Iterable[Record], topic: str = "stream") -> list[Record]:
    """Stream records with a value."""
    return [record for record in log if record.topic == topic and record.value is not None]


def stream_time(counted: Iterable[Record], event: Record) -> int:
    """The largest timestamp of the events of its partition up to this one."""
    return max(e.timestamp for e in counted if e.partition == event.partition and e.offset <= event.offset)


# --- tables: what each key has at an instant
# ---------------------------------------------------------------------------


def table_at(table: Mapping[str, Json], topic: str, log: list[Record], t: int) -> dict[str, Held]:
    """The table as it is at `t`: keys that are present, with what they hold."""
    if "join" in table:
        held = join_at(table["join"], log, t)
    else:
        held = {}
        taken = accepted(log, topic, table["historyRetentionMs"])
        for key in {record.key for record in taken}:
            valid = [record for record in taken if record.key == key and record.timestamp <= t]
            latest = max(valid, key=lambda r: (r.timestamp, r.partition, r.offset), default=None)
            over = latest is not None and "ttlMs" in table and t >= latest.timestamp + table["ttlMs"]
            if latest is not None and latest.value is not None and not over:
                held[key] = Held(latest.offset, latest.value)
    for step in table.get("transforms", ()):
        held = dict(transformed(step, held))
    return held


def transformed(step: Mapping[str, Json], held: Mapping[str, Held]) -> Iterator[tuple[str, Held]]:
    for key, (made_of, value) in held.items():
        match step:
            case {"op": "filter", "predicate": {"type": "even"}}:
                if value % 2 == 0:
                    yield key, Held(made_of, value)
            case {"op": "filter", "predicate": {"type": "gte", "value": least}}:
                if value >= least:
                    yield key, Held(made_of, value)
            case {"op": "mapValues", "multiplyBy": factor}:
                yield key, Held(made_of, value * factor)
            case {"op": "rekey", "field": name}:
                if (field := at_path(value, name)) is not None:
                    yield f"{field}/{key}", Held(made_of, value)


def join_at(join: Mapping[str, Json], log: list[Record], t: int) -> dict[str, Held]:
    """A join of tables at `t`: a table-table join by the key, a foreign-key join by a field of the left value."""
    left, right = (table_at(join[side], side, log, t) for side in ("left", "right"))
    names = {key: key for key in {*left, *right}}
    if join["type"] == "foreign_key_join":
        names = {key: at_path(held.value, join["foreignKeyField"]) for key, held in left.items()}
    found = {}
    for key, name in names.items():
        one, other = left.get(key), right.get(name)
        wanted = {"inner": one and other, "left": one, "outer": one or other}[join["join"]]
        if wanted:
            value = {"left": one.value if one else None, "right": other.value if other else None}
            found[key] = Held((one and one.made_of, other and other.made_of), value)
    return found


def groups_at(operation: Mapping[str, Json], log: list[Record], t: int) -> dict[str, Held]:
    """An aggregate of a table at `t`: over the versions in each group that have a value to aggregate."""
    members: dict[str, list[tuple[Any, Json]]] = {}
    for key, held in table_at(operation["table"], "table", log, t).items():
        group, counted = (at_path(held.value, operation["groupBy"][name]) for name in ("keyField", "valueField"))
        if group is not None and counted is not None:
            members.setdefault(group, []).append(((key, held.made_of), counted))
    return {
        group: Held(frozenset(one for one, _ in of), aggregate(operation["aggregation"], [value for _, value in of]))
        for group, of in members.items()
    }


def totals_at(operation: Mapping[str, Json], log: list[Record], t: int) -> dict[str, Held]:
    """An aggregate of a stream at `t`: over all events of each key up to then; each timestamp changes it."""
    upto = [event for event in events(log) if event.key is not None and event.timestamp <= t]
    return {
        key: Held(max(e.timestamp for e in of), aggregate(operation["aggregation"], [e.value for e in of]))
        for key in {event.key for event in upto}
        for of in [[event for event in upto if event.key == key]]
    }


# --- rows ----------------------------------------------------------------------------------------------------------


def rows(operation: Mapping[str, Json], log: list[Record]) -> list[dict[str, Json]]:
    """The rows of an operation, given all records that are known."""
    match operation["type"]:
        case "table_transform":
            return over_time(log, operation, lambda t: table_at(operation["table"], "table", log, t))
        case "table_table_join" | "foreign_key_join":
            return over_time(log, operation, lambda t: join_at(operation, log, t))
        case "table_aggregate":
            return over_time(log, operation, lambda t: groups_at(operation, log, t))
        case "stream_aggregate":
            return over_time(log, operation, lambda t: totals_at(operation, log, t))
        case "stream_table_join":
            return list(looked_up(operation, log))
        case "stream_stream_join":
            return list(paired(operation, log))
    return list(windowed(operation, log))


def over_time(
    log: list[Record], operation: Mapping[str, Json], at: Callable[[int], dict[str, Held]]
) -> list[dict[str, Json]]:
    """Of each key a row for every longest run of instants over which it is made of the same."""
    lives = [0, *ttls(operation)]
    instants = sorted({record.timestamp + life for record in log for life in lives})
    seen = [at(t) for t in instants]
    found = []
    for key in {key for held in seen for key in held}:
        start = 0
        for end in range(1, len(instants) + 1):
            here = seen[start].get(key)
            after = seen[end].get(key) if end < len(instants) else None
            if (
                end == len(instants)
                or (here and here.made_of) != (after and after.made_of)
                or bool(here) != bool(after)
            ):
                if here:
                    until = instants[end] if end < len(instants) else None
                    found.append({"key": key, "value": here.value, "validFrom": instants[start], "validTo": until})
                start = end
    return found


def looked_up(operation: Mapping[str, Json], log: list[Record]) -> Iterator[dict[str, Json]]:
    """Each event with what the table has at its timestamp."""
    for event in events(log):
        name = at_path(event.value, operation["onField"]) if "onField" in operation else event.key
        held = table_at(operation["table"], "table", log, event.timestamp).get(name)
        if held or operation["join"] == "left":
            value = {"left": event.value, "right": held.value if held else None}
            yield {"record": event.offset, "key": event.key, "value": value, "timestamp": event.timestamp}


def paired(operation: Mapping[str, Json], log: list[Record]) -> Iterator[dict[str, Json]]:
    """All pairs within the window, and the events of kept sides that are in none."""
    before, after = operation["window"]["beforeMs"], operation["window"]["afterMs"]
    left, right = events(log, "left"), events(log, "right")
    pairs = [
        (one, other)
        for one in left
        for other in right
        if one.key is not None and one.key == other.key
        if one.timestamp - before <= other.timestamp <= one.timestamp + after
    ]
    kept: list[tuple[Record | None, Record | None]] = [*pairs]
    if operation["join"] in {"left", "outer"}:
        kept += [(one, None) for one in left if all(one is not pair[0] for pair in pairs)]
    if operation["join"] == "outer":
        kept += [(None, other) for other in right if all(other is not pair[1] for pair in pairs)]
    for one, other in kept:
        both = [record for record in (one, other) if record is not None]
        yield {
            "records": [one and one.offset, other and other.offset],
            "key": both[0].key,
            "value": {"left": one and one.value, "right": other and other.value},
            "timestamp": max(record.timestamp for record in both),
        }


# --- windows -------------------------------------------------------------------------------------------------------


def windowed(operation: Mapping[str, Json], log: list[Record]) -> Iterator[dict[str, Json]]:
    """A row for each key and window with what the window took."""
    for key in {event.key for event in events(log) if event.key is not None}:
        for start, end, of in windows(operation["window"], log, key):
            value = aggregate(operation["aggregation"], [event.value for event in of])
            yield {"key": key, "start": start, "end": end, "value": value}


def windows(window: Mapping[str, Json], log: list[Record], key: str) -> Iterator[tuple[int, int, list[Record]]]:
    """The windows of a key that took an event: start, end and what they took."""
    counted = [event for event in events(log) if event.key is not None]
    own = [event for event in counted if event.key == key]
    if window["kind"] in {"tumbling", "hopping"}:
        for start in range(0, max(e.timestamp for e in own) + 1, window.get("advanceMs", window["sizeMs"])):
            end = start + window["sizeMs"]
            took = [e for e in own if start <= e.timestamp < end and end > stream_time(counted, e) - window["graceMs"]]
            if took:
                yield start, end, took
    elif window["kind"] == "sliding":
        length = window["timeDifferenceMs"]
        took = [e for e in own if e.timestamp + length >= stream_time(counted, e) - window["graceMs"]]
        for start in {start for e in took for start in (max(0, e.timestamp - length), e.timestamp + 1)}:
            inside = [e for e in took if start <= e.timestamp <= start + length]
            if inside:
                yield start, start + length, inside
    else:
        gap = window["inactivityGapMs"]
        for session in sessions(in_sessions(window, counted, own), gap):
            yield min(e.timestamp for e in session), max(e.timestamp for e in session), session


def in_sessions(window: Mapping[str, Json], counted: list[Record], own: list[Record]) -> list[Record]:
    """The events that sessions take, one by one in each partition: is the session that it would be in too old?"""
    taken: list[Record] = []
    gap = window["inactivityGapMs"]
    for event in own:
        before = [e for e in taken if e.partition == event.partition]
        session = next(s for s in sessions([*before, event], gap) if event in s)
        if max(e.timestamp for e in session) >= stream_time(counted, event) - window["graceMs"] - gap:
            taken.append(event)
    return taken


def sessions(members: Iterable[Record], gap: int) -> list[list[Record]]:
    """Events parted wherever neighbours in time are more than the gap apart."""
    parted: list[list[Record]] = []
    for event in sorted(members, key=lambda e: e.timestamp):
        if parted and event.timestamp - parted[-1][-1].timestamp <= gap:
            parted[-1].append(event)
        else:
            parted.append([event])
    return parted


# --- fates ---------------------------------------------------------------------------------------------------------


def fates(operation: Mapping[str, Json], log: list[Record]) -> dict[str, dict[str, int]]:
    """How many records of each topic were accepted, expired, or left out for a null key."""
    counts = {topic: {"accepted": 0, "expired": 0, "null_key": 0} for topic in topics(operation)}
    for record in log:
        counts[record.topic][fate(operation, log, record)] += 1
    return counts


def fate(operation: Mapping[str, Json], log: list[Record], record: Record) -> str:
    retention = retention_of(operation, record.topic)
    kept = {"left": {"stream", "left"}, "outer": {"left", "right"}}.get(operation.get("join", ""), set())
    if retention is not None:
        if record.key is None:
            return "null_key"
        return "accepted" if record in accepted(log, record.topic, retention) else "expired"
    if record.key is None:
        return "accepted" if record.topic in kept or "onField" in operation else "null_key"
    if operation["type"] == "windowed_aggregate" and record.value is not None:
        took = [e for _, _, of in windows(operation["window"], log, record.key) for e in of]
        return "accepted" if record in took else "expired"
    return "accepted"


def topics(operation: Mapping[str, Json]) -> list[str]:
    streams = {"stream_stream_join": ["left", "right"], "table_table_join": [], "foreign_key_join": []}
    own = streams.get(operation["type"], [] if operation["type"].startswith("table_") else ["stream"])
    return [*own, *dict(tables(operation))]


def retention_of(operation: Mapping[str, Json], topic: str) -> int | None:
    return dict(tables(operation)).get(topic, {}).get("historyRetentionMs")


def ttls(operation: Mapping[str, Json]) -> list[int]:
    return [table["ttlMs"] for _, table in tables(operation) if "ttlMs" in table]


def tables(operation: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """The tables that an operation reads from topics, by topic."""
    for name in ("table", "left", "right"):
        if isinstance(operation.get(name), Mapping):
            if "join" in operation[name]:
                yield from tables(operation[name]["join"])
            else:
                yield name, operation[name]


# --- small parts -----------------------------------------------------------------------------------------------------


def aggregate(name: str, values: list[Json]) -> Json:
    match name:
        case "count":
            return len(values)
        case "avg":
            return sum(values) / len(values)
    return {"sum": sum, "min": min, "max": max}[name](values)


def at_path(value: Json, path: str) -> Json:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each maximal run of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def text_of(row: Mapping[str, Json]) -> str:
    return json.dumps(row, sort_keys=True)
