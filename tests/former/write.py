"""Write `warehouse.tar.xz`: what an installation at commit cc61b57 (the old module names) left on its disk.

Not run by tests. It was run once, by that commit's own code, in a checkout of it:

    .venv/bin/python write.py FOLDER

It starts broker, Spark and Airflow, runs the example pipelines restaurant and votes through Airflow (a first run, late
records, an approval, a run that a gate stops), and packs the warehouse, the reports, Kafka's data and Airflow's
database. The answers that the installation gave then are kept beside it, in `answers.json`.
"""

import json
import os
import sys
import tarfile
from pathlib import Path

from hindcast.demo import restaurant, votes
from hindcast.local import airflow, stack

from hindcast import read, show
from hindcast.contracts import find
from hindcast.kafka import produce
from hindcast.settings import settings

PIPELINES = ("restaurant", "votes")
TABLES = {
    "restaurant": ("menu", "orders", "bills", "all_orders"),
    "votes": ("votes", "regions", "located", "by_region"),
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    schemas = folder / "schemas"
    schemas.mkdir()
    for name in PIPELINES:
        (schemas / f"{name}.yaml").write_text((settings().root / "schemas" / f"{name}.yaml").read_text())
    os.environ |= {"HINDCAST_VAR": str(folder / "var"), "HINDCAST_SCHEMAS": str(schemas)}
    os.environ |= {"HINDCAST_KAFKA_PORT": "19592", "HINDCAST_AIRFLOW_PORT": "18580", "HINDCAST_SPARK_PORT": "15592"}
    now = settings()
    try:
        stack.up(now)
        web = airflow.api(now)
        topics = {**restaurant.first(), **votes.first()}
        produce.create(now.kafka, *topics)
        for topic, records in topics.items():
            produce.send(now.kafka, topic, records)
        for name in PIPELINES:
            web.unpause(name)
        first = {name: web.trigger(name) for name in PIPELINES}
        for name in PIPELINES:
            web.wait(name, first[name])
        for topic, records in {**restaurant.late(), **votes.late()}.items():
            produce.send(now.kafka, topic, records)
        web.unpause("restaurant__release")
        second = {name: web.trigger(name) for name in PIPELINES}
        for name in PIPELINES:
            web.wait(name, second[name])
        web.wait("restaurant__release", web.approve("restaurant__release"))
        for topic, records in votes.wrong().items():
            produce.send(now.kafka, topic, records)
        web.wait("votes", web.trigger("votes"), state="failed")
        answers = {}
        for name, tables in TABLES.items():
            contract = find(now.schemas, name)
            for table in tables:
                rows = read.history(now.warehouse, contract, table)
                answers[f"{name}.{table}"] = json.loads(show.as_json(rows))
    finally:
        stack.down(now)
    (folder / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
    with tarfile.open(folder / "warehouse.tar.xz", "w:xz") as packed:
        for part in ("warehouse", "reports", "airflow/airflow.db", "kafka/data"):
            packed.add(now.var / part, part)
    print((folder / "warehouse.tar.xz").stat().st_size, "bytes")


main(Path(sys.argv[1]))
