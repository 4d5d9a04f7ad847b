"""The quarantine beside the logs: it has each refused record once, with its bytes, and nothing else. Without Spark.

What was refused before the moment up to which the quarantine was trimmed (horizon.py) is asked of neither. A log may
have been trimmed further: then the quarantine alone has what was refused of these records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import duckdb
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from hindcast import horizon
from hindcast.contracts import Contract
from hindcast.delta import making, tables, widened
from hindcast.delta.tables import Table
from hindcast.kafka import gaps
from hindcast.planning import notices
from hindcast.planning.journal import Run
from hindcast.replay import logs
from hindcast.replay import trimmed as counts
from hindcast.upkeep.verifying.findings import Finding
from hindcast.words import counted

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


def check(
    contract: Contract, topics: Sequence[str], runs: list[Run], quarantine: Table, found: Mapping[Table, DeltaTable]
) -> Iterator[Finding]:
    """Whether the quarantine has what runs up to the last completed one refused of some topics, and nothing else."""
    last = max((run.number for run in runs if run.state == "completed"), default=0)
    with duckdb.connect() as engine:
        _load(engine, contract, topics, quarantine, found)
        for one, other, told in (
            ("refused", "had", "refused and not in the quarantine as the log has it"),
            ("due", "refused", "in the quarantine and not refused as it stands there"),
        ):
            rows = engine.execute(
                f"FROM (SELECT {_COMPARED} FROM {one} WHERE run <= $last EXCEPT ALL SELECT {_COMPARED} FROM {other}) "  # noqa: S608  # names of ours
                'ORDER BY topic, "partition", "offset"',
                {"last": last},
            ).fetchall()
            if rows:
                topic, partition, offset, fate = rows[0][:4]
                mend = f"hindcast quarantine {contract.pipeline} --rebuild"
                text = f"{counted(len(rows), 'record')} {told}; the first: {fate}, topic {topic}"
                yield Finding("quarantine", quarantine.name, text, mend, None, partition, offset)
                return


def rebuild(warehouse: str, contract: Contract) -> int:
    """Makes the quarantine again from logs and fates, in one commit; how many records it has then.

    Of topics that the contract does not have it keeps what is there. What was there before stays in its history.
    """
    with notices.post_notice(warehouse, contract.pipeline, "a rebuild of the quarantine"):
        return _rebuild(warehouse, contract)


def _rebuild(warehouse: str, contract: Contract) -> int:
    """Do what `rebuild` says."""
    quarantine = logs.quarantine(warehouse, contract.pipeline)
    places = {of(warehouse, contract.pipeline, name) for name in contract.topics for of in (tables.log, tables.fates)}
    found = {table: delta for table in (*places, quarantine) if (delta := tables.opened(table)) is not None}
    made = making.ensure(quarantine, SCHEMA)
    with duckdb.connect() as engine:
        _load(engine, contract, list(contract.topics), quarantine, found)
        own = _own(engine, contract, list(contract.topics))
        kept = "SELECT * FROM quarantined WHERE NOT contains($topics, topic)"
        alone = f"SELECT {_COLUMNS} FROM had ANTI JOIN due USING ({_PLACE}) ANTI JOIN refused USING ({_PLACE})"  # noqa: S608
        query = f"SELECT * EXCLUDE name FROM refused UNION ALL {kept} UNION ALL {alone}"  # noqa: S608  # names of ours
        rows: pa.Table = engine.sql(query, params={"topics": own}).to_arrow_table()
        done = engine.execute("SELECT name, max(run) FROM refused GROUP BY name").fetchall()
    data = rows.cast(pa.schema(made.schema().to_arrow()))
    ids = [Transaction(quarantine.app(part), run) for part, run in done if run > tables.published(quarantine, part)]
    try:
        write_deltalake(made, data, mode="overwrite", commit_properties=CommitProperties(app_transactions=ids))
    except (DeltaError, OSError) as error:
        raise making.unwritten(error, quarantine.path) from None
    return int(data.num_rows)


def _load(
    engine: duckdb.DuckDBPyConnection,
    contract: Contract,
    topics: Sequence[str],
    quarantine: Table,
    found: Mapping[Table, DeltaTable],
) -> None:
    """Makes `refused`, what logs and fates have (`name`: the part of the commits to the quarantine that bring it),
    `quarantined`, all that is in the quarantine, `had`, what of that is of these topics, and `due`, what of that logs
    must have; all but `quarantined` without what was trimmed.
    """
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute(f"CREATE TABLE quarantined ({_DECLARED}); CREATE TABLE refused ({_DECLARED}, name VARCHAR)")
    for name in topics:
        parts = {name: tables.log, f"fates/{name}": tables.fates}
        for part, of in parts.items():
            table = of(quarantine.warehouse, contract.pipeline, name)
            if table in found:
                fields = [field.name for field in found[table].schema().fields]
                place = "topic, topicPartition" if "topicPartition" in fields else '$kafka, "partition"'
                again = "was = 'malformed'" if "was" in fields else "false"
                engine.register("entries", widened.rows(found[table]))
                engine.execute(
                    f'INSERT INTO refused SELECT {place}, "offset", "timestamp", key, "value", fate, '  # noqa: S608
                    f"coalesce(reason, CASE WHEN {again} THEN $requeued END), run, systemFrom, $part FROM entries "
                    f"WHERE NOT contains($fine, fate) OR {again}",
                    {"part": part, "requeued": logs.REQUEUED, "fine": [*logs.NOT_REFUSED, *gaps.FATES]}
                    | ({} if "topicPartition" in fields else {"kafka": contract.kafka_topic(name)}),
                )
    if quarantine in found:
        engine.register("entries", widened.rows(found[quarantine]))
        engine.execute(f"INSERT INTO quarantined SELECT {_COLUMNS} FROM entries")  # noqa: S608
    own = _own(engine, contract, topics)
    engine.execute("CREATE TABLE had AS SELECT * FROM quarantined WHERE contains($own, topic)", {"own": own})
    engine.execute("CREATE TABLE trimmed (topic VARCHAR, refused TIMESTAMPTZ, horizon TIMESTAMPTZ, run BIGINT)")
    there = {*own, *(it for (it,) in engine.execute("SELECT DISTINCT topic FROM refused").fetchall())}
    logged = {tables.log(quarantine.warehouse, contract.pipeline, name): name for name in topics}
    for log, name in logged.items():
        if log in found and (at := horizon.of(log, found[log])) is not None:
            settled = counts.settled(log)
            through = settled.run if settled else 0
            for it in there:
                if contract.entry(it) == name:
                    engine.execute("INSERT INTO trimmed VALUES (?, ?, ?, ?)", [it, at.refused, at.at, through])
    for side in ("refused", "had"):
        engine.execute(f"DELETE FROM {side} USING trimmed WHERE {side}.topic = trimmed.topic AND systemFrom < refused")  # noqa: S608
    engine.execute(
        "CREATE TABLE due AS FROM had WHERE NOT EXISTS (FROM trimmed WHERE trimmed.topic = had.topic "
        'AND had.run <= trimmed.run AND coalesce(had."timestamp" <= horizon, true))'
    )


def _own(engine: duckdb.DuckDBPyConnection, contract: Contract, topics: Sequence[str]) -> list[str]:
    """The topics in Kafka, of those in the quarantine, that these of the contract are."""
    every = [topic for (topic,) in engine.execute("SELECT DISTINCT topic FROM quarantined").fetchall()]
    return [topic for topic in every if contract.entry(topic) in topics]


_COLUMNS = 'topic, "partition", "offset", "timestamp", key, "value", fate, reason, run, systemFrom'
_PLACE = 'topic, "partition", "offset", fate, run'
_COMPARED = 'topic, "partition", "offset", fate, run, key, "value"'
_DECLARED = (
    'topic VARCHAR, "partition" INT, "offset" BIGINT, "timestamp" TIMESTAMPTZ, key BLOB, "value" BLOB, fate VARCHAR, '
    "reason VARCHAR, run BIGINT, systemFrom TIMESTAMPTZ"
)
