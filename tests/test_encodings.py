"""Values of change events that are decoded all at once: the same that decoding each gives."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from hindcast.contract.avro_compatibility import parse_declared_type
from hindcast.formats import encodings
from hindcast.formats.encodings import FieldSchema
from hindcast.formats.json import columns

ROUNDS = 3_000
NUMBERS = ("1.5", "-0.25", "12.340", "0.0", "-0.0", "999999.99", "1000000.0", "1e2", "1.", ".5", "+1.5", "12.3456")
WHOLE = ("0", "-0", "12", "1234", "12345678", "-7", "007", "", " 1")
DAYS = ("2026-01-01", "2026-02-30", "0001-01-01", "9999-12-31", "2026-01-01Z", "2026-1-1", "1200-02-29")
MOMENTS = (
    "2026-01-01T00:00:00Z",
    "2026-01-01 00:00:00",
    "2026-01-01T23:59:59.999999+17:59",
    "2026-01-01T00:00:00.123456789Z",
    "2026-01-01T24:00:00Z",
    "1767225600",
    "2026-01-01T00:00:00-18:00",
    "9999-12-31T23:59:59.999999Z",
    "2026-01-01T00:00:60Z",
)
COUNTS = (
    "0",
    "-1",
    "1767225600000",
    "1767225600000000",
    "9" * 18,
    "9" * 19,
    "-719162",
    "-719163",
    "2932896",
    "2932897",
)
PLAIN = FieldSchema()
CASES = [
    ("decimal(8,2)", None, PLAIN, NUMBERS),
    ("decimal(8,2)", None, PLAIN, NUMBERS + WHOLE),
    ("decimal(8,2)", "Number", PLAIN, NUMBERS[:4] + WHOLE),
    ("decimal(8,2)", None, FieldSchema("io.debezium.data.Enum"), NUMBERS),
    ("decimal(8,2)", None, FieldSchema("org.apache.kafka.connect.data.Decimal", "2"), (*NUMBERS, "AyA=", "1234")),
    ("decimal(38,0)", None, PLAIN, (*NUMBERS, *WHOLE)),
    ("date", None, PLAIN, DAYS),
    ("timestamp", None, PLAIN, MOMENTS),
    ("date", None, FieldSchema("io.debezium.time.Date"), COUNTS),
    *(("timestamp", None, FieldSchema(f"io.debezium.time.{unit}"), COUNTS) for unit in encodings.MICROS),
]


def choose_some(dice: random.Random, pool: tuple[Any, ...]) -> list[Any]:
    """Up to four values of some of a pool; they are often all of one form."""
    few = dice.sample(pool, dice.randint(1, 3))
    return [dice.choice((None, *few)) for _ in range(dice.randint(1, 4))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1] or case[2].name} {case[3][0]}")
def test_texts_decoded_at_once_are_those_decoded_one_by_one(
    case: tuple[str, str | None, FieldSchema, tuple[str, ...]],
) -> None:
    kind, declared, schema, pool = case
    dice, at_once = random.Random(str(case)), 0  # noqa: S311
    for _ in range(ROUNDS):
        texts = choose_some(dice, pool)
        found = encodings._decode_column(pa.array(texts, pa.string()), kind, declared, schema)
        if found is not None:
            at_once += 1
            each = [None if it is None else encodings._decode_value(it, kind, declared, schema) for it in texts]
            assert found.equals(pa.array(each, columns.column_type(kind))), texts
    assert at_once > ROUNDS / 20


@pytest.mark.parametrize(("kind", "declared"), [("date", "Date"), *(("timestamp", unit) for unit in encodings.MICROS)])
def test_numbers_decoded_at_once_are_those_decoded_one_by_one(kind: str, declared: str) -> None:
    edges = [int(it) for it in COUNTS if -(1 << 63) <= int(it) < 1 << 63]
    times, by = encodings.MICROS.get(declared, (1, 1))
    for edge in (encodings.MIN_MICROS, encodings.MAX_MICROS):
        edges += [n for n in range(edge * by // times - 2, edge * by // times + 3) if -(1 << 63) <= n < 1 << 63]
    edges += [-(1 << 63), (1 << 63) - 1, 0, -1, -1001]
    numbers = [None, *edges]
    found = encodings._decode_column(pa.array(numbers, pa.int64()), kind, declared, PLAIN)
    assert found is not None
    each = [None if it is None else encodings._decode_value(it, kind, declared, PLAIN) for it in numbers]
    assert found.equals(pa.array(each, columns.column_type(kind)))
    assert 0 < found.null_count < len(numbers) - 5 or kind == "timestamp"


@pytest.mark.parametrize(
    ("text", "declared", "schema"),
    [
        ("A" * 2_000_000, None, PLAIN),
        ("A" * 2_000_000, None, FieldSchema("org.apache.kafka.connect.data.Decimal", "2")),
        (f'{{"scale": 1, "value": "{"A" * 2_000_000}"}}', None, FieldSchema("io.debezium.data.VariableScaleDecimal")),
    ],
    ids=["of no schema", "Decimal", "VariableScaleDecimal"],
)
def test_a_text_longer_than_any_number_is_no_decimal_and_takes_no_memory(
    text: str, declared: str | None, schema: FieldSchema
) -> None:
    tracemalloc.start()
    try:
        assert encodings._decode_value(text, "decimal(8,2)", declared, schema) is None
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 3 * len(text)


def test_json_values_read_as_text_at_once_are_those_read_one_by_one() -> None:
    pool = tuple(
        map(
            msgspec.Raw,
            (
                b'"12.5"', b'""', b'"a b"', '"ä€😀"'.encode(), rb'"\u0041"', b'"%s"' % (b"x" * 300), b"12.5", b"-0.0",
                b"-0", b"0", b"-7", b"1e5", b"1.5E-3", b"true", b'{"scale":1}', b"[1]", b"%s" % (b"7" * 30),
            ),
        )
    )  # fmt: skip
    dice, type_ = random.Random(7), parse_declared_type("variant")  # noqa: S311
    for _ in range(ROUNDS):
        values = choose_some(dice, pool)
        (found, misfits), (expected, others) = (
            read(values, type_) for read in (columns._build_variants, columns._build_each)
        )
        assert found.equals(expected), values
        assert [*misfits] == [*others] == []
