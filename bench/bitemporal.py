"""What a history costs that was overwritten by corrections: a run and a question, before and after.

    PYTHONPATH=jobs:tools:scripts .venv/bin/python -m bench.bitemporal [--millions 1] [--times 5] [--records 100000]

A first run makes tables with so many million rectangles (increment.py). Then each record of the history comes once
more, of the same key and time, mostly with another value: `--times` times over, a run for each. Each leaves the rows
that it corrects as past beliefs, so there are up to so many times as many rows, of which no more than before are
current. Then this warehouse and a copy from before the corrections take turns: a run of `--records` records, and
questions about the price of a key at a moment. The first turn warms up.

Writes bench/results/bitemporal.json: medians in seconds with their range, rows, and the ratio of after to before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench import increment

RESULTS = Path(__file__).parent / "results" / "bitemporal.json"
ASKED = 50
"""Questions, of keys and moments far apart."""


def main() -> None:
    """Measures, and writes the results."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--millions", type=float, default=1, help="rectangles in the table of prices")
    options.add_argument("--times", type=int, default=5, help="how often the whole history is corrected")
    options.add_argument("--keys", type=int, default=100_000)
    options.add_argument("--records", type=int, default=100_000, help="records that a run brings")
    options.add_argument("--turns", type=int, default=7, help="turns that count")
    options.add_argument("--memory", default="10g")
    options.add_argument("--folder", type=Path, default=Path("var/bench-bitemporal"))
    options.add_argument("--out", type=Path, default=RESULTS)
    told = options.parse_args()
    told.evenly = False
    shutil.rmtree(told.folder, ignore_errors=True)
    (told.folder / "schemas").mkdir(parents=True)
    (told.folder / "schemas" / "increment.yaml").write_text(increment.CONTRACT.lstrip(), encoding="utf-8")
    os.environ["HINDCAST_SCHEMAS"] = str(told.folder / "schemas")
    os.environ["HINDCAST_VAR"] = str(told.folder / "var")

    from hindcast.common.session import open_session

    spark = open_session("hindcast-bench-bitemporal", {"spark.driver.memory": told.memory})
    spark.sparkContext.setLogLevel("ERROR")
    result = measure(spark, told)
    shutil.rmtree(told.folder / "warehouse")
    told.out.parent.mkdir(parents=True, exist_ok=True)
    told.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["ratios"]))


def measure(spark: SparkSession, told: argparse.Namespace) -> dict[str, Any]:
    """The runs and questions of two warehouses by turns: one whose history was corrected, and a copy from before."""
    from hindcast.common.session import override_conf
    from hindcast.contract import load

    contract = load(told.folder / "schemas" / "increment.yaml")
    warehouses = {when: told.folder / "warehouse" / when for when in ("before", "after")}
    history = int(told.millions * 1_000_000 * 10 / increment.SHARES["prices"])
    choose_warehouse(warehouses["after"])
    with override_conf(spark, {"spark.sql.shuffle.partitions": "32"}):
        print("run 1:", increment.run(spark, told, contract, 1, (0, history), late=False), flush=True)
        shutil.copytree(warehouses["after"], warehouses["before"])
        for n in range(told.times):
            begun, end = time.monotonic(), history * (n + 1)
            steps = increment.run(spark, told, contract, n + 2, (end, end + history), late=False, behind=end)
            print(f"correction {n + 1}: {time.monotonic() - begun:.1f} s {steps}", flush=True)
    next_run = {"before": (2, history), "after": (told.times + 2, history * (told.times + 1))}
    behind = {"before": 0, "after": history * told.times}  # so both get records of the same times
    runs: dict[str, list[float]] = {when: [] for when in warehouses}
    questions: dict[str, list[float]] = {when: [] for when in warehouses}
    for _ in range(told.turns + 1):
        for when, warehouse in warehouses.items():
            choose_warehouse(warehouse)
            (number, end), begun = next_run[when], time.monotonic()
            span = end, end + told.records
            increment.run(spark, told, contract, number, span, late=True, behind=behind[when])
            runs[when].append(time.monotonic() - begun)
            questions[when].append(statistics.median(ask(told, contract, history)))
            print(f"{when}: run {runs[when][-1]:.1f} s, question {questions[when][-1] * 1000:.1f} ms", flush=True)
            next_run[when] = number + 1, end + told.records
    measured: dict[str, dict[str, Any]] = {}
    for when, warehouse in warehouses.items():
        choose_warehouse(warehouse)
        measured[when] = {
            "run": summarize(runs[when][1:]),
            "question": summarize(questions[when][1:]),
            "rows": increment.rows(contract),
        }
    ratios = {
        what: round(measured["after"][what]["median"] / measured["before"][what]["median"], 2)
        for what in ("run", "question")
    }
    return {"millions": told.millions, "times": told.times, "records": told.records, "ratios": ratios} | measured


def choose_warehouse(warehouse: Path) -> None:
    """Let the following steps work on a warehouse."""
    os.environ["HINDCAST_WAREHOUSE"] = str(warehouse)


def summarize(seconds: list[float]) -> dict[str, float]:
    """The median with its range."""
    return {
        "median": round(statistics.median(seconds), 4),
        "least": round(min(seconds), 4),
        "most": round(max(seconds), 4),
    }


def ask(told: argparse.Namespace, contract: Any, history: int) -> list[float]:
    """Seconds of each question about the price of a key at a moment of the history."""
    from hindcast.bitemporal.predicates import Question
    from hindcast.common.settings import read_settings
    from hindcast.query import read

    seconds = []
    for n in range(ASKED):
        question = Question(
            key=[n * told.keys // ASKED], as_of=increment.T0 + increment.TICK * history * (n + 1) / (ASKED + 1)
        )
        begun = time.monotonic()
        read.query(read_settings().warehouse, contract, "prices", question)
        seconds.append(time.monotonic() - begun)
    return seconds


if __name__ == "__main__":
    main()
