"""What pages take of the API server: the expressions that they evaluate, their time, how much of a value they show."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import slow_reading
from hindcast.airflow.pages import changes_page, time_machine
from hindcast.common.errors import QueryError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import Settings
from hindcast.contract import Join, find
from hindcast.query import cut_values, explain_limits, first_rows, key_history, read
from hindcast.query.explain import explain_row
from hindcast.query.explain_limits import NotExplainedError
from hindcast.query.row_expressions import RowExpressions
from hindcast.store import duckdb_reader, tables
from test_pages import client, text
from warehouses import RUNS, T0, at, place, row, shop, version, write

LONG = "né👍" * 2_000


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop")) as found:
        contract = find(found.schemas, "shop")
        notes = [LONG + end for end in ("b", "c")]
        write(
            found,
            contract,
            "prices",
            [
                version(1, None, n, 1 if n == 0 else None, item="big", price=Decimal(1), note=notes[n], **place(n))
                for n in range(2)
            ]
            + [version(1, None, 0, None, item=LONG, price=Decimal(1), note="", **place(9))],
        )
        write(found, contract, "orders", [row(1, customer="eve", item=LONG, quantity=1, timestamp=at(2), **place(1))])
        yield found


BILL = {"customer": "dave", "timestamp": at(2), "_partition": 0, "_offset": 0}
CITY = {"city": "Rome", "validFrom": T0}


def explain(settings: Settings, name: str, row: dict[str, Any], **change: Any) -> JsonObject:
    """Why a row of a changed view is what it is, and that it took no time to say so."""
    contract = find(settings.schemas, "shop")
    view = contract.views[name].model_copy(update=change)
    other = contract.model_copy(update={"views": {**contract.views, name: view}})
    begun = time.monotonic()
    told = explain_row(settings, other, name, row, RUNS[1], {"shop"})
    assert time.monotonic() - begun < 2
    return told


def explain_bill(settings: Settings, on: str) -> JsonObject:
    return explain(settings, "bills", BILL, join=Join(table="prices", on=on))


HUGE = "repeat('a', 400000000)"


@pytest.mark.parametrize(
    "on",
    [
        f"if(orders.item = 'x', {HUGE}, orders.item)",
        "levenshtein(orders.item, orders.item)",
        "element_at(sequence(1, 400000000), 1)",
        "rpad(orders.item, 400000000)",
        "orders.item rlike 'a'",
        "cast(orders.quantity as array<int>)",
    ],
)
def test_what_only_spark_evaluates_is_not_evaluated(settings: Settings, on: str) -> None:
    told = explain_bill(settings, on)
    assert str(told["text"]).startswith("The row cannot be explained: only Spark evaluates ")
    assert (str(told["text"]).endswith(", which the contract uses"), told["parts"]) == (True, [])


@pytest.mark.parametrize(
    "change",
    [
        {"group_by": {"city": f"if(city = 'x', {HUGE}, city)"}},
        {"group_by": {"city": "concat(city, city)"}},
        {"group_by": {"city": "trim(concat('a', city || '-' || city))"}},
        {"where": f"city <> 'x' or city < {HUGE}"},
    ],
)
def test_of_all_rows_of_an_input_texts_are_not_joined_either(settings: Settings, change: dict[str, Any]) -> None:
    told = explain(settings, "cities", CITY, **change)
    assert ("only Spark evaluates " in str(told["text"]), told["parts"]) == (True, [])


@pytest.mark.parametrize(
    "on",
    [
        "orders.item",
        "coalesce(nullif(trim(concat(' ', orders.item)), ''), 'x')",
        "concat(substring(orders.item, 1, 2), left(orders.item, 1), 'an')",
        "if(orders.quantity * 2 + 1 in (1, 5) and orders.quantity between 1 and 9, lower(orders.item), null)",
        "if(cast(orders.quantity as decimal(8,2)) <=> 2.00, orders.item, 'x')",
        "'naan'",
    ],
)
def test_what_arrow_evaluates_is_evaluated(settings: Settings, on: str) -> None:
    assert "item = na" in str(explain_bill(settings, on)["text"])


@pytest.mark.parametrize(
    "change",
    [
        {"where": "city between 'A' and 'Z' and (id is not null or id <> 1) and not city in ('Paris')"},
        {"group_by": {"city": "upper(left(city, 1)) || 'ome'"}},
        {"group_by": {"city": "case when city < 'Q' then 'x' else city end"}, "where": "'Rome' <=> city"},
    ],
)
def test_the_rows_of_a_group_are_found_by_arrow(settings: Settings, change: dict[str, Any]) -> None:
    (part,) = explain(settings, "cities", CITY, **change)["parts"]  # type: ignore[misc, union-attr]
    assert part["total"] == 1  # type: ignore[index, call-overload]


def test_a_value_that_only_spark_knows_is_not_guessed(settings: Settings) -> None:
    told = explain(settings, "cities", CITY, group_by={"city": "lower(city || 'é')"})
    words = "The row cannot be explained: for some rows only Spark evaluates the expressions of the contract"
    assert told == {"text": words, "parts": []}


@pytest.mark.parametrize("on", ["date_diff(timestamp, timestamp)", "map(interval 1 day)"])
def test_no_expression_breaks_the_page(settings: Settings, on: str) -> None:
    assert str(explain_bill(settings, on)["text"]).startswith("The row cannot be explained: ")


def test_an_error_of_any_kind_is_told_as_no_explanation(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hindcast.plan.horizon.find_frozen_until", lambda *_: {}["x"])
    assert explain_bill(settings, "orders.item")["text"] == "The row cannot be explained: 'x'"


def open_prices(settings: Settings) -> DeltaTable:
    opened = tables.open_table(tables.locate_table(settings.warehouse, find(settings.schemas, "shop"), "prices"))
    assert opened is not None
    return opened


def test_an_engine_is_interrupted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_limits, "MAX_SECONDS", 0.1)
    begun = time.monotonic()
    with (
        pytest.raises(NotExplainedError, match=r"longer than 0\.1 seconds"),
        explain_limits.open_limited_engine(open_prices(settings)) as engine,
    ):
        engine.execute("SELECT sum(a.range * b.range) FROM range(1000000) AS a, range(10000) AS b").fetchall()
    assert time.monotonic() - begun < 2


def test_an_engine_that_computes_nothing_at_the_limit_is_interrupted_later(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_limits, "MAX_SECONDS", 0.1)

    def idle_then_compute(engine: duckdb.DuckDBPyConnection) -> None:
        time.sleep(0.3)
        engine.execute("SELECT sum(a.range * b.range) FROM range(1000000) AS a, range(10000) AS b").fetchall()

    with (
        pytest.raises(NotExplainedError, match=r"longer than 0\.1 seconds"),
        explain_limits.open_limited_engine(open_prices(settings)) as engine,
    ):
        idle_then_compute(engine)


@pytest.fixture
def slow_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading any table takes DuckDB for ever."""
    slow_reading.read_for_ever(monkeypatch)
    monkeypatch.setattr(key_history, "HISTORY_SECONDS", 0.2)
    monkeypatch.setattr(key_history, "SUGGESTION_SECONDS", 0.1)


@pytest.mark.usefixtures("slow_tables")
def test_finding_keys_to_suggest_stops() -> None:
    begun, web = time.monotonic(), client("shop")
    answer = web.get("/keys/shop.json", params={"table": "prices", "beginning": "zzz"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "finding keys that begin with 'zzz' took longer than 0.1 s" in str(error)
    assert "write the whole key and open its page" in str(error)
    page = web.get("/machine/shop.json", params={"table": "prices"})
    assert (page.status_code, page.json()["suggested"]) == (200, []), "a key can be written"
    assert time.monotonic() - begun < 5


@pytest.mark.usefixtures("slow_tables")
def test_reading_the_rows_of_a_key_stops() -> None:
    begun = time.monotonic()
    answer = client("shop").get("/machine/shop.json", params={"table": "prices", "key": "nobody's"})
    assert answer.status_code == 400
    assert "reading the rows of the key took longer than 0.2 s" in str(answer.json()["error"])
    assert "hindcast history shop.prices --key KEY" in str(answer.json()["error"])
    assert time.monotonic() - begun < 5


def test_a_page_does_not_read_more_rows_of_a_key_than_it_may(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.locate_table(settings.warehouse, find(settings.schemas, "shop"), "orders")
    assert key_history.read_history(table, ["dave"]).rows.num_rows == 1
    monkeypatch.setattr(key_history, "MAX_HISTORY_ROWS", 1)
    key_history._CACHE.clear()
    assert key_history.read_history(table, ["dave"]).rows.num_rows == 1
    table = tables.locate_table(settings.warehouse, find(settings.schemas, "shop"), "prices")
    with pytest.raises(QueryError, match="the key has more than 1 rows, which is more than a page reads"):
        key_history.read_history(table, ["naan"])


def test_a_page_does_not_read_larger_rows_of_a_key_than_it_may(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables.locate_table(settings.warehouse, find(settings.schemas, "shop"), "prices")
    key_history._CACHE.clear()
    monkeypatch.setattr(key_history, "MAX_HISTORY_BYTES", 100)
    with pytest.raises(QueryError, match="the rows of the key have more than 0 MiB, which is more than a page reads"):
        key_history.read_history(table, ["naan"])
    monkeypatch.setattr(key_history, "MAX_HISTORY_BYTES", 1 << 20)
    monkeypatch.setattr(key_history, "_CACHE_BYTES", 0)
    assert key_history.read_history(table, ["naan"]).rows.num_rows > 1
    assert not key_history._CACHE, "it would be larger than it may be"


def test_sizes_of_nested_values_are_those_of_all_their_parts() -> None:
    long = "x" * 5_000
    rows = pa.table(
        {
            "text": [long, None],
            "numbers": pa.array([[1, 2, 3], None]),
            "texts": pa.array([[long, None, "ab"], []]),
            "struct": pa.array([{"a 'b": long, "n": 1}, None]),
            "map": pa.array([[("k", [long, long])], None], pa.map_(pa.string(), pa.list_(pa.string()))),
        }
    )
    sizes = {"text": (4_000, 0), "numbers": (96, 0), "texts": (5_050, 0), "struct": (5_016, 16), "map": (10_049, 0)}
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("rows", rows)
        for name, expected in sizes.items():
            text = f"SELECT {cut_values.measure_columns(engine, [name])} FROM rows"
            assert engine.sql(text).fetchall() == [(size,) for size in expected], name


@pytest.mark.parametrize(
    ("pipelines", "is_explained"),
    [(["shop"], False), (["guest"], True), (["a", "b", "c"], True), (["a", "b", "c", "d"], False)],
)
def test_only_some_pipelines_explain_rows_at_a_time_and_each_only_one(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, pipelines: list[str], *, is_explained: bool
) -> None:
    monkeypatch.setattr(explain_limits, "MAX_SECONDS", 0.1)
    with ExitStack() as turns:
        for pipeline in pipelines:
            turns.enter_context(explain_limits.limit_explanations(pipeline))
        monkeypatch.setattr(explain_limits, "MAX_SECONDS", 2.0 if is_explained else 0.1)
        told = explain_bill(settings, "orders.item")["text"]
    assert ("too many rows are being explained at this moment; try again" in str(told)) is not is_explained
    monkeypatch.setattr(explain_limits, "MAX_SECONDS", 2.0)
    assert "looked up" in str(explain_bill(settings, "orders.item")["text"])


@pytest.mark.parametrize("name", [None, "prices"])
def test_an_engine_of_the_pages_opens_no_other_file(settings: Settings, name: str | None, tmp_path: Path) -> None:
    secret, prices = (
        tmp_path / "secret.csv",
        tables.locate_table(settings.warehouse, find(settings.schemas, "shop"), "prices"),
    )
    secret.write_text("a\nhunter2\n", encoding="utf-8")
    opened = open_prices(settings) if name else None
    limited = duckdb_reader.open_arrow_engine() if opened is None else explain_limits.open_limited_engine(opened)
    with limited as engine:
        if opened is not None:
            duckdb_reader.register_rows(engine, opened)
            assert engine.sql("FROM rows").fetchall(), "its own files"
        for query in (
            f"SELECT content FROM read_text('{secret}')",
            f"FROM '{secret}'",
            f"FROM '{prices.path}/../../../{tmp_path.name}/secret.csv'",
            f"FROM read_parquet('{settings.warehouse}/shop/orders/*/*.parquet')",
            f"FROM glob('{tmp_path}/*')",
            f"COPY (SELECT 1) TO '{tmp_path}/new.csv'",
            f"ATTACH '{tmp_path}/new.db' AS other",
            "INSTALL httpfs",
        ):
            with pytest.raises(duckdb.PermissionException):
                engine.execute(query)
        for setting in ("enable_external_access = true", "allowed_directories = ['/']", "memory_limit = '1TB'"):
            with pytest.raises(duckdb.InvalidInputException, match="locked"):
                engine.execute(f"SET GLOBAL {setting}")
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_several_engines_of_the_pages_leave_memory_for_others() -> None:
    def read_memory(engine: duckdb.DuckDBPyConnection) -> float:
        sizes = {"MiB": 1, "GiB": 1 << 10, "TiB": 1 << 20}
        number, unit = engine.execute("SELECT current_setting('memory_limit')").fetchall()[0][0].split()
        return float(number) * sizes[unit]

    with duckdb_reader.open_arrow_engine() as limited, duckdb.connect() as free:
        assert read_memory(limited) == pytest.approx(read_memory(free) / 4, rel=0.05)
        assert limited.execute("SELECT current_setting('threads')").fetchall()[0][0] <= 4


SPILLING = """
from pathlib import Path
from hindcast.store import duckdb_reader

for engine in (duckdb_reader.open_arrow_engine(), duckdb_reader.open_engine()):
    folder = Path(engine.execute("SELECT current_setting('temp_directory')").fetchall()[0][0])
    assert not folder.exists(), "before there is something to spill"
    try:
        engine.execute("SET memory_limit = '64MB'")
    except Exception:  # it is locked
        continue
    engine.execute("CREATE TEMP TABLE wide AS SELECT i, repeat(md5(i::VARCHAR), 8) FROM range(400000) t(i)")
    assert any(folder.iterdir())
    print(oct(folder.parent.stat().st_mode & 0o777), folder)
"""


def test_what_does_not_fit_into_memory_goes_to_a_private_folder_which_ends_with_the_process(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    places = []
    for _ in range(2):
        command = [sys.executable, "-W", "ignore", "-c", SPILLING]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
        assert done.stderr == ""
        mode, place = done.stdout.split()
        assert mode == "0o700"
        assert not Path(place).exists()
        places.append(Path(place).parent)
        (tmp_path / f"hindcast-{os.geteuid()}").chmod(0o777)  # so that others could have written to it
    assert places[0] == tmp_path / f"hindcast-{os.geteuid()}"
    assert places[1] != places[0]


@pytest.mark.parametrize("taken", ["file", "dangling link", "nothing"])
def test_databases_do_without_the_place_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path if taken != "nothing" else tmp_path / "nowhere"))
    monkeypatch.setattr(duckdb_reader, "_SPILL_FOLDERS", [])
    own = tmp_path / f"hindcast-{os.geteuid()}"
    if taken == "file":
        own.touch()
    elif taken == "dangling link":
        own.symlink_to("nowhere")
    for _ in range(3):
        with duckdb_reader.connect_alone() as engine:
            ((place,),) = engine.execute("SELECT current_setting('temp_directory')").fetchall()
    made = [path for path in tmp_path.iterdir() if path.is_dir()]
    if taken == "nothing":
        assert (place, made) == ("", [])
        return
    (folder,) = made
    assert Path(place).parent == folder
    folder.rmdir()  # as those do who clean up
    duckdb_reader.connect_alone().close()
    assert folder.stat().st_mode & 0o777 == 0o700


FORKED = """
import os, signal
from hindcast.store import duckdb_reader

os.register_at_fork(after_in_child=lambda: signal.alarm(20))  # it kills one that hangs

def query(names):
    for name in names:
        with duckdb_reader._DATABASES.open_limited(name) as engine:
            assert engine.execute("SELECT sum(i) FROM range(1000000) t(i)").fetchall() == [(499999500000,)]
    with duckdb_reader.open_engine() as engine, duckdb_reader.open_arrow_engine() as limited:
        assert engine.execute("SELECT 1").fetchall() == limited.execute("SELECT 1").fetchall() == [(1,)]
    assert len(duckdb_reader._DATABASES.limited) <= 8

query(map(str, range(12)))
inherited = duckdb_reader._DATABASES
duckdb_reader._DATABASES.lock.acquire()  # as a thread that is opening one would have it
child = os.fork()
if not child:
    query(map(str, range(20)))
    assert duckdb_reader._DATABASES is not inherited and len(inherited.limited) == 8
    grandchild = os.fork()
    if not grandchild:
        del inherited
        query(map(str, range(20)))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nanobind tells what is not freed
        raise SystemExit(0)
    os._exit(os.waitpid(grandchild, 0)[1])
print("ended with", os.waitpid(child, 0)[1])
"""


def test_a_forked_process_opens_databases_of_its_own_and_frees_none_that_it_inherited() -> None:
    """Freeing one waits for threads that the fork has not copied: for ever, or until it crashes."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("ended with 0\n", "")


def test_what_gets_past_every_check_reads_no_file(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("hunter2", encoding="utf-8")
    read_file = f"(SELECT content FROM read_text(lower('{secret}')))"
    monkeypatch.setattr(RowExpressions, "write_sql", lambda *_: read_file)
    row = {"city": "", "validFrom": T0}
    told = explain(settings, "cities", row, table="prices", group_by={"city": "note"}, where="note = ''")
    assert str(told["text"]).startswith("The row cannot be explained: Permission Error"), told
    assert "hunter2" not in str(told)


def test_a_comparison_spills_what_does_not_fit_and_reads_no_more_rows_than_it_can_pair_in_time(
    settings: Settings,
) -> None:
    """A long value that is paired with many short rows would take a gigabyte."""
    prices = open_prices(settings)
    pairs = "FROM range(300000) AS t(i), (SELECT repeat('x', 4000) AS note)"
    with explain_limits.open_limited_engine(prices, memory=changes_page.MEMORY) as engine:
        ((limit,),) = engine.execute("SELECT current_setting('memory_limit')").fetchall()
        engine.execute(f"CREATE TEMP TABLE lines AS SELECT i, note || i AS note {pairs}")
        ((used,),) = engine.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()
    assert (limit, used <= changes_page.MEMORY, changes_page.LIMIT.rows) == ("320.0 MiB", True, 1_200_000)
    with explain_limits.open_limited_engine(prices) as engine:
        assert engine.execute("SELECT current_setting('memory_limit')").fetchall() != [(limit,)]


# Long values


@pytest.mark.parametrize("value", ["", "a" * 1_000, "a" * 1_001, LONG, "\0" * 1_500])
def test_duckdb_cuts_texts_as_python_does(value: str) -> None:
    with duckdb.connect() as engine:
        engine.execute("CREATE TABLE rows AS SELECT $1::VARCHAR AS a, 1 AS b", [value])
        (shown, other) = engine.sql(f"SELECT {cut_values.cut_columns(engine)} FROM rows").fetchall()[0]
    assert (shown, other) == (cut_values.cut_text(value), 1)
    assert cut_values.is_cut(shown) == (len(value) > 1_000)


def test_bytes_are_cut_too() -> None:
    with duckdb.connect() as engine:
        engine.execute("CREATE TABLE rows AS SELECT unnest([$1::BLOB, $2::BLOB]) AS a", [b"\xab", b"\xab" * 501])
        shown = [a for (a,) in engine.sql(f"SELECT {cut_values.cut_columns(engine)} FROM rows").fetchall()]
    assert shown[0] == b"\xab", "by which rows of inputs are found"
    assert cut_values.show_bytes(shown[1]).startswith(f"{'ab' * 500}… (501 bytes, sha256 ")
    assert list(map(cut_values.is_cut, shown)) == [False, True]


def test_nested_values_are_cut() -> None:
    assert cut_values.cut_nested(["a"]) == ["a"]
    assert str(cut_values.cut_nested({"a": [LONG]})).startswith('{"a": ["n')
    assert len(str(cut_values.cut_nested({"a": [LONG]}))) < 1_100


def test_a_page_shows_the_beginning_of_long_values_and_that_they_differ(settings: Settings) -> None:
    web = client("shop")
    answer = web.get("/machine/shop.json", params={"table": "prices", "key": "big"})
    shown = {rectangle["values"]["note"] for rectangle in answer.json()["plane"]["rectangles"]}
    assert len(shown) == 2
    for note in shown:
        assert note.startswith(f"{LONG[:1_000]}… (6,001 characters, sha256 ")
    assert LONG[:1_001] not in web.get("/machine/shop", params={"table": "prices", "key": "big"}).text
    contract = find(settings.schemas, "shop")
    rows = read.history(settings.warehouse, contract, "prices", key=["big"]).to_pylist()
    assert [row["note"] for row in rows] == [LONG + "b", LONG + "c"], "programs get all"


def test_the_rows_of_inputs_are_cut(settings: Settings) -> None:
    first, met = explain(settings, "bills", {**BILL, "_offset": 1}, join=Join(table="prices", on="'big'"))["parts"]  # type: ignore[misc, union-attr]
    assert first["rows"][0]["values"]["item"].startswith(f"{LONG[:1_000]}… (")  # type: ignore[index, call-overload, union-attr]
    assert met["rows"][0]["key"] == "big"  # type: ignore[index, call-overload]


def test_a_row_with_a_cut_key_has_no_link_to_its_plane(settings: Settings) -> None:
    row = {"city": "", "validFrom": T0}
    (part,) = explain(settings, "cities", row, table="prices", group_by={"city": "note"})["parts"]  # type: ignore[misc, union-attr]
    keys = {found["values"]["item"][:5]: found["key"] for found in part["rows"]}  # type: ignore[index, call-overload, union-attr]
    assert keys == {"naan": "naan", LONG[:5]: None}


def test_a_cut_value_is_not_looked_up(settings: Settings) -> None:
    words = "The row cannot be explained: it does not look up values of more than 1,000 characters"
    for on in ("orders.item", "lower(orders.item)"):
        assert explain(settings, "bills", {**BILL, "_offset": 1}, join=Join(table="prices", on=on))["text"] == words
    assert explain(settings, "cities", {**CITY, "city": cut_values.cut_text(LONG)})["text"] == words


def test_keys_that_no_page_shows_whole_are_not_suggested(settings: Settings) -> None:
    contract = find(settings.schemas, "shop")
    suggested = time_machine.suggest_keys(settings, contract, "prices", "")["keys"]
    assert ("big" in suggested, LONG in suggested) == (True, False)  # type: ignore[operator]
    shown = text(client("shop"), "/machine/shop", table="prices")
    assert (LONG in shown, cut_values.cut_text(LONG) in shown) == (False, True)
    table = tables.locate_table(settings.warehouse, contract, "prices")
    assert read.parse_key(table, "big") == ["big"]


FIRST_ROWS = """
import resource, sys
from deltalake import DeltaTable
from hindcast.query import explain_limits, first_rows
from hindcast.store import duckdb_reader

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with explain_limits.open_limited_engine(DeltaTable(sys.argv[1]), 60, 320 << 20) as engine:
    duckdb_reader.register_rows(engine, DeltaTable(sys.argv[1]))
    try:
        print(first_rows.choose_first_rows(engine, "n >= 0", [("n", True)], 20))
    except first_rows.WideRowsError as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize(
    ("length", "found"), [(50 << 20, "the first 20 rows have more than 512 MiB"), (5, "rows AS")], ids=["long", "short"]
)
def test_rows_of_a_small_file_that_are_large_are_not_sorted(tmp_path: Path, length: int, found: str) -> None:
    """Sixty of them would take three gigabytes; only what they are ordered by is sorted."""
    write_deltalake(tmp_path / "table", pa.table({"n": range(60), "note": ["x"] * 60}))
    (path,) = (tmp_path / "table").glob("*.parquet")
    notes = pa.DictionaryArray.from_arrays(pa.array([0] * 60, pa.int32()), pa.array(["x" * length]))
    pq.write_table(pa.table({"n": range(60), "note": notes}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 100_000
    code = [sys.executable, "-c", FIRST_ROWS, tmp_path / "table"]
    asked = subprocess.run(code, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr
    said, mebibytes = asked.stdout.splitlines()
    assert said.startswith(found)
    assert int(mebibytes) < 700


def test_first_rows_are_those_of_the_order_with_all_that_equal_the_last() -> None:
    rows = pa.table({"n": [3, 1, None, 2, 3, 1], "of": ["a", "b", "c", "d", "e", "f"]})
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("rows", rows)
        for order, most, expected in (
            ([("n", False)], 1, "bf"),
            ([("n", True)], 2, "ace"),
            ([("n", False), ("of", True)], 1, "f"),
            ([("n", False)], 9, "abcdef"),
        ):
            chosen = first_rows.choose_first_rows(engine, "true", order, most)
            assert sorted(it for (it,) in engine.sql(f"SELECT of FROM {chosen}").fetchall()) == [*expected]
        wide = pa.table({"n": ["x" * (2 << 20)]})
        engine.register("rows", wide)
        with pytest.raises(first_rows.WideRowsError, match="ordered by takes more than 1 MiB"):
            first_rows.choose_first_rows(engine, "true", [("n", False)], 1)
