"""The runs of a pass that the records of a topic belong to, by their offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.bitemporal.intervals import to_micros
from hindcast.plan.plans import Plan
from hindcast.store.tables import ARROW_TIMESTAMP

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


class RunDivision(NamedTuple):
    """Where each run of a pass ends in the partitions of a topic: behind its last offset; the numbers of the runs, and
    their known-ats in microseconds since 1970.

        ends {0: [3, 7]}    ->    offsets 0, 3 and 6 of partition 0 are of the runs 0, 1 and 1
    """

    ends: Mapping[int, Integers]
    numbers: Integers
    known_ats: Integers

    @classmethod
    def from_plans(cls, plans: Sequence[Plan], name: str) -> RunDivision:
        """Return how a topic is divided among the runs of a pass."""
        partitions = plans[-1].topics[name].ranges
        ends = {p: np.array([plan.topics[name].ranges[p].end for plan in plans]) for p in partitions}
        known_ats = np.array([to_micros(plan.known_at) for plan in plans])
        return cls(ends, np.array([plan.run for plan in plans]), known_ats)

    def find_dates(self, partition: int, offsets: Integers) -> Integers:
        """Return which run of the pass each offset of a partition belongs to, from 0."""
        return np.searchsorted(self.ends[partition], offsets, side="right")

    def find_values(self, partition: int, offsets: Integers) -> dict[str, pa.Array]:
        """Return the values that the rows of a log have of their run."""
        dates = self.find_dates(partition, offsets)
        known_ats = pa.array(self.known_ats[dates]).cast(ARROW_TIMESTAMP)
        return {"run": pa.array(self.numbers[dates]), "systemFrom": known_ats}

    def find_all_dates(self, partitions: Integers, offsets: Integers) -> Integers:
        """Return the same for offsets of several partitions."""
        dates = np.zeros(len(offsets), np.int64)
        for partition in np.unique(partitions).tolist():
            own = partitions == partition
            dates[own] = self.find_dates(partition, offsets[own])
        return dates

    def replace_values(self, rows: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
        """Return rows of a log with the values of their runs."""
        dates = self.find_all_dates(*(rows.column(name).to_numpy() for name in ("partition", "offset")))
        values = {"run": self.numbers[dates], "systemFrom": self.known_ats[dates]}
        for name, of_runs in values.items():
            place = rows.schema.get_field_index(name)
            field = rows.schema.field(place)
            rows = rows.set_column(place, field, pa.array(of_runs).cast(field.type))
        return rows
