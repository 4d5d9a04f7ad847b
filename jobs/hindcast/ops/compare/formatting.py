"""Format a comparison for people and programs, without the values of sensitive columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from hindcast.common.errors import escape_controls
from hindcast.ops.compare.differences import KINDS
from hindcast.ops.compare.outputs import PARTITION_SHIFT, OutputFormat
from hindcast.ops.compare.rules import DifferenceRule
from hindcast.query import show

if TYPE_CHECKING:
    from hindcast.ops.compare import Comparison


def read_examples(
    engine: duckdb.DuckDBPyConnection,
    ordered_rules: Sequence[DifferenceRule],
    form: OutputFormat,
    hidden: Collection[str],
    limit: int,
) -> list[dict[str, Any]]:
    """Return the first differences of each kind as data; those that do not follow from others come first."""
    order = "follows, coalesce(t, our_t), coalesce(live, ours)"
    rows = engine.sql(
        f"SELECT * FROM judged QUALIFY row_number() OVER (PARTITION BY kind ORDER BY {order}) <= {limit} "  # noqa: S608
        f"ORDER BY list_position({list(KINDS)}, kind), {order}"
    )
    return [_build_example(row, ordered_rules, form, hidden) for row in rows.to_arrow_table().to_pylist()]


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
            "differences": comparison.differences,
            "examples": comparison.examples,
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
        f"  {entry['count']:,} likely {entry['rule']}: {entry['likely']}\n    what to do: {entry['whatToDo']}"
        for entry in comparison.differences
        if entry["kind"] == kind
    ]


def _format_examples(comparison: Comparison, kind: str) -> list[str]:
    """Return the examples of a kind as lines, both sides beside each other."""
    examples = [example for example in comparison.examples if example["kind"] == kind]
    rows = []
    for example in examples:
        row: dict[str, Any] = {"key": _format_json(example["key"])}
        if example["windowStart"]:
            bounds = [name for name in ("windowStart", "windowEnd") if example[name]]
            row |= {name: datetime.fromisoformat(example[name]) for name in bounds}
        for side in ("topic", "replayed"):
            if record := example[side]:
                row |= {
                    f"{side} at": f"{record['partition']}:{record['offset']}",
                    f"{side} timestamp": datetime.fromisoformat(record["timestamp"]),
                    f"{side} value": _format_json(record["value"]),
                }
        if example["replayed"]:
            cause = example["cause"]
            row["cause"] = cause and f"{cause['topic']} {cause['partition']}:{cause['offset']}"
        rows.append({**row, "likely": example["rule"]})
    return ["", show.format_aligned(pa.Table.from_pylist(rows))] if rows else []


def _format_json(value: dict[str, Any] | None) -> str:
    return "null" if value is None else json.dumps(value, ensure_ascii=False)


def _build_example(
    row: dict[str, Any], ordered_rules: Sequence[DifferenceRule], form: OutputFormat, hidden: Collection[str]
) -> dict[str, Any]:
    cause = {"topic": row["cause"], "partition": row["cause_partition"], "offset": row["cause_offset"]}
    types = {**form.key, **form.value}
    return {
        "kind": row["kind"],
        "rule": ordered_rules[row["rule"]].name,
        "key": _mask_values(row["k"], types, hidden),
        "windowStart": _format_moment(row["w0"]),
        "windowEnd": _format_moment(row["w1"]),
        **{
            name: None
            if row[place] is None
            else {
                "partition": row[place] >> PARTITION_SHIFT,
                "offset": row[place] & (1 << PARTITION_SHIFT) - 1,
                "timestamp": _format_moment(row[time]),
                "value": _mask_values(row[value], types, hidden),
            }
            for name, place, time, value in (("topic", "live", "t", "v"), ("replayed", "ours", "our_t", "our_v"))
        },
        "cause": cause if row["cause"] is not None else None,
    }


def _mask_values(part: dict[str, Any] | None, types: dict[str, str], hidden: Collection[str]) -> dict[str, Any] | None:
    """Return a key or a value without sensitive columns; null stays null."""
    if part is None:
        return None
    return {
        name: _MASK if name in hidden else show.plain_value(_restore_scale(value, types[name]))
        for name, value in part.items()
        if name in types
    }


def _restore_scale(value: Any, kind: str) -> Any:
    """Return a decimal with the digits of its column, or more if more were sent."""
    if not isinstance(value, Decimal):
        return value
    digits = max(int(kind[:-1].split(",")[1]), -int(value.normalize(_EXACT_CONTEXT).as_tuple().exponent))
    return value.quantize(Decimal(1).scaleb(-digits), context=_EXACT_CONTEXT)


def _format_moment(millis: int | None) -> str | None:
    return None if millis is None else (_EPOCH + timedelta(milliseconds=millis)).isoformat()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
