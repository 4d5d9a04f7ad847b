"""The plane: records to rectangles, and what changes in them (docs/concepts.md)."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast.bitemporal.intervals import LAST_MOMENT


def derive_versions(records: DataFrame, ttl: Column | None = None) -> DataFrame:
    """Return the versions of accepted records: the values of each key, and when each is valid.

    `records` has `key` (not null), `value` (null = tombstone), `timestamp` and `position`, in any order. Of records of
    one key with equal timestamps the one with the largest position wins, tombstone or not. A version is valid until the
    key's next version, tombstones too; with `ttl` (a positive day-time interval) at most until validFrom + ttl, or
    for ever if that is after `LAST_MOMENT`.
    Returns `key, value, validFrom, validTo, position`, without tombstones; `validTo` null = until changed.

        8 @0, 10 @4, tombstone @6    ->    8 [0, 4)    10 [4, 6)
    """
    # rule: of equal timestamps the last to arrive wins
    following = F.lead("timestamp").over(Window.partitionBy("key").orderBy("timestamp", "position"))
    ended = following if ttl is None else F.least(following, _find_latest_end(ttl))  # rule: ttl shortens versions
    columns = "key", "value", F.col("timestamp").alias("validFrom"), ended.alias("validTo"), "position"
    # rule: a loser of a tie and a tombstone give no row
    return (
        records.select(*columns, following.eqNullSafe(F.col("timestamp")).alias("_lost"))
        .where(F.col("value").isNotNull() & ~F.col("_lost"))
        .drop("_lost")
    )


def _find_latest_end(ttl: Column) -> Column:
    """Return when a version ends at the latest; null if that is after all time."""
    end = F.col("timestamp") + ttl
    return F.when(end <= F.lit(LAST_MOMENT), end)


def diff_rows(believed: DataFrame, derived: DataFrame, identity: Sequence[str], content: Sequence[str]) -> DataFrame:
    """Return the rows to close and to open on the system axis, so that current rows become the derived ones.

    A row is identified by its `identity` and `content` columns together (nulls equal, NaN equal); other columns are
    lineage and are not compared. `believed` has the current rows. Returns all columns of both sides (null where a side
    lacks one) and `_change`: 'open' for a row of `derived` that is not current, 'close' for a current row that is not
    derived any more. A row on both sides is neither, so a record that repeats a current row changes nothing.
    """
    # A struct as join key is null-safe inside, without a null test per column; each side is shuffled once.
    old, new = (
        F.struct(*(F.col(side).getField(name).alias(name) for name in (*identity, *content)))
        for side in ("_old", "_new")
    )
    differences = (
        believed.select(F.struct("*").alias("_old"))
        .join(derived.select(F.struct("*").alias("_new")), old == new, "full_outer")
        .where(F.col("_old").isNull() | F.col("_new").isNull())
    )
    return differences.select(
        *(
            _either_side(name, believed.columns, derived.columns).alias(name)
            for name in _column_names(derived, believed)
        ),
        F.when(F.col("_old").isNull(), F.lit("open")).otherwise(F.lit("close")).alias("_change"),
    )


def keep_matching_rows(rows: DataFrame, some: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the rows that equal a row of `some` in these columns; nulls are equal."""
    return _join_null_safe(rows, some, columns, "left_semi")


def drop_matching_rows(rows: DataFrame, some: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the rows that equal no row of `some` in these columns; nulls are equal."""
    return _join_null_safe(rows, some, columns, "left_anti")


def _column_names(first: DataFrame, second: DataFrame) -> list[str]:
    return list(dict.fromkeys([*first.columns, *second.columns]))


def _either_side(name: str, old: Sequence[str], new: Sequence[str]) -> Column:
    sides = [F.col(side).getField(name) for side, columns in (("_old", old), ("_new", new)) if name in columns]
    return F.coalesce(*sides)


def _join_null_safe(rows: DataFrame, some: DataFrame, columns: Sequence[str], how: str) -> DataFrame:
    alike = F.struct(*(F.col(f"`{column}`") for column in columns))  # null-safe inside
    return rows.join(some.select(alike.alias("_like")), alike == F.col("_like"), how)
