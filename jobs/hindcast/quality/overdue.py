"""Overdue: how long keys have shown a value that a held record would have ended (`hold: row`)."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from hindcast.bitemporal.predicates import LAST_MOMENT, ColumnBound
from hindcast.common.json_values import JsonValue, StoredObject
from hindcast.contract import Contract
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.quality import held_changes
from hindcast.quality.held_units import has_record_hold
from hindcast.store import duckdb_reader, tables


class OverdueKeys(NamedTuple):
    """How many `keys` of a table show a value that a held record would have ended.

    Also, of the `key` that has done so longest (*** if it is sensitive): `since`, `until` (None: still) and `seconds`.
    """

    keys: int
    key: str
    since: datetime
    until: datetime | None
    seconds: float

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form in reports."""
        until = self.until.isoformat() if self.until else None
        return self._asdict() | {"since": self.since.isoformat(), "until": until}

    @classmethod
    def from_json(cls, overdue: StoredObject) -> OverdueKeys:
        """Return the keys from their form in reports."""
        since, until = datetime.fromisoformat(overdue["since"]), overdue["until"]
        ended = datetime.fromisoformat(until) if until else None
        return cls(overdue["keys"], overdue["key"], since, ended, overdue["seconds"])


def read_overdue(warehouse: str, contract: Contract, run: int, known_at: datetime) -> dict[str, OverdueKeys]:
    """Return, by table, the keys that show a value that a record held after a run would have ended."""
    tables_held = (name for name in contract.topics if has_record_hold(contract, name))
    overdue = {name: _read_table_overdue(warehouse, contract, name, run, known_at) for name in tables_held}
    return {name: keys for name, keys in overdue.items() if keys is not None}


def _read_table_overdue(
    warehouse: str, contract: Contract, name: str, run: int, known_at: datetime
) -> OverdueKeys | None:
    table = tables.locate_table(warehouse, contract, name)
    opened = tables.open_table(table)
    rows = held_changes.read_held_rows(warehouse, contract.pipeline, run)
    if opened is None or name not in rows.column("table").to_pylist():
        return None
    with duckdb_reader.open_engine() as engine:
        duckdb_reader.register_rows(engine, opened, [ColumnBound("systemTo", least=LAST_MOMENT, or_null=True)])
        engine.register("held", rows)
        types = {column: kind for column, kind, *_ in engine.execute("DESCRIBE rows").fetchall()}
        same = " AND ".join(
            f"r.{duckdb_reader.quote_name(column)} IS NOT DISTINCT FROM TRY_CAST(json_extract_string(record.key, "
            f"$k{n}) AS {types[column]})"
            for n, column in enumerate(table.key)
        )
        paths = {f"k{n}": f"$.{duckdb_reader.quote_name(column)}" for n, column in enumerate(table.key)}
        answer = engine.execute(
            f"""
            WITH record AS (
                SELECT key, CAST(json_extract_string("row", '$.validFrom') AS TIMESTAMPTZ) AS since
                FROM held WHERE "table" = $name
            ), overdue AS (
                SELECT record.key, record.since, r.validTo,
                       least(coalesce(r.validTo, $known_at), $known_at) - record.since AS lasting
                FROM record JOIN rows r
                ON {same} AND r.validFrom <= record.since AND (r.validTo IS NULL OR r.validTo > record.since)
                   AND r.systemTo IS NULL
                WHERE record.since < $known_at
            )
            SELECT count(DISTINCT key) OVER (), key, since, validTo, epoch(lasting) FROM overdue
            ORDER BY lasting DESC, key LIMIT 1
            """,  # noqa: S608  # names are quoted
            {"name": name, "known_at": known_at, **paths},
        ).fetchone()
    if answer is None:
        return None
    overdue = OverdueKeys(*answer)
    is_sensitive = find_sensitive_columns(contract)[name] & set(table.key)
    return overdue._replace(key="***") if is_sensitive else overdue
