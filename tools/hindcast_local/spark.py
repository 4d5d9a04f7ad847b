"""A Spark Connect server on this machine: one warm JVM for all clients."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping

from hindcast.cli import connect_server
from hindcast.common import private_files, spark_connect
from hindcast.common.session import default_properties, protect_properties, spark_environment, venv_folder
from hindcast.common.settings import Settings
from hindcast_local import ports, process


def start_server(settings: Settings, more: Mapping[str, str] | None = None) -> process.Process:
    """Start the server and return its process; `wait_for_server` returns when it serves.

    `more` overrides its Spark properties, such as the master. Only clients with its token, new at each start, are
    served.
    """
    folder = settings.var / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    properties = {
        **default_properties(settings),
        "spark.master": "local[*]",
        "spark.app.name": "hindcast",
        "spark.connect.grpc.binding.address": ports.HOST,
        "spark.connect.grpc.binding.port": str(settings.spark_port),
        **(more or {}),
    }
    file = folder / "connect.conf"
    lines = (f"{name} {value}\n" for name, value in sorted(protect_properties(settings, properties).items()))
    file.write_text("".join(lines), encoding="utf-8")
    return process.start_process(
        "spark",
        f"sc://{ports.HOST}:{settings.spark_port}",
        [str(venv_folder() / "bin" / "spark-submit"), "--properties-file", str(file), str(connect_server.__file__)],
        log=settings.logs / "spark.log",
        env=_build_environment(settings),
        cwd=folder,
    )


def _make_token(settings: Settings) -> str:
    """Write a new token to its file and return it; a server that starts from now on accepts no older one."""
    token = secrets.token_hex(32)
    private_files.write_secret(spark_connect.token_path(settings), token)
    return token


def wait_for_server(started: process.Process, seconds: float = 90) -> None:
    """Return when the server accepts clients; PlatformError with the end of its log if it does not."""
    port = int(started.where.rpartition(":")[2])
    ports.wait_until_ready(started, lambda: ports.is_listening(port), seconds)


def warm_server(settings: Settings, started: process.Process) -> None:
    """Do once, on one row, what the steps of a run do, so that the first run finds the server warm."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from hindcast.common.session import fit_to_rows

    spark = spark_connect.connect_to_server(
        started.where, {}, spark_connect.read_token(spark_connect.token_path(settings))
    )
    try:
        with fit_to_rows(spark, 0), tempfile.TemporaryDirectory(dir=settings.var) as scratch:
            called = spark.range(1).mapInArrow(lambda batches: batches, "id long")
            rows = called.selectExpr("id", "named_struct('a', id) AS key", "timestamp_micros(id) AS at")
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


def _build_environment(settings: Settings) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **inherited,
        **settings.environment,
        **spark_environment(),
        spark_connect.TOKEN_VARIABLE: _make_token(settings),
    }
