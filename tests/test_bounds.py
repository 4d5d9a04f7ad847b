"""A file that nobody should write: it is refused with its line within a moment, and stops no pipeline but its own."""

from __future__ import annotations

import cProfile
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages import catalog
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.cli import main
from hindcast.common.errors import ContractError
from hindcast.contract import Contract, bounds, count_tables, find, load, try_load, try_load_all
from hindcast.contract.expressions import _resolve
from hindcast.contract.folder_reader import UnreadContractError
from hindcast.contract.load import SlowContractError
from hindcast.contract.parsing import parse, parse_resolved
from hostile import hostile_files
from test_contracts import GOOD, contract
from test_dags import parsed
from warehouses import settings_of

SECONDS = 2.0
"""So much of a processor one contract may take."""

BIG = f"a0: &a0 [{'x, ' * 9}x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}x]\n" for n in range(1, 24))

EXCESS = [
    # what was, what is instead, the line, what is found
    ("quantity * price", "(" * 80 + "price" + ")" * 80, 19, "has more than 30 nested brackets"),
    ("quantity * price", f"'{'if(' * 100}price{',1,2)' * 100}'", 19, "has more than 30 nested brackets"),
    ("quantity * price", f"'{'- ' * 700}price'", 19, "is nested too deeply"),
    ("quantity * price", "not " * 300 + "price", 19, "is nested too deeply"),
    ("quantity * price", "quantity" + ".x" * 1000, 19, "is nested too deeply"),
    ("quantity * price", "price" + "::string::timestamp" * 10, 19, "makes too many timestamps"),
    ("quantity * price", "price + " * 5_000 + "price", 19, "has more than 5,000 terms"),
    ("quantity * price", "price + " * 100_000 + "price", 1, "expressions and gates have more than 20,000 terms"),
    ("quantity: int", f"quantity: '{'array<' * 500}int{'>' * 500}'", 14, "more than 20 nested types"),
    ("quantity: int", f"quantity: 'int{'[]' * 500}'", 14, "more than 20 nested types"),
    ("pipeline: restaurant", f"pipeline: {'p' * 251}", 1, "is a name of 251 characters"),
    ("pipeline:", f"description: '{'`' * 10_001}'\npipeline:", 1, "has 10,001 characters, more than 10,000"),
    ("  bills:", f"  {'b' * 245}:", 16, "is a name of 245 characters"),
    ("price: ", f"{'c' * 300}: ", 8, "is a name of 300 characters"),
    ("topics:\n", 'topics:\n  "menu\\n": {read: stream, key: {k: int}, value: {v: int}}\n', 5, "has leading or"),
    ("{item: string}", '{" item": string}', 7, "has leading or trailing whitespace"),
    ("pipeline: restaurant", "pipeline: |\n  restaurant\n", 1, "has leading or trailing whitespace"),
    ("pipeline: restaurant", "pipeline: restaurant__release", 1, "is the name of one of Hindcast's own DAGs"),
    ("pipeline: restaurant", "pipeline: hindcast_maintenance", 1, "is the name of one of Hindcast's own DAGs"),
    ("pipeline: restaurant", "pipeline: hindcast_maintenance__b", 1, "is the name of one of Hindcast's own DAGs"),
    ('"@hourly"', '"R * * * *"', 2, "has random times (H, R)"),
    ('"@hourly"', '"60 * * * *"', 2, "a cron expression that Airflow refuses: it is not acceptable, out of range"),
    ('"@hourly"', '"*/0 * * * *"', 2, "a cron expression that Airflow refuses: step '0' in field 0"),
    ('"@hourly"', '"0 0 31 2 *"', 2, "a cron expression that Airflow refuses: failed to find next date"),
    ("2026-01-01", "9999-12-31T23:59:00Z", 3, "cannot compute the intervals of '@hourly' from 9999-12-31T23:59"),
    (
        '"@hourly"\nstart: 2026-01-01',
        '"@weekly"\nstart: 0001-01-01',
        3,
        "cannot compute the intervals of '@weekly' from",
    ),
    (
        '"@hourly"\nstart: 2026-01-01',
        '"@yearly"\nstart: 9998-06-01',
        3,
        "cannot compute the intervals of '@yearly' from",
    ),
    ('"@hourly"\nstart: 2026-01-01', '"0 0 29 2 *"\nstart: 0001-01-01', 3, "the intervals of '0 0 29 2 *' from 0001"),
    ("topic: the.orders", "pattern: (e|e|.)*[^u]", 12, "takes too long to match a topic's name"),
    ("topic: the.orders", f"pattern: {'e?' * 60}{'e' * 60}", 12, "takes too long to match a topic's name"),
    ("topic: the.orders", f"pattern: {'(e|e)' * 60}", 12, "takes too long to match a topic's name"),
    ("topic: the.orders", f"pattern: {'e' * 2_000}", 12, "a pattern has more than 1,000 characters"),
    ("views:", f"{BIG}views:", 19, "more than 50,000 names and values"),
    ("views:", f"z: {'[' * 30_000}\nviews:", 15, "nested more than 40 deep"),
    ("views:", "z: &z {y: *z}\nviews:", 15, "contains an alias of itself"),
    ("views:", 'z: "a\\0b"\nviews:', 15, "a text contains the character U+0000"),
    ("views:", 'z: "a\\e[2Jb"\nviews:', 15, "a text contains the character U+001B"),
    ("views:", 'z: "a\\u202Eb"\nviews:', 15, "a text contains the character U+202E"),
    ("quantity * price", "price" + " = price" * 600, 19, "is nested too deeply"),
    ("quantity * price", f"'{'struct(' * 28}nothing{')' * 28}'", 19, "no column 'nothing'"),
    (
        "quantity * price",
        "nothing || " + " || ".join(["orders.item::timestamp::string"] * 450),
        19,
        "no column 'nothing'",
    ),
    ("quantity * price", '"cast(' + "'n' || " * 1_400 + "'ow' AS date) = nothing\"", 19, "no column 'nothing'"),
    *(
        ("quantity * price", f"{name}(" * 28 + "nothing" + ")" * 28, 19, "no column 'nothing'")
        for name in ("date", "decimal", "int", "time")
    ),
    ("quantity * price", "price" + " -> price" * 1_200, 19, "is nested too deeply"),
    ("quantity * price", "price" + " LIKE 'x' ESCAPE '!'" * 1_200, 19, "is nested too deeply"),
    ("views:", f"z: {'9' * 5_000}\nviews:", 15, "is not a whole number"),
    ("views:", f"z: 0x{'f' * 90}\nviews:", 15, "is not a whole number"),
    ("views:", "z: !!binary eHh4\nviews:", 15, "is not supported: it is tagged !!binary"),
    ("views:", f"description: {'x' * (1 << 20)}\nviews:", None, "has more than 1,048,576 bytes"),
    (
        "views:\n",
        "views:\n" + "".join(f"  v{n}: {{table: menu}}\n" for n in range(500)),
        1,
        "503 tables, more than 500",
    ),
    (
        "  bills:",
        "  menu_as_of: {table: menu}\n  bills:",
        16,
        "'menu' both give a function restaurant_menu_as_of of Spark",
    ),
    (
        "  bills:",
        "  menu_between: {table: menu}\n  bills:",
        16,
        "both give a function restaurant_menu_between of Spark SQL",
    ),
    ("  bills:", "  bills__closed_up_to: {table: menu}\n  bills:", 16, "restaurant_bills__closed_up_to of Spark SQL"),
]


@pytest.mark.parametrize(("was", "now", "line", "found"), EXCESS, ids=[f"{e[1][:24]!r} {e[3]}" for e in EXCESS])
def test_excess_is_refused_within_a_moment_with_its_line(
    tmp_path: Path, was: str, now: str, line: int | None, found: str
) -> None:
    assert was in GOOD
    text = GOOD.replace(was, now, 1)
    if "pattern" in now:  # the other topic's name is one that takes it long
        text = text.replace("  menu:\n", f"  menu:\n    topic: {'e' * 60}u\n", 1)
    path = contract(tmp_path, text)
    error = refused(path)
    assert error.where == (f"{path}:{line}" if line else str(path))
    assert found in error.found
    assert error.fix
    assert len(str(error)) < 2_000


LIMITS = "'" + "any limit f( " * 26 + "price'"
"""The parser of SQL tries two ways to read each `limit`: 26 of them take hours."""

CLASSES = "(?i)" + r"[ -\uffff]" * 1_500 + "(a+)+"
"""A pattern that takes Python seconds to compile."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a finalizer may swallow it once
@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("quantity * price", LIMITS),
        (
            "views:",
            f"    expect: [{{expect_column_values_to_match_regex: {{column: item, regex: '{CLASSES}'}}}}]\nviews:",
        ),
    ],
    ids=["expression", "pattern"],
)
def test_a_file_that_takes_long_to_read_stops_no_neighbour(
    tmp_path: Path, was: str, now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SECONDS", 0.3)
    slow = contract(tmp_path, GOOD.replace(was, now, 1).replace("pipeline: restaurant", "pipeline: slow"), "slow.yaml")
    contract(tmp_path, GOOD)
    with ThreadPoolExecutor(1) as threads:  # the pages read in threads, where no signal arrives
        for read in (threads.submit(try_load_all, tmp_path).result(), try_load_all(tmp_path)):
            told = {path.stem: it.pipeline if isinstance(it, Contract) else it.found for path, it in read.items()}
            assert told == {"restaurant": "restaurant", "slow": "takes more than 0.3 s of a processor to read"}
            assert read[slow].where == f"{slow}:1"


class SlowReader:
    """Reads files that need the time in their name: `large_3_4.9.yaml` 4.9 s; `small.yaml` none."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.names = folder, 0.0, list[str]()
        monkeypatch.setattr(time, "thread_time", lambda: self.now)

    def add_files(self, name: str, needed: float, count: int, size: int) -> None:
        for n in range(count):
            text = GOOD.replace("pipeline: restaurant", f"pipeline: {name}_{n}") + "#" * (size + n)
            contract(self.folder, text, f"{name}_{n}_{needed}.yaml")

    def read(self, path: Path, seconds: float) -> Contract | ContractError:
        self.names.append(path.name)
        needed = float(path.stem.rpartition("_")[2]) if "_" in path.stem else 0.0
        self.now += min(needed, seconds)
        return try_load(path) if needed <= seconds else SlowContractError("takes too long", where=str(path))

    def count_loaded(self, name: str) -> int:
        """Read the folder; return how many contracts whose file begins with a name have loaded."""
        self.now, results = 0.0, try_load_all(self.folder, read_one=self.read)
        assert [*results] == sorted(results), "returned by name"
        return sum(isinstance(it, Contract) for path, it in results.items() if path.name.startswith(name))


@pytest.mark.parametrize(("needed", "loaded"), [(4.9, 0), (0.9, 14), (60.0, 0)])
def test_contracts_that_take_long_leave_time_for_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: float, loaded: int
) -> None:
    """Also if each loads by itself: small files are read first, and what the folder may take is not much more."""
    reader = SlowReader(tmp_path, monkeypatch)
    reader.add_files("large", needed, 30, 1_000)
    contract(tmp_path, GOOD, "zoo.yaml")
    assert reader.count_loaded("zoo") == 1
    assert reader.names[0] == "zoo.yaml", "read by size"
    assert time.thread_time() < 17
    assert reader.count_loaded("large") == loaded
    error = try_load_all(tmp_path, read_one=reader.read)[tmp_path / f"large_15_{needed}.yaml"]
    assert isinstance(error, SlowContractError)
    assert re.fullmatch(
        r"takes more than (0\.1|1) s of a processor to read, and no more is left: the folder's other contracts took "
        r"[12]\d s, large_\d+_[\d.]+\.yaml alone [12] s",
        error.found,
    ), error.found
    assert "simplify the contracts that take long" in error.fix


@pytest.mark.parametrize(
    "named",
    [
        'description: "\\npipeline: other\\n"\n"pipeline": mine',
        "description: '\npipeline: other\n'\npipeline : mine",
        "description: '\npipeline: other\n'\n? pipeline\n: mine",
        "pipeline: mine # other",
    ],
)
def test_a_pipeline_is_found_however_its_contract_names_it(tmp_path: Path, named: str) -> None:
    text = GOOD.replace("pipeline: restaurant", named.encode().decode("unicode_escape"))
    contract(tmp_path, text, "q.yaml")
    assert find(tmp_path, "mine").pipeline == "mine"


def test_a_folder_reads_less_in_a_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SlowReader(tmp_path, monkeypatch)
    reader.add_files("sound", 0.5, 30, 0)
    for share, most in ((1.0, 13.0), (0.5, 7.0), (0.0, 0.6)):
        before = time.thread_time()
        read = try_load_all(tmp_path, read_one=reader.read, share=share)
        loaded = sum(isinstance(it, Contract) for it in read.values())
        assert (loaded > 0, time.thread_time() - before <= most + 0.1 * (30 - loaded)) == (share > 0, True)


def test_the_time_of_dags_counts_as_that_of_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = count_tables(load(contract(tmp_path, GOOD)))
    monkeypatch.setattr(bounds, "TABLE_SECONDS", bounds.FOLDER_SECONDS / tables / 2)
    reader = SlowReader(tmp_path, monkeypatch)
    reader.add_files("sound", 0.5, 6, 1_000)
    assert reader.count_loaded("sound") == 1, "the first, smaller contract has taken half of it"


@pytest.mark.parametrize("hostile", [3, 8])
def test_small_files_that_take_for_ever_cost_a_contract_of_a_second_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: int
) -> None:
    reader = SlowReader(tmp_path, monkeypatch)
    reader.add_files("hostile", 60.0, hostile, 0)
    reader.add_files("sound", 0.95, 12, 1_000)
    assert reader.count_loaded("sound") == 12
    assert time.thread_time() < 23


@pytest.mark.parametrize(("hostile", "needed"), [(1, 4.5), (3, 4.5), (6, 3.5)])
def test_a_large_contract_is_read_again_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: int, needed: float
) -> None:
    reader = SlowReader(tmp_path, monkeypatch)
    reader.add_files("hostile", 60.0, hostile, 0)
    reader.add_files("large", needed, 1, 10_000)
    assert reader.count_loaded("large") == 1
    assert time.thread_time() <= bounds.FOLDER_SECONDS


def test_a_hundred_files_that_take_for_ever_leave_time_for_ordinary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SlowReader(tmp_path, monkeypatch)
    reader.add_files("hostile", 60.0, 100, 0)
    reader.add_files("sound", 0.09, 20, 1_000)
    assert reader.count_loaded("sound") == 20
    assert time.thread_time() < 23


def test_files_for_which_no_time_is_left_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SlowReader(tmp_path, monkeypatch)
    reader.add_files("hostile", 60.0, 300, 1_000)
    contract(tmp_path, GOOD, "zoo.yaml")
    results = try_load_all(tmp_path, read_one=reader.read)
    assert time.thread_time() < 23.2
    unread = [path for path, it in results.items() if isinstance(it, UnreadContractError)]
    assert 100 < len(unread) == 301 - len(reader.names)
    assert isinstance(results[tmp_path / "zoo.yaml"], Contract)
    error = results[unread[-1]]
    assert isinstance(error, ContractError)
    assert re.fullmatch(
        r"is not read: no time is left: the folder's other contracts took 2\d s, hostile_\d+_60.0.yaml alone 1 s",
        error.found,
    ), error.found
    assert (error.where, "simplify the contracts" in error.fix) == (f"{unread[-1]}:1", True)


def test_a_file_that_is_not_read_keeps_its_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = contract(tmp_path, f"{SHOP}# large", "shop.yaml"), contract(tmp_path, SHOP, "a.yaml")
    monkeypatch.setattr(bounds, "FOLDER_FILES", 1)
    results = try_load_all(tmp_path)
    assert f"pipeline 'shop' is already used in {own}" in str(results[other])
    assert str(results[own]).startswith(f"{own}:1: is not read: its folder has 2 files, of which the 1 smallest are")


def test_the_work_for_a_folder_grows_with_its_files_and_no_faster(tmp_path: Path) -> None:
    for n in range(1_000):
        (tmp_path / f"{n}.yaml").touch()
    begun = time.process_time()
    try_load_all(tmp_path, read_one=lambda path, _: SlowContractError("takes too long", where=str(path)))
    assert time.process_time() - begun < 0.25


def test_a_file_whose_reading_cannot_be_stopped_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SlowReader(tmp_path, monkeypatch)
    path = contract(tmp_path, GOOD)

    def read_long(path: Path, _: float) -> ContractError:
        reader.now += 9
        return SlowContractError("takes too long", where=str(path))

    assert str(try_load_all(tmp_path, read_one=read_long)[path]) == str(
        SlowContractError("takes too long", where=str(path))
    )
    assert time.thread_time() == 9


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_large_contracts_are_read_in_time_for_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "FOLDER_SECONDS", 0.5)
    monkeypatch.setattr(bounds, "FIRST_SECONDS", 0.2)
    for n in range(6):
        path = wide(tmp_path, 1_500)
        path.rename(
            contract(tmp_path, path.read_text().replace("pipeline: large", f"pipeline: large_{n}"), f"l{n}.yaml")
        )
    contract(tmp_path, GOOD)
    for cached in (parse, parse_resolved, _resolve):
        cached.cache_clear()
    read = try_load_all(tmp_path)
    assert isinstance(read[tmp_path / "restaurant.yaml"], Contract)
    slow = [path.name for path, it in read.items() if isinstance(it, SlowContractError)]
    assert slow, "reading them ends in the middle"


@pytest.mark.long
@pytest.mark.ci
def test_a_file_that_takes_long_to_read_takes_no_dag_down(tmp_path: Path) -> None:
    contract(
        tmp_path,
        GOOD.replace("quantity * price", LIMITS).replace("pipeline: restaurant", "pipeline: slow"),
        "slow.yaml",
    )
    contract(tmp_path, GOOD)
    read = parsed(tmp_path)
    assert (read["errors"], {"restaurant", "slow"} <= read["dags"].keys()) == ({}, True)
    assert "takes more than 5 s of a processor" in read["dags"]["slow"]["doc"]


@pytest.mark.parametrize(
    ("was", "now", "found"),
    [
        ("quantity: int", f"quantity: '{'time [ ' * 17}int'", "has a bracket [ that is not closed"),
        (
            "quantity * price",
            "'" + "regexp_replace(orders.item, " * 26 + "orders.item" + ", ''x'')" * 26 + "'",
            "has a pattern made by another match",
        ),
    ],
    ids=["type", "pattern of a pattern"],
)
def test_what_doubles_with_each_level_is_refused_at_once(tmp_path: Path, was: str, now: str, found: str) -> None:
    begun = time.process_time()
    assert found in refused(contract(tmp_path, GOOD.replace(was, now, 1))).found
    assert time.process_time() - begun < SECONDS


def wide(tmp_path: Path, count: int) -> Path:
    """Return a contract with `count` columns, an expression of each, and 301 views in a chain with all of them."""
    columns = ", ".join(f"c{n}: double" for n in range(count))
    chosen = ", ".join(f"d{n}: c{n} + 1" for n in range(count))
    chain = "".join(f"  v{n}: {{table: {f'v{n + 1}' if n < 300 else 'menu'}}}\n" for n in range(301))
    text = (
        f"pipeline: large\nstart: 2026-01-01\ntopics:\n  menu: {{read: table, key: {{k: int}}, value: {{{columns}}}}}\n"
    )
    return contract(tmp_path, f"{text}views:\n  chosen: {{table: menu, select: {{{chosen}}}}}\n{chain}", "large.yaml")


@pytest.mark.long
@pytest.mark.ci
def test_the_work_for_a_large_contract_grows_with_its_size_and_no_faster(tmp_path: Path) -> None:
    calls = {}
    for count in (500, 2_000):
        profile, path = cProfile.Profile(), wide(tmp_path, count)
        for cached in (parse, parse_resolved, _resolve):
            cached.cache_clear()
        large = profile.runcall(load, path)
        calls[count] = sum(entry.callcount for entry in profile.getstats())
        assert (len(large.views), large.ordered_views[-1]) == (302, "v0")
    assert calls[500] < 2_000_000
    assert calls[2_000] < 5 * calls[500]


def test_brackets_within_the_bound_are_read_within_a_moment(tmp_path: Path) -> None:
    begun = time.process_time()
    deep = "(" * 28 + "quantity * price" + ")" * 28
    load(contract(tmp_path, GOOD.replace("quantity * price", f"'if({deep} > 1, 1, 2)'")))
    assert time.process_time() - begun < SECONDS


def test_many_patterns_take_no_longer_than_one(tmp_path: Path) -> None:
    topic = "  t{n}: {{pattern: '{slow}[^e{n}]', read: stream, key: {{k: string}}, value: {{v: string}}}}\n"
    slow = "e?" * 21 + "e" * 20
    text = "pipeline: many\nstart: 2026-01-01\ntopics:\n" + "".join(topic.format(n=n, slow=slow) for n in range(200))
    text += f"  other: {{topic: {'e' * 21}, read: stream, key: {{k: string}}, value: {{v: string}}}}\n"
    begun = time.monotonic()
    error = refused(contract(tmp_path, text))
    assert time.monotonic() - begun < 2 * SECONDS
    assert "takes too long to match a topic's name" in error.found


SCHEMAS: dict[str, tuple[object, str]] = {
    "recursive": ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "r"}]}, "inside itself"),
    "no text": ({"type": "record", "name": "r", "fields": [{"name": ["a"], "type": "int"}]}, "without fields"),
    "huge": (
        {"type": "fixed", "name": "f", "size": 10**9, "logicalType": "decimal", "precision": 4},
        "more than 67,108,864 bytes",
    ),
    "wide union": ([f"t{n}" for n in range(30_000)], "has no type 't0'"),
    "twice": (
        {"type": "record", "name": "r", "fields": [{"name": f"f{n // 2}", "type": "int"} for n in range(19_000)]},
        "has the field 'f0' twice",
    ),
}


def _records_of_records(count: int) -> object:
    """A record with two of a record with two of a record: each is written once, and all of them are 2^count."""
    schema: object = "int"
    for n in range(count):
        inner = schema if n == 0 else f"r{n - 1}"
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": inner}]
        schema = {"type": "record", "name": f"r{n}", "fields": fields}
    return schema


def _arrays(count: int) -> object:
    schema: object = "int"
    for _ in range(count):
        schema = {"type": "array", "items": schema}
    return schema


SCHEMAS |= {
    "doubled": (_records_of_records(30), "has more than 20,000 parts"),
    "deep": (_arrays(60), "has more than 20,000 parts, or is nested more than 50 deep"),
    "deeper": (_arrays(200), "has more than 50 nested types"),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_avro_schema_beside_a_contract_is_bounded_too(tmp_path: Path, name: str) -> None:
    schema, found = SCHEMAS[name]
    (tmp_path / "orders.avsc").write_text(json.dumps(schema))
    formats = "    value_format: avro\n    value_schema: orders.avsc\n    key: {customer"
    path = contract(tmp_path, GOOD.replace("    key: {customer", formats))
    error = refused(path)
    assert (error.where, found in error.found) == (f"{path}:14", True) if name != "no text" else True, str(error)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"type": NaN}', "\ufeff{}", "[" * 900 + "]" * 900, '{"type": ' + "9" * 5_000]
)
def test_what_is_no_schema_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "orders.avsc").write_text(text)
    formats = "    value_format: avro\n    value_schema: orders.avsc\n    key: {customer"
    path = contract(tmp_path, GOOD.replace("    key: {customer", formats))
    assert refused(path).where == f"{path}:14"


def _odd_files(folder: Path) -> None:
    """What can stand in a folder under the name of a contract, and must not be waited for."""
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "dangling.yaml").symlink_to("nowhere.yaml")
    (folder / "endless.yaml").symlink_to("/dev/zero")
    (folder / "hindcast_maintenance.yaml").write_text("topics: [")
    (folder / "restaurant__release.yaml").write_text("topics: [")
    (folder / f"{'l' * 251}.yml").write_text("topics: [")
    (folder / "the other.yaml").write_text(
        GOOD.replace("pipeline: restaurant", "pipeline: zoo").replace("warn", "quarantine")
    )
    (folder / "zoo.yaml").write_text("pipeline: other\ntopics: [")
    (folder / "another.yaml").write_text(GOOD)  # its name is that of restaurant.yaml, which has it
    contract(folder)


FINE = {"restaurant", "zoo"}


def check_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fine: set[str]
) -> None:
    """Each way to read a folder tells of each file, and has every pipeline that is `fine`."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    told = {path: it.pipeline if isinstance(it, Contract) else it for path, it in try_load_all(folder).items()}
    assert {it for it in told.values() if isinstance(it, str)} == fine
    wrong = [path for path, it in told.items() if isinstance(it, ContractError)]
    assert len(wrong) + len(fine) == len(files)
    for name in fine:
        assert find(folder, name).pipeline == name

    monkeypatch.setenv("HINDCAST_SCHEMAS", str(folder))
    assert main.main(["check"]) == 1
    captured = capsys.readouterr()
    told_of = {path: f"{path}: " in captured.out or f"hindcast: {path}:" in captured.err for path in files}
    assert [path for path, there in told_of.items() if not there and path not in wrong] == []
    assert all(f"hindcast: {path}" in captured.err for path in wrong)

    dags = parsed(folder)
    assert dags["errors"] == {}
    kinds = {name: "broken contract" in dag["tags"] for name, dag in dags["dags"].items()}
    assert {
        name for name, broken in kinds.items() if not broken and not name.endswith(("__release", "__preview"))
    } - fine == {"hindcast_maintenance"}
    assert sum(kinds.values()) == len(wrong)

    web = TestClient(
        build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset(fine))), raise_server_exceptions=False
    )
    answer = web.get("/quality.json")
    assert answer.status_code == 200, answer.text
    for path in [it for it in wrong if it.stem not in fine][:20]:
        answer = web.get(f"/quality/{path.stem}.json")
        assert (answer.status_code in (404, 500), "error" in answer.json()) == (True, True), answer.text
    for name in fine:
        assert web.get(f"/ledger/{name}.json").status_code == 200


def test_odd_files_are_told_and_take_no_neighbour_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a broken file that is named as another's pipeline, or as one of our own DAGs, has a DAG of its own."""
    folder = tmp_path / "schemas"
    folder.mkdir()
    _odd_files(folder)
    monkeypatch.setenv("HINDCAST_WAREHOUSE", str(tmp_path / "warehouse"))
    check_all(folder, monkeypatch, capsys, FINE)


SHOP = GOOD.replace("pipeline: restaurant", "pipeline: shop")


@pytest.mark.parametrize("own", ["shop.yaml", "shop.yml"])
@pytest.mark.parametrize(
    "text",
    [
        f"{SHOP}  more: [",
        "pipeline: 'shop' # ours",
        "{pipeline: shop, topics: {",
        "{start: 2026-01-01,\n 'pipeline' : shop}",
        '"pipeline": shop',
        "pipeline:\n  shop",
        "pipeline: &name shop",
        "\ufeffpipeline: shop\r\n",
        f"pipeline: shop\n#{'x' * bounds.BYTES}",
        b"\xff\xfe",
        "",
        None,
    ],
    ids=[
        "typo",
        "quoted",
        "flow",
        "flow lines",
        "key",
        "next line",
        "anchor",
        "mark",
        "large",
        "bytes",
        "empty",
        "link",
    ],
)
def test_a_broken_contract_keeps_its_pipeline_from_other_files(
    tmp_path: Path, own: str, text: str | bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which would change its tables, and show columns that only it calls sensitive."""
    broken, other = tmp_path / own, contract(tmp_path, SHOP, "a.yaml")
    if text is None:
        broken.symlink_to("nowhere")
    else:
        broken.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert f"pipeline 'shop' is already used in {broken}" in str(try_load_all(tmp_path)[other])
    with pytest.raises(ContractError):
        find(tmp_path, "shop")
    contracts, errors = catalog.load_contracts(settings_of(tmp_path))
    assert ([*contracts], sorted(errors)) == ([], ["a", "shop"]), "ids of DAGs"
    assert main.main(["check", str(broken), str(other)]) == 1
    assert f"pipeline 'shop' is already used in {broken}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("newcomer", "text"),
    [
        ("zoo.yaml", f"{SHOP}  more: ["),
        ("shop.yaml", "pipeline: other"),
        ("shop.yaml", "pipeline: 'other'  # once\r\ntopics: {"),
        ("shop.yml", "# not pipeline: shop\npipeline: shops"),
    ],
)
def test_a_broken_file_that_is_clearly_not_the_pipelines_takes_none_away(
    tmp_path: Path, newcomer: str, text: str
) -> None:
    store = contract(tmp_path, SHOP, "store.yaml")
    (tmp_path / newcomer).write_bytes(text.encode())
    assert isinstance(try_load_all(tmp_path)[store], Contract)
    assert find(tmp_path, "shop").pipeline == "shop"


def test_a_contract_that_takes_too_long_keeps_its_pipeline(tmp_path: Path) -> None:
    own, other = contract(tmp_path, SHOP, "shop.yaml"), contract(tmp_path, f"{SHOP}# its twin", "other.yaml")

    def read_one(path: Path, seconds: float) -> Contract | ContractError:
        return SlowContractError("takes too long", where=str(path)) if path == own else try_load(path, seconds)

    assert f"pipeline 'shop' is already used in {own}" in str(try_load_all(tmp_path, read_one=read_one)[other])


@pytest.mark.parametrize(("name", "is_warned"), [("shop.yaml", False), ("shop.yml", True), ("store.yaml", True)])
def test_check_warns_of_a_file_that_is_not_named_after_its_pipeline(
    tmp_path: Path, name: str, is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = contract(tmp_path, SHOP, name)
    assert main.main(["check", str(path)]) == 0
    warning = f"warning: {path}: rename it shop.yaml: any other file of that name would take the pipeline\n"
    assert capsys.readouterr().err == (warning if is_warned else "")


@pytest.mark.parametrize("newcomer", ["a.yaml", "shop.yml", "zoo.yaml", "Shop.yaml"])
def test_no_file_takes_a_pipeline_from_the_file_of_its_name(tmp_path: Path, newcomer: str) -> None:
    own, other = contract(tmp_path, SHOP, "shop.yaml"), contract(tmp_path, SHOP, newcomer)
    read = try_load_all(tmp_path)
    assert isinstance(read[own], Contract)
    assert f"pipeline 'shop' is already used in {own}" in str(read[other])


def test_a_file_that_vanishes_while_its_neighbours_are_read_takes_none_down(tmp_path: Path) -> None:
    kept, twin = contract(tmp_path, GOOD), contract(tmp_path, GOOD, "twin.yaml")

    def read_once(path: Path, seconds: float) -> Contract | ContractError:
        told = try_load(path, seconds)
        if path == twin:
            path.unlink()
        return told

    told = try_load_all(tmp_path, read_one=read_once)
    assert isinstance(told[kept], Contract)
    assert isinstance(told[twin], ContractError)


@pytest.mark.parametrize("schema", ['{"name": "\\ud800"}', '{"name": "a", "doc": ["\\udfff"]}', '{"\\ud83d": 1}'])
def test_half_a_character_in_an_avro_schema_is_told_with_its_file(tmp_path: Path, schema: str) -> None:
    (tmp_path / "orders.avsc").write_text(schema.replace("{", '{"type": "record", "fields": [], ', 1))
    formats = "    value_format: avro\n    value_schema: orders.avsc\n    key: {customer"
    path = contract(tmp_path, GOOD.replace("    key: {customer", formats))
    error = refused(path)
    assert (error.where, "'orders.avsc' has U+D" in error.found) == (f"{path}:14", True), str(error)


@pytest.mark.parametrize("link", ["stolen.yaml", "orders.avsc"])
def test_a_link_out_of_the_folder_is_refused_and_not_quoted(tmp_path: Path, link: str) -> None:
    folder, secret = tmp_path / "schemas", tmp_path / "netrc"
    folder.mkdir()
    secret.write_text("login: hunter2\n")
    path = contract(folder)
    if link == "orders.avsc":
        formats = "    value_format: avro\n    value_schema: orders.avsc\n    key: {customer"
        contract(folder, GOOD.replace("    key: {customer", formats))
    (folder / link).symlink_to(secret)
    error = refused(path if link == "orders.avsc" else folder / link)
    assert ("is a link to a file outside its folder" in error.found, "hunter2" in str(error)) == (True, False)


def test_links_within_the_folder_are_read(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap; and a folder that is a link itself."""
    (tmp_path / "schemas" / "..version").mkdir(parents=True)
    contract(tmp_path / "schemas" / "..version")
    (tmp_path / "schemas" / "..data").symlink_to("..version")
    (tmp_path / "schemas" / "restaurant.yaml").symlink_to("..data/restaurant.yaml")
    (tmp_path / "link").symlink_to(tmp_path / "schemas")
    for folder in (tmp_path / "schemas", tmp_path / "link"):
        assert find(folder, "restaurant").pipeline == "restaurant"


def test_what_nobody_has_thought_of_is_a_refusal_of_its_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_: object) -> None:
        raise ZeroDivisionError("over nothing")

    monkeypatch.setattr(sys.modules["hindcast.contract.load"], "check_contract", stumble)
    path = contract(tmp_path)
    error = try_load(path)
    assert isinstance(error, ContractError)
    assert (error.where, "ZeroDivisionError: 'over nothing'" in error.found) == (f"{path}:1", True)


@pytest.mark.long
@pytest.mark.ci
def test_any_forty_contracts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _any(tmp_path, 40, monkeypatch, capsys)


@pytest.mark.long
def test_any_thousand_contracts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through every reader: none hangs, none crashes, none takes a sound one down. A hundred at a time: Airflow gives
    one file of DAGs 30 s, whatever there is in it.
    """
    for seed in range(10):
        (tmp_path / str(seed)).mkdir()
        _any(tmp_path / str(seed), 100, monkeypatch, capsys, seed)


def _any(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int = 28
) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    fine = set()
    for name, content in hostile_files(random.Random(seed), count):  # noqa: S311  # any will do
        path = folder / name
        path.write_bytes(content)
        told = timely(lambda path=path: try_load(path), name)
        if isinstance(told, Contract):
            fine.add(told.pipeline)
        else:
            assert told.where.startswith(str(path))
            assert "cannot be read as a contract" not in told.found, told
    assert len(fine) > count / 20
    monkeypatch.setenv("HINDCAST_WAREHOUSE", str(tmp_path / "warehouse"))
    check_all(folder, monkeypatch, capsys, fine)


def refused(path: Path) -> ContractError:
    told = timely(lambda: try_load(path), path.name)
    assert isinstance(told, ContractError)
    return told


def timely(do: Callable[[], Contract | ContractError], name: str) -> Contract | ContractError:
    """What a call gives, if it takes no longer than it may."""
    begun = time.process_time()
    told = do()
    assert time.process_time() - begun < SECONDS, name
    return told
