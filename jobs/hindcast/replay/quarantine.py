"""What is still refused: the quarantine without what was requeued, or accepted by another history retention, since."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.contracts import Contract
from hindcast.delta import contents, tables
from hindcast.replay import logs

_LISTED = """
    WITH latest AS (
        SELECT *, row_number() OVER (PARTITION BY topic, "partition", "offset" ORDER BY run DESC) AS nth,
               bool_or(fate = 'accepted') OVER (PARTITION BY topic, "partition", "offset") AS requeued
        FROM refused
    ), decided AS (
        SELECT topic, "partition", "offset", arg_max(fate, run) AS fate FROM entered GROUP BY ALL
    )
    SELECT latest.topic, latest."partition", latest."offset", "timestamp", latest.fate, reason, key, run,
           CASE WHEN coalesce(decided.fate, latest.fate) <> 'accepted' THEN 'refused'
                WHEN requeued THEN 'requeued' ELSE 'accepted' END AS now
    FROM latest LEFT JOIN decided USING (topic, "partition", "offset") WHERE nth = 1
    ORDER BY topic, "partition", "offset"
"""


def listed(warehouse: str, contract: Contract, topic: str | None = None, *, everything: bool = False) -> pa.Table:
    """A row for each record that is refused, as it was decided last: topic (in Kafka), partition, offset, timestamp,
    fate, reason, key (text), run, now (`refused`).

    `everything`: also those that are not refused any more; `now` is `requeued` or `accepted` then. `topic` is a name of
    the contract. Of topics with sensitive columns neither keys nor reasons are shown.
    """
    return shown(contract, selected(warehouse, contract, topic, everything=everything))


def selected(warehouse: str, contract: Contract, topic: str | None = None, *, everything: bool = False) -> pa.Table:
    """Return what `listed` lists, with keys as bytes and nothing hidden."""
    found = tables.opened(logs.quarantine(warehouse, contract.pipeline))
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.execute(
            'CREATE TABLE entered (topic VARCHAR, "partition" INT, "offset" BIGINT, fate VARCHAR, run BIGINT)'
        )
        for name in contract.topics:
            entered = tables.opened(tables.fates(warehouse, contract.pipeline, name))
            if entered is not None:
                engine.register("one", contents.dataset(entered))
                several = contract.topics[name].pattern is not None
                place = "coalesce(topic, ?), topicPartition" if several else '?, "partition"'
                engine.execute(
                    f'INSERT INTO entered SELECT {place}, "offset", fate, run FROM one',  # noqa: S608  # our own columns
                    [contract.kafka_topic(name)],
                )
        if found is None:
            engine.execute(_NONE)
        else:
            engine.register("refused", contents.dataset(found))
        rows = engine.sql(_LISTED).to_arrow_table()
    if not everything:
        rows = rows.filter(pc.equal(rows.column("now"), "refused"))
    if topic is None:
        return rows
    own = [kafka for kafka in rows.column("topic").unique().to_pylist() if contract.entry(kafka) == topic]
    return rows.filter(pc.is_in(rows.column("topic"), pa.array(own, pa.string())))


def shown(contract: Contract, rows: pa.Table) -> pa.Table:
    """Return rows of `selected` as `listed` has them."""
    names = {kafka: contract.entry(kafka) for kafka in rows.column("topic").unique().to_pylist()}
    told = [_shown(contract, names.get(row["topic"]), row) for row in rows.to_pylist()]
    return pa.Table.from_pylist(told, schema=_SCHEMA)


def _shown(contract: Contract, name: str | None, row: dict[str, object]) -> dict[str, object]:
    key = row["key"]
    text = key.decode("utf-8", "replace") if isinstance(key, bytes) else None
    hidden = name is None or bool(contract.topics[name].sensitive)
    return row | {"key": "***" if hidden and text else text, "reason": "***" if hidden else row["reason"]}


_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("fate", pa.string()),
        ("reason", pa.string()),
        ("key", pa.string()),
        ("run", pa.int64()),
        ("now", pa.string()),
    ]
)
_NONE = """
    CREATE TABLE refused (topic VARCHAR, "partition" INT, "offset" BIGINT, "timestamp" TIMESTAMPTZ, key BLOB,
                          "value" BLOB, fate VARCHAR, reason VARCHAR, run BIGINT)
"""
