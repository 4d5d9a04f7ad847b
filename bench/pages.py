"""What the time machine takes for one key: the page's JSON twin, asked of the application in this process.

    PYTHONPATH=jobs .venv/bin/python bench/pages.py [--millions 10] [--keys 100000] [--asked 20]
    PYTHONPATH=jobs .venv/bin/python bench/pages.py --warehouse FOLDER --schemas FOLDER --table PIPELINE.TABLE

Makes a table of so many million rectangles without Spark, laid out as runs lay it out (files of 250,000 rows by valid
time), or takes one that is there, whose keys are numbers from 0. Writes to bench/results/pages.json the medians in
milliseconds of a key's first request (cold: its history is not in memory, its files are in the page cache) and of the
next one for another moment (warm), and `arrow_ratio`: how much longer it takes to read a key's rows by way of Arrow.
Also, of a table of our own in which a run has changed a million rows, what the page of its changes takes, and the next.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from hindcast.plan.runs import Completed, Planned, Run

CONTRACT = """
pipeline: bench
start: 2026-01-01
topics:
  prices: {read: table, key: {id: int}, value: {price: int, category: int}}
  changed: {read: table, key: {id: int}, value: {price: int, category: int}}
"""
T0 = datetime(2020, 1, 1, tzinfo=UTC)
KNOWN = datetime(2026, 1, 1, tzinfo=UTC)
PER_FILE = 250_000
RESULTS = Path(__file__).parent / "results" / "pages.json"


def main() -> None:
    """Makes or takes a table, asks, and writes the results."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--millions", type=float, default=10)
    options.add_argument("--keys", type=int, default=100_000)
    options.add_argument("--asked", type=int, default=20)
    options.add_argument("--folder", type=Path, default=Path("var/bench-pages"))
    options.add_argument("--warehouse", type=Path)
    options.add_argument("--schemas", type=Path)
    options.add_argument("--table", default="bench.prices")
    options.add_argument("--out", type=Path, default=RESULTS)
    told = options.parse_args()
    own = told.warehouse is None
    os.environ["HINDCAST_WAREHOUSE"] = str(told.folder / "warehouse" if own else told.warehouse)
    os.environ["HINDCAST_SCHEMAS"] = str(told.folder / "schemas" if own else told.schemas)
    if own:
        shutil.rmtree(told.folder, ignore_errors=True)
        (told.folder / "schemas").mkdir(parents=True)
        (told.folder / "schemas" / "bench.yaml").write_text(CONTRACT.lstrip(), encoding="utf-8")
        make(int(told.millions * 1_000_000), told.keys)
    result = measured(told.table, told.keys, told.asked)
    if own:
        make_changes(1_000_000)
        result |= measured_changes()
        shutil.rmtree(told.folder)
        told.out.parent.mkdir(parents=True, exist_ok=True)
        told.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def measured(name: str, keys: int, asked: int) -> dict[str, Any]:
    """The medians of a table, over keys that lie far apart."""
    from fastapi.testclient import TestClient

    from hindcast.airflow.pages.access import PageAccess
    from hindcast.airflow.pages.routes import build_app
    from hindcast.common.settings import read_settings
    from hindcast.contract import find
    from hindcast.store import tables

    def readable() -> frozenset[str]:
        return frozenset({pipeline})

    pipeline, _, table = name.partition(".")
    web = TestClient(build_app(PageAccess(lambda: None, lambda: None, readable)))
    place = tables.locate_table(read_settings().warehouse, find(read_settings().schemas, pipeline), table)
    found = tables.open_table(place)
    assert found is not None

    def page(key: int, **moment: str) -> dict[str, Any]:
        answer = web.get(f"/machine/{pipeline}.json", params={"table": table, "key": str(key), **moment})
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    some = [(n * keys) // asked for n in range(asked)]
    page(keys - 1)  # what is imported and loaded once
    cold = [timed(lambda key=key: page(key)) for key in some]  # type: ignore[misc]
    warm = [timed(lambda key=key: page(key, asOf="2021-01-01")) for key in some]  # type: ignore[misc]
    ours = [timed(lambda key=key: rows(place, found, key)) for key in some[:5]]  # type: ignore[misc]
    arrow = [timed(lambda key=key: by_arrow(found, key)) for key in some[:5]]  # type: ignore[misc]
    return {
        "rectangles": tables.count_rows(place),
        "of_a_key": page(some[0])["plane"]["total"],
        "cold_ms": round(1000 * statistics.median(cold)),
        "warm_ms": round(1000 * statistics.median(warm)),
        "arrow_ratio": round(statistics.median(arrow) / statistics.median(ours), 1),
    }


def measured_changes() -> dict[str, Any]:
    """The page of the changes of one run, and the second of its pages: milliseconds, and those of the processor."""
    from fastapi.testclient import TestClient

    from hindcast.airflow.pages.access import PageAccess
    from hindcast.airflow.pages.routes import build_app

    web = TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"bench"}))))

    def page(number: int) -> Any:
        answer = web.get("/changes/bench.json", params={"table": "changed", "page": number})
        assert answer.status_code == 200, answer.text
        return answer.json()["total"]

    cpu = time.process_time()
    first = timed(lambda: page(1))
    cpu = time.process_time() - cpu
    return {
        "changes": page(1),
        "changes_ms": round(1000 * first),
        "changes_cpu_ms": round(1000 * cpu),
        "next_changes_ms": round(1000 * timed(lambda: page(2))),
    }


def rows(place: Any, found: Any, key: int) -> int:
    """The rows of a key as the pages read them."""
    from hindcast.query import key_history

    return int(key_history.read_limited_rows(place, found, [key]).num_rows)


def by_arrow(found: Any, key: int) -> int:
    """The same by way of Arrow."""
    import duckdb

    from hindcast.store import row_reader

    with duckdb.connect() as engine:
        engine.register("rows", row_reader.open_arrow_rows(found))
        return len(engine.sql(f"SELECT * FROM rows WHERE id = {key}").fetchall())  # noqa: S608  # a number


def timed(ask: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.monotonic()
    ask()
    return time.monotonic() - begun


def make(count: int, keys: int) -> None:
    """A table of `count` versions of `keys` keys, each ended by the next of its key, and a journal with one run."""
    from hindcast.common.settings import read_settings
    from hindcast.contract import find
    from hindcast.plan import journal
    from hindcast.plan.plans import Plan
    from hindcast.store import tables

    contract, warehouse = find(read_settings().schemas, "bench"), read_settings().warehouse
    table = tables.locate_table(warehouse, contract, "prices")
    chance = np.random.default_rng(1)
    id_ = chance.integers(0, keys, count, dtype=np.int32)
    start = np.arange(count, dtype=np.int64) * 250_000
    order = np.lexsort((start, id_))
    end = np.full(count, -1, dtype=np.int64)
    follows = id_[order][1:] == id_[order][:-1]
    end[order[:-1][follows]] = start[order[1:][follows]]
    zero = int(T0.timestamp()) * 1_000_000
    for belief, which in (("past", np.flatnonzero(end >= 0)), ("open", np.flatnonzero(end < 0))):
        for first in range(0, len(which), PER_FILE):
            some = which[first : first + PER_FILE]
            moment = pa.timestamp("us", "UTC")
            ends = pa.array(zero + end[some], pa.int64(), mask=end[some] < 0).cast(moment)
            columns = {
                "id": id_[some],
                "price": chance.integers(1, 10, len(some), dtype=np.int32),
                "category": chance.integers(0, 1000, len(some), dtype=np.int32),
                "validFrom": pa.array(zero + start[some]).cast(moment),
                "validTo": ends,
                "systemFrom": pa.repeat(pa.scalar(KNOWN, moment), len(some)),
                "systemTo": pa.nulls(len(some), moment),
                "_partition": np.zeros(len(some), dtype=np.int32),
                "_offset": some.astype(np.int64),
                "_belief": pa.repeat(belief, len(some)),
            }
            write_deltalake(
                table.path,
                pa.table(columns),
                mode="append",
                partition_by=["_belief"],
                name="bench.prices",
                description=table.description,
                configuration={"delta.dataSkippingStatsColumns": "id,validFrom,validTo,systemFrom,systemTo"},
            )
    plan = Plan("bench", 1, "bench", KNOWN, None, contract.hash, {})
    for outcome in (Planned(), Completed({"topics": {}, "tables": {}})):
        journal.append_entry(warehouse, Run(plan, outcome))


def make_changes(count: int) -> None:
    """A table in which a second run has changed the price of each of `count` keys."""
    from hindcast.common.settings import read_settings
    from hindcast.contract import find
    from hindcast.plan import journal
    from hindcast.plan.plans import Plan
    from hindcast.store import tables

    contract, warehouse = find(read_settings().schemas, "bench"), read_settings().warehouse
    table, moment = tables.locate_table(warehouse, contract, "changed"), pa.timestamp("us", "UTC")
    again, chance = KNOWN + timedelta(days=1), np.random.default_rng(1)
    price = chance.integers(1, 100, count, dtype=np.int32)
    states = (("superseded", price, KNOWN, again), ("open", price + chance.integers(1, 50, count), again, None))
    for belief, value, since, until in states:
        columns = {
            "id": np.arange(count, dtype=np.int32),
            "price": value.astype(np.int32),
            "category": price,
            "validFrom": pa.repeat(pa.scalar(T0, moment), count),
            "validTo": pa.nulls(count, moment),
            "systemFrom": pa.repeat(pa.scalar(since, moment), count),
            "systemTo": pa.repeat(pa.scalar(until, moment), count),
            "_partition": np.zeros(count, dtype=np.int32),
            "_offset": np.arange(count),
            "_belief": pa.repeat(belief, count),
        }
        for first in range(0, count, PER_FILE):
            part = pa.table(columns).slice(first, PER_FILE)
            write_deltalake(
                table.path,
                part,
                mode="append",
                partition_by=["_belief"],
                name="bench.changed",
                description=table.description,
                configuration={"delta.dataSkippingStatsColumns": "id,validFrom,validTo,systemFrom,systemTo"},
            )
    plan = Plan("bench", 2, "bench again", again, None, contract.hash, {})
    for outcome in (Planned(), Completed({"topics": {}, "tables": {}})):
        journal.append_entry(warehouse, Run(plan, outcome))


if __name__ == "__main__":
    main()
