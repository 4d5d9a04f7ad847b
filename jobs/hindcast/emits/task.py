"""A task: the rows of one or several partitions through the operator of a view. Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.emits import (
    aggregates,
    buffer,
    closing,
    foreign_key,
    measures,
    stream_stream,
    stream_table,
    table_table,
    tables,
    time_limit,
    windowed,
)
from hindcast.emits.closing import Emit
from hindcast.emits.compiled import NOTHING
from hindcast.emits.rows import Rows
from hindcast.emits.tables import INSISTS, Changes, Kept, Side, Step
from hindcast.emits.versioned import UNLIMITED, empty
from hindcast.emits.windowed import Windows

if TYPE_CHECKING:
    from hindcast.emits.compiled import Booleans, Integers

NULL_KEY = "a null key in a left join with grace"
"""What a task fails with, before the place of the record."""


@dataclass(frozen=True)
class Store:
    """How a table is stored. `retention` in ms; None: without limit."""

    versioned: bool
    retention: int | None = None

    @property
    def bound(self) -> int | None:
        """As the stores take it."""
        if not self.versioned:
            return None
        return UNLIMITED if self.retention is None else self.retention


@dataclass(frozen=True)
class Form:
    """What a view is, as far as its task has to know. `stores`: of each input that is a table, by its side.

    `filters`: it has a condition (on a table, of its first input). `result`: the store that its results are put in.
    `measures`: the functions of an aggregate, each of the argument of its number.
    """

    operator: Literal["stream", "table", "stream_table", "table_table", "foreign_key", "pairs", "aggregate", "windows"]
    how: Any = "inner"
    stores: Mapping[int, Store] | None = None
    filters: bool = False
    result: Store | None = None
    grace: int | None = None
    suppress: int | None = None
    span: stream_stream.Window | None = None
    windows: Windows | None = None
    emit: Emit = Emit.UPDATE
    measures: tuple[str, ...] = ()


class Out(NamedTuple):
    """What is emitted, in order: the rows that caused it and that its sides are taken from, or its measures.

    `headers`: the row whose headers it has, NOTHING for none; of None, the one that caused it.
    """

    cause: Integers
    key: Integers
    first: Integers
    second: Integers
    time: Integers
    tombstone: Booleans
    start: Integers | None = None
    end: Integers | None = None
    measures: pa.Array | None = None
    headers: Integers | None = None


def process(form: Form, table: pa.Table) -> pa.Table:
    """What the rows of a task emit, and what they leave, as `Rows` has them; `put` is false for a tombstone.

    A tombstone `passes` if it is a value that does not pass the view's condition: a store has it. Raises ValueError,
    its text beginning with NULL_KEY, for the record on which Kafka Streams fails.
    """
    rows = Rows(table)
    emitted, kept = _OPERATORS[form.operator](form, rows)
    return pa.concat_tables([*_emitted(form, rows, emitted), *kept])


def _emitted(form: Form, rows: Rows, out: Out) -> list[pa.Table]:
    """Emitted rows, numbered by partition: their offsets; and the last of these.

    The key of a result is that of the row that has it, or of one with the same code.
    """
    grouped = form.operator == "aggregate" and 0 in (form.stores or {})
    # What comes of one event has the event's key; it may be looked up, and stored, by another one.
    of_event = form.operator in ("stream", "stream_table")
    key = out.first if of_event else np.where(out.key == NOTHING, NOTHING, rows.named(out.key, others=grouped))
    partition = np.where(out.key == NOTHING, rows.partition[out.cause], np.append(rows.home, NOTHING)[out.key])
    more: dict[str, Any] = {} if out.measures is None else {"measures": out.measures}
    if out.start is not None:
        more |= {"start": out.start, "end": out.end}
    filtered = out.tombstone & rows.put[out.cause] & (form.operator == "table")
    named = rows.column("other" if grouped else "id").take(pa.array(key, mask=key == NOTHING))
    number, reached = _numbered(partition, rows.reached("emitted"))
    return [
        rows.clock("emitted", reached),
        rows.take(
            {
                "key": key,
                "first": out.first,
                "second": out.second,
                "headers": out.cause if out.headers is None else out.headers,
            },
            id=named,
            partition=partition,
            time=out.time,
            n=number,
            put=~out.tombstone,
            passes=filtered,
            order=rows.causes(out.cause),
            **more,
        ),
    ]


def _numbered(partition: Integers, reached: Integers) -> tuple[Integers, Integers]:
    """The offsets of what is emitted, each partition going on after the one it has `reached`; and the last ones."""
    order = np.argsort(partition, kind="stable")
    starts = np.searchsorted(partition[order], np.arange(len(reached)))
    number = np.empty(len(partition), np.int64)
    number[order] = np.arange(len(partition)) - starts[partition[order]] + reached[partition[order]] + 1
    return number, reached + np.bincount(partition, minlength=len(reached))


def _table(form: Form, rows: Rows, side: int, asks: int) -> tuple[Side, list[pa.Table]]:
    """An input that is a table, and what its store keeps."""
    store = (form.stores or {})[side]
    kept = Kept(rows.versions(f"store {side}", f"reached {side}"), store.bound)
    given = rows.records(side)
    given = given[rows.key[given] != NOTHING]
    changes, stored = tables.source(given, rows.key[given], rows.time[given], rows.value[given], kept, rows.home)
    if form.filters or not rows.passes[given].all():
        leaves_out = tables.leaves_out(
            [Step(True, False)], source_materialized=True, versioned=[store.versioned], asks=asks
        )
        changes = tables.filtered(changes, rows.passes, leaves_out=leaves_out[0])
    left = stored.left
    put = left.value != NOTHING
    at = np.where(put, left.value, rows.named(left.key))
    # The key of an aggregate's results is the group, which a tombstone has not.
    more: dict[str, Any] = {"side": np.full(len(at), side)}
    if form.operator == "aggregate":
        more["key"] = rows.keys(np.where(put, at, NOTHING))
    return Side(changes, stored, rows.passes), [
        rows.left(f"store {side}", at, time=left.time, n=left.latest.astype(np.int64), put=put, **more),
        rows.clock(f"reached {side}", left.reached),
    ]


def _resulting(form: Form, rows: Rows, changes: Changes) -> tuple[Changes, list[pa.Table]]:
    """Changes as the store of a join's result passes them on: what it rejects is known from its stream time alone."""
    if form.result is None or not form.result.versioned:
        return changes, []
    kept = Kept(empty(rows.partitions)._replace(reached=rows.reached("reached result")), form.result.bound)
    passed, stored = tables.materialized(changes, kept, rows.home)
    return passed, [rows.clock("reached result", stored.left.reached)]


def _stream(_form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    given = rows.records(0)
    given = given[rows.put[given] & rows.passes[given]]
    nothing = np.full(len(given), NOTHING)
    return Out(given, rows.key[given], given, nothing, rows.time[given], rows.put[given] & False), []


def _table_alone(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    side, kept = _table(form, rows, 0, tables.ASKS_NOTHING)
    it = side.changes
    if form.suppress is not None:
        return _suppressed(form, rows, it, kept)
    return Out(it.order, it.key, it.value, np.full(len(it.key), NOTHING), it.time, it.value == NOTHING), kept


def _suppressed(form: Form, rows: Rows, changes: Changes, kept: list[pa.Table]) -> tuple[Out, list[pa.Table]]:
    outs = []
    for partition in range(rows.partitions):
        its = changes.where(rows.home[changes.key] == partition)
        held = _of(rows, "suppressed", partition)
        # A tombstone has no row of its own: it is the record's, without a value.
        updates = time_limit.Updates(its.order, its.key, its.value, its.time)
        before = time_limit.Updates(held, rows.key[held], rows.value[held], rows.time[held])
        largest = int(rows.reached("reached suppression")[partition])
        out, left = time_limit.suppress(updates, form.suppress or 0, time_limit.Kept(rows.n[held], before, largest))
        nothing = np.full(len(out.key), NOTHING)
        tombstone = out.value == NOTHING
        outs.append(Out(out.cause, out.key, out.value, nothing, out.timestamp, tombstone, headers=out.update))
        order, put = left.update.order, left.update.value != NOTHING
        kept.append(rows.left("suppressed", order, time=left.update.timestamp, n=left.place, put=put, headers=True))
        kept.append(_clock(rows, "reached suppression", partition, left.largest))
    return _merged(outs), kept


def _stream_table(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    side, kept = _table(form, rows, 1, tables.ASKS_NOTHING)
    given = rows.records(0)
    events = stream_table.Events(given, rows.key[given], rows.value[given], rows.time[given])
    if form.grace is not None:
        events = _released(form, rows, events, kept)
    met = stream_table.stream_table(events, side, form.how, rows.home)
    its = stream_table.Events(*(column[met.event] for column in events))
    # An event has a value, and its row its headers; the record that lets it out of a buffer is another one.
    return Out(its.order, its.key, its.value, met.right, its.time, its.value == NOTHING, headers=its.value), kept


def _released(form: Form, rows: Rows, events: stream_table.Events, kept: list[pa.Table]) -> stream_table.Events:
    """Events in the order in which a grace period lets them out."""
    found = []
    for partition in range(rows.partitions):
        held = _of(rows, "buffer", partition)
        held = held[np.argsort(rows.n[held])]
        its = rows.partition[events.order] == partition
        records = buffer.Records(*(column[its] for column in events))
        before = buffer.Records(held, rows.key[held], rows.value[held], rows.time[held])
        largest = int(rows.reached("reached buffer")[partition])
        out, left = buffer.release(records, form.grace or 0, form.how, buffer.Kept(before, largest))
        if out.failed != NOTHING:
            place = rows.column("order")[int(out.failed)].as_py()
            told = f"{NULL_KEY}: input {place['topic']}, partition {place['partition']}, offset {place['offset']}"
            raise ValueError(told)
        found.append((out.cause, out.records))
        row = left.records.order
        n = np.arange(len(row))
        kept.append(rows.left("buffer", row, time=rows.time[row], n=n, put=rows.put[row], headers=True))
        kept.append(_clock(rows, "reached buffer", partition, left.largest))
    cause = np.concatenate([cause for cause, _ in found])
    _, key, value, time = (np.concatenate(columns) for columns in zip(*(records for _, records in found), strict=True))
    merged = np.argsort(cause, kind="stable")
    return stream_table.Events(cause[merged], key[merged], value[merged], time[merged])


def _table_table(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    left, kept = _table(form, rows, 0, INSISTS if form.how != "inner" else tables.ASKS_NOTHING)
    right, more = _table(form, rows, 1, INSISTS if form.how == "outer" else tables.ASKS_NOTHING)
    return _joined(form, rows, table_table.table_table(left, right, form.how, rows.home), [*kept, *more])


def _foreign_key(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    left, kept = _table(form, rows, 0, INSISTS)
    right, more = _table(form, rows, 1, INSISTS)
    held = rows.kept("subscribed")
    before = foreign_key.Subscriptions(rows.other[held], rows.key[held], held)
    joined, left_over = foreign_key.foreign_key(left.changes, right, rows.other, form.how, before, rows.home)
    row = left_over.value
    more.append(rows.left("subscribed", row, time=rows.time[row], n=rows.n[row], put=rows.put[row]))
    return _joined(form, rows, joined, [*kept, *more])


def _joined(form: Form, rows: Rows, joined: table_table.Joined, kept: list[pa.Table]) -> tuple[Out, list[pa.Table]]:
    number = np.arange(len(joined.key))
    tombstone = (joined.left == NOTHING) & (joined.right == NOTHING)
    nothing = np.full(len(number), NOTHING)
    value = np.where(tombstone, NOTHING, number)
    changes = Changes(joined.cause, joined.key, value, nothing, joined.time, nothing == NOTHING)
    if form.result is not None and form.result.versioned:
        # Values are the numbers of results here, so that it is seen which ones the store passes on.
        told, more = _resulting(form, rows, changes._replace(value=number))
        joined = table_table.Joined(*(column[told.value] for column in joined))
        tombstone, kept = tombstone[told.value], [*kept, *more]
    return Out(joined.cause, joined.key, joined.left, joined.right, joined.time, tombstone), kept


def _pairs(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    outs, kept = [], []
    given = np.sort(np.concatenate((rows.records(0), rows.records(1))))
    for partition in range(rows.partitions):
        its = given[rows.partition[given] == partition]
        side = np.where(np.isin(its, rows.records(0)), stream_stream.LEFT, stream_stream.RIGHT)
        records = stream_stream.Records(its, side, rows.key[its], rows.value[its], rows.time[its])
        held = _of(rows, "joinable", partition)
        held = held[np.argsort(rows.integers("start")[held])]
        was_left = rows.integers("side")[held] == 0
        its_sides = np.where(was_left, stream_stream.LEFT, stream_stream.RIGHT)
        times = np.array([rows.reached(f"reached {name}")[partition] for name in _TIMES])
        before = stream_stream.Kept(its_sides, rows.key[held], held, rows.time[held], rows.n[held] > 0, times)
        out, left = stream_stream.join(records, form.span or stream_stream.Window(0, 0, 0), form.how, before)
        outs.append(Out(out.cause, out.key, out.left, out.right, out.timestamp, out.cause == NOTHING))
        kept.append(
            rows.left(
                "joinable",
                left.value,
                time=left.timestamp,
                n=left.waiting.astype(np.int64),
                put=rows.put[left.value],
                start=np.arange(len(left.value)),
            )
        )
        kept += [
            _clock(rows, f"reached {name}", partition, int(at)) for name, at in zip(_TIMES, left.times, strict=True)
        ]
    return _merged(outs), kept


_TIMES = ("stream time", "right", "left", "noted")


def _aggregate(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    given, kept = _contributions(form, rows)
    store = form.result or Store(versioned=False)
    grouped = 0 in (form.stores or {})
    before = rows.versions("aggregate", "reached aggregate")
    if grouped:
        before = before._replace(key=rows.other[rows.kept("aggregate")])
    done = aggregates.aggregate(given, before, rows.home, store.bound)
    computed = _measured(form, rows, done.nodes, rows.kept("aggregate"))
    it, left = done.changes, done.left
    nothing = np.full(len(it.key), NOTHING)
    out = Out(it.order, it.key, nothing, nothing, it.time, it.value == NOTHING, measures=_at(computed, it.value))
    at = rows.named(left.key, others=grouped)
    names = ("other", "home") if grouped else ("id", "partition")
    its = [rows.column(name).take(pa.array(at)) for name in names]
    kept.append(
        rows.take(
            {"key": at},
            part=pa.repeat("aggregate", len(at)),
            partition=its[1],
            time=left.time,
            n=left.latest.astype(np.int64),
            put=left.value != NOTHING,
            measures=_at(computed, left.value),
            **dict(zip(names[:1] if not grouped else names, its, strict=False)),
        )
    )
    kept.append(rows.clock("reached aggregate", left.reached))
    return out, kept


def _contributions(form: Form, rows: Rows) -> tuple[aggregates.Contributions, list[pa.Table]]:
    if form.stores and 0 in form.stores:
        side, kept = _table(form, rows, 0, INSISTS)
        return aggregates.of_table(side.changes, rows.other), kept
    given = rows.records(0)
    given = given[rows.passes[given]]
    return aggregates.of_stream(given, rows.key[given], rows.time[given], rows.value[given]), []


def _windowed(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    outs, kept = [], []
    if form.windows is None:
        raise ValueError("a form of windows has no windows")
    given = rows.records(0)
    start, end = rows.integers("start"), rows.integers("end")
    for partition in range(rows.partitions):
        its = given[(rows.partition[given] == partition) & rows.passes[given]]
        stored, waiting = (_of(rows, part, partition) for part in ("window", "waiting"))
        stored, waiting = (some[np.lexsort((end[some], start[some], rows.key[some]))] for some in (stored, waiting))
        before = windowed.Kept(
            int(rows.reached("reached T")[partition]),
            int(rows.reached("reached W")[partition]),
            windowed.Rows(rows.key[stored], start[stored], end[stored], np.arange(len(stored)), rows.time[stored]),
            windowed.Waiting(
                rows.key[waiting],
                start[waiting],
                end[waiting],
                len(stored) + np.arange(len(waiting)),
                rows.time[waiting],
                waiting,
            ),
        )
        records = windowed.Records(its, rows.key[its], rows.value[its], rows.time[its])
        out, nodes, left = closing.aggregate(form.windows, form.emit, records, before)
        computed = _measured(form, rows, nodes, np.concatenate((stored, waiting)))
        nothing = np.full(len(out.key), NOTHING)
        told = _at(computed, out.value)
        tombstone = out.value == NOTHING
        window = (out.start, out.end)
        outs.append(
            Out(out.cause, out.key, nothing, nothing, out.timestamp, tombstone, *window, told, headers=out.headers)
        )
        no_headers = np.full(len(left.windows.key), NOTHING)
        for part, some, headers in (
            ("window", left.windows, no_headers),
            ("waiting", left.waiting, left.waiting.headers),
        ):
            at = rows.named(some.key)
            kept.append(
                rows.take(
                    {"key": at, "id": at, "partition": at, "headers": headers},
                    part=pa.repeat(part, len(at)),
                    start=some.start,
                    end=some.end,
                    time=some.timestamp,
                    put=some.node != NOTHING,
                    measures=_at(computed, some.node),
                )
            )
        kept += [
            _clock(rows, "reached T", partition, left.stream_time),
            _clock(rows, "reached W", partition, left.written),
        ]
    return _merged(outs), kept


def _measured(form: Form, rows: Rows, nodes: Integers, kept: Integers) -> pa.StructArray:
    """The parts of each node's measures."""
    numbers, before = rows.column("numbers"), rows.column("measures").take(pa.array(kept))
    its = measures.parts(form.measures)
    names = [field.name for field in before.type]
    found = [
        measures.evaluate(part, nodes, numbers.field(part.argument), before.field(name)).cast(field.type)
        for part, name, field in zip(its, names, before.type, strict=True)
    ]
    return pa.StructArray.from_arrays(found, fields=list(before.type))


def _at(computed: pa.StructArray, nodes: Integers) -> pa.Array:
    return computed.take(pa.array(nodes, mask=nodes == NOTHING))


def _of(rows: Rows, part: str, partition: int) -> Integers:
    """What a partition has kept of a part."""
    return np.flatnonzero(rows.is_part(part) & (rows.partition == partition))


def _clock(rows: Rows, part: str, partition: int, number: int) -> pa.Table:
    numbers = np.full(rows.partitions, NOTHING)
    numbers[partition] = number
    return rows.clock(part, numbers)


def _merged(outs: list[Out]) -> Out:
    """What several partitions emit, in the order of its causes."""
    cause = np.concatenate([out.cause for out in outs])
    merged = np.argsort(cause, kind="stable")

    def column(name: str) -> Any:
        its = [getattr(out, name) for out in outs]
        if its[0] is None:
            return None
        if name == "measures":
            return pa.concat_arrays(its).take(pa.array(merged))
        return np.concatenate(its)[merged]

    return Out(*(column(name) for name in Out._fields))


_OPERATORS: Mapping[str, Callable[[Form, Rows], tuple[Out, list[pa.Table]]]] = {
    "stream": _stream,
    "table": _table_alone,
    "stream_table": _stream_table,
    "table_table": _table_table,
    "foreign_key": _foreign_key,
    "pairs": _pairs,
    "aggregate": _aggregate,
    "windows": _windowed,
}


def batches(form: Form) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """`process` as Spark's mapInArrow takes it."""

    def mapped(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        some = list(given)
        if some:
            yield from process(form, pa.Table.from_batches(some)).to_batches(max_chunksize=100_000)

    return mapped
