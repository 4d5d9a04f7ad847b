"""What a contract can say of how records are written, and what it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hindcast.common.errors import ContractError
from hindcast.contract import Topic, load
from hindcast.formats.limits import malformed_limit

HEAD = """pipeline: p
start: 2026-01-01
topics:
  t:
    read: stream
"""
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}


def contract(folder: Path, topic: str) -> Path:
    lines = "".join(f"    {line}\n" for line in topic.splitlines())
    (folder / "p.yaml").write_text(HEAD + lines, encoding="utf-8")
    return folder / "p.yaml"


@pytest.mark.parametrize(
    "topic",
    [
        "key: {k: int}\nvalue: {v: date}\nvalue_format: string",
        "key: {k: int}\nkey_format: primitive\nvalue: {v: double}\nvalue_format: primitive",
        "key: {a: int, b: int}\nkey_format: avro\nvalue: {v: 'struct<x: int>'}\nvalue_format: avro",
        "key: {k: int}\nvalue: {n: bigint}\nvalue_format: avro\nvalue_schema: n.avsc",
        "key: {k: int}\nvalue: {m: bigint}\nvalue_format: avro\nvalue_schema: n.avsc\nrenamed: {m: [n]}",
        "key: {k: int}\nvalue: {v: string, h: int}\nvalue_format: string\nheaders: {h: hops}",
        "key: {k: int}\nvalue: {v: string}\njson: strict\nrenamed: {v: [V, w]}",
    ],
)
def test_what_a_contract_can_say(topic: str, tmp_path: Path) -> None:
    (tmp_path / "n.avsc").write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert load(contract(tmp_path, topic)).topics["t"]


@pytest.mark.parametrize(
    ("topic", "line", "found", "fix"),
    [
        (
            "key: {k: int}\nvalue: {v: int}\nvalue_format: protobuf",
            8,
            "topics.t.value_format: 'protobuf' is not one of",
            "here: avro, json",
        ),
        (
            "key: {a: int, b: int}\nkey_format: string\nvalue: {v: int}",
            7,
            "a string key has one column, found 2",
            "json",
        ),
        ("key: {a: int, b: int}\nkey_format: primitive\nvalue: {v: int}", 7, "a primitive key has one column", "json"),
        ("key: {k: int}\nvalue: {v: int, w: int}\nvalue_format: string", 8, "a string value has one column", "json"),
        ("key: {k: int}\nvalue:\n  v: date\nvalue_format: primitive", 8, "own serializers writes date", "string"),
        ("key: {k: int}\nvalue:\n  v: array<int>\nvalue_format: string", 8, "cannot be written as text", "scalar"),
        (
            "key: {k: int}\nvalue: {v: int}\njson: loose",
            8,
            "'loose' is not one of the allowed values",
            "lenient, strict, typed",
        ),
        (
            "key: {k: int}\nvalue: {v: int}\nvalue_format: avro\njson: strict",
            9,
            "neither key nor value is JSON",
            "remove",
        ),
        (
            "key: {k: int}\nvalue: {v: int}\nvalue_schema: n.avsc",
            8,
            "the value is json, not Avro",
            "value_format: avro",
        ),
        ("key: {k: int}\nvalue: {v: int}\nvalue_format: avro\nvalue_schema: m.avsc", 9, "'m.avsc' cannot be", "beside"),
        ("key: {k: int}\nvalue: {v: int}\nvalue_format: avro\nvalue_schema: ../n.avsc", 9, "not the name of", "beside"),
        (
            "key: {k: int}\nvalue: {v: int}\nvalue_format: avro\nvalue_schema: bad.avsc",
            9,
            "is not JSON",
            "fix the file",
        ),
        (
            "key: {k: int}\nvalue: {v: int}\nvalue_format: avro\nvalue_schema: odd.avsc",
            9,
            "has no type 'odd'",
            "fix the schema",
        ),
        (
            "key: {k: int}\nvalue: {v: int}\nvalue_format: avro\nvalue_schema: n.avsc",
            9,
            "it has none of the",
            "`v` int",
        ),
        (
            "key: {k: int}\nvalue: {n: string}\nvalue_format: avro\nvalue_schema: n.avsc",
            9,
            "`n` is int, which is not string",
            "the schema writes struct<`n`: int>",
        ),
        (
            "key: {k: int}\nvalue: {v: array<int>}\nvalue_format: avro\nvalue_schema: none.avsc",
            9,
            "'none.avsc' has items that take too few bytes in the array: ",
            "fix the schema",
        ),
        ("key: {k: int}\nvalue: {v: int}\nheaders:\n  w: x", 9, "no column 'w' of the value", "known here: v"),
        ("key: {k: int}\nvalue: {v: int}\nheaders: {v: x}", 8, "no column is read from the value itself", "add"),
        ("key: {k: int}\nvalue: {v: int}\nrenamed:\n  w: [x]", 9, "no column 'w' of key or value", "known here: k, v"),
        ("key: {k: int}\nvalue: {v: int}\nrenamed:\n  k: [x]", 9, "a string key has no fields with names", "remove"),
        (
            "key: {k: int}\nvalue: {v: int, w: int}\nrenamed:\n  v: [w]",
            9,
            "'w' is already the field of column 'w'",
            "once",
        ),
        (
            "key: {k: int}\nvalue: {v: int}\nrenamed:\n  v: []",
            9,
            "topics.t.renamed.v: expected at least one entry, found a list",
            "[cost]",
        ),
    ],
)
def test_what_it_cannot_say_has_its_line_and_a_mend(
    topic: str, line: int, found: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "n.avsc").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (tmp_path / "bad.avsc").write_text("{", encoding="utf-8")
    (tmp_path / "odd.avsc").write_text('"odd"', encoding="utf-8")
    (tmp_path / "none.avsc").write_text('{"type": "array", "items": "null"}', encoding="utf-8")
    with pytest.raises(ContractError) as refused:
        load(contract(tmp_path, topic))
    assert refused.value.where == f"{tmp_path / 'p.yaml'}:{line}"
    assert found in refused.value.found
    assert fix in refused.value.fix


def test_a_schema_file_is_part_of_the_contract(tmp_path: Path) -> None:
    """Its content is, its layout is not."""
    path = contract(tmp_path, "key: {k: int}\nvalue: {n: bigint}\nvalue_format: avro\nvalue_schema: n.avsc")
    hashes = []
    for schema, indent in ((SCHEMA, None), (SCHEMA, 2), ({**SCHEMA, "doc": "other"}, None)):
        (tmp_path / "n.avsc").write_text(json.dumps(schema, indent=indent), encoding="utf-8")
        hashes.append(load(path).hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_contract_that_says_nothing_of_formats_is_what_it_was(tmp_path: Path) -> None:
    plain, written = (
        load(contract(tmp_path, f"key: {{k: int}}\nvalue: {{v: int}}{more}")).hash
        for more in ("", "\nvalue_format: json\njson: typed\nheaders: {}")
    )
    assert plain == written


def test_names_of_fields_and_headers_keep_their_spaces() -> None:
    told = {"read": "table", "key": {"k": "int"}, "value": {"v": "int", "h": "string"}}
    topic = Topic.model_validate({**told, "renamed": {"v": [" V ", "v "]}, "headers": {"h": " of "}})
    assert (topic.renamed["v"], topic.headers["h"]) == ((" V ", "v "), " of ")


def test_a_share_of_malformed_records_is_rounded_down_exactly() -> None:
    told = {"read": "table", "key": {"k": "int"}, "value": {"v": "int"}}
    topics = [Topic.model_validate({**told, "max_malformed": share}) for share in ("0.57%", "1%", "100%")]
    assert [malformed_limit(topic, 10_000) for topic in topics] == [57, 100, 10_000]
    assert malformed_limit(topics[1], 250) == 2
