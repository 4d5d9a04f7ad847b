"""Which rows of a pipeline's tables hold what some records said, also rows that are believed no more.

The records are those of one topic, by key or by place. A row holds what they said if it was made of a row that does:

| table | its rows that go |
| --- | --- |
| the topic's | those of the key, or of the records |
| events | those of an event that goes, or that names a key that goes |
| pairs | those with an event that goes on either side |
| versions | those of a key that goes, or that named one, over the time in which it did, on both axes |
| aggregates | those of a group that nothing else was ever in |
| | of what gives back a value that it was given (min, max, first, ...): those that counted a row that goes |
| of the kafka reading | all: it is processed anew without the records |

What is counted, summed or averaged with others stays in past answers as the number that it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contracts import Contract, View, shapes
from hindcast.contracts.expressions import aggregate
from hindcast.contracts.shapes import PERIODS, scope
from hindcast.corrected import derive, refresh
from hindcast.delta import contents, tables
from hindcast.delta.tables import Table
from hindcast.planning import inputs
from hindcast.planning.plans import Plan
from hindcast.settings import settings

NUMBERS = frozenset(
    {
        *("count", "count_if", "count_distinct", "approx_count_distinct", "regr_count"),
        *("sum", "try_sum", "avg", "mean", "try_avg", "variance", "var_pop", "var_samp", "stddev", "std"),
        *("stddev_pop", "stddev_samp", "skewness", "kurtosis"),
    }
)
"""Aggregate functions of numbers: what they give was said by no record alone."""

PLACE = ["_partition", "_offset"]
_SYSTEM = ("systemFrom", "systemTo")


class Lineage:
    """The rows of a pipeline's tables that hold what records of `topic` said, found as the tables stand now.

    `gone`: a condition on the rows of the topic's own table. Tables are looked at from the topic down, so they must all
    be as they were; whoever removes rows begins below.
    """

    def __init__(self, spark: SparkSession, contract: Contract, topic: str, gone: Column, todo: Plan) -> None:
        self._spark, self._contract, self._topic, self._gone, self._todo = spark, contract, topic, gone, todo
        self._known = shapes(contract)
        self._found: dict[str, DataFrame] = {}

    @property
    def tables(self) -> list[str]:
        """The topic and all views that are made of it, inputs before what is made of them."""
        return [self._topic, *(v for v in self._contract.ordered if self._topic in self._contract.upstream(v))]

    def table(self, name: str) -> Table:
        """A table of the pipeline, or one of another that it reads."""
        if name in self._contract.inputs:
            return inputs.source(self._contract, self._todo, name)
        return tables.located(settings().warehouse, self._contract, name)

    def there(self, name: str) -> bool:
        """Whether a table has been made."""
        return tables.opened(self.table(name)) is not None

    def rows(self, name: str) -> DataFrame:
        """The rows of a table that go, whole, kept apart from the table."""
        if name not in self._found:
            self._found[name] = self._rows(name).localCheckpoint()
        return self._found[name]

    def _rows(self, name: str) -> DataFrame:
        rows = contents.load(self._spark, self.table(name))
        if name == self._topic:
            return rows.where(self._gone)
        it = self._contract.views[name]
        if it.semantics == "kafka":
            return rows
        if self._known[name].kind == "pairs":
            return self._pairs(it, rows)
        if it.aggregate is not None:
            return self._groups(it, name, rows)
        units = self._units(it)
        if self._known[name].kind == "events":
            return rows.join(units.select(*PLACE).distinct(), PLACE, "left_semi")
        old = refresh.unit_of(it, name, self._known)
        told = rows.withColumns(
            {"_unit": old, **_period("validFrom", "validTo", "_valid"), **_period(*_SYSTEM, "_system")}
        )
        found = told.alias("t").join(
            units.alias("u"),
            F.col("t._unit").eqNullSafe(F.col("u._unit")) & _meet("_valid") & _meet("_system"),
            "left_semi",
        )
        if it.key is not None and it.join is not None and it.join.how == "outer":
            nameless = reduce(Column.__and__, (F.col(f"_unit.{c}").isNull() for c in self._known[it.first].key))
            found = found.unionByName(told.where(nameless)).distinct()
        return found.select(*rows.columns)

    def _units(self, it: View) -> DataFrame:
        """The rows of the first input, whole, that a row which goes was made of; with the key and both periods."""
        left, parts = self._known[it.first], []
        if self._touched(it.first):
            parts.append(self._told(it.first, self.rows(it.first)))
        if it.second is not None and self._touched(it.second):
            right = self._told(it.second, self.rows(it.second))
            on = derive.looked_up(it, self._known)
            if on is None and left.kind == "versions":
                parts.append(right.withColumn("_unit", F.col("_unit").cast(self._key_type(it.first))))
            else:
                every = self._told(it.first, contents.load(self._spark, self.table(it.first)))
                named = F.col("key") if on is None else on
                keys = right.select(
                    F.col("_unit")
                    .cast(self._key_type(it.first) if on is None else right.schema["_unit"].dataType)
                    .alias("_named")
                ).distinct()
                looks = every.withColumn("_named", named)
                same = looks.alias("l").join(
                    F.broadcast(keys.alias("k")), F.col("l._named").eqNullSafe(F.col("k._named")), "left_semi"
                )
                parts.append(same.where("_named IS NOT NULL").drop("_named"))
        columns = ["_unit", *PLACE, "_valid", "_system"] if left.kind == "events" else ["_unit", "_valid", "_system"]
        return reduce(DataFrame.unionByName, (part.select(*columns) for part in parts))

    def _touched(self, name: str) -> bool:
        return name in self.tables and self.there(name)

    def _key_type(self, name: str) -> str:
        """The type of a table's key, as a struct with its names."""
        rows = contents.load(self._spark, self.table(name))
        return rows.select(F.struct(*self._known[name].key).alias("k")).schema["k"].dataType.simpleString()

    def _told(self, name: str, rows: DataFrame) -> DataFrame:
        """Flat rows as expressions of views take them (`key` and `value`), with `_unit`, places and periods."""
        shape = self._known[name]
        start, end = (*PERIODS[shape.kind], *PERIODS[shape.kind])[:2]
        key = derive.keyed({column: F.col(f"`{column}`") for column in shape.key})
        system = _period(*_SYSTEM, "_system")
        if name in self._contract.inputs:  # known in the other pipeline's time
            nothing = F.lit(None).cast("timestamp")
            system = {"_system": F.struct(nothing.alias("start"), nothing.alias("end"))}
        places = [F.col(c) for c in PLACE if c in rows.columns]
        return rows.select(
            key.alias("key"),
            F.struct(*shape.columns).alias("value"),
            key.alias("_unit"),
            *places,
            *(column.alias(alias) for alias, column in {**_period(start, end, "_valid"), **system}.items()),
            F.struct(*tables.located("", self._contract, name).identity, "systemFrom").alias("_row")
            if name not in self._contract.inputs
            else F.lit(None).alias("_row"),
        )

    def _pairs(self, it: View, rows: DataFrame) -> DataFrame:
        """Of a join of two streams: the pairs with an event that goes."""
        sides = zip(it.inputs, (PLACE, ["_rightPartition", "_rightOffset"]), strict=True)
        found = [
            rows.join(
                self.rows(i).select(*(F.col(c).alias(n) for c, n in zip(PLACE, names, strict=True))).distinct(),
                names,
                "left_semi",
            ).select(*rows.columns)
            for i, names in sides
            if self._touched(i)
        ]
        return reduce(DataFrame.unionByName, found).distinct()

    def _groups(self, it: View, name: str, rows: DataFrame) -> DataFrame:
        """Of an aggregate: the rows of groups that nothing else was in, or that give back what went into them."""
        known, windows = self._known, self._known[name].kind == "windows"
        gone = self._grouped(it, self._told(it.first, self.rows(it.first))).localCheckpoint()
        every = self._grouped(it, self._told(it.first, contents.load(self._spark, self.table(it.first))))
        others = every.join(gone.select("_row"), "_row", "left_anti").select("_group").distinct()
        own = gone.select("_group").distinct().join(others, "_group", "left_anti")
        told = rows.withColumn("_group", F.struct(*known[name].key))
        own = own.select(F.col("_group").cast(told.schema["_group"].dataType).alias("_group"))
        found = [told.join(F.broadcast(own), "_group", "left_semi")]
        functions = {aggregate(text, scope(it, known))[0] for text in (it.aggregate or {}).values()}
        if not functions <= NUMBERS:
            start, end = PERIODS[known[name].kind]
            timed = told.withColumns({**_period(start, end, "_valid"), **_period(*_SYSTEM, "_system")})
            of = gone.withColumn("_group", F.col("_group").cast(told.schema["_group"].dataType))
            if not it.table and not windows:  # it counts from its moment on
                of = of.withColumn(
                    "_valid", F.struct(F.col("_valid.start").alias("start"), F.lit(None).cast("timestamp").alias("end"))
                )
            same = F.col("t._group").eqNullSafe(F.col("u._group")) & _meet("_system")
            within = _meet("_valid", closed=windows)
            given = timed.alias("t").join(of.alias("u"), same & within, "left_semi")
            found.append(given.drop("_valid", "_system"))
        return reduce(DataFrame.unionByName, found).select(*rows.columns).distinct()

    def _grouped(self, it: View, told: DataFrame) -> DataFrame:
        """The rows of an aggregate's input with their group, without those that are in none."""
        kept = derive.passing(it, told, self._known)
        return kept.withColumn("_group", derive.group(it, self._known)).where("_group IS NOT NULL")


def _period(start: str, end: str, name: str) -> Mapping[str, Column]:
    """A period as one column; of events that is one moment."""
    return {name: F.struct(F.col(start).alias("start"), F.col(end).alias("end"))}


def _meet(name: str, *, closed: bool = False) -> Column:
    """Whether the periods of `t` and `u` have a moment in common; a null bound is none. `closed`: or only touch."""

    def before(one: str, other: str) -> Column:
        start, end = F.col(f"{one}.{name}.start"), F.col(f"{other}.{name}.end")
        return F.coalesce(start <= end if closed else start < end, F.lit(True))

    return before("t", "u") & before("u", "t")
