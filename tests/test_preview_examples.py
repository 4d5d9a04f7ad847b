"""Examples of what a run would change pair what is with what would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hindcast.runs.change_statistics import ChangeStatistics
from hindcast.runs.preview_examples import collect_examples, pair_examples
from hindcast.runs.run_preview import TablePreview, _format_table
from hindcast.store.tables import Table
from warehouses import T0, at, place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pairs(kind: str, key: str, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    found = pair_examples(pa.Table.from_pylist(list(rows)), Table("", "p", "t", kind, (key,)))
    return [(it["key"], it["change"], it["before"], it["after"]) for it in found]


def test_events_of_one_moment_are_told_apart_by_their_records() -> None:
    def bill(change: str, offset: int, amount: int) -> dict[str, Any]:
        return {"_change": change, "customer": "ann", "amount": amount, "timestamp": T0, **place(offset)}

    rows = [bill("close", 0, 1), bill("close", 1, 2), bill("open", 0, 10), bill("open", 1, 20), bill("open", 2, 30)]
    assert pairs("events", "customer", *rows) == [
        ({"customer": "ann"}, "changed", {"amount": 1}, {"amount": 10}),
        ({"customer": "ann"}, "changed", {"amount": 2}, {"amount": 20}),
        ({"customer": "ann"}, "added", None, {"amount": 30}),
    ]


def version(change: str, key: str, start: int, end: int | None, **values: int) -> dict[str, Any]:
    return {"_change": change, "change": key, **values, "validFrom": at(start), "validTo": end and at(end)}


def test_a_version_that_is_split_is_paired_where_it_differs() -> None:
    """A key's column may be called `change`."""
    split = version("close", "k", 0, 10, v=1), version("open", "k", 0, 5, v=1), version("open", "k", 5, 10, v=2)
    assert pairs("versions", "change", *split, version("close", "q", 0, None, v=7)) == [
        ({"change": "k"}, "changed", {"v": 1}, {"v": 2}),
        ({"change": "q"}, "removed", {"v": 7}, None),
    ]
    gone = version("close", "k", 0, 9), version("open", "r", 0, 9)
    assert pairs("versions", "change", *gone) == [
        ({"change": "k"}, "removed", {}, None),
        ({"change": "r"}, "added", None, {}),
    ]


def test_rows_of_different_hidden_keys_are_not_paired(spark: SparkSession) -> None:
    values = {"close": {"a": 1, "b": 100}, "open": {"a": 2, "b": 101}}
    changed = [version(change, key, 0, 9, v=v) for change, of in values.items() for key, v in of.items()]
    found = collect_examples(spark.createDataFrame(changed), Table("", "p", "t", "versions", ("change",)), {"change"})
    assert [(it["key"], it["before"], it["after"]) for it in found] == [
        ({"change": "***"}, {"v": 1}, {"v": 2}),
        ({"change": "***"}, {"v": 100}, {"v": 101}),
    ]


def test_the_log_of_a_preview_has_what_differs_in_one_row() -> None:
    rows = version("close", "k", 0, 9, v=1), version("open", "k", 0, 9, v=2)
    examples = pair_examples(pa.Table.from_pylist(list(rows)), Table("", "p", "t", "versions", ("change",)))
    lines = _format_table("t", TablePreview(ChangeStatistics(1, 1, 1, {}), 0, examples, [], {}))
    table = [line.split("  ") for line in lines[-1].splitlines()]
    assert [cell.strip() for cell in table[0] if cell] == ["change", "change_", "validFrom", "validTo", "v"]
    assert (table[2][0], table[2][-1]) == ("changed", "1 -> 2")
