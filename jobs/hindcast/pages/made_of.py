"""Rows of a view's inputs as they were known at a moment: what a row of the view was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hindcast import questions, read
from hindcast.contracts import Contract
from hindcast.contracts.sensitive import sensitive
from hindcast.contracts.shapes import PERIODS
from hindcast.delta import scan, tables
from hindcast.delta.tables import Table
from hindcast.kafka import members
from hindcast.pages import catalog, histories
from hindcast.planning import inputs, journal, plans
from hindcast.questions import Bound, literal

SHOWN = 20
"""So many rows of an input are shown; of more it is said how many there are."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Some rows of the input `name`, the first ones of `total`; `open`: whether they may be shown."""

    name: str
    source: Table
    known: datetime
    open: bool
    marked: frozenset[str]
    rows: list[Row] = field(default_factory=list)
    total: int = 0

    @property
    def secret(self) -> bool:
        """Whether the key is sensitive."""
        return bool(self.marked & set(self.source.key))

    def told(self, warehouse: str, contract: Contract) -> dict[str, Any]:
        """The part as JSON has it; `rows` is None where they may not be shown."""
        start = PERIODS[self.source.kind][0]
        rows = [
            {
                "key": None if self.secret else self._key(row),
                "from": row[start].isoformat(),
                "values": histories.told({c: v for c, v in row.items() if not c.startswith("_")}, self.marked),
                "records": records(warehouse, contract, self.name, row),
            }
            for row in self.rows
        ]
        return {
            "name": self.name,
            "pipeline": self.source.pipeline,
            "table": self.source.name,
            "knownAt": self.known.isoformat(),
            "rows": rows if self.open else None,
            "total": self.total,
        }

    def _key(self, row: Row) -> str | None:
        """A row's key as an address has it; None for one with a null, which none has."""
        key = [row[column] for column in self.source.key]
        return None if None in key else read.key_text(self.source, key)


def records(warehouse: str, contract: Contract, name: str, row: Row) -> list[dict[str, Any]]:
    """The records that a row comes from: topic in Kafka (or another pipeline's table), partition, offset.

    Of a kafka view's version the record that it has emitted. None for a row that is made of other tables' rows.
    """
    view = contract.views.get(name)
    emits = view and view.semantics == "kafka" and not (view.stream and view.aggregate is None)
    places = [(name, row.get("_partition"), row.get("_offset"))]
    if view and view.second:
        places.append((view.second, row.get("_rightPartition"), row.get("_rightOffset")))
    found = []
    for source, partition, offset in places:
        if partition is not None:
            own = emits and source == name
            place = (f"emitted/{name}", partition) if own else _place(warehouse, contract, source, partition)
            found.append({"topic": place[0], "partition": place[1], "offset": offset})
    return found


def _place(warehouse: str, contract: Contract, source: str, partition: int) -> tuple[str, int]:
    """The topic and partition in Kafka that a partition is which a row's lineage tells."""
    while source in contract.views:
        source = contract.views[source].first
    if source not in contract.topics:
        return contract.inputs[source].table, partition
    known = plans.known_members(warehouse, contract, source)
    return members.real(contract.kafka_topic(source), known, partition)


@dataclass(frozen=True)
class Reader:
    """Reads inputs as they were known at a moment, for somebody who may read some pipelines."""

    warehouse: str
    contract: Contract
    known: datetime
    readable: frozenset[str]

    def event(self, name: str, place: tuple[Any, Any], span: tuple[datetime, datetime]) -> Part:
        """The event of a place (partition, offset); it is dated within the span."""
        if None in place:
            return self._part(name)
        condition = f'"_partition" = {place[0]} AND "_offset" = {place[1]}'
        return self.asked(name, condition, [Bound("timestamp", *span)])

    def record(self, name: str, partition: int, offset: int) -> tuple[Row | None, Part]:
        """A record of a topic: what the topic's log says of it, and the row that it is in the topic's table."""
        there = tables.opened(tables.log(self.warehouse, self.contract.pipeline, name))
        found, part = None, self._part(name)
        if there is not None:
            with scan.engine() as engine:
                scan.register(
                    engine, there, [Bound("partition", partition, partition), Bound("offset", offset, offset)]
                )
                told = f'"partition" = {partition} AND "offset" = {offset}'
                found = next(iter(histories.some(engine, told, "run", 1).rows), None)
        if found is not None:
            start, moment = PERIODS[part.source.kind][0], found["timestamp"]
            place = f'"_partition" = {partition} AND "_offset" = {offset}'
            # By another valid_time the row has another date than the log knows.
            fixed = self.contract.topics[name].valid_time is None and found.get("recordTimestamp") is None
            part = self.asked(name, place, [Bound(start, moment, moment)] if fixed else [])
        return found, part

    def version(self, name: str, key: Sequence[Any], moment: datetime) -> Part:
        """The version of a key that was valid at a moment."""
        part = self._part(name)
        if None in key:
            return part
        columns = dict(zip(part.source.key, key, strict=True))
        told = [f'"{column}" = {literal(value)}' for column, value in columns.items()]
        bounds = [Bound(column, v, v) for column, v in columns.items() if isinstance(v, int | str | datetime)]
        bounds += [Bound("validFrom", most=moment), Bound("validTo", least=moment, or_null=True)]
        return self.asked(name, " AND ".join([*told, questions.as_of("versions", literal(moment))]), bounds)

    def asked(self, name: str, condition: str, bounds: Sequence[Bound]) -> Part:
        """The rows that meet a condition, the latest first; its columns may be written `name.column`."""
        part = self._part(name)
        found = tables.opened(part.source) if part.open else None
        if found is None:
            return part
        system = [Bound("systemFrom", most=part.known), Bound("systemTo", least=part.known, or_null=True)]
        with scan.engine() as engine:
            scan.register(engine, found, [*bounds, *system])
            condition = f"{questions.known_at(literal(part.known))} AND {condition}"
            order = f'"{PERIODS[part.source.kind][0]}" DESC'
            some = histories.some(engine, condition, order, SHOWN, name)
        marked = part.marked | tables.dropped(found).keys()  # who knows whether they were sensitive
        return Part(name, part.source, part.known, part.open, marked, some.rows, some.total)

    def _part(self, name: str) -> Part:
        """An input, as yet without rows: one of another pipeline as the run that was known then had pinned it."""
        marked = sensitive(self.contract)[name]
        if name not in self.contract.inputs:
            source = tables.located(self.warehouse, self.contract, name)
            return Part(name, source, self.known, True, marked)
        past = [run for run in journal.runs(self.warehouse, self.contract.pipeline) if run.known_at <= self.known]
        pin = past[-1].plan.get("inputs", {}).get(name) if past else None
        source = inputs.table(self.warehouse, self.contract, name)
        known, _ = catalog.known()
        if source.pipeline in known:  # its owner may mark more
            marked |= sensitive(known[source.pipeline]).get(source.name, frozenset())
        moment = datetime.fromisoformat(pin) if pin else self.known
        return Part(name, source, moment, source.pipeline in self.readable, marked)
