"""JSON as one decoder reads it: many plain records at once, all others one by one, and both the same."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pyarrow as pa
import pytest

from fuzz import BYTES, COLUMNS, TOKENS, mutated
from hindcast.formats import RecordPart
from hindcast.formats.json import record_shape
from hindcast.formats.json.batches import BatchReader
from hindcast.formats.json.records import RecordReader
from hindcast.formats.json.values import parse_loose

NESTED = {
    "p": "struct<x: tinyint, at: timestamp, in: array<struct<y: double, d: decimal(9,3), b: binary>>>",
    "l": "array<array<date>>",
    "d": "decimal(18,9)",
    "f": "float",
    "text": "string",
    "any": "variant",
}
NUMBERS = {f"{column}{n}": kind for n in range(3) for column, kind in COLUMNS.items() if column in "deft"}
PARTS = {
    "typed": RecordPart("value", COLUMNS, "json"),
    "strict": RecordPart("value", {"i": "int", "d": "decimal(8,2)", "text": "string"}, "json", json="strict"),
    "lenient": RecordPart("value", COLUMNS, "json", json="lenient"),
    "nested": RecordPart("value", NESTED, "json"),
    "numbers": RecordPart("value", NUMBERS, "json"),
    "renamed": RecordPart("value", {"d": "decimal(8,2)", "i": "int"}, "json", renamed={"d": ("e", "x"), "i": ("l",)}),
}


def read(part: RecordPart, *records: bytes | None) -> list[tuple[Any, str | None]]:
    found = BatchReader(record_shape(part)).read(pa.array(records, pa.binary())).to_pylist()
    return [(row["struct"], row["problem"]) for row in found]


def invented(rng: random.Random, names: list[str], depth: int = 0) -> str:
    """A JSON text whose objects have fields of these names."""
    match rng.randrange(8 if depth < 4 else 5):
        case 5:
            return f"[{', '.join(invented(rng, names, depth + 1) for _ in range(rng.randrange(3)))}]"
        case 6 | 7:
            fields = (f'"{rng.choice(names)}": {invented(rng, names, depth + 1)}' for _ in range(rng.randrange(5)))
            return f"{{{', '.join(fields)}}}"
    plain = (
        "1",
        "-0",
        "0.5",
        "-12.25",
        '"a"',
        '"2026-01-31"',
        '"2026-01-31T12:30:00.5+02:00"',
        "null",
        "16777217",
        "1e3",
    )
    return rng.choice(plain) if rng.random() < 0.7 else rng.choice(TOKENS)


@pytest.mark.parametrize("mode", PARTS)
def test_a_batch_has_what_each_of_its_records_has(mode: str) -> None:
    part, rng = PARTS[mode], random.Random(mode)  # noqa: S311  # it is to be repeated
    shape = record_shape(part)
    names = [*part.columns, *(it for others in part.renamed.values() for it in others), "x", "at", "in", "y", "b", "z"]
    fields = [f'"{name}": {{}}' for name in part.columns]
    records: list[bytes] = []
    for _ in range(4_000):
        text = f"{{{', '.join(it.format(invented(rng, names, 1)) for it in fields if rng.random() < 0.9)}}}".encode()
        if rng.random() < 0.2:
            place = rng.randrange(len(text))
            text = text[:place] + rng.choice(BYTES) + text[place:]
        records.append(text if rng.random() < 0.6 else mutated(rng))
    reader = RecordReader(shape)
    structs, problems = zip(*map(reader.read, records), strict=True)
    wanted = pa.array(structs, BatchReader(shape).read(pa.array([], pa.binary())).type.field("struct").type).to_pylist()
    found = read(part, *records)
    assert {
        raw: it for raw, it, *one in zip(records, found, wanted, problems, strict=True) if repr(it) != repr((*one,))
    } == {}
    assert sum(problem is None for problem in problems) > 50


@pytest.mark.parametrize("mode", ["typed", "strict", "lenient"])
def test_a_field_may_have_a_name_that_json_writes_with_an_escape(mode: Any) -> None:
    nested = RecordPart("value", {"v": 'struct<`a"b`: int>'}, "json", mode)
    assert read(nested, b'{"v": {"a\\"b": 1}}') == [({"v": {'a"b': 1}}, None)]
    for name in ('"price"', "a\\b", "a\nb"):
        part = RecordPart("value", {"price": "int"}, "json", mode, renamed={"price": (name,)})
        found = read(part, json.dumps({name: 7}).encode(), json.dumps({name: "x"}).encode())
        assert found[0] == ({"price": 7}, None)
        assert found[1][1] is not None, "a text is no number"


def test_null_stays_null() -> None:
    assert read(PARTS["strict"], None, b'{"i": 1, "d": 2, "text": ""}', None)[::2] == [(None, None)] * 2


TEXT = RecordPart("value", {"text": "string", "n": "bigint"}, "json")
WRITTEN = {
    '{"b": 1.50, "a": [1e7, 0.001, 5e-324], "a": {}}': '{"b":1.5,"a":[1.0E7,0.001,4.9E-324],"a":{}}',
    "[-0.0, 1e400]": '[-0.0,"Infinity"]',
    '["\\u001f\\n\\/\U0001f600ä"]': '["\\u001F\\n/\\uD83D\\uDE00ä"]',
    "123456789012345678901234567890": "123456789012345678901234567890",
    " true ": "true",
}


def test_another_value_of_a_text_is_json_as_spark_writes_it() -> None:
    for sent, written in WRITTEN.items():
        assert read(TEXT, f'{{"text": {sent}}}'.encode()) == [({"text": written, "n": None}, None)], sent


@pytest.mark.parametrize(
    ("unknown", "most"),
    [
        (lambda n: "[" * n + "]" * n, 999),
        (lambda n: '{"a":' * n + "1" + "}" * n, 999),
        (lambda n: '[{"":' * (n // 2) + "[]" + "}]" * (n // 2), 998),
        (lambda n: "9" * n, 1_000),
        (lambda n: "-0." + "9" * (n - 1), 1_000),
        (lambda n: "9" * (n - 3) + "e-100", 1_000),
        (lambda n: '{"' + "k" * n + '": 1}', 50_000),
        (lambda n: f'{{"{"k" * (n - 1)}\\"": 1}}', 50_000),
    ],
    ids=["arrays", "objects", "both", "digits", "fraction", "exponent", "name", "escaped"],
)
def test_limits_hold_also_where_the_contract_names_nothing(unknown: Any, most: int) -> None:
    step = 2 if most == 998 else 1
    (right, _), (_, problem) = read(TEXT, *(f'{{"n": 1, "z": {unknown(n)}}}'.encode() for n in (most, most + step)))
    assert right == {"text": None, "n": 1}
    assert problem is not None


HOSTILE = {
    "digits": b'{"n": ' + b"9" * 1_000_000 + b"}",
    "runs of digits": b'{"z": [' + (b"9" * 999 + b",") * 3_000 + b"1]}",
    "brackets": b'{"z": ' + b"[" * 3_000_000,
    "quotes": b"{" + b'"' * 1_000_000,
    "escaped quotes": b'{"' + b'\\"' * 1_000_000,
    "names": b"{" + b'"a ' * 300_000,
    "comments": b'{"n": ' + b"/* " * 1_000_000,
    "words": b"{" + b"a /*" * 300_000,
    "single quotes": b"{'" + b"\\'" * 1_000_000,
    "spaces": b'{"n"' + b" " * 3_000_000,
    "no text": b"\xff" * 3_000_000,
}


@pytest.mark.parametrize("mode", ["typed", "strict", "lenient"])
def test_hostile_texts_take_linear_time(mode: Any) -> None:
    before = time.process_time()
    found = read(TEXT._replace(json=mode), *HOSTILE.values())
    assert [problem is not None for _, problem in found] == [
        name != "runs of digits" or mode == "strict" for name in HOSTILE
    ]
    assert time.process_time() - before < 30


@pytest.mark.parametrize("text", ["1" * 8_000 + "x", "0x" + "1" * 8_000 + "x"])
def test_a_text_that_is_nearly_a_number_takes_no_longer(text: str) -> None:
    before = time.process_time()
    with pytest.raises(ValueError, match="not a double"):
        parse_loose(text, "double")
    assert time.process_time() - before < 0.1


def test_a_float_is_the_nearest_one_not_one_of_a_double() -> None:
    part = RecordPart("value", {"f": "float"}, "json")
    cases = {b"16777217.0000000001": 16777218.0, b"16777217": 16777216.0, b"16777219": 16777220.0, b"1e39": None}
    assert [it and it["f"] for it, _ in read(part, *(b'{"f": %s}' % it for it in cases))] == list(cases.values())


def test_lenient_takes_minus_zero_for_a_text_and_no_escape_of_half_a_number() -> None:
    lenient = RecordPart("value", {"b": "boolean", "x": "double", "i": "int", "text": "string"}, "json", json="lenient")
    (none, refusal), (zero, _), (text, _) = read(
        lenient, b'{"b": -0}', b'{"x": -0, "i": -0, "text": -0}', rb'{"text": "\k\u00e4"}'
    )
    assert (none, refusal is None) == (None, False)
    assert repr(zero) == "{'b': None, 'x': -0.0, 'i': 0, 'text': '0'}"
    assert text == {"b": None, "x": None, "i": None, "text": "kä"}
    for broken in (rb'{"text": "\u00e\4"}', rb'{"text": "\u"}', rb"{'text': '\u12'}", rb'{"text": "\uD83D\uDE0"}'):
        assert read(lenient, broken)[0][0] is None, broken
