"""Incremental views: what a run derives again in a view after changes of its inputs. Pure: DataFrame in and out.

The forms of views, as in `derive`, with the increments of their operators: flat rows in, flat rows out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, incremental
from hindcast.bitemporal.affected_periods import (
    AffectedScope,
    ChangedInput,
    NearbyRows,
    RowCache,
    build_scope,
    leave_uncached,
)
from hindcast.contract import Contract, Join, Shape, View, Window, list_shapes
from hindcast.contract.shapes import PERIODS, resolve_all


class AffectedRows(NamedTuple):
    """The current rows of a view that a change may affect, and the rows that replace them; both flat.

    `left_out`: the difference that the change makes to `derivation.count_left_out_of_view`; None for a view that is not
    an aggregate, or if only the whole view shows it. `units`: the keys that the change may concern, also those without
    a row on either side, in the columns of the view's key that identify them; without columns it may be any key. None
    if the two sides have all of them. `kernel`: the operator, if a kernel has found them.
    """

    current: DataFrame
    derived: DataFrame
    left_out: DataFrame | None = None
    units: DataFrame | None = None
    kernel: str | None = None


def refresh_view(
    contract: Contract,
    name: str,
    inputs: Mapping[str, ChangedInput],
    believed: NearbyRows,
    keep: RowCache = leave_uncached,
    *,
    inserted: bool = False,
) -> AffectedRows | None:
    """Return the affected rows of a view after a change of its inputs; None if the whole view must be derived.

    `inputs` and the current rows (`believed`) are flat, as in `derivation.derive_view`. `inserted`: a stream among its
    inputs has new events at offsets that were ingested before.
    """
    it, known = contract.views[name], list_shapes(contract)
    sources = {i: _nest_input(inputs[i], known[i]) for i in it.inputs}
    match known[name].kind:
        case "versions" if it.join is not None or it.aggregate is not None:
            return _refresh_versions(it, name, sources, believed, known, keep)
        case "windows":
            return _refresh_windows(contract, name, sources, believed, known, inserted=inserted)
        case "events" if it.join is not None:
            return _refresh_stream_table_join(it, name, sources, believed, known, keep)
        case "pairs":
            return _refresh_stream_stream_join(it, name, sources, believed, known)
    change = inputs[it.first_input].change
    closed, opened = (change.where(F.col("_change") == which).drop("_change") for which in ("close", "open"))
    return AffectedRows(
        derivation.derive_view(contract, name, {it.first_input: closed}),
        derivation.derive_view(contract, name, {it.first_input: opened}),
    )


def refresh_topic(
    shape: Shape,
    ttl: timedelta | None,
    new: DataFrame,
    believed: NearbyRows,
    log: NearbyRows,
    keep: RowCache = leave_uncached,
) -> AffectedRows:
    """Return the affected rows of the table of a topic read as a table, given new records.

    `new` and `log`: accepted records with `key` and `value` decoded; of those accepted before, `log` returns at least
    the hidden ones (`incremental.find_hidden_records`). `believed`: the current rows, flat.
    """

    def pack_periods(periods: DataFrame | None) -> DataFrame:
        rows = believed(periods)
        parts = (F.struct(*columns).alias(part) for part, columns in (("key", shape.key), ("value", shape.value)))
        place = derivation.position_struct(*derivation.POSITION_COLUMNS["position"])
        return rows.select(*parts, *PERIODS["versions"], place, F.struct(*rows.columns).alias("_row"))

    positioned = derivation.add_position(new)
    records, rows = incremental.restrict_versions(
        positioned, pack_periods, lambda periods: derivation.add_position(log(periods)), keep
    )
    return AffectedRows(rows.select("_row.*"), derivation.rectangles(records, ttl))


def _refresh_versions(
    it: View,
    name: str,
    sources: Mapping[str, ChangedInput],
    believed: NearbyRows,
    known: Mapping[str, Shape],
    keep: RowCache,
) -> AffectedRows | None:
    """Return the affected rows of a join of tables, or of an aggregate without windows."""
    if it.aggregate is not None:
        members = sources[it.first_input].map_rows(lambda rows: derivation.select_members(it, rows, known))
        counted = (
            incremental.restrict_table_aggregate(members, derivation.group_key(it, known))
            if it.table
            else incremental.restrict_stream_aggregate(members)
        )
        relations, learnt = {it.first_input: counted[0]}, counted[1]
    else:
        if it.key is not None and it.join is not None and it.join.how == "outer":
            return None  # where the first input is absent, a row's new key does not tell its old one
        left, right, on = sources[it.first_input], sources[it.second_input or ""], derivation.lookup_key(it, known)
        if on is not None:
            lefts, rights, learnt = incremental.restrict_foreign_key_join(left, right, on)
        else:
            named = right.map_rows(lambda rows: derivation.align_join_key(rows, left.change))
            lefts, rights, learnt = incremental.restrict_table_table_join(left, named)
        relations = {it.first_input: lefts, it.second_input or "": rights}
    unit = {"key": operator_key(it, name, known), **{period: F.col(period) for period in PERIODS["versions"]}}
    scope = build_scope(learnt, lambda periods: _pack_rows(believed(periods), unit), keep)
    compared = _derive_within_scope(it, name, relations, known, unit, scope)._replace(
        units=_select_affected_keys(it, name, known, learnt)
    )
    if it.aggregate is None:
        return compared
    change = derivation.group_rows(it, sources[it.first_input].change, known)
    return compared._replace(left_out=derivation.count_left_out(it, change))


def _refresh_windows(
    contract: Contract,
    name: str,
    sources: Mapping[str, ChangedInput],
    believed: NearbyRows,
    known: Mapping[str, Shape],
    *,
    inserted: bool,
) -> AffectedRows:
    """Return the affected rows of a windowed aggregate; `left_out` is known only if events are appended."""
    it = contract.views[name]
    appended = is_append_only(contract, it.first_input) and not inserted
    window = derivation.window_definition(it.window or Window())
    unit = {"key": operator_key(it, name, known), **{period: F.col(period) for period in PERIODS["windows"]}}
    events = sources[it.first_input].map_rows(lambda rows: derivation.select_members(it, rows, known))
    judged, scope = incremental.restrict_windowed_aggregate(
        events, window, lambda periods: _pack_rows(believed(periods), unit), appended=appended
    )
    units = _select_affected_keys(it, name, known, events.change, judged)
    compared = _derive_within_scope(it, name, {it.first_input: judged}, known, unit, scope)._replace(units=units)
    if not appended:
        return compared
    taken = judged.select(F.col("position").alias("_judged"), "taken")
    change = events.change.join(taken, F.col("position") == F.col("_judged"), "left")
    return compared._replace(left_out=derivation.count_left_out(it, change))


def _refresh_stream_table_join(
    it: View,
    name: str,
    sources: Mapping[str, ChangedInput],
    believed: NearbyRows,
    known: Mapping[str, Shape],
    keep: RowCache,
) -> AffectedRows:
    unit = {"position": derivation.position_struct(*derivation.POSITION_COLUMNS["position"])}
    events, versions, scope = incremental.restrict_stream_table_join(
        sources[it.first_input],
        sources[it.second_input or ""],
        derivation.lookup_key(it, known),
        lambda periods: _pack_rows(believed(periods), unit),
        keep,
    )
    units = _select_affected_keys(it, name, known, sources[it.first_input].change, events)
    return _derive_within_scope(
        it, name, {it.first_input: events, it.second_input or "": versions}, known, unit, scope
    )._replace(units=units)


def _refresh_stream_stream_join(
    it: View, name: str, sources: Mapping[str, ChangedInput], believed: NearbyRows, known: Mapping[str, Shape]
) -> AffectedRows:
    join = it.join or Join()
    unit = {
        place: F.when(F.col(columns[0]).isNotNull(), derivation.position_struct(*columns))
        for place, columns in derivation.POSITION_COLUMNS.items()
        if place != "position"
    }
    left = sources[it.first_input]
    right = sources[it.second_input or ""].map_rows(lambda rows: derivation.align_join_key(rows, left.change))
    lefts, rights, scope = incremental.restrict_stream_stream_join(
        left,
        right,
        derivation.interval_literal(join.before),
        derivation.interval_literal(join.after),
        lambda periods: _pack_rows(believed(periods), unit),
    )
    units = _select_affected_keys(it, name, known, left.change, right.change, lefts, rights)
    return _derive_within_scope(
        it, name, {it.first_input: lefts, it.second_input or "": rights}, known, unit, scope
    )._replace(units=units)


def _derive_within_scope(
    it: View,
    name: str,
    relations: Mapping[str, DataFrame],
    known: Mapping[str, Shape],
    unit: Mapping[str, Column],
    scope: AffectedScope,
) -> AffectedRows:
    """Return the current rows of the scope, and the operator's result within the scope."""
    result = scope.restrict(_pack_rows(derivation.derive_from_relations(it, name, relations, known), unit))
    periods = [period for period in PERIODS["versions"] if period in unit]
    current, derived = (rows.select("_row.*", *periods) for rows in (scope.rows, result))
    return AffectedRows(current, derived)


def _pack_rows(rows: DataFrame, unit: Mapping[str, Column]) -> DataFrame:
    """Return flat rows as their identity, and `_row`, all the rest: so their columns may have any names."""
    rest = [column for column in rows.columns if column not in unit or column not in PERIODS["versions"]]
    return rows.select(*(column.alias(name) for name, column in unit.items()), F.struct(*rest).alias("_row"))


def operator_key(it: View, name: str, known: Mapping[str, Shape]) -> Column:
    """Return the key of the operator's row that a view's row comes from; a key that the view defines contains it."""
    return F.struct(*(F.col(column).alias(old) for old, column in map_key_columns(it, name, known).items()))


def map_key_columns(it: View, name: str, known: Mapping[str, Shape]) -> dict[str, str]:
    """Return the columns of the operator row's key, each with the column of the view's key that holds it."""
    if it.key is None or it.aggregate is not None:
        return {column: column for column in known[name].key}
    kept = {text.removeprefix(f"{it.first_input}."): column for column, text in resolve_all(it.key, it, known).items()}
    return {column: kept[column] for column in known[it.first_input].key}


def _select_affected_keys(it: View, name: str, known: Mapping[str, Shape], *rows: DataFrame) -> DataFrame:
    """Return the keys of rows that an operator looks at as `AffectedRows` has them: no column of a stream's new key
    need tell its old one.
    """
    names = {} if it.key is not None and known[name].kind in ("events", "pairs") else map_key_columns(it, name, known)
    keys = reduce(DataFrame.unionByName, (some.select("key") for some in rows)).distinct()
    return keys.select(*(F.col("key").getField(old).alias(column) for old, column in names.items()))


def _nest_input(source: ChangedInput, shape: Shape) -> ChangedInput:
    return source.map_rows(lambda rows: derivation.as_relation(rows, shape))


def is_append_only(contract: Contract, name: str) -> bool:
    """Return whether a stream only gets events that come after all others of their partition.

    That is a topic, or what is made of each record of one alone. It is unknown for another pipeline's stream.
    """
    if name not in contract.inputs and any(g.on_failure == "quarantine" for g in contract.expectations(name)):
        return False  # what is released comes after what was not held
    view = contract.views.get(name)
    return name in contract.topics or (
        view is not None and view.join is None and is_append_only(contract, view.first_input)
    )
