"""For how long keys show a value that a held record would have ended (`hold: row`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from hindcast.contracts import Contract
from hindcast.contracts.sensitive import sensitive
from hindcast.delta import scan, tables
from hindcast.quality import holds
from hindcast.quality.units import holds_records
from hindcast.questions import END, Bound


def read_overdue(warehouse: str, contract: Contract, run: int, known_at: datetime) -> dict[str, dict[str, Any]]:
    """Return, by table, how many `keys` show a value that a record held after a run would have ended; and of the one
    that does so for longest `key` (*** if it is sensitive), `since`, `until` (null: still) and `seconds`.
    """
    found = {}
    for name in contract.topics:
        if (
            holds_records(contract, name)
            and (overdue := _of_table(warehouse, contract, name, run, known_at)) is not None
        ):
            found[name] = overdue
    return found


def _of_table(warehouse: str, contract: Contract, name: str, run: int, known_at: datetime) -> dict[str, Any] | None:
    table = tables.located(warehouse, contract, name)
    opened = tables.opened(table)
    rows = holds.held(warehouse, contract.pipeline, run)
    if opened is None or name not in rows.column("table").to_pylist():
        return None
    with scan.engine() as engine:
        scan.register(engine, opened, [Bound("systemTo", least=END, or_null=True)])
        engine.register("held", rows)
        types = {column: kind for column, kind, *_ in engine.execute("DESCRIBE rows").fetchall()}
        same = " AND ".join(
            f"r.{scan.quoted(column)} IS NOT DISTINCT FROM TRY_CAST(json_extract_string(key, $k{n}) AS {types[column]})"
            for n, column in enumerate(table.key)
        )
        paths = {f"k{n}": f"$.{scan.quoted(column)}" for n, column in enumerate(table.key)}
        answer = engine.execute(
            f"""
            WITH record AS (
                SELECT key, CAST(json_extract_string("row", '$.validFrom') AS TIMESTAMPTZ) AS since
                FROM held WHERE "table" = $name
            ), overdue AS (
                SELECT key, since, validTo, least(coalesce(validTo, $known_at), $known_at) - since AS lasting
                FROM record JOIN rows r
                ON {same} AND r.validFrom <= since AND (validTo IS NULL OR validTo > since) AND r.systemTo IS NULL
                WHERE since < $known_at
            )
            SELECT count(DISTINCT key) OVER (), key, since, validTo, epoch(lasting) FROM overdue
            ORDER BY lasting DESC, key LIMIT 1
            """,  # noqa: S608  # names are quoted
            {"name": name, "known_at": known_at, **paths},
        ).fetchone()
    if answer is None:
        return None
    keys, key, since, until, seconds = answer
    shown = "***" if sensitive(contract)[name] & set(table.key) else key
    told = {"key": shown, "since": since.isoformat(), "until": until.isoformat() if until else None}
    return {"keys": keys, **told, "seconds": seconds}
