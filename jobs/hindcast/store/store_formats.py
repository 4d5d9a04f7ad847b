"""Store formats of tables of versions, and the proxy view, which reads an older one as today's. Pure.

| format | columns beside the key's and the value's | one row is |
| --- | --- | --- |
| `latest` | | the value of a key |
| `timestamped` | `timestamp` | the value of a key, and since when it is true |
| `versioned` | `validFrom`, `validTo` | the value of a key in a period |
| `bitemporal` | these, `systemFrom`, `systemTo`, `_partition`, `_offset`, `_belief` | today's |

A row of an older format lacks columns of later ones. The proxy view adds them, row by row: a row without systemFrom is
not migrated to today's format yet. An unknown time has a surrogate (KIP-258): timestamp -1.

    latest        8                  ->    8 [1969-12-31 23:59:59.999, null)    believed since the table was adopted
    timestamped   8 @0               ->    8 [0, null)
    versioned     8 [0, 4)           ->    8 [0, 4)
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

FORMATS: dict[str, tuple[str, ...]] = {
    "latest": (),
    "timestamped": ("timestamp",),
    "versioned": ("validFrom", "validTo"),
    "bitemporal": ("validFrom", "validTo", "systemFrom", "systemTo"),
}
"""The period columns of each format, the oldest first."""

CURRENT_FORMAT = "bitemporal"

FORMAT_PROPERTY = "hindcast.format"
"""The property of a table that has rows of an older format; JSON of `OlderFormat`."""

DOWNGRADE_PROPERTY = "hindcast.since"
"""The property of a table that a downgrade made: the moment (ISO 8601) before which its rows were believed."""

UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
"""The surrogate of an unknown moment: KIP-258's timestamp -1."""

ADDED_COLUMNS: dict[str, str] = {
    "validFrom": "timestamp",
    "validTo": "timestamp",
    "systemFrom": "timestamp",
    "systemTo": "timestamp",
    "_partition": "int",
    "_offset": "bigint",
    "_belief": "string",
}
"""The columns of today's format with their types, in their order after the user's."""

INITIAL_ROW_PLACE = -1
"""Partition and offset of rows that come from no record of Kafka; they sort before all that do."""

Dialect = Literal["duckdb", "spark"]


@dataclass(frozen=True)
class OlderFormat:
    """An older format that a table still has rows of.

    `known_at`: since when its rows without systemFrom are believed. `mode`: how they are migrated while runs go on;
    None if they are not, and runs refuse the table.
    """

    format: str
    known_at: datetime
    mode: str | None = None

    def as_json(self) -> str:
        """Return the value of the table property."""
        return json.dumps({"format": self.format, "knownAt": self.known_at.isoformat(), "mode": self.mode})

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> OlderFormat | None:
        """Return the older format in a table's properties; None if all its rows have today's."""
        if FORMAT_PROPERTY not in properties:
            return None
        fields = json.loads(properties[FORMAT_PROPERTY])
        return cls(fields["format"], datetime.fromisoformat(fields["knownAt"]), fields["mode"])


def recognise_format(
    columns: Mapping[str, str], key: Mapping[str, str | None], value: Mapping[str, str | None]
) -> tuple[str, list[str]]:
    """Return the format of a plain table with these columns and types, and what does not fit a contract's columns.

    >>> recognise_format({"item": "string", "price": "int"}, {"item": "string"}, {"price": "int"})
    ('latest', [])
    """
    expected = {**key, **value}
    rest = {name: kind for name, kind in columns.items() if name not in expected}
    problems = [f"no column {name}" for name in expected if name not in columns]
    present = {name: kind for name, kind in expected.items() if name in columns}
    problems += [f"{name} is {columns[name]}, not {kind}" for name, kind in present.items() if columns[name] != kind]
    form = next((name for name, periods in FORMATS.items() if {*periods} == {*rest} and name != CURRENT_FORMAT), None)
    if form is None:
        known = "; ".join(
            f"{name}: {' and '.join(periods) or 'none'}" for name, periods in FORMATS.items() if name != CURRENT_FORMAT
        )
        problems.append(f"besides the contract's columns it has {', '.join(rest)}; a store format may have ({known})")
    problems += [
        f"{name} is {rest[name]}, not timestamp" for name in FORMATS[form or "latest"] if rest[name] != "timestamp"
    ]
    return form or CURRENT_FORMAT, problems


def proxy_columns(older: OlderFormat, columns: Collection[str], dialect: Dialect) -> dict[str, str]:
    """Return the proxy view: today's columns as SQL over rows with `columns`; rows of today's form are unchanged."""

    def column(name: str) -> str:
        return f'"{name}"' if dialect == "duckdb" else f"`{name}`"

    def moment(at: datetime) -> str:
        return f"{'TIMESTAMPTZ' if dialect == 'duckdb' else 'TIMESTAMP'} '{at.astimezone(UTC).isoformat(' ')}'"

    def own(name: str) -> str:
        kind = "TIMESTAMPTZ" if (dialect, ADDED_COLUMNS[name]) == ("duckdb", "timestamp") else ADDED_COLUMNS[name]
        return column(name) if name in columns else f"CAST(NULL AS {kind})"

    since = [own("validFrom")] + [column("timestamp")] * (older.format == "timestamped" and "timestamp" in columns)
    belief = f"CASE WHEN {own('validTo')} IS NULL THEN 'open' ELSE 'past' END"
    return {
        "validFrom": f"coalesce({', '.join([*since, moment(UNKNOWN_TIME)])})",
        "validTo": own("validTo"),
        "systemFrom": f"coalesce({own('systemFrom')}, {moment(older.known_at)})",
        "systemTo": own("systemTo"),
        "_partition": f"coalesce({own('_partition')}, CAST({INITIAL_ROW_PLACE} AS INT))",
        "_offset": f"coalesce({own('_offset')}, CAST({INITIAL_ROW_PLACE} AS BIGINT))",
        "_belief": f"coalesce({own('_belief')}, {belief})",
    }


def user_columns(names: Collection[str]) -> list[str]:
    """Return the user's columns among those of a table of versions, dropped ones included."""
    ours = {*ADDED_COLUMNS, *itertools.chain(*FORMATS.values())}
    return [name for name in names if name not in ours]


def is_within_format(form: str, columns: Collection[str]) -> bool:
    """Return whether a table with these columns has nothing beyond an older format."""
    ours = {*ADDED_COLUMNS, *itertools.chain(*FORMATS.values())}
    return not {*columns} & (ours - {*FORMATS[form]})


def older_rows_query(form: str) -> tuple[str, dict[str, str]]:
    """Return the condition and period columns, as Spark SQL, that select from a table the rows of an older format.

    Current rows; for `latest` and `timestamped` those that are true until changed. What nobody knows is null.
    """
    believed = "systemTo IS NULL AND _belief <> 'superseded'"
    match form:
        case "versioned":
            return believed, {"validFrom": "validFrom", "validTo": "validTo"}
        case "timestamped":
            unknown = f"TIMESTAMP '{UNKNOWN_TIME.isoformat(' ')}'"
            return f"{believed} AND validTo IS NULL", {"timestamp": f"nullif(validFrom, {unknown})"}
        case _:
            return f"{believed} AND validTo IS NULL", {}
