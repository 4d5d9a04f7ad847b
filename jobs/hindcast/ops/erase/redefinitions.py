"""The definitions by which runs have derived views: that of today's contract, and those of earlier ones.

The first plan under a contract stores its fields, which make the contract again. A definition that nobody can read any
more, because its fields were not stored or are no valid contract today, cannot be followed.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, reduce
from operator import or_
from typing import NamedTuple

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.contract import Shape, list_shapes
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.definition import list_fields
from hindcast.contract.expressions import parse_aggregate
from hindcast.contract.shapes import view_scope
from hindcast.plan import definitions, inputs
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.store import duckdb_reader, tables
from hindcast.store.tables import Table

NUMERIC_AGGREGATES = frozenset(
    {
        *("count", "count_if", "count_distinct", "approx_count_distinct", "regr_count"),
        *("sum", "try_sum", "avg", "mean", "try_avg", "variance", "var_pop", "var_samp", "stddev", "std"),
        *("stddev_pop", "stddev_samp", "skewness", "kurtosis"),
    }
)
"""Aggregate functions whose results no single record said."""


class Period(NamedTuple):
    """The known-at of the first and of the last run under a contract."""

    first: datetime
    last: datetime


@dataclass(frozen=True)
class Definition:
    """The views of a contract, and the last plan under it.

    `periods`: when runs derived rows by it; none for today's contract, by which rows of any time are found.
    """

    contract: BoundContract
    plan: Plan
    periods: tuple[Period, ...] = ()

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of all its tables."""
        return list_shapes(self.contract)

    def locate_table(self, name: str) -> Table:
        """Return a table of the contract, or one of another pipeline that it reads."""
        return inputs.locate_source_table(self.contract, self.plan, name)

    def has_table(self, name: str) -> bool:
        """Return whether a table exists and is the one that the contract knew, not a later one under its name."""
        if name in self.contract.inputs and name not in self.plan.as_of_system_times:
            return False
        table = self.locate_table(name)
        delta_table = tables.open_table(table)
        if delta_table is None or not self.periods:
            return delta_table is not None
        marks = tables.read_marks(delta_table) or tables.NO_MARKS
        return (marks["kind"], tuple(marks["key"])) == (table.kind, table.key)

    def has_rows(self, name: str) -> bool:
        """Return whether a table can have rows that a run under the contract derived."""
        delta_table = tables.open_table(self.locate_table(name)) if self.has_table(name) else None
        return delta_table is not None and (not self.periods or has_rows_until(delta_table, self.last))

    @property
    def last(self) -> datetime:
        """The known-at of the last run under the contract; only for an earlier one."""
        return max(period.last for period in self.periods)

    def select_derived(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a view that runs under the contract derived."""
        if not self.periods:
            return rows
        return rows.where(reduce(or_, (F.col("systemFrom").between(*map(F.lit, period)) for period in self.periods)))

    def select_known(self, name: str, rows: DataFrame) -> DataFrame:
        """Return the rows of an input that runs under the contract can have read."""
        if not self.periods or name in self.contract.inputs:
            return rows
        return rows.where(F.col("systemFrom") <= F.lit(self.last))

    def returns_inputs(self, name: str) -> bool:
        """Return whether an aggregate has functions that return one of their inputs."""
        view = self.contract.views[name]
        scope = view_scope(view, self.shapes)
        return not {parse_aggregate(text, scope)[0] for text in (view.aggregate or {}).values()} <= NUMERIC_AGGREGATES

    def describe_view(self, name: str) -> Hashable:
        """Return what decides from which rows of its inputs a view's rows are derived."""
        view = self.contract.views[name]
        fields = {"stream", "table", "join", "key", "group_by", "semantics"}
        fields |= {"where"} if view.aggregate is not None else set()
        shapes = ((i, self.shapes[i].kind, tuple(self.shapes[i].key)) for i in (name, *view.inputs))
        sources = (self.contract.inputs[i].table for i in view.inputs if i in self.contract.inputs)
        text = json.dumps(view.model_dump(mode="json", include=fields))
        return text, self.returns_inputs(name), tuple(shapes), tuple(sources)


@dataclass(frozen=True)
class LostDefinition:
    """An earlier contract that cannot be read: its `fields`, if they were stored, and the known-at of its last run."""

    fields: Mapping[str, str] | None
    last: datetime

    def list_views(self, topic: str, followed: Iterable[Definition]) -> list[str]:
        """Return the views that it made of a topic, except those that another definition makes in the same way."""
        fields = self.fields or {}
        others = [list_fields(definition.contract) for definition in followed]
        places = (place.split(".") for place in fields if place.startswith("views."))
        return [
            name
            for name in dict.fromkeys(place[1] for place in places)
            if topic in _list_upstream(fields, name)
            and _select_fields(fields, name) not in [_select_fields(other, name) for other in others]
        ]


def list_definitions(
    past: Iterable[Run], contract: BoundContract, plan: Plan
) -> tuple[list[Definition], list[LostDefinition]]:
    """Return the definitions by which the `past` runs have derived views, today's first; and those that are lost.

    `plan`: the last plan under today's contract.
    """
    runs = [run for run in past if run.plan.contract != contract.hash]
    found, lost = [Definition(contract, plan)], []
    for contract_hash in dict.fromkeys(run.plan.contract for run in reversed(runs)):
        own = [run for run in runs if run.plan.contract == contract_hash]
        fields = definitions.find_fields(own, contract_hash)
        period = Period(own[0].known_at, own[-1].known_at)
        earlier = definitions.find_contract(own, contract_hash)
        if earlier is None:
            lost.append(LostDefinition(fields, period.last))
        else:
            found.append(Definition(bind_contract(earlier, contract.settings), own[-1].plan, (period,)))
    return found, lost


def merge_definitions(name: str, found: Iterable[Definition]) -> list[Definition]:
    """Return definitions without those that derive the rows of a view as another one does, with the periods of both."""
    merged: dict[Hashable, Definition] = {}
    for definition in found:
        form = definition.describe_view(name)
        same = merged.setdefault(form, definition)
        if same.periods and same is not definition:
            merged[form] = replace(same, periods=(*same.periods, *definition.periods))
    return list(merged.values())


def has_rows_until(delta_table: DeltaTable, moment: datetime, columns: Sequence[str] = ("systemFrom",)) -> bool:
    """Return whether a table can have rows that one of the columns dates at a moment, or before; by Delta's log."""
    bounds = ([ColumnBound(column, most=moment)] for column in columns)
    return any(duckdb_reader.find_candidate_files(delta_table, bound) for bound in bounds)


_WITHOUT_ROWS = ("expect", "hold", "sensitive")
"""Fields of a topic or view that decide nothing about what its rows are made of."""
_INPUTS = ("stream", "table", "join.stream", "join.table")


def _select_fields(fields: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the fields of a contract that define the rows of a table, with those of everything upstream."""
    upstream = _list_upstream(fields, name)
    starts = tuple(f"{part}.{table}." for part in ("topics", "inputs", "views") for table in upstream)
    own = {place: text for place, text in fields.items() if place.startswith(starts)}
    return {place: text for place, text in own.items() if place.split(".")[2] not in _WITHOUT_ROWS}


def _list_upstream(fields: Mapping[str, str], name: str) -> list[str]:
    """Return a table of a contract and everything that it is derived from."""
    upstream = [name]
    for table in upstream:
        sources = (fields.get(f"views.{table}.{place}") for place in _INPUTS)
        upstream += [source for source in sources if source is not None and source not in upstream]
    return upstream
