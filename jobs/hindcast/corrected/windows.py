"""Windowed aggregates of a stream in the `corrected` reading (docs/semantics.md, windows).

Events are judged first, by the stream time of their own source partition, then aggregated. All lengths are day-time
intervals, literals or columns of the events. Kafka's clock ticks in milliseconds: "just after" an event is 1 ms later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast import contracts
from hindcast.corrected.aggregates import Measure, of_rows
from hindcast.corrected.order import micros


@dataclass(frozen=True)
class Hopping:
    """[start, start + size) for every start >= 0 that is a multiple of advance; tumbling: advance = size."""

    size: Column
    advance: Column
    grace: Column


@dataclass(frozen=True)
class Sliding:
    """[start, start + difference], both inclusive: ending at an event, or starting just after one."""

    difference: Column
    grace: Column


@dataclass(frozen=True)
class Session:
    """Events of a key whose neighbours are at most `gap` apart; both bounds inclusive."""

    gap: Column
    grace: Column


Shape = Hopping | Sliding | Session


def judge(events: DataFrame, window: Shape) -> DataFrame:
    """Add `taken`: whether a window takes the event. Null for events without key or value, which no window counts.

    `events` has `key`, `value`, `timestamp`, `position` and `streamTime` (`order.with_stream_time`), here T.
    Hopping: taken iff its last window has end > T - grace. Sliding: iff timestamp + difference >= T - grace. Session:
    iff the session that it would be in, with the events of its key and source partition taken before it, has
    end >= T - grace - gap. So it depends on the log of one partition alone, never on runs or on other partitions.
    """
    match window:
        case Hopping():
            end = _last_start(window) + micros(window.size)
            taken = (_last_start(window) >= 0) & (end > _moment()) & (_age(end) < micros(window.grace))
        case Sliding():
            taken = _age(_moment() + micros(window.difference)) <= micros(window.grace)
        case Session():
            return _judge_sessions(events, window)
    return events.withColumn("taken", F.when(_counts(), taken))


def aggregate(events: DataFrame, window: Shape, measures: Mapping[str, Measure]) -> DataFrame:
    """One row per key and window that holds a taken event: `key, windowStart, windowEnd, value` (one field per
    measure).

    `events` are judged by the same window. `windowEnd` is exclusive for hopping windows, inclusive for the others.
    """
    taken = events.where("taken")
    match window:
        case Hopping():
            members = _hop(taken, window)
        case Sliding():
            members = _slide(taken, window)
        case Session():
            members = _in_sessions(taken, window)
    return of_rows(members, ["key", "_start", "_end"], measures).select(
        "key",
        F.timestamp_micros("_start").alias("windowStart"),
        F.timestamp_micros("_end").alias("windowEnd"),
        "value",
    )


def closed_up_to(window: contracts.Window, stream_time: datetime) -> datetime | None:
    """The windows that end then or before have closed: none of them takes an event that is not known yet.

    `stream_time` is the smallest that the source partitions have reached: an event that comes is judged by its own.
    None if that was before all time. A closed session can still become part of a longer one, by an event after its end.

        tumbling 5 minutes, grace 2 minutes, stream time 12:08    ->    12:06: [12:00, 12:05) has closed
    """
    # Only the end of a hopping window is exclusive: at end + grace it is closed, the others are not yet.
    length = window.sliding or window.session
    behind = window.grace + length + timedelta(microseconds=1) if length else window.grace
    try:
        return stream_time - behind
    except OverflowError:
        return None


def _hop(taken: DataFrame, window: Hopping) -> DataFrame:
    size, advance = micros(window.size), micros(window.advance)
    begun = _floor(_moment() - size, advance) + advance
    still_open = _floor(F.unix_micros("streamTime") - micros(window.grace) - size, advance) + advance
    starts = F.sequence(F.greatest(begun, still_open, F.lit(0)), _last_start(window), advance)
    return taken.withColumn("_start", F.explode(starts)).withColumn("_end", F.col("_start") + size)


def _slide(taken: DataFrame, window: Sliding) -> DataFrame:
    """Taken events once for each window that holds them, found by slices of time as long as a window."""
    events = taken.withColumns({"_t": _moment(), "_length": micros(window.difference)})
    start, end, length, tick = F.col("_start"), F.col("_end"), F.col("_length"), F.lit(1000)
    starts = F.array(F.greatest(F.col("_t") - length, F.lit(0)), F.col("_t") + tick)
    windows = events.select("key", F.explode(starts).alias("_start"), "_length").distinct()
    slices = F.array_distinct(F.array(_floor(start, length + tick), _floor(end, length + tick)))
    windows = windows.withColumn("_end", start + length).withColumn("_slice", F.explode(slices)).drop("_length")
    sliced = events.withColumn("_slice", _floor(F.col("_t"), length + tick))
    return sliced.join(windows, ["key", "_slice"]).where(F.col("_t").between(start, end))


def _in_sessions(taken: DataFrame, window: Session) -> DataFrame:
    sessions = _with_sessions(taken, window, "key")
    return sessions.withColumn("_end", F.max(_moment()).over(Window.partitionBy("key", "_start")))


def _with_sessions(events: DataFrame, window: Session, *by: str) -> DataFrame:
    """Events with `_start`, where the session begins that they are in if none is refused."""
    in_time = Window.partitionBy(*by).orderBy("timestamp")
    previous = F.lag(_moment()).over(in_time)
    first = F.when(previous.isNull() | (_moment() - previous > micros(window.gap)), _moment())
    return events.withColumn("_first", first).withColumn("_start", F.max("_first").over(in_time)).drop("_first")


def _judge_sessions(events: DataFrame, window: Session) -> DataFrame:
    """Most events are near stream time and taken; only sessions that hold a late event are gone through in order.

    Were none refused, the events of a key and partition would form certain sessions. Whatever is refused, events of
    different ones of these never meet, so each is judged alone.
    """
    late = _age(_moment()) > micros(window.grace) + micros(window.gap)
    whole = Window.partitionBy("key", "_log", "_start")
    doubtful = (
        _with_sessions(events.where(_counts()).withColumn("_log", F.col("position.partition")), window, "key", "_log")
        .withColumn("_doubt", F.max(late).over(whole))
        .where("_doubt")
    )
    oldest = F.unix_micros("streamTime") - micros(window.grace) - micros(window.gap)
    event = F.struct("position", _moment().alias("t"), micros(window.gap).alias("gap"), oldest.alias("oldest"))
    refused = (
        doubtful.groupBy("key", "_log", "_start")
        .agg(_refused(F.sort_array(F.collect_list(event))).alias("_refused"))
        .select("key", F.explode("_refused").alias("position"), F.lit(False).alias("_taken"))
    )
    taken = F.when(_counts(), F.coalesce("_taken", F.lit(True)))
    return events.join(refused, ["key", "position"], "left").select(*events.columns, taken.alias("taken"))


def _refused(history: Column) -> Column:
    """The positions of the events that no session takes, of a history of structs `position, t, gap, oldest` in
    order.
    """

    def step(state: Column, event: Column) -> Column:
        def meets(session: Column) -> Column:
            return (session["low"] - event["gap"] <= event["t"]) & (event["t"] <= session["high"] + event["gap"])

        met = F.filter(state["sessions"], meets)
        low = F.array_min(F.concat(F.array(event["t"]), F.transform(met, lambda session: session["low"])))
        high = F.array_max(F.concat(F.array(event["t"]), F.transform(met, lambda session: session["high"])))
        others = F.filter(state["sessions"], lambda session: ~meets(session))
        merged = F.concat(others, F.array(F.struct(low.alias("low"), high.alias("high"))))
        refused = F.concat(state["refused"], F.array(event["position"]))
        return F.when(high >= event["oldest"], _state(merged, state["refused"])).otherwise(
            _state(state["sessions"], refused)
        )

    none = F.filter(F.transform(history, lambda event: event["position"]), lambda _: F.lit(False))
    nothing = _state(F.array().cast("array<struct<low: bigint, high: bigint>>"), none)
    return F.aggregate(history, nothing, step, lambda state: state["refused"])


def _state(sessions: Column, refused: Column) -> Column:
    return F.struct(sessions.alias("sessions"), refused.alias("refused"))


def _counts() -> Column:
    return F.col("key").isNotNull() & F.col("value").isNotNull()


def _moment() -> Column:
    return F.unix_micros("timestamp")


def _age(end: Column) -> Column:
    """How far stream time has gone past `end`."""
    return F.unix_micros("streamTime") - end


def _last_start(window: Hopping) -> Column:
    return _floor(_moment(), micros(window.advance))


def _floor(moment: Column, unit: Column) -> Column:
    return moment - F.pmod(moment, unit)
