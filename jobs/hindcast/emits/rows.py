"""A task's rows: as Arrow has them, and as arrays for the operators.

A row is a record that the operator is given, or something that an earlier run has kept:

| column | |
| --- | --- |
| part | null for a record, or what it is a part of that was kept |
| side | the input that it is of: 0 the first, 1 the second |
| partition | the partition that it was sent to |
| id, other, home | bytes of its key; of the key that its value names (a foreign one, a group); that one's partition |
| time, start, end | milliseconds since 1970: the timestamp, a window |
| put, passes | whether it has a value; whether the view's condition is true of that |
| n | of what is kept: what its part says it is |
| order | the place of the record in processing order: struct<run, reached, topic, partition, offset, turn> |
| key, first, second | structs: the key of its results, the value of either side |
| before_first, before_second | structs: of what is emitted, the same of what was before it |
| headers | list of structs: the headers of the record, of what waits those that it will come out with; null: none |
| numbers, measures | structs: what is aggregated; the parts of an aggregate that is kept |

A column that an operator has no use for may be left out. The same rows come out: what is emitted, `order` being its
cause's with one more turn, and what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.compiled import NOTHING
from hindcast.emits.depth import BEFORE
from hindcast.emits.versioned import Versions

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers

STRUCTS = ("order", "key", "first", "second", "before_first", "before_second", "numbers", "measures")


class Rows:
    """The rows of a task: what is kept first, then records in processing order. Row numbers are values and orders.

    A task may be one of several partitions; a key is a code of its bytes and its partition, codes sort as bytes do.
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

    def column(self, name: str) -> Any:
        """A column as one array."""
        found = self.table.column(name)
        return found.chunk(0) if found.num_chunks else pa.array([], found.type)

    def integers(self, name: str) -> Integers:
        """A column of numbers, NOTHING for null."""
        return self.column(name).cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def booleans(self, name: str) -> Booleans:
        """A column of booleans, false for null."""
        return self.column(name).fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]

    def records(self, side: int) -> Integers:
        """The numbers of an input's records."""
        return np.flatnonzero(self.is_part("") & (self.side == side))

    def is_part(self, name: str) -> Booleans:
        """Which rows are a part of what is kept."""
        if name not in self._parts:
            self._parts[name] = pc.equal(self._part, name).to_numpy(zero_copy_only=False)
        return self._parts[name]

    def kept(self, name: str) -> Integers:
        """The numbers of the rows that are a part of what is kept."""
        return np.flatnonzero(self.is_part(name))

    @cached_property
    def _codes(self) -> tuple[Integers, Integers, Integers]:
        """The code of each row's key, of the key that it names, and the partition of each code."""
        names = ["id", "other"] if "other" in self.table.column_names else ["id"]
        known = pa.concat_arrays([self.column(name).cast(pa.binary()) for name in names]).dictionary_encode()
        ascending = pc.sort_indices(known.dictionary).to_numpy()
        rank = np.empty(len(ascending) + 1, np.int64)
        rank[ascending] = np.arange(len(ascending))
        rank[-1] = NOTHING
        of = rank[known.indices.cast(pa.int64()).fill_null(NOTHING).to_numpy(zero_copy_only=False)]
        home = np.concatenate((self.partition, self.integers("home"))) if "other" in names else self.partition
        width = int(home.max(initial=0)) + 1
        pairs = of * width + home
        found = np.zeros(len(ascending) * width, np.bool_)
        found[pairs[of != NOTHING]] = True
        number = np.append(np.cumsum(found) - 1, NOTHING)
        codes = number[np.where(of == NOTHING, len(found), pairs)]
        others = codes[self.count :] if "other" in names else np.full(self.count, NOTHING)
        return codes[: self.count], others, np.flatnonzero(found) % width

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
    def partitions(self) -> int:
        """One more than the largest partition there is."""
        return int(max(self.partition.max(initial=0), self.home.max(initial=0))) + 1

    @cached_property
    def present(self) -> list[int]:
        """The partitions that rows are of; the first one if there are no rows."""
        return np.unique(self.partition).tolist() or [0]

    def before(self, rows: Integers) -> Integers:
        """For each record the number of the row that was before it; NOTHING if there was none."""
        told = np.append(self.is_part(BEFORE), False)[rows + 1]
        return np.where(told, rows + 1, NOTHING)

    def reached(self, part: str) -> Integers:
        """A number of each partition that is kept, NOTHING where there is none."""
        found = np.full(self.partitions, NOTHING)
        rows = self.kept(part)
        found[self.partition[rows]] = self.n[rows]
        return found

    def versions(self, part: str, reached: str) -> Versions:
        """What is kept of a store."""
        rows = self.kept(part)
        return Versions(self.key[rows], self.time[rows], self.value[rows], self.n[rows] > 0, self.reached(reached))

    def named(self, codes: Integers, *, others: bool = False) -> Integers:
        """For each code a row that has it as its key, or as the key that it names; NOTHING if there is none.

        If any of them has a key of results it is one that has: a foreign key's rows have none.
        """
        rows = np.full(len(self.home) + 1, NOTHING)
        of = self.other if others else self.key
        rows[of] = np.arange(self.count)
        if "key" in self.table.column_names:
            keyed = np.flatnonzero(self.column("key").is_valid())
            rows[of[keyed]] = keyed
        rows[NOTHING] = NOTHING
        return rows[codes]

    def take(self, rows: Mapping[str, Integers], **columns: Any) -> pa.Table:
        """Rows like these: each struct taken from the row given for it (NOTHING: null), all else from `columns`.

        What is not given is null.
        """
        count = len(next(iter([*rows.values(), *columns.values()])))
        arrays = []
        for name in self.table.column_names:
            kind = self.table.schema.field(name).type
            if name in columns:  # before `rows`: what is given is not taken
                array = pa.array(columns[name], kind) if not isinstance(columns[name], pa.Array) else columns[name]
                arrays.append(array.cast(kind) if name not in STRUCTS else array)
            elif name in rows:
                arrays.append(self.column(name).take(pa.array(rows[name], mask=rows[name] == NOTHING)))
            else:
                arrays.append(pa.nulls(count, kind))
        return pa.table(arrays, schema=self.table.schema)

    def left(
        self,
        part: str,
        rows: Integers,
        *,
        time: Integers,
        n: Integers,
        put: Booleans,
        headers: bool = False,
        **columns: Any,
    ) -> pa.Table:
        """Rows that are kept, like some of these but for what is given; a tombstone has a key and nothing else.

        `headers`: they keep these too, to come out with them.
        """
        every = dict.fromkeys(("side", "partition", "id", "key", *(("headers",) if headers else ())), rows)
        valued = dict.fromkeys(("other", "home", "passes", "first", "second", "numbers"), np.where(put, rows, NOTHING))
        return self.take({**every, **valued}, part=pa.repeat(part, len(rows)), time=time, n=n, put=put, **columns)

    def keys(self, rows: Integers) -> pa.Array:
        """The keys of the results of some rows, null for NOTHING."""
        return self.column("key").take(pa.array(rows, mask=rows == NOTHING))

    def clock(self, part: str, numbers: Integers) -> pa.Table:
        """A number of each partition that is kept."""
        there = np.flatnonzero(numbers != NOTHING)
        return self.take({}, part=pa.repeat(part, len(there)), partition=there, n=numbers[there])

    def causes(self, causes: Integers) -> pa.Array:
        """The places of what is emitted: those of their causes, with one more turn, which counts from 0 in each."""
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
        flat[last] = np.arange(len(causes)) - begun
        flat[~last] = turns.flatten().to_numpy(zero_copy_only=False)
        offsets = pa.array(np.append(0, ends).astype(np.int32))
        fields["turn"] = pa.ListArray.from_arrays(offsets, pa.array(flat)).cast(turns.type)
        return pa.StructArray.from_arrays(list(fields.values()), fields=list(order.type))
