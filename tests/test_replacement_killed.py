"""A replacement that is killed at any of its steps is finished by the same command; nobody comes between."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.cli.main import main
from hindcast.common.errors import BusyError, TableError
from hindcast.common.settings import Settings, read_settings
from hindcast.contract import find
from hindcast.plan import closes, journal, notices, rehearsals
from hindcast.plan.closes import Close
from hindcast.plan.runs import Abandoned, Run
from hindcast.store import delta_log, replacements, tables
from hindcast.store.folder import WarehouseFolder
from hindcast.store.replacements import Replacement
from pipelines import T0, Pipeline, at, pipeline, wrong
from test_journal import run_of
from test_rehearsal import CONTRACT, define_bills, known_bills, send, sent
from test_rehearsal_into import MOMENTS, KilledError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

COMMAND = "hindcast rehearse hindsight --replace then"


@pytest.fixture(scope="module")
def rehearsed(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A pipeline with one run by the clock, and its rehearsal `then`. To be copied, not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hindcast.cli.commands.running.open_session", lambda *_: spark)
        with pipeline(spark, broker, tmp_path_factory.mktemp("rehearsed"), CONTRACT) as p:
            send(p)
            p.run("first")
            assert main(["rehearse", p.name, "--into", "then", *MOMENTS]) == 0
    begun = p.folder / "warehouse" / "then" / "fates" / "menu" / "_delta_log"  # its creation was killed
    begun.mkdir(parents=True)
    (begun / ".00000000000000000000.json.tmp").write_text("{", encoding="utf-8")
    return p


@contextmanager
def copy_of(rehearsed: Pipeline, folder: Path) -> Iterator[Settings]:
    """Settings of a copy of all that the pipelines have."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(rehearsed.folder, folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in rehearsed.environ.items():
            patch.setenv(name, value.replace(str(rehearsed.folder), str(folder)))
        yield read_settings()


def snapshot(settings: Settings) -> dict[str, Any]:
    """What there is: contracts, names of reports, runs, and the rows, names and last runs of all tables."""
    found: dict[str, Any] = {it.name: it.read_text(encoding="utf-8") for it in settings.schemas.iterdir()}
    found["reports"] = sorted(str(it.relative_to(settings.reports)) for it in settings.reports.rglob("*"))
    for folder in sorted(Path(settings.warehouse).iterdir()):
        found[folder.name] = []
        names = WarehouseFolder(str(folder)).tables if folder.name != replacements.FOLDER else []
        for name in (name for name in names if name != "fates/menu"):
            table = delta_log.DeltaTable(str(folder / name))
            ids = {str(txn["appId"]): txn["version"] for kind, txn in delta_log.read_actions(table, ["txn"])}
            own = {app: version for app, version in ids.items() if app.startswith(f"hindcast/{folder.name}/")}
            found[folder.name] += [(name, table.metadata().name, own, table.to_pyarrow_table().num_rows)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "refuse_replacing", lambda *_: None)
            found[f"{folder.name} runs"] = [
                (run.number, run.run_id, run.state, run.plan.contract == find_hash(settings, folder.name))
                for run in journal.read_runs(settings.warehouse, folder.name)
            ]
    return found


def find_hash(settings: Settings, name: str) -> str:
    return find(settings.schemas, name).hash


@contextmanager
def die_before(number: int, seen: list[str]) -> Iterator[None]:
    """Let the process die before the step of this number, among those that change anything."""

    def wrap(owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def step(*args: Any, **more: Any) -> Any:
            seen.append(name)
            if len(seen) == number:
                raise KilledError
            return original(*args, **more)

        patch.setattr(owner, name, step)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (Path, "replace"),
            (Path, "rename"),
            (Path, "unlink"),
            (journal, "commit_actions"),
            (journal, "write_deltalake"),
            (delta_log, "commit_actions"),
        ):
            wrap(owner, name, patch)
        yield


def test_killed_before_any_step_the_same_command_finishes_it(
    rehearsed: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, seen = tmp_path / "here", list[str]()
    with copy_of(rehearsed, folder) as settings:
        before = snapshot(settings)
        with die_before(0, seen):
            assert main(["rehearse", "hindsight", "--replace", "then"]) == 0
        expected = snapshot(settings)
    assert expected.keys() - before.keys() >= {"hindsight_replaced_1", "hindsight_replaced_1.yaml"}
    assert [row[0] for row in expected["hindsight"]] == [row[0] for row in before["then"]]
    assert [row[2].values() for row in expected["hindsight"]] != []
    for new, old in (("hindsight", "then"), ("hindsight_replaced_1", "hindsight")):
        assert expected[f"{new} runs"] == before[f"{old} runs"], "the contract's hash goes with it"
        renamed = [
            (name, f"{new}.{name}", {app.replace(f"/{old}/", f"/{new}/"): run for app, run in ids.items()}, rows)
            for name, _, ids, rows in before[old]
        ]
        assert expected[new] == renamed
        assert [it for it in expected["reports"] if it.startswith(f"{new}/")] == [
            it.replace(f"{old}/", f"{new}/") for it in before["reports"] if it.startswith(f"{old}/")
        ]
    assert len(seen) > 30
    beside = [tuple(seen[max(n - 1, 0) : n + 2]) for n in range(len(seen))]
    for number, name in enumerate(seen, 1):
        if beside[: number - 1].count(beside[number - 1]) > 1:  # of steps that follow each other alike, two will do
            continue
        with copy_of(rehearsed, folder) as settings:
            with die_before(number, []), pytest.raises(KilledError):
                main(["rehearse", "hindsight", "--replace", "then"])
            if replacements.find_replacement(settings.warehouse, "hindsight") is not None:
                capsys.readouterr()
                assert main(["runs", "hindsight"]) == 3
                assert f"if it was killed: {COMMAND}" in capsys.readouterr().err
            assert main(["rehearse", "hindsight", "--replace", "then"]) == 0, number
            assert snapshot(settings) == expected, (number, name)


def test_nobody_is_told_to_move_the_tables_of_a_replacement_that_was_killed(
    rehearsed: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with copy_of(rehearsed, tmp_path / "here"):
        with die_before(25, []), pytest.raises(KilledError):
            main(["rehearse", "hindsight", "--replace", "then"])
        capsys.readouterr()
        for pipeline in ("hindsight", "then"):
            asked = [[name, pipeline] for name in ("verify", "failing", "trim")]
            for command in (*asked, ["forget", f"{pipeline}.orders", "--key", "bob"]):
                assert main(command) == 3, command
                assert f"if it was killed: {COMMAND}" in capsys.readouterr().err
        for command in (["check"], ["doctor"]):
            main(command)
            shown = "".join(capsys.readouterr())
            assert "did not make" not in shown
            assert f"if it was killed: {COMMAND}" in shown
        with pytest.raises(TableError, match="then is taking the place of hindsight"):
            tables.open_table(replace(rehearsed.table("menu"), warehouse=read_settings().warehouse))


def test_the_former_pipeline_takes_its_place_back_and_goes_on(
    rehearsed: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "here"
    with copy_of(rehearsed, folder) as settings:
        before = snapshot(settings)
        (settings.schemas / "hindsight.yaml").chmod(0o664)
        assert main(["rehearse", "hindsight", "--replace", "then"]) == 0
        for name in ("hindsight", "hindsight_replaced_1"):
            assert (settings.schemas / f"{name}.yaml").stat().st_mode & 0o777 == 0o664, "Airflow may be another user"
        capsys.readouterr()
        assert main(["rehearse", "hindsight", "--replace", "then"]) == 0
        assert "then took the place of hindsight before; nothing was done" in capsys.readouterr().out
        assert main(["rehearse", "hindsight", "--replace", "hindsight_replaced_1"]) == 0
        after = snapshot(settings)
        for what in ("hindsight", "hindsight runs", "hindsight.yaml"):
            assert after[what] == before[what], what
        assert after["hindsight_replaced_2 runs"] == before["then runs"]
        assert "hindsight_replaced_1" not in after

        p, archive = copy(rehearsed), copy(rehearsed)
        p.folder = archive.folder = folder
        archive.name = "hindsight_replaced_2"
        bills = p.history("bills")
        p.send("orders", ("gus", {"item": "curry", "quantity": 2}, 7, sent(31)))
        p.run("next")
        assert len(p.history("bills")) == len(bills) + 1
        assert known_bills(p, None)[-1] == ("gus", 20)
        assert wrong(p) == []
        assert main(["rehearse", "hindsight", "--replace", "hindsight_replaced_2"]) == 1
        assert "up to offset 5, and hindsight_replaced_2 ends at offset 4" in capsys.readouterr().err
        archive.run("next")
        assert main(["rehearse", "hindsight", "--replace", "hindsight_replaced_2"]) == 0
        p.run("last")
        assert known_bills(p, at(30)) == define_bills(30)
        assert known_bills(p, None)[-1] == ("gus", 20)
        assert wrong(p) == []


def test_what_prevents_a_replacement_is_refused_and_leaves_no_trace(
    rehearsed: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(settings: Settings, *options: str, code: int = 1) -> str:
        before = sorted(tmp_path.rglob("*"))
        assert main(["rehearse", "hindsight", *(options or ("--replace", "then"))]) == code
        assert sorted(tmp_path.rglob("*")) == before
        assert replacements.find_replacement(settings.warehouse, "then") is None
        return capsys.readouterr().err

    with copy_of(rehearsed, tmp_path / "here") as settings, pytest.MonkeyPatch.context() as patch:
        schemas, warehouse = settings.schemas, settings.warehouse
        for odd in ("nobody", "../then", "", ".", "x" * 300):
            assert f"no pipeline '{odd}'" in refusal(settings, "--replace", odd)
        assert "--replace names the pipeline itself" in refusal(settings, "--replace", "hindsight")
        assert "--replace goes alone" in refusal(settings, "--replace", "then", "--into", "more")
        assert "--replace goes alone" in refusal(settings, "--replace", "then", "--end")

        other = (schemas / "then.yaml").read_text(encoding="utf-8").replace("pipeline: then", "pipeline: new")
        (schemas / "new.yaml").write_text(other, encoding="utf-8")
        assert "new: has no completed run" in refusal(settings, "--replace", "new")
        (schemas / "reader.yaml").write_text(READER, encoding="utf-8")
        shown = refusal(settings)
        assert "reader.prices: reads hindsight.menu, so its rows depend on what that table knew" in shown
        (schemas / "reader.yaml").write_text(READER.replace("hindsight.", "then."), encoding="utf-8")
        assert "reader.prices: reads then.menu" in refusal(settings)
        (schemas / "reader.yaml").unlink()

        (schemas / "reader.yaml").write_text(READER.replace("start:", "begin:"), encoding="utf-8")
        assert "reader.yaml: names tables of hindsight, and does not load" in refusal(settings)
        (schemas / "reader.yaml").write_bytes(b"\xff")
        assert "reader.yaml: names tables of hindsight, and does not load" in refusal(settings)
        (schemas / "reader.yaml").unlink()
        log = Path(warehouse, "then", "bills", "_delta_log")
        begun, text = log / f"{0:020}.json", (log / f"{0:020}.json").read_text(encoding="utf-8")
        begun.write_text("{", encoding="utf-8")
        assert "then/bills: cannot be read" in refusal(settings)
        begun.write_text(text, encoding="utf-8")

        for folder in (schemas, Path(warehouse), settings.reports):
            with patch.context() as closed:
                closed.setattr(os, "access", lambda path, _, folder=folder: path != folder)
                assert f"{folder}: this user cannot write to the folder" in refusal(settings)

        with patch.context() as stored:
            stored.setenv("HINDCAST_WAREHOUSE", "s3a://bucket/warehouse")
            assert main(["rehearse", "hindsight", "--replace", "then"]) == 1
            assert "in an object store, where no folder can be renamed" in capsys.readouterr().err

        for name in ("hindsight", "then"):
            journal.append_entry(warehouse, planned := next_run(warehouse, name))
            shown = refusal(settings, code=3)
            assert f"{name}: run {planned.number} (killed) has not ended" in shown
            assert f"hindcast abandon {name}" in shown
            journal.append_entry(warehouse, Run(planned.plan, Abandoned("by hand")))

        with replacements.lock_replacements(Path(warehouse)):
            assert "another process replaces a pipeline of this warehouse" in refusal(settings, code=3)
        known = journal.read_runs(warehouse, "hindsight")[0].known_at
        closes.add_close(warehouse, "hindsight", Close("January", at(0), at(9), known, T0, "eva"))
        assert "hindsight: has closes: January. They name what hindsight knew" in refusal(settings)
        closes.drop_close(warehouse, "hindsight", "January", "eva", "replaced")
        assert main(["rehearse", "hindsight", "--replace", "then"]) == 0


def test_the_former_pipeline_gets_a_name_that_no_contract_has(rehearsed: Pipeline, tmp_path: Path) -> None:
    with copy_of(rehearsed, tmp_path / "here") as settings:
        for n, text in enumerate((READER, READER.replace("start:", "begin:")), 1):
            named = text.replace("pipeline: reader", f"pipeline: hindsight_replaced_{n}")
            other = named.replace("hindsight.menu", "elsewhere.menu")
            (settings.schemas / f"other-{n}.yaml").write_text(other, encoding="utf-8")
        assert main(["rehearse", "hindsight", "--replace", "then"]) == 0
        assert (settings.schemas / "hindsight_replaced_3.yaml").exists()


READER = """
pipeline: reader
start: 2026-01-01
topics:
  trips: {read: stream, key: {id: string}, value: {item: string}}
inputs:
  prices: {table: hindsight.menu, key: {item: string}, value: {price: int}}
views:
  priced: {stream: trips, join: {table: prices, on: item}, select: {price: price}}
"""


def next_run(warehouse: str, name: str) -> Run:
    """A run that was planned and killed."""
    last = journal.read_runs(warehouse, name)[-1].plan
    fields = run_of(last.run + 1, "planned").plan
    return Run(replace(fields, pipeline=name, run_id="killed", known_at=last.known_at + rehearsals.MICROSECOND))


def test_a_run_that_begins_in_the_middle_is_refused_or_stops_the_replacement(
    rehearsed: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with copy_of(rehearsed, tmp_path / "here") as settings:
        warehouse, mark = settings.warehouse, replacements.mark_replacement
        planned = next_run(warehouse, "hindsight")

        def mark_too_late(folder: Path, begun: Replacement) -> None:
            if not begun.is_checked:  # after all was checked for the first time
                journal.append_entry(warehouse, planned)
            mark(folder, begun)

        with monkeypatch.context() as patch:
            patch.setattr(replacements, "mark_replacement", mark_too_late)
            assert main(["rehearse", "hindsight", "--replace", "then"]) == 3
        assert "(killed) has not ended" in capsys.readouterr().err
        assert replacements.find_replacement(warehouse, "hindsight") is None
        journal.append_entry(warehouse, Run(planned.plan, Abandoned("by hand")))

        planned, begun = next_run(warehouse, "hindsight"), Replacement("hindsight", "then", "x")

        def date(run: Run) -> Run:
            mark(Path(warehouse), begun)  # after the writer looked for a mark
            journal.commit_nothing(warehouse, "hindsight")
            return run

        write, tries = journal.write_deltalake, list[str]()

        def write_after_mark(*args: Any, **more: Any) -> None:
            tries.append("write")
            date(planned)
            write(*args, **more)

        with pytest.raises(BusyError, match="then is taking the place of hindsight"):
            journal.append_entry(warehouse, planned, date=date)
        replacements.remove_marks(Path(warehouse), begun)
        with monkeypatch.context() as patch:
            patch.setattr(journal, "write_deltalake", write_after_mark)
            with pytest.raises(BusyError):
                journal.append_entry(warehouse, planned)
        assert tries == ["write"], "its commit fails, and it looks again"
        assert [run.run_id for run in read_marked(warehouse)] == ["first", "killed"]

        for upkeep in ("trim", "maintain"):
            assert main([upkeep, "hindsight"]) == 3, upkeep
        with pytest.raises(BusyError), notices.post_notice(warehouse, "then", "trimming"):
            pass
        moment = read_marked(warehouse)[0].known_at
        with pytest.raises(BusyError, match="taking the place"):
            closes.add_close(warehouse, "hindsight", Close("January", at(0), at(9), moment, T0, "eva"))


def read_marked(warehouse: str) -> list[Run]:
    with replacements.allow_replacing():
        return journal.read_runs(warehouse, "hindsight")
