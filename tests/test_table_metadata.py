"""A table's metadata has nothing that Spark would run, and no other place; and all its readers find the same in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.common.errors import TableError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.store import own_tables, table_creation, tables
from hindcast.store.tables import Table

CODE = "java_method('java.lang.System', 'setProperty', 'hindcast.hit', 'yes')"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    own = Table(str(tmp_path), "mine", "runs", "runs")
    table_creation.ensure_table(own, StructType([StructField("n", LongType())]))
    write_deltalake(own.path, pa.table({"n": [1]}), mode="append")
    return own


def find_log(table: Table) -> Path:
    return Path(table.path, "_delta_log")


def build_metadata(table: Table, *fields: JsonObject, **properties: str) -> dict[str, JsonValue]:
    """Return a table's metadata with more columns and properties."""
    lines = (find_log(table) / f"{0:020}.json").read_text().splitlines()
    (metadata,) = (action["metaData"] for action in map(json.loads, lines) if "metaData" in action)
    schema = json.loads(metadata["schemaString"])
    schema["fields"] += fields
    configuration = metadata["configuration"] | properties
    return {**metadata, "schemaString": json.dumps(schema), "configuration": configuration}


def commit(table: Table, *metadata: dict[str, JsonValue]) -> None:
    version = DeltaTable(table.path).version() + 1
    actions = [{"commitInfo": {"operation": "WRITE"}}, *({"metaData": it} for it in metadata)]
    (find_log(table) / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def build_field(name: str, value: str = CODE) -> JsonObject:
    return {"name": "g", "type": "string", "nullable": True, "metadata": {name: value}}


GENERATED = build_field("delta.generationExpression")
NESTED = {"type": "array", "elementType": {"type": "struct", "fields": [GENERATED]}, "containsNull": True}
COLUMNS: dict[str, JsonObject] = {
    "a computed column": GENERATED,
    "a nested one": {"name": "deep", "type": NESTED, "nullable": True, "metadata": {}},
    "an invariant": build_field("delta.invariants", json.dumps({"expression": {"expression": CODE}})),
    "a default": build_field("CURRENT_DEFAULT"),
    "a default of old files": build_field("EXISTS_DEFAULT"),
    "an identity": build_field("delta.identity.start"),
}
PROPERTIES = (
    "delta.constraints.c",
    "DELTA.Constraints.c",
    "delta.redirectWriterOnly-preview",
    "delta.coordinatedCommits.commitCoordinator-preview",
    "delta.universalFormat.config.iceberg.x",
)


@pytest.mark.parametrize("odd", [*COLUMNS, *PROPERTIES])
def test_what_spark_would_run_or_another_place_is_refused(table: Table, odd: str) -> None:
    if odd in COLUMNS:
        commit(table, build_metadata(table, COLUMNS[odd]))
    else:
        commit(table, build_metadata(table, **{odd: CODE}))
    for open_table in (tables.open_latest, tables.open_table, lambda it: own_tables.open_whole(it.path)):
        with pytest.raises(TableError, match="has metadata that Hindcast never writes: ") as refused:
            open_table(table)
        assert refused.value.where == table.path


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_table_whose_files_have_other_names_of_columns_is_refused(table: Table, mode: str) -> None:
    """Its files' columns would be taken for those that have their names now."""
    commit(table, build_metadata(table, **{"delta.columnMapping.mode": mode}))
    for open_table in (tables.open_latest, tables.open_table, lambda it: own_tables.open_whole(it.path)):
        with pytest.raises(TableError, match=rf"other names in its files \(delta.columnMapping.mode is {mode}\)") as it:
            open_table(table)
        assert "RESTORE" in it.value.fix
    commit(table, build_metadata(table, **{"delta.columnMapping.mode": "none"}))
    assert tables.open_latest(table) is not None


def test_spark_runs_no_code_of_a_table(spark: SparkSession, table: Table) -> None:
    commit(table, build_metadata(table, GENERATED))
    with pytest.raises(TableError, match=r"columns are computed \(g\)"):
        own_tables.run_statement(spark, table.path, f"UPDATE delta.`{table.path}` SET n = 2")
    assert spark._jvm.java.lang.System.getProperty("hindcast.hit") is None  # type: ignore[union-attr]


def test_a_constraint_that_was_removed_again_is_not_refused(table: Table) -> None:
    good = build_metadata(table)
    commit(table, build_metadata(table, **{"delta.constraints.c": "n > 0"}))
    commit(table, good)
    assert tables.open_latest(table) is not None


def write_checkpoint(table: Table, *rows: dict[str, JsonValue], name: str = "checkpoint") -> None:
    """Write a checkpoint with metadata."""
    kinds = {"configuration": PAIRS, "format": pa.struct({"provider": pa.string(), "options": PAIRS})}
    kind = pa.struct({it: kinds.get(it, pa.string()) for it in ("id", "schemaString", *kinds)})
    pq.write_table(pa.table({"metaData": pa.array(rows, kind)}), find_log(table) / f"{1:020}.{name}.parquet")


PAIRS = pa.map_(pa.string(), pa.string())


def write_checksum(table: Table) -> None:
    checksum = {"metadata": build_metadata(table, GENERATED)}
    (find_log(table) / f"{1:020}.crc").write_text(json.dumps(checksum))


def write_hint(table: Table) -> None:
    action = {"metaData": build_metadata(table, GENERATED)}
    hint = {"version": 1, "v2Checkpoint": {"path": "x.json", "nonFileActions": [action]}}
    (find_log(table) / "_last_checkpoint").write_text(json.dumps(hint))


def write_manifest(table: Table) -> None:
    text = json.dumps({"metaData": build_metadata(table, GENERATED)})
    (find_log(table) / f"{1:020}.checkpoint.51dc52db-33de-41e7-9d81-e8b10bafef22.json").write_text(text)


def commit_key_twice(table: Table) -> None:
    metadata = build_metadata(table)
    text = str(metadata["schemaString"]).replace('"metadata": {}', '"metadata": {}, "metadata": {}')
    commit(table, {**metadata, "schemaString": text})


ODD: dict[str, Callable[[Table], None]] = {
    "a checksum": write_checksum,
    "a hint": write_hint,
    "a manifest": write_manifest,
    "a checkpoint": lambda it: write_checkpoint(it, build_metadata(it, GENERATED)),
    "another checkpoint": lambda it: write_checkpoint(
        it, build_metadata(it, GENERATED), name="checkpoint.51dc52db-33de-41e7-9d81-e8b10bafef22"
    ),
    "a program": lambda it: write_checkpoint(it, build_metadata(it, {"name": "u", "type": {"type": "udt"}})),
    "two in a checkpoint": lambda it: write_checkpoint(it, *[build_metadata(it)] * 2),
    "two in a commit": lambda it: commit(it, build_metadata(it, GENERATED), build_metadata(it)),
    "no id": lambda it: write_checkpoint(it, build_metadata(it) | {"id": None}),
    "no schema": lambda it: write_checkpoint(it, build_metadata(it) | {"schemaString": None}),
    "a key twice": commit_key_twice,
    "options": lambda it: commit(it, build_metadata(it) | {"format": {"provider": "parquet", "options": {"a": "b"}}}),
    "options in a checkpoint": lambda it: write_checkpoint(
        it, build_metadata(it) | {"format": {"provider": "parquet", "options": [("a", "b")]}}
    ),
    "a property twice": lambda it: write_checkpoint(it, build_metadata(it) | {"configuration": [("a", "b")] * 2}),
    "properties of another type": lambda it: pq.write_table(
        pa.table({"metaData": [{"id": "x", "schemaString": "{}", "configuration": {"a": "b"}}]}),
        find_log(it) / f"{1:020}.checkpoint.parquet",
    ),
    "another format": lambda it: commit(it, build_metadata(it) | {"format": {"provider": "csv", "options": {}}}),
}


@pytest.mark.parametrize("odd", ODD)
def test_metadata_that_readers_may_find_otherwise_is_refused(table: Table, odd: str) -> None:
    ODD[odd](table)
    for warehouse in (table.warehouse, f"file://{table.warehouse}"):
        with pytest.raises(TableError, match=r"metadata that Hindcast never writes|as Delta's writers write"):
            tables.open_latest(replace(table, warehouse=warehouse))


def test_a_table_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(TableError, match="cannot be read: "):
        own_tables.open_whole(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["{}.checkpoint.51dc52db-33de-41e7-9d81-e8b10bafef22.parquet", "0{}.json", "{}.{}.compacted.json"]
)
def test_spark_is_asked_which_files_it_reads_where_its_log_has_others(
    table: Table, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked, told = list[str](), list[str]()
    monkeypatch.setattr(own_tables, "open_whole", DeltaTable)
    monkeypatch.setattr(own_tables, "refuse_foreign_to_spark", lambda _, path: asked.append(path))
    spark = SimpleNamespace(sql=lambda text: told.append(text) or SimpleNamespace(collect=list))
    for _ in range(2):
        own_tables.run_statement(spark, table.path, "DELETE")  # type: ignore[arg-type]
        (find_log(table) / name.format(f"{1:020}", f"{1:020}")).touch()
    assert (asked, told) == ([table.path], ["DELETE"] * 2)


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("p=a%0Ab/x.parquet", True),
        ("x.parquet", True),
        ("p=%2F../x.parquet", False),
        ("../x.parquet", False),
        ("/theirs/x.parquet", False),
    ],
)
def test_spark_reads_files_in_the_folder_only(tmp_path: Path, file: str, is_own: bool) -> None:
    named = f"file:{file}" if file.startswith("/") else f"file:{tmp_path}/{file}"
    rows = SimpleNamespace(inputFiles=lambda: [named])
    spark = SimpleNamespace(read=SimpleNamespace(format=lambda _: SimpleNamespace(load=lambda _: rows)))
    if is_own:
        own_tables.refuse_foreign_to_spark(spark, str(tmp_path))  # type: ignore[arg-type]
    else:
        with pytest.raises(TableError, match="as Spark reads it"):
            own_tables.refuse_foreign_to_spark(spark, str(tmp_path))  # type: ignore[arg-type]


def test_a_type_that_delta_rs_does_not_know_is_an_error_of_ours(table: Table) -> None:
    commit(table, build_metadata(table, {"name": "u", "type": "unknown", "nullable": True, "metadata": {}}))
    for open_table in (tables.open_latest, lambda it: own_tables.open_whole(it.path)):
        with pytest.raises(TableError, match="cannot be read: "):
            open_table(table)
