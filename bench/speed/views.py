"""What is the same of all views: Hindcast's side, a run's step whole, and the floor, Spark copying the same rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.speed.engines import by_spark, cold
from bench.speed.inputs import Inputs, ensure
from bench.speed.measuring import Contestant
from bench.speed.names import COPY, OURS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ours(spark: SparkSession, place: Inputs, kind: str, view: str) -> Contestant:
    """The step `build` of a first run: what it derives of its inputs, counted, laid out and published."""
    return Contestant(OURS, lambda _: build(spark, kind, view), place.table(kind, view), cold(spark))


def build(spark: SparkSession, kind: str, view: str) -> None:
    """The step itself."""
    from hindcast.common.settings import read_settings
    from hindcast.runs import run_steps

    run_steps.build_view(spark, read_settings(), kind, 1, view)


def copy(spark: SparkSession, place: Inputs, kind: str, view: str) -> Contestant:
    """The floor: what Hindcast has made of the view, from Delta to Delta."""
    kept = place.folder / "kept" / kind / view
    if not kept.exists():
        made = place.table(kind, view)
        shutil.rmtree(made, ignore_errors=True)
        cold(spark)()
        build(spark, kind, view)
        kept.parent.mkdir(parents=True, exist_ok=True)
        made.rename(kept)
    return on_spark(spark, COPY, lambda rows: rows, rows=kept)


def on_spark(spark: SparkSession, name: str, query: Callable[..., object] | str, **tables: Path) -> Contestant:
    """A contestant that is a Spark query, from Delta to Delta."""
    return Contestant(name, by_spark(spark, query, **tables), before=cold(spark))  # type: ignore[arg-type]


def sides(spark: SparkSession, place: Inputs, kind: str, *names: str) -> dict[str, Path]:
    """The folders of input tables, made if they are not there."""
    ensure(spark, place, kind, *names)
    return {name: place.table(kind, name) for name in names}
