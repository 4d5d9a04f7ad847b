"""What many as-known dates of a rehearsal cost beside one: the same records, rehearsed into one date and into many.

    PYTHONPATH=jobs .venv/bin/python bench/rehearsal.py [--records 10000000] [--dates 365] [--routes 50000] [--of all]

The records are those of a log, as `hindcast rehearse --into` reads them: of ten two are prices and eight are trips,
over a year. Each arrives some minutes after it is true; one in a hundred some days after. A trip is joined with the
price of its route, and an aggregate counts and sums the prices of each zone; each table has a row-wise stop gate and a
row-wise quarantine gate, which all rows pass.

Writes bench/results/rehearsal.json: seconds and bytes of data files of one date and of many, `time_ratio`, and
`bytes_ratio`: the bytes of the tables to those of the same rows written once, sorted, in one commit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

CONTRACT = """
pipeline: rehearsal
start: 2024-01-01
topics:
  prices:
    read: table
    key: {route: string}
    value: {price: int, zone: int}
    arrival: header sent
    expect: &gates
      - expect_column_values_to_not_be_null: {column: route}
      - expect_column_values_to_not_be_null: {column: route, row_condition: route <> ''}
        on_failure: quarantine
  trips:
    read: stream
    key: {trip: string}
    value: {route: string, n: int}
    arrival: header sent
    expect: *gates
views:
  revenue:
    stream: trips
    join: {table: prices, on: trips.route}
    select: {route: trips.route, amount: n * price}
    expect: *gates
  zones:
    table: prices
    aggregate: {routes: count(*), worth: sum(price)}
    group_by: {zone: zone}
    expect:
      - expect_column_values_to_not_be_null: {column: zone}
      - expect_column_values_to_be_between: {column: routes, min_value: 0}
        on_failure: quarantine
"""
T0 = datetime(2024, 1, 1, tzinfo=UTC)
YEAR = 365 * 86_400_000_000
PARTITIONS = 2
RESULTS = Path(__file__).parent / "results" / "rehearsal.json"


def main() -> None:
    """Measures one date and many, and writes the results."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--records", type=int, default=10_000_000)
    options.add_argument("--dates", type=int, default=365)
    options.add_argument("--routes", type=int, default=50_000)
    options.add_argument("--of", choices=["one", "many", "both"], default="both")
    options.add_argument("--memory", default="6g")
    options.add_argument("--chunk", type=int, default=12_000_000, help="the most records of a pass")
    options.add_argument("--folder", type=Path, default=Path("/tmp/bench-rehearsal"))  # noqa: S108  # a bench's own
    options.add_argument("--out", type=Path, default=RESULTS)
    options.add_argument("--profile", action="store_true")
    told = options.parse_args()
    shutil.rmtree(told.folder, ignore_errors=True)
    (told.folder / "schemas").mkdir(parents=True)
    (told.folder / "schemas" / "rehearsal.yaml").write_text(CONTRACT.lstrip(), encoding="utf-8")
    settings = {"SCHEMAS": told.folder / "schemas", "VAR": told.folder / "var", "CHUNK": told.chunk}
    os.environ |= {f"HINDCAST_{name}": str(value) for name, value in settings.items()}

    from hindcast.common.session import open_session

    spark = open_session("hindcast-bench-rehearsal", {"spark.driver.memory": told.memory})
    spark.sparkContext.setLogLevel("ERROR")
    begun = time.monotonic()
    write_logs(told)
    print(f"made {told.records:,} records in {time.monotonic() - begun:.1f} s", flush=True)
    which = {"one": [1], "many": [told.dates], "both": [1, told.dates]}[told.of]
    found = {dates: measure(spark, told, dates) for dates in which}
    result: dict[str, Any] = {"records": told.records, "dates": told.dates, "of": list(found.values())}
    if len(found) > 1:
        one, many = found.values()
        result["time_ratio"] = round(many["seconds"] / one["seconds"], 2)
        result["bytes_ratio"] = round(many["bytes"] / many["sorted_bytes"], 2)
    told.out.parent.mkdir(parents=True, exist_ok=True)
    told.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name.endswith("ratio")}))


def measure(spark: Any, told: argparse.Namespace, dates: int) -> dict[str, Any]:
    """A rehearsal of the year in so many dates."""
    from hindcast.common.settings import read_settings
    from hindcast.common.step_events import send_events_to
    from hindcast.runs import rehearsal

    warehouse = told.folder / f"warehouse-{dates}"
    os.environ["HINDCAST_WAREHOUSE"] = str(warehouse)
    intervals = [*rehearsal.list_intervals(T0, T0 + timedelta(days=366), f"{366 * 86_400_000 // dates} ms")][:dates]
    steps: list[tuple[str, float]] = []

    def listen(event: Any) -> None:
        if event["event"] == "step ended":
            name = " ".join(filter(None, (event["step"], event.get("table"))))
            steps.append((name, event["seconds"]))

    begun = time.monotonic()
    cpu = time.process_time()
    with send_events_to(listen):
        made = rehearsal.rehearse_runs(
            spark, read_settings(), "rehearsal", intervals, with_earlier=True, given=open_logs(told)
        )
        if told.profile:
            import cProfile

            profile = cProfile.Profile()
            count = profile.runcall(lambda: sum(1 for _ in made))
            profile.dump_stats(told.folder / f"profile-{dates}")
        else:
            count = sum(1 for _ in made)
    seconds = time.monotonic() - begun
    sizes = measure_tables(told, warehouse)
    found = {"dates": count, "seconds": round(seconds, 1), "cpu": round(time.process_time() - cpu, 1), **sizes}
    print(json.dumps(found), flush=True)
    print([step for step in steps if step[1] > 1][:40], flush=True)
    return found


def measure_tables(told: argparse.Namespace, warehouse: Path) -> dict[str, Any]:
    """The bytes of the current data files of all tables, and of the same rows written once, sorted, in one commit."""
    from deltalake import DeltaTable

    from hindcast.store import arrow_reader, files

    sizes = {"bytes": 0, "sorted_bytes": 0, "rows": 0}
    for name, start in (
        ("prices", "validFrom"),
        ("trips", "timestamp"),
        ("revenue", "timestamp"),
        ("zones", "validFrom"),
    ):
        found = DeltaTable(str(warehouse / "rehearsal" / name))
        added = pa.table(found.get_add_actions(flatten=True))
        sizes["bytes"] += pc.sum(added["size_bytes"]).as_py() or 0
        sizes["rows"] += pc.sum(added["num_records"]).as_py() or 0
        rows = arrow_reader.read_rows(found).read_all().combine_chunks()
        rows = rows.take(pc.sort_indices(rows.column(start)))
        copy = told.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        written = files.write_files(found, [("copy", rows)])
        sizes["sorted_bytes"] += sum(file.size for file in written)
    return sizes


def _write(numbers: Any) -> Any:
    """The numbers as texts."""
    return pa.array(numbers).cast(pa.string())


def open_logs(told: argparse.Namespace) -> Any:
    """The topics, as the logs have them."""
    from hindcast.ingest.logged_topics import LoggedTopic, LoggedTopics
    from hindcast.kafka.topics import OffsetRange

    numbers = {partition: partition for partition in range(PARTITIONS)}
    topics = {}
    for name, count in count_records(told.records).items():
        ranges = {p: OffsetRange(0, count // PARTITIONS) for p in numbers}
        topics[name] = LoggedTopic(name, f"id-{name}", None, ranges, numbers, 0)
    return LoggedTopics(str(told.folder / "logs"), "source", topics)


def count_records(records: int) -> dict[str, int]:
    return {"prices": records // 5, "trips": records - records // 5}


def write_logs(told: argparse.Namespace) -> None:
    """The records of both topics into logs, as if a run had ingested them."""
    chance = np.random.default_rng(1)
    for name, count in count_records(told.records).items():
        for partition in range(PARTITIONS):
            write_partition(told, name, partition, count // PARTITIONS, chance)


def write_partition(told: argparse.Namespace, name: str, partition: int, count: int, chance: Any) -> None:
    from deltalake import write_deltalake

    from hindcast.kafka.record_batches import SCHEMA
    from hindcast.store import tables

    table = tables.log_table(str(told.folder / "logs"), "source", name)
    late = np.where(
        chance.random(count) < 0.01, chance.exponential(5 * 86_400e6, count), chance.exponential(6e8, count)
    )
    true = np.sort(chance.integers(0, YEAR, count))
    arrived = true + late.astype(np.int64)
    order = np.argsort(arrived, kind="stable")
    true, arrived = true[order], arrived[order]
    route = PARTITIONS * chance.integers(0, told.routes // PARTITIONS, count) + partition
    numbers = chance.integers(1, 500, count)
    of = pc.binary_join_element_wise("r", _write(route), "")
    if name == "prices":
        keys = of
        values = pc.binary_join_element_wise(
            '{"price": ', _write(numbers), ', "zone": ', _write(route % 1_000), "}", ""
        )
    else:
        keys = pc.binary_join_element_wise("t", _write(np.arange(count) * PARTITIONS + partition), "")
        values = pc.binary_join_element_wise('{"route": "', of, '", "n": ', _write(numbers % 5 + 1), "}", "")
    epoch = int(T0.timestamp() * 1_000_000)
    sent = pa.array((arrived + epoch) // 1_000).cast(pa.string()).cast(pa.binary())
    header = pa.StructArray.from_arrays([pa.array(np.full(count, "sent")).cast(pa.string()), sent], ["key", "value"])
    moments = pa.array((true + epoch) // 1_000 * 1_000).cast(pa.timestamp("us", "UTC"))
    rows = pa.table(
        {
            "topicId": pa.repeat(f"id-{name}", count),
            "epoch": pa.repeat(pa.scalar(0, pa.int32()), count),
            "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
            "offset": pa.array(np.arange(count)),
            "offsets": pa.repeat(pa.scalar(1, pa.int64()), count),
            "timestamp": moments,
            "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
            "key": keys.cast(pa.binary()),
            "value": values.cast(pa.binary()),
            "headers": pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), header).cast(
                SCHEMA.field("headers").type
            ),
            "fate": pa.repeat("accepted", count),
        }
    )
    for first in range(0, count, 500_000):
        write_deltalake(
            table.path,
            rows.slice(first, 500_000),
            mode="append",
            name=f"{table.pipeline}.{table.name}",
            description=table.description,
        )


if __name__ == "__main__":
    main()
