"""Spark sessions, and the only place where Spark is configured.

`SPARK_SETTINGS` holds for every session, wherever it runs. `default_properties` adds what depends on this machine and
checkout. `make setup` writes it to `.venv/spark-conf/` for spark-submit (--properties-file), the Spark Connect server
is started with it, and a session in this process is built from it. So all of them compute the same.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindcast.common import object_store, spark_connect
from hindcast.common.errors import PlatformError
from hindcast.common.extras import require_extra
from hindcast.common.settings import Settings, is_checkout, read_settings, setup_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SUBSTITUTION = {"spark.sql.variable.substitute": "false"}
"""`${env:X}` in a text stays as it is. By default Spark replaces such names in every SQL text by environment variables,
JVM properties and session settings, also where a user or a record wrote them.
"""

UTC_ZONE = {"spark.sql.session.timeZone": "UTC"}
"""Texts without a zone, days and hours are UTC, whoever created the session and wherever."""

AS_WRITTEN = {"spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ReorderAssociativeOperator"}
"""Whole numbers are added and multiplied in the order of the text: `a + 1 + b` overflows only if that does."""

TEXT_SETTINGS = {**NO_SUBSTITUTION, **UTC_ZONE, **AS_WRITTEN}
"""The settings that decide what a text means. Every session has them; every step sets them in the session it gets."""

_ARENAS, _MOST_ARENAS = "MALLOC_ARENA_MAX", "2"
"""Threads allocate in arenas; by default glibc has eight for each core, and gives back little of what was in them: in a
large replay Python workers kept a quarter of a GiB more.
"""

SPARK_SETTINGS = {
    **TEXT_SETTINGS,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.serializer.objectStreamReset": "1",
    "spark.shuffle.sort.bypassMergeThreshold": "16",
    f"spark.executorEnv.{_ARENAS}": _MOST_ARENAS,
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
what is cached is read three times, soon: compressing it would take longer. Without debugging Python calls do not look
up their line: errors name the contract's. Without a UI nothing reads past plans, which are large. Files have timestamps
in microseconds: others misread Spark's default before 1678 and after 2262. What writes packed records to disk keeps
none of them: by default Java's serializer keeps a hundred objects, of up to 32 MB each. By default each task of a
shuffle into up to 200 parts creates a file for each part, which takes longer than to sort them. Workers have few arenas
(`_ARENAS`). The types framework is off by default, but Spark 4.2 would look for that default in the environment at each
comparison.
"""

SMALL_STEP_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Replaces `SPARK_SETTINGS` while a step reads few rows: planning and compiling would take longer than running."""

FEW_ROWS = 10_000
"""The largest number of input rows of a small step."""

ROWS_PER_SLICE = "hindcast.rowsPerSlice"
"""The setting above which many rows operators cut a key into slices of time (skew.py)."""

MANY_ROWS, SLICES = 2_000_000, 256
"""From MANY_ROWS input rows on, a slice holds about 1/SLICES of them."""

SHORT_LIVED_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m", "-XX:+UseParallelGC")
"""For JVMs that live minutes: the second compiler would take a third of both cores and pay off too late. The first
alone gets only 48 MB for its code by default, and stops compiling when they are full.
"""

AVRO_LIMITS = tuple(
    f"-Dorg.apache.avro.limits.{what}.maxLength={most}"
    for what, most in (("bytes", 64 << 20), ("string", 64 << 20), ("collectionItems", 1_000_000))
)
"""For JVMs that decode: a record that declares more is malformed. Avro would allocate all that it declares, which can
be more than the JVM has: of arrays within arrays, the room for the items of all, some MB each.
"""

_HADOOP_UMASK = "fs.permissions.umask-mode"
UMASK_PROPERTY = f"spark.hadoop.{_HADOOP_UMASK}"
"""The property with the umask of files that Hadoop writes, which are all of Spark's."""

SECRET_SETTINGS = {"spark.authenticate": "true"}
"""For a local master: Spark's internal ports ask for a secret, which each JVM generates for itself."""


def open_session(app: str = "hindcast", conf: Mapping[str, str] | None = None, *, small: bool = False) -> SparkSession:
    """Return the Spark session of this process; create it if there is none.

    With SPARK_REMOTE set it is a Spark Connect client's; under spark-submit it uses that JVM and master; otherwise it
    is a classic session on all cores of this machine. `conf` overrides everything. `small` starts faster and computes
    slower, for tests and tiny jobs; it has an effect only if this process starts the JVM.
    """
    from pyspark.sql import SparkSession

    _use_utc()
    if url := os.environ.get("SPARK_REMOTE"):
        allow_deep_plans()
        return spark_connect.connect_to_server(url, {"spark.app.name": app, **TEXT_SETTINGS, **(conf or {})})
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        require_extra("spark", "py4j", "delta")
    settings = read_settings()
    os.environ.update({name: value for name, value in spark_environment().items() if name not in os.environ})
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _open_submitted_session(app, settings, {**TEXT_SETTINGS, **_path_properties(settings), **(conf or {})})
    here = {
        "spark.master": os.environ.get("SPARK_MASTER") or "local[*]",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty() and settings.log != "json").lower(),
    }
    properties = protect_properties(settings, {**default_properties(settings, small=small), **here, **(conf or {})})
    return _configure_builder(SparkSession.builder.appName(app), properties).getOrCreate()


def allow_deep_plans() -> None:
    """Allow a Spark Connect client to send plans of more than fifty nested operators.

    By default protobuf reads no message deeper than 100, and the client reads its own when it asks for a
    checkpoint. The server takes 1024 (spark.connect.grpc.marshallerRecursionLimit).
    """
    with suppress(ImportError):  # protobuf in Python alone has no such limit
        from google._upb import _message  # type: ignore[import-untyped]  # it is C

        _message.SetAllowOversizeProtos(True)


@contextmanager
def override_conf(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Set these settings of a session during the block; restore the former ones afterwards."""
    if not conf:
        yield
        return
    read, write = _read_conf, _write_conf
    if spark_connect.is_client(spark):
        read, write = spark_connect.read_conf, spark_connect.write_conf
    before = read(spark, conf)
    try:
        write(spark, conf)
        yield
    finally:
        write(spark, before)


def _read_conf(spark: SparkSession, names: Iterable[str]) -> dict[str, str | None]:
    return {name: spark.conf.get(name, None) for name in names}


def _write_conf(spark: SparkSession, conf: Mapping[str, str | None]) -> None:
    for name, value in conf.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def fit_to_rows(spark: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Return a context with the settings for a step that reads `rows` rows; they change its speed, never its result.

    It also sets `TEXT_SETTINGS`, whoever created the session, for example on a server of others.
    """
    return override_conf(spark, {**TEXT_SETTINGS, **(SMALL_STEP_SETTINGS if rows <= FEW_ROWS else {})})


def slice_large_keys(spark: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Return a context in which operators with `rows` input rows cut large keys into slices of time."""
    return override_conf(spark, {ROWS_PER_SLICE: str(rows // SLICES)} if rows >= MANY_ROWS else {})


def count_cores(spark: SparkSession) -> int:
    """Return the approximate number of concurrent tasks: `default_properties` sets two shuffle partitions per core."""
    return max(int(spark.conf.get("spark.sql.shuffle.partitions") or 0) // 2, 1)


def default_properties(settings: Settings, *, small: bool = False) -> dict[str, str]:
    """Return every Spark property of a JVM on this machine; PlatformError if `make setup` has not been run."""
    jars = parts_folder() / "jars" / "spark"
    if not jars.is_dir():
        raise PlatformError("Spark's extra jars are missing", where=str(jars), fix=f"run `{setup_command()}`")
    classes, log_store = f"{jars}/*", parts_folder() / "jars" / "object-store"
    if log_store.is_dir():
        classes += f":{log_store}/*"
    elif settings.warehouse.startswith(object_store.SCHEME):
        problem = "the log store that makes commits in an object store safe is missing"
        raise PlatformError(problem, where=str(log_store), fix="run `make object-store`, in a checkout of Hindcast")
    return {
        **SPARK_SETTINGS,
        **_path_properties(settings),
        "spark.sql.shuffle.partitions": str(2 if small else min(2 * (os.cpu_count() or 1), 64)),
        "spark.driver.memory": settings.spark_memory,
        "spark.driver.extraClassPath": classes,
        "spark.executor.extraClassPath": classes,
        # A task that runs out of memory or stack fails. It must not end the JVM, which others may share.
        "spark.executor.killOnFatalError.depth": "0",
        "spark.driver.extraJavaOptions": " ".join(_list_java_options(small=small)),
        "spark.executor.extraJavaOptions": " ".join(AVRO_LIMITS),
    }


def protect_properties(settings: Settings, properties: Mapping[str, str]) -> dict[str, str]:
    """Return these properties with those that keep other users of this machine out of a JVM that we start.

    These are the umask, which Hadoop does not take from its process, and `SECRET_SETTINGS` if the master is local:
    without it, whoever reaches those ports can make the JVM deserialize their objects. The machines of a cluster need a
    common secret, so there `spark.authenticate` is up to the cluster.
    """
    secret = SECRET_SETTINGS if is_local(properties["spark.master"]) else {}
    return {UMASK_PROPERTY: f"{settings.umask:03o}", **properties, **secret}


def is_local(master: str) -> bool:
    """Return whether all of Spark is one JVM with this master."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def format_defaults_file(settings: Settings, *, small: bool = False) -> str:
    """Return the text of spark-defaults.conf, or of spark-small.conf for spark-submit of jobs with few records."""
    lines = [f"{name} {value}" for name, value in sorted(default_properties(settings, small=small).items())]
    return "\n".join([f"# Written by `{setup_command()}` from hindcast.common.session.", *lines, ""])


def write_defaults_files(settings: Settings) -> None:
    """Write the files of properties for spark-submit (`DEFAULTS_FILES`)."""
    for name, small in DEFAULTS_FILES.items():
        file = conf_folder() / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(format_defaults_file(settings, small=small), encoding="utf-8")


DEFAULTS_FILES = {"spark-defaults.conf": False, "spark-small.conf": True}
"""The files in `conf_folder`, each with whether it is for jobs with few records."""


def spark_environment() -> dict[str, str]:
    """Return the variables that a process needs to start Spark's JVMs and Python workers after `make setup`."""
    java_home = parts_folder() / "java-home"
    variables = {"JAVA_HOME": java_home.read_text(encoding="utf-8").strip()} if java_home.is_file() else {}
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark and pyspark.origin:
        variables["SPARK_HOME"] = str(Path(pyspark.origin).parent)
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
    return {**variables, **own, _ARENAS: _MOST_ARENAS}


def venv_folder() -> Path:
    """Return the folder of our virtual environment: packages, jars, Java, archives."""
    return Path(sys.prefix)


def parts_folder() -> Path:
    """Return the folder of Spark's jars, properties and Java: our virtual environment, or a folder of our own in the
    environment in which the package is installed.
    """
    return venv_folder() if is_checkout() else venv_folder() / "share" / "hindcast"


def conf_folder() -> Path:
    """Return the folder of the files of properties for spark-submit."""
    return parts_folder() / "spark-conf"


def archive_path() -> Path:
    """Return the path of the class-data archive that shortens the start of Spark's JVMs."""
    return parts_folder() / "cds" / "spark.jsa"


LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
"""The option that makes a JVM log like ours: warnings, on stderr."""


def _list_java_options(*, small: bool) -> list[str]:
    shared = (
        [f"-XX:SharedArchiveFile={archive_path()}", "-Xshare:auto", "-Xlog:cds*=off"]
        if archive_path().is_file()
        else []
    )
    return [LOGGING, *AVRO_LIMITS, *shared, *(SHORT_LIVED_JVM_OPTIONS if small else ())]


def _path_properties(settings: Settings) -> dict[str, str]:
    return {
        "spark.sql.warehouse.dir": str(settings.var / "spark-warehouse"),
        "spark.local.dir": str(settings.var / "tmp"),
        **object_store.spark_properties(settings.warehouse, os.environ),
    }


def _open_submitted_session(app: str, settings: Settings, conf: Mapping[str, str]) -> SparkSession:
    """Return a session of the JVM that spark-submit has started, protected like one that we start.

    A umask that was given to spark-submit stays. The umask is also set in the local file system object, which
    spark-submit has opened before and which all code uses from then on.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()  # noqa: SLF001  # then a SparkConf is that JVM's
    given = dict(SparkConf().getAll())
    properties = protect_properties(
        settings, {name: given[name] for name in ("spark.master", UMASK_PROPERTY) if name in given} | {**conf}
    )
    session = _configure_builder(SparkSession.builder.appName(app), properties).getOrCreate()
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001  # PySpark has no other access to Hadoop
    hadoop = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    for configuration in (hadoop, jvm.org.apache.hadoop.fs.FileSystem.getLocal(hadoop).getConf()):
        configuration.set(_HADOOP_UMASK, properties[UMASK_PROPERTY])
    return session


def _configure_builder(builder: SparkSession.Builder, conf: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder


def _use_utc() -> None:
    """Make local time UTC: the Python side of a session converts timestamps to local times."""
    os.environ["TZ"] = "UTC"
    time.tzset()
