"""`make bench`: measures, stores, and prints what was asked for beside what was measured.

    PYTHONPATH=jobs:scripts:tests .venv/bin/python -m bench.speed [a b c d e f g h i j k] [--rounds 3] [--memory 10g]
        [--data uniform,zipf] [--peers all|few] [--profile] [--sizes EVENTS,VERSIONS,KEYS] [--out FILE]

Inputs are kept in `--folder` and taken again. Results go to bench/results/speed.json, those that were measured now in
the place of the same ones, and the picture to docs/pictures/speed.svg. With `--profile` nothing is stored: it says
where the time goes. `--quick`: see bench/speed/quick.py.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import java_for_tests

from bench.speed import data, inputs, measuring, plot, profiling, quick, table
from bench.speed.measuring import Measured, Watch
from bench.speed.names import HOT, UNIFORM, WINDOWS, ZIPF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PICTURE = ROOT / "bench" / "results" / "speed.json", ROOT / "docs" / "pictures" / "speed.svg"
CODES = "abcdefghijk"
MILLIONS = 20


def main() -> int:
    """Measures what is asked for; exit code 1 where `--quick` finds a slow-down."""
    parser = argparse.ArgumentParser(prog="bench.speed", description=__doc__)
    parser.add_argument("operations", nargs="*", help="of a to k (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="10g", help="heap of Spark's driver")
    parser.add_argument("--data", default=f"{UNIFORM},{ZIPF}", help="how often keys come, for a, c, d and k")
    parser.add_argument("--peers", choices=("all", "few"), default="all", help="few: the floor and DuckDB")
    parser.add_argument("--sizes", help="events, versions and keys of views, for a try")
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "bench-speed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--profile", action="store_true", help="where the time goes; not for h")
    parser.add_argument("--quick", action="store_true", help="small data, against the recorded baseline")
    parser.add_argument("--record", action="store_true", help="with --quick: record the baseline")
    asked = parser.parse_args()
    asked.operations = asked.operations or list(CODES)
    if asked.sizes and asked.out == RESULTS and not asked.profile:
        parser.error("--sizes is for a try: say with --out where its results go")
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.quick:
        return quick.main(asked.folder, record=asked.record)
    sizes = data.Sizes(*map(int, asked.sizes.split(","))) if asked.sizes else data.FULL
    spark = _session(asked)
    if asked.profile:
        place = inputs.inputs(asked.folder, sizes)
        others = _others(spark, asked, sizes.versions / data.FULL.versions, profiling.functions)
        for code in asked.operations:
            if code in others:
                others[code]()
                continue
            for kind in asked.data.split(","):
                print("\n".join(profiling.profile(spark, place, code, kind, asked.folder / "events")), flush=True)
        return 0
    at = datetime.now(UTC).isoformat(timespec="seconds")
    every: list[table.Row] = []
    measured: list[Measured] = []
    for some in _measured(spark, asked, sizes):
        measured += some
        every = store(asked.out, table.rows(measured, sizes.text, at), picture=asked.out == RESULTS)
    print("\n".join(table.told(every)))
    return 0


def store(path: Path, new: list[table.Row], *, picture: bool) -> list[table.Row]:
    """Writes results, after each operation: what was measured until then is kept, whatever comes."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    every = table.merged(old, new)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    if picture:
        PICTURE.write_text(plot.svg(every), encoding="utf-8")
    return every


def _measured(spark: SparkSession, asked: argparse.Namespace, sizes: data.Sizes) -> Iterator[list[Measured]]:
    """Operation by operation."""
    from bench.speed import of_table, stream_stream, stream_table, streams, table_table, windows

    kinds, full = asked.data.split(","), asked.peers == "all"
    over_views = {
        "a": (stream_table, kinds),
        "b": (stream_table, [HOT]),
        "c": (table_table, kinds),
        "d": (of_table, kinds),
        "j": (windows, WINDOWS),
        "k": (stream_stream, [kind for kind in kinds if kind == UNIFORM]),  # of Zipf's most frequent key 10^11 pairs
    }
    for code in asked.operations:
        if code in over_views:
            module, of = over_views[code]
            if of and sizes == data.FULL and asked.rounds:  # warms up: nothing of it counts
                place = inputs.inputs(asked.folder, data.QUICK)
                measuring.measure(module.operation(spark, place, of[0], full=full), 1, place.folder, lambda _: None)
            for kind in of:
                place = inputs.inputs(asked.folder, sizes)
                operation = module.operation(spark, place, kind, full=full)
                print(f"{operation.code} {kind}: {operation.told}", flush=True)
                yield measuring.measure(operation, asked.rounds, place.folder)
                if code == "a" and full:
                    yield streams.measure(place, kind, asked.rounds)
        else:
            yield _others(spark, asked, sizes.versions / data.FULL.versions)[code]()


def _others(
    spark: SparkSession, asked: argparse.Namespace, scale: float, watch: Watch = measuring.unwatched
) -> dict[str, Callable[[], list[Measured]]]:
    """The operations that are not of views; `scale`: how much of their full size."""
    from bench.speed import growing, reading, replaying, small

    return {
        "e": lambda: replaying.measure(spark, asked.folder, asked.rounds, int(replaying.COUNT * scale), watch),
        "i": lambda: replaying.measure_forms(
            spark, asked.folder, asked.rounds, int(replaying.FORM_COUNT * scale), watch
        ),
        "f": lambda: growing.measure(spark, asked.folder, asked.rounds, scale, watch),
        "g": lambda: small.measure(spark, asked.folder, asked.rounds, watch),
        "h": lambda: reading.measure(asked.folder, MILLIONS * scale, asked.rounds),
    }


def _session(asked: argparse.Namespace) -> SparkSession:
    """Classic Spark in this process, on all cores, as Hindcast configures it."""
    from hindcast.common.session import open_session

    os.environ["HINDCAST_VAR"] = str(asked.folder / "var")
    conf = {"spark.driver.memory": asked.memory}
    if asked.profile:
        conf |= profiling.logged(asked.folder / "events")
    if set(asked.operations) & {"e", "i"}:
        conf["spark.jars"] = ",".join(map(str, java_for_tests.connector()))
    spark = open_session("hindcast-bench-speed", conf)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    raise SystemExit(main())
