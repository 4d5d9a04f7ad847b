"""The engines: how each reads Delta tables and writes its output, and what an output holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from deltalake import DeltaTable

from bench.speed.data import KNOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SYSTEM = f"TIMESTAMPTZ '{KNOWN.isoformat()}' AS systemFrom, CAST(NULL AS TIMESTAMPTZ) AS systemTo"
"""The system period of all rows, which every output has, in DuckDB's SQL."""
SYSTEM_OF_SPARK = SYSTEM.replace("TIMESTAMPTZ", "TIMESTAMP")
MEMORY = "6GB"


@dataclass(frozen=True)
class Content:
    """What an output holds, whatever the order of its rows; `format` is how it is stored."""

    count: int
    checksum: int
    format: str

    def same_as(self, other: Content) -> bool:
        return (self.count, self.checksum) == (other.count, other.checksum)

    def differs(self, other: Content) -> str:
        if self.count != other.count:
            return f"{self.count:,} rows instead of {other.count:,}"
        return f"{self.count:,} rows, of which some differ"


def content(output: Path, columns: Sequence[str]) -> Content:
    """The rows of an output as far as `columns` (SQL expressions) tell them."""
    listed, delta = files(output), (output / "_delta_log").exists()
    hashed = ", ".join(columns)
    with engine() as it:
        query = f"SELECT count(*), sum(hash({hashed})::HUGEINT) FROM {scan(listed)}"  # noqa: S608  # ours
        count, checksum = it.execute(query).fetchall()[0]
    return Content(count, int(checksum or 0), "Delta" if delta else "Parquet")


def files(folder: Path) -> list[str]:
    """The files of a Delta table as it stands, or of a folder of Parquet files."""
    if (folder / "_delta_log").exists():
        return [uri.removeprefix("file://") for uri in DeltaTable(str(folder)).file_uris()]
    return sorted(map(str, folder.rglob("*.parquet")))


def scan(listed: Sequence[str]) -> str:
    """Files as DuckDB reads them."""
    quoted = ", ".join(f"'{path}'" for path in listed)
    return f"read_parquet([{quoted}], hive_partitioning = true)"


def engine() -> duckdb.DuckDBPyConnection:
    """DuckDB with as many threads as there are cores."""
    made = duckdb.connect(config={"memory_limit": MEMORY, "preserve_insertion_order": "false"})
    made.execute("SET enable_progress_bar = false")
    return made


def by_duckdb(query: str, **tables: Path) -> Callable[[Path], None]:
    """A contestant's `run`: `query` names its inputs in braces; from their files to one Parquet file."""

    def run(output: Path) -> None:
        output.mkdir()
        text = query.format(**{name: scan(files(path)) for name, path in tables.items()}, system=SYSTEM)
        with engine() as it:
            it.execute(f"COPY ({text}) TO '{output}/rows.parquet' (FORMAT parquet)")

    return run


def by_polars(query: Callable[..., Any], **tables: Path) -> Callable[[Path], None]:
    """The same of Polars: `query` is given a lazy frame for each table and gives one."""

    def run(output: Path) -> None:
        import polars as pl

        output.mkdir()
        frames = {name: pl.scan_parquet(files(path), hive_partitioning=True) for name, path in tables.items()}
        last = pl.lit(None, pl.Datetime("us", "UTC")).alias("systemTo")
        rows = query(**frames).with_columns(pl.lit(KNOWN).cast(pl.Datetime("us", "UTC")).alias("systemFrom"), last)
        rows.collect(engine="streaming").write_parquet(output / "rows.parquet")

    return run


def by_spark(spark: SparkSession, query: Callable[..., DataFrame] | str, **tables: Path) -> Callable[[Path], None]:
    """The same of Spark, from Delta to Delta: `query` makes a frame of frames, or is SQL that names its inputs."""

    def run(output: Path) -> None:
        if isinstance(query, str):
            rows = spark.sql(
                query.format(**{n: f"delta.`{path}`" for n, path in tables.items()}, system=SYSTEM_OF_SPARK)
            )
        else:
            rows = query(**{name: spark.read.format("delta").load(str(path)) for name, path in tables.items()})
        rows.write.format("delta").save(str(output))

    return run


def cold(spark: SparkSession) -> Callable[[], object]:
    """What is done before Spark is timed: it forgets the Delta logs that it has read, so that none is stale."""
    jvm: Any = spark._jvm  # noqa: SLF001  # there is no other way
    return jvm.org.apache.spark.sql.delta.DeltaLog.clearCache  # type: ignore[no-any-return]
