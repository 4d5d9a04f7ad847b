"""Increments: what a change of its inputs can have changed in a table, and which rows have to be looked at to tell.

    restrict -> the same operator -> compare within the scope

The operators (plane, joins, aggregates, windows) are the only meaning. For each of them there is a function here that
takes its inputs as `Source`s and gives the rows that the operator has to see, and the scope of its result or the
islands that it is made of (`islands.over_time`). Within the scope the result is right; outside it nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.corrected import order, windows
from hindcast.corrected.islands import (
    Keep,
    Near,
    Scope,
    Source,
    around,
    as_is,
    at,
    during,
    forever,
    islands,
    merged,
    renamed,
    shared,
    touching,
    until,
)


def versions(new: DataFrame, believed: Near, log: Near, keep: Keep = as_is) -> tuple[DataFrame, DataFrame]:
    """For `plane.versions`: the records to make rows of, and the believed rows to compare these with.

    `new`: the records accepted since, with `key`, `value`, `timestamp`, `position`; `believed`: versions with
    `position`. Of a key only what is valid after its earliest new record can change. What was true then the believed
    rows tell, but for what is hidden: of that `log` gives at least the records that lie near (`hidden`).
    """
    since = new.groupBy("key").agg(F.min("timestamp").alias("start")).withColumn("end", forever())
    reaching = (F.col("key") == F.col("_on")) & (until("validTo") > F.col("_start"))
    rows = keep(believed(since).join(renamed(since), reaching, "left_semi"))
    records = [rows.withColumnRenamed("validFrom", "timestamp"), during(log(since), since), new]
    columns = "key", "value", "timestamp", "position"
    return reduce(DataFrame.unionByName, (part.select(*columns) for part in records)), rows


def hidden(log: DataFrame, new: DataFrame, by: Sequence[str] = ("timestamp",)) -> DataFrame:
    """The records of a log that do not show in believed rows and can matter to new ones: tombstones, and rivals.

    Rivals have the timestamp of a new record; the largest position wins, and a believed row has that of the first of
    equal ones. Both sides have the columns `by`, in which rivals are alike: `key` too, where the log has it decoded;
    `log` has `value`, decoded or not.
    """
    rivals = new.select(*(F.col(name).alias(f"_{name}") for name in by)).distinct()
    met = log.join(rivals, reduce(and_, (F.col(name) == F.col(f"_{name}") for name in by)), "left")
    return met.where("value IS NULL OR _timestamp IS NOT NULL").drop(*(f"_{name}" for name in by))


def table_table(left: Source, right: Source) -> tuple[DataFrame, DataFrame, DataFrame]:
    """For `joins.table_table`: left rows, right rows, islands."""
    learnt = merged(islands(left.change).unionByName(islands(right.change)))
    return touching(left.near(learnt), learnt), touching(right.near(learnt), learnt), learnt


def foreign_key(left: Source, right: Source, on: Column) -> tuple[DataFrame, DataFrame, DataFrame]:
    """For `joins.foreign_key`: left rows, right rows, islands.

    An island of a right key is one of every left key that names it, as long as that does. `on` as in the operator.
    """
    own, other = islands(left.change), islands(right.change)
    changed = own.select("start", "end").unionByName(other.select("start", "end"))
    lefts = left.near(changed).withColumn("_named", on)
    learnt = merged(own.unionByName(shared(lefts, other, F.col("_named"), "key")))
    lefts = touching(lefts, learnt)
    asked = shared(lefts, learnt, F.col("key"), "_named").where(F.col("key").isNotNull())
    return lefts.drop("_named"), touching(right.near(changed), merged(asked)), learnt


def of_table(members: Source, group: Column) -> tuple[DataFrame, DataFrame]:
    """For `aggregates.of_table`: rows, islands (by group). `group` as in the operator."""
    grouped = members.mapped(lambda rows: rows.withColumn("_group", group).where(F.col("_group").isNotNull()))
    change = grouped.change.withColumnsRenamed({"key": "_member", "_group": "key"})
    learnt = merged(islands(change, "_member"))
    return touching(grouped.near(learnt), learnt, F.col("_group")).drop("_group"), learnt


def of_stream(events: Source) -> tuple[DataFrame, DataFrame]:
    """For `aggregates.of_stream`: rows, islands.

    An event changes all that follows it, and what follows is made of all that came before.
    """
    changed = events.change.where(_counts())
    learnt = changed.groupBy("key").agg(F.min("timestamp").alias("start")).withColumn("end", forever())
    same = F.col("key") == F.col("_on")
    return events.near(None).join(renamed(learnt), same, "left_semi"), learnt


def stream_table(
    events: Source, versions: Source, on: Column | None, believed: Near, keep: Keep = as_is
) -> tuple[DataFrame, DataFrame, Scope]:
    """For `joins.stream_table`: events, versions, scope: changed events, and those that look into an island.

    `on` as in the operator. Believed rows and results have the event's `position`.
    """
    learnt, changed = islands(versions.change), events.change
    named = F.col("key") if on is None else on
    instants = around(changed, _nothing(), _nothing())
    periods = learnt.select("start", "end").unionByName(instants.select("start", "end"))
    into = (F.col("_named") == F.col("_on")) & F.col("timestamp").between(F.col("_start"), F.col("_end"))
    looking = events.near(periods).withColumn("_named", named).join(renamed(learnt), into, "left_semi")
    opened = changed.where("change = 'open'").drop("change")
    todo = keep(opened.unionByName(looking.drop("_named")).dropDuplicates(["position"]))
    asked = todo.groupBy(named.alias("key")).agg(F.min("timestamp").alias("start"), F.max("timestamp").alias("end"))
    asked = asked.where(F.col("key").isNotNull())
    touched = todo.select("position").unionByName(changed.select("position")).distinct()
    return todo, touching(versions.near(periods), asked), Scope(at(believed(periods), touched), lambda result: result)


def stream_stream(
    left: Source, right: Source, before: Column, after: Column, believed: Near
) -> tuple[DataFrame, DataFrame, Scope]:
    """For `joins.stream_stream`: left events, right events, scope.

    What an event changes lies within the window around it; whether that has other matches, within another window.
    `before` and `after` as in the operator. Believed rows and results have `left_position` and `right_position`.
    """
    reach, sides = F.greatest(before, after), {"left": left, "right": right}

    def windows_around(times: int) -> DataFrame:
        return merged(
            around(left.change, reach * times, reach * times).unionByName(
                around(right.change, reach * times, reach * times)
            )
        )

    hit, needed = windows_around(1), windows_around(2)
    rows = {name: during(side.near(needed), needed) for name, side in sides.items()}
    touched = {
        name: during(rows[name], hit)
        .select("position")
        .unionByName(side.change.select("position"))
        .select(F.col("position").alias(f"_{name}"))
        .distinct()
        for name, side in sides.items()
    }

    def there(result: DataFrame) -> DataFrame:
        for name, places in touched.items():
            result = result.join(places, F.col(f"{name}_position") == F.col(f"_{name}"), "left")
        known = [F.col(f"{name}_position").isNull() | F.col(f"_{name}").isNotNull() for name in sides]
        return result.where(known[0] & known[1]).drop("_left", "_right")

    return rows["left"], rows["right"], Scope(there(believed(needed)), there)


def windowed(events: Source, window: windows.Shape, believed: Near, *, appended: bool) -> tuple[DataFrame, Scope]:
    """For `windows.aggregate`: judged events, scope.

    `appended`: the change has only new events, each with a larger offset than all before it in its partition; then no
    older event is judged anew. An event is judged by the stream time of its partition, so by events that are dated
    after it: those dated before the earliest one concerned need not be looked at.
    Believed rows and results have `key`, `windowStart`, `windowEnd`.
    """
    changed = events.change.where(_counts())
    concerned = changed.drop("change")
    if not appended:
        concerned = concerned.unionByName(_judged_anew(events, changed, window))
    if isinstance(window, windows.Session):
        hit = needed = _sessions(concerned, window, believed)
    else:
        length = window.size if isinstance(window, windows.Hopping) else window.difference
        hit = merged(around(concerned, length, _tick()))
        needed = merged(around(concerned, length + _tick(), length + _tick()))
    since = needed.withColumn("end", forever())
    timed = order.with_stream_time(events.near(since if appended else None).where(_counts()))
    # What is judged depends on what its own session holds, or on nothing but stream time: it can be judged alone.
    judged = windows.judge(during(timed, needed), window)

    def there(result: DataFrame) -> DataFrame:
        begun = F.col("windowStart") <= F.col("_end")
        lasting = F.col("_start") <= F.col("windowEnd" if isinstance(window, windows.Session) else "windowStart")
        return result.join(renamed(hit), (F.col("key") == F.col("_on")) & begun & lasting, "left_semi")

    return judged, Scope(there(believed(hit)), there)


def _sessions(concerned: DataFrame, window: windows.Session, believed: Near) -> DataFrame:
    """The events concerned and the sessions believed at most the gap from them, as periods that end a gap later.

    What was taken and lies within the gap of such a period was in one of its sessions.
    """
    moments = concerned.select(F.col("key").alias("_on"), F.col("timestamp").alias("_at"), window.gap.alias("_gap"))
    near = believed(around(concerned, window.gap, window.gap).select("start", "end"))
    meeting = (F.col("key") == F.col("_on")) & F.col("_at").between(
        F.col("windowStart") - F.col("_gap"), F.col("windowEnd") + F.col("_gap")
    )
    met = near.select("key", "windowStart", "windowEnd").join(moments, meeting)
    sessions = met.select("key", F.col("windowStart").alias("start"), (F.col("windowEnd") + F.col("_gap")).alias("end"))
    return merged(sessions.unionByName(around(concerned, _nothing(), window.gap)))


def _judged_anew(events: Source, changed: DataFrame, window: windows.Shape) -> DataFrame:
    """Events that are judged otherwise, or by another stream time, than before the change."""
    now = events.near(None).where(_counts())
    opened, closed = (changed.where(F.col("change") == which).drop("change") for which in ("open", "close"))
    there = opened.select(F.col("position").alias("_there"))
    before = now.join(there, F.col("position") == F.col("_there"), "left_anti").unionByName(closed)
    was, is_ = (
        windows.judge(order.with_stream_time(side), window).select(
            F.col("position").alias(f"{name}_position"), F.struct("taken", "streamTime").alias(name)
        )
        for name, side in (("_was", before), ("_is", now))
    )
    judged = was.join(is_, F.col("_was_position") == F.col("_is_position"))
    otherwise = judged.where(~F.col("_was").eqNullSafe(F.col("_is")))
    return at(now, otherwise.select(F.col("_is_position").alias("position")))


def _nothing() -> Column:
    return F.expr("INTERVAL '0' SECOND")


def _tick() -> Column:
    """Kafka's clock ticks in milliseconds."""
    return F.expr("INTERVAL '0.001' SECOND")


def _counts() -> Column:
    return F.col("key").isNotNull() & F.col("value").isNotNull()
