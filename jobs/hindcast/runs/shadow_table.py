"""Building a table of the current store format beside one of an older format, while runs continue with the old one.

`rollover/<table>` gets the rows of one version of the table, as the proxy view shows them, in chunks; a retry continues
after the last one. Then a run replaces the table's rows (`catch_up_shadow`) by the built ones and, for keys that runs
have changed meanwhile, by its own. Both sides are compared before that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.common.errors import TableError
from hindcast.common.json_values import JsonObject
from hindcast.plan import journal, notices
from hindcast.store import commit_once, commits, delta_log, own_tables, row_reader, table_creation, tables
from hindcast.store.tables import Table

BUILD_PROPERTY = "hindcast.rollover"
"""The table property of a shadow table, as JSON: the `version` and `knownAt` that it is built from; the number of its
`chunks`, whose commits are numbered from `after` + 1.
"""


def shadow_table(table: Table) -> Table:
    """Return the table in which the new rows of a table are built."""
    return Table(table.warehouse, table.pipeline, f"rollover/{table.name}", table.kind, table.key, widen=table.widen)


def build_shadow(spark: SparkSession, table: Table, chunk_rows: int) -> None:
    """Build the new table, or continue where that stopped, with a commit for about `chunk_rows` rows each.

    If VACUUM has removed the version that it was built from, start from scratch with the current one.
    """
    new, delta_table = shadow_table(table), tables.open_table(table)
    if delta_table is None or (older := tables.read_older_format(delta_table)) is None:
        return
    build = _read_build(new)
    if build is None or not _is_readable(table, build.version):
        build = _begin_build(spark, table, new, chunk_rows)
    version = spark.read.format("delta").option("versionAsOf", build.version).load(table.path)
    rows = row_reader.convert_older_rows(version, older)
    chunk = F.pmod(F.xxhash64(*(F.col(f"`{column}`") for column in table.key)), F.lit(build.chunks))
    for number in range(build.chunks):
        notices.refuse_forgetting(table.warehouse, table.pipeline, f"the upgrade of {table.name}")
        append_chunk(rows.where(chunk == number), new, build.after + number + 1)


def append_chunk(rows: DataFrame, new: Table, number: int) -> None:
    """Commit one chunk of a table that is being built, unless it was committed before."""
    if tables.read_last_run(new) < number:
        commits.append_rows(rows, new, number, {"run": number})


@contextmanager
def catch_up_shadow(spark: SparkSession, table: Table) -> Iterator[DataFrame]:
    """Yield the rows to replace a table's: those that were built, with what runs have changed since.

    Raise TableError if the table was not built, or if these rows differ from what the table has now.
    """
    new = shadow_table(table)
    build = _read_build(new)
    if build is None or tables.read_last_run(new) < build.after + build.chunks:
        raise TableError("the new table has not been built yet", where=new.path, fix="hindcast upgrade builds it")
    current, since = row_reader.load_rows(spark, table), F.lit(build.known_at)
    key = F.struct(*(F.col(f"`{column}`") for column in table.key))
    touched = (
        current.where((F.col("systemFrom") > since) | (F.col("systemTo") > since)).select(key.alias("_key")).distinct()
    )
    built = row_reader.load_stored_rows(spark, new).join(touched, key == F.col("_key"), "left_anti")
    changed = current.join(touched, key == F.col("_key"), "left_semi")
    rows = built.unionByName(changed, allowMissingColumns=True).persist()
    try:
        current_total, new_total = (_count_and_hash(side.select(*current.columns)) for side in (current, rows))
        if current_total != new_total:
            clear_shadow(spark, table)
            raise TableError(
                f"the new table has {new_total[0]:,} rows, the current one {current_total[0]:,}; or the rows differ",
                where=new.path,
                fix="nothing was swapped: hindcast upgrade builds the new table again",
            )
        yield rows
    finally:
        rows.unpersist()


def clear_shadow(spark: SparkSession, table: Table) -> None:
    """Empty the table that was built, so that the next build starts from scratch."""
    new = shadow_table(table)
    if (delta_table := tables.open_table(new)) is not None:
        _write_build(delta_table, new, None)
        commit_once.check_guard()
        own_tables.run_statement(spark, new.path, f"DELETE FROM delta.`{new.path}`")  # noqa: S608  # a path of ours


@dataclass(frozen=True)
class _Build:
    """From which version of a table, and up to which run's known-at, its shadow is built, in how many chunks.

    `after`: the number of the last commit to the shadow before.
    """

    version: int
    known_at: datetime
    chunks: int
    after: int

    def as_json(self) -> JsonObject:
        """Return the value of the table property."""
        known_at = self.known_at.isoformat()
        return {"version": self.version, "knownAt": known_at, "chunks": self.chunks, "after": self.after}


def _begin_build(spark: SparkSession, table: Table, new: Table, chunk_rows: int) -> _Build:
    """Create or empty the new table; store and return from which version it is built, and in how many chunks."""
    version = DeltaTable(table.path).version()
    runs = [run.known_at for run in journal.read_runs(table.warehouse, table.pipeline) if run.is_finished]
    rows = row_reader.load_rows(spark, table)
    created = table_creation.ensure_table(new, table_creation.make_nullable(rows.schema))
    clear_shadow(spark, table)
    known_at = max(runs, default=datetime.min.replace(tzinfo=UTC))
    chunks = max(1, -(-tables.count_rows(table) // chunk_rows))
    build = _Build(version, known_at, chunks, tables.read_last_run(new))
    _write_build(DeltaTable(created.table_uri), new, build)
    return build


def _is_readable(table: Table, version: int) -> bool:
    """Return whether all files of a version still exist; VACUUM removes those that later versions do not have."""
    try:
        then = DeltaTable(table.path, version=version)
    except (DeltaError, OSError):
        return False
    files = delta_log.open_filesystem(then).get_file_info(delta_log.list_paths(then))
    return all(file.type != FileType.NotFound for file in files)


def _read_build(new: Table) -> _Build | None:
    """Return what `_begin_build` stored; None if nothing is being built."""
    delta_table = tables.open_table(new)
    properties = delta_table.metadata().configuration if delta_table is not None else {}
    build = json.loads(properties.get(BUILD_PROPERTY, "{}"))
    if not build:
        return None
    return _Build(build["version"], datetime.fromisoformat(build["knownAt"]), build["chunks"], build["after"])


def _write_build(delta_table: DeltaTable, new: Table, build: _Build | None) -> None:
    text = json.dumps(build.as_json() if build else {})
    commit_once.check_guard()
    try:
        delta_table.alter.set_table_properties({BUILD_PROPERTY: text}, raise_if_not_exists=False)
    except (DeltaError, OSError) as error:
        raise table_creation.explain_write_error(error, new.path) from None


def _count_and_hash(rows: DataFrame) -> tuple[int, int]:
    """Return the number of rows and a checksum of them that does not depend on their order."""
    # A sum of hashes as long integers would overflow; a decimal does not.
    hashed = F.sum(F.xxhash64(*(F.col(f"`{column}`") for column in rows.columns)).cast("decimal(20,0)"))
    row = rows.agg(F.count("*").alias("n"), F.coalesce(hashed, F.lit(0)).alias("sum")).first()
    return (row["n"], int(row["sum"])) if row else (0, 0)
