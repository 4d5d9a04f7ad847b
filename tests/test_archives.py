"""Topics continued backwards by archives, on the real broker: what retention took is read from files."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import archives
from hindcast.common.errors import TopicError
from hindcast.ingest import record_tasks
from hindcast.kafka import gaps, produce
from hindcast.ops.erase import forget, records
from hindcast.plan import journal
from hindcast.store import files
from pipelines import Pipeline, at, pipeline, tuples, wrong
from test_gaps import retain_from
from test_rehearsal import rehearse, sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: archived
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: "decimal(8,2)", source: string}
    headers: {source: origin}
    arrival: header sent
    max_malformed: 9
views:
  prices:
    table: menu
    select: {doubled: price * 2}
"""
Write = Callable[[Path, list[archives.Record]], None]


def archived(folder: Path, text: str, more: str = "format: json") -> str:
    """The contract under the name `again`, with an archive."""
    text = text.replace("pipeline: archived", "pipeline: again")
    return text.replace("    max_malformed: 9\n", f"    max_malformed: 9\n    archive: {{path: {folder}, {more}}}\n")


def write_json(path: Path, records: list[archives.Record]) -> None:
    archives.write_json_file(path, [archives.to_json(it) for it in records])


def write_base64(path: Path, records: list[archives.Record]) -> None:
    archives.write_json_file(path, [archives.to_base64(it) for it in records])


def send(p: Pipeline) -> None:
    """Ten records: a tombstone, one that is malformed, one without a key."""
    origin = ("origin", b"shop")
    for n in range(10):
        value: Any = {"price": n + 0.25} if n != 4 else None
        key = "curry" if n % 2 else "soup"
        headers = (origin, sent(n * 10))
        record = produce.ProducerRecord(
            None if n == 7 else key.encode(), _encode(b"{" if n == 5 else value), at(n), headers
        )
        produce.send_records(p.servers, p.kafka("menu"), [record])


def _encode(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def again(p: Pipeline, text: str) -> Pipeline:
    """A pipeline of another contract over the same topics."""
    other = Pipeline(p.spark, p.servers, p.folder, p.path.read_text(encoding="utf-8"))
    other.prefix = p.prefix
    other.write(text)
    return other


LOG = ("offset", "fate", "reason", "timestamp", "timestampType", "key", "value", "arrival")


def log_of(p: Pipeline) -> list[tuple[Any, ...]]:
    rows = sorted(p.raw("logs/menu"), key=lambda row: int(row["offset"]))
    return [(*(row[c] for c in LOG), str(row["headers"])) for row in rows]


def same_json(log: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The log, with values compared as JSON: whitespace may differ."""
    return [tuple(json.loads(it) if n == 6 and it and it != b"{" else it for n, it in enumerate(row)) for row in log]


@pytest.mark.parametrize(
    ("ending", "write", "more"),
    [
        ("json", write_base64, "format: json, base64: [key, value, headers]"),
        ("json.gz", write_base64, "format: json, base64: [key, value, headers]"),
        ("snappy.parquet", archives.write_parquet_file, "format: parquet"),
    ],
)
def test_a_run_reads_before_kafka_begins_from_the_archive(
    spark: SparkSession, broker: str, tmp_path: Path, ending: str, write: Write, more: str
) -> None:
    """The same log, tables and fates as if Kafka still had all; also from files that overlap with Kafka."""
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        p.run()
        records = archives.read_kafka(p, "menu")
        place = tmp_path / "archive"
        archives.write_files(
            records[:8], 3, lambda first: archives.place(place, p.kafka("menu"), 0, first, ending), write
        )
        retain_from(p, "menu", 6)
        other = again(p, archived(place, CONTRACT, more))
        report = other.run("first")
        assert report["topics"]["menu"]["partitions"][0]["start"] == 0
        assert log_of(other) == log_of(p)
        assert other.believed("prices") == p.believed("prices") != []
        assert {fate for _, fate in other.fates("menu")} == {"accepted", "malformed", "null_key"}
        assert wrong(other) == []
        before = other.versions()
        other.run("second")
        assert other.versions() == before, "nothing is read twice"


def test_a_rehearsal_reads_the_archive_with_its_arrivals(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        rehearse(p, 0, 100, every="50 seconds")
        place = tmp_path / "archive"
        write_json(archives.place(place, p.kafka("menu"), 0, 0, "json"), archives.read_kafka(p, "menu")[:5])
        retain_from(p, "menu", 5)
        other = again(p, archived(place, CONTRACT))
        rehearse(other, 0, 100, every="50 seconds")
        assert same_json(log_of(other)) == same_json(log_of(p))
        assert [run.known_at for run in journal.read_runs(p.warehouse, "again")] == [
            run.known_at for run in journal.read_runs(p.warehouse, p.name)
        ]
        assert other.history("menu") == p.history("menu")
        assert wrong(other) == []


def test_what_neither_has_is_refused_or_recorded(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Between the archive and Kafka the plan refuses it, between files the run, before it writes."""
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        records = archives.read_kafka(p, "menu")
        place = tmp_path / "archive"
        kafka = p.kafka("menu")
        write_json(archives.place(place, kafka, 0, 0, "json"), records[:2])
        retain_from(p, "menu", 6)
        other = again(p, archived(place, CONTRACT))
        with pytest.raises(TopicError) as refused:
            other.run("first")
        assert refused.value.found == f"offsets 2 to 5 are gone from Kafka: {gaps.NOT_ARCHIVED}"
        assert refused.value.where == f"topic {kafka}, partition 0"
        assert "restore them in Kafka or in the archive" in refused.value.fix
        assert other.states() == [], "not even planned"
        write_base64(archives.place(place, kafka, 0, 4, "json"), [])
        write_json(archives.place(place, kafka, 0, 3, "json"), [it for it in records[3:6] if it["value"] != b"{"])
        other.write(archived(place, CONTRACT))
        with pytest.raises(TopicError, match="offsets 5 to 5 are gone from Kafka"):
            other.run("first")
        archives.write_json_file(archives.place(place, kafka, 0, 5, "json"), [{"offset": 5, "key": "a", "value": "{"}])
        with pytest.raises(TopicError, match="offsets 2 to 2 are gone from Kafka"):
            other.run("first")
        assert other.raw("logs/menu") == []
        other.write(archived(place, CONTRACT).replace("    max_malformed", "    on_gap: record\n    max_malformed"))
        other.run("first")
        (gone,) = (row for row in other.raw("logs/menu") if row["fate"] == "gone")
        assert (gone["offset"], gone["offsets"], gone["reason"]) == (2, 1, gaps.NOT_ARCHIVED)
        assert len(other.raw("logs/menu")) == 10
        assert wrong(other) == []


def test_a_partition_without_files_lacks_what_kafka_has_no_longer(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Also where a stream with `from` may begin before what Kafka has."""
    text = CONTRACT.replace("    arrival: header sent\n", "")
    with pipeline(spark, broker, tmp_path, text, partitions=2) as p:
        place, kafka = tmp_path / "archive", p.kafka("menu")
        for partition in range(2):
            own = [produce.ProducerRecord(b"k%d" % partition, b'{"price": 1}', at(n), ()) for n in range(10)]
            produce.send_records(broker, kafka, own, partition=partition)
        write_json(archives.place(place, kafka, 0, 0, "json"), archives.read_kafka(p, "menu", 0)[:6])
        for partition in range(2):
            retain_from(p, "menu", 6, partition)
        stream = text.replace("table", "stream").replace("    max_", "    from: 2026-01-01T00:00:0SECOND\n    max_")
        other = again(p, archived(place, text))
        for refused_text in (text, stream.replace("SECOND", "2")):
            other.write(archived(place, refused_text))
            with pytest.raises(TopicError, match="offsets 0 to 5 are gone from Kafka: neither") as refused:
                other.run("first")
            assert refused.value.where == f"topic {kafka}, partition 1"
        other.write(archived(place, text).replace("    max_malformed", "    on_gap: record\n    max_malformed"))
        other.run("first")
        (gone,) = (row for row in other.raw("logs/menu") if row["fate"] == "gone")
        assert (gone["partition"], gone["offset"], gone["offsets"]) == (1, 0, 6)
        assert len(other.raw("logs/menu")) == 15
        assert wrong(other) == []
        late = again(p, archived(place, stream.replace("SECOND", "7")).replace("pipeline: again", "pipeline: late"))
        late.run("first")
        assert sorted((row["partition"], row["offset"]) for row in late.raw("logs/menu")) == [
            (partition, offset) for partition in range(2) for offset in (7, 8, 9)
        ]


def test_an_archive_may_be_named_later_and_removed_when_its_records_are_in_the_log(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        p.run()
        place = tmp_path / "archive"
        archives.write_parquet_file(
            archives.place(place, p.kafka("menu"), 0, 0, "parquet"), archives.read_kafka(p, "menu")
        )
        retain_from(p, "menu", 6)
        without = CONTRACT.replace("pipeline: archived", "pipeline: again")
        other = again(p, without)
        other.run("first")
        assert [offset for offset, _ in other.fates("menu")] == [6, 7, 8, 9]
        for name, text in (("second", archived(place, CONTRACT, "format: parquet")), ("third", without)):
            other.write(text)
            other.run(name)
            assert other.fates("menu") == p.fates("menu")
            assert other.believed("prices") == p.believed("prices")
            assert wrong(other) == []


def test_a_forgotten_key_stays_forgotten_if_an_archive_is_named_later(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        place = tmp_path / "archive"
        path = archives.place(place, p.kafka("menu"), 0, 0, "parquet")
        archives.write_parquet_file(path, archives.read_kafka(p, "menu"))
        retain_from(p, "menu", 6)
        p.run()
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "menu", "curry", ()))
        p.write(archived(place, CONTRACT, "format: parquet").replace("pipeline: again", "pipeline: archived"))
        p.run()
        assert [row["offset"] for row in p.raw("logs/menu") if row["key"] == b"curry"] == []
        assert {row["item"] for row in p.raw("menu")} == {"soup"}
        assert len(p.raw("logs/menu")) == 10
        assert wrong(p) == []


def test_tasks_of_spark_read_what_this_process_reads(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a time partitioner, whose offsets interleave, of two partitions; Kafka has the last ones."""
    text = CONTRACT.replace("arrival: header sent\n", "from: 2026-01-01T00:00:15\n").replace("table", "stream")
    with pipeline(spark, broker, tmp_path, text, partitions=2) as p:
        place, kafka = tmp_path / "archive", p.kafka("menu")
        for partition in range(2):
            sent_records = [
                produce.ProducerRecord(f"k{n}".encode(), b'{"price": %d}' % n, at(n), (("origin", b"x"),))
                for n in range(60)
            ]
            produce.send_records(broker, kafka, sent_records, partition=partition)
            records = archives.read_kafka(p, "menu", partition)
            for hour in range(2):
                own = [it for it in records[:50] if it["offset"] // 3 % 2 == hour]
                archives.write_files(
                    own,
                    7,
                    lambda first, it=(partition, hour): archives.place(  # type: ignore[misc]
                        place, kafka, it[0], first, "parquet", "year=2026", f"hour={it[1]}"
                    ),
                    archives.write_parquet_file,
                )
        p.run()
        retain_from(p, "menu", 40, 0)
        retain_from(p, "menu", 50, 1)
        other = again(p, archived(place, text, "format: parquet"))
        monkeypatch.setattr(files, "is_small", lambda *_: False)
        monkeypatch.setattr(record_tasks, "_LEAST_PER_TASK", 9)
        other.run()
        columns = ("partition", "offset", "fate", "key", "value", "timestamp")
        assert tuples(other.raw("logs/menu"), *columns) == tuples(p.raw("logs/menu"), *columns)
        assert len(p.raw("logs/menu")) == 2 * 45
        assert wrong(other) == []


VALUES = """
pipeline: archived
start: 2026-01-01
topics:
  sales:
    read: stream
    key: {shop: string}
    value: {amount: "decimal(20,4)", day: date, at: timestamp, shop_name: string}
    valid_time: at
    max_malformed: 1
    archive: {path: PATH, format: FORMAT, rows: value, key_in_value: true}
"""
SALE = {"shop": "north", "amount": Decimal("1234567890123456.0001"), "day": date(2026, 1, 2), "at": at(5)}


@pytest.mark.parametrize("format_", ["avro", "parquet"])
def test_values_that_connect_has_decoded_are_decoded_as_those_of_kafka(
    spark: SparkSession, broker: str, tmp_path: Path, format_: str
) -> None:
    place = tmp_path / "archive"
    with pipeline(spark, broker, tmp_path, VALUES.replace("PATH", str(place)).replace("FORMAT", format_)) as p:
        path = archives.place(place, p.kafka("sales"), 0, 0, format_, "year=2026")
        rows = [{**SALE, "shop": shop} for shop in ("north", "south")]
        if format_ == "parquet":
            kinds = [pa.string(), pa.decimal128(20, 4), pa.date32(), pa.timestamp("ms", "UTC")]
            pq.write_table(pa.Table.from_pylist(rows, pa.schema(zip(SALE, kinds, strict=True))), path)
        else:
            kinds = [
                "string",
                {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
                {"type": "int", "logicalType": "date"},
                {"type": "long", "logicalType": "timestamp-millis"},
            ]
            fields = [{"name": name, "type": kind} for name, kind in zip(SALE, kinds, strict=True)]
            with path.open("wb") as out:
                fastavro.writer(out, {"type": "record", "name": "Sale", "fields": fields}, rows, "deflate")
        value = {"amount": "1234567890123456.0001", "day": "2026-01-02", "at": at(5).isoformat()}
        p.send("sales", *((shop, {}, 0) for shop in ("x", "x")), ("north", value, 9))
        retain_from(p, "sales", 2)
        report = p.run()
        assert report["topics"]["sales"]["partitions"][0]["fates"] == {"accepted": 3}
        found = sorted(p.raw("sales"), key=lambda row: int(row["_offset"]))
        assert [tuple(row[name] for name in SALE) for row in found] == [
            tuple({**SALE, "shop": shop}.values()) for shop in ("north", "south", "north")
        ]
        assert wrong(p) == []


def test_an_interval_ends_and_a_stream_begins_within_the_archive(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """In chunks, whatever is in files and in Kafka; offsets that earlier runs took are passed over."""
    text = CONTRACT.replace("table", "stream").replace("arrival: header sent", "from: 2026-01-01T00:00:02")
    with pipeline(spark, broker, tmp_path, text) as p, pytest.MonkeyPatch.context() as patch:
        send(p)
        place = tmp_path / "archive"
        archives.write_files(
            archives.read_kafka(p, "menu"),
            3,
            lambda first: archives.place(place, p.kafka("menu"), 0, first, "parquet"),
            archives.write_parquet_file,
        )
        retain_from(p, "menu", 8)
        patch.setenv("HINDCAST_CHUNK", "3")
        other = again(p, archived(place, text, "format: parquet"))
        other.run(until=6)
        assert [offset for offset, _ in other.fates("menu")] == [2, 3, 4, 5]
        other.run(until=7)
        assert [offset for offset, _ in other.fates("menu")] == [2, 3, 4, 5, 6]
        other.run(until=9)
        assert [offset for offset, _ in other.fates("menu")] == [2, 3, 4, 5, 6, 7, 8]
        other.run()
        assert [offset for offset, _ in other.fates("menu")] == [*range(2, 10)]
        assert wrong(other) == []


def test_an_archive_that_is_of_another_topic_is_refused(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        place = tmp_path / "archive"
        other = again(p, archived(place, CONTRACT))
        with pytest.raises(TopicError, match="the archive cannot be listed"):
            other.run()
        path = archives.place(place, p.kafka("menu"), 3, 0, "json")
        write_json(path, [])
        with pytest.raises(TopicError, match="the archive has partition 3, and the topic in Kafka has 1 partition"):
            other.run()
        path.unlink()
        path = archives.place(place, p.kafka("menu"), 0, 11, "json")
        write_json(path, [])
        with pytest.raises(TopicError, match="the archive goes on at offset 11, and Kafka ends at 10") as refused:
            other.run()
        assert refused.value.where == f"{place}, {path.relative_to(place)}"
        assert other.states() == []


def test_a_row_that_a_task_cannot_read_is_named(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        place = tmp_path / "archive"
        path = archives.place(place, p.kafka("menu"), 0, 0, "json")
        rows = [archives.to_base64(it) for it in archives.read_kafka(p, "menu")[:8]]
        archives.write_json_file(path, [*rows[:3], {**rows[3], "key": "?"}, *rows[4:]])
        retain_from(p, "menu", 8)
        monkeypatch.setattr(files, "is_small", lambda *_: False)
        other = again(p, archived(place, CONTRACT, "format: json, base64: [key, value, headers]"))
        for _ in range(2):
            with pytest.raises(TopicError, match="the archive cannot be read: its key cannot be read") as refused:
                other.run("first")
            topic = f"topic {p.kafka('menu')}, partition 0"
            named = f"{place}, {path.relative_to(place)}, {topic}, row 3 (the first is 0), offset 3 or later"
            assert refused.value.where == named
            assert other.raw("logs/menu") == []
        archives.write_json_file(path, rows)
        other.run("first")
        assert len(other.fates("menu")) == 10
