"""A comparison for people and programs, without the values of sensitive columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from hindcast import show
from hindcast.compare.differences import KINDS
from hindcast.compare.outputs import PARTITION, Form
from hindcast.compare.rules import Rule
from hindcast.errors import escape_controls

if TYPE_CHECKING:
    from hindcast.compare import Compared


def examples(
    engine: duckdb.DuckDBPyConnection, told: Sequence[Rule], form: Form, hidden: Collection[str], limit: int
) -> list[dict[str, Any]]:
    """The first differences of each kind as JSON has them; those that do not follow from others come first."""
    order = "follows, coalesce(t, our_t), coalesce(live, ours)"
    rows = engine.sql(
        f"SELECT * FROM judged QUALIFY row_number() OVER (PARTITION BY kind ORDER BY {order}) <= {limit} "  # noqa: S608
        f"ORDER BY list_position({list(KINDS)}, kind), {order}"
    )
    return [_example(row, told, form, hidden) for row in rows.to_arrow_table().to_pylist()]


def text(told: Compared) -> str:
    """A comparison for people: the counts, then for each kind what it is likely due to, and its examples."""
    head = [
        f"{told.view} as known at {told.known_at.isoformat()}, epoch {told.epoch}: {told.replayed:,} replayed",
        f"{told.topic}: {told.held:,} in the topic",
        "",
        *(f"  {kind:10}{n:>12,}  {_MEANS[kind]}" for kind, n in _counts(told)),
    ]
    if told.not_compared:
        head += ["", f"not compared, the view has no such columns: {', '.join(told.not_compared)}"]
    kinds = [
        "\n".join([f"{kind}: {_MEANS[kind]}", *_likely(told, kind), *_table(told, kind)])
        for kind in KINDS
        if told.count(kind)
    ]
    return escape_controls("\n\n".join(["\n".join(head), *kinds]))


def as_json(told: Compared) -> str:
    """A comparison for programs."""
    counts = dict(_counts(told))
    return json.dumps(
        {
            "view": told.view,
            "topic": told.topic,
            "knownAt": told.known_at.isoformat(),
            "epoch": told.epoch,
            "records": {"topic": told.held, "replayed": told.replayed},
            "counts": counts,
            "notCompared": list(told.not_compared),
            "differences": told.differences,
            "examples": told.examples,
        },
        indent=2,
    )


_MASK = "***"
_MEANS = {
    "equal": "in both",
    "missing": "in the topic, not replayed",
    "extra": "replayed, not in the topic",
    "different": "the same key and timestamp, another value",
    "time": "the same key and value, another timestamp",
    "order": "in both, in another order among those of its key",
}
_EXACT = Context(prec=80)


def _counts(told: Compared) -> list[tuple[str, int]]:
    return [("equal", told.equal), *((kind, told.count(kind)) for kind in KINDS)]


def _likely(told: Compared, kind: str) -> list[str]:
    return [
        f"  {it['count']:,} likely {it['rule']}: {it['likely']}\n    what to do: {it['whatToDo']}"
        for it in told.differences
        if it["kind"] == kind
    ]


def _table(told: Compared, kind: str) -> list[str]:
    """The examples of a kind, both sides beside each other."""
    found = [it for it in told.examples if it["kind"] == kind]
    rows = []
    for it in found:
        row: dict[str, Any] = {"key": _line(it["key"])}
        if it["windowStart"]:
            row |= {name: datetime.fromisoformat(it[name]) for name in ("windowStart", "windowEnd") if it[name]}
        for side in ("topic", "replayed"):
            if one := it[side]:
                row |= {
                    f"{side} at": f"{one['partition']}:{one['offset']}",
                    f"{side} timestamp": datetime.fromisoformat(one["timestamp"]),
                    f"{side} value": _line(one["value"]),
                }
        if it["replayed"]:
            cause = it["cause"]
            row["cause"] = cause and f"{cause['topic']} {cause['partition']}:{cause['offset']}"
        rows.append({**row, "likely": it["rule"]})
    return ["", show.aligned(pa.Table.from_pylist(rows))] if rows else []


def _line(value: dict[str, Any] | None) -> str:
    return "null" if value is None else json.dumps(value, ensure_ascii=False)


def _example(row: dict[str, Any], told: Sequence[Rule], form: Form, hidden: Collection[str]) -> dict[str, Any]:
    cause = {"topic": row["cause"], "partition": row["cause_partition"], "offset": row["cause_offset"]}
    types = {**form.key, **form.value}
    return {
        "kind": row["kind"],
        "rule": told[row["rule"]].name,
        "key": _shown(row["k"], types, hidden),
        "windowStart": _moment(row["w0"]),
        "windowEnd": _moment(row["w1"]),
        **{
            name: None
            if row[place] is None
            else {
                "partition": row[place] >> PARTITION,
                "offset": row[place] & (1 << PARTITION) - 1,
                "timestamp": _moment(row[time]),
                "value": _shown(row[value], types, hidden),
            }
            for name, place, time, value in (("topic", "live", "t", "v"), ("replayed", "ours", "our_t", "our_v"))
        },
        "cause": cause if row["cause"] is not None else None,
    }


def _shown(told: dict[str, Any] | None, types: dict[str, str], hidden: Collection[str]) -> dict[str, Any] | None:
    """A key or a value; null stays null."""
    if told is None:
        return None
    return {
        name: _MASK if name in hidden else show.plain(_as_written(value, types[name]))
        for name, value in told.items()
        if name in types
    }


def _as_written(value: Any, kind: str) -> Any:
    """A decimal with the digits of its column, and such more as were sent."""
    if not isinstance(value, Decimal):
        return value
    digits = max(int(kind[:-1].split(",")[1]), -int(value.normalize(_EXACT).as_tuple().exponent))
    return value.quantize(Decimal(1).scaleb(-digits), context=_EXACT)


def _moment(millis: int | None) -> str | None:
    return None if millis is None else (_EPOCH + timedelta(milliseconds=millis)).isoformat()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
