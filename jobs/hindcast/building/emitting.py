"""What a run makes a kafka view emit: appended to a log of its own, as to an output topic; and what its operator keeps.

| column of `emitted/<view>` | type | |
| --- | --- | --- |
| _epoch | int | counts the definitions of the view: another one begins the log anew |
| _partition, _offset | int, bigint | the place in the output: each partition in the order of emission |
| the view's columns, timestamp | | as in its table; of a tombstone all but the key's are null |
| windowStart, windowEnd | timestamp | of windows |
| headers | array | those of the record that the result has them of (docs/kafka-parity.md); null: none |
| _tombstone, _filtered | boolean | it ends its key; it does so because the value does not pass the view's condition |
| _before | struct | what was before it, of tables that are processed depth first (contracts.routes) |
| _order | struct | the place in processing order: the record that caused it, and its turn (order.processing) |
| _causeTopic, _causePartition, _causeOffset | | that record |
| _sourcePartition, _sourceOffset | int, bigint | the event that it tells of (events, pairs) |
| _rightPartition, _rightOffset | int, bigint | the other one (pairs) |
| _run, systemFrom | bigint, timestamp | the run that emitted it, and its known-at |

What is kept lies in `kept/<view>/<epoch>`, as `emits.rows` has it. The stores of keys are in buckets, so that a run
reads and replaces those of its own keys; all else (stream times, what waits, windows) is in one that each run replaces.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import horizon
from hindcast.contracts import Contract, shapes
from hindcast.contracts.routes import Routes
from hindcast.corrected import derive, order
from hindcast.delta import commits, contents, evolution, making, tables
from hindcast.delta import emitted as emitted_
from hindcast.delta.tables import Table
from hindcast.emits import of_view, on_spark
from hindcast.errors import RunError, TableError
from hindcast.formats.decode import decode
from hindcast.planning import journal
from hindcast.planning.plans import Plan
from hindcast.replay import forgotten, logs, redating, requeued, schemas
from hindcast.settings import settings

_READ = ("accepted", "expired", "null_key")
"""The fates of records that a live topology would read; expired is what a store decides for itself."""


def emit(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> DataFrame:
    """Processes what has come since the view was last processed, unless this run has done so; all that it has emitted.

    Two commits, each made once: what is emitted is appended, then what is kept is replaced. RunError if inputs of a
    join have different numbers of partitions, or for the record on which Kafka Streams fails.
    """
    log = emitted_.log(settings().warehouse, contract, name)
    after, step = tables.published(log), Step(spark, contract, todo, name)
    if step.past.kept_by < step.past.emitted_by:  # a run was given up between its two commits
        emit(spark, contract, _plan(contract, name, step.past.emitted_by), name)
        step = Step(spark, contract, todo, name)
    if step.past.kept_by < todo.run:
        if not step.past.emitted_by and after:
            refuse_anew(contract, name)
        done = step.processed().localCheckpoint(eager=False)
        told = step.told(done)
        evolution.ensure(spark, log, making.nullable(told.schema), todo.known_at)
        commits.append(told, log, todo.run, step.note, after=after)
        kept = step.in_buckets(done.where("part IS NOT NULL").drop("order"))
        making.ensure(step.kept, making.nullable(kept.schema))
        commits.replace(kept, step.kept, todo.run, step.note, step.read)
    return _emitted(spark, log, step.past.epoch, todo.run)


def refuse_anew(contract: Contract, name: str) -> None:
    """TableError for a view that has to begin anew where it cannot be processed from the beginning any more."""
    for topic in (it for it in contract.upstream(name) if it in contract.topics):
        at = horizon.of(tables.log(settings().warehouse, contract.pipeline, topic))
        if at is not None:
            raise TableError(
                f"would begin anew, and the log of {topic} was trimmed up to {at.at.isoformat()}: what it would have "
                "emitted before cannot be told",
                where=f"{contract.pipeline}.{name}",
                mend="give the view another name: it begins with what the logs have; or, if you have changed the "
                "definition, put it back",
            )


def _emitted(spark: SparkSession, log: Table, epoch: int, run: int) -> DataFrame:
    """What a view has emitted in an epoch, up to a run."""
    return contents.load(spark, log).where((F.col("_epoch") == epoch) & (F.col("_run") <= run))


def previewed(
    spark: SparkSession, contract: Contract, todo: Plan, name: str, emitting: dict[str, DataFrame]
) -> DataFrame:
    """All that the view would have emitted after a run; nothing is written.

    `emitting`: the same of the kafka views that it is made of.
    """
    step = Step(spark, contract, todo, name, emitting)
    log, told = emitted_.log(settings().warehouse, contract, name), step.told(step.processed())
    if not step.past.emitted_by:
        if tables.published(log):
            refuse_anew(contract, name)
        return told
    return _emitted(spark, log, step.past.epoch, step.past.kept_by).unionByName(told)


def _plan(contract: Contract, name: str, run: int) -> Plan:
    """What a run was to do that has emitted; RunError if the journal does not know it."""
    plan = next((it.plan for it in journal.runs(settings().warehouse, contract.pipeline) if it.number == run), None)
    if plan is None:
        found, where = f"run {run} has emitted, and the journal lacks it", f"{contract.pipeline}.{name}"
        raise RunError(found, where=where, mend=f"hindcast ledger {contract.pipeline} --rebuild")
    return Plan.from_json(plan)


MANY, LARGE, FEW, REST = 64, 200_000, 20_000, -1
"""What is kept is in so many buckets from so many rows on, read so for up to so many records; the rest is in one."""


class Past(NamedTuple):
    """How far a view had come before a run: its epoch; the runs that last replaced what it keeps and that last emitted
    in this epoch, 0 before the first; with `wait` the time before which everything has been processed, in ms.

    What is kept is of this run if that has replaced it.
    """

    epoch: int
    kept_by: int
    emitted_by: int
    upto: int


def _past(contract: Contract, todo: Plan, name: str) -> Past:
    """How far a view had come before a run. Where something it is made of was forgotten since, it begins anew."""
    log = emitted_.log(settings().warehouse, contract, name)
    note = emitted_.noted(log, todo.run - 1)
    past = [run for run in journal.runs(log.warehouse, contract.pipeline) if run.number <= todo.run]
    anew = (
        note is None
        or note["definition"] != contract.definition(name)
        or forgotten.since(past, contract, name, note["run"])
    )
    epoch = (note["epoch"] if note else 0) + anew
    kept_by = tables.published(_kept(contract, name, epoch))
    if note is None or anew:
        return Past(epoch, kept_by, 0, -1)
    processed = emitted_.noted(log, min(kept_by, todo.run - 1))
    return Past(epoch, kept_by, note["run"], processed["upto"] if processed and kept_by else -1)


def _kept(contract: Contract, name: str, epoch: int) -> Table:
    """What a view keeps from run to run."""
    return Table(settings().warehouse, contract.pipeline, f"kept/{name}/{epoch}", "kept")


class Step:
    """What a run has to process for a view. `previews`: what its inputs would have emitted; nothing is written then."""

    def __init__(
        self,
        spark: SparkSession,
        contract: Contract,
        todo: Plan,
        name: str,
        previews: dict[str, DataFrame] | None = None,
    ) -> None:
        self._spark, self._contract, self._todo, self._name, self._previews = spark, contract, todo, name, previews
        self._view = contract.views[name]
        self.past = _past(contract, todo, name)
        self.kept = _kept(contract, name, self.past.epoch)
        self._upto, waits_for = self._settled() if self._view.wait else (-1, None)
        before = tables.notes(self.kept).get(self.past.kept_by, {}).get("buckets", 1)
        self._buckets = MANY if tables.size(self.kept) > LARGE else before
        self._anew = self._buckets != before
        self.read: str | None = None
        """The buckets of what is kept that this run reads and replaces, as a condition; None for all."""
        self.note = {
            "run": todo.run,
            "knownAt": todo.known_at.isoformat(),
            "epoch": self.past.epoch,
            "definition": contract.definition(name),
            "upto": self._upto,
            "buckets": self._buckets,
            "waitsFor": waits_for,
        }

    def processed(self) -> DataFrame:
        """What the view's tasks emit and keep."""
        it, counts = self._view, {i: self._partitions(i) for i in self._view.inputs}
        if len(set(counts.values())) > 1 and it.join is not None and it.join.on is None:
            told = " and ".join(f"{i} has {count}" for i, count in counts.items())
            raise RunError(
                f"the inputs of a join have different numbers of partitions: {told}",
                where=f"{self._contract.pipeline}.{self._name}",
                mend="Kafka Streams joins what is partitioned alike: give both topics as many partitions",
            )
        records = {i: self._of_topic(i) if i in self._contract.topics else self._of_view(i) for i in it.inputs}
        rows = on_spark.given(self._contract, self._name, records, counts)
        if tables.opened(self.kept) is not None:
            kept = contents.load(self._spark, self.kept)
            if self._buckets == MANY and not self._anew and self._few():
                self.read = self._touched(rows, kept)
                kept = kept.where(self.read)
            rows = rows.unionByName(kept.drop("bucket"), allowMissingColumns=True)
        return on_spark.processed(self._contract, self._name, rows, self._partitions(self._name))

    def in_buckets(self, kept: DataFrame) -> DataFrame:
        """What is kept, each row with its bucket; a bucket's rows in one task."""
        bucket = F.when(F.col("part").isin(*self._keyed()), self._bucket()).otherwise(REST)
        return kept.withColumn("bucket", bucket.cast("int")).repartition("bucket")

    def _keyed(self) -> list[str]:
        """The parts of which a run needs only those of the keys that its records have."""
        match of_view.operator(self._view):
            case "foreign_key" | "windows" | "pairs":
                return ["none"]
            case "aggregate" if self._view.stream:
                return ["aggregate"]
            case _:
                return ["store 0", "store 1"]

    def _bucket(self) -> Column:
        return F.pmod(F.xxhash64("id"), F.lit(self._buckets))

    def _few(self) -> bool:
        """Whether the run brings so few records that it is worth finding out which buckets they concern."""
        return sum(sum(share.planned.values()) for share in self._todo.topics.values()) <= FEW

    def _touched(self, rows: DataFrame, kept: DataFrame) -> str:
        """The buckets of new records, and of those that wait for their look-up."""
        waiting = kept.where((F.col("bucket") == REST) & (F.col("part") == "buffer")).select("id")
        found = rows.select("id").unionByName(waiting).select(self._bucket().alias("bucket")).distinct().collect()
        return f"bucket IN ({', '.join(str(n) for n in sorted({REST, *(row[0] for row in found)}))})"

    def told(self, done: DataFrame) -> DataFrame:
        """What is emitted, as rows of the log."""
        told = on_spark.told(self._contract, self._name, done.where("part IS NULL"))
        run, known_at = F.lit(self._todo.run).cast("long"), F.lit(self._todo.known_at)
        epoch = F.lit(self.past.epoch).alias("_epoch")
        return told.select(epoch, "*", run.alias("_run"), known_at.alias("systemFrom"))

    def _partitions(self, name: str) -> int:
        """How many partitions a topic has, or a kafka view: as many as the input that it is stored beside."""
        if name in self._contract.topics:
            return len(self._todo.topics[name].ranges)
        it = self._contract.views[name]
        if it.stream and it.join and it.join.table and it.join.on is not None:
            return self._partitions(it.join.table)
        return self._partitions(it.first)

    def _log(self, name: str, after: int = 0) -> DataFrame:
        """What a live topology would read of a topic, of the runs after `after` up to this one."""
        fates = F.col("fate").isin(*_READ)
        log = tables.log(settings().warehouse, self._contract.pipeline, name)
        there = logs.none(self._spark)
        if tables.opened(log) is not None:
            there = forgotten.remembered(redating.log(self._spark, self._contract, name, after))
        # Kafka Streams skips a record that its TimestampExtractor dates before 1970.
        readable = fates & (F.col("timestamp") >= F.timestamp_millis(F.lit(0)))
        rows = there.where(readable & F.col("run").between(after + 1, self._todo.run))
        if self._previews is None:
            return rows
        new = logs.brought(self._spark, self._contract, self._todo, name, _READ).where(readable)
        columns = [column for column in new.columns if column in rows.columns]
        return rows.select(*columns).unionByName(new.select(*columns))

    def _of_topic(self, name: str) -> DataFrame:
        topic, waits = self._contract.topics[name], self._view.wait
        log, turn = self._log(name, 0 if waits else self.past.kept_by), None
        if waits:
            turn = requeued.turn(self._spark, settings().warehouse, self._contract.pipeline, name)
        ordered = self._due(order.processing(log, list(self._contract.topics).index(name), waits=waits, turn=turn))
        rows = ordered.where("fate <> 'null_key'") if topic.read == "table" else ordered
        previews = self._previews is not None
        writers = (
            schemas.of(self._contract, name, rows) if previews else schemas.known(self._spark, self._contract, name)
        )
        decoded = decode(rows, topic, writers=writers)
        records = logs.undisputed(decoded, self._contract.kafka_topic(name))
        columns = [F.col(f"key.{c}").alias(c) for c in topic.key] + [F.col(f"value.{c}").alias(c) for c in topic.value]
        return records.select(
            "key",
            F.when(F.col("value").isNotNull(), F.struct(*columns)).alias("value"),
            "timestamp",
            "partition",
            on_spark.encoded(F.col("key"), topic.key, on_spark.keyed_as(self._contract, name)).alias("id"),
            "order",
            "headers",
            F.lit(True).alias("passes"),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
        )

    def _of_view(self, name: str) -> DataFrame:
        """What another kafka view has emitted, as records."""
        shape = shapes(self._contract)[name]
        if self._previews is not None and name in self._previews:
            rows = self._previews[name]
        else:
            log = emitted_.log(settings().warehouse, self._contract, name)
            epoch = _past(self._contract, self._todo, name).epoch
            rows = _emitted(self._spark, log, epoch, self._todo.run)
        if not self._view.wait:
            rows = rows.where(F.col("_run") > self.past.kept_by)
        rows = self._due(rows.withColumnRenamed("_order", "order"))
        key = derive.keyed({column: F.col(column) for column in shape.key})
        place = emitted_.PLACES[shape.kind][0] if shape.kind == "events" else emitted_.PLACE
        return rows.select(
            key.alias("key"),
            F.when(~F.col("_tombstone"), F.struct(*shape.columns)).alias("value"),
            "timestamp",
            F.col("_partition").alias("partition"),
            on_spark.encoded(key, shape.key, on_spark.keyed_as(self._contract, name)).alias("id"),
            "order",
            "headers",
            (~F.col("_filtered")).alias("passes"),
            *([F.col("_before").alias("before")] if name in Routes(self._contract).telling else []),
            *(F.col(column).alias(alias) for column, alias in zip(place, emitted_.PLACE, strict=True)),
        )

    def _due(self, records: DataFrame) -> DataFrame:
        """With `wait` the records that are processed in this run; else all."""
        if not self._view.wait:
            return records
        reached = F.col("order.reached")
        return records.where((reached >= self.past.upto) & (reached < self._upto))

    def _settled(self) -> tuple[int, tuple[str, int]]:
        """The time that every partition of every topic behind the view has gone past, in ms: no record of an earlier
        time will come to stand before one that is there. And the partition that it waits for: the one that is least
        far, or has no record yet.
        """
        reached = dict[tuple[str, int], int]()
        for name in (n for n in self._contract.upstream(self._name) if n in self._contract.topics):
            latest = self._log(name).groupBy("partition").agg(F.max(F.unix_millis("timestamp")))
            reached |= {(name, p): -1 for p in self._todo.topics[name].ranges}
            reached |= {(name, row[0]): row[1] for row in latest.collect()}
        least = min(reached, key=lambda place: reached[place])
        return max(self.past.upto, reached[least]), least
