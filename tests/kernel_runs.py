"""Runs with kernels and without, from the same plans and logs."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from hindcast.common import session
from hindcast.common.settings import read_settings
from hindcast.engine import eligibility, time_slices
from hindcast.runs import run_steps
from hindcast.store import commit_history, row_reader
from pipelines import Pipeline


def begin(p: Pipeline, run_id: str) -> int:
    """Plans a run and replays its topics; its number."""
    assert p.spark is not None
    with p.here():
        number = run_steps.plan_run(read_settings(), p.name, run_id)
        for topic in p.contract.topics:
            run_steps.replay_topic(p.spark, read_settings(), p.name, number, topic)
    return number


def twin(p: Pipeline, folder: Path) -> Pipeline:
    """The same pipeline, with all its tables, in another folder."""
    for name in ("schemas", "warehouse"):
        shutil.copytree(p.folder / name, folder / name)
    made = copy.copy(p)
    made.folder = folder
    return made


@contextmanager
def kernels(*, on: bool = True) -> Iterator[None]:
    """Kernels make all views that they can, in small slices of time; or none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HINDCAST_KERNELS", "on" if on else "off")
        patch.setattr(eligibility, "MIN_ROWS", 0)
        patch.setattr(time_slices, "ROWS_PER_TASK", 15)
        patch.setattr(time_slices, "RECORDS_PER_TASK", 15)
        patch.setattr(session, "count_cores", lambda _: 3)
        yield


def build(p: Pipeline, *views: str, run: int = 1, on: bool = True) -> dict[str, dict[str, Any]]:
    """What the commits of some views note, or of all."""
    assert p.spark is not None
    with p.here(), kernels(on=on):
        names = views or p.contract.ordered_views
        return {view: run_steps.build_view(p.spark, read_settings(), p.name, run, view).as_json() for view in names}


def stored(p: Pipeline, name: str) -> list[str]:
    """All rows of a table with all their columns, as Spark and as Arrow read them."""
    assert p.spark is not None
    found = row_reader.load_rows(p.spark, p.table(name)).toArrow()
    own = p.raw(name)
    read_by_both = [column for column in found.column_names if not own or column in own[0]]
    assert sorted(map(repr, found.select(read_by_both).to_pylist())) == sorted(
        repr({column: row[column] for column in read_by_both}) for row in own
    )
    return sorted(map(repr, found.to_pylist()))


def stored_alike(one: Pipeline, other: Pipeline, name: str) -> bool:
    """Asserts that two pipelines have the same rows in a table; whether there are any. Spark reads those of the first,
    Arrow those of both.
    """
    rows = stored(one, name)
    first, second = one.raw(name), other.raw(name)
    assert sorted(map(repr, first)) == sorted(map(repr, second)), name
    return bool(rows)


def note(p: Pipeline, name: str, run: int = 1) -> dict[str, Any]:
    return commit_history.read_notes(p.table(name), dict).get(run, {})


def files(p: Pipeline, name: str) -> set[str]:
    """The files of data in a table's folder, whoever has them."""
    folder = Path(p.table(name).path)
    return {str(path.relative_to(folder)) for path in folder.glob("_belief=*/*.parquet")}


def live(p: Pipeline, name: str) -> set[str]:
    """Those that a reader sees."""
    return {*pa.table(DeltaTable(p.table(name).path).get_add_actions(flatten=True)).column("path").to_pylist()}
