"""Eligibility: which views a kernel can derive: joins with a table, and aggregates of a table.

Keys, and what an aggregate groups by and computes, must be plain columns; a join's other expressions may be any of
Spark's over columns of flat types. All other views, and those with few rows, are made by Spark's plan. Both give the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import pyarrow as pa
from deltalake import DeltaTable

from hindcast.common.settings import Settings
from hindcast.contract import Contract, Shape, View, list_shapes
from hindcast.contract.expressions import parse_aggregate, resolve
from hindcast.contract.shapes import PERIODS, resolve_all, selected_columns, view_scope
from hindcast.engine import projection
from hindcast.engine.spec import KernelInput, KernelSpec
from hindcast.store import tables
from hindcast.store.tables import Table

MIN_ROWS = 100_000
"""From so many input rows on a kernel is faster."""


def is_worthwhile(rows: int, settings: Settings) -> bool:
    """Return whether a view with so many input rows should be derived by its kernel, if it has one."""
    return settings.kernels and rows >= MIN_ROWS


InputColumn = tuple[int, str]
"""Of which input, and its name."""


def find_kernel(
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    found: Mapping[str, DeltaTable],
    table: Table,
    at: datetime,
) -> KernelSpec | None:
    """Return the kernel specification of a view whose table is still empty; None if no kernel can derive it.

    `found`: by name, the opened tables of the inputs, at the version to read, and of the view; `at`: the known-at of
    its rows.
    """
    it, known = contract.views[name], list_shapes(contract)
    if (operator := _find_operator(it)) is None:
        return None
    schemas = {i: pa.schema(found[i].schema().to_arrow()) for i in (*it.inputs, name)}
    types = pa.schema([field.remove_metadata() for field in schemas[name] if field.name != "_belief"])
    keys, measures = _key_columns(it, known), _plain_measures(it, known)
    if keys is None or measures is None:
        return None
    sides = it.inputs
    columns = _plain_columns(it, known, name) if it.where is None else None
    made = {*(columns or ()), *measures, *PERIODS[table.kind], "systemFrom", "systemTo"}
    is_direct = (
        columns is not None
        and made == {*types.names}
        and all(types.field(c).type == schemas[sides[side]].field(of).type for c, (side, of) in columns.items())
    )
    if columns is None or not is_direct:
        if it.aggregate is not None:
            return None
        columns = projection.list_flat_columns(it, known)
    read = [schemas[sides[side]].field(of).type for side, of in columns.values()]
    alike = {tuple(schemas[i].field(c).type for c in key) for i, key in zip(sides, keys, strict=True)}
    plain = all(map(_is_flat, [*types.types, *read])) and all(_is_key(kind) for key in alike for kind in key)
    exact = all(_is_exact(f, schemas[it.first_input].field(c).type) for f, c in measures.values() if c is not None)
    if len(alike) > 1 or not plain or not exact:
        return None
    if any(tables.read_older_format(found[i]) is not None for i in sides) or found[name].protocol().writer_features:
        return None  # delta-rs, which commits, does not write with every feature that Spark may have set
    wanted = [{of for side, of in columns.values() if side == n} for n in range(len(sides))]
    wanted[0] |= {column for _, column in measures.values() if column is not None}
    is_joined_by_key = operator == "table_table" and it.join is not None and it.join.on is None
    return KernelSpec(
        operator,
        tuple(
            KernelInput(
                inputs[i].path,
                found[i].version(),
                _row_kind(known[i]),
                key,
                tuple(sorted(taken)),
                inputs[i].as_of_system_time,
            )
            for i, key, taken in zip(sides, keys, wanted, strict=True)
        ),
        whole=None if is_joined_by_key else it.group_by is not None or (it.join is not None and it.join.on is not None),
        how=it.join.how if it.join is not None else "inner",
        columns=columns,
        is_projected=not is_direct,
        measures=measures,
        types=types,
        uri=table.path,
        kind=_row_kind(known[name]),
        known_at=at,
    )


def _find_operator(it: View) -> Literal["stream_table", "table_table", "of_table"] | None:
    if it.semantics == "kafka":
        return None
    if it.aggregate is not None:
        return "of_table" if it.table and it.window is None and it.where is None else None
    if it.join is None or it.join.stream:
        return None
    return "table_table" if it.table else "stream_table"


def _key_columns(it: View, known: Mapping[str, Shape]) -> list[tuple[str, ...]] | None:
    """Return the columns by which each input is joined or grouped; None if one is not a plain column."""
    first = tuple(known[it.first_input].key)
    if it.aggregate is not None:
        grouped = (
            resolve_all(it.group_by, it, known)
            if it.group_by
            else {column: f"{it.first_input}.{column}" for column in first}
        )
        found = [_plain_column(it, known, text) for text in grouped.values()]
        return None if None in found else [tuple(column for _, column in filter(None, found))]
    second = tuple(known[it.second_input or ""].key)
    if it.join is not None and it.join.on is not None:
        texts = [resolve(text, {it.first_input: list(known[it.first_input].columns)}) for text in it.join.keys]
        on = [_plain_column(it, known, text) for text in texts]
        return None if None in on else [tuple(column for _, column in filter(None, on)), second]
    return [first, second]


def _plain_columns(it: View, known: Mapping[str, Shape], name: str) -> dict[str, InputColumn] | None:
    """Return the view's columns that are an input's; None if another is not a measure either."""
    if it.aggregate is not None:
        keys = _key_columns(it, known)
        return None if keys is None else {c: (0, of) for c, of in zip(known[name].key, keys[0], strict=True)}
    texts = resolve_all(it.key, it, known) or {
        column: f"{it.first_input}.{column}" for column in known[it.first_input].key
    }
    found = {c: _plain_column(it, known, text) for c, text in {**texts, **selected_columns(it, known)}.items()}
    if known[name].kind == "events":
        found |= {column: (0, column) for column in ("timestamp", "_partition", "_offset")}
    return None if None in found.values() else {c: column for c, column in found.items() if column}


def _plain_measures(it: View, known: Mapping[str, Shape]) -> dict[str, tuple[str, str | None]] | None:
    """Return the aggregate function and argument of each measure; None if one is neither counted nor exactly summed."""
    found: dict[str, tuple[str, str | None]] = {}
    for name, text in (it.aggregate or {}).items():
        function, argument = parse_aggregate(text, view_scope(it, known))
        column = _plain_column(it, known, argument)
        if function not in ("count", "sum", "avg") or (column is None and (function, argument) != ("count", "1")):
            return None
        found[name] = function, column[1] if column else None
    return found


def _plain_column(it: View, known: Mapping[str, Shape], text: str) -> InputColumn | None:
    """Return the input and the column of a resolved expression; None if it is another expression."""
    every = {f"{i}.{column}": (n, column) for n, i in enumerate(it.inputs) for column in known[i].columns}
    return every.get(text)


def _row_kind(shape: Shape) -> Literal["events", "versions"]:
    return "versions" if shape.kind == "versions" else "events"


def _is_flat(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _is_key(kind: pa.DataType) -> bool:
    """Return whether Arrow compares values of a type as Spark does; it does not for 0.0 and -0.0."""
    return any(is_type(kind) for is_type in _KEYS)


_KEYS = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)


def _is_exact(function: str, argument: pa.DataType) -> bool:
    """Return whether sums of these values are exact, and fit into 96 bits."""
    if function == "count":
        return True
    return pa.types.is_integer(argument) or (
        function == "sum" and pa.types.is_decimal(argument) and argument.precision <= _DIGITS
    )


_DIGITS = 18
