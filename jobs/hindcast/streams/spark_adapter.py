"""Records of a kafka view as rows of tasks (`task_rows`), and what tasks emit as rows of its log. DataFrame in and out.

The records of an input have `key` (struct or null), `value` (struct with the key's columns, or null), `timestamp`,
`partition`, `id` (the key's bytes), `order` (`processing_order.add_processing_order`), `passes` (false: the input has a
value that does not pass its own condition), `headers` (as in the log), `_partition_number` and `_offset` (their place
in the topic); if the input sends old values also `before` (like `value`), the value before the change.
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

from hindcast.bitemporal import aggregates, derivation
from hindcast.bitemporal.intervals import LAST_MICROS
from hindcast.bitemporal.pattern_limits import expression_column
from hindcast.common.spark_workers import map_in_workers
from hindcast.contract import Contract, View, list_shapes
from hindcast.contract.expressions import resolve
from hindcast.contract.routes import Routes
from hindcast.contract.shapes import PERIODS, PLACE_COLUMNS, SOURCE_PLACES, resolve_all, selected_columns, view_scope
from hindcast.formats import primitive
from hindcast.streams import measures, murmur2, spec_of_view
from hindcast.streams.depth_first import OLD_VALUE
from hindcast.streams.task import build_batch_mapper


def build_task_rows(
    contract: Contract, name: str, records: Mapping[str, DataFrame], partitions: Mapping[str, int]
) -> DataFrame:
    """Return the rows of a view's tasks (`task_rows`).

    `records`: by input, its new records, with the columns above; `partitions`: by input, its number of partitions.
    """
    view, routes = contract.views[name], Routes(contract)
    sides = [
        _build_side_rows(contract, name, side, some, partitions[view.inputs[-1]], part)
        for side, i in enumerate(view.inputs)
        for part, some in _split_old_values(records[i])
    ]
    rows = sides[0]
    for more in sides[1:]:
        rows = rows.unionByName(more, allowMissingColumns=True)
    if name in routes.telling:
        present = [side for side in ("first", "second") if side in rows.columns]
        rows = rows.withColumns({f"before_{side}": F.lit(None).cast(rows.schema[side].dataType) for side in present})
    if view.aggregate is not None:
        rows = rows.withColumn("measures", F.lit(None).cast(_measures_type(contract, view, rows.schema)))
    operator = spec_of_view.operator_kind(view)
    used = [column for column in _COLUMNS if operator in _ONLY_OPERATORS.get(column, (operator,))]
    if _is_hashed(contract, name):
        used.append("start")
    return rows.select(*(column for column in used if column in rows.columns))


def _is_hashed(contract: Contract, name: str) -> bool:
    """Return whether the rows of a view have a hash of their value in `start`, which shows that a row has changed."""
    return spec_of_view.operator_kind(contract.views[name]) == "foreign_key" and name in Routes(contract).depth_first


def _split_old_values(records: DataFrame) -> list[tuple[str | None, DataFrame]]:
    """Return records, and their old values if the input sends them: each with the name of its part."""
    if "before" not in records.columns:
        return [(None, records)]
    before = {"value": F.col("before"), "passes": F.lit(True)}
    return [(None, records), (OLD_VALUE, records.where("before IS NOT NULL").withColumns(before))]


def process_tasks(contract: Contract, name: str, rows: DataFrame, partitions: int) -> DataFrame:
    """Return the rows that the tasks of a view emit (`part` null), and those of their state; columns as in `rows`."""
    tasks = 1 if spec_of_view.needs_one_task(contract.views[name]) else max(1, partitions)
    sent = rows.repartition(tasks, "partition").sortWithinPartitions("order", "part", "n")
    return map_in_workers(
        sent, build_batch_mapper(spec_of_view.build_spec(contract, name)), _make_nullable(rows.schema)
    )


def build_log_rows(contract: Contract, name: str, rows: DataFrame) -> DataFrame:
    """Return emitted rows as rows of the view's log (runs/emission.py), without epoch and run.

    Out: the view's key and value columns (values null in a tombstone), `timestamp`, of windows their period, `headers`,
    `_partition` and `_offset` (of the output), `_tombstone`, `_before` (if the view sends old values), `_filtered`,
    `_order`, `_causeTopic`, `_causePartition`, `_causeOffset` and the places of the events that a row comes from.
    """
    view, shapes = contract.views[name], list_shapes(contract)
    shape = shapes[name]
    picked = rows.select(F.struct("*").alias("_row"))
    sends_old_values = name in Routes(contract).telling
    if view.aggregate is not None:
        picked = picked.select("_row", F.struct("_row.key.*", *_combine_measures(contract, view)).alias("_own"))
    else:
        sides = list(zip(view.inputs, ("first", "second"), strict=False))
        key = F.struct(*(F.col(f"_row.first.{c}").alias(c) for c in shapes[view.first_input].key))
        key = F.col("_row.key") if "key" in rows.columns else key
        picked = picked.select("_row", key.alias("_key"), *(F.col(f"_row.{side}").alias(i) for i, side in sides))
        if view.where is not None and view.join is not None:
            picked = picked.where(expression_column(resolve(view.where, view_scope(view, shapes))))
        picked = picked.select("_row", "_key", F.struct(*derivation.output_columns(view, shapes, "_key")).alias("_own"))
        if sends_old_values:
            before = [F.col(f"_row.before_{side}").alias(i) for i, side in sides]
            known_before = reduce(or_, (F.col(f"_row.before_{side}").isNotNull() for _, side in sides))
            picked = picked.select("_row", "_own", "_key", *before, known_before.alias("_there"))
            chosen = F.struct(*derivation.output_columns(view, shapes, "_key"))
            picked = picked.select("_row", "_own", "_there", chosen.alias("_before"))
            # Delta checks the fields of a null struct, too.
            kind = _make_nullable(picked.select("_before").schema)["_before"].dataType
            picked = picked.select(
                "_row", "_own", F.when(F.col("_there"), F.col("_before").cast(kind)).alias("_before")
            )
    has_value = F.col("_row.put")
    keys, columns = list(shape.key), list(shape.value)
    return picked.select(
        F.col("_row.partition").alias("_partition"),
        F.col("_row.n").alias("_offset"),
        *(F.col(f"_own.{c}").alias(c) for c in keys),
        *(F.when(has_value, F.col(f"_own.{c}")).alias(c) for c in columns),
        F.timestamp_millis("_row.time").alias("timestamp"),
        *(
            F.timestamp_millis(F.least(F.col(f"_row.{edge}"), F.lit(LAST_MICROS // 1000))).alias(column)
            for edge, column in zip(("start", "end"), PERIODS["windows"], strict=True)
            if shape.kind == "windows"
        ),
        F.col("_row.headers").alias("headers"),
        (~has_value).alias("_tombstone"),
        *(["_before"] if sends_old_values else []),
        F.col("_row.passes").alias("_filtered"),
        F.col("_row.order").alias("_order"),
        F.element_at(F.array(*(F.lit(t) for t in contract.topics)), F.col("_row.order.topic") + 1).alias("_causeTopic"),
        F.col("_row.order.partition").alias("_causePartition"),
        F.col("_row.order.offset").alias("_causeOffset"),
        *(
            F.col(f"_row.{side}.{part}").alias(column)
            for side, columns_ in zip(("first", "second"), SOURCE_PLACES.get(shape.kind, ()), strict=False)
            for part, column in zip(PLACE_COLUMNS, columns_, strict=True)
        ),
    )


def _combine_measures(contract: Contract, view: View) -> list[Column]:
    """Return the measures of an aggregate, combined from their parts."""
    columns, first_part = [], 0
    for column, function in zip(view.aggregate or {}, spec_of_view.measure_functions(view, contract), strict=True):
        parts = [F.col(f"_row.measures.m{first_part + n}") for n in range(len(measures.PARTS[function]))]
        first_part += len(parts)
        whole = parts[0].cast("double") / parts[1] if function == "avg" else parts[0]
        columns.append(F.when(parts[-1] > 0, whole).alias(column) if function == "avg" else whole.alias(column))
    return columns


_JOINED_BY_KEY = ("table_table", "pairs")
_NOT_AGGREGATES = ("stream", "table", "stream_table", "table_table", "foreign_key", "pairs")
_ONLY_OPERATORS: dict[str, tuple[str, ...]] = {
    "key": ("table", "table_table", "foreign_key", "pairs", "aggregate", "windows"),
    "first": _NOT_AGGREGATES,
    "second": _NOT_AGGREGATES,
    "other": ("foreign_key", "aggregate"),
    "home": ("foreign_key", "aggregate"),
    "start": ("windows", "pairs"),
    "end": ("windows",),
}
"""By column, the only operators that need it: each column costs time on its way into a task and back."""

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


def _used_columns(contract: Contract, name: str, side: int) -> list[Column]:
    """Return the columns of an input's value that results are computed from, and its place if that identifies a row."""
    view, shapes = contract.views[name], list_shapes(contract)
    source = view.inputs[side]
    texts = [*resolve_all(view.key, view, shapes).values(), *selected_columns(view, shapes).values(), view.where or ""]
    own = shapes[source].key if side == 0 and view.key is None else ()
    names = [c for c in shapes[source].columns if c in own or any(c in text for text in texts)]
    placed = side == 0 or shapes[name].kind == "pairs"
    return [
        *(F.col(f"value.{c}").alias(c) for c in names or [*shapes[source].columns][:1]),
        *(PLACE_COLUMNS if placed else ()),
    ]


def _build_side_rows(
    contract: Contract, name: str, side: int, records: DataFrame, count: int, part: str | None = None
) -> DataFrame:
    """Return the new records of an input as rows of a task, or as rows of a `part`."""
    view, shapes = contract.views[name], list_shapes(contract)
    source = view.inputs[side]
    other, home = F.lit(None).cast("binary"), F.lit(None).cast("int")
    operator, on = spec_of_view.operator_kind(view), derivation.lookup_key(view, shapes)
    if side == 0 and on is not None:
        encoded = encode_key(on, shapes[view.second_input or ""].key, key_encoding(contract, view.second_input or ""))
        if operator == "stream_table":
            records = _repartition_records(records, encoded, count)
        else:
            other, home = encoded, _partition_number(encoded, count)
    if view.aggregate is not None:
        columns = view.group_by or shapes[source].key
        encoded = encode_key(F.col("key"), columns, key_encoding(contract, name))
        if view.table:
            measurable = F.col("value").isNotNull() & aggregates.has_value_to_aggregate(
                derivation.view_measures(view, shapes)
            )
            records = records.withColumn("key", F.when(measurable, derivation.group_key(view, shapes)))
            other, home = encoded, F.col("partition") if view.group_by is None else _partition_number(encoded, count)
        elif view.group_by is not None:
            records = _repartition_records(
                records.withColumn("key", derivation.group_key(view, shapes)), encoded, count
            )
    elif operator == "stream" and view.key is not None:
        new = {
            c: expression_column(resolve(text, view_scope(view, shapes), {view.first_input: "value"}))
            for c, text in view.key.items()
        }
        encoded = encode_key(F.col("key"), view.key, key_encoding(contract, name))
        records = _repartition_records(records.withColumn("key", derivation.key_struct(new)), encoded, count)
    passes = F.col("passes")
    if side == 0 and view.where is not None and view.join is None:
        condition = expression_column(resolve(view.where, view_scope(view, shapes), {view.first_input: "value"}))
        passes = passes & F.coalesce(condition, F.lit(False))
    key = F.col("key")
    if side == 1 and operator in _JOINED_BY_KEY:
        names = zip(shapes[source].key, shapes[view.first_input].key, strict=True)
        key = F.when(key.isNotNull(), F.struct(*(F.col(f"key.{own}").alias(first) for own, first in names)))
    numbers = {}
    if view.aggregate is not None:
        arguments = [measure.argument for measure in derivation.view_measures(view, shapes).values()]
        numbers = {"numbers": F.struct(*(argument.alias(f"m{n}") for n, argument in enumerate(arguments)))}
    return records.select(
        F.lit(part).cast("string").alias("part"),
        F.lit(side).alias("side"),
        F.col("partition"),
        F.col("id"),
        other.alias("other"),
        home.alias("home"),
        F.unix_millis("timestamp").alias("time"),
        (F.xxhash64("value") if _is_hashed(contract, name) else F.lit(None).cast("long")).alias("start"),
        F.lit(None).cast("long").alias("end"),
        (F.col("value").isNotNull() | ~F.col("passes")).alias("put"),
        passes.alias("passes"),
        F.lit(None).cast("long").alias("n"),
        "order",
        "headers",
        *([key.alias("key")] if side == 0 or operator in _JOINED_BY_KEY else []),
        F.when(F.col("value").isNotNull(), F.struct(*_used_columns(contract, name, side))).alias(
            ("first", "second")[side]
        ),
        *(column.alias(n) for n, column in numbers.items()),
    )


def _make_nullable(schema: StructType) -> StructType:
    """Return the schema with everything nullable, also within structs and arrays."""
    text = schema.json().replace('"nullable":false', '"nullable":true')
    return StructType.fromJson(json.loads(text.replace('"containsNull":false', '"containsNull":true')))


def _repartition_records(records: DataFrame, encoded: Column, count: int) -> DataFrame:
    """Return records with another `id`, in the partition to which a repartition topic would send them."""
    keyed = records.withColumn("id", encoded)
    return keyed.withColumn("partition", F.coalesce(_partition_number(F.col("id"), count), F.col("partition")))


def _partition_number(encoded: Column, count: int) -> Column:
    """Return the partition of an encoded key, out of `count`."""
    partition_of = F.arrow_udf(lambda keys: murmur2.assign_partitions(keys, count), "int")  # type: ignore[attr-defined]
    number: Column = partition_of(encoded)
    return number


def encode_key(key: Column, columns: Mapping[str, str | None], encoding: str) -> Column:
    """Return a key as the bytes that a serializer would write: a JSON object, or its one column as text or primitive.

    `columns`: the key's columns and their types; these matter only for a primitive key.
    """
    if encoding == "json":
        return F.to_json(key).cast("binary")
    ((name, kind),) = columns.items()
    value = key.getField(name)
    return (
        primitive.serialize_value(value, kind or "string")
        if encoding == "primitive"
        else value.cast("string").cast("binary")
    )


def key_encoding(contract: Contract, name: str) -> str:
    """Return how the key of a topic or view is encoded here: json, string or primitive.

    An Avro key becomes JSON: its bytes would contain an id that only a serializer knows.
    """
    if name in contract.topics:
        key_format = contract.topics[name].effective_key_format
        return "json" if key_format == "avro" else key_format
    view = contract.views[name]
    own = view.key or view.group_by
    return ("json" if len(own) > 1 else "string") if own is not None else key_encoding(contract, view.first_input)


def _measures_type(contract: Contract, view: View, schema: StructType) -> DataType:
    """Return the type of an aggregate's state: a struct with a field for each part of its measures."""
    numbers = schema["numbers"].dataType
    fields = []
    for n, part in enumerate(measures.measure_parts(spec_of_view.measure_functions(view, contract))):
        fields.append(StructField(f"m{n}", _part_type(part.function, numbers.fields[part.argument].dataType)))  # type: ignore[attr-defined]
    return StructType(fields)


def _part_type(function: str, of: DataType) -> DataType:
    """Return the type of a part of a measure over a type."""
    if function in ("rows", "count"):
        return LongType()
    return from_arrow_type(measures.sum_type(to_arrow_type(of))) if function == "sum" else of
