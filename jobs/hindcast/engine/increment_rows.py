"""Rows of increments as Arrow tables: what has changed in an input, what lies within hulls, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING
from hindcast.engine import hulls, integer_encoding
from hindcast.engine.hulls import Hulls, Periods, Versions
from hindcast.engine.spec import ViewIncrement
from hindcast.store import closing
from hindcast.store.tables import ARROW_TIMESTAMP

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


class Among(NamedTuple):
    """Values of some columns, which may repeat, each with the period in which it matters: parallel arrays.

    A row is among them if it has, in each of the columns, a value that matters at a moment of the row.
    """

    columns: tuple[str, ...]
    values: tuple[pa.ChunkedArray, ...]
    low: Integers
    high: Integers

    def select_columns(self, names: Container[str]) -> Among:
        """Return the values of these columns alone."""
        kept = [pair for pair in zip(self.columns, self.values, strict=True) if pair[0] in names]
        return self._replace(columns=tuple(name for name, _ in kept), values=tuple(values for _, values in kept))

    def rename_columns(self, names: Sequence[str]) -> Among:
        """Return the values of columns with other names, in the same order."""
        return self._replace(columns=tuple(names))

    def has_values(self, low: int, high: int) -> bool:
        """Return whether a value matters in a span of time."""
        return bool(self._find_near(low, high).any())

    def list_values(self, low: int, high: int) -> list[tuple[str, pa.Array]] | None:
        """Return the values that matter in a span of time, each once, by column; None if none does."""
        is_near = self._find_near(low, high)
        if not is_near.any():
            return None
        near = pa.array(is_near)
        return [(name, pc.unique(values.filter(near))) for name, values in zip(self.columns, self.values, strict=True)]

    def _find_near(self, low: int, high: int) -> Booleans:
        near: Booleans = (self.low <= high) & (self.high >= low)
        return near


ReadNear = Callable[..., pa.Table]
"""Returns the current rows of a table that touch a span of time, in microseconds, sorted by their starts.

Behind the span may come some `Among`: then rows that are among none of these may be missing.
"""


class ChangedRows(NamedTuple):
    """An input that has changed since it was read before: its rows `closed` and `opened` since, and its current rows.

    A row that was opened and closed in between is in neither.
    """

    closed: pa.Table
    opened: pa.Table
    read_near: ReadNear


class LeftOutRows(NamedTuple):
    """How many rows of its input an aggregate leaves out more, or fewer: without a group, without a value, too late.

    `reached`: of one in windows, the latest of the new events by partition, in microseconds.
    """

    no_key: int = 0
    no_value: int = 0
    too_late: int = 0
    reached: Mapping[int, int] | None = None


NOTHING_LEFT_OUT = LeftOutRows()


class Comparison(NamedTuple):
    """The current rows of a view that a change may affect, and the rows that replace them.

    `units`: rows of all keys that the change concerns, also of those without a row on either side; each table with the
    columns that have the view's `unit_columns`.
    """

    current: pa.Table
    derived: pa.Table
    left_out: LeftOutRows = NOTHING_LEFT_OUT
    units: Sequence[tuple[pa.Table, Sequence[str]]] = ()


def compare_nothing(form: ViewIncrement, left_out: LeftOutRows = NOTHING_LEFT_OUT) -> Comparison:
    """Return the comparison where no row is affected."""
    none = form.output.types.empty_table()
    return Comparison(none, none, left_out)


def diff_rows(form: ViewIncrement, rows: Comparison, *, with_kept: bool = False) -> pa.Table:
    """Return `plane.diff_rows` of current and derived rows; of lineage only what identifies a row is compared.

    `with_kept`: also the current rows that stay, with the `_change` 'keep'.
    """
    closes, opened = find_differences(form, rows)
    current = _decode(rows.current.select(form.columns))
    parts = [("close", current.filter(pa.array(closes))), ("open", opened)]
    parts += [("keep", current.filter(pa.array(~closes & with_kept)))]
    marked = [rows.append_column("_change", pa.repeat(change, rows.num_rows)) for change, rows in parts]
    return pa.concat_tables(marked).combine_chunks()


def find_differences(form: ViewIncrement, rows: Comparison) -> tuple[Booleans, pa.Table]:
    """Return which of the current rows of a comparison close, and the rows to open."""
    compared = [column for column in form.columns if column in form.identity or not column.startswith("_")]
    current, derived = (_decode(side.select(form.columns)) for side in (rows.current, rows.derived))
    # rule: a row on both sides is neither closed nor opened
    stays, repeats = (closing.find_matching_rows(*pair, compared) for pair in ((current, derived), (derived, current)))
    return ~stays, derived.filter(pa.array(~repeats))


SIDE = "_side"
"""The column with what an affected row is (`list_affected_rows`)."""


def list_affected_rows(form: ViewIncrement, rows: Comparison) -> pa.Table:
    """Return the rows of a comparison by their `_side`: 'current' and 'derived' ones; and 'unit', the keys concerned.

    A unit has nothing but the form's `unit_columns`; there is only one if the form has none.
    """
    sides = {name: _decode(side.select(form.columns)) for name, side in zip(("current", "derived"), rows, strict=False)}
    sides["unit"] = _list_units(form, rows)
    marked = [side.append_column(SIDE, pa.repeat(name, side.num_rows)) for name, side in sides.items()]
    return pa.concat_tables(marked, promote_options="default").combine_chunks()


def _list_units(form: ViewIncrement, rows: Comparison) -> pa.Table:
    """Return the keys that a change concerns, each once."""
    columns = list(form.unit_columns)
    types = form.output.types.empty_table().select(columns)
    if not columns:
        return pa.table({SIDE: pa.nulls(min(1, sum(part.num_rows for part, _ in rows.units)))}).select([])
    parts = [_decode(part.select(own)).rename_columns(columns) for part, own in rows.units]
    return pa.concat_tables([types, *parts]).group_by(columns).aggregate([])


def _decode(rows: pa.Table) -> pa.Table:
    return integer_encoding.decode_dictionaries(rows, rows.column_names)


BOUNDS = ("_low", "_high")
"""Columns with the bounds of the hull that a row belongs to."""


def add_hulls(rows: pa.Table, keys: Integers, of: Hulls) -> pa.Table:
    """Return rows with the bounds of the hull of their key; null for NOTHING."""
    for name, bounds in zip(BOUNDS, of, strict=True):
        rows = rows.append_column(name, pa.array(bounds[keys], mask=keys == NOTHING))
    return rows


def clip_rows(rows: pa.Table) -> pa.Table:
    """Return rows as they are within their hulls."""
    low, high = (rows.column(name).to_numpy() for name in BOUNDS)
    # rule: derived rows are clipped to their hull
    start, end = np.maximum(read_moments(rows, "validFrom"), low), np.minimum(read_moments(rows, "validTo"), high)
    for name, moments in (("validFrom", start), ("validTo", end)):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, integer_encoding.decode_timestamps(moments, ARROW_TIMESTAMP))
    return rows.filter(pa.array(start < end))


def read_periods(rows: pa.Table, keys: Integers) -> Periods:
    """Return the valid periods of rows, given the numbers of their keys."""
    return Periods(keys, read_moments(rows, "validFrom"), read_moments(rows, "validTo"))


def read_moments(rows: pa.Table, column: str) -> Integers:
    """Return the moments in a column, FOREVER for null."""
    return integer_encoding.encode_timestamps(rows.column(column))


class Needs(NamedTuple):
    """Rows whose values in some `columns` of theirs matter, each from `low` to `high`."""

    rows: pa.Table
    columns: Sequence[str]
    low: Integers
    high: Integers


def list_among(columns: Sequence[str], *needs: Needs) -> Among:
    """Return the values that rows have in columns of their own, as values of other `columns`."""
    parts = [_decode(part.rows.select(list(part.columns))).columns for part in needs]
    low, high = (np.concatenate([getattr(part, bound) for part in needs]) for bound in ("low", "high"))
    values = (
        pa.chunked_array([chunk for column in same for chunk in column.chunks], same[0].type)
        for same in zip(*parts, strict=True)
    )
    return Among(tuple(columns), tuple(values), low, high)


def list_changed(columns: Sequence[str], *changes: tuple[ChangedVersions, Sequence[str]]) -> Among:
    """Return the values that changed versions have in columns of their own, with the hulls of what has changed.

    Versions with the same values in these have one hull.
    """
    sides = [(side, own) for changed, own in changes for side in changed.sides]

    def find_periods(keys: Sequence[Integers]) -> list[Periods]:
        pairs = zip(keys[::2], keys[1::2], strict=True)
        return [changed.find_periods(pair) for (changed, _), pair in zip(changes, pairs, strict=True)]

    return list_hulls(columns, sides, find_periods)


def list_hulls(
    columns: Sequence[str],
    parts: Sequence[tuple[pa.Table, Sequence[str]]],
    find_periods: Callable[[Sequence[Integers]], Iterable[Periods]],
) -> Among:
    """Return the values that rows have in columns of their own, as values of other `columns`, each with its hull.

    `find_periods`: returns the periods that the hulls have, given the keys of each part as numbers.
    """
    keys, count = integer_encoding.encode_keys([rows for rows, _ in parts], [own for _, own in parts], whole=None)
    low, high = hulls.build_hulls(count, *find_periods(keys))
    return list_among(columns, *(Needs(*part, low[of], high[of]) for part, of in zip(parts, keys, strict=True)))


class ChangedVersions(NamedTuple):
    """Versions that were closed and that were opened, with numbers for what they are of and what they say."""

    sides: tuple[pa.Table, pa.Table]
    rows: Sequence[Integers]
    contents: Sequence[Integers]

    def find_periods(self, keys: Sequence[Integers]) -> Periods:
        """Return the periods in which they differ, of the keys of both sides."""
        parts = zip(self.sides, keys, self.rows, self.contents, strict=True)
        return hulls.find_changed_periods(*(Versions(read_periods(it, of), *numbers) for it, of, *numbers in parts))

    def find_span(self) -> tuple[int, int] | None:
        """Return the first and the last moment at which they differ; None if they do not."""
        return self.find_periods(self.rows).find_span()


def number_versions(closed: pa.Table, opened: pa.Table, of: Sequence[str], content: Sequence[str]) -> ChangedVersions:
    """Return versions with their numbers, given the columns of what they are of and of what they say."""
    sides = closed, opened
    rows, _ = integer_encoding.encode_keys(sides, [of, of], whole=None)
    contents, _ = integer_encoding.encode_keys(sides, [content, content], whole=None)
    return ChangedVersions(sides, rows, contents)
