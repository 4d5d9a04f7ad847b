"""The logs of what kafka views have emitted, read without Spark (emission.py writes them)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from hindcast.bitemporal.predicates import ColumnBound, sql_literal
from hindcast.common.column_values import Row
from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.contract import Contract, list_shapes
from hindcast.contract.shapes import PLACE_COLUMNS, SOURCE_PLACES, identity_columns
from hindcast.store import commit_history, duckdb_reader, tables
from hindcast.store.commit_notes import EmissionNote
from hindcast.store.tables import Table


def emitted_table(warehouse: str, contract: Contract, name: str) -> Table:
    """Return the log table of what a kafka view has emitted."""
    key = tuple(list_shapes(contract)[name].key)
    return Table(warehouse, contract.pipeline, f"emitted/{name}", "emitted", key, widen=contract.find_widen(name))


def read_last_note(table: Table, run: int) -> EmissionNote | None:
    """Return the note of the last run up to `run` that processed anything for a view; None before the first."""
    notes = commit_history.read_notes(table, EmissionNote.from_json)
    return notes[max(runs)] if (runs := [number for number in notes if number <= run]) else None


def count_records(table: Table, run: int) -> dict[str, int]:
    """Return how many records a run has emitted, and how many of these are tombstones."""
    delta_table = tables.open_table(table)
    if delta_table is None or run not in commit_history.read_notes(table, EmissionNote.from_json):
        return {"records": 0, "tombstones": 0}
    with duckdb_reader.open_engine(delta_table) as engine:
        duckdb_reader.register_rows(engine, delta_table, [ColumnBound("_run", run, run)])
        query = "SELECT count(*), count_if(_tombstone) FROM rows WHERE _run = ?"
        ((records, tombstones),) = engine.execute(query, [run]).fetchall()
    return {"records": records, "tombstones": tombstones}


class WaitingView(NamedTuple):
    """Up to when a view with `wait` has processed everything (None: nothing), and the partition that it waits for."""

    up_to: datetime | None
    topic: str
    partition: int

    def as_json(self) -> JsonObject:
        """Return the form in reports."""
        up_to = self.up_to.isoformat() if self.up_to else None
        return {"upTo": up_to, "waitsFor": {"topic": self.topic, "partition": self.partition}}

    @classmethod
    def from_json(cls, settled: StoredObject) -> WaitingView:
        """Return the view's progress from its form in a report."""
        up_to, place = settled["upTo"], settled["waitsFor"]
        return cls(datetime.fromisoformat(up_to) if up_to else None, place["topic"], place["partition"])


def find_progress(contract: Contract, note: EmissionNote) -> WaitingView | None:
    """Return how far a view with `wait` has got; None for another view."""
    if note.waits_for is None:
        return None
    topic, partition = note.waits_for
    up_to = None if note.upto < 0 else datetime.fromtimestamp(note.upto / 1000, UTC)
    return WaitingView(up_to, contract.kafka_topic(topic), partition)


class EmitCause(NamedTuple):
    """The place and run of an emitted record, and the record that caused it.

    `partition` and `offset` are those in the output; the cause has the topic of the contract, partition and offset.
    """

    partition: int
    offset: int
    run: int
    topic: str
    cause_partition: int
    cause_offset: int


def find_cause(table: Table, kind: str, row: Row) -> EmitCause | None:
    """Return what caused the record of a kafka view's row; None if the row is older than the kafka reading."""
    delta_table, system_from = tables.open_table(table), row["systemFrom"]
    if delta_table is None or not isinstance(system_from, datetime):
        return None
    columns = PLACE_COLUMNS if kind == "versions" else identity_columns(kind, table.key)
    sources = [c for place in SOURCE_PLACES[kind] for c in place] if kind in SOURCE_PLACES else columns
    pairs = zip(sources, columns, strict=True)
    conditions = [f'"{source}" IS NOT DISTINCT FROM {sql_literal(row[column])}' for source, column in pairs]
    with duckdb_reader.open_engine(delta_table) as engine:
        duckdb_reader.register_rows(engine, delta_table, [ColumnBound("systemFrom", most=system_from)])
        engine.execute(f"CREATE TEMP VIEW earlier AS FROM rows WHERE systemFrom <= {sql_literal(system_from)}")
        rows = engine.execute(
            "SELECT _partition, _offset, _run, _causeTopic, _causePartition, _causeOffset FROM earlier "  # noqa: S608  # literals
            f"WHERE _epoch = (SELECT max(_epoch) FROM earlier) AND NOT _tombstone AND {' AND '.join(conditions)} "
            "ORDER BY _offset DESC LIMIT 1"
        ).fetchall()
    return EmitCause(*rows[0]) if rows else None
