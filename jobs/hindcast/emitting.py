"""What a run makes a kafka view emit: appended to a log of its own, as to an output topic; and what its operator keeps.

| column of `emitted/<view>` | type | |
| --- | --- | --- |
| _epoch | int | counts the definitions of the view: another one begins the log anew |
| _partition, _offset | int, bigint | the place in the output: each partition in the order of emission |
| the view's columns, timestamp | | as in its table; of a tombstone all but the key's are null |
| windowStart, windowEnd | timestamp | of windows |
| _tombstone, _filtered | boolean | it ends its key; it does so because the value does not pass the view's condition |
| _order | struct | the place in processing order: the record that caused it, and its turn (order.processing) |
| _causeTopic, _causePartition, _causeOffset | | that record |
| _sourcePartition, _sourceOffset | int, bigint | the event that it tells of (events, pairs) |
| _rightPartition, _rightOffset | int, bigint | the other one (pairs) |
| _run, systemFrom | bigint, timestamp | the run that emitted it, and its known-at |

What is kept lies in `kept/<view>/<epoch>`, as `emits.rows` has it, and is replaced by each run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, DoubleType, IntegralType, LongType, StructField, StructType

from hindcast import aggregates, commits, derive, forms, logs, order, plans, tables
from hindcast.contracts import Contract, View, shapes
from hindcast.contracts.expressions import resolve
from hindcast.contracts.shapes import PERIODS, Shape, scope
from hindcast.decode import decode
from hindcast.emits import measures, murmur2
from hindcast.emits.task import batches
from hindcast.errors import RunError
from hindcast.plans import Plan
from hindcast.settings import settings
from hindcast.tables import Table

PLACED = {"events": ("_source",), "pairs": ("_source", "_right")}
"""The places of events that what is emitted carries, by the kind of the view."""


def emitted(warehouse: str, contract: Contract, name: str) -> Table:
    """The log of what a kafka view has emitted."""
    return Table(warehouse, contract.pipeline, f"emitted/{name}", "emitted", tuple(shapes(contract)[name].key))


def emit(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> int:
    """Processes what has come since the view was last processed, unless this run has done so; returns its epoch.

    Two commits, each made once: what is emitted is appended, then what is kept is replaced. RunError if inputs of a
    join have different numbers of partitions, or for the record on which Kafka Streams fails.
    """
    log, past = emitted(settings().warehouse, contract, name), _past(contract, todo, name)
    if past.kept_by >= todo.run:
        return past.epoch
    rows = _given(spark, contract, todo, name, past)
    groups = 1 if forms.gathered(contract.views[name]) else max(1, _partitions(contract, todo, name))
    sent = rows.repartition(groups, "partition").sortWithinPartitions("order", "part", "n")
    done = sent.mapInArrow(batches(forms.form(contract, name)), _nullable(rows.schema)).localCheckpoint(eager=False)
    note = {"run": todo.run, "epoch": past.epoch, "definition": contract.definition(name)}
    told = _told(contract, name, done.where("part IS NULL"), past.epoch, todo)
    tables.ensure(log, tables.nullable(told.schema))
    commits.append(told, log, todo.run, note)
    kept = done.where("part IS NOT NULL").drop("order")
    place = _kept(contract, name, past.epoch)
    tables.ensure(place, tables.nullable(kept.schema))
    commits.replace(kept, place, todo.run, note)
    return past.epoch


class _Past(NamedTuple):
    """How far a view has come: its epoch, and the run that replaced what it keeps last, 0 before the first."""

    epoch: int
    kept_by: int


def _past(contract: Contract, todo: Plan, name: str) -> _Past:
    noted = tables.notes(emitted(settings().warehouse, contract, name))
    earlier = [run for run in noted if run < todo.run]
    last = noted[max(earlier)] if earlier else None
    epoch = 1 if last is None else last["epoch"] + (last["definition"] != contract.definition(name))
    return _Past(epoch, tables.published(_kept(contract, name, epoch)))


def _kept(contract: Contract, name: str, epoch: int) -> Table:
    return Table(settings().warehouse, contract.pipeline, f"kept/{name}/{epoch}", "kept")


def _partitions(contract: Contract, todo: Plan, name: str) -> int:
    """How many partitions a topic has, or a kafka view: that of the input that it is stored beside."""
    if name in contract.topics:
        return len(todo.topics[name].ranges)
    it = contract.views[name]
    if it.stream and it.join and it.join.table and it.join.on is not None:
        return _partitions(contract, todo, it.join.table)
    return _partitions(contract, todo, it.first)


def _given(spark: SparkSession, contract: Contract, todo: Plan, name: str, past: _Past) -> DataFrame:
    """What the view's tasks are given: what is kept, and the new records of its inputs."""
    it, known = contract.views[name], shapes(contract)
    counts = {i: _partitions(contract, todo, i) for i in it.inputs}
    if len(set(counts.values())) > 1 and it.join is not None and it.join.on is None:
        told = " and ".join(f"{i} has {count}" for i, count in counts.items())
        mend = "Kafka Streams joins what is partitioned alike: repartition one of the topics"
        raise RunError(f"the inputs of a join have different numbers of partitions: {told}", where=name, mend=mend)
    sides = [_side(spark, contract, todo, name, side, past) for side in range(len(it.inputs))]
    rows = sides[0]
    for more in sides[1:]:
        rows = rows.unionByName(more, allowMissingColumns=True)
    rows = rows.withColumn("measures", F.lit(None).cast(_measured(contract, it, rows.schema)))
    rows = rows.select(*(name for name in _COLUMNS if name in rows.columns))
    place = _kept(contract, name, past.epoch)
    if tables.opened(place) is None:
        return rows
    return rows.unionByName(tables.load(spark, place), allowMissingColumns=True)


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
    "key",
    "first",
    "second",
    "numbers",
    "measures",
)


def _side(spark: SparkSession, contract: Contract, todo: Plan, name: str, side: int, past: _Past) -> DataFrame:
    """The new records of an input as rows of a task (emits.rows)."""
    it, known = contract.views[name], shapes(contract)
    source = it.inputs[side]
    records = (_of_topic if source in contract.topics else _of_view)(spark, contract, todo, source, it, past)
    count = _partitions(contract, todo, it.inputs[-1])
    named, sent = F.lit(None).cast("binary"), F.lit(None).cast("int")
    what, on = forms.operator(it), derive.looked_up(it, known)
    if side == 0 and on is not None:
        encoded = _encoded(on, known[it.second or ""].key, _as_json(contract, it.second or ""))
        if what == "stream_table":
            records = _sent(records, encoded, count)
        else:
            named, sent = encoded, _partition(encoded, count)
    if it.aggregate is not None:
        columns = it.group_by or known[source].key
        encoded = _encoded(F.col("key"), columns, _as_json(contract, name))
        if it.table:
            measurable = F.col("value").isNotNull() & aggregates.measurable(derive.measures(it, known))
            records = records.withColumn("key", F.when(measurable, derive.group(it, known)))
            named, sent = encoded, F.col("partition") if it.group_by is None else _partition(encoded, count)
        elif it.group_by is not None:
            records = _sent(records.withColumn("key", derive.group(it, known)), encoded, count)
    elif what == "stream" and it.key is not None:
        new = {c: F.expr(resolve(text, scope(it, known), {it.first: "value"})) for c, text in it.key.items()}
        encoded = _encoded(F.col("key"), it.key, _as_json(contract, name))
        records = _sent(records.withColumn("key", derive.keyed(new)), encoded, count)
    passes = F.col("passes")
    if side == 0 and it.where is not None and it.join is None:
        condition = F.expr(resolve(it.where, scope(it, known), {it.first: "value"}))
        passes = passes & F.coalesce(condition, F.lit(False))
    key = F.col("key")
    if side == 1:
        first = shapes(contract)[it.first].key
        alike = what in ("table_table", "pairs")
        key = F.struct(*(F.col(f"key.{c}").alias(n) for c, n in zip(known[source].key, first, strict=alike)))
        key = F.when(F.col("key").isNotNull(), key) if alike else F.lit(None)
    numbers = {}
    if it.aggregate is not None:
        its = derive.measures(it, known)
        numbers = {"numbers": F.struct(*(m.argument.alias(f"m{n}") for n, m in enumerate(its.values())))}
    return records.select(
        F.lit(None).cast("string").alias("part"),
        F.lit(side).alias("side"),
        F.col("partition"),
        F.col("id"),
        named.alias("other"),
        sent.alias("home"),
        F.unix_millis("timestamp").alias("time"),
        F.lit(None).cast("long").alias("start"),
        F.lit(None).cast("long").alias("end"),
        (F.col("value").isNotNull() | ~F.col("passes")).alias("put"),
        passes.alias("passes"),
        F.lit(None).cast("long").alias("n"),
        "order",
        *([key.alias("key")] if side == 0 or what in ("table_table", "pairs") else []),
        F.when(F.col("value").isNotNull(), F.struct("value.*", *_PLACE)).alias("first" if side == 0 else "second"),
        *(column.alias(n) for n, column in numbers.items()),
    )


_PLACE = ("_partition", "_offset")
"""Where a record stands in its topic, beside its values."""


def _of_topic(spark: SparkSession, contract: Contract, todo: Plan, name: str, it: View, past: _Past) -> DataFrame:
    """Records of a topic: key, value (struct or null, with the key's columns), timestamp, partition, id, order."""
    topic = contract.topics[name]
    log = plans.log(settings().warehouse, contract.pipeline, name)
    number = list(contract.topics).index(name)
    fates = ["accepted", "expired", "null_key"]
    rows = tables.load(spark, log).where(F.col("fate").isin(*fates) & (F.col("run") <= todo.run))
    rows = order.processing(rows.where(F.col("run") > past.kept_by), number, waits=it.wait)
    if topic.read == "table":
        rows = rows.where("fate <> 'null_key'")
    records = logs.undisputed(decode(rows, topic, logs.latest(topic, todo)), contract.kafka_topic(name))
    columns = [F.col(f"key.{c}").alias(c) for c in topic.key] + [F.col(f"value.{c}").alias(c) for c in topic.value]
    return records.select(
        "key",
        F.when(F.col("value").isNotNull(), F.struct(*columns)).alias("value"),
        "timestamp",
        "partition",
        _encoded(F.col("key"), topic.key, topic.keyed_as == "json").alias("id"),
        "order",
        F.lit(True).alias("passes"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
    )


def _of_view(spark: SparkSession, contract: Contract, todo: Plan, name: str, it: View, past: _Past) -> DataFrame:
    """What another kafka view has emitted, as records."""
    shape: Shape = shapes(contract)[name]
    log = emitted(settings().warehouse, contract, name)
    epoch = _past(contract, todo, name).epoch
    rows = tables.load(spark, log).where((F.col("_epoch") == epoch) & (F.col("_run") > past.kept_by))
    key = derive.keyed({column: F.col(column) for column in shape.key})
    place = ("_sourcePartition", "_sourceOffset") if shape.kind == "events" else _PLACE
    return rows.select(
        key.alias("key"),
        F.when(~F.col("_tombstone"), F.struct(*shape.columns)).alias("value"),
        "timestamp",
        F.col("_partition").alias("partition"),
        _encoded(key, shape.key, _as_json(contract, name)).alias("id"),
        F.col("_order").alias("order"),
        (~F.col("_filtered")).alias("passes"),
        *(F.col(column).alias(alias) for column, alias in zip(place, _PLACE, strict=True)),
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
    return F.arrow_udf(lambda keys: murmur2.partitions(keys, count), "int")(encoded)


def _encoded(key: Column, columns: Iterable[str], as_json: bool) -> Column:  # noqa: FBT001
    """A key as the bytes that a serializer would make of it: the text of its one column, or a JSON object."""
    if as_json:
        return F.to_json(key).cast("binary")
    (name,) = columns
    return key.getField(name).cast("string").cast("binary")


def _as_json(contract: Contract, name: str) -> bool:
    """Whether the key of a topic or view is a JSON object."""
    if name in contract.topics:
        return contract.topics[name].keyed_as == "json"
    it = contract.views[name]
    own = it.key or it.group_by
    return len(own) > 1 if own is not None else _as_json(contract, it.first)


def _measured(contract: Contract, it: View, schema: StructType) -> DataType:
    """The type of what is kept of an aggregate: a field for each part of its measures."""
    if it.aggregate is None:
        return StructType([StructField("m0", LongType())])
    numbers = schema["numbers"].dataType
    fields = []
    for n, part in enumerate(measures.parts(forms.measured(it, contract))):
        fields.append(StructField(f"m{n}", _part(part.function, numbers.fields[part.argument].dataType)))  # type: ignore[attr-defined]
    return StructType(fields)


def _part(function: str, of: DataType) -> DataType:
    """The type of a part of a measure."""
    if function in ("rows", "count"):
        return LongType()
    if function != "sum":
        return of
    if isinstance(of, DecimalType):
        return DecimalType(min(of.precision + 10, 38), of.scale)
    return LongType() if isinstance(of, IntegralType) else DoubleType()


def _told(contract: Contract, name: str, rows: DataFrame, epoch: int, todo: Plan) -> DataFrame:
    """Emitted rows as the log has them."""
    it, known = contract.views[name], shapes(contract)
    shape = known[name]
    if it.aggregate is not None:
        own = [F.col("key.*"), *_whole(contract, it)]
    else:
        rows = rows.withColumnsRenamed({"first": it.first, "second": it.second or "_second"})
        if it.where is not None and it.join is not None:
            rows = rows.where(F.expr(resolve(it.where, scope(it, known))))
        own = derive.chosen(it, known)
    picked = rows.select(F.struct(*own).alias("_own"), F.struct("*").alias("_row"))
    there = F.col("_row.put")
    sources = {"_source": f"_row.{it.first}", "_right": f"_row.{it.second}"}
    keys, columns = list(shape.key), list(shape.value)
    return picked.select(
        F.lit(epoch).alias("_epoch"),
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
        (~there).alias("_tombstone"),
        F.col("_row.passes").alias("_filtered"),
        F.col("_row.order").alias("_order"),
        F.element_at(F.array(*(F.lit(t) for t in contract.topics)), F.col("_row.order.topic") + 1).alias("_causeTopic"),
        F.col("_row.order.partition").alias("_causePartition"),
        F.col("_row.order.offset").alias("_causeOffset"),
        *(
            F.col(f"{sources[place]}.{part}").alias(f"{place}{part.removeprefix('_').capitalize()}")
            for place in PLACED.get(shape.kind, ())
            for part in _PLACE
        ),
        F.lit(todo.run).cast("long").alias("_run"),
        F.lit(todo.known_at).alias("systemFrom"),
    )


def _whole(contract: Contract, it: View) -> list[Column]:
    """An aggregate's measures of their parts."""
    found, at = [], 0
    for column, function in zip(it.aggregate or {}, forms.measured(it, contract), strict=True):
        parts = [F.col(f"measures.m{at + n}") for n in range(len(measures.PARTS[function]))]
        at += len(parts)
        whole = parts[0].cast("double") / parts[1] if function == "avg" else parts[0]
        found.append(F.when(parts[-1] > 0, whole).alias(column) if function == "avg" else whole.alias(column))
    return found
