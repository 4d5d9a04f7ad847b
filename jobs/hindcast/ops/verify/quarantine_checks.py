"""Check the quarantine against the logs: it has each refused record once, with its bytes, and nothing else.

Without Spark. What was refused before the moment up to which the quarantine was trimmed (plan/horizon.py) is not
compared. A log may have been trimmed further: then only the quarantine has its refused records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from hindcast.common.plurals import format_count
from hindcast.contract import Contract
from hindcast.ingest import quarantine, requeued_records
from hindcast.ingest import trim_ledger as counts
from hindcast.kafka import gaps
from hindcast.ops.verify.findings import Finding
from hindcast.plan import horizon, notices
from hindcast.plan.runs import Run
from hindcast.store import arrow_reader, duckdb_reader, table_creation, tables
from hindcast.store.tables import Table

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("fate", StringType()),
        StructField("reason", StringType()),
        StructField("run", LongType()),
        StructField("systemFrom", TimestampType()),
    ]
)


def check_quarantine(
    contract: Contract, topics: Sequence[str], runs: list[Run], stored: Table, opened: Mapping[Table, DeltaTable]
) -> Iterator[Finding]:
    """Yield a finding if the quarantine differs from what runs up to the last completed one refused of some topics."""
    last = max((run.number for run in runs if run.state == "completed"), default=0)
    with duckdb_reader.connect_alone() as engine:
        _load_tables(engine, contract, topics, stored, opened)
        for side, other, what in (
            ("refused", "had", "refused and not in the quarantine as the log has it"),
            ("due", "refused", "in the quarantine and not refused as it stands there"),
        ):
            rows = engine.execute(
                f"FROM (SELECT {_COMPARED_COLUMNS} FROM {side} WHERE run <= $last "  # noqa: S608  # names of ours
                f"EXCEPT ALL SELECT {_COMPARED_COLUMNS} FROM {other}) "
                'ORDER BY topic, "partition", "offset"',
                {"last": last},
            ).fetchall()
            if rows:
                topic, partition, offset, fate = rows[0][:4]
                fix = f"hindcast quarantine {contract.pipeline} --rebuild"
                if (erasure := _find_broken_erasure(runs, topics)) is not None:
                    fix = f"repeat the hindcast forget that run {erasure.number} began; --rebuild undoes part of it"
                text = f"{format_count(len(rows), 'record')} {what}; the first: {fate}, topic {topic}"
                yield Finding("quarantine", stored.name, text, fix, None, partition, offset)
                return


def _find_broken_erasure(runs: Sequence[Run], topics: Sequence[str]) -> Run | None:
    """Return the last run that was to forget something of a topic and did not, unless a later one did."""
    last: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.number):
        if run.plan.erasure and run.plan.erasure.topic in topics:
            last[run.plan.erasure.digest] = run
    broken = [run for run in last.values() if run.state != "completed"]
    return max(broken, key=lambda run: run.number, default=None)


def rebuild_quarantine(warehouse: str, contract: Contract) -> int:
    """Write the quarantine again from logs and fates, in one commit; return how many records it has then.

    Rows of topics that the contract does not have stay. The former rows stay in the history of the table.
    """
    with notices.post_notice(warehouse, contract.pipeline, "a rebuild of the quarantine"):
        return _rebuild_quarantine(warehouse, contract)


def _rebuild_quarantine(warehouse: str, contract: Contract) -> int:
    """Do what `rebuild_quarantine` says."""
    stored = quarantine.quarantine_table(warehouse, contract.pipeline)
    sources = {
        locate(warehouse, contract.pipeline, name)
        for name in contract.topics
        for locate in (tables.log_table, tables.fates_table)
    }
    opened = {table: it for table in (*sources, stored) if (it := tables.open_table(table)) is not None}
    delta_table = table_creation.ensure_table(stored, SCHEMA)
    with duckdb_reader.connect_alone() as engine:
        _load_tables(engine, contract, list(contract.topics), stored, opened)
        own = _find_own_topics(engine, contract, list(contract.topics))
        kept = "SELECT * FROM quarantined WHERE NOT contains($topics, topic)"
        using = f"USING ({_PLACE_COLUMNS})"
        alone = f"SELECT {_COLUMNS} FROM had ANTI JOIN due {using} ANTI JOIN refused {using}"  # noqa: S608
        query = f"SELECT * EXCLUDE name FROM refused UNION ALL {kept} UNION ALL {alone}"  # noqa: S608  # names of ours
        rows: pa.Table = engine.sql(query, params={"topics": own}).to_arrow_table()
        done = engine.execute("SELECT name, max(run) FROM refused GROUP BY name").fetchall()
    data = rows.cast(pa.schema(delta_table.schema().to_arrow()))
    ids = [Transaction(stored.app_id(part), run) for part, run in done if run > tables.read_last_run(stored, part)]
    notices.refuse_lost_notice()
    try:
        write_deltalake(delta_table, data, mode="overwrite", commit_properties=CommitProperties(app_transactions=ids))
    except (DeltaError, OSError) as error:
        raise table_creation.explain_write_error(error, stored.path) from None
    return int(data.num_rows)


def _load_tables(
    engine: duckdb.DuckDBPyConnection,
    contract: Contract,
    topics: Sequence[str],
    stored: Table,
    opened: Mapping[Table, DeltaTable],
) -> None:
    """Create the tables that are compared; all but `quarantined` without what was trimmed.

    `refused`: what logs and fates have (`name`: the part of the commits to the quarantine that adds it); `quarantined`:
    all of the quarantine; `had`: its rows of these topics; `due`: those of them that the logs must have. A topic
    in Kafka is compared if all its entries are among the topics.
    """
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute(
        f"CREATE TABLE quarantined ({_COLUMN_DEFINITIONS}); CREATE TABLE refused ({_COLUMN_DEFINITIONS}, name VARCHAR)"
    )
    for name in topics:
        parts = {name: tables.log_table, f"fates/{name}": tables.fates_table}
        for part, locate in parts.items():
            table = locate(stored.warehouse, contract.pipeline, name)
            if table in opened:
                fields = [field.name for field in opened[table].schema().fields]
                place = "topic, topicPartition" if "topicPartition" in fields else '$kafka, "partition"'
                requeued = requeued_records.requeued_sql(fields) if "was" in fields else "false"
                engine.register("entries", arrow_reader.read_rows(opened[table]))
                engine.execute(
                    f'INSERT INTO refused SELECT {place}, "offset", "timestamp", key, "value", fate, '  # noqa: S608
                    f"coalesce(reason, CASE WHEN {requeued} THEN $requeued END), run, systemFrom, $part FROM entries "
                    f"WHERE NOT contains($fine, fate) OR {requeued}",
                    {
                        "part": part,
                        "requeued": quarantine.REQUEUED_REASON,
                        "fine": [*quarantine.NOT_REFUSED, *gaps.GAP_FATES],
                    }
                    | ({} if "topicPartition" in fields else {"kafka": contract.kafka_topic(name)}),
                )
    if stored in opened:
        engine.register("entries", arrow_reader.read_rows(opened[stored]))
        engine.execute(f"INSERT INTO quarantined SELECT {_COLUMNS} FROM entries")  # noqa: S608
    own = _find_own_topics(engine, contract, topics)
    for (topic,) in engine.execute("SELECT DISTINCT topic FROM refused").fetchall():
        if not {*topics}.issuperset(contract.find_entries(topic)):
            engine.execute("DELETE FROM refused WHERE topic = $topic", {"topic": topic})
    engine.execute("CREATE TABLE had AS SELECT * FROM quarantined WHERE contains($own, topic)", {"own": own})
    engine.execute(
        "CREATE TABLE trimmed (topic VARCHAR, entry VARCHAR, quarantine_before TIMESTAMPTZ, log_before TIMESTAMPTZ, "
        "horizon TIMESTAMPTZ, run BIGINT)"
    )
    names = {*own, *(topic for (topic,) in engine.execute("SELECT DISTINCT topic FROM refused").fetchall())}
    logs = {name: tables.log_table(stored.warehouse, contract.pipeline, name) for name in topics}
    horizons = {name: horizon.read_horizon(log, opened[log]) for name, log in logs.items() if log in opened}
    for topic in names:
        before = horizon.find_quarantine_horizon(contract, topic, horizons)
        for name in contract.find_entries(topic):
            if (limit := horizons.get(name)) is not None:
                settled = counts.read_log_trim(logs[name])
                times = before, limit.refused_before, limit.moment
                through = settled.run if settled else 0
                engine.execute("INSERT INTO trimmed VALUES (?, ?, ?, ?, ?, ?)", [topic, name, *times, through])
    engine.execute("DELETE FROM had USING trimmed WHERE had.topic = trimmed.topic AND systemFrom < quarantine_before")
    engine.execute(
        "DELETE FROM refused USING trimmed WHERE name IN (entry, 'fates/' || entry) AND systemFrom < log_before"
    )
    # A row does not say which entry refused it: it is due only if none can have trimmed its log of it.
    engine.execute(
        "CREATE TABLE due AS FROM had WHERE NOT EXISTS (FROM trimmed WHERE trimmed.topic = had.topic "
        'AND (had.systemFrom < log_before OR had.run <= trimmed.run AND coalesce(had."timestamp" <= horizon, true)))'
    )


def _find_own_topics(engine: duckdb.DuckDBPyConnection, contract: Contract, topics: Sequence[str]) -> list[str]:
    """Return the Kafka topics in the quarantine that only these topics of the contract read."""
    quarantined = [topic for (topic,) in engine.execute("SELECT DISTINCT topic FROM quarantined").fetchall()]
    return [
        topic for topic in quarantined if (read_by := contract.find_entries(topic)) and {*topics}.issuperset(read_by)
    ]


_COLUMNS = 'topic, "partition", "offset", "timestamp", key, "value", fate, reason, run, systemFrom'
_PLACE_COLUMNS = 'topic, "partition", "offset", fate, run'
_COMPARED_COLUMNS = 'topic, "partition", "offset", fate, run, key, "value"'
_COLUMN_DEFINITIONS = (
    'topic VARCHAR, "partition" INT, "offset" BIGINT, "timestamp" TIMESTAMPTZ, key BLOB, "value" BLOB, fate VARCHAR, '
    "reason VARCHAR, run BIGINT, systemFrom TIMESTAMPTZ"
)
