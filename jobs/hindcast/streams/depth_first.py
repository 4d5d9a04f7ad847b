"""Records in depth-first processing order (contract/routes.py).

    s -> n -> s_n, and s -> s_n: a record of s is put in n's store, and n's result is processed, before s_n looks n up

A record's place is the `turn` of its order; here all turns are the rows of one matrix, padded with NOTHING.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindcast.common.jit import Integers
    from hindcast.contract.routes import Edge, Route, StorePlace


OLD_VALUE = "before"
"""The `part` of rows that are old values: each follows the record that it belongs to."""


class InputRoute(NamedTuple):
    """How the records of an input reach a view: by which edge, and where (`put`) they enter the store for look-ups.

    `routes`: the route of records by the number of the topic where they began and the length of their turn; None if
    their turn is their place already. `sends_old_values`: each record with an old value is followed by it, as a row of
    the part OLD_VALUE.
    """

    edge: Edge
    put: StorePlace
    sends_old_values: bool
    routes: Mapping[tuple[int, int], Route] | None


class Turns(NamedTuple):
    """The turns of some rows, and their lengths. `root`: the number of the topic record that caused a row, ascending.

    There is a first step even if no row has one, as in a run in which a task has no records.
    """

    root: Integers
    steps: Integers
    length: Integers

    @classmethod
    def read(cls, order: pa.StructArray) -> Turns:
        """Return the turns of rows, given their `order` and sorted by it; rows without a turn come first."""
        turn = pc.struct_field(order, "turn")
        length = pc.list_value_length(turn).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        steps = np.full((len(length), int(length.max(initial=1))), NOTHING)
        steps[np.arange(steps.shape[1]) < length[:, None]] = turn.flatten().to_numpy(zero_copy_only=False)
        behind = np.stack([_field_numbers(order, name) for name in ("run", "reached", "topic", "partition", "offset")])
        return cls(np.cumsum(np.any(np.diff(behind, axis=1, prepend=NOTHING - 1) != 0, axis=0)), steps, length)

    def take(self, rows: Integers) -> Turns:
        """Return the turns of the rows with these numbers."""
        return Turns(*(column[rows] for column in self))

    def cut(self, length: Integers) -> Turns:
        """Return each turn cut to its length in `length`."""
        steps = np.where(np.arange(self.steps.shape[1]) < length[:, None], self.steps, NOTHING)
        return Turns(self.root, steps, length)

    def sorted_rows(self) -> Integers:
        """Return the numbers of the rows in ascending order; equal rows stay in the order that they have."""
        return np.lexsort((*self.steps.T[::-1], self.root))

    def lists(self) -> pa.ListArray:
        """Return the turns as an Arrow list<int> per row."""
        offsets = np.append(0, np.cumsum(self.length)).astype(np.int32)
        valid = np.arange(self.steps.shape[1]) < self.length[:, None]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(self.steps[valid].astype(np.int32)))


def sort_depth_first(table: pa.Table, input_routes: tuple[InputRoute, ...]) -> pa.Table:
    """Return the rows of a task sorted by their places, with these as their turns. Rows of state come first."""
    table = table.combine_chunks()
    order = table.column("order")
    order = order.chunk(0) if order.num_chunks else pa.array([], order.type)
    part = table.column("part")
    records = np.flatnonzero(pc.or_kleene(part.is_null(), pc.equal(part, OLD_VALUE)).to_numpy())
    if not len(records):
        return table
    turns = Turns.read(order.take(pa.array(records)))
    topic, side = (_number_column(table, order, name)[records] for name in ("topic", "side"))
    groups = []
    for number, input_route in enumerate(input_routes):
        of_side = side == number
        for kind in np.unique(np.stack((topic, turns.length), 1)[of_side], axis=0).tolist():
            rows = np.flatnonzero(of_side & (topic == kind[0]) & (turns.length == kind[1]))
            groups.append((rows, _place_turns(turns.steps[rows, : kind[1]], input_route, (kind[0], kind[1]))))
    length = np.empty(len(records), np.int64)
    steps = np.full((len(records), max(place.shape[1] for _, place in groups)), NOTHING)
    for rows, place in groups:
        length[rows] = place.shape[1]
        steps[rows, : place.shape[1]] = place
    places = Turns(turns.root, steps, length)
    ascending = places.sorted_rows()
    fields = {field.name: pc.struct_field(order, field.name).take(pa.array(records)) for field in order.type}
    fields["turn"] = places.lists().cast(order.type.field("turn").type)
    new = pa.StructArray.from_arrays(list(fields.values()), fields=list(order.type)).take(pa.array(ascending))
    state_rows = np.setdiff1d(np.arange(table.num_rows), records)
    ordered = table.take(pa.array(np.concatenate((state_rows, records[ascending]))))
    both = pa.concat_arrays([order.take(pa.array(state_rows)), new])
    return ordered.set_column(ordered.schema.get_field_index("order"), ordered.schema.field("order"), both)


def find_first_readers(order: pa.StructArray, rows: Integers, put: StorePlace) -> Integers:
    """Return, for each of some rows of a task, the number of the first row whose look-up finds what the row put.

    `order` is that of all rows, sorted by place; `put`: where the rows enter the store.
    """
    turns = Turns.read(order)
    row_turns = turns.take(rows)
    puts = row_turns.cut(_put_length(row_turns.steps, row_turns.length - 1, put))
    count = len(rows)
    ascending = Turns(*(np.concatenate(columns) for columns in zip(puts, turns, strict=True))).sorted_rows()
    readers = np.empty(count, np.int64)
    is_put = ascending < count
    readers[ascending[is_put]] = np.cumsum(~is_put)[is_put]
    return readers


def _place_turns(turn: Integers, input_route: InputRoute, kind: tuple[int, int]) -> Integers:
    """Return the places in a view of records of one kind: a pair of topic number and turn length."""
    count, number = len(turn), np.full((len(turn), 1), input_route.edge.number)
    if input_route.routes is None:
        place = turn
    else:
        route = input_route.routes[kind]
        place = np.zeros((count, 1 + 2 * len(route)), np.int64)
        place[:, 0] = sum(edge.is_repartitioned for edge in route)
        place[:, 1::2] = [edge.number for edge in route]
        place[:, 2::2] = turn
    place = np.concatenate((place, number), 1)
    place[:, 0] += input_route.edge.is_repartitioned
    return place


def _put_length(steps: Integers, length: Integers, put: StorePlace) -> Integers:
    """Return, for each row, how many of its `length` steps lead to where it is put in a store."""
    if not put.parts:
        return length
    into = length - 2  # without the emission, the edge is the last step
    edge = np.take_along_axis(steps, into[:, None], 1)[:, 0]
    lengths = into.copy()
    for side, part in enumerate(put.parts):
        of_side = np.flatnonzero(edge % 2 == side)
        if len(of_side):
            lengths[of_side] = _put_length(steps[of_side], into[of_side], part)
    return lengths


def _field_numbers(order: pa.StructArray, name: str) -> Integers:
    column = pc.struct_field(order, name).cast(pa.int64()).fill_null(NOTHING)
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _number_column(table: pa.Table, order: pa.StructArray, name: str) -> Integers:
    if name == "topic":
        return _field_numbers(order, name)
    column = table.column(name).combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return column.cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
