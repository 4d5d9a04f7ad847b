"""A Spark Connect server on this machine: one warm JVM for all clients."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hindcast import remote
from hindcast.errors import PlatformError
from hindcast.local import ports, private, process
from hindcast.session import defaults, environment, home, protect
from hindcast.settings import Settings


def start(now: Settings, more: Mapping[str, str] | None = None) -> process.Process:
    """Start the server; `wait` until it serves. `more` goes over its Spark properties, as a master elsewhere.

    It serves those who have its token, a new one for each start, and nobody else.
    """
    folder = now.var / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    properties = {
        **defaults(now),
        "spark.master": "local[*]",
        "spark.app.name": "hindcast",
        "spark.executor.killOnFatalError.depth": "0",  # a task that has no memory left must not end it for all others
        "spark.connect.grpc.binding.address": ports.HOST,
        "spark.connect.grpc.binding.port": str(now.spark_port),
        **(more or {}),
    }
    file = folder / "connect.conf"
    lines = (f"{name} {value}\n" for name, value in sorted(protect(now, properties).items()))
    file.write_text("".join(lines), encoding="utf-8")
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    return process.start(
        "spark",
        f"sc://{ports.HOST}:{now.spark_port}",
        [str(home() / "bin" / "spark-submit"), "--properties-file", str(file), *server],
        log=now.logs / "spark.log",
        env=_environment(now),
        cwd=folder,
    )


def token_file(settings: Settings) -> Path:
    """Return where the token is that the running server asks its clients for."""
    return settings.var / "spark" / "token"


def read_token(path: Path) -> str:
    """Return the token in the file that `start` wrote; PlatformError if it is not there, or others could have it."""
    remedy = "`make down`, then `make up`: each start of the server makes a new token"
    try:
        return private.read_secret(path, remedy)
    except FileNotFoundError:
        raise PlatformError("the Spark Connect server's token is not there", where=str(path), mend=remedy) from None


def _make_token(settings: Settings) -> str:
    """Return a new token, which is in the file then. An older one opens no server that is started from now on."""
    made = secrets.token_hex(32)
    private.write_secret(token_file(settings), made)
    return made


def wait(started: process.Process, seconds: float = 90) -> None:
    """Return when the server accepts clients; PlatformError with the end of its log when it does not."""
    port = int(started.where.rpartition(":")[2])
    ports.wait(started, lambda: ports.listens(port), seconds)


def warm(now: Settings, started: process.Process) -> None:
    """Have the server do once, on nothing, what the steps of a run do, so that the first run finds it warm."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from hindcast.session import sized

    spark = remote.connect(started.where, {}, read_token(token_file(now)))
    try:
        with sized(spark, 0), tempfile.TemporaryDirectory(dir=now.var) as scratch:
            rows = spark.range(1).selectExpr("id", "named_struct('a', id) AS key", "timestamp_micros(id) AS at")
            rows.write.format("delta").option("txnAppId", "warm").option("txnVersion", "1").save(f"{scratch}/table")
            table = spark.read.format("delta").load(f"{scratch}/table").persist()
            latest = Window.partitionBy("key").orderBy("at")
            table.withColumn("next", F.lead("at").over(latest)).createOrReplaceTempView("warming")
            spark.sql(
                f"MERGE INTO delta.`{scratch}/table` t USING warming s ON t.id = s.id "  # noqa: S608  # a path of ours
                "WHEN MATCHED THEN UPDATE SET at = s.at WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
            ).collect()
    finally:
        spark.stop()


def _environment(now: Settings) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {**inherited, **now.environment, **environment(), remote.TOKEN: _make_token(now)}
