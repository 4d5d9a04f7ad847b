"""Who rewrites files beside runs, and a forgetting, keep out of each other's way: one waits, the other stops."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from bare_runs import bare_run
from hindcast.cli.commands import running
from hindcast.common.errors import BusyError, QueryError
from hindcast.common.settings import Settings, read_settings
from hindcast.contract import load
from hindcast.contract.bound import bind_contract
from hindcast.ops import file_layout, maintenance, retention
from hindcast.ops.erase import forget, records
from hindcast.ops.erase.purge import list_live_files
from hindcast.plan import journal, notices, planner
from hindcast.plan.purposes import Erasure
from hindcast.query import read
from hindcast.store.folder import WarehouseFolder
from pipelines import CORRECTION, RESTAURANT, SEED, Pipeline, pipeline, tell, until, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A pipeline `p` whose first run has ended; notices that are taken for dead ones' soon."""
    monkeypatch.setattr(notices, "BEAT", 0.05)
    monkeypatch.setattr(notices, "DEAD_AFTER", 1.0)
    monkeypatch.setattr(notices, "_PAUSE", 0.02)
    found = read_settings({"HINDCAST_WAREHOUSE": str(tmp_path)})
    enter(found, 1, "planned")
    enter(found, 1, "completed")
    return found


def enter(settings: Settings, number: int, state: str, **plan: Any) -> None:
    moment = datetime(2026, 1, number, tzinfo=UTC)
    journal.append_entry(
        settings.warehouse,
        bare_run("p", number, moment, state, run_id=f"run {number}", **plan),
    )


def posted_files(settings: Settings) -> list[str]:
    return [file.path for file in WarehouseFolder(f"{settings.warehouse}/p").list_files("_notices")]


def test_a_forgetting_waits_for_those_who_have_posted_a_notice(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []

    def wait() -> None:
        notices.wait_for_others(settings.warehouse, "p")
        ended.append("waited")

    waiting = threading.Thread(target=wait)
    with notices.post_notice(settings.warehouse, "p", "maintenance"):
        waiting.start()
        time.sleep(1.5)  # longer than a notice of a dead process is heeded
        ended.append("posted")
    waiting.join(10)
    assert ended == ["posted", "waited"]
    state = "which is running, or was killed less than 1 second ago; this goes on by itself"
    assert capsys.readouterr().err == f"hindcast: p: waiting for maintenance, {state}\n"
    assert posted_files(settings) == []


def test_the_notice_of_a_process_that_died_is_taken_away(settings: Settings) -> None:
    WarehouseFolder(f"{settings.warehouse}/p").write("_notices/dead.json", b'{"what": "maintenance", "beat": "1"}')
    started = time.monotonic()
    notices.wait_for_others(settings.warehouse, "p")
    assert 1.0 < time.monotonic() - started < 5
    assert posted_files(settings) == []


def test_one_process_works_for_a_forgetting(settings: Settings) -> None:
    """What one of two writes, the other would take for what nobody needs, and delete."""
    where = settings.warehouse, "p"
    enter(settings, 2, "planned", purpose=Erasure("t", "0"))
    with notices.post_forgetting(*where):
        for refused in (lambda: notices.wait_for_forgetting(*where), lambda: notices.wait_for_others(*where)):
            with pytest.raises(BusyError, match="a forgetting of the same tables is under way in another process"):
                refused()
        with pytest.raises(BusyError), notices.post_forgetting(*where):
            raise AssertionError("nothing may be done here")
        assert len(posted_files(settings)) == 1
    notices.wait_for_forgetting(*where)


def test_one_process_trims_a_pipeline(settings: Settings) -> None:
    """Of two, the one that begins first would move back the horizon of the other, if a run has ended in between."""
    contract = bind_contract(load(written_contract(settings)), settings)
    where = settings.warehouse, "p"
    with notices.post_notice(*where, "maintenance"):  # a trim is a part of it
        with (
            notices.post_alone(*where, "trimming"),
            pytest.raises(BusyError, match="trimming of the same tables is under way in another process"),
        ):
            retention.trim_pipeline(None, contract)  # type: ignore[arg-type]  # it is refused before
        with notices.post_alone(*where, "trimming"):
            assert len(posted_files(settings)) == 2


NOTHING = "nothing to trim: no run of all tables has been completed yet"


@pytest.mark.parametrize(("keep", "maintained"), [(", keep: 30 days", f"shop: {NOTHING}"), ("", "")])
def test_a_pipeline_that_has_never_run_is_trimmed_and_maintained(tmp_path: Path, keep: str, maintained: str) -> None:
    path = tmp_path / "shop.yaml"
    topics = "topics: {menu: {read: table, key: {item: string}, value: {price: int}" + keep + "}}"
    path.write_text(f"pipeline: shop\nstart: 2026-01-01\n{topics}\n", encoding="utf-8")
    settings = read_settings({"HINDCAST_VAR": str(tmp_path / "var")})
    contract = bind_contract(load(path), settings)
    idle = SimpleNamespace(getActiveStageIds=list)
    no_session: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: idle))
    for dry_run in (True, False):
        report = retention.trim_pipeline(no_session, contract, dry_run=dry_run)
        assert retention.format_report(report) == f"shop: {NOTHING}"
    report = maintenance.maintain_tables(lambda: no_session, settings, contract)
    assert maintenance.format_report(report).splitlines()[2:] == [*([maintained] if maintained else [])]
    assert not settings.var.exists()


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        ("planned", "if it was killed, repeat the hindcast forget that began it, or abandon it: hindcast abandon p, "),
        ("stopped", "hindcast run p"),
        ("abandoned", "hindcast run p"),
    ],
)
def test_who_asks_during_a_forgetting_is_told_what_its_state_allows(settings: Settings, state: str, fix: str) -> None:
    contract = bind_contract(load(written_contract(settings)), settings)
    for entry in dict.fromkeys(("planned", state)):
        enter(settings, 2, entry, purpose=Erasure("menu", "0"))
    with pytest.raises(QueryError, match="run 2 has removed rows that it forgets") as refused:
        read.refuse_forgotten(settings.warehouse, contract, "menu")
    assert fix in refused.value.fix


def test_a_forgetting_that_died_is_taken_up_when_its_notice_has_expired(settings: Settings) -> None:
    dead = b'{"what": "a forgetting", "beat": "1"}'
    WarehouseFolder(f"{settings.warehouse}/p").write("_notices/dead.json", dead)
    with notices.post_forgetting(settings.warehouse, "p"):
        assert len(posted_files(settings)) == 1


def written_contract(settings: Settings) -> Path:
    path = Path(settings.warehouse) / "p.yaml"
    path.write_text(RESTAURANT.replace("restaurant", "p"), encoding="utf-8")
    return path


def test_a_forgetting_that_a_gate_stopped_is_abandoned_when_its_process_has_purged(settings: Settings) -> None:
    """Until then it would delete what the next run writes."""
    for state in ("planned", "stopped"):
        enter(settings, 2, state, purpose=Erasure("t", "0"))
    contract = bind_contract(load(written_contract(settings)), settings)
    abandon = argparse.Namespace(pipeline="p", run=2)
    with notices.post_forgetting(settings.warehouse, "p"):
        with pytest.raises(BusyError, match="under way in another process"):
            planner.ensure_plan(contract, "run 3")
        with pytest.raises(BusyError, match="under way in another process"):
            running.abandon(abandon, settings)
    assert running.abandon(abandon, settings) == 0


def test_nobody_rewrites_files_while_something_is_forgotten(settings: Settings) -> None:
    enter(settings, 2, "planned", purpose=Erasure("t", "0"))
    with (
        pytest.raises(BusyError, match=r"maintenance stops here: run 2 \(run 2\) forgets something"),
        notices.post_notice(settings.warehouse, "p", "maintenance"),
    ):
        raise AssertionError("nothing may be done here")
    assert posted_files(settings) == []
    enter(settings, 2, "stopped", purpose=Erasure("t", "0"))
    with pytest.raises(BusyError):
        notices.refuse_forgetting(settings.warehouse, "p", "maintenance")
    enter(settings, 2, "completed", purpose=Erasure("t", "0"))
    with notices.post_notice(settings.warehouse, "p", "maintenance"):
        assert len(posted_files(settings)) == 1


@pytest.fixture
def shop(spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """The restaurant after two runs, tables of it in several files, which maintenance joins."""
    monkeypatch.setattr(file_layout, "MIN_FILES", 2)
    with pipeline(spark, broker, tmp_path) as p:
        again = {**CORRECTION, "orders": [("candace", {"item": "soup", "quantity": 1}, 6)]}
        for brought in (SEED, again):
            tell(p, brought)
            p.run()
        yield p


def lost_files(p: Pipeline) -> list[str]:
    """The files that tables of a pipeline name and that are not there."""
    found = WarehouseFolder(f"{p.warehouse}/{p.name}")
    there = {file.path for file in found.list_files()}
    return [
        path
        for name in found.tables
        for path in (f"{name}/{it}" for it in list_live_files(DeltaTable(f"{p.warehouse}/{p.name}/{name}")))
        if path not in there
    ]


@pytest.mark.long
def test_maintenance_that_is_under_way_when_a_key_is_forgotten_loses_nothing_and_brings_nothing_back(
    shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands before its first commit when the forgetting begins; then it makes that commit, and stops."""
    spark, real = shop.spark, maintenance._run_statement
    assert spark is not None
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()
    failed: list[Exception] = []

    def committed(*of: Any) -> bool:
        begun.set()
        assert go_on.wait(900)
        try:
            return real(*of)
        finally:
            done.append("maintenance has committed")

    monkeypatch.setattr(maintenance, "_run_statement", committed)

    def maintain() -> None:
        try:
            maintenance.maintain_tables(spark.newSession, read_settings(), shop.contract)
        except Exception as error:  # noqa: BLE001  # looked at below
            failed.append(error)

    beside = threading.Thread(target=maintain)
    beside.start()
    assert begun.wait(300)
    what = records.parse_request(shop.contract, "orders", "candace", ())

    def wait_for_others(*of: str) -> None:
        threading.Timer(2, go_on.set).start()
        waits(*of)
        done.append("the forgetting goes on")

    waits = notices.wait_for_others
    monkeypatch.setattr(notices, "wait_for_others", wait_for_others)
    told = forget.forget_records(spark, shop.contract, what)
    beside.join(600)
    assert done == ["maintenance has committed", "the forgetting goes on"]
    assert [type(error) for error in failed] == [BusyError]
    assert told.evidence.is_proven
    assert lost_files(shop) == []
    assert not [path for path in Path(shop.warehouse).rglob("*") if path.is_file() and b"candace" in path.read_bytes()]
    assert {row[0] for row in shop.believed("bills")} == {"anna", "bob"}
    assert wrong(shop) == []
    assert any(it.steps for it in maintenance.maintain_tables(spark.newSession, read_settings(), shop.contract).tables)
    assert wrong(shop) == []


@pytest.mark.long
def test_a_key_is_forgotten_while_maintenance_is_begun_again_and_again(shop: Pipeline) -> None:
    spark = shop.spark
    assert spark is not None
    ended, kinds = threading.Event(), list[str]()

    def maintain() -> None:
        session = spark.newSession()
        while not ended.is_set():
            try:
                maintenance.maintain_tables(lambda: session, read_settings(), shop.contract)
                kinds.append("done")
            except Exception as error:  # noqa: BLE001  # looked at below
                kinds.append(type(error).__name__)
            time.sleep(0.05)

    beside = threading.Thread(target=maintain)
    beside.start()
    try:
        told = forget.forget_records(
            spark, shop.contract, records.parse_request(shop.contract, "orders", "candace", ())
        )
        until(lambda: kinds[-1:] == ["done"], 600)
    finally:
        ended.set()
        beside.join(600)
    assert told.evidence.is_proven
    assert set(kinds) == {"done", "BusyError"}
    assert lost_files(shop) == []
    assert not [path for path in Path(shop.warehouse).rglob("*") if path.is_file() and b"candace" in path.read_bytes()]
    assert {row[0] for row in shop.believed("bills")} == {"anna", "bob"}
    assert wrong(shop) == []
