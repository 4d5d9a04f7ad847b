"""A topic's `valid_time`: the expression that says when its records are true. Pure, without Spark.

It sees the columns of key and value by name, and Kafka's own timestamp as `record_timestamp`, null where a record has
none (KIP-32). Resolved, all of them are fields of one struct, `_record`.

    {value: {ts: bigint}, valid_time: timestamp_millis(ts)}    ->    timestamp_millis(_record.ts)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hindcast.contracts.expressions import WRITTEN_OUT, clash, plain_type, resolve
from hindcast.contracts.moments import find_today_beside
from hindcast.contracts.parsing import ExpressionError, find_columns
from hindcast.contracts.topic import Topic
from hindcast.contracts.views import Complaint

RECORD = "_record"
"""The struct that a resolved expression is over; no column of a contract can have this name."""

RECORD_TIMESTAMP = "record_timestamp"
"""Kafka's own timestamp, to the expression."""


def columns(topic: Topic) -> dict[str, str]:
    """What the expression can name, with its type."""
    return {**topic.key, **topic.value, RECORD_TIMESTAMP: "timestamp"}


def resolved(topic: Topic) -> str | None:
    """The expression over `_record`, None if the topic has none; ExpressionError if it cannot be one."""
    return None if topic.valid_time is None else resolve(topic.valid_time, {RECORD: list(columns(topic))})


def needs_value(topic: Topic) -> bool:
    """Whether the expression names a column of the value: of a tombstone it says nothing then."""
    return any(name in topic.value for name in _named(topic))


def complaints(location: tuple[Any, ...], topic: Topic) -> Iterator[Complaint]:
    """What is wrong with the expression, as far as no Spark is needed to tell."""
    if topic.valid_time is None:
        return
    here = (*location, "valid_time")
    for part in ("key", "value"):
        for name in (name for name in getattr(topic, part) if name.lower() == RECORD_TIMESTAMP):
            found = f"'{name}' is what valid_time calls Kafka's own timestamp"
            yield Complaint((*location, part, name), found, "rename the column")
    try:
        text = resolved(topic) or ""
    except ExpressionError as error:
        yield Complaint(here, error.found, error.mend)
        return
    types = {f"{RECORD}.{name}": kind for name, kind in columns(topic).items()}
    if wrong := clash(text, types):
        yield Complaint(here, wrong.replace(f"{RECORD}.", ""), "cast one of them")
    if wrong := find_today_beside(text, types):
        yield Complaint(here, f"{wrong.replace(f'{RECORD}.', '')} is another one every day", WRITTEN_OUT)
    kind = plain_type(text, types)
    if kind not in (None, "timestamp"):
        yield Complaint(here, f"{topic.valid_time} is {kind}, not a timestamp", mend(topic.valid_time, kind))
    if (counted := _COUNTED.fullmatch(text)) and (kind := plain_type(counted[2], types)) in _UNCOUNTED:
        name, of = counted[1].lower(), counted[2].replace(f"{RECORD}.", "")
        instead = f"write {name}(cast({of} AS bigint))" if kind == "string" else mend(of, kind)
        yield Complaint(here, f"{name} takes a number, {of} is {kind}", instead)
    hidden = columns(topic) if topic.sensitive is True else topic.sensitive or ()
    if told := [name for name in _named(topic) if name in hidden and name != RECORD_TIMESTAMP]:
        found = f"valid_time is made of {', '.join(told)}, which is sensitive, and periods are shown"
        yield Complaint(here, found, "list under sensitive: only columns that valid_time does not name")


def mend(text: str, kind: str | None) -> str:
    """What makes a timestamp of an expression of another type."""
    match kind:
        case "tinyint" | "smallint" | "int" | "bigint":
            return f"write timestamp_millis({text}), or timestamp_seconds or timestamp_micros, as it was sent"
        case "timestamp":
            return f"write {text}"
        case "string" | "date":
            return f"write cast({text} AS timestamp)"
        case _:
            return "write an expression that gives a timestamp"


_COUNTED = re.compile(r"(timestamp_(?:seconds|millis|micros))\((.+)\)", re.IGNORECASE)
_UNCOUNTED = ("string", "date", "timestamp", "boolean", "binary")


def _named(topic: Topic) -> list[str]:
    """The columns that the expression names, each once."""
    return list(dict.fromkeys(path[1] for path in find_columns(resolved(topic) or "NULL") if len(path) > 1))
