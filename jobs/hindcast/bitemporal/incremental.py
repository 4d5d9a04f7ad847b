"""Increments: what a change of its inputs can change in a table, and which rows must be read to decide it.

    restrict -> the same operator -> compare within the scope

The operators (plane, joins, aggregates, windows) are the only meaning. For each of them there is a function here that
takes its inputs as `ChangedInput`s and returns the rows that the operator must read, and the scope of its result or the
islands that it is made of (`affected_periods.build_scope`). Within the scope the result is right; outside it nothing
has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal import fates, windows
from hindcast.bitemporal.affected_periods import (
    AffectedScope,
    ChangedInput,
    NearbyRows,
    RowCache,
    end_moment,
    end_of_time,
    find_changed_periods,
    intersect_periods,
    leave_uncached,
    merge_periods,
    periods_around,
    rename_period_columns,
    select_events_in_periods,
    select_rows_at_positions,
    select_touching_rows,
)


def restrict_versions(
    new: DataFrame, believed: NearbyRows, log: NearbyRows, keep: RowCache = leave_uncached
) -> tuple[DataFrame, DataFrame]:
    """Return, for `plane.derive_versions`: the records to derive, and the current rows to compare the result with.

    `new`: the records accepted since, with `key`, `value`, `timestamp`, `position`; `believed`: versions with
    `position`, the current rows. Of a key only what is valid after its earliest new record can change. The current
    rows show what was true then, except for hidden records: of these `log` returns at least the records near the
    change (`find_hidden_records`). A row's position does not tell which of several records at its start won, since it
    is that of the first of equal ones; that it is there tells it, unless there is a new record at that moment.
    """
    since = new.groupBy("key").agg(F.min("timestamp").alias("start")).withColumn("end", end_of_time())
    # rule: a late record splits every row that it is in
    reaching = (F.col("key") == F.col("_on")) & (end_moment("validTo") > F.col("_start"))
    rows = keep(believed(since).join(rename_period_columns(since), reaching, "left_semi"))
    hidden, begun = select_events_in_periods(log(since), since), rows.withColumnRenamed("validFrom", "timestamp")
    settled = _subtract_moments(begun, new)
    records = [begun, _subtract_moments(hidden, settled), new]
    columns = "key", "value", "timestamp", "position"
    return reduce(DataFrame.unionByName, (part.select(*columns) for part in records)), rows


def _subtract_moments(records: DataFrame, others: DataFrame) -> DataFrame:
    """Return the records with whose key and timestamp there is none of the others."""
    place = [F.col(name).alias(f"_{name}") for name in ("key", "timestamp")]
    same = (F.col("key") == F.col("_key")) & (F.col("timestamp") == F.col("_timestamp"))
    return records.join(others.select(*place).distinct(), same, "left_anti")


def find_hidden_records(log: DataFrame, new: DataFrame, by: Sequence[str] = ("timestamp",)) -> DataFrame:
    """Return the hidden records of a log: those that are not current rows but can matter to new ones.

    They are tombstones and rivals. Rivals have the timestamp of a new record; the largest position wins, and the
    current row has the position of the first of equal ones. Both sides have the columns `by`, in which rivals are
    equal (also `key` if the log has it decoded); `log` has `value`, decoded or not.
    """
    rivals = new.select(*(F.col(name).alias(f"_{name}") for name in by)).distinct()
    met = log.join(rivals, reduce(and_, (F.col(name) == F.col(f"_{name}") for name in by)), "left")
    # rule: tombstones and rivals of equal timestamps are in the log
    return met.where("value IS NULL OR _timestamp IS NOT NULL").drop(*(f"_{name}" for name in by))


def restrict_table_table_join(left: ChangedInput, right: ChangedInput) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return the left rows, right rows and islands for `joins.join_table_table`."""
    learnt = merge_periods(find_changed_periods(left.change).unionByName(find_changed_periods(right.change)))
    return (
        select_touching_rows(left.rows_near(learnt), learnt),
        select_touching_rows(right.rows_near(learnt), learnt),
        learnt,
    )


def restrict_foreign_key_join(
    left: ChangedInput, right: ChangedInput, on: Column
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return the left rows, right rows and islands for `joins.join_foreign_key`.

    An island of a right key is an island of every left key that names it, for as long as it does. `on` as in the
    operator.
    """
    own, other = find_changed_periods(left.change), find_changed_periods(right.change)
    changed = own.select("start", "end").unionByName(other.select("start", "end"))
    lefts = left.rows_near(changed).withColumn("_named", on)
    # rule: a foreign key is affected by what it names
    learnt = merge_periods(own.unionByName(intersect_periods(lefts, other, F.col("_named"), "key")))
    lefts = select_touching_rows(lefts, learnt)
    asked = intersect_periods(lefts, learnt, F.col("key"), "_named").where(F.col("key").isNotNull())
    return lefts.drop("_named"), select_touching_rows(right.rows_near(changed), merge_periods(asked)), learnt


def restrict_table_aggregate(members: ChangedInput, group: Column) -> tuple[DataFrame, DataFrame]:
    """Return the rows and islands (by group) for `aggregates.aggregate_table`. `group` as in the operator."""
    grouped = members.map_rows(lambda rows: rows.withColumn("_group", group).where(F.col("_group").isNotNull()))
    change = grouped.change.withColumnsRenamed({"key": "_member", "_group": "key"})
    learnt = merge_periods(find_changed_periods(change, "_member"))
    return select_touching_rows(grouped.rows_near(learnt), learnt, F.col("_group")).drop("_group"), learnt


def restrict_stream_aggregate(events: ChangedInput) -> tuple[DataFrame, DataFrame]:
    """Return the rows and islands for `aggregates.aggregate_stream`.

    An event changes all results after it, and each of these is computed from all events before it.
    """
    changed = events.change.where(_has_key_and_value())
    # rule: an event changes all that follows it
    learnt = changed.groupBy("key").agg(F.min("timestamp").alias("start")).withColumn("end", end_of_time())
    same = F.col("key") == F.col("_on")
    return events.rows_near(None).join(rename_period_columns(learnt), same, "left_semi"), learnt


def restrict_stream_table_join(
    events: ChangedInput,
    versions: ChangedInput,
    on: Column | None,
    believed: NearbyRows,
    keep: RowCache = leave_uncached,
) -> tuple[DataFrame, DataFrame, AffectedScope]:
    """Return the events, versions and scope for `joins.join_stream_table`.

    The scope is the changed events, and the events within an island. `on` as in the operator. Current rows (`believed`)
    and results have the event's `position`.
    """
    learnt, changed = find_changed_periods(versions.change), events.change
    named = F.col("key") if on is None else on
    instants = periods_around(changed, _zero_interval(), _zero_interval())
    periods = learnt.select("start", "end").unionByName(instants.select("start", "end"))
    into = (F.col("_named") == F.col("_on")) & F.col("timestamp").between(F.col("_start"), F.col("_end"))
    looking = (
        events.rows_near(periods).withColumn("_named", named).join(rename_period_columns(learnt), into, "left_semi")
    )
    opened = changed.where("_change = 'open'").drop("_change")
    # rule: an event is affected by what it looks up
    plan = keep(opened.unionByName(looking.drop("_named")).dropDuplicates(["position"]))
    asked = plan.groupBy(named.alias("key")).agg(F.min("timestamp").alias("start"), F.max("timestamp").alias("end"))
    asked = asked.where(F.col("key").isNotNull())
    touched = plan.select("position").unionByName(changed.select("position")).distinct()
    return (
        plan,
        select_touching_rows(versions.rows_near(periods), asked),
        AffectedScope(select_rows_at_positions(believed(periods), touched), lambda result: result),
    )


def restrict_stream_stream_join(
    left: ChangedInput, right: ChangedInput, before: Column, after: Column, believed: NearbyRows
) -> tuple[DataFrame, DataFrame, AffectedScope]:
    """Return the left events, right events and scope for `joins.join_stream_stream`.

    The events that an event affects lie within the window around it; their other matches lie within another window.
    `before` and `after` as in the operator. Current rows (`believed`) and results have `left_position` and
    `right_position`.
    """
    reach, sides = F.greatest(before, after), {"left": left, "right": right}

    def windows_around(times: int) -> DataFrame:
        return merge_periods(
            periods_around(left.change, reach * times, reach * times).unionByName(
                periods_around(right.change, reach * times, reach * times)
            )
        )

    hit, needed = windows_around(1), windows_around(2)  # rule: a match is looked up with its other matches
    rows = {name: select_events_in_periods(side.rows_near(needed), needed) for name, side in sides.items()}
    touched = {
        name: select_events_in_periods(rows[name], hit)
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

    return rows["left"], rows["right"], AffectedScope(there(believed(needed)), there)


def restrict_windowed_aggregate(
    events: ChangedInput, window: windows.WindowDefinition, believed: NearbyRows, *, appended: bool
) -> tuple[DataFrame, AffectedScope]:
    """Return the judged events and the scope for `windows.aggregate_windows`.

    `appended`: the change has only new events, each with a larger offset than all before it in its partition; then no
    older event is judged again. An event is judged by the stream time of its partition, so by events dated after it:
    those dated before the earliest event concerned need not be read.
    Current rows (`believed`) and results have `key`, `windowStart`, `windowEnd`.
    """
    changed = events.change.where(_has_key_and_value())
    concerned = changed.drop("_change")
    if not appended:
        concerned = concerned.unionByName(_find_redecided_events(events, changed, window))
    if isinstance(window, windows.SessionWindow):
        hit = needed = _session_periods(concerned, window, believed)
    else:
        length = window.size if isinstance(window, windows.HoppingWindow) else window.difference
        hit = merge_periods(periods_around(concerned, length, _clock_tick()))
        # rule: a window holds earlier events
        needed = merge_periods(periods_around(concerned, length + _clock_tick(), length + _clock_tick()))
    since = needed.withColumn("end", end_of_time())
    timed = fates.add_stream_time(events.rows_near(since if appended else None).where(_has_key_and_value()))
    # What is judged depends on what its own session holds, or on nothing but stream time: it can be judged alone.
    judged = windows.mark_taken_events(select_events_in_periods(timed, needed), window)

    def there(result: DataFrame) -> DataFrame:
        begun = F.col("windowStart") <= F.col("_end")
        lasting = F.col("_start") <= F.col("windowEnd" if isinstance(window, windows.SessionWindow) else "windowStart")
        return result.join(rename_period_columns(hit), (F.col("key") == F.col("_on")) & begun & lasting, "left_semi")

    return judged, AffectedScope(there(believed(hit)), there)


def _session_periods(concerned: DataFrame, window: windows.SessionWindow, believed: NearbyRows) -> DataFrame:
    """Return the affected events and the current sessions at most the gap away, as periods that end a gap later.

    What was taken and lies within the gap of such a period was in one of its sessions.
    """
    moments = concerned.select(F.col("key").alias("_on"), F.col("timestamp").alias("_at"), window.gap.alias("_gap"))
    near = believed(periods_around(concerned, window.gap, window.gap).select("start", "end"))
    meeting = (F.col("key") == F.col("_on")) & F.col("_at").between(
        F.col("windowStart") - F.col("_gap"), F.col("windowEnd") + F.col("_gap")
    )
    met = near.select("key", "windowStart", "windowEnd").join(moments, meeting)
    sessions = met.select("key", F.col("windowStart").alias("start"), (F.col("windowEnd") + F.col("_gap")).alias("end"))
    # rule: sessions are joined with those that were
    return merge_periods(sessions.unionByName(periods_around(concerned, _zero_interval(), window.gap)))


def _find_redecided_events(events: ChangedInput, changed: DataFrame, window: windows.WindowDefinition) -> DataFrame:
    """Return events that are judged otherwise, or by another stream time, than before the change."""
    now = events.rows_near(None).where(_has_key_and_value())
    opened, closed = (changed.where(F.col("_change") == which).drop("_change") for which in ("open", "close"))
    there = opened.select(F.col("position").alias("_there"))
    before = now.join(there, F.col("position") == F.col("_there"), "left_anti").unionByName(closed)
    was, is_ = (
        windows.mark_taken_events(fates.add_stream_time(side), window).select(
            F.col("position").alias(f"{name}_position"), F.struct("taken", "streamTime").alias(name)
        )
        for name, side in (("_was", before), ("_is", now))
    )
    judged = was.join(is_, F.col("_was_position") == F.col("_is_position"))
    otherwise = judged.where(~F.col("_was").eqNullSafe(F.col("_is")))
    return select_rows_at_positions(now, otherwise.select(F.col("_is_position").alias("position")))


def _zero_interval() -> Column:
    return F.expr("INTERVAL '0' SECOND")


def _clock_tick() -> Column:
    """Return the tick of Kafka's clock, a millisecond, as an interval."""
    return F.expr("INTERVAL '0.001' SECOND")


def _has_key_and_value() -> Column:
    return F.col("key").isNotNull() & F.col("value").isNotNull()
