"""The failing rows that gates found and held back: those go that hold what is forgotten, or may be derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contract.bound import BoundContract
from hindcast.ops.erase import row_removal
from hindcast.ops.erase.erased_rows import ErasedRows
from hindcast.ops.erase.records import ErasureRequest
from hindcast.ops.erase.texts import ForgottenTexts
from hindcast.plan.plans import Plan
from hindcast.quality import entry_rows, failing_rows, held_changes
from hindcast.quality.held_units import RECORD_COLUMNS
from hindcast.store import row_reader, tables


class FailingEntries:
    """The entries of a pipeline's table of failing rows; `erased_records`: the records that go (`read_records`)."""

    def __init__(
        self,
        spark: SparkSession,
        contract: BoundContract,
        request: ErasureRequest,
        plan: Plan,
        erased_records: DataFrame,
        erased: ErasedRows,
        texts: ForgottenTexts,
    ) -> None:
        self._spark, self._contract, self._request, self._plan = spark, contract, request, plan
        self._records, self._erased, self._texts = erased_records, erased, texts
        self.table = failing_rows.failing_table(contract.warehouse, contract.pipeline)

    @property
    def _is_earlier(self) -> Column:
        """The condition for entries of earlier runs about views that are, or were, made of the topic."""
        return F.col("table").isin(*self._texts.views) & (F.col("run") < self._plan.run)

    def remove_found(self, touched: Sequence[str]) -> None:
        """Remove what gates found, and held back, of the records and keys that go.

        `touched`: the tables with such rows. Of views, also what gates found in earlier runs of any key: it may never
        have been published, and nobody knows what it was derived from. Held entries of other keys stay, without the
        rows that contain a text to be forgotten.
        """
        if tables.open_table(self.table) is None:
            return
        rows = row_reader.load_rows(self._spark, self.table)
        at = self._records.select("topic", F.col("topicPartition").alias("partition"), "offset")
        parts = [rows.join(at.distinct(), ["topic", "partition", "offset"], "left_semi").select(*rows.columns)]
        parts.append(rows.where(self._is_earlier & F.col("entry").isin("stopped", "warned")))
        for name in touched:
            own = self._erased.table(name).key
            keys = (
                self._erased.find_rows(name)
                .select(F.lit(name).alias("table"), entry_rows.format_row_key(own).alias("key"))
                .distinct()
            )
            parts.append(rows.join(keys, ["table", "key"], "left_semi").select(*rows.columns))
        if "unit" in rows.columns:  # entries of held records have only the place
            place = F.col("partition").alias(RECORD_COLUMNS[0]), F.col("offset").alias(RECORD_COLUMNS[1])
            units = (
                self._records.select(*place).select(entry_rows.format_row_key(RECORD_COLUMNS).alias("unit")).distinct()
            )
            views = [name for name in touched if self._erased.has_records_of_topic(name)]
            of_these = rows.where(F.col("table").isin(self._request.topic, *views))
            parts.append(of_these.join(units, "unit", "left_semi").select(*rows.columns))
        entries = reduce(DataFrame.unionByName, parts).distinct().localCheckpoint()
        row_removal.remove_rows(entries, self.table, rows.columns, self._plan.run)
        if self._texts.search_terms:  # another key is held all the same, without the row
            texts = self._spark.createDataFrame([[text] for text in sorted(self._texts.search_terms)], "_text string")
            others = row_reader.load_rows(self._spark, self.table).where(F.col("table").isin(*touched))
            named = others.join(F.broadcast(texts), F.contains("row", "_text"), "left_semi").localCheckpoint()
            row_removal.clear_column(named, self.table, "row", self._plan.run)

    def remove_unheld(self) -> None:
        """Remove what was held of these records and stands in no table, now that all is derived without them.

        What of a key is not held as it was any more was made of them. What is known of a key that has ended before,
        goes if no row has the key: in views if an earlier run entered it, in the topic if the key says what they said.
        """
        if tables.open_table(self.table) is None:
            return
        entries = row_reader.load_rows(self._spark, self.table)
        unit = F.col("unit") if "unit" in entries.columns else F.lit(None).cast("string")
        entries = entries.withColumn("_unit", unit)
        found = [self._unheld(name, entries.where(F.col("table") == name)) for name in self._erased.tables]
        every = reduce(DataFrame.unionByName, found).drop("_unit").distinct().localCheckpoint()
        row_removal.remove_rows(every, self.table, every.columns, self._plan.run)

    def _unheld(self, name: str, entries: DataFrame) -> DataFrame:
        """Return of the entries of a table those that go (`remove_unheld`)."""
        now, before = (self._held(name, upto) for upto in (None, self._plan.run))
        own, was = F.struct("key", "_unit"), F.col("run") < self._plan.run
        there = own.eqNullSafe(F.struct("_heldKey", "_heldUnit"))
        anew = entries.where(~was & (F.col("entry") == "held")).select(own.alias("_own")).distinct()
        ended = entries.join(F.broadcast(before), there, "left_semi").join(F.broadcast(now), there, "left_anti")
        changed = entries.where(was).join(F.broadcast(before), there, "left_semi")
        changed = changed.join(F.broadcast(anew), own.eqNullSafe(F.col("_own")), "left_semi")
        settled = entries.join(F.broadcast(now), F.col("key") == F.col("_heldKey"), "left_anti").where(
            "key IS NOT NULL"
        )
        is_view = name != self._request.topic
        settled = settled.where(was) if is_view else settled
        keys = [row[0] for row in settled.select("key").distinct().collect()]
        keys = [key for key in keys if is_view or self._texts.said_in(key)]
        said = self._spark.createDataFrame([[key] for key in keys], "_key string")
        table = self._erased.table(name)
        if keys and tables.open_table(table) is not None:
            rows = row_reader.load_rows(self._spark, table).select(entry_rows.format_row_key(table.key).alias("_key"))
            said = said.join(rows, "_key", "left_anti")
        gone = settled.join(F.broadcast(said), F.col("key") == F.col("_key"), "left_semi")
        return reduce(DataFrame.unionByName, (ended, changed, gone))

    def _held(self, name: str, before: int | None) -> DataFrame:
        """Return what is held of a table, or was before a run: `_heldKey`, `_heldUnit`."""
        place = self._contract.warehouse, self._contract.pipeline
        found = held_changes.read_held_units(self._spark, *place, name, before=before)
        if found is None:
            return self._spark.createDataFrame([], "_heldKey string, _heldUnit string")
        return found.select(F.col("key").alias("_heldKey"), F.col("unit").alias("_heldUnit"))

    def clear_samples(self, *, derived: bool) -> None:
        """Remove the rows of views from entries of earlier runs, which may say what was derived from the records.

        If all tables were `derived` again, those of what is still held as it was then stay: they are made of the rest.
        """
        if tables.open_table(self.table) is None:
            return
        entries = row_reader.load_rows(self._spark, self.table)
        samples = entries.where(self._is_earlier & F.col("row").isNotNull())
        place = self._contract.warehouse, self._contract.pipeline
        for name in self._erased.tables if derived else ():
            held = held_changes.read_held_units(self._spark, *place, name)
            if held is not None:
                columns = ("key", "digest", *(("unit",) if "unit" in entries.columns else ()))
                same = reduce(Column.__and__, (F.col(f"_{c}").eqNullSafe(F.col(c)) for c in columns))
                same &= (F.col("table") == name) & (F.col("entry") == "held")
                units = held.select(*(F.col(c).alias(f"_{c}") for c in columns))
                samples = samples.join(F.broadcast(units), same, "left_anti")
        row_removal.clear_column(samples.localCheckpoint(), self.table, "row", self._plan.run)
