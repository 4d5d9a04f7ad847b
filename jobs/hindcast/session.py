"""Spark sessions, and the one place that says how Spark is configured.

`SETTINGS` holds for every session, wherever it runs. `defaults` adds what depends on this machine and checkout, and is
what `make setup` writes to `.venv/spark-conf/` for spark-submit (--properties-file), what the Spark Connect server is
started with, and what a session in this process is made of. So all of them compute the same.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindcast import object_store, remote
from hindcast.errors import PlatformError
from hindcast.settings import Settings, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LITERAL = {"spark.sql.variable.substitute": "false"}
"""`${env:X}` in a text stays what it is. By default Spark puts variables of the environment, properties of the JVM and
settings of the session in the place of such names, in every SQL text: also where a user or a record wrote it.
"""

ZONE = {"spark.sql.session.timeZone": "UTC"}
"""Texts without a zone, days and hours are those of UTC, wherever a session was made, and by whom."""

MEANING = {**LITERAL, **ZONE}
"""What decides how a text is read. Every session has it, and every step sets it in whatever session it is called."""

SETTINGS = {
    **MEANING,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.types.framework.enabled": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.maxPlanStringLength": "8000",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.sql.ui.retainedExecutions": "1",
}
"""Holds for every session. AQE joins small shuffle partitions; a snapshot's log is small, so one partition reads it;
what is kept in memory is read three times, soon: compressing it would take longer. Without debugging no Python call
looks up the line that made it: errors name the contract's. Without a UI nothing asks for past plans, which are large.
Files have timestamps as microseconds: what Spark writes by default, others read wrong before 1678 and after 2262. The
types framework is off by default, but Spark 4.2 would look for that default in the environment at each comparison.
"""

SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Over `SETTINGS` while a step reads few rows: it would spend its time on planning and compiling, not on running."""

FEW = 10_000
"""Up to so many input rows a step is small."""

ROWS_PER_SLICE = "hindcast.rowsPerSlice"
"""The setting that asks operators to cut keys with more rows than this into slices of time (slices.py)."""

MANY, SLICES = 2_000_000, 256
"""From so many input rows on, a slice holds about one in so many of them."""

BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m", "-XX:+UseParallelGC")
"""For JVMs that live minutes: the second compiler would take a third of both cores and give it back too late. The first
alone gets 48 MB for its code by itself, and then compiles nothing any more.
"""


AVRO_LIMITS = tuple(
    f"-Dorg.apache.avro.limits.{what}.maxLength={most}"
    for what, most in (("bytes", 64 << 20), ("string", 64 << 20), ("collectionItems", 10_000_000))
)
"""For JVMs that decode: a record that claims to hold more is malformed. Avro would make room for all that it claims,
which can be more than the JVM has.
"""


_HADOOPS_UMASK = "fs.permissions.umask-mode"
UMASK = f"spark.hadoop.{_HADOOPS_UMASK}"
"""The property with the umask of files that Hadoop writes: all of Spark's."""


SECRET = {"spark.authenticate": "true"}
"""With a local master: the ports that Spark speaks to itself by ask for a secret, which each JVM makes for itself."""


def session(app: str = "hindcast", conf: Mapping[str, str] | None = None, *, small: bool = False) -> SparkSession:
    """The Spark session of this process, made if there is none.

    With SPARK_REMOTE set it is a Spark Connect client's; under spark-submit it takes its master and JVM from there;
    otherwise it is a classic one on all cores of this machine. `conf` goes over everything. `small` starts faster and
    computes slower: for tests and tiny jobs; it says something only where this process starts the JVM.
    """
    from pyspark.sql import SparkSession

    _use_utc()
    if url := os.environ.get("SPARK_REMOTE"):
        allow_deep_plans()
        return remote.connect(url, {"spark.app.name": app, **MEANING, **(conf or {})})
    now = settings()
    os.environ.update({name: value for name, value in environment().items() if name not in os.environ})
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(app, now, {**MEANING, **_places(now), **(conf or {})})
    master = {"spark.master": os.environ.get("SPARK_MASTER") or "local[*]"}
    properties = protect(now, {**master, **defaults(now, small=small), **(conf or {})})
    return _configured(SparkSession.builder.appName(app), properties).getOrCreate()


def allow_deep_plans() -> None:
    """Lets a Spark Connect client send plans of more than fifty operators on top of each other.

    Protobuf reads no message deeper than 100 unless it is told to, and the client reads its own where it asks for a
    checkpoint. The server takes 1024 (spark.connect.grpc.marshallerRecursionLimit).
    """
    with suppress(ImportError):  # protobuf in Python alone has no such limit
        from google._upb import _message  # type: ignore[import-untyped]  # it is C

        _message.SetAllowOversizeProtos(True)


@contextmanager
def temporarily(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """These settings of a session while the block lasts, then those it had before."""
    before = {name: spark.conf.get(name, None) for name in conf}
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, kept in before.items():
            spark.conf.unset(name) if kept is None else spark.conf.set(name, kept)


def sized(spark: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Settings that fit a step that reads `rows` rows, while it lasts: how fast it is, never what it gives.

    And texts that mean what they say, and the zone in which all steps read texts and days, whoever made the session,
    also one that exists on a server of others.
    """
    return temporarily(spark, {**MEANING, **(SMALL if rows <= FEW else {})})


def sliced(spark: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Operators that are called meanwhile, with `rows` rows as input, slice the time of keys with a large share."""
    return temporarily(spark, {ROWS_PER_SLICE: str(rows // SLICES)} if rows >= MANY else {})


def cores(spark: SparkSession) -> int:
    """About so many tasks a session does at once: as `defaults` has it, two shuffle partitions for each core."""
    return max(int(spark.conf.get("spark.sql.shuffle.partitions") or 0) // 2, 1)


def defaults(now: Settings, *, small: bool = False) -> dict[str, str]:
    """Every Spark property of a JVM on this machine; PlatformError when `make setup` has not been run."""
    jars = home() / "jars" / "spark"
    if not jars.is_dir():
        raise PlatformError("Spark's extra jars are not there", where=str(jars), mend="run `make setup`")
    classes, ours = f"{jars}/*", home() / "jars" / "object-store"
    if ours.is_dir():
        classes += f":{ours}/*"
    elif now.warehouse.startswith(object_store.SCHEME):
        found = "the log store by which commits in an object store are safe is not there"
        raise PlatformError(found, where=str(ours), mend="run `make object-store`")
    return {
        **SETTINGS,
        **_places(now),
        "spark.sql.shuffle.partitions": str(2 if small else min(2 * (os.cpu_count() or 1), 64)),
        "spark.driver.memory": now.spark_memory,
        "spark.driver.extraClassPath": classes,
        "spark.executor.extraClassPath": classes,
        "spark.driver.extraJavaOptions": " ".join(_java_options(small=small)),
        "spark.executor.extraJavaOptions": " ".join(AVRO_LIMITS),
    }


def protect(now: Settings, properties: Mapping[str, str]) -> dict[str, str]:
    """Return these properties, with what keeps other users of this machine out of a JVM that we start.

    That is the umask, which Hadoop does not take from its process, and `SECRET` if the master is local: without it
    whoever reaches those ports can have objects of theirs deserialized. On a cluster, whose machines need one secret
    together, `spark.authenticate` is the cluster's to set.
    """
    secret = SECRET if is_local(properties["spark.master"]) else {}
    return {UMASK: f"{now.umask:03o}", **properties, **secret}


def is_local(master: str) -> bool:
    """Is all of Spark one JVM with this master?"""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def defaults_file(now: Settings, *, small: bool = False) -> str:
    """The text of spark-defaults.conf, or of spark-small.conf, for spark-submit of jobs that bring few records."""
    lines = [f"{name} {value}" for name, value in sorted(defaults(now, small=small).items())]
    return "\n".join(["# Written by `make setup` from hindcast.session.", *lines, ""])


def environment() -> dict[str, str]:
    """The variables that a process needs to start Spark's JVMs and Python workers as `make setup` prepared them."""
    java_home = home() / "java-home"
    found = {"JAVA_HOME": java_home.read_text(encoding="utf-8").strip()} if java_home.is_file() else {}
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark and pyspark.origin:
        found["SPARK_HOME"] = str(Path(pyspark.origin).parent)
    return {**found, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}


def home() -> Path:
    """The virtual environment that we run in: packages, jars, Java, archives."""
    return Path(sys.prefix)


def archive() -> Path:
    """The class-data archive that shortens the start of Spark's JVMs."""
    return home() / "cds" / "spark.jsa"


def _java_options(*, small: bool) -> list[str]:
    logging = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
    shared = [f"-XX:SharedArchiveFile={archive()}", "-Xshare:auto", "-Xlog:cds*=off"] if archive().is_file() else []
    return [logging, *AVRO_LIMITS, *shared, *(BRIEF if small else ())]


def _places(now: Settings) -> dict[str, str]:
    return {
        "spark.sql.warehouse.dir": str(now.var / "spark-warehouse"),
        "spark.local.dir": str(now.var / "tmp"),
        **object_store.properties(now.warehouse, os.environ),
    }


def _submitted(app: str, settings: Settings, conf: Mapping[str, str]) -> SparkSession:
    """Return a session of the JVM that spark-submit has started, protected as one that we start.

    A umask that spark-submit was given stays. The file system of this machine, which spark-submit has opened before we
    could say anything, and which all use from then on, is told the umask as well.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()  # noqa: SLF001  # then a SparkConf is that JVM's
    given = dict(SparkConf().getAll())
    properties = protect(settings, {name: given[name] for name in ("spark.master", UMASK) if name in given} | {**conf})
    session = _configured(SparkSession.builder.appName(app), properties).getOrCreate()
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001  # PySpark has no other way to Hadoop
    hadoop = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    for configuration in (hadoop, jvm.org.apache.hadoop.fs.FileSystem.getLocal(hadoop).getConf()):
        configuration.set(_HADOOPS_UMASK, properties[UMASK])
    return session


def _configured(builder: SparkSession.Builder, conf: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder


def _use_utc() -> None:
    """Python's side of a session makes local times of timestamps: make local time UTC."""
    os.environ["TZ"] = "UTC"
    time.tzset()
