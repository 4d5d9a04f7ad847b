"""Store formats of tables of versions, and the proxy view: how a table of an older one is read as one of today's. Pure.

| format | columns beside the key's and the value's | one row is |
| --- | --- | --- |
| `latest` | | the value of a key |
| `timestamped` | `timestamp` | the value of a key, and since when it is true |
| `versioned` | `validFrom`, `validTo` | what was true of a key, and when |
| `bitemporal` | these, `systemFrom`, `systemTo`, `_partition`, `_offset`, `_belief` | today's |

A row of an older format lacks what later ones have. The proxy view puts it in, row by row: a row without systemFrom is
one that was not brought to today's form yet. What nobody knows has a surrogate (KIP-258): timestamp -1.

    latest        8                  ->    8 [1969-12-31 23:59:59.999, null)    believed since the table was adopted
    timestamped   8 @0               ->    8 [0, null)
    versioned     8 [0, 4)           ->    8 [0, 4)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

FORMATS: dict[str, tuple[str, ...]] = {
    "latest": (),
    "timestamped": ("timestamp",),
    "versioned": ("validFrom", "validTo"),
    "bitemporal": ("validFrom", "validTo", "systemFrom", "systemTo"),
}
"""The period columns of each format, the oldest first."""

TODAY = "bitemporal"

PROPERTY = "hindcast.format"
"""The table property of one that has rows of an older format, JSON: `Older`."""

SINCE = "hindcast.since"
"""The table property of one that a downgrade took from what was believed before a moment (ISO 8601): that moment."""

UNKNOWN = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
"""The surrogate of a moment that nobody knows: KIP-258's timestamp -1."""

OURS: dict[str, str] = {
    "validFrom": "timestamp",
    "validTo": "timestamp",
    "systemFrom": "timestamp",
    "systemTo": "timestamp",
    "_partition": "int",
    "_offset": "bigint",
    "_belief": "string",
}
"""The columns of today's format with their types, in their order after the user's."""

BASE = -1
"""Partition and offset of rows that come from no record of Kafka: before all that do."""

Dialect = Literal["duckdb", "spark"]


@dataclass(frozen=True)
class Older:
    """What a table says that has rows of an older format.

    `known_at`: since when its rows without systemFrom are believed. `mode`: how it is brought to today's format while
    runs go on; null if it is not, and runs refuse it.
    """

    format: str
    known_at: datetime
    mode: str | None = None

    def as_json(self) -> str:
        """The form in the table property."""
        return json.dumps({"format": self.format, "knownAt": self.known_at.isoformat(), "mode": self.mode})

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Older | None:
        """What the properties of a table tell; None for one that has only rows of today's format."""
        if PROPERTY not in properties:
            return None
        told = json.loads(properties[PROPERTY])
        return cls(told["format"], datetime.fromisoformat(told["knownAt"]), told["mode"])


def recognised(there: Mapping[str, str], key: Mapping[str, Any], value: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The format of a plain table with these columns and types, and what is wrong with it for a contract's columns.

    >>> recognised({"item": "string", "price": "int"}, {"item": "string"}, {"price": "int"})
    ('latest', [])
    """
    wanted = {**key, **value}
    rest = {name: kind for name, kind in there.items() if name not in wanted}
    wrong = [f"no column {name}" for name in wanted if name not in there]
    wrong += [f"{n} is {there[n]}, not {kind}" for n, kind in wanted.items() if n in there and there[n] != kind]
    found = next((name for name, periods in FORMATS.items() if {*periods} == {*rest} and name != TODAY), None)
    if found is None:
        known = "; ".join(
            f"{name}: {' and '.join(periods) or 'none'}" for name, periods in FORMATS.items() if name != TODAY
        )
        wrong.append(f"beside the contract's columns it has {', '.join(rest)}; a format may have ({known})")
    wrong += [
        f"{name} is {rest[name]}, not timestamp" for name in FORMATS[found or "latest"] if rest[name] != "timestamp"
    ]
    return found or TODAY, wrong


def proxy(older: Older, there: Collection[str], dialect: Dialect) -> dict[str, str]:
    """The proxy view: today's columns (`OURS`) as SQL over the rows of a table that has the columns `there`.

    A row that is of today's form already is shown as it is, whatever the table lacks no more.
    """

    def column(name: str) -> str:
        return f'"{name}"' if dialect == "duckdb" else f"`{name}`"

    def moment(at: datetime) -> str:
        return f"{'TIMESTAMPTZ' if dialect == 'duckdb' else 'TIMESTAMP'} '{at.astimezone(UTC).isoformat(' ')}'"

    def own(name: str) -> str:
        kind = {"timestamp": "TIMESTAMPTZ"} if dialect == "duckdb" else {}
        return column(name) if name in there else f"CAST(NULL AS {kind.get(OURS[name], OURS[name])})"

    since = [own("validFrom")] + [column("timestamp")] * (older.format == "timestamped" and "timestamp" in there)
    belief = f"CASE WHEN {own('validTo')} IS NULL THEN 'open' ELSE 'past' END"
    return {
        "validFrom": f"coalesce({', '.join([*since, moment(UNKNOWN)])})",
        "validTo": own("validTo"),
        "systemFrom": f"coalesce({own('systemFrom')}, {moment(older.known_at)})",
        "systemTo": own("systemTo"),
        "_partition": f"coalesce({own('_partition')}, CAST({BASE} AS INT))",
        "_offset": f"coalesce({own('_offset')}, CAST({BASE} AS BIGINT))",
        "_belief": f"coalesce({own('_belief')}, {belief})",
    }


def users(there: Collection[str]) -> list[str]:
    """The columns that are the user's, of a table of versions that has the columns `there`; also dropped ones."""
    periods = {name for columns in FORMATS.values() for name in columns}
    return [name for name in there if name not in OURS and name not in periods]


def cut(form: str, there: Collection[str]) -> bool:
    """Whether a table with the columns `there` has nothing beyond an older format."""
    return not {*there} & ({*OURS} - {*FORMATS[form]})


def older_rows(form: str) -> tuple[str, dict[str, str]]:
    """What of a table's rows a table of an older format has: a condition, and its period columns; SQL for Spark.

    Believed rows; of `latest` and `timestamped` those that are true until changed. What nobody knows is null.
    """
    believed = "systemTo IS NULL AND _belief <> 'superseded'"
    match form:
        case "versioned":
            return believed, {"validFrom": "validFrom", "validTo": "validTo"}
        case "timestamped":
            unknown = f"TIMESTAMP '{UNKNOWN.isoformat(' ')}'"
            return f"{believed} AND validTo IS NULL", {"timestamp": f"nullif(validFrom, {unknown})"}
        case _:
            return f"{believed} AND validTo IS NULL", {}
