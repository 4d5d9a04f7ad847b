"""Format a comparison for people and programs, without the values of sensitive columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal

import duckdb
import pyarrow as pa

from hindcast.common.column_values import ColumnValue
from hindcast.common.errors import escape_controls
from hindcast.common.json_values import JsonObject
from hindcast.ops.compare.comparison import CauseRecord, Comparison, DifferenceExample, ExampleRecord
from hindcast.ops.compare.differences import KINDS
from hindcast.ops.compare.outputs import PARTITION_SHIFT, OutputFormat
from hindcast.ops.compare.rules import DifferenceRule
from hindcast.query import show


def read_examples(
    engine: duckdb.DuckDBPyConnection,
    ordered_rules: Sequence[DifferenceRule],
    form: OutputFormat,
    hidden: Collection[str],
    limit: int,
) -> list[DifferenceExample]:
    """Return the first differences of each kind; those that do not follow from others come first."""
    order = "follows, coalesce(t, our_t), coalesce(live, ours)"
    rows = engine.sql(
        f"SELECT * FROM judged QUALIFY row_number() OVER (PARTITION BY kind ORDER BY {order}) <= {limit} "  # noqa: S608
        f"ORDER BY list_position({list(KINDS)}, kind), {order}"
    )
    types = {**form.key, **form.value}

    def build_record(place: int | None, millis: int, value: Mapping[str, ColumnValue] | None) -> ExampleRecord | None:
        if place is None:
            return None
        partition, offset = place >> PARTITION_SHIFT, place & (1 << PARTITION_SHIFT) - 1
        return ExampleRecord(partition, offset, _moment_of_millis(millis), _mask_values(value, types, hidden))

    return [
        DifferenceExample(
            row["kind"],
            ordered_rules[row["rule"]].name,
            _mask_values(row["k"], types, hidden),
            window_start=None if row["w0"] is None else _moment_of_millis(row["w0"]),
            window_end=None if row["w1"] is None else _moment_of_millis(row["w1"]),
            topic=build_record(row["live"], row["t"], row["v"]),
            replayed=build_record(row["ours"], row["our_t"], row["our_v"]),
            cause=None
            if row["cause"] is None
            else CauseRecord(row["cause"], row["cause_partition"], row["cause_offset"]),
        )
        for row in rows.to_arrow_table().to_pylist()
    ]


def format_comparison(comparison: Comparison) -> str:
    """Return a comparison as text: the counts, then for each kind its likely causes and examples."""
    known_at = comparison.known_at.isoformat()
    head = [
        f"{comparison.view} as known at {known_at}, epoch {comparison.epoch}: {comparison.replayed:,} replayed",
        f"{comparison.topic}: {comparison.held:,} in the topic",
        "",
        *(f"  {kind:10}{n:>12,}  {_KIND_MEANINGS[kind]}" for kind, n in _count_kinds(comparison)),
    ]
    if comparison.not_compared:
        head += ["", f"not compared, the view has no such columns: {', '.join(comparison.not_compared)}"]
    parts = [head]
    for kind in filter(comparison.count, KINDS):
        causes, examples = _format_rules(comparison, kind), _format_examples(comparison, kind)
        parts.append([f"{kind}: {_KIND_MEANINGS[kind]}", *causes, *examples])
    return escape_controls("\n\n".join(map("\n".join, parts)))


def as_json(comparison: Comparison) -> str:
    """Return a comparison as JSON text."""
    counts = dict(_count_kinds(comparison))
    return json.dumps(
        {
            "view": comparison.view,
            "topic": comparison.topic,
            "knownAt": comparison.known_at.isoformat(),
            "epoch": comparison.epoch,
            "records": {"topic": comparison.held, "replayed": comparison.replayed},
            "counts": counts,
            "notCompared": list(comparison.not_compared),
            "differences": [difference.as_json() for difference in comparison.differences],
            "examples": [example.as_json() for example in comparison.examples],
        },
        indent=2,
    )


_MASK = "***"
_KIND_MEANINGS = {
    "equal": "in both",
    "missing": "in the topic, not replayed",
    "extra": "replayed, not in the topic",
    "different": "the same key and timestamp, another value",
    "time": "the same key and value, another timestamp",
    "order": "in both, in another order among those of its key",
}
_EXACT_CONTEXT = Context(prec=80)


def _count_kinds(comparison: Comparison) -> list[tuple[str, int]]:
    return [("equal", comparison.equal), *((kind, comparison.count(kind)) for kind in KINDS)]


def _format_rules(comparison: Comparison, kind: str) -> list[str]:
    return [
        f"  {found.count:,} likely {found.rule.name}: {found.rule.likely}\n    what to do: {found.rule.fix}"
        for found in comparison.differences
        if found.kind == kind
    ]


def _format_examples(comparison: Comparison, kind: str) -> list[str]:
    """Return the examples of a kind as lines, both sides beside each other."""
    rows = []
    for example in (example for example in comparison.examples if example.kind == kind):
        row: dict[str, str | datetime | None] = {"key": _format_json(example.key)}
        bounds = {"windowStart": example.window_start, "windowEnd": example.window_end}
        row |= {name: bound for name, bound in bounds.items() if bound is not None}
        for side, record in (("topic", example.topic), ("replayed", example.replayed)):
            if record is not None:
                row |= {
                    f"{side} at": f"{record.partition}:{record.offset}",
                    f"{side} timestamp": record.timestamp,
                    f"{side} value": _format_json(record.value),
                }
        if example.replayed is not None:
            cause = example.cause
            row["cause"] = cause and f"{cause.topic} {cause.partition}:{cause.offset}"
        rows.append({**row, "likely": example.rule})
    return ["", show.format_aligned(pa.Table.from_pylist(rows))] if rows else []


def _format_json(value: JsonObject | None) -> str:
    return "null" if value is None else json.dumps(value, ensure_ascii=False)


def _mask_values(
    part: Mapping[str, ColumnValue] | None, types: Mapping[str, str], hidden: Collection[str]
) -> JsonObject | None:
    """Return a key or a value without sensitive columns; null stays null."""
    if part is None:
        return None
    return {
        name: _MASK if name in hidden else show.plain_value(_restore_scale(value, types[name]))
        for name, value in part.items()
        if name in types
    }


def _restore_scale(value: ColumnValue, kind: str) -> ColumnValue:
    """Return a decimal with the digits of its column, or more if more were sent."""
    if not isinstance(value, Decimal):
        return value
    digits = max(int(kind[:-1].split(",")[1]), -int(value.normalize(_EXACT_CONTEXT).as_tuple().exponent))
    return value.quantize(Decimal(1).scaleb(-digits), context=_EXACT_CONTEXT)


def _moment_of_millis(millis: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=millis)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
