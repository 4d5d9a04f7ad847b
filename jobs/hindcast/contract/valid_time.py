"""A topic's `valid_time`: the expression that says when its records are true. Pure, without Spark.

One of `arrival` (arrival.py) is an expression like it: `field` says which of the two is meant.

It sees the columns of key and value by name, and Kafka's own timestamp as `record_timestamp`, null where a record has
none (KIP-32). Resolved, all of them are fields of one struct, `_record`.

    {value: {ts: bigint}, valid_time: timestamp_millis(ts)}    ->    timestamp_millis(_record.ts)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from sqlglot import expressions as exp

from hindcast.contract.expressions import WRITE_OUT_FIX, find_plain_type, find_type_clash, resolve
from hindcast.contract.moments import find_today_beside
from hindcast.contract.parsing import ExpressionError, find_columns, parse_resolved
from hindcast.contract.shapes import FieldPath
from hindcast.contract.topic import Topic
from hindcast.contract.view_checks import Complaint

RECORD = "_record"
"""The struct that a resolved expression is over; no column of a contract can have this name."""

RECORD_TIMESTAMP = "record_timestamp"
"""Kafka's own timestamp, to the expression."""


TimeField: TypeAlias = Literal["valid_time", "arrival"]


def list_usable_columns(topic: Topic) -> dict[str, str]:
    """Return the columns that the expression can use, with their types."""
    return {**topic.key, **topic.value, RECORD_TIMESTAMP: "timestamp"}


def resolve_time(topic: Topic, field: TimeField = "valid_time") -> str | None:
    """Return the expression over `_record`, None if the topic has none; raise ExpressionError if it is not valid."""
    text = _find_text(topic, field)
    return None if text is None else resolve(text, {RECORD: list(list_usable_columns(topic))})


class TimeColumn(NamedTuple):
    """A column that alone says when a record is true: of `part`, None for Kafka's own timestamp; a number of it has so
    many `micros`.
    """

    part: Literal["key", "value"] | None
    name: str
    micros: int = 1


def find_time_column(topic: Topic, field: TimeField = "valid_time") -> TimeColumn | None:
    """Return the column that the expression is, or of which it is `timestamp_millis` or `timestamp_micros`; else None.

    valid_time: timestamp_millis(ts) -> ts of the value, 1000 us
    """
    if (text := resolve_time(topic, field)) is None:
        return None
    node, micros = parse_resolved(text), 1
    units: tuple[str, ...] = ("timestamp",)
    if isinstance(node, exp.Anonymous) and str(node.this).lower() in _MICROS and len(node.expressions) == 1:
        micros, units = _MICROS[str(node.this).lower()], _WHOLE
        node = node.expressions[0]
    if not isinstance(node, exp.Column) or list_usable_columns(topic).get(node.name) not in units:
        return None
    if node.name == RECORD_TIMESTAMP:
        return TimeColumn(None, node.name)
    return TimeColumn("key" if node.name in topic.key else "value", node.name, micros)


_MICROS = {"timestamp_millis": 1_000, "timestamp_micros": 1}
_WHOLE = ("tinyint", "smallint", "int", "bigint")


def needs_value(topic: Topic) -> bool:
    """Return whether `valid_time` uses a column of the value: a tombstone then has no valid time."""
    return any(name in topic.value for name in _list_named_columns(topic, "valid_time"))


def check_time(location: FieldPath, topic: Topic, field: TimeField = "valid_time") -> Iterator[Complaint]:
    """Yield every complaint about the expression that needs no Spark."""
    written = _find_text(topic, field)
    if written is None:
        return
    here = (*location, field)
    for part in ("key", "value"):
        for name in (name for name in getattr(topic, part) if name.lower() == RECORD_TIMESTAMP):
            found = f"'{name}' is the name of Kafka's own timestamp in {field}"
            yield Complaint((*location, part, name), found, "rename the column")
    try:
        text = resolve_time(topic, field) or ""
    except ExpressionError as error:
        yield Complaint(here, error.found, error.fix)
        return
    types = {f"{RECORD}.{name}": kind for name, kind in list_usable_columns(topic).items()}
    if clash := find_type_clash(text, types):
        yield Complaint(here, clash.replace(f"{RECORD}.", ""), "cast one of them")
    if unstable := find_today_beside(text, types):
        yield Complaint(here, f"{unstable.replace(f'{RECORD}.', '')} depends on the current day", WRITE_OUT_FIX)
    kind = find_plain_type(text, types)
    if kind not in (None, "timestamp"):
        yield Complaint(here, f"{written} is {kind}, not a timestamp", suggest_fix(written, kind))
    if (call := _EPOCH_CALL.fullmatch(text)) and (kind := find_plain_type(call[2], types)) in _NO_EPOCH_TYPES:
        name, argument = call[1].lower(), call[2].replace(f"{RECORD}.", "")
        fix = f"write {name}(cast({argument} AS bigint))" if kind == "string" else suggest_fix(argument, kind)
        yield Complaint(here, f"{name} takes a number, but {argument} is {kind}", fix)
    hidden = list_usable_columns(topic) if topic.sensitive is True else topic.sensitive or ()
    if names := [name for name in _list_named_columns(topic, field) if name in hidden and name != RECORD_TIMESTAMP]:
        found = f"{field} uses {', '.join(names)}, which is sensitive, but periods are shown"
        yield Complaint(here, found, f"list under sensitive: only columns that {field} does not use")


def suggest_fix(text: str, kind: str | None) -> str:
    """Return the fix that converts an expression of another type to a timestamp."""
    match kind:
        case "tinyint" | "smallint" | "int" | "bigint":
            return f"write timestamp_millis({text}), or timestamp_seconds or timestamp_micros, depending on its unit"
        case "timestamp":
            return f"write {text}"
        case "string" | "date":
            return f"write cast({text} AS timestamp)"
        case _:
            return "write an expression that gives a timestamp"


_EPOCH_CALL = re.compile(r"(timestamp_(?:seconds|millis|micros))\((.+)\)", re.IGNORECASE)
_NO_EPOCH_TYPES = ("string", "date", "timestamp", "boolean", "binary")


def _find_text(topic: Topic, field: TimeField) -> str | None:
    """Return the expression as it is written; None for a topic without, or with a header in its place."""
    return topic.valid_time if field == "valid_time" else topic.arrival if topic.arrival_header is None else None


def _list_named_columns(topic: Topic, field: TimeField) -> list[str]:
    """Return the columns that the expression uses, each once."""
    paths = find_columns(resolve_time(topic, field) or "NULL")
    return list(dict.fromkeys(path[1] for path in paths if len(path) > 1))
