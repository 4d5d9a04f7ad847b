"""Plain Delta tables of older store formats for tests, and what they are to be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from hindcast.bitemporal.predicates import Question
from hindcast.common.settings import read_settings
from hindcast.contract import find
from hindcast.ops.upgrade import downgrade, upgrade
from hindcast.plan import journal, notices
from hindcast.plan.marks import find_bound_contract
from hindcast.query import read
from hindcast.runs import shadow_table, special_runs, store_migration
from hindcast.store import commits, lazy_migration, tables
from pipelines import T0, Pipeline, at, tuples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNKNOWN = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
"""The surrogate, as the issue has it."""

SURROGATE = (UNKNOWN - T0).total_seconds()

MOMENT = pa.timestamp("us", "UTC")
FIELDS = {
    "item": pa.string(),
    "price": pa.decimal128(8, 2),
    **dict.fromkeys(("timestamp", "validFrom", "validTo"), MOMENT),
}
COLUMNS = {
    "latest": ("item", "price"),
    "timestamped": ("item", "price", "timestamp"),
    "versioned": ("item", "price", "validFrom", "validTo"),
}
PLAIN: dict[str, list[tuple[Any, ...]]] = {
    "latest": [("curry", 8), ("soup", 5), ("cake", 3)],
    "timestamped": [("curry", 8, 0), ("soup", 5, 1), ("cake", 3, None)],
    "versioned": [
        ("curry", 8, 0, 4),
        ("curry", 10, 4, None),
        ("soup", 5, 0, 2),
        ("soup", 6, 3, 7),
        ("cake", 3, 1, None),
    ],
}
"""Rows of a menu; seconds."""
RECORDS: dict[str, list[Any]] = {
    "menu": [("curry", {"price": 9}, 2), ("soup", None, 3)],
    "orders": [
        ("anna", {"item": "curry", "quantity": 1}, 1),
        ("bob", {"item": "curry", "quantity": 2}, 3),
        ("dan", {"item": "cake", "quantity": 1}, 3),
        ("eve", {"item": "soup", "quantity": 1}, 5),
    ],
}
"""What run 2 brings: a late price, and the end of the soup."""

ADOPTED: dict[str, list[tuple[Any, ...]]] = {
    "latest": [("cake", 3, "?", None), ("curry", 8, "?", None), ("soup", 5, "?", None)],
    "timestamped": [("cake", 3, "?", None), ("curry", 8, 0, None), ("soup", 5, 1, None)],
    "versioned": [
        ("cake", 3, 1, None),
        ("curry", 8, 0, 4),
        ("curry", 10, 4, None),
        ("soup", 5, 0, 2),
        ("soup", 6, 3, 7),
    ],
}
"""What is believed once a run has taken the table over: `?` is the surrogate."""

HISTORY: dict[str, list[tuple[Any, ...]]] = {
    "latest": [
        ("cake", 3, "?", None, 1, None),
        ("curry", 8, "?", 2, 2, None),
        ("curry", 8, "?", None, 1, 2),
        ("curry", 9, 2, None, 2, None),
        ("soup", 5, "?", 3, 2, None),
        ("soup", 5, "?", None, 1, 2),
    ],
    "timestamped": [
        ("cake", 3, "?", None, 1, None),
        ("curry", 8, 0, 2, 2, None),
        ("curry", 8, 0, None, 1, 2),
        ("curry", 9, 2, None, 2, None),
        ("soup", 5, 1, 3, 2, None),
        ("soup", 5, 1, None, 1, 2),
    ],
    "versioned": [
        ("cake", 3, 1, None, 1, None),
        ("curry", 8, 0, 2, 2, None),
        ("curry", 8, 0, 4, 1, 2),
        ("curry", 9, 2, 4, 2, None),
        ("curry", 10, 4, None, 1, None),
        ("soup", 5, 0, 2, 1, None),
        ("soup", 6, 3, 7, 1, 2),
    ],
}
"""All that was ever believed after run 2, worked out by hand: the same in every mode."""

BILLS = [("anna", "curry", 8, 1, 2, None), ("bob", "curry", 18, 3, 2, None), ("dan", "cake", 3, 3, 2, None)]


def put(p: Pipeline, form: str, rows: list[tuple[Any, ...]] | None = None) -> None:
    """A plain Delta table in the place of the menu's, as somebody else writes it."""
    names = COLUMNS[form]
    moments = {"timestamp", "validFrom", "validTo"}
    told = [
        {
            n: (v if v is None else at(v) if n in moments else Decimal(v) if n == "price" else v)
            for n, v in zip(names, row, strict=True)
        }
        for row in (PLAIN[form] if rows is None else rows)
    ]
    write_deltalake(p.table("menu").path, pa.Table.from_pylist(told, schema=pa.schema([(n, FIELDS[n]) for n in names])))


def taken_over(spark: SparkSession, p: Pipeline, mode: str) -> None:
    """The first run of an upgrade, and nothing after it."""
    asked = upgrade.plan_takeover(p.contract, p.table("menu"), mode)
    assert asked is not None
    special_runs.run_upgrade(spark, read_settings(), p.name, "upgrade__first", asked)


def upgraded(spark: SparkSession, p: Pipeline, mode: str) -> list[str]:
    """What the command does."""
    return upgrade.upgrade_table(spark, p.contract, "menu", mode)


def history(p: Pipeline) -> list[tuple[Any, ...]]:
    """All that was ever believed of the menu, through the proxy view where there is one: item, price, when it is true
    (the surrogate as `?`), and which of the runs that changed something opened and closed it.
    """
    runs = {run.known_at: run.number for run in journal.read_runs(p.warehouse, p.name)}
    rows = read.history(p.warehouse, p.contract, "menu").to_pylist()
    found = sorted({runs[row[c]] for row in rows for c in ("systemFrom", "systemTo") if row[c]})
    told = []
    for row in rows:
        assert row.keys() == {"item", "price", "validFrom", "validTo", "systemFrom", "systemTo"}
        since, until = (
            None if m is None else int((m - T0).total_seconds()) for m in (row["validFrom"], row["validTo"])
        )
        numbers = (row[c] and found.index(runs[row[c]]) + 1 for c in ("systemFrom", "systemTo"))
        told.append((row["item"], int(row["price"]), "?" if row["validFrom"] == UNKNOWN else since, until, *numbers))
    return ordered(told)


def opened(p: Pipeline) -> DeltaTable:
    found = tables.open_table(p.table("menu"))
    assert found is not None
    return found


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=str)


def asked(p: Pipeline, **question: Any) -> list[tuple[Any, ...]]:
    """What `hindcast query` answers: item, price, and since when it is true."""
    rows = read.query(p.warehouse, find(p.path.parent, p.name), "menu", Question(**question)).to_pylist()
    return sorted(
        (row["item"], int(row["price"]), "?" if row["validFrom"] == UNKNOWN else (row["validFrom"] - T0).seconds)
        for row in rows
    )


def plainly(p: Pipeline, *columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    """What a reader of plain Delta finds that knows nothing of us."""
    rows = DeltaTable(p.table("menu").path).to_pyarrow_dataset().to_table()
    with duckdb.connect() as engine:
        engine.register("menu", rows)
        found = engine.sql(f"SELECT {', '.join(columns)} FROM menu WHERE {where}").to_arrow_table()
    return tuples(found.to_pylist(), *columns)


class StopError(Exception):
    """What an upgrade fails with in this process."""


def watched(stop: Callable[[str], None], patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on `stop` is called with the name of every boundary: before or after a commit."""

    def wrap(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            place = f"{owner.__name__.rpartition('.')[2]}.{name}"
            if owner is journal:
                place += f" {args[1].state} {args[1].number}"
            elif name == "set_properties":
                place += f": {'mark' if 'comment' in args[2] else 'properties'}"
            elif owner is commits:
                place += f" {args[1].name} {args[2]}"
            elif name == "migrate_chunk":
                place += f" {args[2]}"
            elif name == "_alter_table":
                place += f": {args[2].partition('(')[0]}"
            elif name == "_write_build":
                place += f": {'begun' if args[2] else 'ended'}"
            stop(f"before {place}")
            done = real(*args, **kwargs)
            stop(f"after {place}")
            return done

        patch(owner, name, wrapped)

    for name in ("append_rows", "replace_rows", "rewrite_table", "commit_change", "set_properties"):
        wrap(commits, name)
    wrap(store_migration, "set_own_name")
    wrap(store_migration, "_alter_table")
    wrap(lazy_migration, "migrate_changed_keys")
    wrap(lazy_migration, "migrate_chunk")
    wrap(shadow_table, "_write_build")
    wrap(journal, "append_entry")


def main(pipeline: str, to: str, seen: str) -> None:
    """A process that upgrades by a mode, or downgrades to a format; it kills itself after the first commit not seen."""
    from hindcast.common.session import open_session

    spark = open_session("upgrade", {"spark.master": "local[2]", "spark.driver.memory": "1g"}, small=True)

    def die(place: str) -> None:
        path = Path(seen)
        if place.startswith("after") and place not in path.read_text(encoding="utf-8").splitlines():
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{place}\n")
                file.flush()
                os.fsync(file.fileno())
            os.killpg(0, signal.SIGKILL)

    watched(die)
    notices.DEAD_AFTER = 6.0
    contract = find_bound_contract(read_settings(), pipeline)
    if to in upgrade.MODES:
        upgrade.upgrade_table(spark, contract, "menu", to)
    else:
        downgrade.downgrade_table(spark, contract, "menu", to, lose=True)


def started(p: Pipeline, to: str, seen: Path) -> subprocess.Popen[str]:
    """That process, in a process group of its own."""
    environ = {**os.environ, **p.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (p.folder / "crashes.log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, __file__, p.name, to, str(seen)],
            env=environ,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=p.folder,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
