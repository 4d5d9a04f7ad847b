"""The vectors' windowed aggregates, run by `hindcast.emits`: records in, `expected.emitted` out."""

from __future__ import annotations

from typing import Any

from hindcast.conformance.tasks import measured
from hindcast.conformance.topology import windows_of
from hindcast.emits.closing import Emit, aggregate
from hindcast.emits.records import Records
from hindcast.emits.windowed import Kept, nothing_kept
from kafka_adapter_streams import coded, named

Emission = dict[str, Any]


def emitted(vector: dict[str, Any], cuts: tuple[int, ...] = ()) -> tuple[list[Emission], list[Any]]:
    """What comes out of the vector's records, in runs that are cut before the records numbered, and what is kept."""
    operation, records = vector["operation"], vector["records"]
    names, values, *columns = coded(records)
    aggregation, kept = operation["aggregation"], nothing_kept()
    known: list[Any] = []
    out: list[Emission] = []
    for low, high in zip((0, *cuts), (*cuts, len(records)), strict=True):
        run = Records(*(column[low:high] for column in columns))
        results, nodes, kept = aggregate(
            windows_of(operation["window"]), Emit(operation["emit"]), run, kept, reduce=aggregation == "sum"
        )
        done = measured(nodes, aggregation, values, known)
        for cause, key, start, end, node, timestamp, headers in zip(
            *(column.tolist() for column in results), strict=True
        ):
            window = {"key": names[key], "start": start, "end": end}
            told = {"key": window, "value": named(done, node), "timestamp": timestamp, "cause": cause}
            out.append({**told, "headers": headers})
        known = [done[node] for node in (*kept.windows.node.tolist(), *kept.waiting.node.tolist())]
    return out, left(kept, known)


def left(kept: Kept, known: list[Any]) -> list[Any]:
    """What is kept, told without nodes."""
    rows = [row._replace(node=row.key)._asdict() for row in (kept.windows, kept.waiting)]
    tables = [{name: column.tolist() for name, column in table.items()} for table in rows]
    return [kept.stream_time, kept.written, *tables, known]
