"""Which plain tables can be adopted, and why the others cannot; no broker, no runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.common.errors import RequestError, TableError, UnknownError
from hindcast.common.settings import read_settings
from hindcast.contract import Contract, list_shapes, load
from hindcast.contract.bound import bind_contract
from hindcast.ingest import initial_rows
from hindcast.ops.upgrade import upgrade
from hindcast.plan import journal
from hindcast.plan.purposes import Upgrade
from hindcast.store import row_reader, tables
from hindcast.store.store_formats import UNKNOWN_TIME, OlderFormat
from pipelines import RESTAURANT, at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hindcast.plan.plans import Plan

KNOWN = datetime(2026, 2, 1, tzinfo=UTC)
LATEST = {"item": pa.array(["curry"]), "price": pa.array([8], pa.decimal128(8, 2))}
KAFKA = RESTAURANT.replace("join: {table: menu, on: item}", "join: {table: menu, on: item}\n    semantics: kafka")


def contract(folder: Path, text: str = RESTAURANT) -> Contract:
    (folder / "restaurant.yaml").write_text(text, encoding="utf-8")
    return load(folder / "restaurant.yaml")


def asked(folder: Path, columns: dict[str, Any], text: str = RESTAURANT, **how: Any) -> Upgrade | None:
    """What a run would be asked that adopts a table of these columns."""
    it = contract(folder, text)
    table = tables.locate_table(str(folder / "warehouse"), it, "menu")
    write_deltalake(table.path, pa.table(columns), **how)
    return upgrade.plan_takeover(it, table, "in-place")


def test_a_plain_table_is_adopted_as_it_is_at_one_version(tmp_path: Path) -> None:
    assert asked(tmp_path, LATEST) == Upgrade("menu", "in-place", "begin", "latest", 0)


@pytest.mark.parametrize(
    ("columns", "how", "told"),
    [
        ({"item": LATEST["item"]}, {}, "no column price"),
        ({**LATEST, "price": pa.array([8])}, {}, r"price is bigint, not decimal\(8,2\)"),
        ({**LATEST, "seen": pa.array([1])}, {}, "besides the contract's columns it has seen; a store format may have"),
        (LATEST, {"partition_by": ["item"]}, "it has partitions, by item"),
        ({**LATEST, "timestamp": pa.array([1])}, {}, "timestamp is bigint, not timestamp"),
        (LATEST, {"configuration": {"delta.appendOnly": "true"}}, "rows can only be added to it"),
    ],
)
def test_a_table_of_other_columns_is_refused(
    tmp_path: Path, columns: dict[str, Any], how: dict[str, Any], told: str
) -> None:
    with pytest.raises(TableError, match=f"cannot be adopted: .*{told}") as caught:
        asked(tmp_path, columns, **how)
    assert caught.value.where == str(tmp_path / "warehouse/restaurant/menu")


def test_a_table_that_demands_something_of_its_rows_is_refused(tmp_path: Path) -> None:
    it = contract(tmp_path)
    table = tables.locate_table(str(tmp_path / "warehouse"), it, "menu")
    full = pa.schema([pa.field(name, column.type, name != "item") for name, column in LATEST.items()])
    write_deltalake(table.path, pa.table(LATEST, schema=full))
    DeltaTable(table.path).alter.add_constraint({"cheap": "price < 100"})
    with pytest.raises(TableError, match=r"it has constraints \(cheap\); columns may not be null \(item\)"):
        upgrade.plan_takeover(it, table, "in-place")


def test_a_table_that_spark_may_read_otherwise_is_refused(tmp_path: Path) -> None:
    it = contract(tmp_path)
    table = tables.locate_table(str(tmp_path / "warehouse"), it, "menu")
    write_deltalake(table.path, pa.table(LATEST))
    checkpoint = Path(table.path, "_delta_log", f"{0:020}.checkpoint.abc.parquet")
    pq.write_table(pa.table({"add": [{"PATH": "file:///theirs/x.parquet"}]}), checkpoint)
    with pytest.raises(TableError, match="has a name that Delta's log does not have"):
        upgrade.plan_takeover(it, table, "in-place")


@pytest.mark.parametrize("is_uri", [True, False])
def test_a_shallow_clone_is_refused(tmp_path: Path, is_uri: bool) -> None:
    it, source = contract(tmp_path), tmp_path / "source"
    table = tables.locate_table(str(tmp_path / "warehouse"), it, "menu")
    write_deltalake(source, pa.table(LATEST))
    (log := Path(table.path, "_delta_log")).mkdir(parents=True)
    first = (source / "_delta_log" / f"{0:020}.json").read_text(encoding="utf-8")
    place = source.as_uri() if is_uri else str(source)
    (log / f"{0:020}.json").write_text(first.replace('"path":"', f'"path":"{place}/'), encoding="utf-8")
    with pytest.raises(TableError, match="cannot be adopted: it has files of another table") as refused:
        upgrade.plan_takeover(it, table, "in-place")
    assert "DEEP CLONE, or CREATE TABLE AS SELECT" in refused.value.fix
    assert [file.name for file in log.iterdir()] == [f"{0:020}.json"]


def test_a_topic_that_would_end_the_rows_or_that_a_kafka_view_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="the topic has a ttl: it would end rows"):
        asked(tmp_path, LATEST, RESTAURANT.replace("    read: table\n", "    read: table\n    ttl: 1 day\n", 1))
    (other := tmp_path / "other").mkdir()
    with pytest.raises(RequestError, match="the kafka view bills reads the topic's log"):
        asked(other, LATEST, KAFKA)


def test_what_is_no_topics_table_has_no_store_format(tmp_path: Path) -> None:
    it = contract(tmp_path)
    bound = bind_contract(it, read_settings())
    for name in ("orders", "bills"):
        with pytest.raises(RequestError, match=f"'{name}' is not a topic that is read as a table"):
            upgrade.locate_topic_table(bound, name)
    with pytest.raises(UnknownError, match="no topic 'menus'\n  what to do: did you mean 'menu'"):
        upgrade.locate_topic_table(bound, "menus")
    with pytest.raises(RequestError, match="there is no table"):
        upgrade.plan_takeover(it, tables.locate_table(str(tmp_path), it, "menu"), "offline")


def test_a_table_of_todays_format_is_left_as_it_is(tmp_path: Path) -> None:
    it = contract(tmp_path)
    table = tables.locate_table(str(tmp_path), it, "menu")
    write_deltalake(table.path, pa.table(LATEST), name="restaurant.menu", description=table.description)
    assert upgrade.plan_takeover(it, table, "offline") is None


def test_rows_of_another_hand_since_a_downgrade_are_refused(tmp_path: Path) -> None:
    it = contract(tmp_path)
    table = tables.locate_table(str(tmp_path), it, "menu")
    write_deltalake(table.path, pa.table(LATEST), name="restaurant.menu", description=table.format_mark(0))
    older = {"hindcast.format": OlderFormat("latest", KNOWN).as_json()}
    DeltaTable(table.path).alter.set_table_properties(older, raise_if_not_exists=False)
    with pytest.raises(TableError, match=r"was written to by others since its downgrade \(WRITE at version 0\)"):
        upgrade.plan_takeover(it, table, "offline")


WRONG: list[tuple[str, list[tuple[Any, ...]], list[tuple[str, str]]]] = [
    ("latest", [("a", 1), ("b", 2)], []),
    ("latest", [("a", 1), ("a", 2), ("b", 1)], [("rows of a key that has another", "a")]),
    ("latest", [(None, 1), ("b", 2)], [("rows without a key", "None")]),
    ("timestamped", [("a", 1, 0), ("a", 2, 1)], [("rows of a key that has another", "a")]),
    ("versioned", [("a", 1, 0, 1), ("a", 2, 1, 2), ("a", 3, 5, None)], []),
    ("versioned", [("a", 1, 0, 3), ("a", 2, 1, None)], [("versions that overlap the key's next", "a")]),
    ("versioned", [("a", 1, 0, None), ("a", 2, 1, None)], [("versions that overlap the key's next", "a")]),
    ("versioned", [("a", 1, 2, 2)], [("versions that end before they begin", "a")]),
]


def test_rows_that_no_table_of_the_format_has_are_found(spark: SparkSession) -> None:
    for form, rows, expected in WRONG:
        seen = row_reader.convert_older_rows(frame(spark, form, rows), OlderFormat(form, KNOWN))
        found = upgrade.find_wrong_rows(seen, ("item",), form).collect()
        told = [(row["wrong"], str(None if row["shown"] == "{}" else row["shown"][9:-2])) for row in found]
        assert told == expected, (form, rows)


RECORDS: dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "latest": ([("a", 1)], [("a", 1, UNKNOWN_TIME)]),
    "timestamped": ([("a", 1, 3), ("b", 2, None)], [("a", 1, at(3)), ("b", 2, UNKNOWN_TIME)]),
    "versioned": (
        [("a", 1, 0, 4), ("a", 2, 4, 6), ("b", None, 0, None)],
        [("a", 1, at(0)), ("a", 2, at(4)), ("a", "tombstone", at(6)), ("b", None, at(0))],
    ),
}


def test_rows_become_records_and_ends_tombstones_where_no_other_version_begins(
    spark: SparkSession, tmp_path: Path
) -> None:
    shape = list_shapes(contract(tmp_path))["menu"]
    for form, (rows, expected) in RECORDS.items():
        found = initial_rows.derive_records(frame(spark, form, rows), OlderFormat(form, KNOWN), shape).collect()
        told = [
            (
                row["key"]["item"],
                "tombstone" if row["value"] is None else row["value"]["price"],
                row["timestamp"].replace(tzinfo=UTC),
            )
            for row in found
        ]
        assert sorted(told, key=lambda it: (it[0], it[2])) == expected


@pytest.mark.slow
def test_records_of_an_adoption_that_was_given_up_are_replaced_also_after_another_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bind_contract(contract(tmp_path), read_settings({"HINDCAST_WAREHOUSE": str(tmp_path)}))
    shape, older, ended = list_shapes(bound)["menu"], OlderFormat("timestamped", KNOWN), dict[int, str]()
    past = lambda *_: [SimpleNamespace(number=number, state=state) for number, state in ended.items()]  # noqa: E731
    monkeypatch.setattr(journal, "read_runs", past)
    for run, price in ((1, 8), (3, 9)):
        records = initial_rows.derive_records(frame(spark, "timestamped", [("a", price, 0)]), older, shape)
        initial_rows.write_initial_rows(records, bound, cast("Plan", SimpleNamespace(run=run)), "menu", older)
        ended |= {1: "abandoned", 2: "completed"}
    table = initial_rows.initial_rows_table(bound.warehouse, bound.pipeline, "menu")
    assert [row["value"]["price"] for row in row_reader.load_rows(spark, table).collect()] == [9]


def frame(spark: SparkSession, form: str, rows: list[tuple[Any, ...]]) -> DataFrame:
    """A plain table of a format."""
    times = {
        "latest": "",
        "timestamped": ", timestamp timestamp",
        "versioned": ", validFrom timestamp, validTo timestamp",
    }
    told = [(*row[:2], *(None if s is None else at(s) for s in row[2:])) for row in rows]
    return spark.createDataFrame(told, f"item string, price int{times[form]}")
