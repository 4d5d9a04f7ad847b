"""Contracts of vectors: an operation as topics and views, as users write them; `translator` makes them.

A table with a store of its own in the middle of an operation (`toStream().toTable()`, a `mapValues` or `filter` that is
materialized) is a topic of the contract, as if the records before it were written to that topic and read from there.

Vectors of the `corrected` reading are run many at once (`definitions`): their keys begin with a column `vector`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from pydantic import ValidationError

from hindcast.contract import Contract
from hindcast.contract.check import check_contract
from hindcast.contract.view_checks import Complaint
from hindcast.streams.spec import ProcessorSpec
from hindcast.streams.spec_of_view import build_spec
from hindcast.streams.tables import NO_OLD_VALUES, OLD_VALUES_MATERIALIZED, TransformStep, plan_tombstone_drops
from hindcast_conformance.exceptions import FILTER, StoredFilters
from hindcast_conformance.refusals import explain_refusal
from hindcast_conformance.vectors import DeclinedVector, Json

Operation = Mapping[str, Json]

FOREVER = 10**14
"""In milliseconds; a longer retention means the same."""


@dataclass
class VectorContract:
    """An operation as a contract, and what its views are to the vector.

    `columns`: by table, its column of JSON text. `result`: the view that emits what the vector expects. `steps`: by
    view, the filter or projection that it is. `fed`: by topic, the view or the filters whose output is written to it;
    records of the vector feed the others. `stores`: by the name of a store in the vector, the table that it holds.
    `reason`: why some of it is run without the contract, None if nothing is.
    """

    operation: Operation
    topics: dict[str, Json] = field(default_factory=dict)
    views: dict[str, Json] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    result: str = ""
    steps: dict[str, Operation] = field(default_factory=dict)
    fed: dict[str, str | StoredFilters] = field(default_factory=dict)
    stores: dict[str, str] = field(default_factory=dict)
    reason: str | None = None

    @cached_property
    def checked(self) -> tuple[Contract, dict[str, ProcessorSpec]]:
        """The contract and the specification of each view; KafkaStreamsError for what Kafka Streams refuses as well,
        DeclinedVector for what else a contract may not say.
        """
        found = _check(json.dumps({"topics": self.topics, "views": self.views}))
        if isinstance(found, Complaint):
            raise explain_refusal(found, self.operation)
        return found

    def read_stores(self) -> None:
        """Add a view of each table that no view reads yet, if the vector shows its store, or filters read it."""
        sources = [source.source for source in self.fed.values() if isinstance(source, StoredFilters)]
        for table in (*self.stores.values(), *sources):
            if not any(table in (view.get("table"), view.get("join", {}).get("table")) for view in self.views.values()):
                self.add_view(f"{table}_read", {"table": table})

    @property
    def is_kafka(self) -> bool:
        """True for the `kafka` reading, false for the `corrected` one."""
        return bool(self.operation.get("semantics", "kafka") == "kafka")

    def group_by(self, group: str) -> dict[str, str]:
        """Return the groups of a table."""
        return {"k": group} if self.is_kafka else {"vector": "vector", "k": group}

    @property
    def count(self) -> str:
        """The count of a stream: Kafka Streams counts null values in windows, the `corrected` reading does not."""
        return "count(*)" if self.is_kafka else "count(stream_v)"

    def add_view(self, name: str, view: Json, step: Operation | None = None) -> str:
        """Add a view; return its name. A join has one column, as any table: JSON text."""
        if "join" in view:
            first, second = (self.columns[i] for i in (view.get("table") or view["stream"], _joined(view)))
            parts = f"""'{{"left":', coalesce({first}, 'null'), ',"right":', coalesce({second}, 'null'), '}}'"""
            view = {**view, "select": {f"{name}_v": f"concat({parts})"}}
        self.views[name] = {**view, "semantics": "kafka" if self.is_kafka else "corrected"}
        made = next((column for field in ("select", "aggregate") for column in view.get(field, ())), None)
        self.columns[name] = made or self.columns[view["table"]]
        if step is not None:
            self.steps[name] = step
        return name

    def add_topic(self, name: str, store: Operation | None) -> str:
        """Add a topic, read as a table if it has a store, with one column of JSON text; return its name."""
        self.columns[name] = f"{name}_v"
        self.topics[name] = {
            "read": "stream" if store is None else "table",
            "key": {"k": "string"} if self.is_kafka else {"vector": "string", "k": "string"},
            "value": {self.columns[name]: "string"},
        }
        if store is not None:
            self.topics[name] |= {"versioned": store["versioned"], **history_retention(store)}
        return name

    def add_table(self, spec: Operation, topic: str, asks: int = NO_OLD_VALUES) -> str:
        """Add a table of an operation with its transforms; return the name of the topic or view that it is.

        `asks`: whether what reads the table needs the old values of changes.
        """
        name, store, steps = self.add_topic(topic, spec), spec, spec.get("transforms") or ()
        if not self.is_kafka:
            return self.add_views(name, topic, steps, 0)
        is_stored, done = bool(spec["versioned"] or spec.get("materialized", True)), 0
        if is_stored:
            self.stores[topic] = topic
        while done < len(steps):
            upto = next((n for n in range(done, len(steps)) if steps[n]["op"] not in _STATELESS), len(steps))
            needed = asks if upto == len(steps) else _ASKED.get(steps[upto]["op"], NO_OLD_VALUES)
            name, store = self._add_stateless(name, store, topic, steps[done:upto], done, needed, is_stored=is_stored)
            if upto < len(steps):
                name, store = self._add_stateful(name, f"{topic}-{upto + 1}", steps[upto])
                is_stored = "materialized" in steps[upto] or steps[upto]["op"] != "toStreamToTable"
            done = upto + 1
        return name

    def _add_stateless(
        self,
        name: str,
        store: Operation,
        topic: str,
        steps: Sequence[Operation],
        done: int,
        asks: int,
        *,
        is_stored: bool,
    ) -> tuple[str, Operation]:
        """Add filters and projections, some of which may have stores; return the last table and its store."""
        versioned, first = [store["versioned"]], 0
        for step in steps:
            versioned.append(step["materialized"]["versioned"] if "materialized" in step else versioned[-1])
        drops = plan_tombstone_drops(
            [TransformStep(step["op"] == "filter", "materialized" in step) for step in steps],
            source_materialized=is_stored,
            versioned=versioned,
            asks=asks,
        )
        ends = [n + 1 for n, step in enumerate(steps) if "materialized" in step]
        for end in dict.fromkeys((*ends, len(steps))):
            some, own = steps[first:end], steps[end - 1].get("materialized") if end else None
            differs = any(
                step["op"] == "filter" and drop == before
                for step, drop, before in zip(some, drops[first:end], versioned[first:end], strict=True)
            )
            compares = own is not None and own["versioned"] and drops[end - 1]
            if differs or compares:
                self.reason = FILTER
                retention = store.get("historyRetentionMs") if store["versioned"] else None
                filters = StoredFilters(name, store["versioned"], retention, some, drops[first:end], own)
                store = own or store
                name = self._feed(f"{topic}_{done + end}", filters, store)
            else:
                name = self.add_views(name, topic, some, done + first)
                if own is not None:
                    name, store = self._feed(f"{topic}_{done + end}", name, own), own
            if own is not None:
                self.stores[f"{topic}-{done + end}"] = name
            first = end
        return name, store

    def add_views(self, name: str, topic: str, steps: Sequence[Operation], done: int) -> str:
        """Add a view for each filter and projection; return the last one."""
        for number, step in enumerate(steps, done + 1):
            view = _view_of_step(name, self.columns[name], f"{topic}_step_{number}_v", step)
            name = self.add_view(f"{topic}_step_{number}", view, step)
        return name

    def _add_stateful(self, name: str, place: str, step: Operation) -> tuple[str, Operation]:
        """Add the table that a transform makes of a table: of its stream, of counts, or suppressed."""
        own, new = step.get("materialized") or {"versioned": False}, place.replace("-", "_")
        match step["op"]:
            case "toStreamToTable":
                name = self._feed(new, name, own)
            case "count":
                counted = {"table": name, "aggregate": {f"{new}_v": "count(*)"}}
                name = self.add_view(new, {**counted, **history_retention(own)})
            case "suppressUntilTimeLimit":
                name = self.add_view(new, {"table": name, "suppress": f"{step['timeLimitMs']} ms"})
                own = {"versioned": False}
            case other:
                raise DeclinedVector(f"no transform {other!r}")
        if "materialized" in step:
            self.stores[place] = name
        return name, own

    def _feed(self, topic: str, source: str | StoredFilters, store: Operation) -> str:
        if isinstance(source, str) and source in self.topics:
            source = self.add_view(f"{source}_read", {"table": source})
        self.fed[topic] = source
        return self.add_topic(topic, store)


_STATELESS = ("filter", "mapValues")
_ASKED = {"count": OLD_VALUES_MATERIALIZED, "suppressUntilTimeLimit": OLD_VALUES_MATERIALIZED}


def _joined(view: Json) -> str:
    return str(view["join"].get("table") or view["join"]["stream"])


def history_retention(store: Operation) -> dict[str, str]:
    """Return the field of a topic or view whose store is versioned, else nothing."""
    return {"history_retention": f"{min(store['historyRetentionMs'], FOREVER)} ms"} if store["versioned"] else {}


def _view_of_step(table: str, column: str, new: str, step: Operation) -> Json:
    value = f"cast({column} AS double)"
    match step:
        case {"op": "filter", "predicate": {"type": "even"}}:
            return {"table": table, "where": f"{value} % 2 = 0"}
        case {"op": "filter", "predicate": {"type": "gte", "value": least}}:
            return {"table": table, "where": f"{value} >= {least}"}
        case {"op": "mapValues", "multiplyBy": factor}:
            return {"table": table, "select": {new: f"cast({value} * {factor} AS string)"}}
    raise DeclinedVector(f"no transform {json.dumps(dict(step))}")


@lru_cache(maxsize=4096)
def _check(parts: str) -> tuple[Contract, dict[str, ProcessorSpec]] | Complaint:
    """Return a contract and the specifications of its views, or what is wrong with it."""
    try:
        contract = Contract.model_validate({"pipeline": "vector", "start": "2024-01-01", **json.loads(parts)})
    except ValidationError as error:
        first = error.errors()[0]
        return Complaint(tuple(str(part) for part in first["loc"]), first["msg"], "")
    complaint = next(check_contract(contract), None)
    kafka = (name for name in contract.ordered_views if contract.views[name].semantics == "kafka")
    return complaint or (contract, {name: build_spec(contract, name) for name in kafka})
