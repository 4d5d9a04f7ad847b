"""A class-data archive for Spark's JVMs, which shortens their start by a third or more.

    python -m hindcast_local.archive        what `make setup` runs

One JVM does once what runs do (Delta, Python workers, a classic session and Spark Connect) and archives the classes
that it loaded, parsed and verified, at `session.archive_path()`. A JVM with another class path ignores the archive.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hindcast.common import session, spark_connect
from hindcast.common.settings import read_settings
from hindcast_local import ports


def main(arguments: list[str]) -> int:
    """Make the archive, or, with `client URL FOLDER`, run as the Spark Connect client of that process."""
    if arguments:
        os.environ["SPARK_REMOTE"], folder = arguments[1:]
        _exercise_spark(Path(folder))
        return 0
    with tempfile.TemporaryDirectory() as name:
        _make_archive(Path(name))
    return 0


def _make_archive(folder: Path) -> None:
    session.archive_path().parent.mkdir(exist_ok=True)
    session.archive_path().unlink(missing_ok=True)
    new, port = session.archive_path().with_suffix(".new"), ports.find_free_port()
    options = session.default_properties(read_settings(), small=True)["spark.driver.extraJavaOptions"]
    conf = {
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"{options} -XX:ArchiveClassesAtExit={new} -Xlog:cds*=off",
        "spark.local.dir": str(folder / "tmp"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": ports.HOST,
        "spark.connect.grpc.binding.port": str(port),
    }
    os.environ[spark_connect.TOKEN_VARIABLE] = secrets.token_hex(
        32
    )  # for the server in this session and its client below
    spark = session.open_session("archive", conf, small=True)
    spark.range(1).collect()
    client = [sys.executable, "-m", "hindcast_local.archive", "client", f"sc://{ports.HOST}:{port}"]
    subprocess.run([*client, str(folder / "table")], check=True, env=_client_environment())
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  # the archive is complete when this process has ended
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=120)
    new.replace(session.archive_path())


def _exercise_spark(folder: Path) -> None:
    """Do on a small scale what runs do: call Python, join, window, write, merge, read an old version."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    spark = session.open_session("archive")
    numbers = spark.range(10).mapInArrow(lambda batches: batches, "id long")
    rows = numbers.select(
        F.struct(F.lit(1).alias("k")).alias("key"),
        F.struct(F.col("id").alias("v")).alias("value"),
        F.struct(F.lit(0).alias("partition"), F.col("id").alias("offset")).alias("position"),
        F.timestamp_millis("id").alias("timestamp"),
    )
    window = Window.partitionBy("key").orderBy("timestamp", "position")
    versions = rows.withColumn("validTo", F.lead("timestamp").over(window))
    path = str(folder)
    versions.write.format("delta").mode("append").options(txnAppId="archive", txnVersion="1").save(path)
    table = spark.read.format("delta").load(path)
    joined = rows.alias("l").join(
        table.alias("r"),
        F.expr("l.key = r.key AND l.timestamp >= r.timestamp AND (r.validTo IS NULL OR l.timestamp < r.validTo)"),
        "left",
    )
    joined.groupBy("l.key").agg(F.count("*"), F.max("l.timestamp"), F.collect_list("r.value")).collect()
    versions.createOrReplaceTempView("candidates")
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING candidates s ON t.position = s.position "
        "WHEN MATCHED THEN UPDATE SET value = s.value WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    spark.read.format("delta").option("versionAsOf", 0).load(path).toPandas()
    spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()


def _client_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
