"""Right to erasure: a key, or a record, goes from everything that a pipeline has, and the ledger stays whole."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import upgrades
from hindcast.cli import main
from hindcast.common.errors import BusyError, QueryError, RequestError
from hindcast.common.settings import read_settings
from hindcast.ingest import erasure_marks, ledger, quarantine, requeue
from hindcast.ops import journal_rebuild, rebuilt_runs
from hindcast.ops.erase import forget, proof, purge, records, row_removal
from hindcast.ops.erase.proof import Proof
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import journal
from hindcast.plan.rehearsals import MICROSECOND
from hindcast.quality import held_changes
from hindcast.report import page
from hindcast.runs import special_runs
from hindcast.store import tables
from hindcast.store.folder import WarehouseFolder
from pipelines import CORRECTION, RESTAURANT, SEED, Pipeline, cloned, pipeline, tell, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: town
start: 2026-01-01
topics:
  people:
    read: table
    key: {id: string}
    value: {name: string, city: string, age: int}
    history_retention: 100 seconds
    max_malformed: 5
    expect:
      - expect_column_values_to_be_between: {column: age, max_value: 150}
        on_failure: quarantine
  jobs: {read: table, key: {id: string}, value: {job: string}}
  pets: {read: table, key: {pet: string}, value: {owner: string, kind: string}}
  visits: {read: stream, key: {visitor: string}, value: {host: string, gift: string}}
  calls: {read: stream, key: {visitor: string}, value: {words: string}}
views:
  met: {stream: visits, join: {table: people, on: host, how: left}, select: {gift: gift, name: name}}
  gifts: {stream: met, where: gift <> 'none', select: {gift: gift, name: name}}
  named: {table: people, where: age > 1, select: {name: upper(name)}, key: {id: id, city: city}}
  work: {table: people, join: {table: jobs, how: outer}, select: {name: name, job: job}}
  owned: {table: pets, join: {table: people, on: owner}, select: {kind: kind, name: name}}
  cities: {table: people, group_by: {city: city}, aggregate: {n: count(*), ages: sum(age)}}
  first: {table: people, group_by: {city: city}, aggregate: {least: min(name)}}
  hosts: {stream: visits, aggregate: {n: count(*), best: max(gift)}, window: {tumbling: 10 seconds}}
  told:
    stream: visits
    join: {stream: calls, before: 10 seconds, after: 10 seconds}
    select: {gift: gift, words: words}
  said: {stream: visits, join: {table: people, on: host}, select: {gift: gift, name: name}, semantics: kafka}
  often: {table: people, group_by: {city: city}, aggregate: {n: count(*)}, semantics: kafka}
"""

ANN = "ann-7f3a"
SECRETS = (ANN, "Ann Marker", "Markerville", "Old Markerton", "marked malformed", "too old a marker", "Marker Held")
"""What Ann's records say, and nobody else's."""

FIRST: dict[str, list[Any]] = {
    "people": [
        (ANN, {"name": "Ann Marker", "city": "Old Markerton", "age": 30}, 0),
        ("bob", {"name": "Bob Baker", "city": "Rome", "age": 40}, 0),
        ("cyd", {"name": "Cyd Cook", "city": "Rome", "age": 50}, 0),
        (ANN, {"name": "Ann Marker", "city": "Rome", "age": 31}, 10),
        (ANN, b'{"name": "marked malformed", ', 11),
    ],
    "jobs": [("bob", {"job": "baker"}, 0), ("cyd", {"job": "cook"}, 5)],
    "pets": [("rex", {"owner": ANN, "kind": "dog"}, 1), ("tom", {"owner": "bob", "kind": "cat"}, 1)],
    "visits": [
        ("bob", {"host": ANN, "gift": "wine from Bob"}, 5),
        ("cyd", {"host": "bob", "gift": "bread of Cyd"}, 6),
        ("bob", {"host": ANN, "gift": "more wine of Bob"}, 12),
    ],
    "calls": [("bob", {"words": "hello there"}, 7)],
}
SECOND: dict[str, list[Any]] = {
    "people": [
        (ANN, {"name": "Ann Marker", "city": "Markerville", "age": 32}, 4),
        ("bob", {"name": "Bob Baker", "city": "Paris", "age": 41}, 150),
        (ANN, {"name": "too old a marker", "city": "Rome", "age": 33}, 20),
        (ANN, {"name": "Marker Held", "city": "Rome", "age": 999}, 160),
    ],
    "jobs": [(ANN, {"job": "a judge"}, 3)],
    "pets": [("rex", {"owner": "cyd", "kind": "dog"}, 20)],
    "visits": [("cyd", {"host": ANN, "gift": "flowers of Cyd"}, 30)],
    "calls": [],
}


def told_town(p: Pipeline) -> None:
    """Both runs, and what a gate held back of Ann released; tables with deletion vectors, and with checkpoints."""
    assert p.spark is not None
    for story in (FIRST, SECOND):
        tell(p, {topic: sent for topic, sent in story.items() if sent})
        p.run()
        for name in ("people", "met", "owned", "cities", "logs/people", "quarantine", "runs"):
            place = f"{p.warehouse}/{p.name}/{name}"
            if name in p.contract.views or name in p.contract.topics:
                p.spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('{tables.DELETION_VECTORS}' = 'true')")
            DeltaTable(place).create_checkpoint()
    keys = {"people": held_changes.find_held_keys(p.warehouse, p.name, "people", [ANN])}
    special_runs.run_release(p.spark, read_settings(), p.name, "released", keys, "eve", datetime.now(UTC))


def forgotten(p: Pipeline, topic: str, key: str | None = None, *places: str) -> Proof:
    assert p.spark is not None
    return forget.forget_records(p.spark, p.contract, records.parse_request(p.contract, topic, key, places))


def containing(folder: Path, text: str) -> list[str]:
    """The files whose bytes have a text."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


@pytest.mark.long
def test_a_key_is_forgotten_everywhere_and_the_ledger_stays_whole(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path / "without", CONTRACT) as q:
        for story in (FIRST, SECOND):
            tell(q, {name: [it for it in sent if (name, it[0]) != ("people", ANN)] for name, sent in story.items()})
        q.run()
        corrected = [name for name, it in q.contract.views.items() if it.semantics == "corrected"]
        without = {name: q.believed(name) for name in (*q.contract.topics, *corrected)}
    with pipeline(spark, broker, tmp_path / "with", CONTRACT) as p:
        told_town(p)
        before, files = ledger.read_ledger(p.warehouse, p.name).to_pylist(), tmp_path / "with"
        was = {name: p.history(name) for name in (*p.contract.topics, *p.contract.views)}
        for secret in SECRETS:
            assert containing(files, secret) or said(p, secret), f"{secret} is nowhere before"
        proven = forgotten(p, "people", ANN)

        assert (proven.evidence.left, proven.evidence.orphan_files) == ((), ())
        assert proven.rows["logs/people"] == 6
        assert wrong(p) == []
        for secret in SECRETS[1:]:
            assert not containing(files, secret), secret
            assert not said(p, secret), secret
        others = {"jobs", "work", "visits", "pets", "logs/jobs", "logs/visits", "logs/pets"}
        assert set(said(p, ANN)) == others, "other topics' records name her too"
        assert ledger.read_ledger(p.warehouse, p.name).to_pylist()[: len(before)] == before
        assert {name: p.believed(name) for name in without} == without, "as if she had never been"
        assert [row for row in p.raw("failing") if row["table"] == "people"] == []
        assert {row["fate"] for row in p.raw("quarantine") if row["reason"] == "forgotten"} == {"malformed", "expired"}
        entries = [json.loads(row["detail"]) for row in p.raw("runs")]
        assert [it["releases"]["people"]["keys"] for it in entries if "releases" in it] == [[]]

        for name in ("jobs", "pets", "visits", "calls", "hosts", "told"):
            assert p.history(name) == was[name], f"{name} is not made of people"
        for name in ("people", "met", "gifts", "named", "work", "owned"):
            kept = [row for row in was[name] if row[0] != ANN and "marker" not in str(row).lower()]
            assert [row for row in p.history(name) if row[-2] != 4] == kept, f"{name}: rows of others stay as they were"
        numbers = {row[:-1] for row in was["cities"] if "arker" not in row[0]}
        assert {row[:-1] for row in p.history("cities") if row[-2] != 4} == numbers, "counts stay what they were"
        assert [row[0] for row in p.history("said")] == ["cyd"], "a kafka view begins anew"
        p.send("visits", ("bob", {"host": ANN, "gift": "late wine"}, 40))
        p.run()
        assert ("bob", "late wine", None, 40) in p.believed("met")
        assert containing(files, "Ann Marker") == []
        assert wrong(p) == []


def said(p: Pipeline, text: str) -> list[str]:
    """The tables that have a row with a text."""
    folder = Path(p.warehouse) / p.name
    names = sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("_delta_log"))
    return [name for name in names if any(text in str(row) for row in p.raw(name))]


PAGE = Path(__file__).resolve().parent.parent / "docs" / "forget.md"


@pytest.fixture
def shop(spark: SparkSession, broker: str, tmp_path: Path) -> Iterator[Pipeline]:
    """The seed's restaurant after its second run."""
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        p.run()
        tell(p, CORRECTION)
        p.run()
        yield p


@pytest.mark.long
@pytest.mark.ci
def test_the_walk_through_of_the_docs(shop: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    before = ledger.read_ledger(shop.warehouse, shop.name).to_pylist()
    others = {name: [row for row in shop.history(name) if row[0] != "candace"] for name in ("menu", "orders", "bills")}
    walk = PAGE.read_text(encoding="utf-8").split("## What goes")[0]
    blocks = re.findall(r"```(sh|text)\n(.*?)```", walk, re.DOTALL)
    shown = ""
    log = Path(shop.warehouse) / shop.name / "menu" / "_delta_log"
    (log / ".00000000000000000009.json.0a1b2c3d.tmp").write_text("candace, by a commit that died")
    (shop.folder / "var" / "reports" / shop.name / ".run-1.html.0a1b2c3d").write_text("candace, by a writer that died")
    for kind, block in blocks:
        if kind == "text":
            told = [re.sub(r" +", " ", line.strip()) for line in shown.splitlines()]
            for line in filter(None, block.splitlines()):
                assert re.sub(r" +", " ", line.strip()) in told, shown
            continue
        for line in block.splitlines():
            assert main.main(shlex.split(line)[1:]) == 0, line
            shown = capsys.readouterr().out
    assert shop.states() == [(1, "completed"), (2, "completed"), (3, "completed")]
    assert ledger.read_ledger(shop.warehouse, shop.name).to_pylist()[: len(before)] == before
    assert {name: shop.history(name) for name in others} == others
    assert not containing(Path(shop.warehouse), "candace"), "other topics have no such text"
    assert not containing(shop.folder / "var", "candace")
    proven = json.loads((shop.folder / "var" / "reports" / shop.name / "forget-3.json").read_text())
    assert proven["proven"]
    assert (proven["texts"], proven["shared"]) == (2, 1), "candace; and curry, which others have ordered too"
    assert "candace" not in json.dumps(proven)
    (entry,) = [row for row in shop.raw("logs/orders") if row["forgotten"]]
    assert (entry["offset"], entry["fate"], entry["forgotten"]) == (2, "accepted", 3)
    assert (entry["key"], entry["value"]) == (None, None)

    assert main.main(["forget", "restaurant.orders", "--key", "candace", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == proven, "once"
    assert main.main(["report", "restaurant", "3"]) == 0
    assert f"forgot everything in orders with the sha256 {proven['sha256']}" in capsys.readouterr().out
    assert main.main(["forget", "restaurant.orders", "--key", "zoe"]) == 1
    assert "there is no such key: zoe" in capsys.readouterr().err
    assert main.main(["forget", "restaurant.orders", "--key", "candace", "--dry-run"]) == 0
    assert "nothing is left of it: an earlier run has forgotten it" in capsys.readouterr().out
    assert len(shop.states()) == 3

    shop.send("orders", ("candace", {"item": "soup", "quantity": 1}, 7))
    shop.run()
    assert [row for row in shop.history("bills") if row[0] == "candace"] == [("candace", "soup", 5, 7, 4, None)]
    assert wrong(shop) == []


def test_a_dry_run_says_that_there_is_no_such_key_or_offset(
    restaurant: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    before = restaurant.versions()
    with restaurant.here():
        assert main.main(["forget", "restaurant.orders", "--key", "candace", "--dry-run"]) == 0
        assert "bills 2 rows" in re.sub(" +", " ", capsys.readouterr().out)
        for asked, told in ((["--key", "zoe"], "no such key: zoe"), (["--offset", "0/99"], "no record at 0/99")):
            assert main.main(["forget", "restaurant.orders", *asked, "--dry-run"]) == 1
            shown = capsys.readouterr()
            assert (shown.out, f"restaurant.orders: there is {told}" in shown.err) == ("", True)
    assert restaurant.versions() == before


def test_a_link_to_another_pipelines_tables_is_refused_before_their_files_are_purged(
    restaurant: Pipeline, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    copy = cloned(restaurant, tmp_path)
    folder = Path(copy.warehouse)
    (folder / copy.name / "menu").rename(tmp_path / "disk" / "menu")
    (folder / copy.name / "menu").symlink_to(tmp_path / "disk" / "menu")  # a table on another disk
    (folder / "other").mkdir()
    (folder / copy.name / "logs" / "backup").symlink_to(folder / "other")
    with copy.here():
        with pytest.raises(RequestError, match=f"is a link to {folder / 'other'}, and forgetting") as error:
            forgotten(copy, "orders", "zoe")
        assert error.value.where == f"{folder}/restaurant/logs/backup"
        (folder / copy.name / "logs" / "backup").unlink()
        with pytest.raises(RequestError, match="there is no such key: zoe"):
            forgotten(copy, "orders", "zoe")
        (folder / copy.name).rename(folder / "renamed")
        (folder / copy.name).symlink_to("renamed")
        with pytest.raises(RequestError, match=f"is a link to {folder / 'renamed'}, and forgetting") as error:
            forgotten(copy, "orders", "zoe")
        assert error.value.where == f"{folder}/restaurant"


HELD = """
pipeline: held
start: 2026-01-01
topics:
  t:
    read: stream
    hold: row
    key: {k: string}
    value: {note: string, n: int}
    expect:
      - expect_column_values_to_be_between: {column: n, max_value: 10}
        on_failure: quarantine
"""


@pytest.mark.long
def test_what_is_held_of_other_keys_stays_held_though_it_says_the_same(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    curry = {"note": "curry house", "n": 50}
    with pipeline(spark, broker, tmp_path, HELD) as p:
        p.send(
            "t", ("annabel", curry, 1), ("carol", curry, 2), ("zoe-51", curry, 3), ("zoe-51", {**curry, "note": "x"}, 4)
        )
        p.run()
        assert forgotten(p, "t", "annabel").evidence.is_proven
        held = held_changes.read_held_rows(p.warehouse, p.name).to_pylist()
        assert sorted(row["key"] for row in held) == [f'{{"k":"{key}"}}' for key in ("carol", "zoe-51", "zoe-51")]
        special_runs.run_release(
            p.spark,
            read_settings(),
            p.name,
            "all",
            {"t": held_changes.find_held_keys(p.warehouse, p.name, "t", [])},
            "eve",
            datetime.now(UTC),
        )
        assert sorted(row[0] for row in p.believed("t")) == ["carol", "zoe-51", "zoe-51"]
        (read_settings().reports / p.name / "run-1.json").write_text('{"cut')
        proven = forgotten(p, "t", "zoe-51")
        assert proven.evidence.is_proven, proven


@pytest.mark.long
def test_forgetting_one_side_of_a_join_takes_the_rows_that_it_was_looked_up_for(
    restaurant: Pipeline, tmp_path: Path
) -> None:
    """Curry is forgotten: its prices go, and all bills for it with what was believed of them; the orders stay."""
    copy = cloned(restaurant, tmp_path)
    with copy.here():
        assert forgotten(copy, "menu", "curry").evidence.is_proven
        assert {row[0] for row in copy.history("menu")} == {"soup"}
        assert copy.history("bills") == []
        assert len(copy.history("orders")) == 4
        assert forgotten(copy, "orders", None, "0/1", "0/3").evidence.is_proven, "by their places"
        assert [row[0] for row in copy.history("orders")] == ["anna", "candace"]
        assert verify_tables(copy.contract).findings == []


@pytest.mark.long
def test_a_forgetting_that_dies_anywhere_is_finished_by_a_repeat(
    shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every commit, file and entry in turn; meanwhile no run begins; in the end it is as if nothing had happened."""
    seen: list[str] = []
    watched(seen, monkeypatch)
    for _ in range(80):
        try:
            proven = forgotten(shop, "orders", "candace")
            break
        except CrashError as crash:
            if shop.states()[-1][1] == "planned":
                with pytest.raises(BusyError):
                    shop.run()
            last = str(crash)
            assert verify_tables(shop.contract).findings == [], last
    assert last == "after the report of run 3"
    assert len(seen) > 20
    assert proven.evidence.is_proven
    assert shop.states() == [(1, "completed"), (2, "completed"), (3, "completed")]
    assert not containing(Path(shop.warehouse), "candace")
    assert {row[0] for row in shop.history("bills")} == {"anna", "bob"}
    assert [row["forgotten"] for row in shop.raw("logs/orders")] == [None, None, 3, None]
    assert wrong(shop) == []


class CrashError(Exception):
    """What a forgetting dies of."""


def watched(seen: list[str], patch: pytest.MonkeyPatch) -> None:
    """From now on whatever is done for good fails, the first time before, then after it was done."""

    def wrap(owner: Any, name: str, place: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def at(boundary: str) -> None:
            if boundary not in seen and "_notices" not in boundary:  # a repeat would wait for one that is left
                seen.append(boundary)
                raise CrashError(boundary)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            at(f"before {place(*args, **kwargs)}")
            done = real(*args, **kwargs)
            at(f"after {place(*args, **kwargs)}")
            return done

        patch.setattr(owner, name, wrapped)

    wrap(row_removal, "remove_rows", lambda _, table, *__: f"removing rows of {table.name}")
    wrap(row_removal, "blank_records", lambda _, table, *__: f"taking bytes out of {table.name}")
    wrap(row_removal, "rewrite_column", lambda _, table, *__: f"rewriting texts of {table.name}")
    wrap(purge, "purge_table", lambda _, __, name, *___: f"purging {name}")
    wrap(WarehouseFolder, "remove", lambda _, path: f"deleting a file under {path.partition('/')[0]}")
    wrap(WarehouseFolder, "write", lambda _, path, __: f"rewriting a commit under {path.partition('/')[0]}")
    wrap(proof, "search_files", lambda *_: "the search")
    wrap(page, "write_page", lambda _, __, run, ___: f"the report of run {run}")
    wrap(journal, "append_entry", lambda _, run, **__: f"noting {run.state} of run {run.number}")


@pytest.mark.long
def test_what_from_brings_again_of_a_forgotten_key_is_forgotten_as_it_comes(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    since = RESTAURANT.replace("read: stream\n", "read: stream\n    from: 2026-01-01T00:00:03\n")
    with pipeline(spark, broker, tmp_path, since) as p:
        tell(p, {"menu": SEED["menu"], "orders": []})
        one = {"item": "curry", "quantity": 1}
        p.send("orders", ("anna", one, 1), ("bob", one, 2), ("anna", one, 3), ("bob", one, 4))
        p.run()
        assert [row[0] for row in p.believed("orders")] == ["anna", "bob"]
        assert forgotten(p, "orders", "anna").evidence.is_proven
        before = journal.read_runs(p.warehouse, p.name)[1]
        shutil.rmtree(Path(p.warehouse, p.name, "runs"))
        reports = p.settings.reports / p.name
        proven = json.loads((reports / "forget-2.json").read_text())
        for number in (1, 30):  # of a warehouse that this one has replaced
            (reports / f"forget-{number}.json").write_text(
                json.dumps({**proven, "run": number, "knownAt": "2020-01-01T00:00:00+00:00"})
            )
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [1, 2], "of the logs, and of the proof"
        after = journal.read_runs(p.warehouse, p.name)[1]
        assert (after.plan.erasure, after.known_at) == (before.plan.erasure, before.known_at)
        p.send("orders", ("anna", {"item": "soup", "quantity": 1}, 5))
        p.write(since.replace("00:00:03", "00:00:00"))
        p.run()
        assert p.believed("orders") == [("anna", "soup", 1, 5), ("bob", "curry", 1, 2), ("bob", "curry", 1, 4)]
        marks = [(row["offset"], row["fate"], row["forgotten"], row["key"]) for row in p.raw("logs/orders")]
        assert sorted(marks) == [
            (0, "accepted", 2, None),
            (1, "accepted", None, b"bob"),
            (2, "accepted", 2, None),
            (3, "accepted", None, b"bob"),
            (4, "accepted", None, b"anna"),
        ]
        assert p.states()[-1] == (3, "completed"), "all offsets have their fate"
        assert wrong(p) == []


COUNTED = """
pipeline: counted
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {quantity: int}}
views:
  bills: {stream: orders, select: {amount: quantity * 1}}
"""


def test_a_rebuilt_journal_has_a_forgetting_that_was_last_and_no_other_run_gets_its_number(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, COUNTED) as p:
        runs = Path(p.warehouse, p.name, "runs")

        def list_moments() -> dict[int, datetime]:
            return {run.number: run.known_at for run in journal.read_runs(p.warehouse, p.name)}

        p.send("orders", *((name, {"quantity": 2}, 1) for name in ("ann", "bob")))
        p.run()
        forgotten(p, "orders", "ann")
        before = list_moments()
        shutil.rmtree(runs)
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [1, 2]
        assert list_moments() == before
        assert p.states() == [(1, "completed"), (2, "abandoned")]
        assert (last := journal.read_runs(p.warehouse, p.name)[-1].plan.erasure) is not None
        assert last.topic == "orders"
        p.write(COUNTED.replace("quantity * 1", "quantity * 2"))
        p.run()
        before = list_moments()
        shutil.rmtree(runs)
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [1, 2, 3]
        assert list_moments() == before
        p.run()
        assert wrong(p) == []

        reports = p.settings.reports / p.name
        proven = json.loads((reports / "forget-2.json").read_text())
        (reports / "forget-3.json").write_text(
            json.dumps({**proven, "run": 3, "knownAt": (before[3] - MICROSECOND).isoformat()})
        )
        found = [rebuilt_runs.find_own_proofs(p.contract, {1: before[1]}, removing) for removing in ({2, 3}, {3})]
        assert [{*own} for own in found] == [{2}, set()], "rows have another moment of run 3"

        forgotten(p, "orders", "bob")
        shutil.rmtree(runs)
        shutil.rmtree(reports)
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract)[-1] == 5, "also without its proof"


ODD = """
pipeline: shop
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {customer: string}
    key_format: json
    value: {n: int, t: string}
    from: 2026-01-01T00:00:50Z
    max_record_bytes: 100
    max_malformed: 10
"""


@pytest.mark.long
@pytest.mark.ci
def test_what_from_brings_again_of_a_forgotten_key_does_not_have_to_decode(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is too large, and one whose key is the text of a key, but no JSON."""
    with pipeline(spark, broker, tmp_path, ODD) as p:
        key, other = {"customer": ANN}, {"customer": "bob"}
        p.send("orders", (key, {"n": 1, "t": "x" * 99}, 1), (ANN, {"n": 2}, 2), (other, {"n": 3, "t": "x" * 99}, 3))
        p.send("orders", (key, {"n": 4}, 60), (other, {"n": 5}, 60))
        p.run()
        assert forgotten(p, "orders", ANN).is_proven
        earlier = ODD.replace("    from: 2026-01-01T00:00:50Z\n", "")
        former = cloned(p, tmp_path / "former")
        former.prefix = p.prefix  # the same topic in Kafka
        p.write(earlier)
        p.run()
        fates = [(0, "malformed"), (1, "malformed"), (2, "malformed"), (3, "accepted"), (4, "accepted")]
        assert p.fates("orders") == fates
        assert containing(Path(p.warehouse), ANN) == []
        assert [row["offset"] for row in p.raw("quarantine") if row["key"] is not None] == [2]
        with former.here():
            former.write(earlier)
            with monkeypatch.context() as patch:  # as a Hindcast that looked only at what decodes
                patch.setattr(erasure_marks, "mark_forgotten", lambda rows, *_: rows)
                former.run()
            former.write(earlier.replace("    max_record_bytes: 100\n", ""))
            special_runs.run_requeue(spark, read_settings(), p.name, "again", requeue.build_request(former.contract))
            assert [row[:2] for row in former.believed("orders")] == [("bob", 3), ("bob", 5)]
            assert forgotten(former, "orders", ANN).is_proven, "it can be forgotten again"
            assert containing(Path(former.warehouse), ANN) == []


@pytest.mark.long
def test_what_was_requeued_is_forgotten_and_what_a_requeue_tells_of_it(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """A record that was too large and was taken since, and one that is no JSON, of which a requeue tells the reason."""
    small = RESTAURANT.replace("read: stream\n", "read: stream\n    max_malformed: 5\n    max_record_bytes: 60\n")
    with pipeline(spark, broker, tmp_path, small) as p:
        tell(p, {"menu": SEED["menu"], "orders": []})
        large = {"item": "a very special curry of the house of Marker", "quantity": 1}
        p.send("orders", ("anna-9", large, 1), ("anna-9", {"item": "curry", "quantity": "Marker many"}, 2))
        p.send("orders", ("bob", {"item": "curry", "quantity": 1}, 3))
        p.run()
        p.write(small.replace("    max_record_bytes: 60\n", ""))
        special_runs.run_requeue(spark, read_settings(), p.name, "requeued", requeue.build_request(p.contract))
        assert [row[0] for row in p.believed("orders")] == ["anna-9", "bob"]
        before = ledger.read_ledger(p.warehouse, p.name).to_pylist()
        assert containing(tmp_path, "Marker")

        proven = forgotten(p, "orders", "anna-9")
        assert proven.evidence.is_proven
        assert proven.rows == {"orders": 1, "logs/orders": 2}
        assert containing(tmp_path, "Marker") == []
        assert containing(tmp_path, "anna-9") == []
        assert [(row["offset"], row["fate"], row["value"]) for row in p.raw("fates/orders")] == [(0, "accepted", None)]
        reasons = sorted((row["offset"], row["reason"]) for row in p.raw("quarantine"))
        assert reasons == [(0, "forgotten"), (0, quarantine.REQUEUED_REASON), (1, "forgotten")]
        assert [row[0] for row in p.believed("orders")] == ["bob"]
        assert ledger.read_ledger(p.warehouse, p.name).to_pylist()[: len(before)] == before
        assert wrong(p) == []
        with pytest.raises(RequestError, match="no malformed record"):
            special_runs.run_requeue(spark, read_settings(), p.name, "again", requeue.build_request(p.contract))


@pytest.mark.long
def test_what_an_adopted_table_knew_of_a_key_is_forgotten_too(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Curry is in the base and in the log, cake in the base alone; amid the upgrade both are refused."""
    with pipeline(spark, broker, tmp_path) as p:
        upgrades.put(p, "versioned")
        upgrades.taken_over(spark, p, "roll-over")
        with pytest.raises(RequestError, match="does not have today's store format"):
            forgotten(p, "menu", "cake")
        upgrades.upgraded(spark, p, "roll-over")
        tell(p, upgrades.RECORDS)
        p.run()
        proven = forgotten(p, "menu", "curry")
        assert proven.evidence.is_proven
        assert (proven.rows["base/menu"], proven.rows["logs/menu"]) == (2, 1)
        proven = forgotten(p, "menu", "cake")
        assert proven.evidence.is_proven
        assert (proven.rows["base/menu"], proven.rows.get("logs/menu")) == (1, None)
        assert {row[0] for row in upgrades.history(p)} == {"soup"}
        for folder, text in ((f, t) for f in ("menu", "base", "rollover", "logs/menu") for t in ("curry", "cake")):
            assert containing(Path(p.warehouse, p.name, folder), text) == []
        assert containing(Path(p.warehouse, p.name, "base"), "soup")
        assert wrong(p) == []
        p.run()
        assert {row[0] for row in upgrades.history(p)} == {"soup"}, "the base does not bring them back"
        with pytest.raises(RequestError, match="there is no such key"):
            forgotten(p, "menu", "cakes")


@pytest.mark.parametrize(
    ("name", "key", "places", "found"),
    [
        ("bills", "anna", (), "is derived from topics"),
        ("menus", "anna", (), "no topic"),
        ("orders", None, (), "neither a key nor places"),
        ("orders", "anna", ("0/1",), "both a key and places"),
        ("orders", None, ("one",), "not a partition and offset"),
    ],
)
def test_what_cannot_be_asked_for(
    restaurant: Pipeline, name: str, key: str | None, places: tuple[str, ...], found: str
) -> None:
    with restaurant.here(), pytest.raises(QueryError, match=found):
        records.parse_request(restaurant.contract, name, key, places)
