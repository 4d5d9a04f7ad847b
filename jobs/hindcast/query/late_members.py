"""Find the events that came too late for a window, as `bitemporal.windows.judge_events` does, in DuckDB.

An event is judged by stream time: the latest timestamp of the events that count, of all groups, that its partition had
reached with it. Only the partitions' offsets up to the last event of the window are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import duckdb
import pyarrow as pa

from hindcast.bitemporal.intervals import count_micros
from hindcast.bitemporal.predicates import FIRST_MOMENT, sql_literal
from hindcast.contract import Window
from hindcast.query.explain_limits import NotExplainedError

MAX_SESSION_EVENTS = 100_000
"""How many events of a group may be judged one by one, where sessions have late events."""

_LATE_SCHEMA = pa.schema({"_partition": pa.int32(), "_offset": pa.int64()})


class TimedEvent(NamedTuple):
    """An event: its place, its timestamp and its stream time, both in microseconds since 1970."""

    partition: int
    offset: int
    at: int
    stream_time: int


@dataclass(frozen=True)
class WindowMembers:
    """The events of one window of one group, whether they came in time or not, as SQL conditions over the input.

    `counts`: the events that move stream time; `group`: those of the group among them.
    """

    window: Window
    start: datetime
    end: datetime
    counts: str
    group: str

    @property
    def earliest(self) -> datetime | None:
        """The moment from which on events can decide what the window holds; None if any event can."""
        return None if self.window.session is not None else self.start

    @property
    def condition(self) -> str:
        """The condition of the events whose time lies in the window."""
        return f"{self.group} AND {find_time_condition(self.window, self.start, self.end)}"

    def find_late(self, engine: duckdb.DuckDBPyConnection, name: str, known: str) -> pa.Table:
        """Return the places (`_partition`, `_offset`) of the events in the window's time that came too late for it.

        The engine has the input as `rows`; `known`: the condition of its rows that were current.
        """
        if self.window.session is not None:
            return self._find_late_in_session(engine, name, known)
        window, grace = self.window, count_micros(self.window.grace)
        size = window.tumbling or window.hopping
        if size:
            # Rule 18: a closed window takes no event.
            late = f"stream_time >= {_count_micros(self.start) + count_micros(size) + grace}"
        else:
            # Rule 20: a sliding window closes by its end.
            late = f"stream_time - micros > {count_micros(window.sliding) + grace}"
        events = _read_stream_times(name, known, self.counts, f"{known} AND {self.condition}")
        query = f"SELECT event_partition, event_offset FROM ({events}) WHERE {late}"  # noqa: S608  # numbers, conditions
        return _build_places(engine.execute(query).fetchall())

    def _find_late_in_session(self, engine: duckdb.DuckDBPyConnection, name: str, known: str) -> pa.Table:
        """Return `find_late` of a session: an event is late with the session that it would be in.

        Were no event refused, those of the group would form certain sessions; events of different ones never meet.
        """
        gap, start = count_micros(self.window.session), _count_micros(self.start)
        timed = f'SELECT "_partition", "_offset", epoch_us("timestamp") AS micros FROM rows AS "{name}"'  # noqa: S608  # a name
        apart = f"CASE WHEN micros - lag(micros) OVER (ORDER BY micros) > {gap} THEN 1 ELSE 0 END"
        so_far = "ORDER BY micros ROWS UNBOUNDED PRECEDING"
        bounds = f"""
            WITH gaps AS (SELECT micros, {apart} AS apart FROM ({timed} WHERE {known} AND {self.group})),
                 chains AS (SELECT micros, sum(apart) OVER ({so_far}) AS chain FROM gaps)
            SELECT min(micros), max(micros) FROM chains
            WHERE chain = (SELECT max(chain) FROM chains WHERE micros <= {start})
        """  # noqa: S608  # numbers, conditions
        ((first, last),) = engine.execute(bounds).fetchall()
        if first is None:
            return _build_places([])
        chain = f'{known} AND {self.group} AND epoch_us("timestamp") BETWEEN {first} AND {last}'
        query = f"{_read_stream_times(name, known, self.counts, chain)} LIMIT {MAX_SESSION_EVENTS + 1}"
        events = [TimedEvent(*row) for row in engine.execute(query).fetchall()]
        if len(events) > MAX_SESSION_EVENTS:
            raise NotExplainedError(f"the events around the session are more than {MAX_SESSION_EVENTS:,}")
        refused = refuse_late_in_sessions(events, gap, count_micros(self.window.grace))
        end = _count_micros(self.end)
        return _build_places((it.partition, it.offset) for it in refused if start <= it.at <= end)


def find_time_condition(window: Window, start: datetime, end: datetime) -> str:
    """Return the condition that an event's time lies in a window; the end is in sliding windows and sessions."""
    sign = "<" if window.tumbling or window.hopping else "<="
    return f'"timestamp" >= {sql_literal(start)} AND "timestamp" {sign} {sql_literal(end)}'


def refuse_late_in_sessions(events: Sequence[TimedEvent], gap: int, grace: int) -> list[TimedEvent]:
    """Return the events of a group that no session takes; they are in order of their offsets.

    gap 2, no grace    @1, @9 of another group, @3    ->    @3: its session [1, 3] ended before 9 - 2
    """
    refused: list[TimedEvent] = []
    sessions: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        own = sessions.setdefault(event.partition, [])  # Rule 17: partitions judge apart
        met = [(low, high) for low, high in own if low - gap <= event.at <= high + gap]
        low, high = min([event.at, *(it[0] for it in met)]), max([event.at, *(it[1] for it in met)])
        # Rule 23: an event is late with its session.
        if high < event.stream_time - grace - gap:
            refused.append(event)
        else:
            sessions[event.partition] = [*(it for it in own if it not in met), (low, high)]
    return refused


def _read_stream_times(name: str, known: str, counts: str, members: str) -> str:
    """Return the query of the events that meet the condition `members`, as `TimedEvent`, in order of their offsets."""
    place = '"_partition" AS event_partition, "_offset" AS event_offset, epoch_us("timestamp") AS micros'
    events = f'SELECT {place} FROM rows AS "{name}"'  # noqa: S608  # a name
    return f"""
        SELECT event_partition, event_offset, micros, stream_time FROM (
            SELECT event_partition, event_offset, others.micros,
                   max(others.micros) OVER (PARTITION BY event_partition ORDER BY event_offset) AS stream_time
            FROM ({events} WHERE {known} AND {counts}
                  AND "timestamp" >= (SELECT min("timestamp") FROM rows AS "{name}" WHERE {members})) others
            JOIN (SELECT event_partition, max(event_offset) AS last
                  FROM ({events} WHERE {members}) GROUP BY event_partition) ends USING (event_partition)
            WHERE event_offset <= last
        ) JOIN ({events} WHERE {members}) USING (event_partition, event_offset, micros)
        ORDER BY event_partition, event_offset
    """  # noqa: S608  # conditions


def _build_places(places: Iterable[tuple[int, int]]) -> pa.Table:
    """Return places as rows."""
    rows = [dict(zip(_LATE_SCHEMA.names, place, strict=True)) for place in places]
    return pa.Table.from_pylist(rows, schema=_LATE_SCHEMA)


def _count_micros(moment: datetime) -> int:
    return (moment - FIRST_MOMENT) // timedelta(microseconds=1)
