"""What partitions cost a plan, and what a large topic takes of memory when it is replayed in chunks.

    PYTHONPATH=.:jobs:tools:scripts:tests .venv/bin/python bench/scale.py \\
        [--records 5000000] [--chunk 2000000] [--memory 1g]

Starts a broker of its own. Plans a run over topics of one and of 200 partitions, a third of these empty, in turns, and
gives the medians of seven. Then a process replays a topic of so many records, those of operation e, into log and table
with a Spark driver of so much heap, and another one copies their bytes to Delta, as there. Gives the peak of the heap,
and of the memory that is resident in all processes of the step together, with what each kind had then (proportional
set sizes: what forked processes share counts once). Checks that every offset has one fate. Writes
bench/results/scale.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import java_for_tests
import psutil

from bench.speed.replaying import copy_bytes, draw_records
from hindcast.common.session import open_session
from hindcast.common.settings import read_settings
from hindcast.ingest import ledger
from hindcast.kafka import produce
from hindcast.plan import journal, planner
from hindcast.plan.marks import find_bound_contract
from hindcast.runs import run_steps
from hindcast.store import tables
from hindcast_local.broker import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = datetime(2026, 1, 1, tzinfo=UTC)
ONE, MANY, ROUNDS = 1, 200, 7
CONTRACT = """
pipeline: {name}
start: 2026-01-01
topics:
  prices:
    topic: {name}
    read: table
    key: {{item: string}}
    value: {{price: int, category: int, note: string}}
    history_retention: 1 day
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--chunk", type=int, default=2_000_000)
    parser.add_argument("--memory", default="1g")
    parser.add_argument("--step", choices=("replay", "copy"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        (replay if args.step == "replay" else copy)(args.memory)
        return
    with tempfile.TemporaryDirectory() as folder, run_broker(Path(folder) / "broker") as servers:
        (Path(folder) / "schemas").mkdir()
        os.environ |= {"HINDCAST_VAR": f"{folder}/var", "HINDCAST_SCHEMAS": f"{folder}/schemas"}
        os.environ |= {"HINDCAST_KAFKA": servers, "HINDCAST_CHUNK": str(args.chunk)}
        told = {"planning": planned(servers), "replay": replayed(servers, args.records, args.memory)}
        told["replay"] |= {"records": args.records, "chunk": args.chunk, "driver memory": args.memory}
    (Path(__file__).parent / "results" / "scale.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def planned(servers: str) -> dict[str, Any]:
    """Seconds that a plan takes of a first run, without a bound and with one."""
    seconds: dict[str, list[float]] = {}
    for partitions in (ONE, MANY):
        contract(f"of{partitions}")
        produce.create_topics(servers, f"of{partitions}", partitions=partitions)
        produce.send_records(servers, f"of{partitions}", draw_records(220))
    for _ in range(ROUNDS):
        for partitions in (ONE, MANY):
            for bound, end in (("all", None), ("an interval", T0 + timedelta(days=91))):
                made, started = find_bound_contract(read_settings(), f"of{partitions}"), time.monotonic()
                plan = planner.propose_plan(made, "bench", end, [])
                took = time.monotonic() - started
                seconds.setdefault(f"{partitions}, {bound}", []).append(took)
    empty = sum(r.end == r.start for r in plan.topics["prices"].ranges.values())
    medians = {name: round(statistics.median(took), 3) for name, took in seconds.items()}
    print(f"plans over {ONE} and {MANY} partitions, {empty} of these empty: {medians} s", flush=True)
    return {"partitions": MANY, "empty": empty, "seconds": medians}


def replayed(servers: str, count: int, memory: str) -> dict[str, Any]:
    """A run that brings so many records of four partitions, beside Spark copying their bytes to Delta."""
    contract("large")
    produce.create_topics(servers, "large", partitions=4)
    started = time.monotonic()
    produce.send_records(servers, "large", draw_records(count))
    print(f"{count:,} records sent in {time.monotonic() - started:.0f} s", flush=True)
    result, peaks = run_step("replay", memory)
    copied, _ = run_step("copy", memory)
    assert copied["rows"] == count
    log = tables.log_table(read_settings().warehouse, "large", "prices")
    pieces = ledger.read_ingested_ranges(log)
    assert sum(it.end - it.start for it in pieces) == sum(sum(it.fates.values()) for it in pieces) == count
    assert tables.count_rows(log) == count
    assert len(journal.read_completed_runs(read_settings().warehouse, "large")) == 1
    peaks["heap"] = result["heap"]
    chunks = len(journal.read_runs(read_settings().warehouse, "large")[0].plan.topics["prices"].chunks)
    rows, took, ratio = result["rows"], result["seconds"], result["seconds"] / copied["seconds"]
    print(f"{count:,} records in {chunks} chunks, {rows:,} rows: {took:.0f} s, {ratio:.2f} times", end=" ")
    print(f"{copied['seconds']:.0f} s of a copy of the bytes; peaks in MiB: {peaks}", flush=True)
    seconds = {"seconds": round(took), "seconds of a copy": round(copied["seconds"]), "ratio": round(ratio, 2)}
    return {"chunks": chunks, "rows": rows, **seconds, "peaks in MiB": peaks}


def run_step(name: str, memory: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what a process of its own printed of a step, and its peaks of memory."""
    command = [sys.executable, __file__, "--step", name, "--memory", memory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as step:
        peaks = watch_memory(step)
        assert step.stdout
        return json.loads(step.stdout.read().splitlines()[-1]), peaks


def replay(memory: str) -> None:
    """Plan and replay the topic, and print what it took as JSON."""
    spark = open_spark(memory)
    started = time.monotonic()
    number = run_steps.plan_run(read_settings(), "large", "bench")
    run_steps.replay_topic(spark, read_settings(), "large", number, "prices")
    took = time.monotonic() - started
    report = run_steps.finish_run(read_settings(), "large", number)
    print(json.dumps({"seconds": took, "rows": report.tables["prices"].opened, "heap": heap(spark)}))
    spark.stop()


def copy(memory: str) -> None:
    """Copy the topic's bytes to Delta by Spark alone, and print what it took as JSON."""
    connector = ",".join(map(str, java_for_tests.connector()))
    spark, target = open_spark(memory, {"spark.jars": connector}), os.environ["HINDCAST_VAR"] + "/copy"
    started = time.monotonic()
    copy_bytes(spark, os.environ["HINDCAST_KAFKA"], "large", target)
    took = time.monotonic() - started
    print(json.dumps({"seconds": took, "rows": spark.read.format("delta").load(target).count()}))
    spark.stop()


def open_spark(memory: str, conf: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    sizes = {"spark.driver.memory": memory, "spark.master": "local[2]"}
    return open_session("hindcast-bench-scale", sizes | dict(conf))


def watch_memory(step: subprocess.Popen[str]) -> dict[str, int]:
    """Return the peak of what is resident in a process and those that it starts, and each kind's part of it, in MiB."""
    peak, most = {"all": 0}, 0
    while step.poll() is None:
        with suppress(psutil.Error):
            first = psutil.Process(step.pid)
            processes = [first, *first.children(recursive=True)]
            # What is shared is counted only at new peaks: to walk through all pages twice a second takes a
            # twentieth of the machine.
            size = sum(map(measure_resident, processes))
            if size > most:
                most, parts = size, {"all": 0, "step": 0, "JVM": 0, "workers": 0}
                for process in processes:
                    with suppress(psutil.Error):
                        kind = "step" if process.pid == step.pid else "JVM" if process.name() == "java" else "workers"
                        parts[kind] += process.memory_full_info().pss >> 20
                parts["all"] = sum(parts.values())
                peak = max(peak, parts, key=lambda it: it["all"])
        time.sleep(0.25)
    return {f"resident, {kind}": size for kind, size in peak.items()}


def measure_resident(process: psutil.Process) -> int:
    """Return what is resident in a process, with what it shares; 0 if it has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def contract(name: str) -> None:
    (read_settings().schemas / f"{name}.yaml").write_text(CONTRACT.format(name=name), encoding="utf-8")


def heap(spark: SparkSession) -> int:
    """The peak of what the JVM's heap held, in MiB."""
    jvm: Any = spark._jvm  # noqa: SLF001  # there is no other way
    factory = jvm.java.lang.management.ManagementFactory
    pools = [pool for pool in factory.getMemoryPoolMXBeans() if pool.getType().toString() == "Heap memory"]
    return int(sum(pool.getPeakUsage().getUsed() for pool in pools)) >> 20


if __name__ == "__main__":
    main()
