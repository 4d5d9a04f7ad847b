"""Runs that die: where the boundaries of a run's steps are, and a process that kills itself at one of them.

Every durable effect of a run is a commit: to a log, to the quarantine, of verdicts and of what they hold back, to a
table, or to the journal. A boundary is the
moment before or after one. As a script this is a process that carries out one run, with a JVM of its own:

    python tests/crashes.py PIPELINE RUN_ID [SEEN]

With SEEN (a file of boundaries, one on each line) it kills its whole process group with SIGKILL at the first boundary
that is not in the file, which it then is. It prints `ready` when Spark is up, and `done`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hindcast.plan import journal
from hindcast.quality import gate_results
from hindcast.runs import run_steps
from hindcast.store import commits
from pipelines import CORRECTION, SEED, Pipeline, tell

CONTRACT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: "decimal(8,2)"}
    history_retention: 10 seconds
    max_malformed: 5
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    expect:
      - expect_column_values_to_be_between: {column: amount, max_value: 25}
        on_failure: quarantine
  spent:
    stream: bills
    aggregate: {spent: sum(amount)}
"""
TABLES = ("menu", "orders", "bills", "spent")

STORY: tuple[dict[str, list[Any]], ...] = (
    {**SEED, "menu": [*SEED["menu"], ("cake", b"{", 4), (None, {"price": 1}, 4)]},
    {
        "menu": [*CORRECTION["menu"], ("soup", {"price": 6}, 30), ("curry", {"price": 7}, 3)],
        "orders": [("eve", {"item": "curry", "quantity": 1}, 6)],
    },
    {"menu": [], "orders": []},
)
"""What each run brings: refused records; then a late record, which makes Candace's bill so high that it is held, and an
expired one; then a contract that takes that one too, by which her bill is mended.
"""


def prepare(p: Pipeline, run: int, brought: dict[str, list[Any]]) -> None:
    """The contract of a run, and its records. From the third run on the history retention changes with every run."""
    p.write(CONTRACT if run < 3 or run % 2 == 0 else CONTRACT.replace("10 seconds", "30 seconds"))
    tell(p, brought)


def watched(at: Callable[[str], None], patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on `at` is called with the name of every boundary that a run passes."""

    def wrap(owner: Any, name: str, place: Callable[..., str]) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            at(f"before {place(*args, **kwargs)}")
            done = real(*args, **kwargs)
            at(f"after {place(*args, **kwargs)}")
            return done

        patch(owner, name, wrapped)

    wrap(commits, "append_rows", lambda _, table, run, *__, **___: f"committing to {table.name} in run {run}")
    wrap(commits, "replace_rows", lambda _, table, run, *__, **___: f"committing to {table.name} in run {run}")
    wrap(commits, "commit_change", lambda _, table, run, *__, **___: f"committing to {table.name} in run {run}")
    wrap(gate_results, "append_results", lambda _, __, run, name, ___: f"entering the verdicts on {name} in run {run}")
    wrap(journal, "append_entry", lambda _, run, **__: f"noting {run.state} of run {run.number}")


def boundaries(run: int) -> list[str]:
    """Those of a run of the story, in the order in which it passes them."""
    menu = ["fates/menu"] if run == 3 else ["logs/menu", "quarantine"]
    orders = ["logs/orders", "orders"] if run < 3 else []
    gates = ["entering the verdicts on bills", *(["committing to failing"] if run > 1 else [])]
    made = [f"committing to {name}" for name in (*menu, "menu", *orders)]
    views = ["committing to bills", "committing to spent"]
    every = ["noting planned of", *(f"{one} in" for one in (*made, *gates, *views)), "noting completed of"]
    return [f"{when} {commit} run {run}" for commit in every for when in ("before", "after")]


def told(p: Pipeline) -> dict[str, Any]:
    """Everything that a pipeline's tables say, with runs in place of the moments that they were known at."""
    refused = sorted((row["topic"][-4:], row["offset"], row["fate"], row["run"]) for row in p.raw("quarantine"))
    fates = {f"fates of {topic}": p.fates(topic) for topic in p.contract.topics}
    held = sorted((row["entry"], row["key"], str(row["row"]), row["run"]) for row in p.raw("failing"))
    anew = sorted((row["offset"], row["was"], row["fate"], row["run"]) for row in p.raw("fates/menu"))
    return (
        {name: p.history(name) for name in TABLES}
        | fates
        | {"quarantine": refused, "anew": anew, "held": held, "states": p.states()}
    )


def started(p: Pipeline, run_id: str, seen: Path | None = None) -> subprocess.Popen[str]:
    """A process, in a process group of its own, that carries out a run of a pipeline."""
    command = [sys.executable, __file__, p.name, run_id, *([str(seen)] if seen else [])]
    environ = {**os.environ, **p.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (p.folder / "crashes.log").open("a") as log:
        return subprocess.Popen(
            command, env=environ, start_new_session=True, stdout=subprocess.PIPE, stderr=log, text=True, cwd=p.folder
        )


def killed(process: subprocess.Popen[str]) -> bool:
    """Whether a process ended by SIGKILL, rather than because it had done all."""
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), "see crashes.log"
    return process.returncode != 0


def die_once(seen: Path, place: str) -> None:
    """End this process group by SIGKILL the first time that it is at a place; the file `seen` has those before."""
    if place not in seen.read_text(encoding="utf-8").splitlines():
        with seen.open("a", encoding="utf-8") as file:
            file.write(f"{place}\n")
            file.flush()
            os.fsync(file.fileno())
        os.killpg(0, signal.SIGKILL)
        time.sleep(60)


def main(pipeline: str, run_id: str, seen: str | None = None) -> None:
    """The process of `started`."""
    from hindcast.common.session import open_session
    from hindcast.common.settings import read_settings

    spark = open_session("crash", {"spark.master": "local[2]", "spark.driver.memory": "1g"}, small=True)

    if seen:
        watched(partial(die_once, Path(seen)))
    print("ready", flush=True)
    past = journal.read_runs(read_settings().warehouse, pipeline)
    if not any(run.run_id == run_id and run.state == "completed" for run in past):
        run_steps.run_pipeline(spark, read_settings(), pipeline, run_id)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
