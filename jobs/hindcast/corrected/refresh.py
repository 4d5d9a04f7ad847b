"""What a run has to look at again in a view, given what changed in its inputs. Pure: DataFrame in, DataFrame out.

The forms of views, as in `derive`, with the increments of their operators: flat rows in, flat rows out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Contract, Join, Shape, View, Window, shapes
from hindcast.contracts.shapes import PERIODS, resolved
from hindcast.corrected import derive, increments
from hindcast.corrected.islands import Keep, Near, Scope, Source, as_is, over_time


class Refreshed(NamedTuple):
    """The believed rows of a view that a change may concern, and what is right in their place; both flat.

    `left_out`: what the change adds to `derive.left_out`; None for what is no aggregate, or where only the whole tells.
    `units`: the keys that the change may concern, also those of which neither side has a row, in the columns of the
    view's key by which that can be told; without columns it may be any key. None where the two sides have all of them.
    """

    believed: DataFrame
    right: DataFrame
    left_out: DataFrame | None = None
    units: DataFrame | None = None


def view(
    contract: Contract,
    name: str,
    inputs: Mapping[str, Source],
    believed: Near,
    keep: Keep = as_is,
    *,
    requeued: bool = False,
) -> Refreshed | None:
    """What a change of its inputs makes of a view; None where only the whole can tell.

    `inputs` and `believed` have flat rows, as `derive.view` takes and gives them. `requeued`: a stream that it is made
    of has been given events of offsets that it had passed.
    """
    it, known = contract.views[name], shapes(contract)
    sources = {i: _source(inputs[i], known[i]) for i in it.inputs}
    match known[name].kind:
        case "versions" if it.join is not None or it.aggregate is not None:
            return _over_time(it, name, sources, believed, known, keep)
        case "windows":
            return _windowed(contract, name, sources, believed, known, requeued=requeued)
        case "events" if it.join is not None:
            return _looked_up(it, name, sources, believed, known, keep)
        case "pairs":
            return _paired(it, name, sources, believed, known)
    change = inputs[it.first].change
    closed, opened = (change.where(F.col("change") == which).drop("change") for which in ("close", "open"))
    return Refreshed(derive.view(contract, name, {it.first: closed}), derive.view(contract, name, {it.first: opened}))


def topic(
    shape: Shape, ttl: timedelta | None, new: DataFrame, believed: Near, log: Near, keep: Keep = as_is
) -> Refreshed:
    """What new records make of the table of a topic read as a table.

    `new` and `log`: accepted records with `key` and `value` decoded; of those accepted before, `log` gives at least
    what is hidden (`increments.hidden`). `believed` has flat rows.
    """

    def packed(periods: DataFrame | None) -> DataFrame:
        rows = believed(periods)
        parts = (F.struct(*columns).alias(part) for part, columns in (("key", shape.key), ("value", shape.value)))
        place = derive.position(*derive.PLACES["position"])
        return rows.select(*parts, *PERIODS["versions"], place, F.struct(*rows.columns).alias("_row"))

    positioned = derive.positioned(new)
    records, rows = increments.versions(positioned, packed, lambda periods: derive.positioned(log(periods)), keep)
    return Refreshed(rows.select("_row.*"), derive.rectangles(records, ttl))


def _over_time(
    it: View, name: str, sources: Mapping[str, Source], believed: Near, known: Mapping[str, Shape], keep: Keep
) -> Refreshed | None:
    """A join of tables, or an aggregate without windows."""
    if it.aggregate is not None:
        members = sources[it.first].mapped(lambda rows: derive.members(it, rows, known))
        counted = increments.of_table(members, derive.group(it, known)) if it.table else increments.of_stream(members)
        relations, learnt = {it.first: counted[0]}, counted[1]
    else:
        if it.key is not None and it.join is not None and it.join.how == "outer":
            return None  # where the first input is absent, a row's new key does not tell its old one
        left, right, on = sources[it.first], sources[it.second or ""], derive.looked_up(it, known)
        if on is not None:
            lefts, rights, learnt = increments.foreign_key(left, right, on)
        else:
            named = right.mapped(lambda rows: derive.alike(rows, left.change))
            lefts, rights, learnt = increments.table_table(left, named)
        relations = {it.first: lefts, it.second or "": rights}
    unit = {"key": unit_of(it, name, known), **{period: F.col(period) for period in PERIODS["versions"]}}
    scope = over_time(learnt, lambda periods: _packed(believed(periods), unit), keep)
    compared = _compared(it, name, relations, known, unit, scope)._replace(units=_units(it, name, known, learnt))
    if it.aggregate is None:
        return compared
    change = derive.grouped(it, sources[it.first].change, known)
    return compared._replace(left_out=derive.count_left_out(it, change))


def _windowed(
    contract: Contract,
    name: str,
    sources: Mapping[str, Source],
    believed: Near,
    known: Mapping[str, Shape],
    *,
    requeued: bool,
) -> Refreshed:
    """A windowed aggregate. Only where events are appended the new ones tell what was left out."""
    it = contract.views[name]
    appended = _appended(contract, it.first) and not requeued
    window = derive.lengths(it.window or Window())
    unit = {"key": unit_of(it, name, known), **{period: F.col(period) for period in PERIODS["windows"]}}
    events = sources[it.first].mapped(lambda rows: derive.members(it, rows, known))
    judged, scope = increments.windowed(
        events, window, lambda periods: _packed(believed(periods), unit), appended=appended
    )
    units = _units(it, name, known, events.change, judged)
    compared = _compared(it, name, {it.first: judged}, known, unit, scope)._replace(units=units)
    if not appended:
        return compared
    taken = judged.select(F.col("position").alias("_judged"), "taken")
    change = events.change.join(taken, F.col("position") == F.col("_judged"), "left")
    return compared._replace(left_out=derive.count_left_out(it, change))


def _looked_up(
    it: View, name: str, sources: Mapping[str, Source], believed: Near, known: Mapping[str, Shape], keep: Keep
) -> Refreshed:
    unit = {"position": derive.position(*derive.PLACES["position"])}
    events, versions, scope = increments.stream_table(
        sources[it.first],
        sources[it.second or ""],
        derive.looked_up(it, known),
        lambda periods: _packed(believed(periods), unit),
        keep,
    )
    units = _units(it, name, known, sources[it.first].change, events)
    return _compared(it, name, {it.first: events, it.second or "": versions}, known, unit, scope)._replace(units=units)


def _paired(
    it: View, name: str, sources: Mapping[str, Source], believed: Near, known: Mapping[str, Shape]
) -> Refreshed:
    join = it.join or Join()
    unit = {
        place: F.when(F.col(columns[0]).isNotNull(), derive.position(*columns))
        for place, columns in derive.PLACES.items()
        if place != "position"
    }
    left = sources[it.first]
    right = sources[it.second or ""].mapped(lambda rows: derive.alike(rows, left.change))
    lefts, rights, scope = increments.stream_stream(
        left,
        right,
        derive.interval(join.before),
        derive.interval(join.after),
        lambda periods: _packed(believed(periods), unit),
    )
    units = _units(it, name, known, left.change, right.change, lefts, rights)
    return _compared(it, name, {it.first: lefts, it.second or "": rights}, known, unit, scope)._replace(units=units)


def _compared(
    it: View,
    name: str,
    relations: Mapping[str, DataFrame],
    known: Mapping[str, Shape],
    unit: Mapping[str, Column],
    scope: Scope,
) -> Refreshed:
    """The believed rows of the scope, and what the operator makes of the rows that it has to see, within the scope."""
    result = scope.of(_packed(derive.made(it, name, relations, known), unit))
    periods = [period for period in PERIODS["versions"] if period in unit]
    return Refreshed(*(rows.select("_row.*", *periods) for rows in (scope.rows, result)))


def _packed(rows: DataFrame, unit: Mapping[str, Column]) -> DataFrame:
    """Flat rows as what tells them apart, and `_row`, all the rest: so their columns may have any names."""
    rest = [column for column in rows.columns if column not in unit or column not in PERIODS["versions"]]
    return rows.select(*(column.alias(name) for name, column in unit.items()), F.struct(*rest).alias("_row"))


def unit_of(it: View, name: str, known: Mapping[str, Shape]) -> Column:
    """The key of the operator's row that a view's row was made of; a new key holds the old one."""
    return F.struct(*(F.col(column).alias(old) for old, column in _kept(it, name, known).items()))


def _kept(it: View, name: str, known: Mapping[str, Shape]) -> dict[str, str]:
    """The columns of the key of the operator's row, each with the column of the view's key that holds it."""
    if it.key is None or it.aggregate is not None:
        return {column: column for column in known[name].key}
    kept = {text.removeprefix(f"{it.first}."): column for column, text in resolved(it.key, it, known).items()}
    return {column: kept[column] for column in known[it.first].key}


def _units(it: View, name: str, known: Mapping[str, Shape], *rows: DataFrame) -> DataFrame:
    """Return the keys of rows that an operator looks at as `Refreshed` has them: no column of a stream's new key need
    tell its old one.
    """
    names = {} if it.key is not None and known[name].kind in ("events", "pairs") else _kept(it, name, known)
    keys = reduce(DataFrame.unionByName, (some.select("key") for some in rows)).distinct()
    return keys.select(*(F.col("key").getField(old).alias(column) for old, column in names.items()))


def _source(source: Source, shape: Shape) -> Source:
    return source.mapped(lambda rows: derive.relation(rows, shape))


def _appended(contract: Contract, name: str) -> bool:
    """Whether a stream only ever gets events that come after all others of their partition: a topic, or what is made
    of each record of one alone. Of another pipeline's that is not known.
    """
    if name not in contract.inputs and any(g.on_failure == "quarantine" for g in contract.expectations(name)):
        return False  # what is released comes after what was not held
    view = contract.views.get(name)
    return name in contract.topics or (view is not None and view.join is None and _appended(contract, view.first))
