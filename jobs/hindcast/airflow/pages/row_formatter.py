"""Rows of a table as JSON, for the pages: masked, with their records and the runs that opened and closed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from hindcast.common.column_values import Row
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract import Contract
from hindcast.contract.shapes import PERIODS
from hindcast.plan.runs import Run
from hindcast.query import key_history
from hindcast.query.inputs_as_of import find_records
from hindcast.query.key_history import RowSample, find_cell
from hindcast.query.show import plain_value


@dataclass(frozen=True)
class RowFormatter:
    """Formats rows of one table: values, records, and the `past` runs that opened and closed them."""

    warehouse: str
    contract: Contract
    table: str
    past: Sequence[Run]
    marked: frozenset[str]

    @cached_property
    def runs(self) -> Mapping[datetime, int]:
        """The numbers of runs, by their known-ats."""
        return {run.known_at: run.number for run in self.past}

    @cached_property
    def named_runs(self) -> Mapping[datetime, int]:
        """The numbers of the runs that have a name on the axis of knowledge; the date of a rehearsed run says more."""
        return {run.known_at: run.number for run in self.past if run.plan.rehearsed_interval is None}

    def find_run(self, moment: datetime | None) -> int | None:
        """Return the number of the run whose known-at this is, if any."""
        return self.runs.get(moment) if moment else None

    def format_sample(self, sample: RowSample) -> JsonObject:
        """Return rows, and how many there are in all, as JSON."""
        return {"rows": [self.format_row(row) for row in sample.rows], "total": sample.total}

    def format_row(self, row: Row) -> dict[str, JsonValue]:
        """Return a row as JSON: `values`, its periods, `records` (topic, partition, offset), `openedBy`, `closedBy`."""
        lineage = {name: value for name, value in row.items() if name.startswith("_")}
        periods = [name for name in (*_PERIODS, "systemFrom", "systemTo") if name in row]
        values = {name: v for name, v in row.items() if name not in lineage and name not in periods}
        return {
            "values": key_history.mask_row(values, self.marked),
            **{name: plain_value(row[name]) for name in periods},
            "records": find_records(self.warehouse, self.contract, self.table, lineage),
            "openedBy": self.find_run(find_cell(row, "systemFrom", datetime)),
            "closedBy": self.find_run(find_cell(row, "systemTo", datetime)),
        }


_PERIODS = tuple(dict.fromkeys(name for names in PERIODS.values() for name in names))
