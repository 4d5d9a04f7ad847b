"""A replayed `kafka` view beside the output topic of a live application: what is equal, and what each difference is.

Records are compared per key, of a window per key and window: with the same timestamp and value they are equal. How
those of different keys or partitions are interleaved is no difference.

DuckDB compares, in a file of its own: what does not fit in memory lies there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from hindcast import read
from hindcast.compare import outputs, rules
from hindcast.compare.differences import KINDS, find, judge, pair
from hindcast.compare.outputs import PARTITION, Form, Windows, packed
from hindcast.compare.rules import Facts, Rule
from hindcast.compare.showing import examples
from hindcast.contracts import Contract, shapes
from hindcast.contracts.sensitive import sensitive
from hindcast.delta import emitted, scan, tables
from hindcast.errors import PlatformError, QueryError, TableError, UnknownError, nearest
from hindcast.kafka.topics import Cluster


@dataclass(frozen=True)
class Compared:
    """What came of a comparison, as JSON has it.

    `differences`: how many of each kind are likely due to which rule. `examples`: the first few of each kind.
    `not_compared`: fields of the topic's values that the view has no column for.
    """

    view: str
    topic: str
    known_at: datetime
    epoch: int
    held: int
    replayed: int
    equal: int
    differences: list[dict[str, Any]]
    examples: list[dict[str, Any]]
    not_compared: tuple[str, ...]

    def count(self, kind: str) -> int:
        """How many differences of a kind there are."""
        return sum(it["count"] for it in self.differences if it["kind"] == kind)


def compare(
    warehouse: str,
    servers: str,
    contract: Contract,
    name: str,
    topic: str,
    limit: int = 5,
    key_format: str | None = None,
) -> Compared:
    """Compares what the completed runs have replayed of a view with all that a topic holds now.

    `key_format`: how the topic's keys are written, as in a contract. Raises QueryError where there is nothing to
    compare, TopicError and RecordError for a topic that cannot be read.
    """
    found = _emitted(warehouse, contract, name)
    known = read.last_known_at(warehouse, contract.pipeline)
    with _engine() as engine, Cluster(servers) as cluster:
        form, epoch = _load(engine, found, contract, name, known, key_format or _keyed_as(contract, name))
        extent = outputs.load(engine, cluster, topic, form)
        pair(engine)
        find(engine, warehouse, contract, name, form)
        runs = _count(engine, "(SELECT DISTINCT run FROM ours)")
        told = rules.rules(contract, name, Facts(extent, cluster.compacted(topic), runs))
        judge(engine, told)
        return Compared(
            view=f"{contract.pipeline}.{name}",
            topic=topic,
            known_at=known,
            epoch=epoch,
            held=_count(engine, "live"),
            replayed=_count(engine, "ours"),
            equal=_count(engine, "pairs WHERE kind = 'equal'") - _count(engine, "judged WHERE kind = 'order'"),
            differences=_by_rule(engine, told),
            examples=examples(engine, told, form, sensitive(contract)[name], limit),
            not_compared=extent.beyond,
        )


_OWN = ("timestamp", "windowStart", "windowEnd", "systemFrom")
_WANTED = {"_epoch", "_partition", "_offset", "_tombstone", "_run", "timestamp", "systemFrom"}
_MEMORY = "2GB"


@contextmanager
def _engine() -> Iterator[duckdb.DuckDBPyConnection]:
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
                mend="set TMPDIR to a disk with more room, or compare fewer records",
            ) from None


def _emitted(warehouse: str, contract: Contract, name: str) -> DeltaTable:
    """What a view has emitted; QueryError where there is nothing, or can be none."""
    where = f"{contract.pipeline}.{name}"
    views = {it for it, view in contract.views.items() if view.semantics == "kafka"}
    if name not in contract.views:
        raise UnknownError(f"no view '{name}'", where=contract.pipeline, mend=nearest(name, views))
    if name not in views:
        raise QueryError(
            "the view is read as corrected, which no live application emits",
            where=where,
            mend="compare a view with semantics: kafka; it can stand beside this one under another name",
        )
    found = tables.opened(emitted.log(warehouse, contract, name))
    if found is None:
        raise QueryError(
            "nothing of the view has been replayed yet", where=where, mend=f"hindcast run {contract.pipeline}"
        )
    return found


def _load(
    engine: duckdb.DuckDBPyConnection,
    found: DeltaTable,
    contract: Contract,
    name: str,
    known: datetime,
    keyed_as: str,
) -> tuple[Form, int]:
    """Makes the table `ours` of a view's last epoch, with the columns of `live`, `run` and the place of the cause.

    Returns the form that the view gives the records of a topic, and the epoch.
    """
    window = contract.views[name].window
    with engine.cursor() as cursor:
        scan.register(cursor, found)
        types = {column: kind for column, kind, *_ in cursor.execute("DESCRIBE rows").fetchall()}
        key = {column: types[column] for column in shapes(contract)[name].key if column in types}
        if not key or not types.keys() >= _WANTED:
            raise TableError("is not what a kafka view emits", where=found.table_uri, mend="run the pipeline anew")
        gone = tables.dropped(found)
        value = {c: kind for c, kind in types.items() if not c.startswith("_") and c not in {*key, *_OWN, *gone}}
        start = "epoch_ms(windowStart)" if window else "NULL::BIGINT"
        end = "epoch_ms(windowEnd)" if window and window.session else "NULL::BIGINT"
        keyed = " OR ".join(f'"{column}" IS NOT NULL' for column in key)
        (epoch,) = cursor.execute("SELECT max(_epoch) FROM rows WHERE systemFrom <= ?", [known]).fetchall()[0]
        cursor.execute(
            f"CREATE TABLE ours AS SELECT (_partition::BIGINT << {PARTITION}) + _offset AS place, "  # noqa: S608  # names
            f"CASE WHEN {keyed} THEN {packed(key)} END AS k, {start} AS w0, {end} AS w1, epoch_ms(timestamp) AS t, "
            f"CASE WHEN NOT _tombstone THEN {packed(value)} END AS v, _run AS run, "
            "_causeTopic AS cause, _causePartition AS cause_partition, _causeOffset AS cause_offset "
            "FROM rows WHERE _epoch = ? AND systemFrom <= ?",
            [epoch, known],
        )
    windows: Windows = ("session" if window.session else "time") if window else None
    return Form(key, value, keyed_as, windows, bool(sensitive(contract)[name])), epoch or 0


def _keyed_as(contract: Contract, name: str) -> str:
    """How a view's key is written: as that of the topic that it is from; a new one by the number of its columns."""
    if name in contract.topics and contract.topics[name].keyed_as in ("string", "json"):
        return contract.topics[name].keyed_as
    view = contract.views.get(name)
    if view is not None and not view.key and not view.group_by:
        return _keyed_as(contract, view.first)
    return "string" if len(shapes(contract)[name].key) == 1 else "json"


def _by_rule(engine: duckdb.DuckDBPyConnection, told: list[Rule]) -> list[dict[str, Any]]:
    """How many differences of each kind are likely due to which rule."""
    counted = engine.execute(
        "SELECT kind, rule, count(*) AS n FROM judged GROUP BY ALL ORDER BY n DESC, rule"
    ).fetchall()
    found = []
    for kind in KINDS:
        for n, rule in ((n, told[number]) for it, number, n in counted if it == kind):
            found.append({"kind": kind, "count": n, "rule": rule.name, "likely": rule.likely, "whatToDo": rule.mend})
    return found


def _count(engine: duckdb.DuckDBPyConnection, rows: str) -> int:
    return int(engine.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0])  # noqa: S608  # our own tables
