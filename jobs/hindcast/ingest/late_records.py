"""Late records: those that became known after a period was closed, and are about it.

    closed: [0, 100) as known after run 1;  run 2 ingests a price of 4, and trips of 9 and 201    ->    4 and 9

They are what a restatement by `records` or by a `requeue` comes from (restatements.py).
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from hindcast.bitemporal.predicates import ColumnBound, sql_literal
from hindcast.contract import Contract
from hindcast.ingest import quarantine
from hindcast.plan.closes import Close
from hindcast.store import duckdb_reader, tables
from hindcast.store.tables import Table

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.string()),
        ("run", pa.int64()),
    ]
)


def list_late_records(warehouse: str, contract: Contract, close: Close, known_at: datetime) -> pa.Table:
    """Return a row for each accepted record of a topic that became known between the known-at of a close and another
    moment, and that is dated before the end of the period; of a stream also not before its start.

    Columns: topic (its name in the contract), partition, offset, timestamp, key (text), run: that which ingested or
    requeued it. Keys are masked as in the quarantine. Records that a trim has removed are left out.
    """
    first, last = sorted((close.known_at, known_at))
    is_hidden = quarantine.find_marks(warehouse, contract)
    rows = list[dict[str, object]]()
    for name, topic in contract.topics.items():
        place, start = (warehouse, contract.pipeline, name), close.start if topic.read == "stream" else None
        for table in (tables.log_table(*place), tables.fates_table(*place)):
            for row in _read_records(table, first, last, start, close.end).to_pylist():
                hidden = is_hidden(contract.kafka_topic(name), row["run"])
                rows.append({"topic": name, **quarantine.mask_key(row, hidden=hidden)})
    return pa.Table.from_pylist(rows, _SCHEMA)


def _read_records(table: Table, first: datetime, last: datetime, start: datetime | None, end: datetime) -> pa.Table:
    """Return records of a log, or of its revised fates, that were accepted by runs known after `first` up to `last`."""
    delta_table = tables.open_table(table)
    if delta_table is None:
        return _SCHEMA.empty_table()
    began = "" if start is None else f'AND "timestamp" >= {sql_literal(start)}'
    with duckdb_reader.open_engine(delta_table) as engine:
        duckdb_reader.register_rows(engine, delta_table, [ColumnBound("systemFrom", least=first, most=last)])
        return engine.sql(
            f"""
            SELECT "partition", "offset", "timestamp", key, run FROM rows
            WHERE fate = 'accepted' AND "systemFrom" > {sql_literal(first)} AND "systemFrom" <= {sql_literal(last)}
              AND "timestamp" < {sql_literal(end)} {began}
            ORDER BY run, "partition", "offset"
            """  # noqa: S608  # literals
        ).to_arrow_table()
