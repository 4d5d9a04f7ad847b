"""Aggregates: the rows of a task through their operators, and what the nodes amount to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.compiled import NOTHING
from hindcast.emits import aggregates, closing, measures, windowed
from hindcast.emits.form import Form, Out, Store, clock_of, kept_of, merged
from hindcast.emits.joining import table
from hindcast.emits.records import Records
from hindcast.emits.rows import Rows
from hindcast.emits.tables import INSISTS

if TYPE_CHECKING:
    from hindcast.compiled import Integers


def aggregate(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
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
    out = Out(it.order, it.key, nothing, nothing, it.time, it.value == NOTHING, measures=at_nodes(computed, it.value))
    at = rows.named(left.key, others=grouped)
    names = (
        {"other": "other", "home": "home", "partition": "home"} if grouped else {"id": "id", "partition": "partition"}
    )
    kept.append(
        rows.take(
            {"key": at},
            part=pa.repeat("aggregate", len(at)),
            time=left.time,
            n=left.latest.astype(np.int64),
            put=left.value != NOTHING,
            measures=at_nodes(computed, left.value),
            **{name: rows.column(source).take(pa.array(at)) for name, source in names.items()},
        )
    )
    kept.append(rows.clock("reached aggregate", left.reached))
    return out, kept


def _contributions(form: Form, rows: Rows) -> tuple[aggregates.Contributions, list[pa.Table]]:
    if form.stores and 0 in form.stores:
        side, kept = table(form, rows, 0, INSISTS)
        return aggregates.of_table(side.changes, rows.other), kept
    given = rows.records(0)
    given = given[rows.passes[given]]
    return aggregates.of_stream(given, rows.key[given], rows.time[given], rows.value[given]), []


def windows(form: Form, rows: Rows) -> tuple[Out, list[pa.Table]]:
    outs, kept = [], []
    if form.windows is None:
        raise ValueError("a form of windows has no windows")
    given = rows.records(0)
    start, end = rows.integers("start"), rows.integers("end")
    stream_time, written = rows.reached("reached T"), rows.reached("reached W")
    for partition in rows.present:
        its = given[(rows.partition[given] == partition) & rows.passes[given]]
        stored, waiting = (kept_of(rows, part, partition) for part in ("window", "waiting"))
        stored, waiting = (some[np.lexsort((end[some], start[some], rows.key[some]))] for some in (stored, waiting))
        before = windowed.Kept(
            int(stream_time[partition]),
            int(written[partition]),
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
        records = Records(its, rows.key[its], rows.value[its], rows.time[its])
        out, nodes, left = closing.aggregate(form.windows, form.emit, records, before)
        computed = _measured(form, rows, nodes, np.concatenate((stored, waiting)))
        nothing = np.full(len(out.key), NOTHING)
        told = at_nodes(computed, out.value)
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
                    measures=at_nodes(computed, some.node),
                )
            )
        kept += [
            clock_of(rows, "reached T", partition, left.stream_time),
            clock_of(rows, "reached W", partition, left.written),
        ]
    return merged(outs), kept


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


def at_nodes(computed: pa.StructArray, nodes: Integers) -> pa.Array:
    return computed.take(pa.array(nodes, mask=nodes == NOTHING))
