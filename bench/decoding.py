"""What decoding a record costs, beside Spark's own parser, which looks at nothing: processor time of Spark.

    .venv/bin/python bench/decoding.py [--records 300000] [--out bench/results/decoding.json]

Records as a replay has them, from Parquet to nowhere on one core: decoded (`decode_records`, with key, fate and
reason), and, in turns with it, read by `from_json` or `from_avro` alone into the same columns, which is the floor.
Microseconds a record, the best of three rounds, less what it takes to read the records; and how many times the floor it
is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

from hindcast.common.session import open_session
from hindcast.contract import Topic
from hindcast.contract.avro_file import AvroFile
from hindcast.formats.spark_decoding import decode_records

ROUNDS = 4
"""The first warms up."""

LATEST = datetime(2030, 1, 1, tzinfo=UTC)
RESULTS = Path(__file__).parent / "results" / "decoding.json"

SMALL = {"quantity": "int", "note": "string"}
PRICED = {"price": "decimal(8,2)", **SMALL}
DATED = {**PRICED, "at": "timestamp"}
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "JSON, int and text": ("json", SMALL),
    "and a decimal": ("json", PRICED),
    "and a timestamp": ("json", DATED),
    "JSON, 20 decimals": ("json", {f"n{n}": "decimal(8,2)" for n in range(20)}),
    "JSON, 40 decimals": ("json", {f"n{n}": "decimal(8,2)" for n in range(40)}),
    "Avro, the first four columns": ("avro", DATED),
}
AVRO = {
    "decimal(8,2)": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        spark = open_session("hindcast-bench-decoding", {"spark.master": "local[1]"})
        for n, (name, (form, columns)) in enumerate(CASES.items()):
            records = made(spark, form, columns, args.records, f"{folder}/{n}")
            reading, floor, decoding = (
                best / args.records
                for best in bests(records, plain(records, form, columns), decoded(records, form, columns))
            )
            floor, decoding = floor - reading, decoding - reading
            told[name] = {"floor": round(floor, 2), "decoded": round(decoding, 2), "ratio": round(decoding / floor, 2)}
            print(f"{name:30} {floor:7.2f} {decoding:7.2f} us a record, {decoding / floor:5.2f} times", flush=True)
        spark.stop()
    found = {"records": args.records, "microseconds": told}
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def made(spark: SparkSession, form: str, columns: dict[str, str], rows: int, folder: str) -> DataFrame:
    """Records as `replay` has them."""
    values = F.struct(*(_value(kind, n).alias(name) for n, (name, kind) in enumerate(columns.items())))
    value = F.to_json(values).cast("binary") if form == "json" else to_avro(values, _avro(columns))
    spark.range(rows).select(
        F.lit(0).alias("partition"),
        F.col("id").alias("offset"),
        F.timestamp_seconds(F.lit(1_767_225_600) + F.col("id")).alias("timestamp"),
        F.lit(0).alias("timestampType"),
        F.concat(F.lit("item-"), F.col("id") % 10_000).cast("binary").alias("key"),
        value.alias("value"),
        F.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
    ).write.parquet(folder)
    return spark.read.parquet(folder)


def plain(records: DataFrame, form: str, columns: dict[str, str]) -> DataFrame:
    """The value alone, as Spark reads it."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    if form == "json":
        return records.withColumn("value", F.from_json(F.col("value").cast("string"), kinds))
    return records.withColumn("value", from_avro("value", _avro(columns)))


def decoded(records: DataFrame, form: str, columns: dict[str, str]) -> DataFrame:
    told: dict[str, Any] = {"read": "table", "key": {"item": "string"}, "value": columns, "value_format": form}
    if form == "avro":
        told["value_schema"] = AvroFile(file="bench.avsc", text=_avro(columns))
    return decode_records(records, Topic.model_validate(told), LATEST)


def bests(*frames: DataFrame) -> list[float]:
    """The microseconds of processor that the JVM and its Python workers take for each of them, in turns."""
    rounds = [[_taken(frame) for frame in frames] for _ in range(ROUNDS)]
    return [min(took) for took in zip(*rounds[1:], strict=True)]


def _taken(frame: DataFrame) -> float:
    before = _processor_time()
    frame.write.format("noop").mode("overwrite").save()
    return 1e6 * (_processor_time() - before)


def _processor_time() -> float:
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(it.user + it.system for it in times)


def _value(kind: str, n: int) -> Column:
    number = F.pmod(F.xxhash64(F.col("id"), F.lit(n)), F.lit(99_999_999))
    match kind:
        case "int":
            return F.pmod(number, F.lit(77)).cast("int")
        case "timestamp":
            return F.timestamp_seconds(F.lit(1_767_225_600) + number % 1_000_000)
        case "string":
            return F.lit("some text of a record")
    return (number / 100).cast(kind)


def _avro(columns: dict[str, str]) -> str:
    fields = [{"name": name, "type": AVRO.get(kind, kind)} for name, kind in columns.items()]
    return json.dumps({"type": "record", "name": "Value", "fields": fields})


if __name__ == "__main__":
    main()
