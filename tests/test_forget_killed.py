"""A forgetting that is killed: what its messages advise is enough, whichever advice is taken. More: test_forget.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from hindcast.cli import main
from hindcast.ops.erase import proof, purge, row_removal
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import notices
from hindcast.runs import row_counts
from hindcast.store import commits, tables
from hindcast.store.commit_once import guard_commits
from hindcast.store.folder import WarehouseFolder
from pipelines import Pipeline, cloned, pipeline, tell, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: cafe
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: "decimal(8,2)"}}
  orders:
    read: stream
    max_malformed: 5
    key: {customer: string}
    value: {item: string, quantity: int}
    expect:
      - expect_column_values_to_be_between: {column: quantity, max_value: 10}
        on_failure: quarantine
views:
  bills: {stream: orders, join: {table: menu, on: item}, select: {item: orders.item, amount: quantity * price}}
  spent: {stream: bills, aggregate: {spent: sum(amount), most: max(item)}}
  served: {stream: orders, join: {table: menu, on: item}, select: {item: orders.item, price: price}, semantics: kafka}
"""
NAME = "candace-7f3a"
STORY: tuple[dict[str, list[Any]], ...] = (
    {
        "menu": [("curry", {"price": 8}, 0), ("soup", {"price": 5}, 0), ("curry", {"price": 10}, 4)],
        "orders": [
            ("anna", {"item": "curry", "quantity": 1}, 1),
            (NAME, {"item": "curry", "quantity": 2}, 3),
            (NAME, b"{", 4),
            ("bob", {"item": "soup", "quantity": 3}, 5),
        ],
    },
    {
        "menu": [("curry", {"price": 9}, 2)],
        "orders": [(NAME, {"item": "soup", "quantity": 99}, 6), ("anna", {"item": "soup", "quantity": 1}, 7)],
    },
)
FORGET = ("forget", "cafe.orders", "--key", NAME)


class KilledError(BaseException):
    """What stands for SIGKILL: no code of ours catches it."""


@pytest.fixture(scope="module")
def cafe(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Two runs, with deletion vectors and checkpoints; what else is left when the key is forgotten is in `before`."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("cafe"), CONTRACT) as p:
        for story in STORY:
            tell(p, story)
            p.run()
            for name in ("orders", "bills", "logs/orders", "quarantine", "runs"):
                place = f"{p.warehouse}/{p.name}/{name}"
                if name in (*p.contract.topics, *p.contract.views):
                    spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('{tables.DELETION_VECTORS}' = 'true')")
                DeltaTable(place).create_checkpoint()
        yield p


def watch(at: Callable[[str], None], patch: pytest.MonkeyPatch) -> None:
    """Call `at` after each step of a forgetting that leaves something for good."""

    def wrap(owner: Any, name: str, place: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            done = real(*args, **kwargs)
            at(place(*args, **kwargs))
            return done

        patch.setattr(owner, name, wrapped)

    def kind(path: str) -> str:
        return re.sub(r"\d{3,}", "N", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27,}|[0-9a-f]{32}", "ID", path))

    wrap(row_removal, "remove_rows", lambda _, table, *__: f"removing rows of {table.name}")
    wrap(row_removal, "empty_table", lambda _, table, *__: f"emptying {table.name}")
    wrap(row_removal, "blank_records", lambda _, table, *__: f"taking bytes out of {table.name}")
    wrap(row_removal, "rewrite_column", lambda _, table, *__: f"rewriting texts of {table.name}")
    wrap(row_counts, "write_row_counts", lambda _, table, *__: f"counting rows of {table.name}")
    wrap(purge, "_write_checkpoint", lambda _, __, path: f"writing a checkpoint of {path.rpartition('/')[2]}")
    wrap(WarehouseFolder, "remove", lambda _, path: f"deleting {kind(path)}")
    wrap(WarehouseFolder, "write", lambda _, path, __: f"rewriting {kind(path)}")
    for name in ("append_rows", "replace_rows", "commit_change"):
        wrap(commits, name, lambda _, table, *__, **___: f"committing to {table.name}")


@contextmanager
def stay_posted(warehouse: str, pipeline: str, what: str) -> Iterator[str]:
    """Post a notice which stays if what follows is killed."""
    folder, name = WarehouseFolder(f"{warehouse}/{pipeline}"), "_notices/killed.json"
    folder.write(name, json.dumps({"what": what}).encode())
    yield name
    folder.remove(name)


def containing(*folders: Path) -> list[str]:
    """Return the files whose bytes have the key."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if NAME.encode() in path.read_bytes()]


STEPS = [
    ("emptying kept/served/1", "forget"),
    ("emptying served", "abandon"),
    ("removing rows of bills", "abandon"),
    ("taking bytes out of quarantine", "abandon"),
    ("rewriting bills/_delta_log/N.json", "abandon"),
    ("committing to kept/served/2", "forget"),
]
"""After which step it is killed, and which of the two pieces of advice is taken then."""


@pytest.mark.long
@pytest.mark.parametrize(("step", "advice"), STEPS, ids=[step for step, _ in STEPS])
def test_a_forgetting_that_is_killed_is_finished_as_the_messages_advise(
    cafe: Pipeline,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    advice: str,
) -> None:
    monkeypatch.setattr(notices, "DEAD_AFTER", 1.0)
    p = cloned(cafe, tmp_path)
    p.path.write_text(cafe.path.read_text(encoding="utf-8"), encoding="utf-8")

    def die(place: str) -> None:
        if place == step:
            raise KilledError

    with p.here():
        with monkeypatch.context() as patch:
            patch.setattr(notices, "_keep_posted", stay_posted)
            watch(die, patch)
            with pytest.raises(KilledError):
                main.main([*FORGET])
        assert all(it.fix for it in verify_tables(p.contract).findings)
        assert main.main(["run", p.name]) == 3
        said = capsys.readouterr().err
        assert ("repeat the hindcast forget" in said, "hindcast abandon cafe" in said) == (True, True)
        if advice == "abandon":
            assert main.main(["abandon", p.name]) == 0
            assert "it may have removed a part: repeat the hindcast forget" in capsys.readouterr().out
            assert main.main(["run", p.name]) == 0
            findings = verify_tables(p.contract).findings
            assert [it.fix for it in findings] == [
                "repeat the hindcast forget that run 3 began; --rebuild undoes part of it"
            ] * ("quarantine" in step)
        assert main.main([*FORGET]) == 0, capsys.readouterr()
        assert main.main(["run", p.name]) == 0
        assert wrong(p) == []
        assert containing(tmp_path) == []
        believed = {name: [row[0] for row in p.believed(name)] for name in (*p.contract.topics, *p.contract.views)}
    names = ["anna", "anna", "bob"]
    assert believed.pop("menu") == ["curry", "curry", "curry", "soup"]
    assert believed == {"orders": names, "bills": names, "spent": names, "served": names}


@pytest.mark.long
@pytest.mark.parametrize("still", ["listing files of orders", "searching", "deleting reports"])
def test_a_forgetting_that_was_taken_for_dead_and_goes_on_deletes_and_writes_nothing(
    cafe: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, still: str
) -> None:
    """It stands still at a step. Meanwhile its notice expires, another process finishes it, and a run is done."""
    p = cloned(cafe, tmp_path)
    p.path.write_text(cafe.path.read_text(encoding="utf-8"), encoding="utf-8")
    place, stood = f"{p.warehouse}/{p.name}", list[str]()
    before: dict[Path, bytes] = {}

    def stand_still(at: str) -> None:
        if at != still or stood:
            return
        stood.append(at)
        for notice in Path(place, "_notices").glob("*.json"):
            notice.unlink()
        with guard_commits(lambda: None):
            held = notices._HELD.set(())
            assert main.main([*FORGET]) == 0, capsys.readouterr()
            assert main.main(["run", p.name]) == 0, capsys.readouterr()
            notices._HELD.reset(held)
        before.update((path, path.read_bytes()) for path in p.folder.rglob("*") if path.is_file())

    def wrap(owner: Any, name: str, at: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any) -> Any:
            stand_still(at(*args))
            return real(*args)

        monkeypatch.setattr(owner, name, wrapped)

    wrap(purge, "list_data_files", lambda _, name: f"listing files of {name}")
    wrap(proof, "search_files", lambda *_: "searching")
    wrap(row_removal, "rewrite_column", lambda _, table, *__: "deleting reports" * (table.name == "gates"))
    with p.here():
        assert main.main([*FORGET]) == 1
        assert "a forgetting stops here: this process stood still" in capsys.readouterr().err
        assert stood == [still]
        after = {path: path.read_bytes() for path in p.folder.rglob("*") if path.is_file()}
        assert {path.name for path in before.keys() ^ after.keys()} == set()
        assert [path.name for path in before if before[path] != after[path]] == []
        assert wrong(p) == []
    assert containing(tmp_path) == []
