"""Archives of topics for tests: records of the real broker in files as sinks of Kafka Connect lay them out."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.kafka.cluster import Cluster
from hindcast.kafka.topics import OffsetRange
from pipelines import Pipeline

Record = dict[str, Any]


def read_kafka(p: Pipeline, topic: str, partition: int = 0) -> list[Record]:
    """The records that Kafka has of a partition now, as the broker gives them."""
    kafka = p.kafka(topic)
    with Cluster(p.servers) as cluster:
        ranges = {partition: cluster.read_offset_ranges(kafka)[partition]}
        return pa.Table.from_batches([*cluster.read_batches(kafka, ranges)]).to_pylist() if any(_sizes(ranges)) else []


def _sizes(ranges: Mapping[int, OffsetRange]) -> list[int]:
    return [r.end - r.start for r in ranges.values()]


def place(folder: Path, kafka: str, partition: int, first: int, ending: str, *between: str) -> Path:
    """The file that Confluent's sink would write; `between`: what a partitioner puts before it."""
    under = between or (f"partition={partition}",)
    path = folder.joinpath("topics", kafka, *under, f"{kafka}+{partition}+{first:010}.{ending}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_json_file(path: Path, rows: Sequence[Any]) -> None:
    """One object on each line; texts as they are."""
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def to_json(record: Record) -> Record:
    """A record as Aiven's sink writes one of a StringConverter's key and a JsonConverter's value."""
    value = record["value"]
    headers = [{"key": it["key"], "value": it["value"].decode()} for it in record["headers"] or ()]
    return {
        "key": None if record["key"] is None else record["key"].decode(),
        "value": None if value is None else json.loads(value),
        "offset": record["offset"],
        "timestamp": record["timestamp"].isoformat().replace("+00:00", "Z"),
        "headers": headers,
    }


def to_base64(record: Record) -> Record:
    """A record whose key, value and headers are base64."""
    told = {name: None if (it := record[name]) is None else base64.b64encode(it).decode() for name in ("key", "value")}
    headers = [{"key": it["key"], "value": base64.b64encode(it["value"]).decode()} for it in record["headers"] or ()]
    return {**told, "offset": record["offset"], "timestamp": _millis(record["timestamp"]), "headers": headers}


def write_parquet_file(path: Path, records: Sequence[Record]) -> None:
    """Records whose keys and values are bytes, and headers a map."""
    columns = {
        "key": pa.array([it["key"] for it in records], pa.binary()),
        "value": pa.array([it["value"] for it in records], pa.binary()),
        "offset": pa.array([it["offset"] for it in records], pa.int64()),
        "timestamp": pa.array([it["timestamp"] for it in records], pa.timestamp("ms", "UTC")),
        "headers": pa.array(
            [[(h["key"], h["value"]) for h in it["headers"] or ()] for it in records], pa.map_(pa.string(), pa.binary())
        ),
    }
    pq.write_table(pa.table(columns), path)


def write_files(
    records: Sequence[Record], size: int, name: Callable[[int], Path], write: Callable[[Path, Sequence[Record]], None]
) -> None:
    """Files of so many records each, named by the first offset."""
    for start in range(0, len(records), size):
        some = records[start : start + size]
        write(name(some[0]["offset"]), some)


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
