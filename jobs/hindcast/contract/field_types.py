"""The types of single fields of a contract, with their validators: Kafka names, patterns, marks, paths."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from hindcast.contract.types import ColumnName, ContractValue, format_value, parse_column_name, pattern_validators


def _parse_kafka_name(text: ContractValue) -> ContractValue:
    """Return a topic's name in Kafka unchanged; raise ValueError for an invalid or empty one."""
    if text is None or text == "":
        raise ValueError("no name is given; write the topic's name in Kafka, or remove the line")
    if isinstance(text, str) and (text in (".", "..") or re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) is None):
        raise ValueError(
            f"'{text}' is not a valid topic name in Kafka; use letters, digits, '.', '_' and '-', at most 249 of them"
        )
    return text


def _refuse_empty_pattern(text: ContractValue) -> ContractValue:
    """Return a pattern unchanged; raise ValueError for an empty one."""
    if text is None or text == "":
        raise ValueError("no pattern is given; write for example orders-.*, or remove the line")
    return text


def _parse_marks(value: ContractValue) -> ContractValue:
    """Return `true`, `false` or a list of columns unchanged; raise ValueError for another value or an empty list."""
    match value:
        case bool():
            return value
        case [] | ():
            raise ValueError("the list names no column; write for example [price], or true for all, or remove the line")
        case [*names]:
            for name in names:
                parse_column_name(name)
            return value
        case _:
            fix = f"write [{value}]" if isinstance(value, str) else "write for example [price], or true for all"
            raise ValueError(f"{format_value(value)} is neither a list of columns nor true; {fix}")


def _parse_lookup(value: ContractValue) -> ContractValue:
    """Return one expression, or a list of them, unchanged; raise ValueError for another value."""
    texts = value if isinstance(value, list | tuple) else [value]
    if odd := [format_value(text) for text in texts if not isinstance(text, str)]:
        raise ValueError(f"{odd[0]} is not an expression; write item, or [a, b] for a key of two columns")
    return value


KafkaName = Annotated[str | None, BeforeValidator(_parse_kafka_name)]
Pattern = Annotated[str | None, BeforeValidator(_refuse_empty_pattern)]
LookupKey = Annotated[str | tuple[str, ...] | None, BeforeValidator(_parse_lookup)]
Sensitive = Annotated[
    bool | tuple[ColumnName, ...],
    BeforeValidator(_parse_marks),
    Field(description="Columns whose values, and values computed from them, no report or log shows; true: all."),
]
Widen = Annotated[
    Literal["refuse", "rewrite", "spark_only"],
    Field(
        description="What a run does if the contract gives a column a wider type than its table has. refuse: it stops "
        "before it writes. rewrite: it writes the whole table again with the wider type. spark_only: it widens the "
        "column and leaves the files as they are; from then on only Spark and Hindcast can read the table "
        "(docs/topics/evolution.md)."
    ),
]
EnvelopePath = Annotated[
    str,
    *pattern_validators(
        r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
        "not a field of an envelope; write op, ts_ms, ts_us, ts_ns, source.<field> or transaction.<field>",
    ),
]
TableName = Annotated[
    str,
    *pattern_validators(
        r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$", "not a table of another pipeline; write pipeline.table: restaurant.menu"
    ),
]
