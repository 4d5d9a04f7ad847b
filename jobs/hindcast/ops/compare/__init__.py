"""Compare a replayed `kafka` view with the output topic of a live application: what is equal, and what differs how.

Records are compared per key, or per key and window: they are equal if they have the same timestamp and value. The order
between records of different keys or partitions is not compared.

DuckDB compares in a file: what does not fit in memory is stored there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from hindcast.common import progress, step_events
from hindcast.common.errors import PlatformError, QueryError, TableError, UnknownError, suggest_nearest
from hindcast.contract import Contract, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.kafka.cluster import Cluster
from hindcast.ops.compare import outputs, rules
from hindcast.ops.compare.comparison import Comparison, DifferenceCount
from hindcast.ops.compare.differences import KINDS, assign_rules, find_differences, pair_records
from hindcast.ops.compare.formatting import read_examples
from hindcast.ops.compare.outputs import PARTITION_SHIFT, OutputFormat, Windows, struct_expression
from hindcast.ops.compare.rules import ComparisonFacts, DifferenceRule
from hindcast.plan import marks
from hindcast.query import read
from hindcast.store import duckdb_reader, emitted_log, table_columns, tables


def compare_view(
    warehouse: str,
    servers: str,
    contract: BoundContract,
    name: str,
    topic: str,
    limit: int = 5,
    key_format: str | None = None,
) -> Comparison:
    """Compare what the completed runs have replayed of a view with all that a topic holds now; return the result.

    `key_format`: how the topic's keys are written, as in a contract. Raises QueryError if there is nothing to compare,
    TopicError and RecordError for a topic that cannot be read.
    """
    emitted = _open_emitted_log(warehouse, contract, name)
    known_at = read.read_last_known_at(warehouse, contract.pipeline)
    read.refuse_forgotten(warehouse, contract, name)
    with (
        step_events.record_step("compare", contract.pipeline, table=name),
        progress.report_progress(),
        _open_engine() as engine,
        Cluster(servers) as cluster,
    ):
        form, epoch = _load_replayed(
            engine, emitted, contract, name, known_at, key_format or _find_key_format(contract, name)
        )
        extent = outputs.load_output(engine, cluster, topic, form)
        pair_records(engine)
        find_differences(engine, warehouse, contract, name, form)
        runs = _count_rows(engine, "(SELECT DISTINCT run FROM ours)")
        ordered_rules = rules.list_rules(contract, name, ComparisonFacts(extent, cluster.is_compacted(topic), runs))
        assign_rules(engine, ordered_rules)
        return Comparison(
            view=f"{contract.pipeline}.{name}",
            topic=topic,
            known_at=known_at,
            epoch=epoch,
            held=_count_rows(engine, "live"),
            replayed=_count_rows(engine, "ours"),
            equal=_count_rows(engine, "pairs WHERE kind = 'equal'")
            - _count_rows(engine, "judged WHERE kind = 'order'"),
            differences=_count_by_rule(engine, ordered_rules),
            examples=read_examples(engine, ordered_rules, form, _find_hidden(contract, name), limit),
            not_compared=extent.extra_fields,
        )


def _find_hidden(contract: BoundContract, name: str) -> frozenset[str]:
    return marks.find_marked_columns(contract.settings, contract, [name])[name]


_TIME_COLUMNS = ("timestamp", "windowStart", "windowEnd", "systemFrom")
_REQUIRED_COLUMNS = {"_epoch", "_partition", "_offset", "_tombstone", "_run", "timestamp", "systemFrom"}
_MEMORY = "2GB"


@contextmanager
def _open_engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with (
        tempfile.TemporaryDirectory(prefix="hindcast-compare-") as folder,
        duckdb.connect(str(Path(folder, "compared.duckdb"))) as engine,
    ):
        engine.execute(f"SET memory_limit = '{_MEMORY}'; SET preserve_insertion_order = false")
        engine.execute("SET GLOBAL TimeZone = 'UTC'")
        try:
            yield engine
        except duckdb.Error as error:
            if not isinstance(error, duckdb.OutOfMemoryException) and "No space left" not in str(error):
                raise
            raise PlatformError(
                f"the comparison does not fit: {str(error).splitlines()[0]}",
                where=folder,
                fix="set TMPDIR to a disk with more room, or compare fewer records",
            ) from None


def _open_emitted_log(warehouse: str, contract: Contract, name: str) -> DeltaTable:
    """Return the emitted log of a view; raise QueryError if it is empty or cannot exist."""
    where = f"{contract.pipeline}.{name}"
    views = {key for key, view in contract.views.items() if view.semantics == "kafka"}
    if name not in contract.views:
        raise UnknownError(f"no view '{name}'", where=contract.pipeline, fix=suggest_nearest(name, views))
    if name not in views:
        raise QueryError(
            "the view has the corrected reading, which no live application emits",
            where=where,
            fix="compare a view with semantics: kafka; it can stand beside this one under another name",
        )
    delta_table = tables.open_table(emitted_log.emitted_table(warehouse, contract, name))
    if delta_table is None:
        raise QueryError(
            "nothing of the view has been replayed yet", where=where, fix=f"hindcast run {contract.pipeline}"
        )
    return delta_table


def _load_replayed(
    engine: duckdb.DuckDBPyConnection,
    delta_table: DeltaTable,
    contract: BoundContract,
    name: str,
    known_at: datetime,
    keyed_as: str,
) -> tuple[OutputFormat, int]:
    """Create the table `ours` of a view's last epoch, with the columns of `live`, `run` and the place of the cause.

    Return the format that the view expects of the records of a topic, and the epoch.
    """
    window = contract.views[name].window
    with engine.cursor() as cursor:
        duckdb_reader.register_rows(cursor, delta_table)
        types = {column: kind for column, kind, *_ in cursor.execute("DESCRIBE rows").fetchall()}
        key = {column: types[column] for column in list_shapes(contract)[name].key if column in types}
        if not key or not types.keys() >= _REQUIRED_COLUMNS:
            where, fix = delta_table.table_uri, "run the pipeline again"
            raise TableError("is not the emitted log of a kafka view", where=where, fix=fix)
        dropped = table_columns.read_dropped_columns(delta_table)
        value = {
            c: kind for c, kind in types.items() if not c.startswith("_") and c not in {*key, *_TIME_COLUMNS, *dropped}
        }
        start = "epoch_ms(windowStart)" if window else "NULL::BIGINT"
        end = "epoch_ms(windowEnd)" if window and window.session else "NULL::BIGINT"
        has_key = " OR ".join(f'"{column}" IS NOT NULL' for column in key)
        (epoch,) = cursor.execute("SELECT max(_epoch) FROM rows WHERE systemFrom <= ?", [known_at]).fetchall()[0]
        cursor.execute(
            f"CREATE TABLE ours AS SELECT (_partition::BIGINT << {PARTITION_SHIFT}) + _offset AS place, "  # noqa: S608  # names
            f"CASE WHEN {has_key} THEN {struct_expression(key)} END AS k, {start} AS w0, {end} AS w1, "
            f"epoch_ms(timestamp) AS t, "
            f"CASE WHEN NOT _tombstone THEN {struct_expression(value)} END AS v, _run AS run, "
            "_causeTopic AS cause, _causePartition AS cause_partition, _causeOffset AS cause_offset "
            "FROM rows WHERE _epoch = ? AND systemFrom <= ?",
            [epoch, known_at],
        )
    windows: Windows = ("session" if window.session else "time") if window else None
    return OutputFormat(key, value, keyed_as, windows, bool(_find_hidden(contract, name))), epoch or 0


def _find_key_format(contract: Contract, name: str) -> str:
    """Return how a view's key is written: as its topic's key; a new key by the number of its columns."""
    if name in contract.topics and contract.topics[name].effective_key_format in ("string", "json"):
        return contract.topics[name].effective_key_format
    view = contract.views.get(name)
    if view is not None and not view.key and not view.group_by:
        return _find_key_format(contract, view.first_input)
    return "string" if len(list_shapes(contract)[name].key) == 1 else "json"


def _count_by_rule(engine: duckdb.DuckDBPyConnection, ordered_rules: list[DifferenceRule]) -> list[DifferenceCount]:
    """Return how many differences of each kind are likely due to which rule."""
    rows = engine.execute("SELECT kind, rule, count(*) AS n FROM judged GROUP BY ALL ORDER BY n DESC, rule").fetchall()
    return [DifferenceCount(kind, n, ordered_rules[number]) for kind in KINDS for k, number, n in rows if k == kind]


def _count_rows(engine: duckdb.DuckDBPyConnection, rows: str) -> int:
    return int(engine.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0])  # noqa: S608  # our own tables
