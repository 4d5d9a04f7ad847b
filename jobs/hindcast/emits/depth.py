"""Records in the order of their places: depth first, as contracts.routes has it.

    s -> n -> s_n, and s -> s_n: a record of s is in n's store, and n's result is looked at, before s_n looks n up

A place is the `turn` in the order of a record; here all turns are the rows of one matrix, filled up with NOTHING.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.compiled import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindcast.compiled import Integers
    from hindcast.contracts.routes import Edge, Put, Route


BEFORE = "before"
"""The part of rows that are what was before: each stands behind the record that it is told with."""


class Way(NamedTuple):
    """How the records of an input come into a view: the edge, and where the rows are put that look-ups find.

    `routes`: how they came to be there, by the number of the topic that they began at and the length of their turn;
    None if that is their place already. `tells`: each has what was before it, as a row of the part BEFORE.
    """

    edge: Edge
    put: Put
    tells: bool
    routes: Mapping[tuple[int, int], Route] | None


class Turns(NamedTuple):
    """The turns of some rows, and their lengths. `root`: rises with the record that is behind a row.

    There is a first step even where no row has one, as in a run that brings no record to a task.
    """

    root: Integers
    steps: Integers
    length: Integers

    @classmethod
    def read(cls, order: pa.StructArray) -> Turns:
        """Return the turns of rows in their order; rows without one come first."""
        turn = pc.struct_field(order, "turn")
        length = pc.list_value_length(turn).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        steps = np.full((len(length), int(length.max(initial=1))), NOTHING)
        steps[np.arange(steps.shape[1]) < length[:, None]] = turn.flatten().to_numpy(zero_copy_only=False)
        behind = np.stack([_numbers(order, name) for name in ("run", "reached", "topic", "partition", "offset")])
        return cls(np.cumsum(np.any(np.diff(behind, axis=1, prepend=NOTHING - 1) != 0, axis=0)), steps, length)

    def take(self, rows: Integers) -> Turns:
        """Return those of some rows."""
        return Turns(*(column[rows] for column in self))

    def cut(self, length: Integers) -> Turns:
        """Return the first steps of each."""
        steps = np.where(np.arange(self.steps.shape[1]) < length[:, None], self.steps, NOTHING)
        return Turns(self.root, steps, length)

    def ascending(self) -> Integers:
        """Return the numbers of the rows in ascending order, equal ones as they stand."""
        return np.lexsort((*self.steps.T[::-1], self.root))

    def lists(self) -> pa.ListArray:
        """Return them as Arrow has them."""
        offsets = np.append(0, np.cumsum(self.length)).astype(np.int32)
        there = np.arange(self.steps.shape[1]) < self.length[:, None]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(self.steps[there].astype(np.int32)))


def sort_by_place(table: pa.Table, ways: tuple[Way, ...]) -> pa.Table:
    """Return the rows of a task in order of their places, which are their turns then. Rows that are kept come first."""
    table = table.combine_chunks()
    order = table.column("order")
    order = order.chunk(0) if order.num_chunks else pa.array([], order.type)
    part = table.column("part")
    records = np.flatnonzero(pc.or_kleene(part.is_null(), pc.equal(part, BEFORE)).to_numpy())
    if not len(records):
        return table
    turns = Turns.read(order.take(pa.array(records)))
    topic, side = (_column(table, order, name)[records] for name in ("topic", "side"))
    groups = []
    for number, way in enumerate(ways):
        of_side = side == number
        for kind in np.unique(np.stack((topic, turns.length), 1)[of_side], axis=0).tolist():
            rows = np.flatnonzero(of_side & (topic == kind[0]) & (turns.length == kind[1]))
            groups.append((rows, _place(turns.steps[rows, : kind[1]], way, (kind[0], kind[1]))))
    length = np.empty(len(records), np.int64)
    steps = np.full((len(records), max(place.shape[1] for _, place in groups)), NOTHING)
    for rows, place in groups:
        length[rows] = place.shape[1]
        steps[rows, : place.shape[1]] = place
    found = Turns(turns.root, steps, length)
    ascending = found.ascending()
    fields = {field.name: pc.struct_field(order, field.name).take(pa.array(records)) for field in order.type}
    fields["turn"] = found.lists().cast(order.type.field("turn").type)
    new = pa.StructArray.from_arrays(list(fields.values()), fields=list(order.type)).take(pa.array(ascending))
    kept = np.setdiff1d(np.arange(table.num_rows), records)
    told = table.take(pa.array(np.concatenate((kept, records[ascending]))))
    both = pa.concat_arrays([order.take(pa.array(kept)), new])
    return told.set_column(told.schema.get_field_index("order"), told.schema.field("order"), both)


def find_from(order: pa.StructArray, rows: Integers, put: Put) -> Integers:
    """Return for rows of a task, which are sorted by place, the number of the first row whose look-up finds what each
    puts.
    """
    turns = Turns.read(order)
    its = turns.take(rows)
    puts = its.cut(_put_length(its.steps, its.length - 1, put))
    count = len(rows)
    ascending = Turns(*(np.concatenate(columns) for columns in zip(puts, turns, strict=True))).ascending()
    found = np.empty(count, np.int64)
    is_put = ascending < count
    found[ascending[is_put]] = np.cumsum(~is_put)[is_put]
    return found


def _place(turn: Integers, way: Way, kind: tuple[int, int]) -> Integers:
    """The places of records of one kind in the view that they come into."""
    count, number = len(turn), np.full((len(turn), 1), way.edge.number)
    if way.routes is None:
        place = turn
    else:
        route = way.routes[kind]
        place = np.zeros((count, 1 + 2 * len(route)), np.int64)
        place[:, 0] = sum(edge.hops for edge in route)
        place[:, 1::2] = [edge.number for edge in route]
        place[:, 2::2] = turn
    place = np.concatenate((place, number), 1)
    place[:, 0] += way.edge.hops
    return place


def _put_length(steps: Integers, length: Integers, put: Put) -> Integers:
    """How many steps lead to where a row is put, of those that lead out of an input."""
    if not put.parts:
        return length
    into = length - 2  # without the emission, the edge is the last step
    edge = np.take_along_axis(steps, into[:, None], 1)[:, 0]
    found = into.copy()
    for side, part in enumerate(put.parts):
        of_side = np.flatnonzero(edge % 2 == side)
        if len(of_side):
            found[of_side] = _put_length(steps[of_side], into[of_side], part)
    return found


def _numbers(order: pa.StructArray, name: str) -> Integers:
    column = pc.struct_field(order, name).cast(pa.int64()).fill_null(NOTHING)
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _column(table: pa.Table, order: pa.StructArray, name: str) -> Integers:
    if name == "topic":
        return _numbers(order, name)
    column = table.column(name).combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return column.cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
