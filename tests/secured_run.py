"""A process that runs a pipeline against a secured broker, with all that Spark tells turned on, and looks there.

    python tests/secured_run.py FOLDER    its settings in the environment; FOLDER/asked.json says what else to read

Spark's UI, event log and log of level INFO are on. What it saw goes to FOLDER/seen.json: `run`, the run's report;
`read`, per way in (environments in asked.json) the records of `topic` as a task of Spark reads them, or what was told
instead; `ui`, what the UI's REST interface and pages show; `processes`, the command lines of all processes meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from hindcast.common.errors import HindcastError
from hindcast.common.session import open_session
from hindcast.common.settings import read_settings
from hindcast.common.spark_workers import raise_worker_errors
from hindcast.ingest import record_tasks
from hindcast.kafka.given_topics import GivenTopics
from hindcast.kafka.topics import RECORD_SCHEMA, OffsetRange
from hindcast.runs import run_steps
from hindcast_local import ports


def main(folder: Path) -> None:
    """All of it; the UI must be asked before the session ends."""
    asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    port = ports.find_free_port()
    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.ui.retainedJobs": "1000",
        "spark.sql.ui.retainedExecutions": "1000",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder / "events"),
    }
    (folder / "events").mkdir()
    spark = open_session("secured", conf, small=True)
    spark.sparkContext.setLogLevel("INFO")
    seen: dict[str, Any] = {"processes": _processes()}
    seen["run"] = (
        run_steps.run_pipeline(spark, read_settings(), asked["pipeline"], "first").as_json()
        if asked["pipeline"]
        else None
    )
    seen["read"] = {way: _read(spark, environ, asked["topic"]) for way, environ in asked["ways"].items()}
    seen["processes"] += _processes()
    seen["secrets"] = [str(path) for path in (read_settings().var / "secrets").glob("*")]
    seen["ui"] = _ui(f"http://127.0.0.1:{port}")
    spark.stop()
    (folder / "seen.json").write_text(json.dumps(seen), encoding="utf-8")


def _read(spark: SparkSession, environ: dict[str, str], topic: str) -> Any:
    for name in [name for name in os.environ if name.startswith("HINDCAST_KAFKA")]:
        del os.environ[name]
    os.environ.update(environ)
    try:
        place, ranges, source = (topic, {}), [{0: OffsetRange(0, 1)}], GivenTopics([], 1)  # tasks open the brokers
        rows = record_tasks.read_in_tasks(spark, source, read_settings(), place, ranges, iter, RECORD_SCHEMA)
        with raise_worker_errors():
            return [row["value"].decode() for row in rows.collect()]
    except HindcastError as error:
        return str(error)


def _processes() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def _ui(address: str) -> dict[str, str]:
    base = f"{address}/api/v1/applications"
    application = json.loads(_get(base))[0]["id"]
    places = [f"{base}/{application}/{it}" for it in ("environment", "sql?details=true&length=1000", "jobs", "stages")]
    return {place: _get(place) for place in (*places, f"{address}/environment/", f"{address}/SQL/")}


def _get(place: str) -> str:
    with urllib.request.urlopen(place, timeout=60) as answer:  # noqa: S310  # our own
        return str(answer.read().decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
