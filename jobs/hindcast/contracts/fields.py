"""How single fields of a contract are written: names in Kafka, patterns, marks, places; what is wrong with others."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from hindcast.contracts.types import ColumnName, column_name, matching, shown


def _kafka_name(text: object) -> object:
    """A topic's name as Kafka takes it; ValueError for another, and for none where one is begun."""
    if text is None or text == "":
        raise ValueError("no name stands here; write the topic's name in Kafka, or remove the line")
    if isinstance(text, str) and (text in (".", "..") or re.fullmatch(r"[A-Za-z0-9._-]{1,249}", text) is None):
        raise ValueError(
            f"'{text}' is not a name that Kafka takes; it has letters, digits, '.', '_' and '-', at most 249 of them"
        )
    return text


def _pattern(text: object) -> object:
    """ValueError where no pattern stands, though one is begun."""
    if text is None or text == "":
        raise ValueError("no pattern stands here; write for example orders-.*, or remove the line")
    return text


def _marked(value: object) -> object:
    """`true`, `false`, or a list of columns; ValueError for what is none of them, or marks nothing."""
    match value:
        case bool():
            return value
        case [] | ():
            raise ValueError("the list names no column; write for example [price], or true for all, or remove the line")
        case [*names]:
            for name in names:
                column_name(name)
            return value
        case _:
            mend = f"write [{value}]" if isinstance(value, str) else "write for example [price], or true for all"
            raise ValueError(f"{shown(value)} is neither a list of columns nor true; {mend}")


def _looked_up(value: object) -> object:
    """One expression, or a list of them."""
    texts = value if isinstance(value, list | tuple) else [value]
    if odd := [shown(text) for text in texts if not isinstance(text, str)]:
        raise ValueError(f"{odd[0]} is not an expression; write item, or [a, b] for a key of two columns")
    return value


KafkaName = Annotated[str | None, BeforeValidator(_kafka_name)]
Pattern = Annotated[str | None, BeforeValidator(_pattern)]
Looked = Annotated[str | tuple[str, ...] | None, BeforeValidator(_looked_up)]
Sensitive = Annotated[
    bool | tuple[ColumnName, ...],
    BeforeValidator(_marked),
    Field(description="Columns whose values, and what is computed of them, no report and no log shows; true is all."),
]
Widen = Annotated[
    Literal["refuse", "spark_only"],
    Field(
        description="What a run does where the contract gives a column a wider type than its table has. refuse: it "
        "stops before it writes. spark_only: it widens the column, and from then on only Spark and Hindcast read the "
        "table (docs/topics/evolution.md)."
    ),
]
EnvelopePath = Annotated[
    str,
    *matching(
        r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
        "not a place in an envelope; write op, ts_ms, ts_us, ts_ns, source.<field> or transaction.<field>",
    ),
]
TableName = Annotated[
    str,
    *matching(
        r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$", "not a table of another pipeline; write pipeline.table: restaurant.menu"
    ),
]
