"""Which changes of columns a table takes, and what is told of records that are not as the contract says."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from hindcast.contract import Topic
from hindcast.formats.mismatch import describe_mismatch
from hindcast.store.columns import find_difference

KEY = ("item",)


def changed(there: str, wanted: str) -> str:
    return str(find_difference(StructType.fromDDL(f"item {there}"), StructType.fromDDL(f"item {wanted}"), KEY))


@pytest.mark.parametrize(
    ("there", "wanted", "change"),
    [
        ("string, n int", "string, n int", ""),
        ("string, n int", "string", "dropped n"),
        ("string", "string, n int", "added n int"),
        ("string, n int", "string, m int", "added m int; dropped n"),
        ("string, n tinyint", "string, n smallint", "widened n from tinyint to smallint"),
        ("string, n int", "string, n bigint", "widened n from int to bigint"),
        ("string, n int", "string, n double", "widened n from int to double"),
        ("string, n int", "string, n decimal(12,2)", "widened n from int to decimal(12,2)"),
        ("string, n int", "string, n decimal(11,2)", "n changed from int to decimal(11,2)"),
        ("string, n bigint", "string, n decimal(20,0)", "widened n from bigint to decimal(20,0)"),
        ("string, n bigint", "string, n decimal(19,0)", "n changed from bigint to decimal(19,0)"),
        ("string, n bigint", "string, n int", "n changed from bigint to int"),
        ("string, n bigint", "string, n double", "n changed from bigint to double"),
        ("string, n float", "string, n double", "widened n from float to double"),
        ("string, n double", "string, n float", "n changed from double to float"),
        ("string, n decimal(8,2)", "string, n decimal(12,4)", "widened n from decimal(8,2) to decimal(12,4)"),
        ("string, n decimal(8,2)", "string, n decimal(9,4)", "n changed from decimal(8,2) to decimal(9,4)"),
        ("string, n decimal(8,2)", "string, n double", "n changed from decimal(8,2) to double"),
        ("string, n date", "string, n timestamp", "n changed from date to timestamp"),
        ("string, n int", "string, n string", "n changed from int to string"),
        ("string, n int", "string, N int", "n differs from N only in case, which Delta ignores"),
        ("int", "bigint", "widened item from int to bigint"),
        ("int", "double", "the key column item changed from int to double"),
        ("float", "double", "the key column item changed from float to double"),
        ("string, p struct<x: int>", "string, p struct<x: int, y: string>", "added p.y string"),
        ("string, p struct<x: int>", "string, p struct<x: bigint>", "widened p.x from int to bigint"),
        (
            "string, p struct<x: int>",
            "string, p struct<y: int>",
            "added p.y int; the field p.x is missing; new fields of p must come last",
        ),
        (
            "string, p struct<x: int>",
            "string, p struct<y: int, x: int>",
            "added p.y int; new fields of p must come last",
        ),
        ("string, p array<int>", "string, p array<bigint>", "widened p.element from int to bigint"),
        ("string, p array<struct<x: int>>", "string, p array<struct<x: int, y: int>>", "added p.element.y int"),
        ("string, p array<int>", "string, p int", "p changed from array<int> to int"),
    ],
)
@pytest.mark.usefixtures("spark")  # which reads the types
def test_what_a_table_takes(there: str, wanted: str, change: str) -> None:
    assert changed(there, wanted) == change


MENU = Topic.model_validate({"read": "table", "key": {"item": "string"}, "value": {"price": "int", "note": "string"}})


@pytest.mark.parametrize(
    ("value", "record"),
    [
        (b'{"price": "eight", "tags": ["hot"]}', "price string, tags array<string>"),
        (
            b'{"at": {"x": [1, 2.5], "y": null}, "sold out": true}',
            'at struct<x:array<double>, y:void>, "sold out" boolean',
        ),
        (b'{"n": 9223372036854775808, "m": 1, "e": []}', "n decimal, m bigint, e array<void>"),
        (b'{"a": [1, "x"]}', "a array<bigint or string>"),
        (b"{}", "no fields"),
        (b"[1]", None),
        (b"{", None),
        (b"\xff", None),
        (None, None),
    ],
)
def test_both_schemas_are_told_without_values(value: bytes | None, record: str | None) -> None:
    contract = "\n  the contract: price int, note string"
    assert describe_mismatch(MENU, value) == contract + (f"\n    the record: {record}" if record else "")


def test_of_many_fields_the_first_are_told() -> None:
    value = b"{%s}" % b", ".join(b'"f%d": 1' % n for n in range(60))
    assert describe_mismatch(MENU, value).endswith("f49 bigint, and 10 more")
