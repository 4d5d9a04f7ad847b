"""The rows of a task, as an Arrow table and as arrays for the operators.

A row is a record for the operator, or part of the state that an earlier run left:

| column | |
| --- | --- |
| part | null for a record, or the name of a part of the state |
| side | the input: 0 the first, 1 the second |
| partition | the partition to which the row was sent; of an emitted row that of the output |
| id, other, home | bytes of its key; of the key that its value names (foreign key, group); the partition of that |
| time, start, end | milliseconds since 1970: the timestamp, a window |
| put, passes | whether it has a value; whether the view's condition is true for the value |
| n | a number of the state; its meaning depends on the part. Of an emitted row: its offset |
| order | the record's place in processing order: struct<run, reached, topic, partition, offset, turn> |
| key, first, second | structs: the key of its results, the values of both sides |
| before_first, before_second | structs, of emitted rows: the old values of both sides |
| headers | list of structs: the record's headers; of a waiting row, those that it will be emitted with; null: none |
| numbers, measures | structs: the arguments of measures; the parts of a stored aggregate |

Columns that an operator does not use may be left out. The output has the same columns: emitted rows, whose `order` is
that of the cause with one more turn, and rows of state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING
from hindcast.streams.depth_first import OLD_VALUE
from hindcast.streams.versioned import StoreState

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

if TYPE_CHECKING:
    ColumnArray: TypeAlias = Integers | Booleans | pa.Array
STRUCTS = ("order", "key", "first", "second", "before_first", "before_second", "numbers", "measures")


class TaskRows:
    """The rows of a task: state first, then records in processing order. Row numbers serve as values and as orders.

    A task may have several partitions; a key is a code for its bytes and its partition. Codes sort as bytes do.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table.combine_chunks()
        self.count = self.table.num_rows
        self.time = self.integers("time")
        self.n = self.integers("n")
        self.partition = self.integers("partition")
        self.put = self.booleans("put")
        self.passes = self.booleans("passes")
        self.value = np.where(self.put, np.arange(self.count), NOTHING)
        self.side = self.integers("side")
        self._parts: dict[str, Booleans] = {}
        self._part = pc.fill_null(self.column("part"), "")

    def column(self, name: str) -> pa.Array:
        """Return a column as one array."""
        chunks = self.table.column(name)
        return chunks.chunk(0) if chunks.num_chunks else pa.array([], chunks.type)

    def integers(self, name: str) -> Integers:
        """Return a column of numbers as int64, NOTHING for null."""
        return self.column(name).cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def booleans(self, name: str) -> Booleans:
        """Return a column of booleans, false for null."""
        return self.column(name).fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def records(self, side: int) -> Integers:
        """Return the numbers of the rows that are an input's records."""
        return np.flatnonzero(self.is_part("") & (self.side == side))

    def is_part(self, name: str) -> Booleans:
        """Return, for each row, whether it belongs to a part of the state ("": it is a record)."""
        if name not in self._parts:
            self._parts[name] = pc.equal(self._part, name).to_numpy(zero_copy_only=False)
        return self._parts[name]

    def state_rows(self, name: str) -> Integers:
        """Return the numbers of the rows that belong to a part of the state."""
        return np.flatnonzero(self.is_part(name))

    @cached_property
    def _codes(self) -> tuple[Integers, Integers, Integers]:
        """The code of each row's key, of the key that it names, and the partition of each code."""
        names = ["id", "other"] if "other" in self.table.column_names else ["id"]
        known = pa.concat_arrays([self.column(name).cast(pa.binary()) for name in names]).dictionary_encode()
        ascending = pc.sort_indices(known.dictionary).to_numpy()
        rank = np.empty(len(ascending) + 1, np.int64)
        rank[ascending] = np.arange(len(ascending))  # rule: keys sort by their bytes
        rank[-1] = NOTHING
        of = rank[known.indices.cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)]
        home = np.concatenate((self.partition, self.integers("home"))) if "other" in names else self.partition
        width = int(home.max(initial=0)) + 1
        pairs = of * width + home
        is_used = np.zeros(len(ascending) * width, np.bool_)
        is_used[pairs[of != NOTHING]] = True
        number = np.append(np.cumsum(is_used) - 1, NOTHING)
        codes = number[np.where(of == NOTHING, len(is_used), pairs)]
        others = codes[self.count :] if "other" in names else np.full(self.count, NOTHING)
        return codes[: self.count], others, np.flatnonzero(is_used) % width  # rule: a key has its own partition

    @property
    def key(self) -> Integers:
        """The code of each row's key; NOTHING for a null."""
        return self._codes[0]

    @property
    def other(self) -> Integers:
        """The code of the key that each row names; NOTHING for none."""
        return self._codes[1]

    @property
    def home(self) -> Integers:
        """The partition of each code."""
        return self._codes[2]

    @cached_property
    def partition_count(self) -> int:
        """The largest partition number plus one."""
        return int(max(self.partition.max(initial=0), self.home.max(initial=0))) + 1

    @cached_property
    def present(self) -> list[int]:
        """The partitions that have rows; the first one if there are no rows."""
        return np.unique(self.partition).tolist() or [0]

    def old_value_rows(self, rows: Integers) -> Integers:
        """Return, for each record, the number of the row with its old value; NOTHING if there is none."""
        has_old_value = np.append(self.is_part(OLD_VALUE), False)[rows + 1]
        return np.where(has_old_value, rows + 1, NOTHING)

    def read_clock(self, part: str) -> Integers:
        """Return a number that the state has for each partition, NOTHING if it has none."""
        numbers = np.full(self.partition_count, NOTHING)
        rows = self.state_rows(part)
        numbers[self.partition[rows]] = self.n[rows]
        return numbers

    def store_state(self, part: str, reached: str) -> StoreState:
        """Return the state of a store. `reached`: the part with its stream times."""
        rows = self.state_rows(part)
        return StoreState(self.key[rows], self.time[rows], self.value[rows], self.n[rows] > 0, self.read_clock(reached))

    def find_key_rows(self, codes: Integers, *, others: bool = False) -> Integers:
        """Return, for each code, the number of a row with it as its key (`others`: as the key named), or NOTHING.

        A row with the column `key` is preferred: rows found by a foreign key have none.
        """
        rows = np.full(len(self.home) + 1, NOTHING)
        of = self.other if others else self.key
        rows[of] = np.arange(self.count)
        if "key" in self.table.column_names:
            keyed = np.flatnonzero(self.column("key").is_valid())
            rows[of[keyed]] = keyed
        rows[NOTHING] = NOTHING
        return rows[codes]

    def take(self, rows: Mapping[str, Integers], **columns: ColumnArray) -> pa.Table:
        """Return new rows: some columns taken from the rows given for them (NOTHING: null), others given in `columns`.

        Any other column is null.
        """
        count = len(next(iter([*rows.values(), *columns.values()])))
        arrays = []
        for name in self.table.column_names:
            kind = self.table.schema.field(name).type
            if name in columns:  # `columns` take precedence over `rows`
                given: pa.Array = columns[name]
                array = given if isinstance(given, pa.Array) else pa.array(given, kind)
                arrays.append(array.cast(kind) if name not in STRUCTS else array)
            elif name in rows:
                arrays.append(self.column(name).take(pa.array(rows[name], mask=rows[name] == NOTHING)))
            else:
                arrays.append(pa.nulls(count, kind))
        return pa.table(arrays, schema=self.table.schema)

    def build_state_rows(
        self,
        part: str,
        rows: Integers,
        *,
        time: Integers,
        n: Integers,
        put: Booleans,
        headers: bool = False,
        **columns: ColumnArray,
    ) -> pa.Table:
        """Return rows of state, copied from `rows` except for the columns given; a tombstone has only its key.

        `headers`: copy the headers too, so that the rows can be emitted with them.
        """
        every = dict.fromkeys(("side", "partition", "id", "key", *(("headers",) if headers else ())), rows)
        valued = dict.fromkeys(("other", "home", "passes", "first", "second", "numbers"), np.where(put, rows, NOTHING))
        return self.take({**every, **valued}, part=pa.repeat(part, len(rows)), time=time, n=n, put=put, **columns)

    def keys(self, rows: Integers) -> pa.Array:
        """Return the column `key` of some rows, null for NOTHING."""
        return self.column("key").take(pa.array(rows, mask=rows == NOTHING))

    def build_clock_rows(self, part: str, numbers: Integers) -> pa.Table:
        """Return rows of state with a number for each partition; no row for NOTHING."""
        partitions = np.flatnonzero(numbers != NOTHING)
        return self.take({}, part=pa.repeat(part, len(partitions)), partition=partitions, n=numbers[partitions])

    def emitted_order(self, causes: Integers) -> pa.Array:
        """Return the `order` of emitted rows: that of the cause with one more turn, counted from 0 for each cause."""
        order = self.column("order").take(pa.array(causes))
        fields = {field.name: pc.struct_field(order, field.name) for field in order.type}
        turns = fields["turn"]
        lengths = pc.list_value_length(turns).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        starts = np.flatnonzero(np.append(True, causes[1:] != causes[:-1])[: len(causes)])
        begun = np.repeat(starts, np.diff(np.append(starts, len(causes))))
        ends = np.cumsum(lengths + 1)
        flat = np.empty(int(ends[-1]) if len(ends) else 0, np.int32)
        last = np.zeros(len(flat), np.bool_)
        last[ends - 1] = True
        flat[last] = np.arange(len(causes)) - begun  # rule: results of one cause have turns
        flat[~last] = turns.flatten().to_numpy(zero_copy_only=False)
        offsets = pa.array(np.append(0, ends).astype(np.int32))
        fields["turn"] = pa.ListArray.from_arrays(offsets, pa.array(flat)).cast(turns.type)
        return pa.StructArray.from_arrays(list(fields.values()), fields=list(order.type))
