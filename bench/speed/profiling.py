"""Where the time of an operation goes: its parts alone, and the stages of the whole as Spark's event log tells them."""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bench.speed import views
from bench.speed.data import KNOWN
from bench.speed.engines import cold
from bench.speed.inputs import Inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
VIEWS = {"a": "priced", "b": "priced", "c": "stocked", "d": "categories"}
SHOWN, LISTED = 12, 40


def logged(folder: Path) -> dict[str, str]:
    """The settings of a session that writes an event log."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    told = {"enabled": "true", "dir": folder.as_uri(), "rolling.enabled": "false", "compress": "false"}
    return {f"spark.eventLog.{name}": value for name, value in told.items()}


def profile(spark: SparkSession, place: Inputs, code: str, kind: str, log: Path) -> list[str]:
    """Lines that tell it, of an operation on views (a to d); each part is done once to warm up, then measured.

    The parts: what a join's kernel does, one slice after the other on one core (reading, sweeping, writing); Spark's
    plan of the view, to nowhere; the whole step, which is the kernel in Spark tasks and the commit.
    """
    name = VIEWS[code]
    contract = place.contract(kind)
    views.sides(spark, place, kind, *contract.views[name].inputs)
    size = sum(_size(place, kind, i) for i in contract.views[name].inputs)
    parts: dict[str, Callable[[], object]] = {
        "Spark's plan, to nowhere": partial(_derive, spark, place, kind, name, size),
        "the whole step": partial(_whole, spark, place, kind, name),
    }
    _whole(spark, place, kind, name)
    lines = [f"{code} {kind}: {name}"]
    for _ in range(2):
        alone = _alone(place, kind, name) if contract.views[name].join else {}
    lines += [f"  {part:24} {seconds:7.2f} s of a core" for part, seconds in alone.items()]
    for part, work in parts.items():
        work()
        spark.sparkContext.setJobDescription(f"{code} {kind} {part}")
        begun = time.monotonic()
        work()
        lines.append(f"  {part:24} {time.monotonic() - begun:7.2f} s")
        spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type]  # that takes it away
    time.sleep(2)  # the listener writes behind
    return [*lines, *stages(next(log.iterdir()), f"{code} {kind} the whole step")]


def functions(of: str, work: Callable[[], T]) -> T:
    """Prints which of Hindcast's functions a part of an operation waits in, with all that they call."""
    import cProfile
    import pstats

    profile = cProfile.Profile()
    begun = time.monotonic()
    done = profile.runcall(work)
    took = time.monotonic() - begun
    told: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # not in typeshed
    ours = [
        (total, calls, f"{Path(file).stem}.{name}")
        for (file, _, name), (_, calls, _, total, _) in told.items()
        if "/hindcast/" in file and not name.startswith("<")
    ]
    lines = [f"  {total:7.2f} s {calls:5} {name}" for total, calls, name in sorted(ours, reverse=True)[:LISTED]]
    print("\n".join([f"{of}: {took:.2f} s", *lines]), flush=True)
    return done


@dataclass
class Stage:
    """What a stage's tasks took, in seconds and bytes."""

    name: str = ""
    wall: float = 0
    tasks: list[float] = field(default_factory=list)
    cpu: float = 0
    gc: float = 0
    read: int = 0
    shuffled: int = 0
    spilled: int = 0


def stages(log: Path, job: str) -> list[str]:
    """The stages of jobs with this description, the longest first."""
    found: dict[int, Stage] = defaultdict(Stage)
    ours: set[int] = set()
    for line in log.read_text(encoding="utf-8").splitlines():
        event: dict[str, Any] = json.loads(line)
        match event["Event"]:
            case "SparkListenerJobStart" if event["Properties"].get("spark.job.description") == job:
                ours |= set(event["Stage IDs"])
            case "SparkListenerStageCompleted":
                info = event["Stage Info"]
                found[info["Stage ID"]].name = _named(info)
                found[info["Stage ID"]].wall = (info["Completion Time"] - info["Submission Time"]) / 1000
            case "SparkListenerTaskEnd" if event.get("Task Metrics"):
                _add(found[event["Stage ID"]], event["Task Metrics"])
    listed = sorted((found[number] for number in ours if found[number].tasks), key=lambda it: -it.wall)
    head = f"  {'stages of the whole step':44} {'wall':>6} {'tasks':>5} {'longest':>7} {'cpu':>6} {'gc':>5}"
    head += f" {'shuffle in':>10} {'out':>7} {'spilled':>8}"
    return [head, *(_told(it) for it in listed[:SHOWN])]


def _told(it: Stage) -> str:
    numbers = f"{it.wall:6.1f} {len(it.tasks):5} {max(it.tasks):7.1f} {it.cpu:6.1f} {it.gc:5.1f}"
    sizes = f"{it.read / 1e6:8.0f}MB {it.shuffled / 1e6:5.0f}MB {it.spilled / 1e6:6.0f}MB"
    return f"  {it.name[:44]:44} {numbers} {sizes}"


def _add(stage: Stage, metrics: dict[str, Any]) -> None:
    stage.tasks.append(metrics["Executor Run Time"] / 1000)
    stage.cpu += metrics["Executor CPU Time"] / 1e9
    stage.gc += metrics["JVM GC Time"] / 1000
    stage.read += metrics["Shuffle Read Metrics"]["Local Bytes Read"]
    stage.shuffled += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
    stage.spilled += metrics["Disk Bytes Spilled"]


def _named(info: dict[str, Any]) -> str:
    """What a stage does: the operators that its data goes through, the last one first."""
    scopes = []
    for rdd in info["RDD Info"]:
        name = json.loads(rdd["Scope"])["name"] if rdd.get("Scope") else rdd["Name"]
        if name not in scopes:
            scopes.append(name)
    return " < ".join(name for name in scopes if not name.startswith("MapPartitions")) or str(info["Stage Name"])


def _size(place: Inputs, kind: str, name: str) -> int:
    from hindcast.store import tables

    return tables.count_rows(tables.locate_table(str(place.warehouse), place.contract(kind), name))


def _believed(spark: SparkSession, place: Inputs, kind: str, name: str) -> DataFrame:
    from hindcast.store import row_reader, tables

    return row_reader.load_current_rows(spark, tables.locate_table(str(place.warehouse), place.contract(kind), name))


def _alone(place: Inputs, kind: str, name: str) -> dict[str, float]:
    """The seconds that the kernel of a view takes for its parts, in this process, one after the other.

    What it writes lies beside the view's files until the whole step makes it anew.
    """
    from hindcast.engine import arrow_expressions, eligibility, operators, slice_reader, task, time_slices
    from hindcast.store import files, tables

    contract, warehouse = place.contract(kind), str(place.warehouse)
    of = {i: tables.locate_table(warehouse, contract, i) for i in (*contract.views[name].inputs, name)}
    found = {i: it for i, table in of.items() if (it := tables.open_table(table)) is not None}
    inputs = {i: of[i] for i in contract.views[name].inputs}
    output = eligibility.describe_output(name, found, of[name], KNOWN)
    form = eligibility.find_join(contract, name, inputs, found, output) if output else None
    assert form is not None, f"{name} is no join of a kernel"
    parts = time_slices.plan_join_slices(form, [found[i] for i in inputs], cores=2)
    assert parts is not None, f"{name} has files without statistics"
    taken = dict.fromkeys(("reading", "sweeping", "writing"), 0.0)
    for span in parts:
        begun = time.monotonic()
        sides = [slice_reader.read_slice(side, span) for side in form.sides]
        taken["reading"] += (read := time.monotonic()) - begun
        rows = operators.join_sides(form, span, sides)
        if form.projection is not None:
            rows = arrow_expressions.project_rows(form.projection, rows)
        taken["sweeping"] += (swept := time.monotonic()) - read
        list(files.write_files(found[name], task.split_by_belief(form.output, rows)))
        taken["writing"] += time.monotonic() - swept
    return taken


def _derive(spark: SparkSession, place: Inputs, kind: str, name: str, size: int) -> None:
    from hindcast.bitemporal import derivation
    from hindcast.common.session import slice_large_keys

    contract = place.contract(kind)
    inputs = {i: _believed(spark, place, kind, i) for i in contract.views[name].inputs}
    with slice_large_keys(spark, size):
        derivation.derive_view(contract, name, inputs).write.format("noop").mode("overwrite").save()


def _whole(spark: SparkSession, place: Inputs, kind: str, name: str) -> None:
    shutil.rmtree(place.table(kind, name), ignore_errors=True)
    cold(spark)()
    views.build(spark, kind, name)
