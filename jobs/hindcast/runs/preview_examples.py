"""Examples of what a run would change: how the answers about a few keys would differ."""

from __future__ import annotations

import json
from collections.abc import Collection

import pyarrow as pa
from pyspark.sql import DataFrame

from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract.shapes import PERIODS
from hindcast.query import paired_rows, show
from hindcast.query.changes import LINES, pack_columns
from hindcast.store import duckdb_reader, tables
from hindcast.store.duckdb_reader import quote_name
from hindcast.store.tables import Table
from hindcast.store.task_rows import collect_table

MAX_KEYS, MAX_ROWS = 3, 20
"""A preview shows how the answers about at most this many keys would change, in this many rows before and after."""


def collect_examples(changes: DataFrame, table: Table, hidden: Collection[str]) -> list[JsonObject]:
    """Return how the answers about the first keys with a changed past answer would differ (`pair_examples`).

    `changes`: the rows that would be opened and closed. Values of `hidden` columns read `***`.
    """
    keys = changes.where(tables.is_correction(table)).select(*table.key).distinct().sort(*table.key).limit(MAX_KEYS)
    order = dict.fromkeys((*table.key, *PERIODS[table.kind], *table.identity, "_change"))
    shown = changes.join(keys, [*table.key], "left_semi").sort(*order).limit(MAX_ROWS)

    def mask_values(value: JsonValue) -> JsonValue:
        return {n: "***" if n in hidden else it for n, it in value.items()} if isinstance(value, dict) else value

    return [
        {name: mask_values(value) for name, value in example.items()}
        for example in pair_examples(collect_table(shown), table)
    ]


def pair_examples(rows: pa.Table, table: Table) -> list[JsonObject]:
    """Return how answers would differ by rows with `_change`, open or close, as JSON (`show.as_json`).

    Each has the `key`, the period, `change` (added, changed or removed), and the values `before` and `after`, of which
    one may be null.
    """
    start, end = (quote_name(PERIODS[table.kind][n]) for n in (0, -1))
    values = [
        name
        for name in rows.column_names
        if not name.startswith("_") and name not in (*table.key, *PERIODS[table.kind])
    ]
    identity = [name for name in table.identity if name not in table.key]
    packed = {"k": table.key, "v": values, "i": identity}
    parts = [f"{pack_columns(names)} AS {alias}" for alias, names in packed.items()]
    parts += [f"hash({pack_columns(table.key)}) AS h", f"{start} AS p0", f"{end} AS p1"]
    columns = ", ".join([*parts, *(f"NULL AS {other}" for other in ("s", "opened", "closed"))])
    periods = ", ".join(f"p{n} AS {quote_name(name)}" for n, name in enumerate(PERIODS[table.kind]))
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("rows", rows)
        for side, change in (("old", "close"), ("new", "open")):
            engine.execute(f"CREATE TEMP TABLE {side} AS SELECT {columns} FROM rows WHERE _change = '{change}'")  # noqa: S608  # quoted names
        paired_rows.pair_rows(engine, table.kind)
        lines = LINES.format(pairs="FROM pairs")
        found = engine.sql(
            f"SELECT k AS key, {periods}, change, before, after FROM ({lines}) ORDER BY k, p0, p1, i, change"  # noqa: S608  # quoted names
        ).to_arrow_table()
    examples: list[JsonObject] = json.loads(show.as_json(found))
    if not values:
        examples = [{**it, **{side: it[side] and {} for side in ("before", "after")}} for it in examples]
    return examples
