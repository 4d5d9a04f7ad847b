"""What a run of ten records costs in Airflow, beside a DAG of the same shape whose tasks do nothing.

    PYTHONPATH=jobs .venv/bin/python bench/airflow.py [--rounds 5]

A stack of its own, its Spark server warm, the restaurant's contract. Ten new orders are sent and its DAG is triggered,
in turns with the empty one. Writes bench/results/airflow.json: the median seconds of each, from the trigger to the end
of the run as Airflow tells them, their `ratio`, and how long each task of the last run took.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hindcast.common.settings import Settings, read_settings
from hindcast.kafka import produce
from hindcast.kafka.produce import ProducerRecord
from hindcast_demo import restaurant
from hindcast_local import airflow, ports, stack
from hindcast_local.api import AirflowClient

RESULTS = Path(__file__).parent / "results" / "airflow.json"
RECORDS = 10
EMPTY = """
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.sdk import DAG

SHAPE = {shape}


def nothing():
    return None


with DAG("empty", schedule=None, max_active_runs=1):
    tasks = {{}}
    for it in SHAPE:
        kind = ShortCircuitOperator if it["task_id"] == "report" else PythonOperator
        name = it["task_id"].replace(".", "__")
        tasks[it["task_id"]] = kind(task_id=name, python_callable=nothing, trigger_rule=it["trigger_rule"])
    for it in SHAPE:
        tasks[it["task_id"]] >> [tasks[other] for other in it["downstream_task_ids"]]
"""


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with TemporaryDirectory() as folder, _up(Path(folder)) as now:
        web = airflow.api(now)
        web.unpause("restaurant")
        web.wait("restaurant")
        (now.root / "dags" / "empty.py").write_text(EMPTY.format(shape=_shape(web)), encoding="utf-8")
        web.unpause("empty")
        taken: dict[str, list[float]] = {"empty": [], "restaurant": []}
        for number in range(rounds + 1):
            produce.send_records(now.kafka, restaurant.ORDERS, _orders(number))
            for dag, seconds in taken.items():
                run = web.wait(dag, web.trigger(dag))
                seconds.append(_seconds(web, dag, run))
                print(f"{dag:<12} {seconds[-1]:6.1f} s", flush=True)
        tasks = {
            task["task_id"]: round(task["duration"], 1) for task in web.tasks("restaurant", run) if task["duration"]
        }
    medians = {dag: round(statistics.median(seconds[1:]), 1) for dag, seconds in taken.items()}  # the first warms up
    told = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "rounds": rounds,
        "seconds": medians,
        "ratio": round(medians["restaurant"] / medians["empty"], 2),
        "tasks": tasks,
    }
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told))


@contextmanager
def _up(folder: Path) -> Iterator[Settings]:
    """A stack with both DAGs and the restaurant's first records; stopped to its last process."""
    root, ours = folder / "root", read_settings().root
    (root / "dags").mkdir(parents=True)
    (root / "schemas").mkdir()
    (root / "dags" / "pipelines.py").symlink_to(ours / "dags" / "pipelines.py")
    (root / "plugins").symlink_to(ours / "plugins")
    (root / "jobs").symlink_to(ours / "jobs")
    shutil.copy(ours / "schemas" / "restaurant.yaml", root / "schemas")
    numbers = {f"HINDCAST_{name}_PORT": str(ports.find_free_port()) for name in ("KAFKA", "AIRFLOW", "SPARK")}
    settings = read_settings({"HINDCAST_ROOT": str(root), "HINDCAST_VAR": str(folder / "var"), **numbers})
    try:
        stack.start_stack(settings)
        first = restaurant.first_records()
        produce.create_topics(settings.kafka, *first)
        for topic, records in first.items():
            produce.send_records(settings.kafka, topic, records)
        yield settings
    finally:
        stack.stop_stack(settings)


def _shape(web: AirflowClient) -> list[dict[str, Any]]:
    """The tasks of the restaurant's DAG, and what follows on each."""
    told = web.read_task_definitions("restaurant")
    return [{field: task[field] for field in ("task_id", "trigger_rule", "downstream_task_ids")} for task in told]


def _orders(number: int) -> list[ProducerRecord]:
    value = json.dumps({"item": "curry", "quantity": 1}).encode()
    return [
        ProducerRecord(b"guest-%d-%d" % (number, n), value, restaurant.example_time(10 + number))
        for n in range(RECORDS)
    ]


def _seconds(web: AirflowClient, dag: str, run: str) -> float:
    told: dict[str, Any] = web.read_run(dag, run)
    began, ended = (datetime.fromisoformat(told[moment]) for moment in ("queued_at", "end_date"))
    return (ended - began).total_seconds()


if __name__ == "__main__":
    main()
