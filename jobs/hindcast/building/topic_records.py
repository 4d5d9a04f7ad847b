"""The records of which a topic's table is derived: those that are accepted, without what is held back.

What is held is not looked at again, unless something has changed for it: the run brings a record of its key (of a
record that is held by itself: one that can change what gates say of it) or releases it, or the contract or a table that
a gate looks into is another. Then what is held is as new as what the run brings; and where the table was defined
otherwise since it is held, the table is derived whole.
A record that was held by itself (`hold: row`) and is no more is of the run that let it pass.
"""

from __future__ import annotations

from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.building import last_seen
from hindcast.contracts import Contract
from hindcast.delta import tables
from hindcast.formats.decode import decode
from hindcast.planning import journal
from hindcast.planning.inputs import located
from hindcast.planning.plans import Plan
from hindcast.quality import holding, holds
from hindcast.quality.row_holds import is_about_periods, record_rows
from hindcast.quality.units import RECORD, holds_rows
from hindcast.replay import base, logs, schemas
from hindcast.replay.claims import Claimed

_PLACE = ["partition", "offset"]


def without_held(spark: SparkSession, contract: Contract, name: str, records: DataFrame) -> DataFrame:
    """Return records of a topic's log without those that are held now (`hold: row`)."""
    table = located(contract, name)
    waiting = holds.waiting(spark, table.warehouse, table.pipeline, name)
    return records if waiting is None else left(records, _places(waiting))


class TopicRecords:
    """The records of a topic as a run finds them: what its table has seen, and what the run brings.

    `claimed`: what the step has just appended to the log. `coming`: of a preview, all decoded records there would be.
    """

    def __init__(
        self,
        spark: SparkSession,
        contract: Contract,
        todo: Plan,
        name: str,
        claimed: Claimed | None = None,
        coming: DataFrame | None = None,
    ) -> None:
        self._spark, self._contract, self._todo, self._name = spark, contract, todo, name
        self._claimed, self._coming = claimed, coming
        table = self._table = located(contract, name)
        place = table.warehouse, table.pipeline, name
        self._waiting = holds.waiting(spark, *place, before=todo.run)
        self._ended = holds.read_settled_units(spark, *place, before=todo.run)
        self._settled = journal.settled(journal.runs(table.warehouse, table.pipeline), tables.published(table))

    @cached_property
    def again(self) -> DataFrame | None:
        """What is held and has to be derived anew, in the columns of `holds.waiting`; None where nothing is held."""
        return self._waiting if self._waiting is None or self.redefines else self._touched

    @cached_property
    def redefines(self) -> bool:
        """Whether something of what is derived anew is held since before the table was defined otherwise. What that has
        changed of rows of before is held with it, and stands in no record that has come since: only the whole tells.
        """
        if self._touched is None:
            return False
        apart = F.lit(False) if self._contract.topics[self._name].read == "stream" else F.col("unit").isNotNull()
        rows = self._touched.where(~apart).select("since").distinct().collect()
        return any(last_seen.redefined(self._contract, self._table, self._name, row[0]) for row in rows)

    @cached_property
    def _touched(self) -> DataFrame | None:
        """Return what is held of `again` for its own sake."""
        if self._waiting is None or self._judges_all:
            return self._waiting
        brought = self._brought(self._settled).select(self._key().alias("_key"), F.col("timestamp").alias("_time"))
        same = F.col("key") == F.col("_key")
        if not self._judges_neighbours:
            same = same & (F.col("unit").isNull() | (F.col("began").cast("timestamp") == F.col("_time")))
        touched = self._waiting.join(brought.distinct(), same, "left_semi")
        released = holding.released_units(self._todo, self._name, self._waiting)
        return touched.unionByName(released).distinct().localCheckpoint()

    def again_of(self, *, whole: bool) -> DataFrame | None:
        """Return what `Judged` has as `again` of a table that is derived by increments or `whole`: held keys are then
        among what is derived, single records are not.
        """
        return None if whole and not holds_rows(self._contract, self._name) else self.again

    def all(self) -> DataFrame:
        """Return all records, those without which the table was derived only where they are looked at again."""
        rows = self._brought(0)
        if self._waiting is None and self._ended is None:
            return rows
        known = self._known(rows.select(*base.COLUMNS))
        if self.again is not None:
            anew = rows.select(*base.COLUMNS).join(F.broadcast(_places(self.again)), _PLACE, "left_semi")
            known = known.unionByName(anew.withColumn("run", F.lit(self._todo.run).cast("long")))
        return known.localCheckpoint(eager=False)  # gates may have it derived more than once

    def since(self, run: int) -> DataFrame:
        """Return the records that a table lacks which was brought up to date by a run."""
        rows = self._brought(run)
        if self._waiting is None and self._ended is None:
            return rows
        parts = [self._known(rows.select(*base.COLUMNS)), *self._returned(run)]
        if self._waiting is not None:
            keys = self._waiting.where("unit IS NULL").select(F.col("key").alias("_held"))
            parts[0] = parts[0].join(F.broadcast(keys), self._key() == F.col("_held"), "left_anti")
        return reduce(DataFrame.unionByName, parts).localCheckpoint(eager=False)

    def upto(self, log: DataFrame, run: int) -> DataFrame:
        """Return of a topic's log what a table has seen which was brought up to date by a run."""
        return self._known(log).where(F.col("run") <= run)

    def unpublished(self, records: DataFrame, *, whole: bool) -> DataFrame:
        """Return those of some records that the table has not had yet: they came since it was published, or since their
        key is held, where that is derived anew.
        """
        fresh, held = F.col("run") > self._settled, self._waiting if whole else self.again
        if held is None:
            return records.where(fresh)
        keys = held.where("unit IS NULL").select(F.col("key").alias("_held"), F.col("since").alias("_since"))
        rows = records.join(F.broadcast(keys), self._key() == F.col("_held"), "left")
        return rows.where(fresh | (F.col("run") > F.col("_since"))).select(*records.columns)

    def published(self, records: DataFrame) -> DataFrame | None:
        """Return those of some records that came before the table was published; None where it never was."""
        return records.where(F.col("run") <= self._settled) if self._settled else None

    def decoded(self, log: DataFrame) -> DataFrame:
        """Return accepted records of the log, decoded."""
        spark, contract, name = self._spark, self._contract, self._name
        decoded = decode(log, contract.topics[name], writers=schemas.known(spark, contract, name))
        return logs.undisputed(decoded, contract.kafka_topic(name))

    def judged(self, records: DataFrame) -> DataFrame:
        """Return records as rows that may be held one by one (`row_holds.Records`)."""
        rows = record_rows(records.withColumn("_fresh", F.col("run") > self._settled), self._table.key)
        return rows if self._judges_all else rows.where("_fresh")

    def released(self, judged: DataFrame) -> DataFrame:
        """Return the records (`RECORD`) that a person has let pass, before or in this run, if they are as they were."""
        parts = [judged.select(*RECORD).where("false")]
        if self._ended is not None:
            parts.append(_as_record(_places(self._ended.where("entry = 'released'"))))
        if self._waiting is not None:
            asked = holding.released_units(self._todo, self._name, self._waiting).select("unit", "digest")
            same = (F.col("_unit") == F.col("unit")) & (F.col("_digest") == F.col("digest"))
            parts.append(judged.join(asked, same, "left_semi").select(*RECORD))
        released = reduce(DataFrame.unionByName, parts)
        return released if len(parts) == 1 else released.localCheckpoint()

    @cached_property
    def _judges_all(self) -> bool:
        """Whether all that is held is derived anew, whatever the run brings."""
        named = self._name in (self._todo.only, self._todo.upgraded)
        return named or last_seen.changed_for_gates(self._contract, self._todo, self._table, self._settled)

    @property
    def _judges_neighbours(self) -> bool:
        """Whether a gate may judge a held record otherwise when others of its key come; else only one of its time does,
        which takes its place.
        """
        gates = self._contract.expectations(self._name)
        return any(gate.on_failure == "quarantine" and is_about_periods(gate) for gate in gates)

    def _brought(self, run: int) -> DataFrame:
        """Return the accepted records that runs after `run` brought, decoded, held or not."""
        if self._coming is not None:
            return self._coming.where(F.col("run") > run)
        claimed, entered = self._claimed, tables.fates(self._table.warehouse, self._table.pipeline, self._name)
        if claimed is not None and claimed.after <= run and tables.published(entered) <= run:
            return base.united(self._spark, self._contract, self._name, claimed.records, run)
        return self._decoded(run)

    def _decoded(self, run: int) -> DataFrame:
        """Return the same from the log."""
        spark, contract, name = self._spark, self._contract, self._name
        return base.united(spark, contract, name, self.decoded(logs.accepted(spark, contract, name, run)), run)

    def _decoded_at(self, places: DataFrame) -> DataFrame:
        """Return the accepted records of some places: one may be older than the run since which it is held."""
        records = logs.accepted(self._spark, self._contract, self._name, after=0)
        return self.decoded(records.join(F.broadcast(places), _PLACE, "left_semi")).select(*base.COLUMNS)

    def _known(self, records: DataFrame) -> DataFrame:
        """Return records without those that are held, and those that no longer are as of the run that said so."""
        rows = records if self._waiting is None else left(records, _places(self._waiting))
        if self._ended is None:
            return rows
        ended = F.broadcast(_places(self._ended, "run AS _ended"))
        own = rows.columns
        return rows.join(ended, _PLACE, "left").withColumn("run", F.greatest("run", "_ended")).select(*own)

    def _returned(self, run: int) -> list[DataFrame]:
        """Return the records of runs up to `run` that are as new as those after it, and all that has come of keys since
        they are held.
        """
        again = self.again
        ended = None if self._ended is None else self._ended.where(F.col("run") > run)
        least = [part.agg(F.min("since")).first() for part in (again, ended) if part is not None]
        since = min((row[0] for row in least if row and row[0] is not None), default=None)
        if since is None:
            return []
        log, found = self._decoded(since).select(*base.COLUMNS), []
        if again is not None:
            anew = self._decoded_at(_places(again))
            found.append(anew.withColumn("run", F.lit(self._todo.run).cast("long")))
            keys = again.where("unit IS NULL").select(F.col("key").alias("_held"), F.col("since").alias("_since"))
            own = log.join(F.broadcast(keys), self._key() == F.col("_held"))
            found.append(own.where(F.col("run") > F.col("_since")).select(*base.COLUMNS))
        if ended is not None:
            runs = F.broadcast(_places(ended, "run AS _run"))
            older = self._decoded_at(_places(ended)).where(F.col("run") <= run).join(runs, _PLACE)
            found.append(older.withColumn("run", F.col("_run")).select(*base.COLUMNS))
        return found

    def _key(self) -> Column:
        """The key of a decoded record as JSON."""
        return holds.keyed(*(F.col("key").getField(column) for column in self._contract.topics[self._name].key))


def _places(units: DataFrame, *besides: str) -> DataFrame:
    """Return the places of single records among what is held: `partition` and `offset`, and other columns."""
    rows = units.where("unit IS NOT NULL")
    place = [F.get_json_object("unit", f"$.{column}") for column in RECORD]
    types = zip(_PLACE, place, ("int", "long"), strict=True)
    return rows.select(*(value.cast(kind).alias(name) for name, value, kind in types), *map(F.expr, besides))


def _as_record(places: DataFrame) -> DataFrame:
    return places.select(*(F.col(name).alias(column) for name, column in zip(_PLACE, RECORD, strict=True)))


def left(records: DataFrame, places: DataFrame) -> DataFrame:
    """Return records without those of some places: `partition` and `offset`, or `RECORD`."""
    if RECORD[0] in places.columns:
        places = places.select(*(F.col(column).alias(name) for name, column in zip(_PLACE, RECORD, strict=True)))
    return records.join(F.broadcast(places), _PLACE, "left_anti").select(*records.columns)
