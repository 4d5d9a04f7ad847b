"""Predicates: the questions about a table as SQL, with one meaning for everybody (KIP-960, 968 and 969, system axis).

The conditions are SQL as DuckDB and Trino read it; `translate_to_spark` gives the same for Spark. S, T, T1 and T2 are
moments:

- as known at S: `systemFrom <= S AND (systemTo IS NULL OR systemTo > S)`
- as of T: versions `validFrom <= T AND (validTo IS NULL OR validTo > T)`, events `"timestamp" <= T`, windows
  `windowStart <= T`
- from T1 to T2, both included: versions `validFrom <= T2 AND (validTo IS NULL OR validTo > T1)`, events
  `"timestamp" >= T1 AND "timestamp" <= T2`, windows `windowStart <= T2 AND windowEnd >= T1`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import sqlglot
from sqlglot import exp

from hindcast.common.column_values import ColumnValue
from hindcast.common.errors import QueryError, suggest_nearest
from hindcast.contract.shapes import PERIODS

ORDERS = ("time", "time-desc", "key", "key-desc")
"""What rows can be ordered by."""

FIRST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
"""The first moment that a Kafka record can have: all times are those from it on."""

LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
"""The last moment that Python can tell."""

_SYSTEM_COLUMNS = ("systemFrom", "systemTo")


def parse_micros(micros: int | None) -> datetime | None:
    """Return a moment from microseconds since 1970; None for None, and if Python has no such moment."""
    try:
        return None if micros is None else FIRST_MOMENT + timedelta(microseconds=micros)
    except OverflowError:
        return None


@dataclass(frozen=True)
class Question:
    """A question about a table; a field that is left out sets no bound, except `as_of` and `known_at`.

    `key`: a value per key column, None for null. `from_key`, `to_key`: values of the key's leading columns; keys from
    one to the other, both included. Values may be texts, as `hindcast query` prints them.
    `as_of`: the moment at which rows are true; for versions it is now if no time is given.
    `from_time`, `to_time`: rows true at some moment between them, both included, instead of `as_of`.
    `known_at`: the moment at which rows were current; the known-at of the last completed run if left out.
    `order`: some of `ORDERS`, the most significant first. Moments without a zone are UTC.
    """

    key: Sequence[ColumnValue] | None = None
    from_key: Sequence[ColumnValue] = ()
    to_key: Sequence[ColumnValue] = ()
    as_of: datetime | None = None
    from_time: datetime | None = None
    to_time: datetime | None = None
    known_at: datetime | None = None
    order: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("as_of", "from_time", "to_time", "known_at"):
            moment = getattr(self, name)
            if moment is not None and not isinstance(moment, datetime):
                fix = "give a datetime; read.moment_of(warehouse, pipeline, text) makes one of a text or a run: run:1"
                raise QueryError(f"{name} is {moment!r}, no datetime", fix=fix)
            if moment is not None:
                object.__setattr__(self, name, _convert_to_utc(name, moment))
        if self.as_of and (self.from_time or self.to_time):
            raise QueryError("as of one moment and between two were asked at once", fix="ask one of them")
        if self.from_time and self.to_time and self.from_time > self.to_time:
            raise QueryError(
                f"the times are reversed: from {self.from_time.isoformat()} to {self.to_time.isoformat()}",
                fix="ask from the earlier to the later one",
            )
        for word in self.order:
            if word not in ORDERS:
                raise QueryError(f"rows cannot be ordered by '{word}'", fix=suggest_nearest(word, ORDERS))


def _convert_to_utc(name: str, moment: datetime) -> datetime:
    """Return a moment in UTC, which it is in if it has no zone; QueryError if it has no such moment."""
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        fix = "give a moment between the years 1 and 9999, in UTC"
        raise QueryError(f"{name} is {moment.isoformat()}, which no year of UTC has", fix=fix) from None


def known_at_condition(moment: str) -> str:
    """Return the condition of rows that were current at a moment (an SQL expression)."""
    return f"systemFrom <= {moment} AND (systemTo IS NULL OR systemTo > {moment})"


def as_of_condition(kind: str, moment: str) -> str:
    """Return the condition of rows true at a moment (an SQL expression): versions valid then, events up to then."""
    if kind == "versions":
        return f"validFrom <= {moment} AND (validTo IS NULL OR validTo > {moment})"
    return f"windowStart <= {moment}" if kind == "windows" else f'"timestamp" <= {moment}'


def during_condition(kind: str, start: str | None, end: str | None) -> str:
    """Return the condition of rows true at some moment from `start` to `end`, both included (SQL expressions)."""
    if kind == "versions":
        bounds = {"validFrom <=": end, "validTo IS NULL OR validTo >": start}
    elif kind == "windows":
        bounds = {"windowStart <=": end, "windowEnd >=": start}
    else:
        bounds = {'"timestamp" >=': start, '"timestamp" <=': end}
    conditions = [f"{bound} {moment}" for bound, moment in bounds.items() if moment]
    return " AND ".join(f"({one})" if " OR " in one else one for one in conditions) or "true"


def window_closed_column(up_to: str) -> str:
    """Return the SQL of the column `windowClosed`: whether a window takes no more events.

    `up_to`: `windows.latest_closed_end`, as SQL.
    """
    return f"coalesce(windowEnd <= {up_to}, false) AS windowClosed"


def question_condition(kind: str, question: Question, key: Mapping[str, pa.DataType], known: datetime) -> str:
    """Return the condition of rows that answer a question, known at `known`; `key`: the key's columns and types.

    QueryError for values that do not fit the key, and for reversed bounds.
    """
    conditions = [known_at_condition(sql_literal(known))]
    if question.from_time or question.to_time:
        start, end = (sql_literal(moment) if moment else None for moment in (question.from_time, question.to_time))
        conditions.append(during_condition(kind, start, end))
    elif kind == "versions" or question.as_of:
        conditions.append(as_of_condition(kind, sql_literal(question.as_of or datetime.now(UTC))))
    return " AND ".join([*conditions, *key_conditions(question, key)])


def key_conditions(question: Question, key: Mapping[str, pa.DataType]) -> list[str]:
    """Return the conditions that a question sets on the key; QueryError as for `question_condition`."""
    conditions = []
    if question.key is not None:
        if len(question.key) != len(key):
            raise QueryError(
                f"{_format_count(len(question.key), 'value')} for a key of {_format_count(len(key), 'column')}",
                fix=f"give {', '.join(key)}",
            )
        conditions += [
            f'"{column}" IS NULL' if value is None else f'"{column}" = {sql_literal(_parse_value(column, kind, value))}'
            for (column, kind), value in zip(key.items(), question.key, strict=True)
        ]
    lower, upper = (
        [_parse_value(column, kind, value) for (column, kind), value in zip(key.items(), bound, strict=False)]
        for bound in (question.from_key, question.to_key)
    )
    shared = min(len(lower), len(upper))
    if shared and lower[:shared] > upper[:shared]:
        raise QueryError(
            f"the keys are reversed: from {lower[0]} to {upper[0]}", fix="ask from the lesser to the greater"
        )
    columns = [f'"{column}"' for column in key]
    return [
        *conditions,
        *(_key_bound_condition(columns, bound, sign) for bound, sign in ((lower, ">"), (upper, "<")) if bound),
    ]


class ColumnBound(NamedTuple):
    """The bounds of a column in an answer: from `least` to `most` (None: no bound), or null if `or_null`."""

    column: str
    least: int | str | datetime | None = None
    most: int | str | datetime | None = None
    or_null: bool = False


def question_bounds(
    kind: str, question: Question, key: Mapping[str, pa.DataType], known: datetime
) -> list[ColumnBound]:
    """Return the bounds of columns that `question_condition` implies, to skip files; rows within them may not match."""
    bounds = [
        ColumnBound("systemFrom", most=known),
        ColumnBound("systemTo", least=known, or_null=True),
        *key_bounds(question, key),
    ]
    start, end = question.from_time, question.to_time
    if not (start or end) and (kind == "versions" or question.as_of):
        start, end = (question.as_of or datetime.now(UTC),) * 2
        start = start if kind == "versions" else None
    first, last = PERIODS[kind][0], PERIODS[kind][-1]
    return [*bounds, ColumnBound(first, most=end), ColumnBound(last, least=start, or_null=True)]


def key_bounds(question: Question, key: Mapping[str, pa.DataType]) -> list[ColumnBound]:
    """Return the bounds of the key's columns that follow from a question's key."""
    values = zip(key.items(), question.key or (), strict=False)
    parsed = (
        (column, None if value is None else _parse_value(column, kind, value)) for (column, kind), value in values
    )
    return [ColumnBound(column, value, value) for column, value in parsed if isinstance(value, int | str | datetime)]


def order_columns(
    kind: str, key: Sequence[str], lineage: Sequence[str], order: Sequence[str]
) -> list[tuple[str, bool]]:
    """Return the columns to sort by, and whether descending; nulls are later than any time, greater than any key."""
    columns = {"time": (*PERIODS[kind], *_SYSTEM_COLUMNS), "key": tuple(key)}
    directions: dict[str, bool] = {}
    for word in (*order, "time", "key"):
        name, _, direction = word.partition("-")
        directions |= {column: direction == "desc" for column in columns[name] if column not in directions}
    return [*directions.items(), *((column, False) for column in lineage)]


def spark_timestamp(at: datetime) -> str:
    """Return a moment as a Spark SQL timestamp."""
    return f"TIMESTAMP '{at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ')} UTC'"


def sql_literal(value: ColumnValue) -> str:
    """Return a value as an SQL literal."""
    match value:
        case None:
            return "NULL"
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
    return exp.Literal.string(str(value)).sql(dialect="duckdb")


def translate_to_spark(text: str) -> str:
    """Return a condition as Spark SQL in which `${x}` in a value stays as it is, whatever the session's settings.

    >>> translate_to_spark("item = '${x}'")
    "item = CONCAT('$', '{x}')"
    """
    tree = sqlglot.parse_one(text, dialect="duckdb")
    for value in list(tree.find_all(exp.Literal)):
        if value.is_string and "${" in value.name:
            parts = [f"{{{part}" if n else part for n, part in enumerate(value.name.split("${"))]
            ends = [*(f"{part}$" for part in parts[:-1]), parts[-1]]
            value.replace(exp.func("CONCAT", *map(exp.Literal.string, ends)))
    return tree.sql(dialect="spark")


def _key_bound_condition(columns: Sequence[str], bound: Sequence[ColumnValue], sign: str) -> str:
    """Return the condition of keys at or beyond a bound on their leading columns, compared column by column."""
    column, value, rest = columns[0], sql_literal(bound[0]), bound[1:]
    if not rest:
        return f"{column} {sign}= {value}"
    return f"({column} {sign} {value} OR {column} = {value} AND {_key_bound_condition(columns[1:], rest, sign)})"


_TYPE_NAMES = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"}
"""Arrow's names of types that have another in contracts."""


def _parse_value(column: str, kind: pa.DataType, value: ColumnValue) -> ColumnValue:
    """Return a value in the type of its column; texts as `hindcast query` prints them."""
    text = value.hex() if isinstance(value, bytes) else value.isoformat() if isinstance(value, date) else str(value)
    named = _TYPE_NAMES.get(str(kind), kind)
    problem = QueryError(f"'{text}' is no value of the key column {column}, which is {named}", fix="mend the key")
    if value is None or pa.types.is_nested(kind):
        raise problem
    try:
        if pa.types.is_binary(kind):
            return bytes.fromhex(text)
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                return moment.astimezone(UTC)
            return moment.replace(tzinfo=UTC) if kind.tz else moment
        value = pa.scalar(text.lower() if pa.types.is_boolean(kind) else text, pa.string()).cast(kind).as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        raise problem from None
    return value


def _format_count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
