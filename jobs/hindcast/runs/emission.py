"""The records that a kafka view emits in a run, appended to its log as to an output topic; and its operator's state.

| column of `emitted/<view>` | type | |
| --- | --- | --- |
| _epoch | int | counts the definitions of the view: each one starts the log from scratch |
| _partition, _offset | int, bigint | the place in the output: each partition in the order of emission |
| the view's columns, timestamp | | as in its table; of a tombstone all but the key's are null |
| windowStart, windowEnd | timestamp | of windows |
| headers | array | copied from one of the input records (docs/kafka-parity.md); null: none |
| _tombstone, _filtered | boolean | it ends its key; because the value does not pass the view's condition |
| _before | struct | the value before it, for tables that are processed depth first (contract/routes.py) |
| _order | struct | the place in processing order (bitemporal/processing_order.py): the causing record, and its turn |
| _causeTopic, _causePartition, _causeOffset | | that record |
| _sourcePartition, _sourceOffset | int, bigint | the event that it is about (events, pairs) |
| _rightPartition, _rightOffset | int, bigint | the other one (pairs) |
| _run, systemFrom | bigint, timestamp | the run that emitted it, and its known-at |

The state is stored in `kept/<view>/<epoch>`, with the columns of `streams/task_rows.py`. Stores by key are in buckets,
so that a run reads and replaces only those of its keys; everything else (stream times, waiting records, windows) is in
one bucket that each run replaces.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, processing_order
from hindcast.common.errors import RunError
from hindcast.contract import list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.contract.routes import Routes
from hindcast.contract.shapes import PLACE_COLUMNS, SOURCE_PLACES
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import erasure_marks, requeued_records, retimestamping, schemas, topic_log, topic_segments
from hindcast.plan import journal
from hindcast.plan.plans import Plan
from hindcast.runs import emission_progress
from hindcast.store import commit_history, commits, row_reader, schema_evolution, table_creation, tables
from hindcast.store import emitted_log as emitted_
from hindcast.store.commit_notes import EmissionNote
from hindcast.store.tables import Table
from hindcast.streams import spark_adapter, spec_of_view

READ_FATES = ("accepted", "expired", "null_key")
"""The fates of records that a live topology would read; what is expired each store decides for itself."""


def emit_view(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> None:
    """Process what is new for a kafka view, unless this run has done so.

    Two commits, each made once: the emitted records are appended, then the state is replaced. Raise RunError if the
    inputs of a join have different numbers of partitions, or for a record on which Kafka Streams fails.
    """
    log = emitted_.emitted_table(contract.warehouse, contract, name)
    after, step = tables.read_last_run(log), EmissionStep(spark, contract, plan, name)
    if step.past.state_run < step.past.emitted_run:  # a run was abandoned between its two commits
        emit_view(spark, contract, _read_plan(contract, name, step.past.emitted_run), name)
        step = EmissionStep(spark, contract, plan, name)
    if step.past.state_run < plan.run:
        if not step.past.emitted_run and 0 < after < plan.run:  # a run that has emitted was not refused
            emission_progress.refuse_restart(contract, name)
        done = step.process_records().localCheckpoint(eager=False)
        rows = step.log_rows(done)
        schema_evolution.ensure_columns(spark, log, table_creation.make_nullable(rows.schema), plan.known_at, plan.run)
        commits.append_rows(rows, log, plan.run, step.note.as_json(), after=after)
        state = step.add_buckets(done.where("part IS NOT NULL").drop("order"))
        table_creation.ensure_table(step.state, table_creation.make_nullable(state.schema))
        commits.replace_rows(state, step.state, plan.run, step.note.as_json(), step.read)


def read_epoch(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> DataFrame:
    """Return all records that a kafka view has emitted in its epoch, up to a run that has emitted (`emit_view`)."""
    log = emitted_.emitted_table(contract.warehouse, contract, name)
    return _read_emitted(spark, log, emission_progress.read_progress(contract, plan, name).epoch, plan.run)


def _read_emitted(spark: SparkSession, log: Table, epoch: int, run: int) -> DataFrame:
    """Return what a view has emitted in an epoch, up to a run."""
    return row_reader.load_rows(spark, log).where((F.col("_epoch") == epoch) & (F.col("_run") <= run))


def preview_emission(
    spark: SparkSession, contract: BoundContract, plan: Plan, name: str, previews: dict[str, DataFrame]
) -> DataFrame:
    """Return all that a kafka view would have emitted after a run; nothing is written.

    `previews`: the same for the kafka views that it is derived from.
    """
    step = EmissionStep(spark, contract, plan, name, previews)
    log, rows = emitted_.emitted_table(contract.warehouse, contract, name), step.log_rows(step.process_records())
    if not step.past.emitted_run:
        if tables.read_last_run(log):
            emission_progress.refuse_restart(contract, name)
        return rows
    return _read_emitted(spark, log, step.past.epoch, step.past.state_run).unionByName(rows)


def _read_plan(contract: BoundContract, name: str, run: int) -> Plan:
    """Return the plan of a run that has emitted; raise RunError if the journal lacks it."""
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    plan = next((entry.plan for entry in past if entry.number == run), None)
    if plan is None:
        found, where = f"run {run} has emitted records, but the journal lacks it", f"{contract.pipeline}.{name}"
        raise RunError(found, where=where, fix=f"hindcast ledger {contract.pipeline} --rebuild")
    return plan


STATE_BUCKETS, BUCKETED_FROM_ROWS, MAX_FEW_RECORDS, REST_BUCKET = 64, 200_000, 20_000, -1
"""The number of buckets of state by key; the rows from which on there are buckets; up to how many new records a run
reads only the buckets that it needs; and the bucket of all other state.
"""


class EmissionStep:
    """The processing of a kafka view in a run; with `previews`, what its inputs would have emitted, only a preview."""

    def __init__(
        self,
        spark: SparkSession,
        contract: BoundContract,
        plan: Plan,
        name: str,
        previews: dict[str, DataFrame] | None = None,
    ) -> None:
        self._spark, self._contract, self._plan, self._name, self._previews = spark, contract, plan, name, previews
        self._view = contract.views[name]
        self.past = emission_progress.read_progress(contract, plan, name, previews or ())
        self.state = emission_progress.state_table(contract, name, self.past.epoch)
        self._upto, waits_for = self._find_settled_time() if self._view.wait else (-1, None)
        state_note = commit_history.read_notes(self.state, EmissionNote.from_json).get(self.past.state_run)
        before = state_note.buckets if state_note else 1
        self._buckets = STATE_BUCKETS if tables.count_rows(self.state) > BUCKETED_FROM_ROWS else before
        self._rebuckets = self._buckets != before
        self.read: str | None = None
        """The buckets of state that this run reads and replaces, as a SQL condition; None for all."""
        definition = self.past.epoch, contract.hash_definition(name)
        identity = plan.run, plan.known_at.isoformat(), *definition
        self.note = EmissionNote(*identity, self._upto, self._buckets, waits_for, self.past.sources)

    def process_records(self) -> DataFrame:
        """Return what the view's tasks emit and their state."""
        view, counts = self._view, {i: self._count_partitions(i) for i in self._view.inputs}
        if len(set(counts.values())) > 1 and view.join is not None and view.join.on is None:
            described = " and ".join(f"{i} has {count}" for i, count in counts.items())
            raise RunError(
                f"the inputs of a join have different numbers of partitions: {described}",
                where=f"{self._contract.pipeline}.{self._name}",
                fix="Kafka Streams joins only co-partitioned topics: give both topics the same number of partitions",
            )
        records = {i: self._read_topic(i) if i in self._contract.topics else self._read_view(i) for i in view.inputs}
        rows = spark_adapter.build_task_rows(self._contract, self._name, records, counts)
        if tables.open_table(self.state) is not None:
            state = row_reader.load_rows(self._spark, self.state)
            if self._buckets == STATE_BUCKETS and not self._rebuckets and self._has_few_records():
                self.read = self._find_touched_buckets(rows, state)
                state = state.where(self.read)
            rows = rows.unionByName(state.drop("bucket"), allowMissingColumns=True)
        return spark_adapter.process_tasks(self._contract, self._name, rows, self._count_partitions(self._name))

    def add_buckets(self, state: DataFrame) -> DataFrame:
        """Return state with a column `bucket`; the rows of a bucket are in one task."""
        bucket = F.when(F.col("part").isin(*self._list_keyed_parts()), self._bucket()).otherwise(REST_BUCKET)
        return state.withColumn("bucket", bucket.cast("int")).repartition("bucket")

    def _list_keyed_parts(self) -> list[str]:
        """Return the parts of state of which a run needs only the rows of its records' keys."""
        match spec_of_view.operator_kind(self._view):
            case "foreign_key" | "windows" | "pairs":
                return ["none"]
            case "aggregate" if self._view.stream:
                return ["aggregate"]
            case _:
                return ["store 0", "store 1"]

    def _bucket(self) -> Column:
        return F.pmod(F.xxhash64("id"), F.lit(self._buckets))

    def _has_few_records(self) -> bool:
        """Return whether the run ingests so few records that finding their buckets is worthwhile."""
        return (
            sum(sum(topic_plan.planned_counts.values()) for topic_plan in self._plan.topics.values()) <= MAX_FEW_RECORDS
        )

    def _find_touched_buckets(self, rows: DataFrame, state: DataFrame) -> str:
        """Return a SQL condition for the buckets of new records and of records that wait for their look-up."""
        waiting = state.where((F.col("bucket") == REST_BUCKET) & (F.col("part") == "buffer")).select("id")
        buckets = rows.select("id").unionByName(waiting).select(self._bucket().alias("bucket")).distinct().collect()
        return f"bucket IN ({', '.join(str(n) for n in sorted({REST_BUCKET, *(row[0] for row in buckets)}))})"

    def log_rows(self, done: DataFrame) -> DataFrame:
        """Return what the tasks emitted as rows of the log."""
        rows = spark_adapter.build_log_rows(self._contract, self._name, done.where("part IS NULL"))
        run, known_at = F.lit(self._plan.run).cast("long"), F.lit(self._plan.known_at)
        epoch = F.lit(self.past.epoch).alias("_epoch")
        return rows.select(epoch, "*", run.alias("_run"), known_at.alias("systemFrom"))

    def _count_partitions(self, name: str) -> int:
        """Return the partition count of a topic, or of a kafka view: that of the input that it is partitioned like.

        Of another view as it was when that emitted last.
        """
        if name in self._contract.topics:
            return len(self._plan.topics[name].ranges)
        view = self._contract.views[name]
        is_like_table = view.stream and view.join and view.join.table and view.join.on is not None
        source = view.join.table if is_like_table and view.join and view.join.table else view.first_input
        if name != self._name and name not in (self._previews or ()):
            log = emitted_.emitted_table(self._contract.warehouse, self._contract, name)
            note = emitted_.read_last_note(log, self._plan.run)
            if source in self._contract.topics and note is not None and note.sources is not None:
                return note.sources[source]
        return self._count_partitions(source)

    def _read_log(self, name: str, after: int = 0) -> DataFrame:
        """Return the records of a topic that a live topology would read, of runs after `after` up to this one."""
        fates = F.col("fate").isin(*READ_FATES)
        log = tables.log_table(self._contract.warehouse, self._contract.pipeline, name)
        stored = topic_log.empty_records(self._spark)
        if tables.open_table(log) is not None:
            stored = erasure_marks.exclude_forgotten(retimestamping.read_log(self._spark, self._contract, name, after))
        # Kafka Streams skips records that its TimestampExtractor dates before 1970.
        readable = fates & (F.col("timestamp") >= F.timestamp_millis(F.lit(0)))
        rows = stored.where(readable & F.col("run").between(after + 1, self._plan.run))
        if self._previews is None:
            return rows
        new = topic_segments.read_planned_by_fate(self._spark, self._contract, self._plan, name, READ_FATES).where(
            readable
        )
        columns = [column for column in new.columns if column in rows.columns]
        return rows.select(*columns).unionByName(new.select(*columns))

    def _read_topic(self, name: str) -> DataFrame:
        """Return the due records of a topic, decoded, as input rows of tasks."""
        topic, waits = self._contract.topics[name], self._view.wait
        log, turn = self._read_log(name, 0 if waits else self.past.state_run), None
        if waits:
            turn = requeued_records.requeue_turn(self._spark, self._contract.warehouse, self._contract.pipeline, name)
        ordered = self._select_due(
            processing_order.add_processing_order(log, list(self._contract.topics).index(name), waits=waits, turn=turn)
        )
        rows = ordered.where("fate <> 'null_key'") if topic.read == "table" else ordered
        if self._previews is None:
            writers = schemas.read_schemas(self._spark, self._contract, name)
        else:
            writers = schemas.resolve_schemas(self._contract, name, rows)
        decoded = decode_records(rows, topic, writers=writers)
        records = topic_log.refuse_undecodable(decoded, self._contract.kafka_topic(name))
        columns = [F.col(f"key.{c}").alias(c) for c in topic.key] + [F.col(f"value.{c}").alias(c) for c in topic.value]
        return records.select(
            "key",
            F.when(F.col("value").isNotNull(), F.struct(*columns)).alias("value"),
            "timestamp",
            "partition",
            spark_adapter.encode_key(F.col("key"), topic.key, spark_adapter.key_encoding(self._contract, name)).alias(
                "id"
            ),
            "order",
            "headers",
            F.lit(True).alias("passes"),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
        )

    def _read_view(self, name: str) -> DataFrame:
        """Return what another kafka view has emitted, as input rows of tasks."""
        shape = list_shapes(self._contract)[name]
        if self._previews is not None and name in self._previews:
            rows = self._previews[name]
        else:
            log = emitted_.emitted_table(self._contract.warehouse, self._contract, name)
            epoch = emission_progress.read_emitted_epoch(self._contract, name, self._plan.run)
            rows = _read_emitted(self._spark, log, epoch, self._plan.run)
        if not self._view.wait:
            rows = rows.where(F.col("_run") > self.past.state_run)
        rows = self._select_due(rows.withColumnRenamed("_order", "order"))
        key = derivation.key_struct({column: F.col(column) for column in shape.key})
        place = SOURCE_PLACES[shape.kind][0] if shape.kind == "events" else PLACE_COLUMNS
        return rows.select(
            key.alias("key"),
            F.when(~F.col("_tombstone"), F.struct(*shape.columns)).alias("value"),
            "timestamp",
            F.col("_partition").alias("partition"),
            spark_adapter.encode_key(key, shape.key, spark_adapter.key_encoding(self._contract, name)).alias("id"),
            "order",
            "headers",
            (~F.col("_filtered")).alias("passes"),
            *([F.col("_before").alias("before")] if name in Routes(self._contract).telling else []),
            *(F.col(column).alias(alias) for column, alias in zip(place, PLACE_COLUMNS, strict=True)),
        )

    def _select_due(self, records: DataFrame) -> DataFrame:
        """Return the records to process in this run: all of them, or with `wait` those that are settled."""
        if not self._view.wait:
            return records
        reached = F.col("order.reached")
        return records.where((reached >= self.past.upto) & (reached < self._upto))

    def _find_settled_time(self) -> tuple[int, tuple[str, int]]:
        """Return the time (ms) that every partition of every topic behind the view has passed, so that no record will
        be ordered before it any more; and the partition that the view waits for: the one that is least far, or has no
        record yet.
        """
        reached = dict[tuple[str, int], int]()
        for name in (n for n in self._contract.list_upstream(self._name) if n in self._contract.topics):
            latest = self._read_log(name).groupBy("partition").agg(F.max(F.unix_millis("timestamp")))
            reached |= {(name, p): -1 for p in self._plan.topics[name].ranges}
            reached |= {(name, row[0]): row[1] for row in latest.collect()}
        least = min(reached, key=lambda place: reached[place])
        return max(self.past.upto, reached[least]), least
