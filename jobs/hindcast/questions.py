"""What can be asked of a table, as SQL: one meaning, whoever asks (KIP-960, 968 and 969, and the system axis).

The conditions are SQL as DuckDB and Trino read it; `spark` gives the same for Spark. S, T, T1 and T2 are moments:

- as known at S: `systemFrom <= S AND (systemTo IS NULL OR systemTo > S)`
- as of T: versions `validFrom <= T AND (validTo IS NULL OR validTo > T)`, events `"timestamp" <= T`, windows
  `windowStart <= T`
- from T1 to T2, both included: versions `validFrom <= T2 AND (validTo IS NULL OR validTo > T1)`, events
  `"timestamp" >= T1 AND "timestamp" <= T2`, windows `windowStart <= T2 AND windowEnd >= T1`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import sqlglot
from sqlglot import exp

from hindcast.contracts.shapes import PERIODS
from hindcast.errors import QueryError, nearest

ORDERS = ("time", "time-desc", "key", "key-desc")
"""What rows can be ordered by."""

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
"""The first moment that a Kafka record can have: all times are those from it on."""

END = datetime.max.replace(tzinfo=UTC)
"""The last moment that Python can tell."""

_SYSTEM = ("systemFrom", "systemTo")


@dataclass(frozen=True)
class Question:
    """What is asked of a table; what is left out bounds nothing, but for `as_of` and `known_at`.

    `key`: a value per key column, None for null. `from_key`, `to_key`: values of the key's leading columns, between
    which keys lie, both included. Values may be texts, as `hindcast query` prints them.
    `as_of`: the moment at which rows are true; of versions it is now if left out and no time is given.
    `from_time`, `to_time`: rows true at some moment between them, both included, in place of `as_of`.
    `known_at`: the moment at which rows were believed; the known-at of the last completed run if left out.
    `order`: some of `ORDERS`, the first one first. Moments without a zone are UTC.
    """

    key: Sequence[Any] | None = None
    from_key: Sequence[Any] = ()
    to_key: Sequence[Any] = ()
    as_of: datetime | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None
    known_at: datetime | None = None
    order: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("as_of", "from_time", "to_time", "known_at"):
            moment = getattr(self, name)
            if moment is not None and not isinstance(moment, datetime):
                mend = "give a datetime; read.moment_of(warehouse, pipeline, text) makes one of a text or a run: run:1"
                raise QueryError(f"{name} is {moment!r}, no datetime", mend=mend)
            if moment and moment.tzinfo is None:
                object.__setattr__(self, name, moment.replace(tzinfo=UTC))
        if self.as_of and (self.from_time or self.to_time):
            raise QueryError("as of one moment and between two were asked at once", mend="ask one of them")
        if self.from_time and self.to_time and self.from_time > self.to_time:
            raise QueryError(
                f"the times are reversed: from {self.from_time.isoformat()} to {self.to_time.isoformat()}",
                mend="ask from the earlier to the later one",
            )
        for word in self.order:
            if word not in ORDERS:
                raise QueryError(f"rows cannot be ordered by '{word}'", mend=nearest(word, ORDERS))


def known_at(moment: str) -> str:
    """The condition of what was believed at a moment (an SQL expression)."""
    return f"systemFrom <= {moment} AND (systemTo IS NULL OR systemTo > {moment})"


def as_of(kind: str, moment: str) -> str:
    """The condition of what was true at a moment (an SQL expression): versions valid then, events up to then."""
    if kind == "versions":
        return f"validFrom <= {moment} AND (validTo IS NULL OR validTo > {moment})"
    return f"windowStart <= {moment}" if kind == "windows" else f'"timestamp" <= {moment}'


def during(kind: str, start: str | None, end: str | None) -> str:
    """The condition of what was true at some moment from `start` to `end`, both included (SQL expressions)."""
    if kind == "versions":
        bounds = {"validFrom <=": end, "validTo IS NULL OR validTo >": start}
    elif kind == "windows":
        bounds = {"windowStart <=": end, "windowEnd >=": start}
    else:
        bounds = {'"timestamp" >=': start, '"timestamp" <=': end}
    told = [f"{bound} {moment}" for bound, moment in bounds.items() if moment]
    return " AND ".join(f"({one})" if " OR " in one else one for one in told) or "true"


def closed(up_to: str) -> str:
    """The column `windowClosed`: whether a window takes no further event (windows.closed_up_to, an SQL expression)."""
    return f"coalesce(windowEnd <= {up_to}, false) AS windowClosed"


def conditions(kind: str, question: Question, key: Mapping[str, pa.DataType], known: datetime) -> str:
    """The condition of the rows that answer a question, believed at `known`; `key`: the key's columns and types.

    QueryError for values that are no such key, and for reversed bounds.
    """
    told = [known_at(literal(known))]
    if question.from_time or question.to_time:
        start, end = (literal(moment) if moment else None for moment in (question.from_time, question.to_time))
        told.append(during(kind, start, end))
    elif kind == "versions" or question.as_of:
        told.append(as_of(kind, literal(question.as_of or datetime.now(UTC))))
    return " AND ".join([*told, *keys(question, key)])


def keys(question: Question, key: Mapping[str, pa.DataType]) -> list[str]:
    """The conditions on the key."""
    told = []
    if question.key is not None:
        if len(question.key) != len(key):
            raise QueryError(
                f"{_counted(len(question.key), 'value')} for a key of {_counted(len(key), 'column')}",
                mend=f"give {', '.join(key)}",
            )
        told += [
            f'"{column}" IS NULL' if value is None else f'"{column}" = {literal(_typed(column, kind, value))}'
            for (column, kind), value in zip(key.items(), question.key, strict=True)
        ]
    lower, upper = (
        [_typed(column, kind, value) for (column, kind), value in zip(key.items(), bound, strict=False)]
        for bound in (question.from_key, question.to_key)
    )
    shared = min(len(lower), len(upper))
    if shared and lower[:shared] > upper[:shared]:
        raise QueryError(
            f"the keys are reversed: from {lower[0]} to {upper[0]}", mend="ask from the lesser to the greater"
        )
    columns = [f'"{column}"' for column in key]
    return [*told, *(_beyond(columns, bound, sign) for bound, sign in ((lower, ">"), (upper, "<")) if bound)]


class Bound(NamedTuple):
    """What an answer has in a column: a value from `least` to `most` (None: any), or null if that is allowed."""

    column: str
    least: Any = None
    most: Any = None
    or_null: bool = False


def bounds(kind: str, question: Question, key: Mapping[str, pa.DataType], known: datetime) -> list[Bound]:
    """What `conditions` says of single columns, for those who pass over files; rows within it need not answer."""
    told = [Bound("systemFrom", most=known), Bound("systemTo", least=known, or_null=True), *key_bounds(question, key)]
    start, end = question.from_time, question.to_time
    if not (start or end) and (kind == "versions" or question.as_of):
        start, end = (question.as_of or datetime.now(UTC),) * 2
        start = start if kind == "versions" else None
    first, last = PERIODS[kind][0], PERIODS[kind][-1]
    return [*told, Bound(first, most=end), Bound(last, least=start, or_null=True)]


def key_bounds(question: Question, key: Mapping[str, pa.DataType]) -> list[Bound]:
    """The bounds of the key's columns, where a key is asked for."""
    values = zip(key.items(), question.key or (), strict=False)
    told = ((column, None if value is None else _typed(column, kind, value)) for (column, kind), value in values)
    return [Bound(column, value, value) for column, value in told if isinstance(value, int | str | datetime)]


def ordering(kind: str, key: Sequence[str], lineage: Sequence[str], order: Sequence[str]) -> list[tuple[str, bool]]:
    """The columns to order by, and whether descending; nulls are later than any time and greater than any key."""
    columns = {"time": (*PERIODS[kind], *_SYSTEM), "key": tuple(key)}
    told: dict[str, bool] = {}
    for word in (*order, "time", "key"):
        name, _, direction = word.partition("-")
        told |= {column: direction == "desc" for column in columns[name] if column not in told}
    return [*told.items(), *((column, False) for column in lineage)]


def moment(at: datetime) -> str:
    """A moment as Spark SQL."""
    return f"TIMESTAMP '{at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ')} UTC'"


def literal(value: Any) -> str:
    """A value as SQL."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal():
            return f"{value:f}"
        case float():
            return f"CAST('{value}' AS DOUBLE)"
        case datetime():
            kind = "TIMESTAMPTZ" if value.tzinfo else "TIMESTAMP"
            return f"{kind} '{(value.astimezone(UTC) if value.tzinfo else value).isoformat(' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case bytes():
            return f"from_hex('{value.hex()}')"
    return exp.Literal.string(value).sql(dialect="duckdb")


def spark(text: str) -> str:
    """Write the same SQL for Spark, so that `${x}` in a value means itself in every session, whatever its settings.

    >>> spark("item = '${x}'")
    "item = CONCAT('$', '{x}')"
    """
    tree = sqlglot.parse_one(text, dialect="duckdb")
    for value in list(tree.find_all(exp.Literal)):
        if value.is_string and "${" in value.name:
            parts = [f"{{{part}" if n else part for n, part in enumerate(value.name.split("${"))]
            ends = [*(f"{part}$" for part in parts[:-1]), parts[-1]]
            value.replace(exp.func("CONCAT", *map(exp.Literal.string, ends)))
    return tree.sql(dialect="spark")


def _beyond(columns: Sequence[str], bound: Sequence[Any], sign: str) -> str:
    """The condition of keys that lie at or beyond a bound on their leading columns, compared column by column."""
    column, value, rest = columns[0], literal(bound[0]), bound[1:]
    if not rest:
        return f"{column} {sign}= {value}"
    return f"({column} {sign} {value} OR {column} = {value} AND {_beyond(columns[1:], rest, sign)})"


_NAMES = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"}
"""Arrow's names of types that have another in contracts."""


def _typed(column: str, kind: pa.DataType, value: Any) -> Any:
    """A value as the type of its column; texts as `hindcast query` prints them."""
    text = value.hex() if isinstance(value, bytes) else value.isoformat() if isinstance(value, date) else str(value)
    named = _NAMES.get(str(kind), kind)
    problem = QueryError(f"'{text}' is no value of the key column {column}, which is {named}", mend="mend the key")
    if value is None or pa.types.is_nested(kind):
        raise problem
    try:
        if pa.types.is_binary(kind):
            return bytes.fromhex(text)
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(text)
            return moment.replace(tzinfo=UTC) if kind.tz and not moment.tzinfo else moment
        return pa.scalar(text.lower() if pa.types.is_boolean(kind) else text, pa.string()).cast(kind).as_py()
    except (ValueError, pa.ArrowException):
        raise problem from None


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
