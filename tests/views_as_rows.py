"""Vectors of views (diamonds.py) as rows through the tasks that jobs run, without Spark: view by view of a contract.

What Spark does between tasks is done here in Python: expressions, and the order in which a task gets its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

import diamonds
from hindcast.contract import Contract, load
from hindcast.streams import spec_of_view
from hindcast.streams.task import process_task
from test_emits_task import SCHEMA

Json = Any
NUMBER = pa.struct([("n", pa.int64())])
NAMED = pa.struct([("json", pa.string())])
COLUMNS = {"first": NUMBER, "second": NUMBER, "key": NAMED}
VIEWS = pa.schema(
    [
        *(field.with_type(COLUMNS.get(field.name, field.type)) for field in SCHEMA),
        ("before_first", NUMBER),
        ("before_second", NUMBER),
    ]
)


class Tasks:
    """The views of one operation."""

    def __init__(self, operation: Json, folder: Path) -> None:
        self.operation = operation
        path = folder / "views.yaml"
        path.write_text(yaml.safe_dump(diamonds.contract(operation, "views", 1), sort_keys=False), encoding="utf-8")
        self.contract: Contract = load(path)
        self.views = {view["name"]: view for view in operation["views"]}
        self.forms = {name: spec_of_view.build_spec(self.contract, name) for name in self.contract.ordered_views}
        self.forget()

    def forget(self) -> None:
        """Keep nothing."""
        self.kept = {name: VIEWS.empty_table() for name in self.forms}

    def emitted(self, records: list[Json]) -> dict[str, list[Json]]:
        """Return what each view emits of records."""
        self.forget()
        return self.go_on(records, 0)

    def go_on(self, records: list[Json], first: int) -> dict[str, list[Json]]:
        """Return what each view emits of records that come after those before; `first`: how many these were."""
        topics = list(self.contract.topics)
        given: dict[str, list[Json]] = {name: [] for name in topics}
        for number, record in enumerate(records, first):
            order = {"run": 1, "reached": number, "topic": topics.index(record["topic"]), "partition": 0}
            value = record["value"]
            row = {"key": record["key"], "value": value, "put": value is not None, "passes": True}
            given[record["topic"]].append(
                {**row, "time": record["timestamp"], "order": {**order, "offset": number, "turn": []}}
            )
        for name, form in self.forms.items():
            rows = [
                row
                for side, source in enumerate(self.contract.views[name].inputs)
                for record in given[source]
                for row in self._rows(name, side, record)
            ]
            rows.sort(key=lambda row: tuple(row["order"].values()))
            done = process_task(form, pa.concat_tables([self.kept[name], pa.Table.from_pylist(rows, schema=VIEWS)]))
            of_kept = pa.compute.is_valid(done.column("part"))
            self.kept[name] = done.filter(of_kept)
            given[name] = [self._record(name, row) for row in done.filter(pa.compute.invert(of_kept)).to_pylist()]
        return {
            name: [[row["key"], row["value"], row["time"], row["order"]["offset"]] for row in given[name]]
            for name in self.views
        }

    def _rows(self, name: str, side: int, record: Mapping[str, Json]) -> list[Json]:
        """A record, and what was before it if it tells that."""
        rows = [self._row(name, side, record)]
        if record.get("before") is not None:
            before = {**record, "value": record["before"], "put": True, "passes": True}
            rows.append({**self._row(name, side, before), "part": "before"})
        return rows

    def _row(self, name: str, side: int, record: Mapping[str, Json]) -> Json:
        view, value = self.views[name], record["value"]
        there = None if value is None else {"n": value}
        row = {"side": side, "partition": 0, "id": record["key"].encode(), "time": record["time"], "put": record["put"]}
        row |= {"passes": record["passes"], "order": record["order"], "key": {"json": record["key"]}}
        row |= {("first", "second")[side]: there, "numbers": {"m0": value}}
        named = None if value is None or "by" not in view else view["by"][value % len(view["by"])]
        if view["op"] == "filter":
            row["passes"] = record["passes"] and value is not None and value % 2 == 0
        if view["op"] == "aggregate" and self.contract.views[name].table:
            group = named if "by" in view else (None if value is None else record["key"])
            row |= {"other": None if group is None else group.encode(), "home": 0}
            row["key"] = None if group is None else {"json": group}
        elif view["op"] == "aggregate" and "by" in view:
            row |= {"id": named.encode(), "key": {"json": named}}
        elif view["op"] == "join" and "by" in view and side == 0:
            row["start"] = value
            if self.contract.views[name].stream:
                row["id"] = None if named is None else named.encode()
            else:
                row |= {"other": None if named is None else named.encode(), "home": 0}
        elif view["op"] == "join" and "by" in view and self.contract.views[name].table:
            row["key"] = None
        return row

    def _record(self, name: str, row: Mapping[str, Json]) -> Json:
        """An emitted row as a record of the view."""
        there = row["put"]
        return {
            "key": row["key"]["json"],
            "value": self._value(name, row, "first", "second") if there else None,
            "before": self._value(name, row, "before_first", "before_second"),
            "put": there or row["passes"],
            "passes": not row["passes"],
            "time": row["time"],
            "order": row["order"],
        }

    def _value(self, name: str, row: Mapping[str, Json], *sides: str) -> Json:
        """A value of a view; None if neither side is there."""
        view = self.views[name]
        if view["op"] == "aggregate":
            return row["measures"]["m0"] if "first" in sides else None
        if all(row[side] is None for side in sides):
            return None
        first, second = ((row[side] or {}).get("n") or 0 for side in sides)
        return {"filter": first, "map": first * view.get("multiplyBy", 1), "join": 100 * first + second}[view["op"]]
