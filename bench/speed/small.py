"""Operation g: runs that bring few records. Replays and views of ten, a thousand and ten thousand records in a warm,
shared session, of a pipeline each; a replay of ten from spark-submit to its end; and a whole DAG run, as
bench/airflow.py measured it last.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.speed.measuring import Measured, Watch, unwatched
from bench.speed.names import BUILDS, DAG, EMPTY, FEW, OURS, REPLAYS, SUBMIT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hindcast.kafka.produce import ProducerRecord

WARM_ROUNDS, KEYS = 5, 2_000
AIRFLOW = Path(__file__).parents[1] / "results" / "airflow.json"
REPLAY_SCRIPT = Path(__file__).resolve().parents[2] / "jobs" / "replay.py"
CONTRACT = """
pipeline: {pipeline}
start: 2026-01-01
topics:
  prices: {topic: {pipeline}-prices, read: table, key: {item: string}, value: {price: "decimal(8,2)", note: string}}
  orders: {topic: {pipeline}-orders, read: stream, key: {guest: string}, value: {item: string, quantity: int}}
views:
  bills:
    stream: orders
    join: {table: prices, on: orders.item}
    where: quantity > 0
    select: {item: orders.item, amount: orders.quantity * prices.price}
"""
START = 1_767_225_660_000


def measure(spark: SparkSession, folder: Path, rounds: int, watch: Watch = unwatched) -> list[Measured]:
    """Each round has a run of each pipeline, which brings so many prices and orders, and one more of the first, whose
    orders spark-submit replays. A tenth of the prices comes late by a minute.
    """
    from hindcast.common.settings import read_settings
    from hindcast.kafka import produce
    from hindcast.runs import run_steps
    from hindcast_local.broker import run_broker

    found = {data: Measured("g", data, OURS, writes="Delta") for data in (*REPLAYS.values(), *BUILDS.values(), SUBMIT)}
    with tempfile.TemporaryDirectory(dir=folder) as made, run_broker(Path(made) / "broker") as servers:
        place = Path(made)
        (place / "schemas").mkdir()
        pipelines = {count: f"small_{count}" for count in REPLAYS}
        for pipeline in pipelines.values():
            text = CONTRACT.lstrip().replace("{pipeline}", pipeline)
            (place / "schemas" / f"{pipeline}.yaml").write_text(text, encoding="utf-8")
        names = {"SCHEMAS": "schemas", "WAREHOUSE": "warehouse", "VAR": "var"}
        os.environ |= {f"HINDCAST_{name}": str(place / part) for name, part in names.items()}
        os.environ["HINDCAST_KAFKA"] = servers
        settings = read_settings()
        produce.create_topics(servers, *(f"{pipeline}-{topic}" for pipeline in pipelines.values() for topic in TOPICS))
        number = 0
        for turn in range(WARM_ROUNDS + rounds):
            for count in (*REPLAYS, None):
                number, pipeline = number + 1, pipelines[count or FEW]
                produce.send_records(servers, f"{pipeline}-prices", _list_prices(count or FEW, number))
                produce.send_records(servers, f"{pipeline}-orders", _list_orders(count or FEW, number))
                run = run_steps.plan_run(settings, pipeline, f"run-{number}")
                steps = [partial(run_steps.replay_topic, spark, settings, pipeline, run, topic) for topic in TOPICS]
                build = partial(run_steps.build_view, spark, settings, pipeline, run, "bills")
                if count is None:
                    seconds = {SUBMIT: _time(partial(_submit, pipeline, run, "orders"))}
                    steps[0]()
                    build()
                else:
                    seconds = {REPLAYS[count]: _time(partial(watch, f"g {REPLAYS[count]}", steps[0]))}
                    steps[1]()
                    seconds[BUILDS[count]] = _time(partial(watch, f"g {BUILDS[count]}", build))
                run_steps.finish_run(settings, pipeline, run)
                print(f"g {turn}  { {name: round(it, 2) for name, it in seconds.items()} }", flush=True)
                if turn >= WARM_ROUNDS:
                    for data, it in seconds.items():
                        found[data].seconds.append(it)
    return [*found.values(), *_read_airflow()]


TOPICS = ("prices", "orders")


def _list_prices(count: int, number: int) -> list[ProducerRecord]:
    """Return the prices of a run, a second after those of the one before; a tenth of them is dated a minute earlier."""
    from hindcast.kafka.produce import ProducerRecord

    return [
        ProducerRecord(
            b"item%d" % ((number + 7 * n) % KEYS),
            b'{"price": "%d.25", "note": "run %d"}' % (n % 90, number),
            START + number * 1_000 + n % 1_000 - (60_000 if n % 10 == 0 else 0),
        )
        for n in range(count)
    ]


def _list_orders(count: int, number: int) -> list[ProducerRecord]:
    """Return the orders of a run, each of another guest."""
    from hindcast.kafka.produce import ProducerRecord

    return [
        ProducerRecord(
            b"guest-%d-%d" % (number, n),
            b'{"item": "item%d", "quantity": %d}' % (n % KEYS, n % 5),
            START + number * 1_000 + 999,
        )
        for n in range(count)
    ]


def _time(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def _submit(pipeline: str, run: int, topic: str) -> None:
    """Replay a topic as spark-submit does, with what `make setup` has prepared."""
    from hindcast.common.session import spark_environment, venv_folder
    from hindcast.common.settings import read_settings

    env = {**os.environ, **spark_environment(), **read_settings().environment}
    conf = str(venv_folder() / "spark-conf" / "spark-small.conf")
    submit = [str(venv_folder() / "bin" / "spark-submit"), "--master", "local[*]", "--properties-file", conf]
    done = subprocess.run(
        [*submit, str(REPLAY_SCRIPT), pipeline, str(run), topic],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _read_airflow() -> list[Measured]:
    """Return what `make bench-airflow` measured last; nothing where it did not."""
    if not AIRFLOW.exists():
        return []
    seconds = json.loads(AIRFLOW.read_text(encoding="utf-8"))["seconds"]
    taken = "from bench/results/airflow.json"
    return [
        Measured("g", DAG, OURS, [seconds["restaurant"]], writes=taken),
        Measured("g", DAG, EMPTY, [seconds["empty"]], writes=taken),
    ]
