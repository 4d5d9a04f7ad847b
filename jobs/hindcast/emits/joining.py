"""Views of one input, and joins: the rows of a task through their operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hindcast.compiled import NOTHING
from hindcast.emits import buffer, foreign_key, stream_stream, stream_table, table_table, tables, time_limit
from hindcast.emits.depth import Turns, find_from
from hindcast.emits.form import Form, Out, clock_of, kept_of, merged
from hindcast.emits.records import Records
from hindcast.emits.rows import Rows
from hindcast.emits.tables import INSISTS, Changes, Kept, Side, Step
from hindcast.emits.versioned import empty

if TYPE_CHECKING:
    from hindcast.compiled import Integers

NULL_KEY = "a null key in a left join with grace"
"""What a task fails with, before the place of the record: the number of its topic, partition, offset."""

NULL_KEY_MEND = "give the record a key, or drop grace: a left join without it emits the record with a null right"


def table(form: Form, rows: Rows, side: int, asks: int) -> tuple[Side, list[pa.Table]]:
    """An input that is a table, and what its store keeps."""
    store = (form.stores or {})[side]
    kept = Kept(rows.versions(f"store {side}", f"reached {side}"), store.bound)
    given = rows.records(side)
    given = given[rows.key[given] != NOTHING]
    puts = find_from(rows.column("order"), given, form.ways[side].put) if form.ways else given
    changes, stored = tables.source(given, rows.key[given], rows.time[given], rows.value[given], kept, rows.home, puts)
    if form.ways and form.ways[side].tells:
        changes = changes._replace(before=rows.before(changes.order))
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


def stream(_form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    given = rows.records(0)
    given = given[rows.put[given] & rows.passes[given]]
    nothing = np.full(len(given), NOTHING)
    return Out(given, rows.key[given], given, nothing, rows.time[given], rows.put[given] & False), []


def table_alone(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    side, kept = table(form, rows, 0, tables.ASKS_NOTHING)
    it = side.changes
    if form.suppress is not None:
        return _suppressed(form, rows, it, kept)
    nothing, before = np.full(len(it.key), NOTHING), it.before if form.tells else None
    return Out(it.order, it.key, it.value, nothing, it.time, it.value == NOTHING, before_first=before), kept


def _suppressed(form: Form, rows: Rows, changes: Changes, kept: list[pa.Table]) -> tuple[Out, list[pa.Table]]:
    outs, reached = [], rows.reached("reached suppression")
    for partition in rows.present:
        its = changes.where(rows.home[changes.key] == partition)
        held = kept_of(rows, "suppressed", partition)
        # A tombstone has no row of its own: it is the record's, without a value.
        updates = Records(its.order, its.key, its.value, its.time)
        before = _records(rows, held)
        largest = int(reached[partition])
        out, left = time_limit.suppress(updates, form.suppress or 0, time_limit.Kept(rows.n[held], before, largest))
        nothing = np.full(len(out.key), NOTHING)
        tombstone = out.value == NOTHING
        outs.append(Out(out.cause, out.key, out.value, nothing, out.timestamp, tombstone, headers=out.update))
        order, put = left.update.order, left.update.value != NOTHING
        kept.append(rows.left("suppressed", order, time=left.update.timestamp, n=left.place, put=put, headers=True))
        kept.append(clock_of(rows, "reached suppression", partition, left.largest))
    return merged(outs), kept


def stream_with_table(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    side, kept = table(form, rows, 1, tables.ASKS_NOTHING)
    given = rows.records(0)
    events = _records(rows, given)
    if form.grace is not None:
        events = _released(form, rows, events, kept)
    met = stream_table.stream_table(events, side, form.how, rows.home)
    its = Records(*(column[met.event] for column in events))
    # An event has a value, and its row its headers; the record that lets it out of a buffer is another one.
    return Out(its.order, its.key, its.value, met.right, its.timestamp, its.value == NOTHING, headers=its.value), kept


def _records(rows: Rows, numbers: Integers) -> Records:
    return Records(numbers, rows.key[numbers], rows.value[numbers], rows.time[numbers])


def _released(form: Form, rows: Rows, events: Records, kept: list[pa.Table]) -> Records:
    """Events in the order in which a grace period lets them out."""
    found, reached = [], rows.reached("reached buffer")
    for partition in rows.present:
        held = kept_of(rows, "buffer", partition)
        held = held[np.argsort(rows.n[held])]
        its = rows.partition[events.order] == partition
        records = Records(*(column[its] for column in events))
        before = _records(rows, held)
        largest = int(reached[partition])
        out, left = buffer.release(records, form.grace or 0, form.how, buffer.Kept(before, largest))
        if out.failed != NOTHING:
            place = rows.column("order")[int(out.failed)].as_py()
            raise ValueError(f"{NULL_KEY}: {place['topic']}, {place['partition']}, {place['offset']}")
        found.append(out.records._replace(order=out.cause))
        row = left.records.order
        n = np.arange(len(row))
        kept.append(rows.left("buffer", row, time=rows.time[row], n=n, put=rows.put[row], headers=True))
        kept.append(clock_of(rows, "reached buffer", partition, left.largest))
    together = Records(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
    by_cause = np.argsort(together.order, kind="stable")
    return Records(*(column[by_cause] for column in together))


def tables_by_key(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    left, kept = table(form, rows, 0, INSISTS if form.how != "inner" else tables.ASKS_NOTHING)
    right, more = table(form, rows, 1, INSISTS if form.how == "outer" else tables.ASKS_NOTHING)
    return _joined(form, rows, table_table.table_table(left, right, form.how, rows.home), [*kept, *more])


def tables_by_foreign_key(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    left, kept = table(form, rows, 0, INSISTS)
    right, more = table(form, rows, 1, INSISTS)
    held = rows.kept("subscribed")
    before = foreign_key.Subscriptions(rows.other[held], rows.key[held], held)
    content, hashes = None, np.empty(0, np.int64)
    if form.ways:
        turns, hashes = Turns.read(rows.column("order")), rows.integers("start")
        content = foreign_key.Content(turns.root, turns.steps[:, 0], hashes)
    joined, left_over = foreign_key.foreign_key(left.changes, right, rows.other, form.how, before, rows.home, content)
    row = left_over.value
    columns: dict[str, Any] = {"start": hashes[row]} if form.ways else {}
    more.append(rows.left("subscribed", row, time=rows.time[row], n=rows.n[row], put=rows.put[row], **columns))
    return _joined(form, rows, joined, [*kept, *more])


def _joined(form: Form, rows: Rows, joined: table_table.Joined, kept: list[pa.Table]) -> tuple[Out, list[pa.Table]]:
    """What a join emits, through the store of its result: what that rejects is known from its stream time alone."""
    if form.result is not None and form.result.versioned:
        # Values are the numbers of results here, so that it is seen which ones the store passes on.
        number = np.arange(len(joined.key))
        nothing = np.full(len(number), NOTHING)
        changes = Changes(joined.cause, joined.key, number, nothing, joined.time, nothing == NOTHING)
        store = Kept(empty(rows.partitions)._replace(reached=rows.reached("reached result")), form.result.bound)
        passed, stored = tables.materialized(changes, store, rows.home)
        joined = joined.take(passed.value)
        kept = [*kept, rows.clock("reached result", stored.left.reached)]
    tombstone = (joined.left == NOTHING) & (joined.right == NOTHING)
    before = {"before_first": joined.left_before, "before_second": joined.right_before} if form.tells else {}
    return Out(joined.cause, joined.key, joined.left, joined.right, joined.time, tombstone, **before), kept


def streams(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    outs, kept = [], []
    side = np.where(rows.side == 0, stream_stream.LEFT, stream_stream.RIGHT)
    arrival, reached = rows.integers("start"), [rows.reached(f"reached {name}") for name in _TIMES]
    for partition in rows.present:
        its = kept_of(rows, "", partition)
        records = stream_stream.Records(its, side[its], rows.key[its], rows.value[its], rows.time[its])
        held = kept_of(rows, "joinable", partition)
        held = held[np.argsort(arrival[held])]
        times = np.array([numbers[partition] for numbers in reached])
        before = stream_stream.Kept(side[held], rows.key[held], held, rows.time[held], rows.n[held] > 0, times)
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
            clock_of(rows, f"reached {name}", partition, int(at)) for name, at in zip(_TIMES, left.times, strict=True)
        ]
    return merged(outs), kept


_TIMES = ("stream time", "right", "left", "noted")
