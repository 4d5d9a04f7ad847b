"""A kafka view's records as rows of tasks (emits.rows), and what tasks emit as the view tells it. DataFrame in and out.

Records are what an input gives: `key` (struct or null), `value` (struct with the key's columns, or null), `timestamp`,
`partition`, `id` (the key's bytes), `order` (order.processing), `passes` (false: the input has a value that does not
pass its own condition), `headers` (as the log has them), `_partition` and `_offset` (where it stands in its topic); of
an input that tells what was before each change, `before` (like `value`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType, LongType, StructField, StructType

from hindcast.contracts import Contract, View, shapes
from hindcast.contracts.expressions import resolve
from hindcast.contracts.routes import Routes
from hindcast.contracts.shapes import PERIODS, resolved, scope, selected
from hindcast.corrected import aggregates, derive
from hindcast.delta.emitted import PLACE, PLACES
from hindcast.emits import measures, murmur2, of_view
from hindcast.emits.depth import BEFORE
from hindcast.emits.task import batches
from hindcast.formats import primitive


def given(contract: Contract, name: str, records: Mapping[str, DataFrame], partitions: Mapping[str, int]) -> DataFrame:
    """The rows of a view's tasks. `records`: of each input; `partitions`: how many each has."""
    it, routes = contract.views[name], Routes(contract)
    sides = [
        _side(contract, name, side, some, partitions[it.inputs[-1]], part)
        for side, i in enumerate(it.inputs)
        for part, some in _parts(records[i])
    ]
    rows = sides[0]
    for more in sides[1:]:
        rows = rows.unionByName(more, allowMissingColumns=True)
    if name in routes.telling:
        there = [side for side in ("first", "second") if side in rows.columns]
        rows = rows.withColumns({f"before_{side}": F.lit(None).cast(rows.schema[side].dataType) for side in there})
    if it.aggregate is not None:
        rows = rows.withColumn("measures", F.lit(None).cast(_measured(contract, it, rows.schema)))
    operator = of_view.operator(it)
    used = [column for column in _COLUMNS if operator in _ONLY.get(column, (operator,))]
    if _is_hashed(contract, name):
        used.append("start")
    return rows.select(*(column for column in used if column in rows.columns))


def _is_hashed(contract: Contract, name: str) -> bool:
    """Whether the rows of a view have a hash of their value in `start`, by which it is seen that a row has changed."""
    return of_view.operator(contract.views[name]) == "foreign_key" and name in Routes(contract).depth_first


def _parts(records: DataFrame) -> list[tuple[str | None, DataFrame]]:
    """Records, and what was before them where they tell that: each part with its name."""
    if "before" not in records.columns:
        return [(None, records)]
    before = {"value": F.col("before"), "passes": F.lit(True)}
    return [(None, records), (BEFORE, records.where("before IS NOT NULL").withColumns(before))]


def processed(contract: Contract, name: str, rows: DataFrame, partitions: int) -> DataFrame:
    """What the tasks of a view make of rows: what is emitted (`part` null), and what is kept."""
    tasks = 1 if of_view.gathered(contract.views[name]) else max(1, partitions)
    sent = rows.repartition(tasks, "partition").sortWithinPartitions("order", "part", "n")
    return sent.mapInArrow(batches(of_view.form(contract, name)), _nullable(rows.schema))


def told(contract: Contract, name: str, rows: DataFrame) -> DataFrame:
    """Emitted rows as a view's log has them (emitting.py), without epoch and run."""
    it, known = contract.views[name], shapes(contract)
    shape = known[name]
    picked = rows.select(F.struct("*").alias("_row"))
    tells = name in Routes(contract).telling
    if it.aggregate is not None:
        picked = picked.select("_row", F.struct("_row.key.*", *_whole(contract, it)).alias("_own"))
    else:
        sides = list(zip(it.inputs, ("first", "second"), strict=False))
        key = F.struct(*(F.col(f"_row.first.{c}").alias(c) for c in known[it.first].key))
        key = F.col("_row.key") if "key" in rows.columns else key
        picked = picked.select("_row", key.alias("_key"), *(F.col(f"_row.{side}").alias(i) for i, side in sides))
        if it.where is not None and it.join is not None:
            picked = picked.where(F.expr(resolve(it.where, scope(it, known))))
        picked = picked.select("_row", "_key", F.struct(*derive.chosen(it, known, "_key")).alias("_own"))
        if tells:
            before = [F.col(f"_row.before_{side}").alias(i) for i, side in sides]
            known_before = reduce(or_, (F.col(f"_row.before_{side}").isNotNull() for _, side in sides))
            picked = picked.select("_row", "_own", "_key", *before, known_before.alias("_there"))
            chosen = F.struct(*derive.chosen(it, known, "_key"))
            picked = picked.select("_row", "_own", "_there", chosen.alias("_before"))
            # Delta asks for the fields of a struct that is not there, too
            kind = _nullable(picked.select("_before").schema)["_before"].dataType
            picked = picked.select(
                "_row", "_own", F.when(F.col("_there"), F.col("_before").cast(kind)).alias("_before")
            )
    there = F.col("_row.put")
    keys, columns = list(shape.key), list(shape.value)
    return picked.select(
        F.col("_row.partition").alias("_partition"),
        F.col("_row.n").alias("_offset"),
        *(F.col(f"_own.{c}").alias(c) for c in keys),
        *(F.when(there, F.col(f"_own.{c}")).alias(c) for c in columns),
        F.timestamp_millis("_row.time").alias("timestamp"),
        *(
            F.timestamp_millis(F.col(f"_row.{edge}")).alias(column)
            for edge, column in zip(("start", "end"), PERIODS["windows"], strict=True)
            if shape.kind == "windows"
        ),
        F.col("_row.headers").alias("headers"),
        (~there).alias("_tombstone"),
        *(["_before"] if tells else []),
        F.col("_row.passes").alias("_filtered"),
        F.col("_row.order").alias("_order"),
        F.element_at(F.array(*(F.lit(t) for t in contract.topics)), F.col("_row.order.topic") + 1).alias("_causeTopic"),
        F.col("_row.order.partition").alias("_causePartition"),
        F.col("_row.order.offset").alias("_causeOffset"),
        *(
            F.col(f"_row.{side}.{part}").alias(column)
            for side, columns_ in zip(("first", "second"), PLACES.get(shape.kind, ()), strict=False)
            for part, column in zip(PLACE, columns_, strict=True)
        ),
    )


def _whole(contract: Contract, it: View) -> list[Column]:
    """An aggregate's measures of their parts."""
    found, at = [], 0
    for column, function in zip(it.aggregate or {}, of_view.measured(it, contract), strict=True):
        parts = [F.col(f"_row.measures.m{at + n}") for n in range(len(measures.PARTS[function]))]
        at += len(parts)
        whole = parts[0].cast("double") / parts[1] if function == "avg" else parts[0]
        found.append(F.when(parts[-1] > 0, whole).alias(column) if function == "avg" else whole.alias(column))
    return found


_JOINED_BY_KEY = ("table_table", "pairs")
_OF_JOINS = ("stream", "table", "stream_table", "table_table", "foreign_key", "pairs")
_ONLY: dict[str, tuple[str, ...]] = {
    "key": ("table", "table_table", "foreign_key", "pairs", "aggregate", "windows"),
    "first": _OF_JOINS,
    "second": _OF_JOINS,
    "other": ("foreign_key", "aggregate"),
    "home": ("foreign_key", "aggregate"),
    "start": ("windows", "pairs"),
    "end": ("windows",),
}
"""Columns that only some operators have a use for: each costs time on its way into a task and back."""

_COLUMNS = (
    "part",
    "side",
    "partition",
    "id",
    "other",
    "home",
    "time",
    "start",
    "end",
    "put",
    "passes",
    "n",
    "order",
    "headers",
    "key",
    "first",
    "second",
    "numbers",
    "measures",
    "before_first",
    "before_second",
)


def _used(contract: Contract, name: str, side: int) -> list[Column]:
    """The columns of an input's value that what is emitted is made of, and its place where a row is known by that."""
    it, known = contract.views[name], shapes(contract)
    source = it.inputs[side]
    texts = [*resolved(it.key, it, known).values(), *selected(it, known).values(), it.where or ""]
    own = known[source].key if side == 0 and it.key is None else ()
    names = [c for c in known[source].columns if c in own or any(c in text for text in texts)]
    placed = side == 0 or known[name].kind == "pairs"
    return [*(F.col(f"value.{c}").alias(c) for c in names or [*known[source].columns][:1]), *(PLACE if placed else ())]


def _side(
    contract: Contract, name: str, side: int, records: DataFrame, count: int, part: str | None = None
) -> DataFrame:
    """The new records of an input as rows of a task (emits.rows), or what is a `part` of them."""
    it, known = contract.views[name], shapes(contract)
    source = it.inputs[side]
    named, sent = F.lit(None).cast("binary"), F.lit(None).cast("int")
    what, on = of_view.operator(it), derive.looked_up(it, known)
    if side == 0 and on is not None:
        its = encoded(on, known[it.second or ""].key, keyed_as(contract, it.second or ""))
        if what == "stream_table":
            records = _sent(records, its, count)
        else:
            named, sent = its, _partition(its, count)
    if it.aggregate is not None:
        columns = it.group_by or known[source].key
        its = encoded(F.col("key"), columns, keyed_as(contract, name))
        if it.table:
            measurable = F.col("value").isNotNull() & aggregates.measurable(derive.measures(it, known))
            records = records.withColumn("key", F.when(measurable, derive.group(it, known)))
            named, sent = its, F.col("partition") if it.group_by is None else _partition(its, count)
        elif it.group_by is not None:
            records = _sent(records.withColumn("key", derive.group(it, known)), its, count)
    elif what == "stream" and it.key is not None:
        new = {c: F.expr(resolve(text, scope(it, known), {it.first: "value"})) for c, text in it.key.items()}
        its = encoded(F.col("key"), it.key, keyed_as(contract, name))
        records = _sent(records.withColumn("key", derive.keyed(new)), its, count)
    passes = F.col("passes")
    if side == 0 and it.where is not None and it.join is None:
        condition = F.expr(resolve(it.where, scope(it, known), {it.first: "value"}))
        passes = passes & F.coalesce(condition, F.lit(False))
    key = F.col("key")
    if side == 1 and what in _JOINED_BY_KEY:
        names = zip(known[source].key, known[it.first].key, strict=True)
        key = F.when(key.isNotNull(), F.struct(*(F.col(f"key.{own}").alias(first) for own, first in names)))
    numbers = {}
    if it.aggregate is not None:
        arguments = [measure.argument for measure in derive.measures(it, known).values()]
        numbers = {"numbers": F.struct(*(argument.alias(f"m{n}") for n, argument in enumerate(arguments)))}
    return records.select(
        F.lit(part).cast("string").alias("part"),
        F.lit(side).alias("side"),
        F.col("partition"),
        F.col("id"),
        named.alias("other"),
        sent.alias("home"),
        F.unix_millis("timestamp").alias("time"),
        (F.xxhash64("value") if _is_hashed(contract, name) else F.lit(None).cast("long")).alias("start"),
        F.lit(None).cast("long").alias("end"),
        (F.col("value").isNotNull() | ~F.col("passes")).alias("put"),
        passes.alias("passes"),
        F.lit(None).cast("long").alias("n"),
        "order",
        "headers",
        *([key.alias("key")] if side == 0 or what in _JOINED_BY_KEY else []),
        F.when(F.col("value").isNotNull(), F.struct(*_used(contract, name, side))).alias(("first", "second")[side]),
        *(column.alias(n) for n, column in numbers.items()),
    )


def _nullable(schema: StructType) -> StructType:
    """The same, where anything may be null, also within structs."""
    text = schema.json().replace('"nullable":false', '"nullable":true')
    return StructType.fromJson(json.loads(text.replace('"containsNull":false', '"containsNull":true')))


def _sent(records: DataFrame, encoded: Column, count: int) -> DataFrame:
    """Records under another key, where Kafka Streams would send them: a repartition."""
    keyed = records.withColumn("id", encoded)
    return keyed.withColumn("partition", F.coalesce(_partition(F.col("id"), count), F.col("partition")))


def _partition(encoded: Column, count: int) -> Column:
    of = F.arrow_udf(lambda keys: murmur2.partitions(keys, count), "int")  # type: ignore[attr-defined]
    sent: Column = of(encoded)
    return sent


def encoded(key: Column, columns: Mapping[str, str | None], form: str) -> Column:
    """A key as the bytes that a serializer would make of it: a JSON object, or its one column as text or primitive.

    Only of a primitive key the types of `columns` matter.
    """
    if form == "json":
        return F.to_json(key).cast("binary")
    ((name, kind),) = columns.items()
    value = key.getField(name)
    return primitive.written(value, kind or "string") if form == "primitive" else value.cast("string").cast("binary")


def keyed_as(contract: Contract, name: str) -> str:
    """How the key of a topic or view is written here: json, string or primitive. One that a topic has in Avro is JSON:
    its bytes would have an id that only a serializer knows.
    """
    if name in contract.topics:
        form = contract.topics[name].keyed_as
        return "json" if form == "avro" else form
    it = contract.views[name]
    own = it.key or it.group_by
    return ("json" if len(own) > 1 else "string") if own is not None else keyed_as(contract, it.first)


def _measured(contract: Contract, it: View, schema: StructType) -> DataType:
    """The type of what is kept of an aggregate: a field for each part of its measures."""
    numbers = schema["numbers"].dataType
    fields = []
    for n, part in enumerate(measures.parts(of_view.measured(it, contract))):
        fields.append(StructField(f"m{n}", _part(part.function, numbers.fields[part.argument].dataType)))  # type: ignore[attr-defined]
    return StructType(fields)


def _part(function: str, of: DataType) -> DataType:
    """The type of a part of a measure."""
    if function in ("rows", "count"):
        return LongType()
    return from_arrow_type(measures.summed_type(to_arrow_type(of))) if function == "sum" else of
