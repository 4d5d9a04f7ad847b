"""Reading tables back, without Spark: what was true then, and what was believed then.

One meaning of both questions, as SQL conditions that any engine with the four period columns can ask:

- as known at S: `systemFrom <= S AND (systemTo IS NULL OR systemTo > S)`
- as of T, versions: `validFrom <= T AND (validTo IS NULL OR validTo > T)`; events: those up to T, `timestamp <= T`
- from T1 to T2, both included, versions (KIP-968): `validFrom <= T2 AND (validTo IS NULL OR validTo > T1)`; events:
  `timestamp BETWEEN T1 AND T2`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from hindcast import journal, tables
from hindcast.contracts import Contract
from hindcast.contracts.shapes import PERIODS
from hindcast.errors import QueryError, nearest
from hindcast.tables import Table

_EARLIEST, _LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
_SYSTEM = ("systemFrom", "systemTo")


def known_at(moment: str) -> str:
    """The SQL condition of what was believed at a moment (an SQL expression)."""
    return f"systemFrom <= {moment} AND (systemTo IS NULL OR systemTo > {moment})"


def as_of(kind: str, moment: str) -> str:
    """The SQL condition of what was true at a moment (an SQL expression): versions valid then, events up to then."""
    if kind == "versions":
        return f"validFrom <= {moment} AND (validTo IS NULL OR validTo > {moment})"
    if kind == "windows":
        return f"windowStart <= {moment}"
    return f'"timestamp" <= {moment}'


def during(kind: str, start: str, end: str) -> str:
    """The SQL condition of what was true at some moment from `start` to `end`, both included (SQL expressions)."""
    if kind == "versions":
        return f"validFrom <= {end} AND (validTo IS NULL OR validTo > {start})"
    if kind == "windows":
        return f"windowStart <= {end} AND windowEnd >= {start}"
    return f'"timestamp" BETWEEN {start} AND {end}'


def query(
    warehouse: str,
    contract: Contract,
    name: str,
    *,
    key: Sequence[str] | None = None,
    key_range: tuple[str | None, str | None] | None = None,
    as_of_: datetime | None = None,
    between: tuple[datetime | None, datetime | None] | None = None,
    known: datetime | None = None,
) -> pa.Table:
    """The rows of a table that were true as of one moment, or between two, as known at another (KIP-960, 968, 969).

    `key`: one text per key column, compared with the column cast to text; all keys if left out. `key_range`: texts from
    and to which the key's first column lies, both included, null for no bound. `as_of_`: for versions now if left out,
    for events all there are. `between`: two moments, both included, null for no bound; in place of `as_of_`. `known`:
    the known-at of the last completed run if left out.
    Columns: the user's, and the periods; validFrom (timestamp) is when the row became true, systemFrom when it was
    learnt. QueryError for an unknown table or a key of the wrong length.
    """
    table = locate(warehouse, contract, name)
    moment = known or last_known_at(warehouse, contract.pipeline)
    conditions = [known_at("?::TIMESTAMPTZ")]
    values: list[Any] = [moment, moment]
    if as_of_ and between:
        raise QueryError("as of one moment and between two were asked at once", mend="ask one of them")
    if between is not None:
        start, end = between[0] or _EARLIEST, between[1] or _LATEST
        conditions.append(during(table.kind, "?::TIMESTAMPTZ", "?::TIMESTAMPTZ"))
        values += [start, end] if table.kind in ("events", "pairs") else [end, start]
    elif table.kind == "versions" or as_of_:
        asked = as_of_ or datetime.now(UTC)
        conditions.append(as_of(table.kind, "?::TIMESTAMPTZ"))
        values += [asked] * conditions[-1].count("?")
    if key_range is not None:
        for bound, sign in zip(key_range, (">=", "<="), strict=True):
            if bound is not None:
                conditions.append(f'CAST("{table.key[0]}" AS VARCHAR) {sign} ?')
                values.append(bound)
    return _select(table, conditions, values, key, PERIODS[table.kind])


def history(warehouse: str, contract: Contract, name: str, *, key: Sequence[str] | None = None) -> pa.Table:
    """Every row ever believed about a key, with both periods, by valid time and then by system time."""
    table = locate(warehouse, contract, name)
    last_known_at(warehouse, contract.pipeline)
    return _select(table, ["true"], [], key, PERIODS[table.kind])


def locate(warehouse: str, contract: Contract, name: str) -> Table:
    """The table of a topic or view of the contract."""
    names = [*contract.topics, *contract.views]
    if name not in names:
        raise QueryError(f"no table '{name}'", where=contract.pipeline, mend=nearest(name, names))
    return tables.located(warehouse, contract, name)


def last_known_at(warehouse: str, pipeline: str) -> datetime:
    """The known-at of the last completed run."""
    completed = [run.known_at for run in journal.runs(warehouse, pipeline) if run.state == "completed"]
    if not completed:
        raise QueryError(
            "no run has been completed yet", where=f"{warehouse}/{pipeline}", mend=f"hindcast run {pipeline}"
        )
    return max(completed)


def moment_of(warehouse: str, pipeline: str, text: str) -> datetime:
    """A moment as a user writes it: an ISO time (UTC if it has no offset), or `run:3` for the known-at of a run."""
    if text.startswith("run:"):
        known = {str(run.number): run.known_at for run in journal.runs(warehouse, pipeline)}
        number = text.removeprefix("run:")
        if number not in known:
            raise QueryError(f"no run '{number}'", where=pipeline, mend=nearest(number, known))
        return known[number]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise QueryError(
            f"'{text}' is not a moment", mend="write 2026-01-01, 2026-01-01T00:03:00+00:00 or run:1"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def key_of(table: Table, text: str) -> list[str]:
    """A key as a user writes it: the text of its one column, or a JSON object of all."""
    if len(table.key) == 1:
        return [text]
    try:
        given = json.loads(text)
        return [_plain(given[column]) for column in table.key]
    except (ValueError, TypeError, KeyError):
        example = json.dumps(dict.fromkeys(table.key, "..."))
        raise QueryError(f"'{text}' is not a key of {table.name}", mend=f"write it as JSON: {example}") from None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _select(
    table: Table, conditions: Sequence[str], values: Sequence[Any], key: Sequence[str] | None, periods: Sequence[str]
) -> pa.Table:
    found = tables.opened(table)
    if found is None:
        raise QueryError("the table has not been published yet", where=table.path, mend="run the pipeline first")
    conditions, values = list(conditions), list(values)
    if key is not None:
        if len(key) != len(table.key):
            raise QueryError(
                f"{len(key)} values were given for a key of {len(table.key)} columns",
                where=f"{table.pipeline}.{table.name}",
                mend=f"give {', '.join(table.key)}",
            )
        conditions += [f'CAST("{column}" AS VARCHAR) = ?' for column in table.key]
        values += key
    rows = found.to_pyarrow_dataset()
    places = [f.name for f in rows.schema if f.name.startswith("_") and f.name != "_belief"]
    order = [*periods, *_SYSTEM, *table.key, *places]
    columns = [f.name for f in rows.schema if not f.name.startswith("_") and f.name not in (*periods, *_SYSTEM)]
    shown = ", ".join(f'"{c}"' for c in [*columns, *periods, *_SYSTEM])
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("rows", rows)
        by = ", ".join(f'"{c}"' for c in order)
        text = f"SELECT {shown} FROM rows WHERE {' AND '.join(conditions)} ORDER BY {by}"  # noqa: S608  # names of ours
        return engine.sql(text, params=values).to_arrow_table()
