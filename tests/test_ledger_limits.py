"""What pages take to read the logs and failing rows of a pipeline: whoever may write these must not slow others."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

import slow_reading
from hindcast.airflow.pages import ledger_page, reading_limits
from hindcast.airflow.pages.kept_results import KeptResults
from hindcast.common.errors import PlatformError, TableError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import Settings
from hindcast.contract import find
from hindcast.ingest import ledger, trim_ledger
from hindcast.plan import journal
from hindcast.plan.runs import Run
from hindcast.quality import failing_rows
from hindcast.query import explain_limits
from hindcast.store import duckdb_reader, table_creation, tables
from hindcast.store.tables import Table
from test_pages import client, text, twin
from warehouses import RUNS, plan, shop

MOMENT = pa.timestamp("us", "UTC")
LOG = pa.schema(
    [
        ("run", pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("offsets", pa.int64()),
        ("fate", pa.string()),
        ("systemFrom", MOMENT),
        ("topicId", pa.string()),
        ("epoch", pa.int32()),
        ("timestamp", MOMENT),
        ("streamTime", MOMENT),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


def log_row(offset: int, **values: Any) -> dict[str, Any]:
    """A record that run 3 ingested."""
    own = {"run": 3, "partition": 0, "offset": offset, "offsets": 1, "fate": "accepted", "systemFrom": RUNS[1]}
    return own | {"topicId": "t", "epoch": 0, "value": b"{}"} | values


def write_rows(
    table: Table, schema: pa.Schema, rows: list[dict[str, Any]], ids: Mapping[str, int] | None = None
) -> None:
    """Append rows to one of our own tables."""
    write_deltalake(
        table.path,
        pa.Table.from_pylist(rows, schema=schema),
        mode="append",
        name=f"{table.pipeline}.{table.name}",
        description=table.description,
        commit_properties=CommitProperties(app_transactions=[Transaction(*it) for it in (ids or {}).items()]),
    )


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A pipeline with a run that is under way: its offsets are those that its log has."""
    monkeypatch.setattr(reading_limits, "_SPENT", {})
    monkeypatch.setattr(ledger_page, "_LOGGED", KeptResults(ledger_page.MAX_RANGES))
    with shop(tmp_path) as found:
        own = replace(plan(find(found.schemas, "shop"), 2), run=3, run_id="manual__3", known_at=RUNS[1].replace(day=3))
        journal.append_entry(found.warehouse, Run(own))
        write_rows(prices_log(found), LOG, [log_row(0), log_row(1, fate="expired")])
        yield found


def prices_log(settings: Settings) -> Table:
    return tables.log_table(settings.warehouse, "shop", "prices")


@pytest.fixture
def slow_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading any table takes DuckDB for ever."""
    slow_reading.read_for_ever(monkeypatch)
    monkeypatch.setattr(reading_limits, "LOG_SECONDS", 0.1)


def read_cells(told: JsonObject) -> list[Any]:
    """The cells of the only partition of the prices."""
    (row,) = told["topics"][0]["rows"]  # type: ignore[index, call-overload, union-attr]
    return list(row["cells"])  # type: ignore[index, call-overload, arg-type]


@pytest.mark.usefixtures("settings")
def test_the_ledgers_page_shows_what_a_run_under_way_has_ingested() -> None:
    told = twin(client("shop"), "/ledger/shop")
    assert told["unread"] == []
    assert read_cells(told)[2]["fates"] == {"accepted": 1, "expired": 1}
    assert "planned, not replayed" not in client("shop").get("/ledger/shop").text, "all of it was"


@pytest.mark.usefixtures("settings", "slow_tables")
def test_the_ledgers_page_does_without_a_log_that_takes_too_long() -> None:
    begun = time.monotonic()
    told = twin(client("shop"), "/ledger/shop")
    assert time.monotonic() - begun < 2
    assert told["unread"] == [3]
    assert [it["found"] for it in told["problems"]] == ["a log was not read: it takes more than 0.1 s"]  # type: ignore[index, call-overload, union-attr]
    assert [it and it["offsets"] for it in read_cells(told)] == [2, 1, None], "other runs are shown"
    assert reading_limits.measure_lately("shop") >= 0.1


def test_a_log_of_which_reading_takes_too_much_memory_is_not_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a long text that stands for a fate repeated for each record that has it."""
    write_rows(prices_log(settings), LOG, [log_row(n, fate="x" * 100_000) for n in range(2, 100)])
    told = twin(client("shop"), "/ledger/shop")
    assert (told["unread"], read_cells(told)[2]["offsets"]) == ([], 100)
    (own,) = ledger.read_ingested_ranges(prices_log(settings), 3)
    assert own.fates == {"accepted": 1, "expired": 1, "unknown": 98}

    def fill_memory(engine: duckdb.DuckDBPyConnection, *_: object) -> None:
        assert read_memory_limit(engine) == "320.0 MiB"
        raise duckdb.OutOfMemoryException("full")

    monkeypatch.setattr(ledger_page, "_LOGGED", KeptResults(100))
    monkeypatch.setattr(duckdb_reader, "register_rows", fill_memory)
    told = twin(client("shop"), "/ledger/shop")
    assert [it["found"] for it in told["problems"]] == ["a log was not read: it takes more than 320 MiB of memory"]  # type: ignore[index, call-overload, union-attr]


def test_the_logs_of_a_pipeline_are_read_no_longer_than_they_may_and_what_was_read_is_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = client("shop")
    for seconds, unread in ((-1.0, [3]), (60.0, []), (-1.0, [])):
        monkeypatch.setattr(reading_limits, "LOGS_SECONDS", seconds)
        assert twin(web, "/ledger/shop")["unread"] == unread
        assert ("Reports or logs of run 3 were not read: what it replayed" in text(web, "/ledger/shop")) == bool(unread)
    write_rows(prices_log(settings), LOG, [log_row(2)])
    told = twin(web, "/ledger/shop")
    assert told["unread"] == [3]
    assert "load the page again in 30 seconds" in str(told["problems"])
    with reading_limits.limit_page(0), pytest.raises(PlatformError, match="the page has taken long enough"):
        ledger_page._find_offsets(settings.warehouse, journal.read_runs(settings.warehouse, "shop")[2], "prices", {})


def test_a_page_reads_only_so_many_ranges_of_a_log(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(prices_log(settings), LOG, [log_row(2 * n) for n in range(2, 12)])
    monkeypatch.setattr(ledger_page, "MAX_RANGES", 11)
    assert twin(client("shop"), "/ledger/shop")["unread"] == []
    monkeypatch.setattr(ledger_page, "_LOGGED", KeptResults(100))
    monkeypatch.setattr(ledger_page, "MAX_RANGES", 10)
    told = twin(client("shop"), "/ledger/shop")
    assert "has more than 10 ranges of offsets of a run" in str(told["problems"])
    assert "hindcast ledger shop lists them" in str(told["problems"])


def trim_row(n: int) -> dict[str, Any]:
    """What a trim counted of records that run 3 has ingested."""
    counts = {"trim": 7, "run": 3, "partition": 0, "first": 10 * n, "after": 10 * n + 3, "fate": "expired", "n": 3}
    return counts | {
        "late": 0,
        "without": 0,
        "systemFrom": RUNS[1],
        "topicId": "x" * 1_000,
        "horizon": RUNS[0],
        "through": 3,
    }


def test_what_was_trimmed_of_a_log_is_limited_too(settings: Settings) -> None:
    log = prices_log(settings)
    schema = pa.schema([("trim", pa.int64()), *trim_ledger.COUNTS_SCHEMA, ("horizon", MOMENT), ("through", pa.int64())])
    write_rows(trim_ledger.trim_table(log), schema, [trim_row(n) for n in range(1, 6)] + [trim_row(9) | {"trim": 6}])
    write_rows(log, LOG, [log_row(100)], {log.app_id(trim_ledger.PART): 7})
    assert trim_ledger.read_log_trim(log) == (RUNS[0], 3)
    assert [it.start for it in ledger.read_ingested_ranges(log, 3, most=7)] == [0, 10, 20, 30, 40, 50, 100]
    assert [it.start for it in ledger.read_ingested_ranges(log, 4)] == []
    counts = trim_ledger.read_trim_counts(log, 3, most=2)
    assert (counts.num_rows, counts.schema, len(counts["topicId"][0].as_py())) == (2, trim_ledger.COUNTS_SCHEMA, 250)
    with pytest.raises(PlatformError, match="has more than 4 ranges"):
        ledger.read_ingested_ranges(log, 3, most=4)


def test_ranges_of_offsets_are_found_by_blocks_as_by_rows(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of several pieces, which begin and end anywhere; rows that stand for several offsets lie across blocks."""
    log, chance = prices_log(settings), random.Random(30)  # noqa: S311  # tests repeat
    rows: list[dict[str, Any]] = []
    expected: list[tuple[int, int, int, int, dict[str, int], int, int]] = []
    for run in range(4, 64):
        for partition in range(2):
            offset = chance.randrange(100)
            for _ in range(chance.randrange(1, 4)):
                start, fates, late, without = offset, Counter[str](), 0, 0
                for _ in range(chance.randrange(1, 60)):
                    count = chance.choice([1, 1, 1, 1, 7])
                    fate = "accepted" if count == 1 and chance.random() < 0.7 else "expired"
                    is_late, has_value = chance.random() < 0.3, chance.random() < 0.8
                    times = {"timestamp": RUNS[0], "streamTime": RUNS[1] if is_late else RUNS[0]}
                    own = {"run": run, "partition": partition, "offsets": count, "fate": fate}
                    rows.append(log_row(offset, **own, **times, value=b"{}" if has_value else None))
                    fates[fate] += count
                    late, without = late + is_late, without + (fate == "accepted" and not has_value)
                    offset += count
                expected.append((run, partition, start, offset, dict(sorted(fates.items())), late, without))
                offset += chance.choice([1, 3, 8, 40])
    chance.shuffle(rows)
    write_rows(log, LOG, rows)
    monkeypatch.setattr(ledger, "_BLOCK", 8)
    found = [it for it in ledger.read_ingested_ranges(log) if it.run > 3]
    assert [(i.run, i.partition, i.start, i.end, i.fates, i.late, i.without_value) for i in found] == expected


def test_a_missing_file_of_a_log_is_told(settings: Settings) -> None:
    for path in Path(prices_log(settings).path).glob("*.parquet"):
        path.unlink()
    answer = client("shop").get("/ledger/shop.json")
    assert (answer.status_code, answer.json()["error"]["where"]) == (500, prices_log(settings).path)
    assert "a data file cannot be read" in answer.json()["error"]["found"]


def read_memory_limit(engine: duckdb.DuckDBPyConnection) -> str:
    ((limit,),) = engine.execute("SELECT current_setting('memory_limit')").fetchall()
    return str(limit)


def test_other_columns_of_a_log_are_told(settings: Settings) -> None:
    odd = pa.schema([("partition", pa.int32()), *(field for field in LOG if field.name in ("run", "fate"))])
    log = tables.log_table(settings.warehouse, "shop", "orders")
    write_rows(log, odd, [{"run": 3, "partition": 0, "fate": "accepted"}])
    with pytest.raises(TableError, match="has what Hindcast does not write and cannot read: BinderException"):
        ledger.read_ingested_ranges(log, 3)


def write_held(settings: Settings, text: str) -> None:
    entry = {"run": 1, "at": RUNS[0], "table": "prices", "gate": 0, "entry": "held", "key": text, "row": text}
    table = failing_rows.failing_table(settings.warehouse, "shop")
    write_rows(table, table_creation.arrow_schema(failing_rows.SCHEMA), [entry])


def find_unknown_key() -> str:
    answer = client("shop").get("/machine/shop.json", params={"table": "prices", "key": "nobody's"})
    assert 400 <= answer.status_code < 500
    return str(answer.json()["error"])


@pytest.mark.parametrize("is_slow", [True, False])
def test_what_is_held_of_a_key_is_found_in_time_and_memory_or_not_at_all(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    write_held(settings, "{}")
    assert "the table never had a row of this key" in find_unknown_key()
    register = duckdb_reader.register_rows

    def register_failing(engine: duckdb.DuckDBPyConnection, delta_table: DeltaTable, *arguments: Any) -> None:
        if delta_table.metadata().name != "shop.failing":
            register(engine, delta_table, *arguments)
        elif is_slow:
            engine.execute("SELECT sum(a.range * b.range) FROM range(1000000) AS a, range(100000) AS b").fetchall()
        else:
            assert read_memory_limit(engine) == "320.0 MiB"
            raise duckdb.OutOfMemoryException("full")

    monkeypatch.setattr(explain_limits, "MAX_SECONDS", 0.1)
    monkeypatch.setattr(duckdb_reader, "register_rows", register_failing)
    begun = time.monotonic()
    found = find_unknown_key()
    assert time.monotonic() - begun < 2
    assert "finding out whether a change of the key is held back takes more than 0.1 s, or 320 MiB" in found
    assert "hindcast failing shop --held" in found
