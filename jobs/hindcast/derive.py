"""What each table of a contract is, as a function of logs and of other tables. Pure: DataFrame in, DataFrame out.

Rows of tables are flat: the user's columns beside the period columns (tables.py). The operators take relations, whose
`key` and `value` are structs; here a `value` holds the key's columns too, so that expressions can name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast import joins, plane
from hindcast.contracts import Contract, Topic, View
from hindcast.contracts.check import scope, selected
from hindcast.contracts.expressions import resolve
from hindcast.tables import LINEAGE, PERIODS, Kind


def kind(contract: Contract, name: str) -> Kind:
    """Whether a topic or view of the contract is a table of versions or of events."""
    topic = contract.topics.get(name)
    return "versions" if topic is not None and topic.read == "table" else "events"


def key(contract: Contract, name: str) -> tuple[str, ...]:
    """The key columns of a topic's table or of a view: a joined stream keeps its event's key."""
    view = contract.views.get(name)
    return tuple(contract.topics[view.stream if view else name].key)


def versions(log: DataFrame) -> DataFrame:
    """The table of a topic read as a table.

    `log`: accepted records of the whole log with `key` and `value` decoded. Returns the flat rows: the key's and the
    value's columns, validFrom, validTo, _partition, _offset.
    """
    return _flat(plane.versions(_positioned(log)), PERIODS["versions"])


def events(log: DataFrame) -> DataFrame:
    """The table of a topic read as a stream: one row per accepted record that has a value.

    `log`: accepted records with `key` and `value` decoded. Returns the flat rows: the key's columns (all null for a
    record without a key) and the value's, timestamp, _partition, _offset.
    """
    return _flat(_positioned(log).where("value IS NOT NULL"), PERIODS["events"])


def view(contract: Contract, name: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of a view, whole, from the rows of its inputs that are believed at one moment.

    Returns the flat rows: the event's key, the selected columns, timestamp, _partition, _offset of the event.
    """
    it = contract.views[name]
    stream, table = contract.topics[it.stream], contract.topics[it.join.table]
    joined = joins.stream_table(
        relation(inputs[it.stream], stream, "events"),
        relation(inputs[it.join.table], table, "versions"),
        it.join.how,
        _looked_up(it, scope(contract, it)[it.stream], table),
    ).withColumnsRenamed({"left": it.stream, "right": it.join.table})
    if it.where is not None:
        joined = joined.where(F.expr(resolve(it.where, scope(contract, it))))
    columns = [F.col(f"{it.stream}.{column}") for column in stream.key]
    columns += [F.expr(text).alias(column) for column, text in selected(contract, it).items()]
    return joined.select(*columns, "timestamp", *_lineage())


def relation(rows: DataFrame, topic: Topic, of: Kind) -> DataFrame:
    """Flat rows of a topic's table as a relation: `key` struct or null, `value` struct, periods, `position`."""
    return rows.select(
        F.when(_present(topic.key), F.struct(*topic.key)).alias("key"),
        F.struct(*topic.key, *topic.value).alias("value"),
        *PERIODS[of],
        _position(*LINEAGE),
    )


def _looked_up(view: View, columns: list[str], table: Topic) -> Column | None:
    """The table's key as a struct over the event, whose columns are in its value; null where the expression is."""
    if view.join.on is None:
        return None
    value = F.expr(resolve(view.join.on, {view.stream: columns}, {view.stream: "value"}))
    return F.when(value.isNotNull(), F.struct(value.alias(next(iter(table.key)))))


def _positioned(log: DataFrame) -> DataFrame:
    return log.select(
        "key",
        "value",
        "timestamp",
        _position("partition", "offset"),
    )


def _position(partition: str, offset: str) -> Column:
    """The place of a record in its topic; a change of the partition count would begin a new epoch."""
    parts = F.lit(0).alias("epoch"), F.col(partition).alias("partition"), F.col(offset).alias("offset")
    return F.struct(*parts).alias("position")


def _flat(rows: DataFrame, periods: Iterable[str]) -> DataFrame:
    return rows.select("key.*", "value.*", *periods, *_lineage())


def _lineage() -> list[Column]:
    return [F.col("position.partition").alias(LINEAGE[0]), F.col("position.offset").alias(LINEAGE[1])]


def _present(columns: Iterable[str]) -> Column:
    """Whether a key is there: a record without a key has all its columns null."""
    there = F.lit(False)
    for column in columns:
        there = there | F.col(column).isNotNull()
    return there
