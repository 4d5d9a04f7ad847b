"""Rows as text for people and as JSON for programs."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from hindcast.query.show import as_csv, as_json, format_aligned, format_markdown

ROWS = pa.table(
    {
        "item": ["curry", "crème\nbrûlée", None],
        "price": pa.array([Decimal("8.00"), Decimal("10.50"), None], pa.decimal128(8, 2)),
        "n": pa.array([1, 1000, None], pa.int32()),
        "open": [True, False, None],
        "at": pa.array(
            [datetime(2026, 1, 1, 0, 3, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 5000, UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "day": pa.array([date(2026, 1, 1), None, None], pa.date32()),
        "raw": pa.array([b"\x00\xff", None, None], pa.binary()),
        "tags": pa.array([["a", None], [], None], pa.list_(pa.string())),
    }
)


def test_what_stands_in_a_markdown_table_is_text() -> None:
    rows = pa.table({"key": ["a|b", "<script>`*", None], "n": [1, 2, 3]})
    assert format_markdown(rows) == "| key | n |\n| --- | --- |\n| a\\|b | 1 |\n| \\<script\\>\\`\\* | 2 |\n| \\- | 3 |"


def test_aligned_text() -> None:
    assert (
        format_aligned(ROWS)
        == """\
item           price     n  open   at                          day         raw   tags
-------------  -----  ----  -----  --------------------------  ----------  ----  -----------
curry           8.00     1  true   2026-01-01 00:03:00         2026-01-01  00ff  ["a", null]
crème\\nbrûlée  10.50  1000  false  2026-01-01 00:00:00.005000  -           -     []
-                  -     -  -      -                           -           -     -
(3 rows)"""
    )


def test_no_rows_and_one_row() -> None:
    assert format_aligned(ROWS.select(["item", "n"]).slice(0, 0)) == "item  n\n----  -\n(0 rows)"
    assert format_aligned(ROWS.select(["n"]).slice(0, 1)) == "n\n-\n1\n(1 row)"


def test_json() -> None:
    assert json.loads(as_json(ROWS.slice(0, 2))) == [
        {
            "item": "curry",
            "price": "8.00",
            "n": 1,
            "open": True,
            "at": "2026-01-01T00:03:00+00:00",
            "day": "2026-01-01",
            "raw": "00ff",
            "tags": ["a", None],
        },
        {
            "item": "crème\nbrûlée",
            "price": "10.50",
            "n": 1000,
            "open": False,
            "at": "2026-01-01T00:00:00.005000+00:00",
            "day": None,
            "raw": None,
            "tags": [],
        },
    ]
    assert json.loads(as_json(ROWS.slice(0, 0))) == []


def test_dates_and_moments_that_python_lacks_are_text_at_any_depth() -> None:
    moments = [253_402_300_800_000_000, -62_135_596_800_000_001, 0, None]
    days = pa.array([2_932_897, -719_163, 0, None], pa.int32()).cast(pa.date32())
    rows = pa.table(
        {
            "day": days,
            "at": pa.array(moments).cast(pa.timestamp("us", "UTC")),
            "local": pa.array(moments).cast(pa.timestamp("us")),
            "all": [[{"x": day}] for day in days],
        }
    )
    assert "+10000-01-01" in format_aligned(rows)
    assert [[*row.values()] for row in json.loads(as_json(rows))] == [
        ["+10000-01-01", *["+10000-01-01T00:00:00+00:00"] * 2, [{"x": "+10000-01-01"}]],
        ["+0000-12-31", *["+0000-12-31T23:59:59.999999+00:00"] * 2, [{"x": "+0000-12-31"}]],
        ["1970-01-01", *["1970-01-01T00:00:00+00:00"] * 2, [{"x": "1970-01-01"}]],
        [None, None, None, [{"x": None}]],
    ]
    assert "\\+10000" in format_markdown(rows)
    assert as_csv(rows.select(["day"])) == "day\n+10000-01-01\n+0000-12-31\n1970-01-01\n\n"


def test_json_has_no_token_that_json_lacks() -> None:
    told = as_json(pa.table({"x": [float("nan"), float("inf"), 1.5]}))
    assert json.loads(told, parse_constant=lambda name: f"not JSON: {name}") == [
        {"x": "NaN"},
        {"x": "Infinity"},
        {"x": 1.5},
    ]
