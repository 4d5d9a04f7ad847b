"""Find the rows of views that a contract derived from rows that go, also rows that are no longer current.

| table | its rows that go |
| --- | --- |
| events | those of an event that goes, or that names a key that goes |
| pairs | those with an event that goes on either side |
| versions | those of a key that goes, or that named one, over the time in which it did, on both axes |
| aggregates | those of a group in which nothing else ever was |
| | of functions that return one of their inputs (min, max, first, ...): those that counted a row that goes |
| of the kafka reading | all: it is processed again without the records |

What is counted, summed or averaged with other records stays in past answers as the number that it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, incremental_views
from hindcast.contract import View
from hindcast.contract.shapes import PERIODS, PLACE_COLUMNS
from hindcast.ops.erase.redefinitions import Definition
from hindcast.store import row_reader, tables

_SYSTEM_PERIOD = ("systemFrom", "systemTo")


class ViewLineage:
    """The rows of views that one contract derived from rows of their inputs that go, as the tables are now."""

    def __init__(self, spark: SparkSession, definition: Definition) -> None:
        self._spark, self._definition = spark, definition
        self._contract, self._shapes = definition.contract, definition.shapes

    def find_rows(self, name: str, found: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows of a view that go, whole. `found`: by input, at least of one, its rows that go, whole."""
        rows = self._definition.select_derived(self._load_rows(name))
        view = self._contract.views[name]
        if view.semantics == "kafka":
            return rows
        if self._shapes[name].kind == "pairs":
            return self._find_pairs(view, rows, found)
        if view.aggregate is not None:
            return self._find_groups(view, name, rows, found[view.first_input])
        units = self._find_units(view, found)
        if self._shapes[name].kind == "events":
            return rows.join(units.select(*PLACE_COLUMNS).distinct(), [*PLACE_COLUMNS], "left_semi")
        unit = incremental_views.operator_key(view, name, self._shapes)
        timed = rows.withColumns(
            {
                "_unit": unit,
                **_period_column("validFrom", "validTo", "_valid"),
                **_period_column(*_SYSTEM_PERIOD, "_system"),
            }
        )
        matching = timed.alias("t").join(
            units.alias("u"),
            F.col("t._unit").eqNullSafe(F.col("u._unit"))
            & _overlap_condition("_valid")
            & _overlap_condition("_system"),
            "left_semi",
        )
        if view.key is not None and view.join is not None and view.join.how == "outer":
            columns = self._shapes[view.first_input].key
            nameless = reduce(Column.__and__, (F.col(f"_unit.{c}").isNull() for c in columns))
            matching = matching.unionByName(timed.where(nameless)).distinct()
        return matching.select(*rows.columns)

    def _find_units(self, view: View, found: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows of the first input, whole, that a row which goes was made of; with key and both periods."""
        left, parts = self._shapes[view.first_input], []
        if view.first_input in found:
            parts.append(self._nest_rows(view.first_input, found[view.first_input]))
        if view.second_input is not None and view.second_input in found:
            right = self._nest_rows(view.second_input, found[view.second_input])
            on = derivation.lookup_key(view, self._shapes)
            if on is None and left.kind == "versions":
                parts.append(right.withColumn("_unit", F.col("_unit").cast(self._key_type(view.first_input))))
            else:
                every = self._nest_all(view.first_input)
                named = F.col("key") if on is None else on
                keys = right.select(
                    F.col("_unit")
                    .cast(self._key_type(view.first_input) if on is None else right.schema["_unit"].dataType)
                    .alias("_named")
                ).distinct()
                looks = every.withColumn("_named", named)
                same = looks.alias("l").join(
                    F.broadcast(keys.alias("k")), F.col("l._named").eqNullSafe(F.col("k._named")), "left_semi"
                )
                parts.append(same.where("_named IS NOT NULL").drop("_named"))
        columns = (
            ["_unit", *PLACE_COLUMNS, "_valid", "_system"] if left.kind == "events" else ["_unit", "_valid", "_system"]
        )
        return reduce(DataFrame.unionByName, (part.select(*columns) for part in parts))

    def _load_rows(self, name: str) -> DataFrame:
        return row_reader.load_rows(self._spark, self._definition.locate_table(name))

    def _key_type(self, name: str) -> str:
        """Return the type of a table's key, as a struct with its names."""
        rows = self._load_rows(name)
        return rows.select(F.struct(*self._shapes[name].key).alias("k")).schema["k"].dataType.simpleString()

    def _nest_all(self, name: str) -> DataFrame:
        return self._nest_rows(name, self._definition.select_known(name, self._load_rows(name)))

    def _nest_rows(self, name: str, rows: DataFrame) -> DataFrame:
        """Return flat rows as expressions of views take them (`key` and `value`), with `_unit`, places and periods.

        Columns that the table no longer has are null.
        """
        shape = self._shapes[name]
        lost = {column: kind for column, kind in shape.columns.items() if column not in rows.columns}
        # Spark Connect does not take `withColumns` of none.
        rows = rows.select("*", *(F.lit(None).cast(kind or "string").alias(column) for column, kind in lost.items()))
        start, end = (*PERIODS[shape.kind], *PERIODS[shape.kind])[:2]
        key = derivation.key_struct({column: F.col(f"`{column}`") for column in shape.key})
        system = _period_column(*_SYSTEM_PERIOD, "_system")
        if name in self._contract.inputs:  # its system time is the other pipeline's
            nothing = F.lit(None).cast("timestamp")
            system = {"_system": F.struct(nothing.alias("start"), nothing.alias("end"))}
        places = [F.col(c) for c in PLACE_COLUMNS if c in rows.columns]
        return rows.select(
            key.alias("key"),
            F.struct(*shape.columns).alias("value"),
            key.alias("_unit"),
            *places,
            *(column.alias(alias) for alias, column in {**_period_column(start, end, "_valid"), **system}.items()),
            F.struct(*tables.locate_table("", self._contract, name).identity, "systemFrom").alias("_row")
            if name not in self._contract.inputs
            else F.lit(None).alias("_row"),
        )

    def _find_pairs(self, view: View, rows: DataFrame, found: Mapping[str, DataFrame]) -> DataFrame:
        """Return the pairs of a join of two streams that have an event that goes."""
        sides = zip(view.inputs, ([*PLACE_COLUMNS], ["_rightPartition", "_rightOffset"]), strict=True)
        parts = [
            rows.join(
                found[i].select(*(F.col(c).alias(n) for c, n in zip(PLACE_COLUMNS, names, strict=True))).distinct(),
                names,
                "left_semi",
            ).select(*rows.columns)
            for i, names in sides
            if i in found
        ]
        return reduce(DataFrame.unionByName, parts).distinct()

    def _find_groups(self, view: View, name: str, rows: DataFrame, found: DataFrame) -> DataFrame:
        """Return the rows of an aggregate of groups with nothing else in them, or that return one of their inputs."""
        shapes, windows = self._shapes, self._shapes[name].kind == "windows"
        known = self._definition.select_known(view.first_input, found)
        gone = self._group_rows(view, self._nest_rows(view.first_input, known)).localCheckpoint()
        every = self._group_rows(view, self._nest_all(view.first_input))
        others = every.join(gone.select("_row"), "_row", "left_anti").select("_group").distinct()
        own = gone.select("_group").distinct().join(others, "_group", "left_anti")
        grouped = rows.withColumn("_group", F.struct(*shapes[name].key))
        own = own.select(F.col("_group").cast(grouped.schema["_group"].dataType).alias("_group"))
        parts = [grouped.join(F.broadcast(own), "_group", "left_semi")]
        if self._definition.returns_inputs(name):
            start, end = PERIODS[shapes[name].kind]
            timed = grouped.withColumns(
                {**_period_column(start, end, "_valid"), **_period_column(*_SYSTEM_PERIOD, "_system")}
            )
            counted = gone.withColumn("_group", F.col("_group").cast(grouped.schema["_group"].dataType))
            if not view.table and not windows:  # an event counts from its moment on
                counted = counted.withColumn(
                    "_valid", F.struct(F.col("_valid.start").alias("start"), F.lit(None).cast("timestamp").alias("end"))
                )
            same = F.col("t._group").eqNullSafe(F.col("u._group")) & _overlap_condition("_system")
            within = _overlap_condition("_valid", closed=windows)
            affected = timed.alias("t").join(counted.alias("u"), same & within, "left_semi")
            parts.append(affected.drop("_valid", "_system"))
        return reduce(DataFrame.unionByName, parts).select(*rows.columns).distinct()

    def _group_rows(self, view: View, rows: DataFrame) -> DataFrame:
        """Return the rows of an aggregate's input with their group, without those that are in none."""
        filtered = derivation.apply_where(view, rows, self._shapes)
        return filtered.withColumn("_group", derivation.group_key(view, self._shapes)).where("_group IS NOT NULL")


def _period_column(start: str, end: str, name: str) -> Mapping[str, Column]:
    """Return a period as one column; for events, of one moment."""
    return {name: F.struct(F.col(start).alias("start"), F.col(end).alias("end"))}


def _overlap_condition(name: str, *, closed: bool = False) -> Column:
    """Return the condition that periods of `t` and `u` overlap; a null bound is none. `closed`: or only touch."""

    def before(one: str, other: str) -> Column:
        start, end = F.col(f"{one}.{name}.start"), F.col(f"{other}.{name}.end")
        return F.coalesce(start <= end if closed else start < end, F.lit(True))

    return before("t", "u") & before("u", "t")
