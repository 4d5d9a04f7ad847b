"""The records from which a topic's table is derived: the accepted ones, without those that are held back.

Held records are not judged again unless something has changed for them: the run ingests a record of their key (for a
record held by itself: one that can change its gates' results), releases them, or has another contract, other closed
periods, or another version of a table that a gate reads. Then they count as new, like the records that the run ingests;
and where the table was redefined since a key was held, the table is derived whole.
A record that was held by itself (`hold: row`) and no longer is counts as a record of the run that released it.
"""

from __future__ import annotations

from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contract import Topic
from hindcast.contract.bound import BoundContract
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import initial_rows, schemas, topic_log, trim_ledger
from hindcast.ingest.ingest_commits import IngestedRecords
from hindcast.plan import journal
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import last_included_run
from hindcast.quality import entry_rows, held_changes, hold_decisions
from hindcast.quality.held_records import is_about_periods, record_rows
from hindcast.quality.held_units import RECORD_COLUMNS, has_row_hold
from hindcast.runs import incremental_state
from hindcast.store import tables
from hindcast.store.store_formats import INITIAL_ROW_PLACE

_PLACE = ["partition", "offset"]


def exclude_held(
    spark: SparkSession, contract: BoundContract, name: str, records: DataFrame, *, with_keys: bool = False
) -> DataFrame:
    """Return records of a topic's log without those that are currently held by themselves (`hold: row`).

    `with_keys`: and without those of held keys since these are held.
    """
    table = locate_own_table(contract, name)
    waiting = held_changes.read_held_units(spark, table.warehouse, table.pipeline, name)
    if waiting is None:
        return records
    rows = exclude_places(records, _record_places(waiting))
    if not with_keys:
        return rows
    keys = waiting.where("unit IS NULL").select(F.col("key").alias("_held"), F.col("since").alias("_since"))
    least = keys.agg(F.min("_since")).first()
    if least is None or least[0] is None:
        return rows
    topic, writers = contract.topics[name], schemas.read_schemas(spark, contract, name)
    held = rows.where((F.col("fate") == "accepted") & (F.col("run") > least[0]))
    decoded = decode_records(held, topic, writers=writers)
    same = (_format_decoded_key(topic) == F.col("_held")) & (F.col("run") > F.col("_since"))
    return exclude_places(rows, decoded.join(F.broadcast(keys), same, "left_semi").select(*_PLACE))


def _format_decoded_key(topic: Topic) -> Column:
    """Return the key of a decoded record as a JSON column."""
    return entry_rows.format_key(*(F.col("key").getField(column) for column in topic.key))


class TopicRecords:
    """The records of a topic as a run sees them: those that its table already includes, and the new ones.

    `ingested`: the records that the step has just appended to the log. `coming`: for a preview, all decoded records
    that there would be.
    """

    def __init__(
        self,
        spark: SparkSession,
        contract: BoundContract,
        plan: Plan,
        name: str,
        ingested: IngestedRecords | None = None,
        coming: DataFrame | None = None,
    ) -> None:
        self._spark, self._contract, self._plan, self._name = spark, contract, plan, name
        self._ingested, self._coming = ingested, coming
        table = self._table = locate_own_table(contract, name)
        place = table.warehouse, table.pipeline, name
        self._held_units = held_changes.read_held_units(spark, *place, before=plan.run)
        self._ended_units = held_changes.read_settled_units(spark, *place, before=plan.run)
        self._settled_run = last_included_run(
            journal.read_runs(table.warehouse, table.pipeline), tables.read_last_run(table)
        )

    @property
    def has_holds(self) -> bool:
        """True if something of the topic is held, or a record was held by itself."""
        return self._held_units is not None or self._ended_units is not None

    def has_returned_records(self, run: int) -> bool:
        """Return whether records of runs up to `run` can be among those that are new since (`read_since`)."""
        return self.has_holds and bool(self._read_returned(run))

    @cached_property
    def held_to_rejudge(self) -> DataFrame | None:
        """The held units to derive again, in the columns of `held_changes.read_held_units`; None if nothing is held."""
        return self._held_units if self._held_units is None or self.has_redefined_holds else self._touched

    @cached_property
    def has_redefined_holds(self) -> bool:
        """True if a key that is derived again was held before the table was defined otherwise.

        What the new definition changed in its earlier rows is held with it, and is in no record that has come since:
        only deriving the table whole finds it.
        """
        if self._touched is None:
            return False
        by_row = F.lit(False) if self._contract.topics[self._name].read == "stream" else F.col("unit").isNotNull()
        rows = self._touched.where(~by_row).select("since").distinct().collect()
        return any(incremental_state.was_redefined(self._contract, self._table, self._name, row[0]) for row in rows)

    @cached_property
    def _touched(self) -> DataFrame | None:
        """The held units for which something has changed by themselves; None if nothing is held."""
        if self._held_units is None or self._needs_all_held:
            return self._held_units
        ingested = self._read_ingested(self._settled_run).select(
            self._key_json().alias("_key"), F.col("timestamp").alias("_time")
        )
        same = F.col("key") == F.col("_key")
        if not self._needs_neighbours:
            # A forgetting may have cleared the row that tells when a held record began.
            began = F.col("began").cast("timestamp")
            same = same & (F.col("unit").isNull() | began.isNull() | (began == F.col("_time")))
        touched = self._held_units.join(ingested.distinct(), same, "left_semi")
        released = hold_decisions.find_released_units(self._plan, self._name, self._held_units)
        return touched.unionByName(released).distinct().localCheckpoint()

    def find_held_to_rejudge(self, *, whole: bool) -> DataFrame | None:
        """Return the held units to judge again (`HoldInputs`) when the table is derived incrementally or `whole`; whole
        derivation includes held keys, but not records that are held by themselves.
        """
        return None if whole and not has_row_hold(self._contract, self._name) else self.held_to_rejudge

    def read_all(self) -> DataFrame:
        """Return all records, decoded; held ones only if they are judged again."""
        rows = self._read_ingested(0)
        if not self.has_holds:
            return rows
        known = self._exclude_held(rows.select(*initial_rows.RECORD_COLUMNS))
        if self.held_to_rejudge is not None:
            rejudged = rows.select(*initial_rows.RECORD_COLUMNS).join(
                F.broadcast(_record_places(self.held_to_rejudge)), _PLACE, "left_semi"
            )
            known = known.unionByName(rejudged.withColumn("run", F.lit(self._plan.run).cast("long")))
        return known.localCheckpoint(eager=False)  # gates may derive it more than once

    def find_sole_ingested(self, run: int) -> IngestedRecords | None:
        """Return what the step has just ingested, if it is all that is new since `run`: nothing is held or adopted."""
        if self.has_holds or initial_rows.has_initial_rows(self._contract, self._name):
            return None
        return self._find_ingested(run)

    def read_since(self, run: int) -> DataFrame:
        """Return the records that are new to a table that run `run` updated last."""
        rows = self._read_ingested(run)
        if not self.has_holds:
            return rows
        parts = [self._exclude_held(rows.select(*initial_rows.RECORD_COLUMNS)), *self._read_returned(run)]
        if self._held_units is not None:
            keys = self._held_units.where("unit IS NULL").select(F.col("key").alias("_held"))
            parts[0] = parts[0].join(F.broadcast(keys), self._key_json() == F.col("_held"), "left_anti")
        return reduce(DataFrame.unionByName, parts).localCheckpoint(eager=False)

    def select_until(self, log: DataFrame, run: int) -> DataFrame:
        """Return the records of a topic's log that a table includes if run `run` updated it last."""
        return self._exclude_held(log).where(F.col("run") <= run)

    def select_unpublished(self, records: DataFrame, *, whole: bool) -> DataFrame:
        """Return the records that the table does not include yet: those since it was published, or since their key is
        held, if that key is derived again.
        """
        fresh, held = F.col("run") > self._settled_run, self._held_units if whole else self.held_to_rejudge
        if held is None:
            return records.where(fresh)
        keys = held.where("unit IS NULL").select(F.col("key").alias("_held"), F.col("since").alias("_since"))
        rows = records.join(F.broadcast(keys), self._key_json() == F.col("_held"), "left")
        return rows.where(fresh | (F.col("run") > F.col("_since"))).select(*records.columns)

    def are_unpublished_since(self, run: int) -> bool:
        """Return whether all records that are new since a run (`read_since`) are not included in the table yet."""
        return not self.has_holds and run >= self._settled_run

    def select_published(self, records: DataFrame) -> DataFrame | None:
        """Return the records that came before the table was published; None if it never was."""
        return records.where(F.col("run") <= self._settled_run) if self._settled_run else None

    def decode_log(self, log: DataFrame) -> DataFrame:
        """Return accepted records of the log, decoded."""
        spark, contract, name = self._spark, self._contract, self._name
        decoded = decode_records(log, contract.topics[name], writers=schemas.read_schemas(spark, contract, name))
        return topic_log.refuse_undecodable(decoded, contract.kafka_topic(name))

    def judged_rows(self, records: DataFrame) -> DataFrame:
        """Return records as rows that can be held one by one (`held_records.HoldableRecords`).

        Not adopted ones, nor those that were in force when the log was trimmed: what they replaced is gone.
        """
        records = records.where(F.col("partition") != INITIAL_ROW_PLACE)
        log = tables.log_table(self._table.warehouse, self._table.pipeline, self._name)
        if (trim := trim_ledger.read_log_trim(log)) is not None:
            records = records.where(~topic_log.is_trimmed_until(trim))
        rows = record_rows(records.withColumn("_fresh", F.col("run") > self._settled_run), self._table.key)
        return rows if self._needs_all_held else rows.where("_fresh")

    def find_released(self, judged: DataFrame) -> DataFrame:
        """Return the places (`RECORD_COLUMNS`) of records that a person released and that are unchanged since."""
        parts = [judged.select(*RECORD_COLUMNS).where("false")]
        if self._ended_units is not None:
            ended = self._ended_units.where("entry = 'released'")
            is_other = (F.col("_unit") == F.col("_heldUnit")) & (F.col("_digest") != F.col("_heldDigest"))
            changed = judged.join(_rename_units(ended), is_other, "left_semi")
            unchanged = exclude_places(_record_places(ended), changed)
            parts.append(unchanged.toDF(*RECORD_COLUMNS))
        if self._held_units is not None:
            requested = _rename_units(hold_decisions.find_released_units(self._plan, self._name, self._held_units))
            same = (F.col("_unit") == F.col("_heldUnit")) & (F.col("_digest") == F.col("_heldDigest"))
            parts.append(judged.join(requested, same, "left_semi").select(*RECORD_COLUMNS))
        released = reduce(DataFrame.unionByName, parts)
        return released if len(parts) == 1 else released.localCheckpoint()

    @cached_property
    def _needs_all_held(self) -> bool:
        """True if everything that is held is derived again, whatever the run ingests."""
        return incremental_state.needs_all_held(self._contract, self._plan, self._table)

    @property
    def _needs_neighbours(self) -> bool:
        """True if other records of its key can change a held record's gate results; otherwise only a record with the
        same time can, which replaces it.
        """
        gates = self._contract.expectations(self._name)
        return any(gate.on_failure == "quarantine" and is_about_periods(gate) for gate in gates)

    def _read_ingested(self, run: int) -> DataFrame:
        """Return the accepted records that runs after `run` ingested, decoded, held or not."""
        if self._coming is not None:
            return self._coming.where(F.col("run") > run)
        if (ingested := self._find_ingested(run)) is not None:
            return initial_rows.add_initial_rows(self._spark, self._contract, self._name, ingested.records, run)
        return self._read_log(run)

    def _find_ingested(self, run: int) -> IngestedRecords | None:
        """Return what the step has just ingested, if the log has no other accepted records of runs after `run`."""
        ingested, fates = self._ingested, tables.fates_table(self._table.warehouse, self._table.pipeline, self._name)
        is_all = ingested is not None and ingested.after <= run and tables.read_last_run(fates) <= run
        return ingested if is_all and self._coming is None else None

    def _read_log(self, run: int) -> DataFrame:
        """Return the records that `_read_ingested` returns, from the log."""
        spark, contract, name = self._spark, self._contract, self._name
        return initial_rows.add_initial_rows(
            spark, contract, name, self.decode_log(topic_log.read_accepted(spark, contract, name, run)), run
        )

    def _read_places(self, places: DataFrame) -> DataFrame:
        """Return the accepted records at some places, decoded; one can be older than the run since which it is held."""
        records = topic_log.read_accepted(self._spark, self._contract, self._name, after=0)
        return self.decode_log(records.join(F.broadcast(places), _PLACE, "left_semi")).select(
            *initial_rows.RECORD_COLUMNS
        )

    def _exclude_held(self, records: DataFrame) -> DataFrame:
        """Return records without the held ones; those no longer held get the number of the run that ended the hold."""
        rows = records if self._held_units is None else exclude_places(records, _record_places(self._held_units))
        if self._ended_units is None:
            return rows
        ended = F.broadcast(_record_places(self._ended_units, "run AS _ended"))
        own = rows.columns
        return rows.join(ended, _PLACE, "left").withColumn("run", F.greatest("run", "_ended")).select(*own)

    def _read_returned(self, run: int) -> list[DataFrame]:
        """Return records of runs up to `run` that count as new: those judged again or no longer held, and all records
        of held keys since these are held.
        """
        again = self.held_to_rejudge
        ended = None if self._ended_units is None else self._ended_units.where(F.col("run") > run)
        least = [units.agg(F.min("since")).first() for units in (again, ended) if units is not None]
        since = min((row[0] for row in least if row and row[0] is not None), default=None)
        if since is None:
            return []
        log, parts = self._read_log(since).select(*initial_rows.RECORD_COLUMNS), []
        if again is not None:
            records = self._read_places(_record_places(again))
            parts.append(records.withColumn("run", F.lit(self._plan.run).cast("long")))
            keys = again.where("unit IS NULL").select(F.col("key").alias("_held"), F.col("since").alias("_since"))
            own = log.join(F.broadcast(keys), self._key_json() == F.col("_held"))
            parts.append(own.where(F.col("run") > F.col("_since")).select(*initial_rows.RECORD_COLUMNS))
        if ended is not None:
            runs = F.broadcast(_record_places(ended, "run AS _run"))
            older = self._read_places(_record_places(ended)).where(F.col("run") <= run).join(runs, _PLACE)
            parts.append(older.withColumn("run", F.col("_run")).select(*initial_rows.RECORD_COLUMNS))
        return parts

    def _key_json(self) -> Column:
        return _format_decoded_key(self._contract.topics[self._name])


def _rename_units(units: DataFrame) -> DataFrame:
    """Return held units by names that no column of a table can have: `_heldUnit` and `_heldDigest`."""
    return units.select(F.col("unit").alias("_heldUnit"), F.col("digest").alias("_heldDigest"))


def _record_places(units: DataFrame, *others: str) -> DataFrame:
    """Return the places of records that are held by themselves: `partition`, `offset`, and `others` (SQL)."""
    rows = units.where("unit IS NOT NULL")
    place = [F.get_json_object("unit", f"$.{column}") for column in RECORD_COLUMNS]
    types = zip(_PLACE, place, ("int", "long"), strict=True)
    return rows.select(*(value.cast(kind).alias(name) for name, value, kind in types), *map(F.expr, others))


def exclude_places(records: DataFrame, places: DataFrame) -> DataFrame:
    """Return records without those at some places, given as `partition` and `offset` or as `RECORD_COLUMNS`."""
    if RECORD_COLUMNS[0] in places.columns:
        places = places.select(
            *(F.col(column).alias(name) for name, column in zip(_PLACE, RECORD_COLUMNS, strict=True))
        )
    return records.join(F.broadcast(places), _PLACE, "left_anti").select(*records.columns)
