"""What gates cost: 20 expectations over a million candidate rows, beside one aggregate pass that asks the same by hand.

    PYTHONPATH=jobs .venv/bin/python bench/gates.py [--rows 1000000] [--rounds 5]

Both look at the same rows, kept in memory as a run keeps its change, in turns. Writes bench/results/gates.json: the
median seconds of each and their `ratio`; besides, the seconds of the rules that need a window (overlaps, uniqueness).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.common.session import open_session
from hindcast.common.settings import read_settings
from hindcast.contract import load
from hindcast.contract.bound import bind_contract
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.quality import gate_evaluation
from hindcast.quality.staged_change import StagedChange

CONTRACT = """
pipeline: bench
start: 2026-01-01
topics:
  sales:
    read: table
    key: {id: bigint}
    value: {shop: string, code: string, price: double, cost: double, pieces: int, discount: double, email: string}
    expect:
      - expect_column_values_to_not_be_null: {column: id}
      - expect_column_values_to_not_be_null: {column: shop}
      - expect_column_values_to_not_be_null: {column: price}
      - expect_column_values_to_not_be_null: {column: validFrom}
      - expect_column_values_to_be_between: {column: price, min_value: 0}
      - expect_column_values_to_be_between: {column: cost, min_value: 0, max_value: 1000}
      - expect_column_values_to_be_between: {column: pieces, min_value: 1, max_value: 10}
      - expect_column_values_to_be_between: {column: discount, min_value: 0, max_value: 1}
      - expect_column_values_to_be_in_set: {column: shop, value_set: [north, south, east, west]}
      - expect_column_values_to_not_be_in_set: {column: code, value_set: [none, unknown]}
      - expect_column_values_to_match_regex: {column: code, regex: "^[A-Z][0-9]+$"}
      - expect_column_values_to_match_regex: {column: email, regex: "^[^@]+@[^@]+$"}
      - expect_column_value_lengths_to_be_between: {column: code, min_value: 2, max_value: 12}
      - expect_column_pair_values_a_to_be_greater_than_b: {column_A: price, column_B: cost, or_equal: true}
      - expect_column_min_to_be_between: {column: price, min_value: 0}
      - expect_column_max_to_be_between: {column: price, max_value: 2000}
      - expect_column_mean_to_be_between: {column: price, min_value: 1, max_value: 1000}
      - expect_column_sum_to_be_between: {column: pieces, min_value: 1}
      - expect_table_row_count_to_be_between: {min_value: 1}
      - expect_periods_to_not_be_empty:
"""
WINDOWS = """
      - expect_column_values_to_be_unique: {column: email}
      - expect_periods_to_not_overlap:
"""
RESULTS = Path(__file__).parent / "results" / "gates.json"


def main() -> None:
    """Measures and writes the result."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--out", type=Path, default=RESULTS)
    told = options.parse_args()
    spark = open_session("hindcast-bench-gates")
    spark.sparkContext.setLogLevel("ERROR")
    rows = candidates(spark, told.rows).persist()
    rows.count()
    with TemporaryDirectory() as folder:
        asks: dict[str, Callable[[], object]] = {
            "aggregate": lambda: rows.agg(*by_hand()).collect(),
            "gates": asked(Path(folder), "gates", CONTRACT, rows),
            "windows": asked(Path(folder), "windows", CONTRACT.partition("      - ")[0] + WINDOWS.lstrip("\n"), rows),
        }
        seconds: dict[str, list[float]] = {name: [] for name in asks}
        for turn in range(told.rounds + 1):
            for name, ask in asks.items():
                started = time.perf_counter()
                ask()
                if turn:  # the first warms up
                    seconds[name].append(time.perf_counter() - started)
    median = {name: round(statistics.median(some), 2) for name, some in seconds.items()}
    result = {
        "rows": told.rows,
        "expectations": CONTRACT.count("- expect_"),
        "ratio": round(median["gates"] / median["aggregate"], 2),
        "seconds": median,
        "rounds": {name: [round(s, 2) for s in some] for name, some in seconds.items()},
    }
    told.out.parent.mkdir(parents=True, exist_ok=True)
    told.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: result[name] for name in ("ratio", "seconds")}))


def candidates(spark: SparkSession, count: int) -> DataFrame:
    """Rows that pass all gates, as changes of a table: versions of a tenth as many keys."""
    n = F.col("id")
    start = F.timestamp_seconds(F.floor(n / (count // 10)) * 60 + 1_700_000_000)
    return spark.range(count).select(
        (n % (count // 10)).alias("id"),
        F.element_at(F.array(*map(F.lit, ("north", "south", "east", "west"))), (n % 4 + 1).cast("int")).alias("shop"),
        F.concat(F.lit("A"), n % 10_000).alias("code"),
        (n % 900 + 100).cast("double").alias("price"),
        (n % 100).cast("double").alias("cost"),
        (n % 10 + 1).cast("int").alias("pieces"),
        (n % 11 / 10).alias("discount"),
        F.concat(F.lit("c"), n, F.lit("@example.org")).alias("email"),
        start.alias("validFrom"),
        (start + F.expr("INTERVAL 60 SECONDS")).alias("validTo"),
        F.lit(0).alias("_partition"),
        n.alias("_offset"),
        F.lit("open").alias("_change"),
    )


def by_hand() -> list[Column]:
    """The same 20 questions as one aggregate."""
    wrong = [
        *(F.col(name).isNull() for name in ("id", "shop", "price", "validFrom")),
        F.col("price") < 0,
        ~F.col("cost").between(0, 1000),
        ~F.col("pieces").between(1, 10),
        ~F.col("discount").between(0, 1),
        ~F.col("shop").isin("north", "south", "east", "west"),
        F.col("code").isin("none", "unknown"),
        ~F.col("code").rlike("^[A-Z][0-9]+$"),
        ~F.col("email").rlike("^[^@]+@[^@]+$"),
        ~F.length("code").between(2, 12),
        F.col("price") < F.col("cost"),
        F.col("validTo") <= F.col("validFrom"),
    ]
    counts = [F.count_if(condition).alias(f"n{number}") for number, condition in enumerate(wrong)]
    return [*counts, F.min("price"), F.max("price"), F.avg("price"), F.sum("pieces"), F.count("*")]


def asked(folder: Path, name: str, text: str, rows: DataFrame) -> Callable[[], object]:
    """Asks the gates of a contract, as a run does, and insists that they pass."""
    (folder / name).mkdir()
    path = folder / name / "bench.yaml"
    path.write_text(text.lstrip(), encoding="utf-8")
    contract = bind_contract(load(path), read_settings())
    share = TopicPlan("id", 0, 0, {}, {}, {})
    plan = Plan("bench", 1, "bench", datetime.now(UTC), None, contract.hash, {"sales": share})
    count = rows.count()

    def ask() -> None:
        with StagedChange(contract, plan, "sales", rows, count, 0) as candidate:
            verdicts = gate_evaluation.evaluate_gates(candidate, contract.expectations("sales"))
        assert {verdict.outcome for verdict in verdicts} == {"passed"}, verdicts

    return ask


if __name__ == "__main__":
    main()
