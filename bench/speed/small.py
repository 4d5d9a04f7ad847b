"""Operation g: a run that brings ten records. A job from spark-submit to its end; jobs in a warm, shared session; and
the whole DAG run, as bench/airflow.py measured it last.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.speed.measuring import Measured, Watch, unwatched
from bench.speed.names import BUILD, DAG, EMPTY, OURS, SHARED, SUBMIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS, BEFORE = 10, 1_000
AIRFLOW = Path(__file__).parents[1] / "results" / "airflow.json"
CONTRACT = """
pipeline: small
start: 2026-01-01
topics:
  prices: {read: table, key: {item: string}, value: {price: int}}
  orders: {read: stream, key: {guest: string}, value: {item: string, quantity: int}}
views:
  bills: {stream: orders, join: {table: prices, on: orders.item}, select: {amount: orders.quantity * prices.price}}
"""


def measure(spark: SparkSession, folder: Path, rounds: int, watch: Watch = unwatched) -> list[Measured]:
    """Each round is two runs of ten orders: one replays them by spark-submit, one in the shared session."""
    from hindcast.common.settings import read_settings
    from hindcast.kafka import produce
    from hindcast.kafka.produce import ProducerRecord
    from hindcast.runs import run_steps
    from hindcast_local.broker import run_broker

    found = {data: Measured("g", data, OURS, writes="Delta") for data in (SUBMIT, SHARED, BUILD)}
    with tempfile.TemporaryDirectory(dir=folder) as made, run_broker(Path(made) / "broker") as servers:
        place = Path(made)
        (place / "schemas").mkdir()
        (place / "schemas" / "small.yaml").write_text(CONTRACT.lstrip(), encoding="utf-8")
        names = {"SCHEMAS": "schemas", "WAREHOUSE": "warehouse", "VAR": "var"}
        os.environ |= {f"HINDCAST_{name}": str(place / part) for name, part in names.items()}
        os.environ["HINDCAST_KAFKA"] = servers
        settings = read_settings()
        produce.create_topics(servers, "prices", "orders")
        produce.send_records(servers, "prices", [ProducerRecord(b"curry", b'{"price": 8}', 1_767_225_660_000)])

        def orders(count: int, number: int) -> list[ProducerRecord]:
            value = b'{"item": "curry", "quantity": 1}'
            return [
                ProducerRecord(b"guest-%d-%d" % (number, n), value, 1_767_225_720_000 + number) for n in range(count)
            ]

        for warm, count in enumerate((BEFORE, RECORDS)):
            produce.send_records(servers, "orders", orders(count, warm))
            run_steps.run_pipeline(spark, settings, "small", f"warm-{warm}")
        for number in range(2 * rounds):
            produce.send_records(servers, "orders", orders(RECORDS, number + 3))
            run = run_steps.plan_run(settings, "small", f"run-{number}")
            run_steps.replay_topic(spark, settings, "small", run, "prices")
            shared = number % 2
            begun = time.monotonic()
            if shared:
                watch(f"g {SHARED}", partial(run_steps.replay_topic, spark, settings, "small", run, "orders"))
            else:
                _submit("small", run, "orders")
            found[SHARED if shared else SUBMIT].seconds.append(time.monotonic() - begun)
            begun = time.monotonic()
            note = watch(f"g {BUILD}", partial(run_steps.build_view, spark, settings, "small", run, "bills"))
            assert note.opened == RECORDS, note
            if shared:
                found[BUILD].seconds.append(time.monotonic() - begun)
                seconds = {data: round(it.seconds[-1], 2) for data, it in found.items()}
                print(f"g round {number // 2 + 1}  {seconds}", flush=True)
            run_steps.finish_run(settings, "small", run)
    return [*found.values(), *_airflow()]


def _submit(pipeline: str, run: int, topic: str) -> None:
    """A job of few records as spark-submit runs it, with what `make setup` has prepared."""
    from hindcast.common.session import spark_environment, venv_folder
    from hindcast.common.settings import read_settings

    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, **spark_environment(), **read_settings().environment}
    conf = str(venv_folder() / "spark-conf" / "spark-small.conf")
    submit = [str(venv_folder() / "bin" / "spark-submit"), "--master", "local[*]", "--properties-file", conf]
    done = subprocess.run(
        [*submit, str(root / "jobs" / "ingest.py"), pipeline, str(run), topic],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def _airflow() -> list[Measured]:
    """What `make bench-airflow` measured last; nothing where it did not."""
    if not AIRFLOW.exists():
        return []
    told = json.loads(AIRFLOW.read_text(encoding="utf-8"))["seconds"]
    taken = "from bench/results/airflow.json"
    return [
        Measured("g", DAG, OURS, [told["restaurant"]], writes=taken),
        Measured("g", DAG, EMPTY, [told["empty"]], writes=taken),
    ]
