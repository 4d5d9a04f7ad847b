"""Which views are made by a kernel, and as what: those whose expressions are all plain columns of flat types.

All others, and those with few rows, are made by Spark's plan. Both give the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import pyarrow as pa
from deltalake import DeltaTable

from hindcast.contracts import Contract, Shape, View, shapes
from hindcast.contracts.expressions import aggregate, resolve
from hindcast.contracts.shapes import PERIODS, resolved, scope, selected
from hindcast.delta import tables
from hindcast.delta.tables import Table
from hindcast.kernels.form import Form, Side
from hindcast.settings import settings

FEWEST = 100_000
"""From so many input rows on a kernel is faster."""


def worthwhile(rows: int) -> bool:
    """Whether a view of so many input rows is to be made by a kernel, if it has one."""
    return settings().kernels and rows >= FEWEST


Column = tuple[int, str]
"""Of which input, and its name."""


def form(
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    found: Mapping[str, DeltaTable],
    table: Table,
    at: datetime,
) -> Form | None:
    """The kernel of a view whose table is still empty; None if it has none.

    `found`: the inputs as they are read, and the view's own table; `at`: the known-at of its rows.
    """
    it, known = contract.views[name], shapes(contract)
    if (operator := _operator(it)) is None:
        return None
    schemas = {i: pa.schema(found[i].schema().to_arrow()) for i in (*it.inputs, name)}
    types = pa.schema([field.remove_metadata() for field in schemas[name] if field.name != "_belief"])
    keys = _keys(it, known)
    columns, measures = _columns(it, known, name), _measures(it, known)
    if keys is None or columns is None or measures is None:
        return None
    sides = it.inputs
    made = {*columns, *measures, *PERIODS[table.kind], "systemFrom", "systemTo"}
    same = all(types.field(c).type == schemas[sides[side]].field(of).type for c, (side, of) in columns.items())
    alike = {tuple(schemas[i].field(c).type for c in key) for i, key in zip(sides, keys, strict=True)}
    plain = all(_flat(field.type) for field in types) and all(_is_key(kind) for key in alike for kind in key)
    exact = all(_exact(f, schemas[it.first].field(c).type) for f, c in measures.values() if c is not None)
    if made != {*types.names} or not same or len(alike) > 1 or not plain or not exact:
        return None
    if any(tables.older(found[i]) is not None for i in sides) or found[name].protocol().writer_features:
        return None  # delta-rs, which commits, does not write with every feature that Spark may have set
    wanted = [{of for side, of in columns.values() if side == n} for n in range(len(sides))]
    wanted[0] |= {column for _, column in measures.values() if column is not None}
    return Form(
        operator,
        tuple(
            Side(inputs[i].path, found[i].version(), _kind(known[i]), key, tuple(sorted(taken)), inputs[i].pin)
            for i, key, taken in zip(sides, keys, wanted, strict=True)
        ),
        whole=it.group_by is not None or (it.join is not None and it.join.on is not None),
        inner=it.join is not None and it.join.how == "inner",
        columns=columns,
        measures=measures,
        types=types,
        uri=table.path,
        kind=_kind(known[name]),
        known_at=at,
    )


def _operator(it: View) -> Literal["stream_table", "table_table", "of_table"] | None:
    if it.semantics == "kafka" or it.where is not None:
        return None
    if it.aggregate is not None:
        return "of_table" if it.table and it.window is None else None
    if it.join is None or it.join.stream:
        return None
    if it.table:
        return "table_table" if it.join.how == "inner" and it.join.on is None else None
    return "stream_table"


def _keys(it: View, known: Mapping[str, Shape]) -> list[tuple[str, ...]] | None:
    """The columns of each input by which it is met, or grouped; None if one is no plain column."""
    first = tuple(known[it.first].key)
    if it.aggregate is not None:
        grouped = (
            resolved(it.group_by, it, known) if it.group_by else {column: f"{it.first}.{column}" for column in first}
        )
        found = [_plain(it, known, text) for text in grouped.values()]
        return None if None in found else [tuple(column for _, column in filter(None, found))]
    second = tuple(known[it.second or ""].key)
    if it.join is not None and it.join.on is not None:
        texts = [resolve(text, {it.first: list(known[it.first].columns)}) for text in it.join.keys]
        on = [_plain(it, known, text) for text in texts]
        return None if None in on else [tuple(column for _, column in filter(None, on)), second]
    return [first, second]


def _columns(it: View, known: Mapping[str, Shape], name: str) -> dict[str, Column] | None:
    """The view's columns that are an input's; None if another is no measure either."""
    if it.aggregate is not None:
        keys = _keys(it, known)
        return None if keys is None else {c: (0, of) for c, of in zip(known[name].key, keys[0], strict=True)}
    texts = resolved(it.key, it, known) or {column: f"{it.first}.{column}" for column in known[it.first].key}
    found = {c: _plain(it, known, text) for c, text in {**texts, **selected(it, known)}.items()}
    if known[name].kind == "events":
        found |= {column: (0, column) for column in ("timestamp", "_partition", "_offset")}
    return None if None in found.values() else {c: column for c, column in found.items() if column}


def _measures(it: View, known: Mapping[str, Shape]) -> dict[str, tuple[str, str | None]] | None:
    """The aggregate function of each measure and its argument; None if one is neither counted nor exactly summed."""
    found: dict[str, tuple[str, str | None]] = {}
    for name, text in (it.aggregate or {}).items():
        function, argument = aggregate(text, scope(it, known))
        column = _plain(it, known, argument)
        if function not in ("count", "sum", "avg") or (column is None and (function, argument) != ("count", "1")):
            return None
        found[name] = function, column[1] if column else None
    return found


def _plain(it: View, known: Mapping[str, Shape], text: str) -> Column | None:
    """The input and the column that a resolved expression is; None for another one."""
    every = {f"{i}.{column}": (n, column) for n, i in enumerate(it.inputs) for column in known[i].columns}
    return every.get(text)


def _kind(shape: Shape) -> Literal["events", "versions"]:
    return "versions" if shape.kind == "versions" else "events"


def _flat(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _is_key(kind: pa.DataType) -> bool:
    """Whether values are equal for Arrow where they are for Spark: not so 0.0 and -0.0."""
    return any(told(kind) for told in _KEYS)


_KEYS = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)


def _exact(function: str, argument: pa.DataType) -> bool:
    """Whether sums of these values are exact, and held in 96 bits."""
    if function == "count":
        return True
    return pa.types.is_integer(argument) or (
        function == "sum" and pa.types.is_decimal(argument) and argument.precision <= _DIGITS
    )


_DIGITS = 18
