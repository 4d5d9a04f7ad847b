"""`make bench-quick`: the same operations on a tenth of the data, each beside a floor job that never changes.

The floor is a plain copy of the events, Delta to Delta. In each round it runs once, then every operation; what counts
is an operation's seconds by those of the floor in the same round, so that a slow machine slows down both. The recorded
baseline has these ratios. An operation is slower (or faster) than the baseline if none of its ratios lies within the
baseline's range; by how much the medians tell.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.speed import data, engines, inputs, views
from bench.speed.names import HOT, UNIFORM, ZIPF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BASELINE = Path(__file__).parents[1] / "results" / "quick.json"
ROUNDS, MEMORY = 5, "4g"
Ratios = Mapping[str, Sequence[float]]
"""By operation, of each round."""


def main(folder: Path, *, record: bool) -> int:
    """Measures, checks, and compares with the baseline, or records it; exit code 1 if anything is slower."""
    from hindcast.common.session import open_session

    spark = open_session("hindcast-bench-quick", {"spark.driver.memory": MEMORY})
    spark.sparkContext.setLogLevel("ERROR")
    ratios = measured(spark, inputs.inputs(folder, data.QUICK))
    if record or not BASELINE.exists():
        kept = {name: [round(it, 3) for it in of] for name, of in ratios.items()}
        BASELINE.write_text(json.dumps({"sizes": data.QUICK.text, "ratios": kept}, indent=1) + "\n", encoding="utf-8")
        print(f"recorded in {BASELINE}")
        return 0
    before = json.loads(BASELINE.read_text(encoding="utf-8"))["ratios"]
    print("\n".join(told(before, ratios)))
    return int(any((changed(before[name], of) or 1) > 1 for name, of in ratios.items() if name in before))


def changed(before: Sequence[float], now: Sequence[float]) -> float | None:
    """By how much a ratio has grown (or shrunk, below 1); None if the ranges meet: that is noise."""
    if min(now) <= max(before) and min(before) <= max(now):
        return None
    return statistics.median(now) / statistics.median(before)


def told(before: Ratios, now: Ratios) -> list[str]:
    """A line for each operation."""
    lines = [f"{'times the floor job':24} {'baseline':>22} {'now':>22}"]
    for name, of in now.items():
        if name not in before:
            lines.append(f"{name:24} {'':22} {format_range(of):>22}  new")
            continue
        times = changed(before[name], of)
        how = "as before" if times is None else f"{'SLOWER' if times > 1 else 'faster'}: {times:.2f} times"
        lines.append(f"{name:24} {format_range(before[name]):>22} {format_range(of):>22}  {how}")
    return lines


def measured(spark: SparkSession, place: inputs.Inputs) -> dict[str, list[float]]:
    """The ratios of all operations; the first round warms up, and its results are checked against DuckDB's."""
    from bench.speed import of_table, stream_table, table_table

    some = [(stream_table, kind) for kind in (UNIFORM, ZIPF, HOT)] + [(table_table, UNIFORM), (of_table, UNIFORM)]
    operations = [module.operation(spark, place, kind, full=False) for module, kind in some]
    floor = views.on_spark(spark, "floor", lambda rows: rows, rows=place.table(UNIFORM, "events"))
    ratios: dict[str, list[float]] = {f"{it.code} {it.data}": [] for it in operations}
    output = place.folder / "output"
    for number in range(ROUNDS + 1):
        copied = time_run(output, floor.before, floor.run)
        for it in operations:
            ours, _, duckdb = it.contestants
            assert ours.output is not None
            took = time_run(ours.output, ours.before, ours.run)
            if number == 0:
                time_run(output, None, duckdb.run)
                contents = [engines.content(at, it.columns) for at in (ours.output, output)]
                assert contents[0].same_as(contents[1]), f"{it.code} {it.data}: {contents[0].differs(contents[1])}"
            else:
                ratios[f"{it.code} {it.data}"].append(took / copied)
        print(f"round {number} of {ROUNDS}: the floor took {copied:.2f} s", flush=True)
    shutil.rmtree(output, ignore_errors=True)
    return ratios


def time_run(output: Path, before: Callable[[], object] | None, run: Callable[[Path], object]) -> float:
    shutil.rmtree(output, ignore_errors=True)
    if before is not None:
        before()
    begun = time.monotonic()
    run(output)
    return time.monotonic() - begun


def format_range(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"
