"""Values as Avro, for tests of contracts: what fastavro reads back."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from hindcast.common.settings import read_settings
from hindcast.contract import load
from hindcast.contract.contract_tests import load_tests
from hindcast.formats.avro_encode import encode_value
from hindcast.ops import contract_test_runs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
PLACE = {"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "city", "type": "string"}]}


def record(*fields: Any) -> Any:
    return {"type": "record", "name": "R", "namespace": "shop", "fields": [{"name": n, "type": t} for n, t in fields]}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("null", None, None),
        ("boolean", True, True),
        *(("long", n, n) for n in (0, -1, 63, 64, -65, 1 << 40, (1 << 63) - 1, -(1 << 63))),
        ("double", 1, 1.0),
        ("string", "grün", "grün"),
        ("bytes", "ab", b"ab"),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "array", "items": "int"}, [], []),
        ({"type": "map", "values": "int"}, {"a": 1}, {"a": 1}),
        *((AMOUNT, n, Decimal(str(n))) for n in (0, 1.5, -0.01, "1.28", -128, 127.99)),
        ({**AMOUNT, "type": "fixed", "name": "D", "size": 4}, -1.5, Decimal("-1.5")),
        ({"type": "int", "logicalType": "date"}, date(2026, 1, 5), date(2026, 1, 5)),
        (MILLIS, "2026-01-05T09:00:00.25Z", datetime(2026, 1, 5, 9, 0, 0, 250_000, UTC)),
        (["null", "string", "int"], 5, 5),
        (["null", "string"], None, None),
        (record(("a", "int"), ("b", ["null", "string"])), {"a": 1}, {"a": 1, "b": None}),
        (
            record(("home", PLACE), ("work", ["null", "geo.Place"])),
            {"home": {"city": "Rome"}, "work": {"city": "Bonn"}},
            {"home": {"city": "Rome"}, "work": {"city": "Bonn"}},
        ),
        (record(("next", ["null", "R"])), {"next": {"next": None}}, {"next": {"next": None}}),
    ],
)
def test_what_is_written_is_read_by_others(schema: Any, value: Any, expected: Any) -> None:
    data = io.BytesIO(encode_value(json.dumps(schema), value))
    assert fastavro.schemaless_reader(data, fastavro.parse_schema(schema), None) == expected
    assert not data.read()


def test_a_field_that_is_left_out_has_its_default() -> None:
    schema = record(("a", "int"))
    schema["fields"][0]["default"] = 7
    assert encode_value(json.dumps(schema), {}) == encode_value(json.dumps(schema), {"a": 7})


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        ("int", 1 << 31, "is not a valid int"),
        ("int", True, "is not a valid int"),
        ("string", 5, "is not a valid string"),
        (AMOUNT, 1.234, r"is not a valid decimal \(bytes\)"),
        (AMOUNT, 1_000_000, r"is not a valid decimal \(bytes\)"),
        (MILLIS, "soon", r"is not a valid timestamp-millis \(long\)"),
        (record(("a", "int")), {}, "the value.a is .* not a valid int"),
        (record(("a", "int")), {"b": 1}, "the value has no field 'b' in its schema; write one of a"),
        ({"type": "array", "items": "int"}, [1, "x"], r"the value\[1\] is 'x'"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "C", "is not a valid enum of A, B"),
    ],
)
def test_a_value_that_the_schema_does_not_have_is_refused(schema: Any, value: Any, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        encode_value(json.dumps(schema), value)


CONTRACT = """
pipeline: sold
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {id: string}
    key_format: string
    value: {amount: "decimal(8,2)", sent: timestamp}
    value_format: avro
    value_schema: orders.avsc
"""
TESTS = """
- test: an order
  given: {orders: [{key: o1, value: {amount: 1.5, sent: 2026-01-05T09:00:00Z}, timestamp: 2026-01-05}]}
  then: {orders: [{id: o1, amount: 1.50, sent: 2026-01-05T09:00:00Z}]}
"""


def write(folder: Path) -> Path:
    (folder / "tests").mkdir()
    (folder / "sold.yaml").write_text(CONTRACT, encoding="utf-8")
    (folder / "orders.avsc").write_text(json.dumps(record(("amount", AMOUNT), ("sent", MILLIS))), encoding="utf-8")
    (folder / "tests" / "sold.yaml").write_text(TESTS, encoding="utf-8")
    return folder


def test_records_of_a_test_are_written_by_the_contracts_schema(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (test,) = load_tests(folder / "tests" / "sold.yaml", load(folder / "sold.yaml"))
    (((_, given),),) = contract_test_runs._encode_runs(load(folder / "sold.yaml"), folder / "tests" / "sold.yaml", test)
    assert given.value is not None
    schema = fastavro.parse_schema(json.loads((folder / "orders.avsc").read_text(encoding="utf-8")))
    read: Any = fastavro.schemaless_reader(io.BytesIO(given.value), schema, None)
    assert read == {"amount": Decimal("1.50"), "sent": datetime(2026, 1, 5, 9, tzinfo=UTC)}


@pytest.mark.long
@pytest.mark.ci
def test_a_test_with_avro_passes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path)
    monkeypatch.setenv("HINDCAST_SCHEMAS", str(folder))
    (prepared,) = contract_test_runs.prepare_tests(read_settings(), "sold", folder / "tests" / "sold.yaml")
    assert contract_test_runs.run_test(spark, read_settings(), prepared).differences == ()
