"""Files of archives, without Kafka: names, rows in each format, values as bytes, order, and what is broken."""

from __future__ import annotations

import io
import json
import os
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import archives
from hindcast.archives import archived_records, named_files, row_values
from hindcast.archives.archived_records import PartitionReader
from hindcast.common.errors import ContractError, TopicError
from hindcast.contract import Topic, load
from hindcast.formats.text import TextColumn
from hindcast.kafka.topics import OffsetRange
from pipelines import at

CONTRACT = """
pipeline: archived
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: "decimal(20,4)"}
    archive: {path: PATH, format: json}
"""


def load_topic(folder: Path, more: str = "format: json", text: str = CONTRACT, where: str = "") -> Topic:
    path = folder / "archived.yaml"
    path.write_text(text.replace("PATH, format: json", f"{where}{folder}, {more}"), encoding="utf-8")
    return load(path).topics["menu"]


def open_partition(folder: Path, more: str = "format: json", text: str = CONTRACT, where: str = "") -> PartitionReader:
    """The first partition of the topic menu."""
    topic = load_topic(folder, more, text, where)
    assert topic.archive is not None
    files = named_files.list_files(topic.archive, "menu")[0]
    filesystem = named_files.open_filesystem(topic.archive)
    return PartitionReader(filesystem, archived_records.build_form(topic, topic.archive), "menu", 0, files)


def read(reader: PartitionReader, start: int = 0, end: int = 1_000) -> list[archived_records.ArchivedRecord]:
    return [*reader.read_records(OffsetRange(start, end))]


def test_a_store_is_read_as_a_folder_is(tmp_path: Path) -> None:
    """By the library that reads the warehouse where it is in an object store."""
    records = [{"key": b"k", "value": b"{}", "offset": n, "timestamp": at(n), "headers": None} for n in range(5)]
    rows = [{"key": "k", "value": {**VALUE, "next": None}, "offset": n, "timestamp": at(n)} for n in range(5)]
    archives.write_parquet_file(archives.place(tmp_path, "menu", 0, 0, "parquet"), records)
    archives.write_json_file(
        archives.place(tmp_path, "menu", 0, 0, "json.gz"), [archives.to_base64(it) for it in records]
    )
    write_avro(archives.place(tmp_path, "menu", 0, 0, "avro"), rows)
    for format_ in ("parquet", "json", "avro"):
        assert read(open_partition(tmp_path, f"format: {format_}", where="file://")) == read(
            open_partition(tmp_path, f"format: {format_}")
        ), format_
    assert sorted(named_files.list_store_paths(f"file://{tmp_path}")) == sorted(named_files.list_paths(str(tmp_path)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TopicError, match="the archive has no file of the topic in json"):
        open_partition(tmp_path / "empty", where="file://")


def test_files_of_a_topic_are_those_with_its_name_however_sinks_name_them(tmp_path: Path) -> None:
    for name in (
        *("topics/menu/partition=0/menu+0+0000000010.json", "topics/menu/partition=1/menu+1+0000000000.json"),
        *("topics/menu/year=2026/month=01/menu+0+0000000005.json.gz", "aiven/menu-0-0.gz", "aiven/menu-2-7.jsonl"),
        *("other/menu2+0+0.json", "other/xmenu+0+0.json", "menu+0+1.avro", "menu+0+1.keys.json", "menu-0-x.json"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    archive = load_topic(tmp_path).archive
    assert archive is not None
    found = named_files.list_files(archive, "menu")
    assert {p: [it.first for it in own] for p, own in found.items()} == {0: [0, 5, 10], 1: [0], 2: [7]}
    with pytest.raises(TopicError, match="the archive has no file of the topic in json") as refused:
        named_files.list_files(archive, "dessert")
    assert refused.value.where == f"archive {tmp_path}, topic dessert"
    for place in (f"{tmp_path}/gone", f"file://{tmp_path}/gone", "hdfs://nowhere/topics", "file://"):
        gone = archive.model_copy(update={"path": place})
        with pytest.raises(TopicError, match="the archive cannot be listed") as refused:
            named_files.list_files(gone, "menu")
        assert refused.value.where == f"archive {place}, topic menu"
    (tmp_path / f"menu+0+{1 << 63}.json").touch()
    with pytest.raises(TopicError, match="is beyond all offsets of Kafka"):
        named_files.list_files(archive, "menu")


def test_links_and_names_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    """A link may lead out of the folder, or around in it."""
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    folder = tmp_path / "there"
    (folder / "day").mkdir(parents=True)
    for name in ("menu+0+1+4.json", "day/menu+0+5+0000000009.json"):
        (folder / name).write_text("")
    (folder / "menu+0+20.json").symlink_to(secret)
    (folder / "menu+0+21.json").symlink_to(folder / "nowhere")
    for name in ("a", "b", "day/c"):
        (folder / name).symlink_to(folder, target_is_directory=True)
    os.mkfifo(folder / "menu+0+22.json")
    odd = os.fsencode(folder) + b"/\xe9t\xe9"
    Path(os.fsdecode(odd)).mkdir()
    Path(os.fsdecode(odd + b"/notes-\xe9.txt")).touch()
    for where in ("", "file://"):
        archive = load_topic(folder, where=where).archive
        assert archive is not None
        found = named_files.list_files(archive, "menu")
        assert [it.path for it in found[0]] == ["menu+0+1+4.json", "day/menu+0+5+0000000009.json"]
    Path(os.fsdecode(odd + b"/menu+0+30.json")).touch()
    with pytest.raises(TopicError, match="the file is in a folder whose name is not UTF-8 text") as refused:
        named_files.list_files(archive, "menu")
    assert refused.value.where == rf"file://{folder}, \xe9t\xe9/menu+0+30.json"


def test_the_text_of_a_value_in_json_is_its_bytes(tmp_path: Path) -> None:
    """Digits, order and repeated fields stay; a text is what it says; null is a tombstone."""
    lines = [
        '{"key": "a", "value": {"price": 1.10000000000000000001, "price": 1e2}, "offset": 3, "timestamp": 5}',
        ' {"value":  "{\\"price\\": 1}" , "key": {"item" : 1}, "offset": 4, "timestamp": "2026-01-01T00:00:01.5Z"},',
        '{"offset": 5, "key": 7, "value": null, "timestamp": null, "headers": {"h": "x", "n": null}}',
        "",
        '{"offset": 6, "key": null, "headers": [{"key": "h", "value": "x"}, {"key": "h"}]}',
    ]
    archives.write_json_file(archives.place(tmp_path, "menu", 0, 3, "json"), ["[", *lines, "]"])
    rows = read(open_partition(tmp_path))
    assert [(it.offset, it.timestamp, it.key, it.value, it.headers) for it in rows] == [
        (3, 5_000, b"a", b'{"price": 1.10000000000000000001, "price": 1e2}', None),
        (4, 1_767_225_601_500_000, b'{"item" : 1}', b'{"price": 1}', None),
        (5, None, b"7", None, [("h", b"x"), ("n", None)]),
        (6, None, None, None, [("h", b"x"), ("h", None)]),
    ]
    (batch,) = archived_records.build_batches(rows, 2, "LogAppendTime")
    told = batch.to_pylist()
    assert [it["timestampType"] for it in told] == [1, 1, -1, -1]
    assert told[2]["timestamp"] == datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), "Kafka's -1"
    assert [it["partition"] for it in told] == [2] * 4


def test_header_values_in_json_keep_their_digits(tmp_path: Path) -> None:
    digits = "12345678901234567890.123456789012345"
    headers = [
        f'{{"n": {digits}, "e": 1e3, "o": {{"a": 1.10, "a":  2}}, "t": "1.10"}}',
        f'[{{"key": "n", "value": {digits}}}, {{"value": [1.0], "key": "n"}}, {{"key": "t"}}]',
    ]
    lines = [f'{{"offset": {n}, "key": "a", "headers": {text}}}' for n, text in enumerate(headers)]
    archives.write_json_file(archives.place(tmp_path, "menu", 0, 0, "json"), lines)
    assert [it.headers for it in read(open_partition(tmp_path))] == [
        [("n", digits.encode()), ("e", b"1e3"), ("o", b'{"a": 1.10, "a":  2}'), ("t", b"1.10")],
        [("n", digits.encode()), ("n", b"[1.0]"), ("t", None)],
    ]


def test_rows_that_are_values_have_offsets_by_their_number_or_a_field(tmp_path: Path) -> None:
    text = CONTRACT.replace("{item: string}", "{item: string, size: int}")
    path = archives.place(tmp_path, "menu", 0, 10, "json")
    lines = [
        '{"item": "a", "size": 1, "price": 2.50, "at": 3, "n": 12}',
        '{"item": "b", "n": 15, "price": 1}',
        '{"n": 16}',
    ]
    archives.write_json_file(path, lines)
    rows = read(open_partition(tmp_path, "format: json, rows: value, key_in_value: true", text=text))
    assert [(it.offset, it.timestamp, it.key, it.value) for it in rows] == [
        (10, None, b'{"item": "a", "size": 1}', lines[0].encode()),
        (11, None, b'{"item": "b", "size": null}', lines[1].encode()),
        (12, None, None, lines[2].encode()),
    ]
    rows = read(open_partition(tmp_path, "format: json, rows: value, key_in_value: true, offset: n, timestamp: at"))
    assert [(it.offset, it.timestamp, it.key) for it in rows] == [(12, 3_000, b"a"), (15, None, b"b"), (16, None, None)]
    archives.write_json_file(archives.place(tmp_path, "menu", 0, 12, "json"), ["{}"])
    with pytest.raises(TopicError, match=r"offset 12 is also in .*menu\+0\+0000000010.json, by its first offset"):
        read(open_partition(tmp_path, "format: json, rows: value, key_in_value: true"))


def test_keys_and_headers_are_in_files_beside(tmp_path: Path) -> None:
    """As Confluent's sink writes them with store.kafka.keys and store.kafka.headers."""
    more = "format: json, rows: value, keys: avro, headers: json"

    def write(name: str, *lines: str) -> None:
        archives.write_json_file(archives.place(tmp_path, "menu", 0, 3, name), lines)

    def write_keys(*keys: str) -> None:
        path = archives.place(tmp_path, "menu", 0, 3, "keys.avro")
        write_avro(path, [*keys], schema="string")

    write("json", '{"price": 1}', "null", '"text"')
    with pytest.raises(TopicError, match="there is no file beside with its key in avro"):
        read(open_partition(tmp_path, more))
    write_keys("a", "b", "c")
    write("headers.json", "null", '[{"key": "h", "value": "x"}]', "[]")
    rows = read(open_partition(tmp_path, more))
    assert [(it.offset, it.key, it.value, it.headers) for it in rows] == [
        (3, b"a", b'{"price": 1}', None),
        (4, b"b", None, [("h", b"x")]),
        (5, b"c", b"text", []),
    ]
    write_keys("a", "b", "c", "d")
    with pytest.raises(TopicError, match="the file beside with its key has more rows"):
        read(open_partition(tmp_path, more))
    write_keys("a", "b")
    with pytest.raises(TopicError, match="the file beside with its key has no such row") as refused:
        read(open_partition(tmp_path, more))
    assert "row 2 (the first is 0), offset 5 or later" in refused.value.where


SCHEMA = {
    "type": "record",
    "name": "Row",
    "namespace": "shop",
    "fields": [
        {"name": "key", "type": ["null", "string"]},
        {
            "name": "value",
            "type": {
                "type": "record",
                "name": "Value",
                "fields": [
                    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 4}},
                    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
                    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["hot", "cold"]}},
                    {"name": "other", "type": ["null", "Kind"]},
                    {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
                    {"name": "sizes", "type": {"type": "array", "items": "double"}},
                    {"name": "more", "type": {"type": "map", "values": "long"}},
                    {"name": "next", "type": ["null", "Value"]},
                ],
            },
        },
        {"name": "offset", "type": "long"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
VALUE = {
    "price": Decimal("1234567890123456789012345678901.2300"),
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    "kind": "cold",
    "other": "hot",
    "raw": b"\x00\xff",
    "sizes": [0.1, float("inf")],
    "more": {"a": -(2**63)},
}
TEXT = (
    b'{"price": 1234567890123456789012345678901.2300, "day": "2026-01-02", "at": "2026-01-01T00:00:00.000001+00:00", '
    b'"kind": "cold", "other": "hot", "raw": "AP8=", "sizes": [0.1, Infinity], "more": {"a": -9223372036854775808}, '
)


def write_avro(path: Path, rows: list[Any], codec: str = "null", schema: Any = SCHEMA) -> None:
    with path.open("wb") as out:
        fastavro.writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), rows, codec, sync_interval=200)


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_avro_is_read_as_another_library_writes_it(tmp_path: Path, codec: str) -> None:
    rows = [
        {
            "key": f"k{n}" if n else None,
            "value": {**VALUE, "next": {**VALUE, "next": None} if n % 2 else None},
            "offset": n,
            "timestamp": at(n),
        }
        for n in range(9)
    ]
    path = archives.place(tmp_path, "menu", 0, 0, "avro")
    write_avro(path, rows, codec)
    found = read(open_partition(tmp_path, "format: avro"))
    assert [it.offset for it in found] == [*range(9)]
    assert [it.key for it in found[:2]] == [None, b"k1"]
    assert found[0].value == TEXT + b'"next": null}'
    assert found[1].value == TEXT + b'"next": ' + TEXT + b'"next": null}}'
    assert found[2].timestamp == 1_767_225_602_000_000


def test_blocks_of_avro_are_compressed_by_snappy_and_zstandard_too(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "Row", "fields": [{"name": "value", "type": "string"}]}
    path = archives.place(tmp_path, "menu", 0, 0, "avro")
    write_avro(path, [{"value": "x" * 900}], schema=schema)
    plain = path.read_bytes()
    block = b"\x88\x0e" + b"x" * 900
    head, _, tail = plain.partition(b"\x8c\x0e" + block)
    assert tail, "its length, then the block"
    snappy = bytes(pa.compress(block, "snappy", asbytes=True)) + b"\0\0\0\0"
    for codec, data in (("snappy", snappy), ("zstandard", zstandard.compress(block))):
        named = head.replace(b"\x14avro.codec\x08null", b"\x14avro.codec" + bytes([2 * len(codec)]) + codec.encode())
        length = 2 * len(data)
        size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
        path.write_bytes(named + size + data + tail)
        (record,) = read(open_partition(tmp_path, "format: avro"))
        assert record.value == b"x" * 900
    path.write_bytes(plain.replace(b"\x08null", b"\x08lzma"))
    with pytest.raises(TopicError, match="it is compressed by lzma"):
        read(open_partition(tmp_path, "format: avro"))


def test_parquet_of_connect_becomes_the_same_json(tmp_path: Path) -> None:
    value = {**VALUE, "next": None}
    kind = pa.struct(
        [
            ("price", pa.decimal128(38, 4)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            *((name, pa.string()) for name in ("kind", "other")),
            ("raw", pa.binary()),
            ("sizes", pa.list_(pa.float64())),
            ("more", pa.map_(pa.string(), pa.int64())),
            ("next", pa.int32()),
        ]
    )
    values = pa.array([value, None, value], kind)
    path = archives.place(tmp_path, "menu", 0, 4, "gz.parquet")
    pq.write_table(pa.table({"key": ["a", "b", None], "value": values}), path, compression="gzip", row_group_size=1)
    found = read(open_partition(tmp_path, "format: parquet"))
    text = TEXT + b'"next": null}'
    assert [(it.offset, it.key, it.value) for it in found] == [(4, b"a", text), (5, b"b", None), (6, None, text)]


def test_of_files_that_overlap_or_interleave_each_offset_comes_once_in_order(tmp_path: Path) -> None:
    """As a partitioner by time, and a sink that has written some records again, leave them."""
    rng = Random(3)  # noqa: S311  # not secret
    for number in range(40):
        folder = tmp_path / f"a{number}"
        offsets = [*range(rng.randint(0, 3), 60)]
        hours = [rng.choice("abc") for _ in offsets]
        for hour in "abc":
            own = [o for o, h in zip(offsets, hours, strict=True) if h == hour]
            cuts = sorted(rng.sample(range(len(own)), 3))
            for start, end in zip([0, *cuts], [*cuts, len(own)], strict=True):
                some = own[max(0, start - rng.randint(0, 2)) : end]
                if some:
                    path = archives.place(folder, "menu", 0, some[0], "json", f"hour={hour}")
                    archives.write_json_file(path, [{"offset": o, "key": "a", "value": {}} for o in some])
        reader = open_partition(folder)
        start, end = sorted(rng.sample(range(70), 2))
        assert [it.offset for it in read(reader)] == offsets
        assert [it.offset for it in read(reader, start, end)] == [o for o in offsets if start <= o < end]
        assert reader.find_end(end) == max((o + 1 for o in offsets if o < end), default=0)


@pytest.mark.parametrize("more", ["format: parquet", "format: parquet, rows: value, key_in_value: true"])
def test_row_groups_before_what_is_asked_for_are_passed_over(tmp_path: Path, more: str) -> None:
    """They are not even decoded: they are destroyed."""
    path = archives.place(tmp_path, "menu", 0, 100, "parquet")
    offsets = range(100, 200)
    texts = {name: [f"{name[0]}{offset:030}" for offset in offsets] for name in ("key", "item")}
    columns = {"offset": pa.array(offsets), **texts}
    pq.write_table(pa.table(columns), path, row_group_size=10, compression="none", use_dictionary=False)
    reader = open_partition(tmp_path, more)
    everything = read(reader)
    assert [it.offset for it in everything] == [*offsets]
    data = path.read_bytes()
    kept = data.index(b"k%030d" % 150)
    path.write_bytes(data[:4] + b"\xff" * (kept - 4) + data[kept:])
    assert read(reader, 165) == everything[65:]
    with pytest.raises(TopicError, match="the archive cannot be read"):
        read(reader, 120)


def test_values_of_parquet_that_python_has_no_form_for_are_texts(tmp_path: Path) -> None:
    """Only they: the other values of the row, and the rows beside, are as ever."""
    far = 253_402_300_800_000
    kind = pa.struct(
        [
            *(("at", pa.timestamp("ms", "UTC")), ("day", pa.date32()), ("times", pa.list_(pa.timestamp("us")))),
            *(("more", pa.map_(pa.string(), pa.timestamp("s"))), ("n", pa.int32())),
        ]
    )
    good = {"at": 0, "day": 0, "times": [0, None], "more": [("a", 0)], "n": 1}
    bad = {"at": far, "day": 2_932_897, "times": [0, -far * 1_000], "more": [("a", far), ("b", None)], "n": 1}
    table = pa.table(
        {
            "key": ["a"] * 3,
            "value": pa.array([good, bad, good], kind),
            "timestamp": pa.array([1, far, 2], pa.timestamp("ms", "UTC")),
        }
    )
    pq.write_table(table, archives.place(tmp_path, "menu", 0, 0, "parquet"))
    found = read(open_partition(tmp_path, "format: parquet"))
    assert [it.timestamp for it in found] == [1_000, far * 1_000, 2_000]
    assert found[0].value == found[2].value
    assert json.loads(found[0].value or b"")["day"] == "1970-01-01"
    assert json.loads(found[1].value or b"") == {
        "at": str(far),
        "day": "2932897",
        "times": ["1970-01-01T00:00:00", str(-far)],
        "more": {"a": f"{far}000", "b": None},
        "n": 1,
    }


def write_bytes_of_avro(path: Path, schema: Any, *blocks: tuple[int, bytes]) -> None:
    """A container file of blocks: their numbers of rows, and their bytes."""

    def number(it: int) -> bytes:
        it, told = it << 1 if it >= 0 else (~it << 1) + 1, b""
        while it > 127:
            told, it = told + bytes([it & 127 | 128]), it >> 7
        return told + bytes([it])

    text, sync = json.dumps(schema).encode(), b"S" * 16
    head = b"Obj\x01\x02" + number(11) + b"avro.schema" + number(len(text)) + text + b"\0" + sync
    path.write_bytes(head + b"".join(number(n) + number(len(it)) + it + sync for n, it in blocks))


def test_values_of_avro_that_python_has_no_form_for_are_texts(tmp_path: Path) -> None:
    kinds = [("int", "date"), ("long", "timestamp-millis"), ("long", "local-timestamp-micros")]
    fields = [{"name": it, "type": {"type": kind, "logicalType": it}} for kind, it in kinds]
    value = {"type": "record", "name": "V", "fields": fields}
    path = archives.place(tmp_path, "menu", 0, 0, "avro")
    schema = {"type": "record", "name": "R", "fields": [{"name": "value", "type": value}]}
    write_bytes_of_avro(path, schema, (2, b"\x02\x02\x02" + (b"\xff" * 4 + b"\x0f") + 2 * (b"\xff" * 9 + b"\x01")))
    found = [json.loads(it.value or b"") for it in read(open_partition(tmp_path, "format: avro"))]
    assert [*found[0].values()] == ["1970-01-02", "1970-01-01T00:00:00.001000+00:00", "1970-01-01T00:00:00.000001"]
    assert [*found[1].values()] == [str(-(1 << 31)), str(-(1 << 63)), str(-(1 << 63) // 1_000)]


@pytest.mark.parametrize("format_", ["parquet", "avro"])
def test_floats_of_32_bits_have_their_own_digits(tmp_path: Path, format_: str) -> None:
    texts = ["0.1", "16777216.0", "3.4028235e+38", "-1e-45", "NaN", "Infinity"]
    values = [{"x": float(it), "l": [float(it), None], "m": {"a": float(it)}} for it in texts]
    path = archives.place(tmp_path, "menu", 0, 0, format_)
    if format_ == "avro":
        fields = [
            {"name": "x", "type": "float"},
            {"name": "l", "type": {"type": "array", "items": ["null", "float"]}},
            {"name": "m", "type": {"type": "map", "values": "float"}},
        ]
        value = {"type": "record", "name": "V", "fields": fields}
        schema = {"type": "record", "name": "R", "fields": [{"name": "value", "type": value}]}
        write_avro(path, [{"value": it} for it in values], schema=schema)
    else:
        x = pa.float32()
        kind = pa.struct([("x", x), ("l", pa.list_(x)), ("m", pa.map_(pa.string(), x))])
        pq.write_table(pa.table({"value": pa.array(values, kind)}), path)
    found = [it.value for it in read(open_partition(tmp_path, f"format: {format_}"))]
    assert found == [f'{{"x": {it}, "l": [{it}, null], "m": {{"a": {it}}}}}'.encode() for it in texts]


@pytest.mark.parametrize(
    ("schema", "rows", "data", "found"),
    [
        ({"type": "array", "items": "null"}, 1, b"\x02\x80\x80\x80\x08\0", "a block claims 8,388,610 rows and"),
        ("null", 1 << 40, b"", "a block claims 1,099,511,627,776 rows and items of lists; 8,388,608 are read at most"),
        ("int", -1, b"", "a block claims -1 rows"),
        (
            {"type": "record", "name": "R", "fields": [3]},
            1,
            b"",
            "the file's schema is none of Avro: 'int' object is not",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "key"}]}, 1, b"", "is none of Avro: 'type'"),
        (
            {"type": "bytes", "logicalType": "decimal", "scale": None},
            1,
            b"",
            "the file's schema is none of Avro: int() arg",
        ),
    ],
)
def test_avro_that_claims_much_or_has_an_odd_schema_is_named(
    tmp_path: Path, schema: Any, rows: int, data: bytes, found: str
) -> None:
    path = archives.place(tmp_path, "menu", 0, 0, "avro")
    write_bytes_of_avro(path, schema, (rows, data))
    more = "format: avro, rows: value"
    with pytest.raises(TopicError, match=re.escape(found)) as refused:
        for _ in open_partition(tmp_path, more, CONTRACT.replace("table", "stream")).read_records(OffsetRange(0, 9)):
            pass
    assert path.name in refused.value.where


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("date", date(2026, 1, 2), "2026-01-02"),
        ("timestamp", at(0.5), "2026-01-01T00:00:00.500000+00:00"),
        ('"decimal(8,2)"', Decimal("1.50"), "1.50"),
        ("boolean", True, "true"),
    ],
)
def test_a_key_whose_format_is_text_has_no_quotes(tmp_path: Path, kind: str, value: Any, text: str) -> None:
    """Whether it is a field of the value or of the record; it is what the format reads."""
    path = archives.place(tmp_path, "menu", 0, 0, "parquet")
    pq.write_table(pa.table({"item": [value], "key": [value], "price": [1]}), path)
    contract = CONTRACT.replace("{item: string}", f"{{item: {kind}}}")
    for more in ("format: parquet, rows: value, key_in_value: true", "format: parquet"):
        (record,) = read(open_partition(tmp_path, more, contract))
        assert record.key == text.encode()
    found, _ = TextColumn(kind.strip('"'), "").read(pa.array([record.key]))
    assert found.to_pylist() == [value]


def test_keys_beside_that_are_all_null_have_no_bytes(tmp_path: Path) -> None:
    archives.write_json_file(archives.place(tmp_path, "menu", 0, 0, "json"), ["{}", "{}"])
    write_avro(archives.place(tmp_path, "menu", 0, 0, "keys.avro"), [None, None], schema="null")
    assert [it.key for it in read(open_partition(tmp_path, "format: json, rows: value, keys: avro"))] == [None, None]


def test_a_timestamp_that_is_a_text_of_digits_is_milliseconds(tmp_path: Path) -> None:
    told = {"1712011211234": 1_712_011_211_234_000, "-5": -5_000, "20260101": 20_260_101_000, "1970-01-01": 0}
    lines = [f'{{"offset": {n}, "key": "a", "timestamp": "{text}"}}' for n, text in enumerate(told)]
    archives.write_json_file(archives.place(tmp_path, "menu", 0, 0, "json"), lines)
    assert [it.timestamp for it in read(open_partition(tmp_path))] == [*told.values()]


def test_a_file_of_parquet_is_read_in_batches_of_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large its row groups are, and what its dictionaries have; a row that is too large is named."""
    from hindcast.archives import parquet_files

    read_batches, sizes = pq.ParquetFile.iter_batches, []

    def note_batches(*args: Any, **how: Any) -> Any:
        for batch in read_batches(*args, **how):
            sizes.append((batch.num_rows, batch.nbytes))
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", note_batches)
    monkeypatch.setattr(parquet_files, "BATCH_BYTES", 10_000_000)
    monkeypatch.setattr(parquet_files, "ROW_BYTES", 3_000_000)
    path = archives.place(tmp_path, "menu", 0, 0, "parquet")
    large = [bytes([n]) * 1_000_000 for n in range(1, 31)]
    plain = pa.table({"value": pa.array(large, pa.binary())})
    repeated = pa.table({"value": pa.array([b"x" * 1_000_000] * 200, pa.binary()).dictionary_encode()})
    for table, dictionaries in ((plain, False), (plain, True), (repeated, True)):
        pq.write_table(table, path, compression="zstd", use_dictionary=dictionaries)
        assert sum(it.value is not None for it in read(open_partition(tmp_path, "format: parquet"))) == len(table)
        assert max(size for _, size in sizes) <= 11_000_000, (len(table), dictionaries)
    sizes.clear()
    pq.write_table(pa.table({"value": ["x" * 100] * 2_000}), path)
    assert len(read(open_partition(tmp_path, "format: parquet"), end=2_000)) == 2_000
    assert sizes[0][0] == 1_024, "small rows are read together"
    monkeypatch.setattr(parquet_files, "BATCH_BYTES", 1_000_000)
    for rows, number in (([b"y"] * 7 + [b"x" * 4_000_000] + [b"y"] * 9, 7), ([b"x" * 4_000_000], 0)):
        pq.write_table(pa.table({"value": pa.array(rows, pa.binary())}), path)
        with pytest.raises(TopicError, match=r"a row has 4,000,\d+ bytes; one has at most 3,000,000") as refused:
            read(open_partition(tmp_path, "format: parquet"))
        assert f"row {number} (the first is 0)" in refused.value.where


GOOD = '{"offset": 0, "key": "a", "value": {}}\n'


@pytest.mark.parametrize(
    ("data", "row", "found"),
    [
        (GOOD + "{", 1, "truncated"),
        (GOOD + "7", 1, "Expected `object`, got `int`"),
        (GOOD + "null", 1, "the row has neither key nor value"),
        (GOOD + '{"offset": 1} {}', 1, "JSON is malformed: trailing characters"),
        (GOOD + '{"key": "a", "offset": "x"}', 1, "its offset cannot be read: it is not a whole number"),
        (GOOD + '{"key": "a", "offset": null}', 1, "it has no offset"),
        (GOOD + GOOD, 1, "its offset 0 does not follow 0, that of the row before"),
        (
            '{"offset": -1, "key": null}',
            0,
            "its offset -1 does not follow -1, that of the first offset in the file's name, minus one,",
        ),
        (
            GOOD + '{"offset": 1, "key": "a", "timestamp": "soon"}',
            1,
            "it is not a timestamp in ISO 8601",
        ),
        (GOOD + '{"offset": 1, "key": "a", "headers": 3}', 1, "its headers cannot be read: Expected `object`"),
        (
            GOOD + '{"offset": 1, "key": "a", "headers": [["h", "x"]]}',
            1,
            "its headers cannot be read: Expected `object`",
        ),
        (
            GOOD + '{"offset": 1, "key": "a", "headers": [{"key": null}]}',
            1,
            "a header's name is text, and this one is N",
        ),
        (
            GOOD + '{"offset": 1, "key": "a", "headers": [{"key": 1}]}',
            1,
            "a header's name is text, and this one is '1'",
        ),
        (GOOD + '{"offset": 1, "key": "a", "headers": {"h": 1, "h": 1}}', 1, "the object repeats a name"),
        (GOOD + '{"offset": 1, "key": "\\ud800"}', 1, "truncated"),
        (GOOD + '{"offset": 1, "value": ' + "[" * 100_000 + "}", 1, "maximum recursion"),
        (GOOD.encode() + b'{"\xff": 1}', 1, "can't decode byte 0xff"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, data: str | bytes, row: int, found: str) -> None:
    path = archives.place(tmp_path, "menu", 0, 0, "json")
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(TopicError) as refused:
        read(open_partition(tmp_path))
    assert found in refused.value.found
    where = f"{tmp_path}, {path.relative_to(tmp_path)}, topic menu, partition 0, row {row} (the first is 0), "
    assert refused.value.where == f"{where}offset {row} or later"


@pytest.mark.parametrize("format_", ["parquet", "avro", "json"])
def test_hostile_files_are_errors_that_name_them(tmp_path: Path, format_: str) -> None:
    path = archives.place(tmp_path, "menu", 0, 0, format_ if format_ != "json" else "json.gz")
    records = [{"key": b"k", "value": b"{}", "offset": n, "timestamp": at(n), "headers": None} for n in range(50)]
    if format_ == "parquet":
        archives.write_parquet_file(path, records)
    elif format_ == "avro":
        rows = [{"key": "k", "value": {**VALUE, "next": None}, "offset": n, "timestamp": at(n)} for n in range(50)]
        write_avro(path, rows, "deflate")
    else:
        archives.write_json_file(path, [{"offset": n, "key": "k", "value": {}} for n in range(50)])
    whole = path.read_bytes()
    rng = Random(7)  # noqa: S311  # not secret
    reader = open_partition(tmp_path, f"format: {format_}")
    places = []
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data if rng.random() < 0.7 else data[: rng.randrange(len(data))])
        try:
            read(reader)
        except TopicError as error:
            places.append(error.where)
    assert len(places) > 20
    assert all(f"{path.name}, topic menu, partition 0, row " in place for place in places)


def test_a_long_line_and_a_large_block_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hindcast.archives import avro_files, file_rows

    monkeypatch.setattr(file_rows, "LINE_BYTES", 100)
    monkeypatch.setattr(avro_files, "BLOCK_BYTES", 2_000)
    path = archives.place(tmp_path, "menu", 0, 0, "json")
    path.write_text(GOOD + '{"offset": 1, "value": "' + "x" * 100 + '"}', encoding="utf-8")
    with pytest.raises(TopicError, match="a line has more than 100 bytes"):
        read(open_partition(tmp_path))
    rows = [{"key": "k" * 9_000, "value": {**VALUE, "next": None}, "offset": 0, "timestamp": at(0)}]
    write_avro(archives.place(tmp_path, "menu", 0, 0, "avro"), rows, "deflate")
    with pytest.raises(TopicError, match="a block has more than 2,000 bytes"):
        read(open_partition(tmp_path, "format: avro"))


def test_bytes_in_a_format_without_text_are_those_of_kafka(tmp_path: Path) -> None:
    text = CONTRACT.replace("item: string}", "item: int}\n    key_format: primitive")
    archives.write_json_file(archives.place(tmp_path, "menu", 0, 0, "json"), [{"offset": 0, "key": "AAAAKg=="}])
    (record,) = read(open_partition(tmp_path, "format: json, base64: [key]", text=text))
    assert record.key == b"\x00\x00\x00\x2a"
    with pytest.raises(TopicError, match="its key is not bytes, and key_format is primitive"):
        read(open_partition(tmp_path, text=text))


@pytest.mark.parametrize(
    ("more", "text", "found"),
    [
        ("format: json, offset: n", CONTRACT, "offset is for rows that are values"),
        ("format: json, rows: value", CONTRACT, "rows that are values have no key, which a table needs"),
        ("format: json, rows: value, key_in_value: true, keys: json", CONTRACT, "keys are in the values and in files"),
        ("format: orc", CONTRACT, "orc"),
        ("format: json, path: there", CONTRACT.replace("path: PATH, ", "PATH, "), "'there' is not a whole path"),
        (
            "format: json",
            CONTRACT.replace("path: PATH", "path: ftp://PATH"),
            "a path that begins with 'ftp' is not read",
        ),
        (
            "format: json, rows: value, key_in_value: true",
            CONTRACT.replace("    archive", "    value_format: avro\n    archive"),
            "rows that are values are JSON or text, but value_format is avro",
        ),
        (
            "format: json, rows: value, key_in_value: true",
            CONTRACT.replace("    archive", "    key_format: primitive\n    archive"),
            "a key of the value's fields is JSON or text, but key_format is primitive",
        ),
        (
            "format: json",
            CONTRACT.replace("    read", "    pattern: m.*\n    read"),
            "an archive is of one topic, but this entry has a pattern",
        ),
        (
            "format: json",
            CONTRACT + "  dessert: {read: stream, topic: menu, key: {k: string}, value: {n: int}}\n",
            "topics.dessert and topics.menu read one topic, with different archives",
        ),
    ],
)
def test_what_makes_no_sense_in_a_contract_is_refused(tmp_path: Path, more: str, text: str, found: str) -> None:
    if "PATH, format" in text and "path: PATH" not in text:
        text = text.replace("{PATH, format: json}", "{path: there, format: json}")
        more = ""
    with pytest.raises(ContractError) as refused:
        load_topic(tmp_path, more, text)
    assert found in str(refused.value)


def test_values_that_json_has_no_form_for_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON has no form for a BytesIO"):
        row_values.write_json([io.BytesIO()])
