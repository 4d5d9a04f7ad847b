"""Lines of changes (query/changes.py) as JSON, for the pages: templates/change_lines.html shows them."""

from __future__ import annotations

from dataclasses import dataclass

from hindcast.common.column_values import Row
from hindcast.common.json_values import JsonObject
from hindcast.contract import Contract
from hindcast.contract.shapes import PERIODS
from hindcast.query import cut_values, key_history, read
from hindcast.query.inputs_as_of import find_records
from hindcast.query.show import plain_value
from hindcast.store.tables import Table


@dataclass(frozen=True)
class LineFormatter:
    """Formats the lines of one table."""

    warehouse: str
    contract: Contract
    table: Table
    hidden: frozenset[str]

    def format_line(self, line: Row) -> JsonObject:
        """Return a line as JSON: `key`, as an address has it (None if it is cut), the values of the key, the periods,
        for each value what it was and is (`cells`), and the `records` of the new row.
        """
        of_key = line["key"] if isinstance(line["key"], dict) else {}
        key = [of_key[column] for column in self.table.key]
        is_cut = any(value is None or cut_values.is_cut(value) for value in key)
        sides = [self._mask_values(line[side]) for side in ("before", "after")]
        names = [*dict.fromkeys(name for side in sides for name in side)]
        source = line["source"]
        records = (
            find_records(self.warehouse, self.contract, self.table.name, source) if isinstance(source, dict) else []
        )
        return {
            "key": None if is_cut else read.format_key(self.table, key),
            "values": key_history.mask_row(of_key, self.hidden),
            **{name: plain_value(line[name]) for name in PERIODS[self.table.kind]},
            "change": plain_value(line["change"]),
            "corrected": plain_value(line["corrected"]),
            "cells": [
                {
                    "name": name,
                    "before": sides[0].get(name),
                    "after": sides[1].get(name),
                    "differs": _differ(line, name),
                }
                for name in names
            ],
            "records": records,
        }

    def _mask_values(self, side: object) -> JsonObject:
        return key_history.mask_row(side, self.hidden) if isinstance(side, dict) else {}


def _differ(line: Row, name: str) -> bool:
    """Return whether a value is another than before; those of a row that was added or removed count as alike."""
    before, after = line["before"], line["after"]
    return isinstance(before, dict) and isinstance(after, dict) and before[name] != after[name]
