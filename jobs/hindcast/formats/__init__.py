"""How keys and values are written, one module per format: bytes into columns, as Spark expressions.

| format | module | |
| --- | --- | --- |
| json | `json` | an object of the columns: typed, strict or lenient |
| string | `text` | the text of one column |
| primitive | `primitive` | one column as Kafka's own serializers write it |
| avro | `avro` | a record of the columns, with the schema of a file or of the schema registry |

A format has `STEPS`, each evaluated once per record, however often the next one names it. The last gives `struct`, the
part's columns, null where the bytes are null or wrong, and `problem`, what is wrong with them: text, null where nothing
is. No record makes them fail.

`decode.decode` puts key and value together with headers, fates and reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Literal, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Topic
from hindcast.contracts.formats import asked, form
from hindcast.formats import avro, envelopes, json, primitive, text
from hindcast.formats.part import Part

Step = Callable[[Column, Column, Part], Column]
"""Of the bytes, what the step before gives (the first: null), and what is asked for."""


class Format(Protocol):
    """What a format's module has."""

    @property
    def STEPS(self) -> tuple[Step, ...]:  # noqa: N802  # a constant of a module
        """What is made of the bytes, one after the other."""


FORMATS: dict[str, Format] = {"json": json, "string": text, "primitive": primitive, "avro": avro}


_FEW = 8
"""Up to so many columns a step is compiled together with what is around it."""


def read(records: DataFrame, parts: Mapping[str, Part], name: str) -> DataFrame:
    """Records with what formats make of their bytes: in a struct of that name what each part's last step gives.

    `parts`: by the column that has its bytes, which is its field in the struct too.
    """
    found = {column: F.lit(None) for column in parts}
    turns = list(zip_longest(*(FORMATS[part.format].STEPS for part in parts.values())))
    for n, steps in enumerate(turns, 1):
        made = zip(parts.items(), steps, strict=True)
        told = {it: step(F.col(it), found[it], part) if step else found[it] for (it, part), step in made}
        # Computed in a projection of its own and exploded of one: else Spark would compute a step anew for each use.
        struct = F.struct(*(column.alias(it) for it, column in told.items()), *_apart(parts))
        place = name if n == len(turns) else f"{name}{n}"
        records = records.withColumn(f"{place}_", struct).withColumn(place, F.explode(F.array(f"{place}_")))
        found = {it: F.col(f"{place}.{it}") for it in parts}
    passed = [f"{name}{n}" for n in range(1, len(turns))]
    return records.drop(*passed, *(f"{it}_" for it in (*passed, name)))


def _apart(parts: Mapping[str, Part]) -> list[Column]:
    """A column that keeps the projection of a step with many columns out of whole-stage code: a higher-order function.

    There all columns would be one method, which would soon be too large for Java to compile.
    """
    if sum(len(part.columns) for part in parts.values()) <= _FEW:
        return []
    return [F.exists(F.array(F.col(next(iter(parts)))), lambda it: it.isNull()).alias("_apart")]


Writers = Mapping[Literal["key", "value"], Mapping[int, str]]
"""Of keys and of values, schemas of the schema registry by id, as JSON."""


def columns_of(topic: Topic, name: Literal["key", "value"]) -> Mapping[str, str]:
    """The columns that a format is asked for: the contract's, or those of an envelope around them."""
    if topic.envelope is None or (name == "key" and form(topic, name) != "json"):
        return asked(topic, name)
    if name == "key":
        return envelopes.asked_of_key(topic)
    return envelopes.asked(topic, json=form(topic, name) == "json")


def part(topic: Topic, name: Literal["key", "value"], writers: Writers | None) -> Part:
    """What is asked of a topic's keys or values."""
    file = topic.key_schema if name == "key" else topic.value_schema
    columns = columns_of(topic, name)
    renamed = {column: names for column, names in topic.renamed.items() if column in columns}
    named = (writers or {}).get(name, {})
    what = envelopes.called(topic, name) if topic.envelope else ""
    return Part(name, columns, form(topic, name), topic.as_json, renamed, file.text if file else None, named, what)


__all__ = ["FORMATS", "Format", "Part", "Writers", "columns_of", "part", "read"]
