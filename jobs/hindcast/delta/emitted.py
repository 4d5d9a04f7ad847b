"""What kafka views have emitted, as it is asked for without Spark (emitting.py writes it)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from hindcast.contracts import Contract, shapes
from hindcast.contracts.shapes import identity
from hindcast.delta import scan, tables
from hindcast.delta.tables import Table
from hindcast.questions import Bound, literal

PLACE = ("_partition", "_offset")
"""Where a record stands in its topic, and a row of events."""

_SOURCE = ("_sourcePartition", "_sourceOffset")
PLACES = {"events": (_SOURCE,), "pairs": (_SOURCE, ("_rightPartition", "_rightOffset"))}
"""The columns with the places of the events that an emitted record tells of, by the kind of the view."""


def log(warehouse: str, contract: Contract, name: str) -> Table:
    """The log of what a kafka view has emitted."""
    key = tuple(shapes(contract)[name].key)
    return Table(warehouse, contract.pipeline, f"emitted/{name}", "emitted", key, widens=contract.can_widen(name))


def noted(table: Table, run: int) -> dict[str, Any] | None:
    """What the last run up to `run` noted that has processed anything for a view; None before the first."""
    notes = tables.notes(table)
    return notes[max(found)] if (found := [number for number in notes if number <= run]) else None


def counted(table: Table, run: int) -> dict[str, int]:
    """How many records a run has emitted, and how many of these are tombstones."""
    found = tables.opened(table)
    if found is None or run not in tables.notes(table):
        return {"records": 0, "tombstones": 0}
    with scan.engine() as engine:
        scan.register(engine, found, [Bound("_run", run, run)])
        asked = "SELECT count(*), count_if(_tombstone) FROM rows WHERE _run = ?"
        ((records, tombstones),) = engine.execute(asked, [run]).fetchall()
    return {"records": records, "tombstones": tombstones}


def settled(contract: Contract, note: dict[str, Any]) -> dict[str, Any]:
    """How far a view that waits has come: up to when it has processed everything, and the partition it waits for."""
    upto = None if note["upto"] < 0 else datetime.fromtimestamp(note["upto"] / 1000, UTC).isoformat()
    topic, partition = note["waitsFor"]
    return {"upTo": upto, "waitsFor": {"topic": contract.kafka_topic(topic), "partition": partition}}


class Cause(NamedTuple):
    """The place of an emitted record in the output, the run, and the record that caused it: topic of the contract,
    partition, offset.
    """

    partition: int
    offset: int
    run: int
    topic: str
    cause_partition: int
    cause_offset: int


def cause(table: Table, kind: str, row: dict[str, Any]) -> Cause | None:
    """What caused the record that a row of a kafka view comes from; None if the row is older than the kafka reading."""
    found, known = tables.opened(table), row["systemFrom"]
    if found is None:
        return None
    its = PLACE if kind == "versions" else identity(kind, table.key)
    same = dict(zip([c for place in PLACES[kind] for c in place] if kind in PLACES else its, its, strict=True))
    told = [f'"{column}" IS NOT DISTINCT FROM {_literal(row[of])}' for column, of in same.items()]
    with scan.engine() as engine:
        scan.register(engine, found, [Bound("systemFrom", most=known)])
        engine.execute(f"CREATE TEMP VIEW earlier AS FROM rows WHERE systemFrom <= {literal(known)}")
        rows = engine.execute(
            "SELECT _partition, _offset, _run, _causeTopic, _causePartition, _causeOffset FROM earlier "  # noqa: S608  # literals
            f"WHERE _epoch = (SELECT max(_epoch) FROM earlier) AND NOT _tombstone AND {' AND '.join(told)} "
            "ORDER BY _offset DESC LIMIT 1"
        ).fetchall()
    return Cause(*rows[0]) if rows else None


def _literal(value: Any) -> str:
    return "NULL" if value is None else literal(value)
