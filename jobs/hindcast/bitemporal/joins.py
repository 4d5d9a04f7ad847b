"""Joins in the `corrected` reading: what was valid at an event, and versions that overlap.

Source: docs/semantics.md, rules 3-11. `engine/operators.py` has all joins once more, as compiled loops
(`engine/sweeps.py`), for the first build of a large view and for what changes in it; both give the same rows, so a
change of meaning goes into both: also into the rows that a slice of time needs (`engine/slice_reader.py`, `read_sides`)
and into what a change affects (`affected_periods.py`, `engine/join_increments.py` and, for two streams,
`engine/stream_join_increments.py`). The joins of the `kafka` reading are in `streams/`.
"""

from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import skew
from hindcast.bitemporal.intervals import interval_micros


def join_stream_table(
    events: DataFrame, versions: DataFrame, how: Literal["inner", "left"], on: Column | None = None
) -> DataFrame:
    """Return each event with the version of key `on` that is valid at the event's timestamp, however old the event is.

    `events` has `key`, `value`, `timestamp`, `position`; `versions` has `key`, `value`, `validFrom`, `validTo`,
    maybe `position`, and no two versions of a key overlap. `on` is an expression over the event (default: its key) of
    the type of the versions' key; null matches nothing (a null inside a struct is a value like any other). An event
    without a value gives no row. `inner` drops an event without a version, `left` keeps it with a null.
    Returns `key, timestamp, position` of the event, `left` (its value), `right` (the version's value or null) and the
    lineage `right_from` and, if the versions have positions, `right_position`.

        curry 8 [0, 4), 10 [4, ..)    event @4 -> 10    event @3 -> 8    event before 0 -> null
    """
    kept = ["value", "validFrom", "validTo", *(["position"] if "position" in versions.columns else [])]
    # rule: a look-up begins with the version, and needs a value
    points = events.where(F.col("value").isNotNull()).select(
        (F.col("key") if on is None else on).alias("_on"),
        F.col("timestamp").alias("_at"),
        F.lit(1).alias("_turn"),
        F.struct("key", "value", "timestamp", "position").alias("_event"),
    )
    starts = versions.where(F.col("key").isNotNull()).select(
        F.col("key").alias("_on"),
        F.col("validFrom").alias("_at"),
        F.lit(0).alias("_turn"),
        F.struct(*kept).alias("_version"),
    )
    cuts = skew.find_cuts(points.select("_on", "_at"), starts.select("_on", "_at"))
    if cuts is not None:
        # An event lies in one slice of its key's time, a version in all that it lasts into.
        points = skew.add_cuts(points, cuts).withColumn("_slice", skew.slice_number(F.col("_at"))).drop("_cuts")
        lasts = F.sequence(skew.slice_number(F.col("_at")), skew.last_slice_before(F.col("_version.validTo")))
        starts = skew.add_cuts(starts, cuts).withColumn("_slice", F.explode(lasts)).drop("_cuts")
    sweep = Window.partitionBy("_on", "_spread", *([] if cuts is None else ["_slice"])).orderBy("_at", "_turn")
    # rule: a look-up finds the version at the event
    latest = F.last("_version", ignorenulls=True).over(sweep.rowsBetween(Window.unboundedPreceding, 0))
    # rule: a look-up sees that a version has ended
    met = (
        points.unionByName(starts, allowMissingColumns=True)
        .withColumn("_spread", _spread_number(F.col("_on"), F.col("_event.position")))
        .select("_event", "_at", latest.alias("_version"))
        .where(F.col("_event").isNotNull())
        .withColumn("_version", _valid_version(F.col("_version"), F.col("_at")))
    )
    if how == "inner":  # rule: a left join keeps an event without a version
        met = met.where(F.col("_version").isNotNull())
    lineage = [F.col("_version.position").alias("right_position")] if "position" in kept else []
    return met.select(
        F.col("_event.key").alias("key"),
        F.col("_event.timestamp").alias("timestamp"),
        F.col("_event.position").alias("position"),
        F.col("_event.value").alias("left"),
        F.col("_version.value").alias("right"),
        F.col("_version.validFrom").alias("right_from"),
        *lineage,
    )


def join_table_table(left: DataFrame, right: DataFrame, how: Literal["inner", "left", "outer"]) -> DataFrame:
    """Return versions of equal keys that overlap, over the overlap.

    Both sides have `key`, `value`, `validFrom`, `validTo`; no two versions of a key overlap. Returns `key, left, right,
    validFrom, validTo`: one row per maximal interval with the same left version or absence and the same right version
    or absence. `inner` requires both, `left` a left version, `outer` either. An absence is never divided: it has no
    boundaries within it.

        left a [0, 8)    right b [2, 4), c [6, ..)
        ->    left: (a, -) [0, 2)  (a, b) [2, 4)  (a, -) [4, 6)  (a, c) [6, 8)    outer also: (-, c) [8, ..)
    """
    # rule: a left and an outer join of tables keep one side alone
    wanted = {
        "inner": F.col("left").isNotNull() & F.col("right").isNotNull(),
        "left": F.col("left").isNotNull(),
        "outer": F.col("left").isNotNull() | F.col("right").isNotNull(),
    }
    bounds = _version_bounds(left, "left").unionByName(_version_bounds(right, "right"), allowMissingColumns=True)
    cuts = skew.find_cuts(bounds.select("_on", "_at"))
    if cuts is not None:
        bounds = _slice_bounds(skew.add_cuts(bounds, cuts))
    sweep = Window.partitionBy("_on", *([] if cuts is None else ["_slice"])).orderBy("_at")
    # A cut is a bound: where the bounds of a slice end, the next one is the start of the next slice.
    following = F.coalesce(F.lead("_at").over(sweep), *([] if cuts is None else [F.col("_stop")]))
    # rule: a joined row has both sides' periods
    return (
        bounds.select(
            F.col("_on").alias("key"),
            F.col("_at").alias("validFrom"),
            following.alias("validTo"),
            *(F.last(side, ignorenulls=True).over(sweep).alias(side) for side in _SIDES),
        )
        .withColumns({side: _valid_version(F.col(side), F.col("validFrom")) for side in _SIDES})
        # Of bounds at one moment the last one in the sweep stands for all: each has seen its peers.
        .where(~F.col("validTo").eqNullSafe(F.col("validFrom")) & wanted[how])
        .select("key", *(F.col(f"{side}.value").alias(side) for side in _SIDES), "validFrom", "validTo")
    )


def join_foreign_key(left: DataFrame, right: DataFrame, how: Literal["inner", "left"], on: Column) -> DataFrame:
    """Return each left version with the versions of the right key that it names, over the overlap.

    As `join_table_table`, but `on`, an expression over the left version (its `key` and `value`) of the type of the
    right key, names the right key; null names none: no row (`inner`), or a null right (`left`). The row's key is the
    left key.

        left order 1 {item: curry} [0, ..)    right curry 8 [2, 4), 9 [4, ..)
        ->    left: ({item: curry}, -) [0, 2)    ({item: curry}, 8) [2, 4)    ({item: curry}, 9) [4, ..)
    """
    by_start = Window.partitionBy("key").orderBy("validFrom")
    met = right.select(
        F.col("key").alias("_on"),
        F.row_number().over(by_start).alias("_n"),
        F.col("value").alias("right"),
        F.col("validFrom").alias("_from"),
        F.col("validTo").alias("_to"),
        F.lead("validFrom").over(by_start).alias("_next"),
    )
    before_first = met.where("_n = 1").select("_on", F.lit(0).alias("_n"), F.col("_from").alias("_next"))
    # rule: a left version joins every right one in its time
    meeting = _number_overlaps(left.withColumn("_on", on), right).withColumn(
        "_n", F.explode(F.sequence("_first", "_last"))
    )
    overlap = _overlap_piece(F.col("right"), "_from", "_to")
    if how == "inner":
        pieces = meeting.join(met, ["_on", "_n"]).select("key", "left", overlap.alias("_piece"))
    else:
        # What follows a version up to the next one, what comes before the first, or all if there is none, is absence.
        ended = F.col("_from").isNull() | F.col("_to").isNotNull()
        absence = F.when(ended, _overlap_piece(F.lit(None), "_to", "_next"))
        present = F.when(F.col("_from").isNotNull(), overlap)
        # rule: before the first right version the right is null
        pieces = meeting.join(met.unionByName(before_first, allowMissingColumns=True), ["_on", "_n"], "left").select(
            "key", "left", F.explode(F.array(present, absence)).alias("_piece")
        )
    lasting = F.col("_piece").isNotNull() & _is_after(F.col("_piece.validTo"), F.col("_piece.validFrom"))
    return pieces.where(lasting).select("key", "left", "_piece.right", "_piece.validFrom", "_piece.validTo")


def join_stream_stream(
    left: DataFrame, right: DataFrame, how: Literal["inner", "left", "outer"], before: Column, after: Column
) -> DataFrame:
    """Return all pairs of events with equal keys and left - before <= right <= left + after, both ends inclusive.

    Both sides are events; `before` and `after` are day-time intervals, literals or columns that both sides have. Events
    without a value give no row. `left` and `outer` keep a left event without a pair, `outer` also a right one, even
    without a key. Returns `key, left, right, timestamp, left_position, right_position`; `timestamp` is the
    larger of the two, or that of an event without a pair.

        left @10    right @5, @16    before 5 ms, after 5 ms    ->    (10, 5) @10; outer also: (-, 16) @16
    """
    reach = interval_micros(before) + interval_micros(after) + 1
    sides = [
        events.where(F.col("value").isNotNull()).select(
            "key",
            F.col("value").alias(side),
            F.col("timestamp").alias(f"_{side}_at"),
            F.col("position").alias(f"{side}_position"),
            reach.alias("_reach"),
            F.unix_micros("timestamp").alias("_micros"),
            *(
                (interval_micros(before).alias("_before"), interval_micros(after).alias("_after"))
                if side == "left"
                else ()
            ),
        )
        for side, events in (("left", left), ("right", right))
    ]
    # Slices as long as the window: a left event's window meets at most two of them.
    # rule: a stream-stream window reaches back and ahead
    low, high = F.col("_micros") - F.col("_before"), F.col("_micros") + F.col("_after")
    lefts = sides[0].select("*", low.alias("_low"), high.alias("_high"))
    slices = F.array_distinct(F.array(*(_slice_start(F.col(end)) for end in ("_low", "_high"))))
    # rule: a stream-stream window holds both its bounds
    pairs = (
        lefts.withColumn("_slice", F.explode(slices))
        .drop("_micros", "_reach")
        .join(sides[1].withColumn("_slice", _slice_start(F.col("_micros"))), ["key", "_slice"])
        .where(F.col("_micros").between(F.col("_low"), F.col("_high")))
    )
    rows = [pairs]
    for side, kept in zip(sides, _SIDES[: ("inner", "left", "outer").index(how)], strict=False):
        paired = pairs.select(f"{kept}_position").distinct()
        # rule: an event with a pair does not stand alone
        rows.append(side.join(paired, f"{kept}_position", "left_anti"))
    columns = ("key", "left", "right", "_left_at", "_right_at", "left_position", "right_position")
    joined = reduce(
        lambda one, other: one.unionByName(other, allowMissingColumns=True),
        (part.select(*(name for name in columns if name in part.columns)) for part in rows),
    )
    moment = F.greatest("_left_at", "_right_at").alias("timestamp")  # rule: a pair's time is the later one
    return joined.select("key", "left", "right", moment, "left_position", "right_position")


_SIDES = ("left", "right")


def _version_bounds(versions: DataFrame, side: str) -> DataFrame:
    """Return starts and ends of versions as rows `_on, _at` and, for a start, the version named by its side."""
    start = F.struct(F.col("validFrom").alias("_at"), F.struct("value", "validTo").alias(side))
    end = F.when(F.col("validTo").isNotNull(), F.struct(F.col("validTo").alias("_at"), F.lit(None).alias(side)))
    # rule: absence is a boundary
    bounds = versions.select(F.col("key").alias("_on"), F.explode(F.array(start, end)).alias("_bound"))
    return bounds.where(F.col("_bound").isNotNull()).select("_on", "_bound.*")


def _slice_bounds(bounds: DataFrame) -> DataFrame:
    """Return bounds with their slice and its `_stop`; a version starts again in each slice that it lasts into."""
    end = F.when(F.col("left").isNotNull(), F.col("left.validTo")).otherwise(F.col("right.validTo"))
    first, is_start = skew.slice_number(F.col("_at")), F.col("left").isNotNull() | F.col("right").isNotNull()
    # rule: a version starts anew in later slices
    numbers = F.sequence(first, F.when(is_start, skew.last_slice_before(end)).otherwise(first))
    return (
        bounds.withColumn("_slice", F.explode(numbers))
        .withColumns(
            {"_at": F.greatest("_at", skew.slice_start(F.col("_slice"))), "_stop": skew.slice_end(F.col("_slice"))}
        )
        .drop("_cuts")
    )


def _number_overlaps(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return left versions with `_first` and `_last`: the versions of the named key begun at the start, before the end.

    So the right versions that overlap a left one, and the gaps beside them, are found by number, without comparing all.
    """
    version = F.struct("key", "value", "validFrom", "validTo")
    starts = right.select(F.col("key").alias("_on"), F.col("validFrom").alias("_at"), F.lit(1).alias("_turn"))
    ends = left.select(
        "_on",
        F.explode(
            F.array(
                F.struct(F.col("validTo").alias("_at"), F.lit(0).alias("_turn"), version.alias("_version")),
                F.struct(F.col("validFrom").alias("_at"), F.lit(2).alias("_turn"), version.alias("_version")),
            )
        ).alias("_end"),
    ).select("_on", "_end.*")
    turns = ends.unionByName(starts, allowMissingColumns=True).withColumns(
        {"_spread": _spread_number(F.col("_on"), F.col("_version.key")), "_earlier": F.lit(0)}
    )
    cuts = skew.find_cuts(turns.select("_on", "_at"))
    if cuts is not None:
        turns = _assign_slices(turns, starts, cuts)
    sweep = Window.partitionBy("_on", "_spread", *([] if cuts is None else ["_slice"]))
    sweep = sweep.orderBy(F.col("_at").asc_nulls_last(), "_turn").rowsBetween(Window.unboundedPreceding, 0)
    begun = F.col("_earlier") + F.count(F.when(F.col("_turn") == 1, 1)).over(sweep)
    return (
        turns.select("_on", "_version", begun.cast("int").alias("_begun"))
        .where(F.col("_version").isNotNull())
        .groupBy("_on", "_version.key", "_version.validFrom")
        .agg(
            F.min("_begun").alias("_first"),
            F.max("_begun").alias("_last"),
            F.first("_version").alias("_version"),
        )
        .select("_on", "_first", "_last", "_version.*")
        .withColumnRenamed("value", "left")
    )


def _assign_slices(turns: DataFrame, starts: DataFrame, cuts: DataFrame) -> DataFrame:
    """Return turns with `_slice_start` and the number of starts in `_earlier` slices; the last has the open ends."""

    def assign_slices(rows: DataFrame) -> DataFrame:
        last = F.coalesce(F.size("_cuts"), F.lit(0))
        number = F.when(F.col("_at").isNull(), last).otherwise(skew.slice_number(F.col("_at")))
        return skew.add_cuts(rows, cuts).withColumn("_slice", number)

    counted = (
        assign_slices(starts).where("_cuts IS NOT NULL").groupBy("_on", "_slice").agg(F.count("*").alias("_starts"))
    )
    every = cuts.select("_on", F.explode(F.sequence(F.lit(0), F.size("_cuts"))).alias("_slice"))
    earlier = every.join(counted, ["_on", "_slice"], "left").select(
        "_on", "_slice", F.coalesce(F.sum("_starts").over(skew.earlier_slices("_on")), F.lit(0)).alias("_earlier")
    )
    known = assign_slices(turns.drop("_earlier")).join(F.broadcast(earlier), ["_on", "_slice"], "left")
    return known.withColumn("_earlier", F.coalesce("_earlier", F.lit(0)))


def _overlap_piece(right: Column, start: str, end: str) -> Column:
    """Return the part of a left version within [start, end), which may be empty."""
    # rule: a foreign-key row lasts while both sides do
    return F.struct(
        right.alias("right"),
        F.greatest("validFrom", start).alias("validFrom"),
        F.least("validTo", end).alias("validTo"),
    )


def _valid_version(version: Column, moment: Column) -> Column:
    return F.when(_is_after(version["validTo"], moment), version)


def _is_after(end: Column, moment: Column) -> Column:
    return end.isNull() | (end > moment)  # rule: a version is not valid at its end


def _spread_number(on: Column, by: Column) -> Column:
    """Return a number that spreads rows that name nothing: they match nothing, and would all lie on one core."""
    return F.when(on.isNull(), F.pmod(F.hash(by), F.lit(64))).otherwise(0)


def _slice_start(moment: Column) -> Column:
    return moment - F.pmod(moment, F.col("_reach"))
