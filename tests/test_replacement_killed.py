"""A replacement that is killed at any of its steps is finished by the same command; nobody comes between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.cli.main import main
from hindcast.common.settings import Settings, read_settings
from hindcast.plan import journal, replacements
from hindcast.store import delta_log
from hindcast.store.folder import WarehouseFolder
from pipelines import Pipeline, pipeline
from test_rehearsal import CONTRACT, send
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
        for name in WarehouseFolder(str(folder)).tables if folder.name != replacements.FOLDER else ():
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
    from hindcast.contract import find

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
    steps = len(seen)
    assert steps > 30
    for number in range(1, steps + 1):
        with copy_of(rehearsed, folder) as settings:
            with die_before(number, []), pytest.raises(KilledError):
                main(["rehearse", "hindsight", "--replace", "then"])
            if replacements.find_replacement(settings.warehouse, "hindsight") is not None:
                capsys.readouterr()
                assert main(["runs", "hindsight"]) == 1
                assert f"if it was killed: {COMMAND}" in capsys.readouterr().err
            assert main(["rehearse", "hindsight", "--replace", "then"]) == 0, number
            assert snapshot(settings) == expected, (number, seen[number - 1])
