"""Windowed aggregates of a stream in the `corrected` reading (docs/semantics.md, rules 16-23).

Events are judged first, by the stream time of their own source partition, then aggregated. All lengths are day-time
intervals, literals or columns of the events. Kafka's clock ticks in milliseconds: "just after" an event is 1 ms later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast import contract
from hindcast.bitemporal import fates
from hindcast.bitemporal.aggregates import aggregate_rows
from hindcast.bitemporal.intervals import LAST_MICROS, interval_micros
from hindcast.bitemporal.measures import Measure


@dataclass(frozen=True)
class HoppingWindow:
    """[start, start + size) for every start >= 0 that is a multiple of advance; tumbling: advance = size."""

    size: Column
    advance: Column
    grace: Column


@dataclass(frozen=True)
class SlidingWindow:
    """[start, start + difference], both inclusive: ending at an event, or starting just after one."""

    difference: Column
    grace: Column


@dataclass(frozen=True)
class SessionWindow:
    """Events of a key whose neighbours are at most `gap` apart; both bounds inclusive."""

    gap: Column
    grace: Column


WindowDefinition = HoppingWindow | SlidingWindow | SessionWindow


def judge_events(events: DataFrame, window: WindowDefinition) -> DataFrame:
    """Return events (`key, value, timestamp, position`) with `taken`, as `mark_taken_events`, and `streamTime`.

    Where any stream time within certain bounds would decide alike, `streamTime` is one of these: so most events are
    judged without bringing those of a partition together and in order.
    """
    if isinstance(window, SessionWindow):
        return mark_taken_events(fates.add_stream_time(events), window)
    timed = _add_deciding_time(fates.add_stream_time_bounds(events), window)
    return mark_taken_events(timed.drop("source", "block", "timeBefore", "latestTime"), window)


def _add_deciding_time(bounded: DataFrame, window: HoppingWindow | SlidingWindow) -> DataFrame:
    """Return bounded events with a `streamTime` that decides about them as their own does."""
    bounds = F.greatest("timeBefore", "timestamp"), F.col("latestTime")
    # rule: what is decided changes once, as stream time grows
    is_certain = reduce(Column.eqNullSafe, (_decide(window, bound) for bound in bounds))
    certain = bounded.where(is_certain).withColumn("streamTime", F.col("latestTime"))
    blocks = bounded.where(~is_certain).select("source", "block").distinct()
    doubtful = bounded.join(blocks, ["source", "block"], "left_semi")
    timed = fates.add_stream_time(doubtful, F.col("timeBefore"), "block")
    return certain.unionByName(timed.where(~is_certain))


def _decide(window: HoppingWindow | SlidingWindow, stream_time: Column) -> Column:
    """Return all that a stream time decides about an event: whether it is taken, and its first window."""
    first = _first_start(window, stream_time) if isinstance(window, HoppingWindow) else F.lit(None)
    return F.struct(_is_taken(window, stream_time).alias("taken"), first.alias("first"))


def mark_taken_events(events: DataFrame, window: WindowDefinition) -> DataFrame:
    """Return events with `taken`: whether a window takes the event; null for events without key or value.

    `events` has `key`, `value`, `timestamp`, `position` and `streamTime` (`fates.add_stream_time`), here T.
    Hopping: taken iff its last window has end > T - grace. Sliding: iff timestamp + difference >= T - grace. Session:
    iff the session that it would be in, with the events of its key and source partition taken before it, has
    end >= T - grace - gap. So `taken` depends on the log of one partition alone, never on runs or other partitions.
    """
    if isinstance(window, SessionWindow):
        return _mark_taken_in_sessions(events, window)
    return events.withColumn("taken", _is_taken(window, F.col("streamTime")))


def _is_taken(window: HoppingWindow | SlidingWindow, stream_time: Column) -> Column:
    """Return whether a window takes an event at a stream time; null for an event without key or value."""
    match window:
        case HoppingWindow():
            end = _last_start(window) + interval_micros(window.size)
            # rule: a closed window takes no event
            taken = (
                (_last_start(window) >= 0)
                & (end > _event_micros())
                & (F.unix_micros(stream_time) - end < interval_micros(window.grace))
            )
        case SlidingWindow():
            # rule: a sliding window closes by its end
            end = _event_micros() + interval_micros(window.difference)
            taken = F.unix_micros(stream_time) - end <= interval_micros(window.grace)
    return F.when(_has_key_and_value(), taken)


def aggregate_windows(events: DataFrame, window: WindowDefinition, measures: Mapping[str, Measure]) -> DataFrame:
    """Return one row per key and window with a taken event: `key, windowStart, windowEnd, value` (a field per measure).

    `events` have `taken` for the same window (`mark_taken_events`). `windowEnd` is exclusive for hopping windows,
    inclusive for the others, and `LAST_MOMENT` at the latest.
    """
    taken = events.where("taken")
    match window:
        case HoppingWindow():
            members = _assign_hopping_windows(taken, window)
        case SlidingWindow():
            members = _assign_sliding_windows(taken, window)
        case SessionWindow():
            members = _assign_sessions(taken, window)
    members = members.withColumn("_end", F.least("_end", F.lit(LAST_MICROS)))
    return aggregate_rows(members, ["key", "_start", "_end"], measures).select(
        "key",
        F.timestamp_micros("_start").alias("windowStart"),
        F.timestamp_micros("_end").alias("windowEnd"),
        "value",
    )


def latest_closed_end(window: contract.Window, stream_time: datetime) -> datetime | None:
    """Return the end up to which windows have closed: no window up to it takes another event.

    `stream_time` is the smallest of the source partitions, since a new event is judged by that of its own partition.
    None if the end is before the first possible moment. A closed session can still become part of a longer one, by an
    event after its end.

        tumbling 5 minutes, grace 2 minutes, stream time 12:08    ->    12:06: [12:00, 12:05) has closed
    """
    # Only the end of a hopping window is exclusive: at end + grace it is closed, the others are not yet.
    length = window.sliding or window.session
    behind = window.grace + length + timedelta(microseconds=1) if length else window.grace
    try:
        return stream_time - behind
    except OverflowError:
        return None


def _assign_hopping_windows(taken: DataFrame, window: HoppingWindow) -> DataFrame:
    size, advance = interval_micros(window.size), interval_micros(window.advance)
    starts = F.sequence(_first_start(window, F.col("streamTime")), _last_start(window), advance)
    return taken.withColumn("_start", F.explode(starts)).withColumn("_end", F.col("_start") + size)


def _first_start(window: HoppingWindow, stream_time: Column) -> Column:
    """Return the start of the first window that takes an event at a stream time."""
    size, advance = interval_micros(window.size), interval_micros(window.advance)
    still_open = _floor(F.unix_micros(stream_time) - interval_micros(window.grace) - size, advance) + advance
    # rule: the first window is open
    return F.greatest(_first_possible_start(window), still_open)


def _first_possible_start(window: HoppingWindow) -> Column:
    """Return the start of the first window that an event may be in, whether the window has closed or not."""
    size, advance = interval_micros(window.size), interval_micros(window.advance)
    begun = _floor(_event_micros() - size, advance) + advance  # rule: a window does not hold its end
    # rule: no window starts before time 0
    return F.greatest(begun, F.lit(0))


def _assign_sliding_windows(taken: DataFrame, window: SlidingWindow) -> DataFrame:
    """Return taken events once for each window that holds them, found by slices of time as long as a window."""
    events = taken.withColumns({"_t": _event_micros(), "_length": interval_micros(window.difference)})
    start, end, length, tick = F.col("_start"), F.col("_end"), F.col("_length"), F.lit(1000)
    # rule: a sliding window begins just after an event
    starts = F.array(F.greatest(F.col("_t") - length, F.lit(0)), F.col("_t") + tick)
    windows = events.select("key", F.explode(starts).alias("_start"), "_length").distinct()
    slices = F.array_distinct(F.array(_floor(start, length + tick), _floor(end, length + tick)))
    windows = windows.withColumn("_end", start + length).withColumn("_slice", F.explode(slices)).drop("_length")
    sliced = events.withColumn("_slice", _floor(F.col("_t"), length + tick))
    # rule: a sliding window holds its end
    return sliced.join(windows, ["key", "_slice"]).where(F.col("_t").between(start, end))


def _assign_sessions(taken: DataFrame, window: SessionWindow) -> DataFrame:
    sessions = _add_session_starts(taken, window, "key")
    return sessions.withColumn("_end", F.max(_event_micros()).over(Window.partitionBy("key", "_start")))


def _add_session_starts(events: DataFrame, window: SessionWindow, *by: str) -> DataFrame:
    """Return events with `_start`, the start of their session if none is refused."""
    in_time = Window.partitionBy(*by).orderBy("timestamp")
    previous = F.lag(_event_micros()).over(in_time)
    # rule: sessions the gap apart are one
    first = F.when(previous.isNull() | (_event_micros() - previous > interval_micros(window.gap)), _event_micros())
    return events.withColumn("_first", first).withColumn("_start", F.max("_first").over(in_time)).drop("_first")


def _mark_taken_in_sessions(events: DataFrame, window: SessionWindow) -> DataFrame:
    """Return events with `taken`. Most are near stream time; only sessions with a late event are processed in order.

    Were none refused, the events of a key and partition would form certain sessions. Whatever is refused, events of
    different ones of these never meet, so each is judged alone.
    """
    late = F.unix_micros("streamTime") - _event_micros() > interval_micros(window.grace) + interval_micros(window.gap)
    whole = Window.partitionBy("key", "_log", "_start")
    # rule: partitions judge apart
    doubtful = (
        _add_session_starts(
            events.where(_has_key_and_value()).withColumn("_log", F.col("position.partition")), window, "key", "_log"
        )
        .withColumn("_doubt", F.max(late).over(whole))
        .where("_doubt")
    )
    oldest = F.unix_micros("streamTime") - interval_micros(window.grace) - interval_micros(window.gap)
    event = F.struct(
        "position", _event_micros().alias("t"), interval_micros(window.gap).alias("gap"), oldest.alias("oldest")
    )
    refused = (
        doubtful.groupBy("key", "_log", "_start")
        .agg(_refused_positions(F.sort_array(F.collect_list(event))).alias("_refused"))
        .select("key", F.explode("_refused").alias("position"), F.lit(False).alias("_taken"))
    )
    taken = F.when(_has_key_and_value(), F.coalesce("_taken", F.lit(True)))
    return events.join(refused, ["key", "position"], "left").select(*events.columns, taken.alias("taken"))


def _refused_positions(history: Column) -> Column:
    """Return the positions of events that no session takes, of an ordered history `position, t, gap, oldest`."""

    def step(state: Column, event: Column) -> Column:
        def meets(session: Column) -> Column:
            return (session["low"] - event["gap"] <= event["t"]) & (event["t"] <= session["high"] + event["gap"])

        met = F.filter(state["sessions"], meets)
        low = F.array_min(F.concat(F.array(event["t"]), F.transform(met, lambda session: session["low"])))
        high = F.array_max(F.concat(F.array(event["t"]), F.transform(met, lambda session: session["high"])))
        others = F.filter(state["sessions"], lambda session: ~meets(session))
        merged = F.concat(others, F.array(F.struct(low.alias("low"), high.alias("high"))))
        refused = F.concat(state["refused"], F.array(event["position"]))
        # rule: an event is late with its session
        return F.when(high >= event["oldest"], _session_state(merged, state["refused"])).otherwise(
            _session_state(state["sessions"], refused)
        )

    none = F.filter(F.transform(history, lambda event: event["position"]), lambda _: F.lit(False))
    nothing = _session_state(F.array().cast("array<struct<low: bigint, high: bigint>>"), none)
    return F.aggregate(history, nothing, step, lambda state: state["refused"])


def _session_state(sessions: Column, refused: Column) -> Column:
    return F.struct(sessions.alias("sessions"), refused.alias("refused"))


def _has_key_and_value() -> Column:
    return F.col("key").isNotNull() & F.col("value").isNotNull()


def _event_micros() -> Column:
    return F.unix_micros("timestamp")


def _last_start(window: HoppingWindow) -> Column:
    return _floor(_event_micros(), interval_micros(window.advance))


def _floor(moment: Column, unit: Column) -> Column:
    return moment - F.pmod(moment, unit)
