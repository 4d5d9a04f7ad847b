"""The vectors' windowed aggregates, run by `hindcast.streams`: records in, `expected.emitted` out."""

from __future__ import annotations

import re
from typing import Any

from hindcast.streams.emit_strategy import aggregate_windows
from hindcast.streams.records import Records
from hindcast.streams.windowed import WindowState, empty_window_state
from hindcast_conformance.exceptions import evaluate_trace
from hindcast_conformance.translator import translate_operation
from kafka_adapter_streams import coded, named

Emission = dict[str, Any]


def emitted(vector: dict[str, Any], cuts: tuple[int, ...] = ()) -> tuple[list[Emission], list[Any]]:
    """What comes out of the vector's records, in runs that are cut before the records numbered, and what is kept."""
    operation, records = vector["operation"], vector["records"]
    names, values, *columns = coded(records)
    aggregation, kept = operation["aggregation"], empty_window_state()
    spec = translate_operation(operation).checked[1]["result"]
    assert spec.windows is not None
    known: list[Any] = []
    out: list[Emission] = []
    for low, high in zip((0, *cuts), (*cuts, len(records)), strict=True):
        run = Records(*(column[low:high] for column in columns))
        results, nodes, kept = aggregate_windows(spec.windows, spec.emit, run, kept, reduce=aggregation == "sum")
        done = evaluate_trace(nodes, values, known)
        for cause, key, start, end, node, timestamp, headers in zip(
            *(column.tolist() for column in results), strict=True
        ):
            window = {"key": names[key], "start": start, "end": end}
            told = {
                "key": window,
                "value": summed(aggregation, named(done, node)),
                "timestamp": timestamp,
                "cause": cause,
            }
            out.append({**told, "headers": headers})
        known = [done[node] for node in (*kept.windows.node.tolist(), *kept.waiting.node.tolist())]
    return out, left(kept, known)


def summed(aggregation: str, trace: str | None) -> Any:
    """An aggregate of what was added, as its trace shows it."""
    if trace is None or aggregation == "trace":
        return trace
    return trace.count("+") if aggregation == "count" else sum(map(int, re.findall(r"\+(-?\d+)", trace)))


def left(kept: WindowState, known: list[Any]) -> list[Any]:
    """What is kept, told without nodes."""
    rows = [row._replace(node=row.key)._asdict() for row in (kept.windows, kept.waiting)]
    tables = [{name: column.tolist() for name, column in table.items()} for table in rows]
    return [kept.stream_time, kept.written, *tables, known]
