"""Whatever a run dies of, and wherever: a retry, and its tables are those of a run that nothing disturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import crashes
from crashes import CONTRACT, STORY, boundaries, killed, prepare, started, told, watched
from pipelines import Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CrashError(Exception):
    """What a step fails with in this process."""


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """The story in runs that nothing disturbs."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("undisturbed"), CONTRACT) as p:
        for number, brought in enumerate(STORY, 1):
            prepare(p, number, brought)
            p.run(f"run {number}")
        yield p


TWO_RUNS: dict[str, Any] = {
    "menu": [
        ("curry", 8, 0, 2, 2, None),
        ("curry", 8, 0, 4, 1, 2),
        ("curry", 9, 2, 4, 2, None),
        ("curry", 10, 4, None, 1, None),
        ("soup", 5, 0, 30, 2, None),
        ("soup", 5, 0, None, 1, 2),
        ("soup", 6, 30, None, 2, None),
    ],
    "orders": [
        ("anna", "curry", 1, 1, 1, None),
        ("bob", "curry", 2, 5, 1, None),
        ("candace", "curry", 3, 3, 1, None),
        ("dan", "cake", 1, 3, 1, None),
        ("eve", "curry", 1, 6, 2, None),
    ],
    "bills": [
        ("anna", "curry", 8, 1, 1, None),
        ("bob", "curry", 20, 5, 1, None),
        ("candace", "curry", 24, 3, 1, None),  # 27 is held
        ("eve", "curry", 10, 6, 2, None),
    ],
    "spent": [
        ("anna", 8, 1, None, 1, None),
        ("bob", 20, 5, None, 1, None),
        ("candace", 24, 3, None, 1, None),
        ("eve", 10, 6, None, 2, None),
    ],
    "fates of menu": [
        *((offset, "accepted") for offset in (0, 1, 2)),
        (3, "malformed"),
        (4, "null_key"),
        (5, "accepted"),
        (6, "accepted"),
        (7, "expired"),
    ],
    "fates of orders": [(offset, "accepted") for offset in range(5)],
    "quarantine": [("menu", 3, "malformed", 1), ("menu", 4, "null_key", 1), ("menu", 7, "expired", 2)],
    "anew": [],
    "states": [(1, "completed"), (2, "completed")],
}
"""What the story says after its second run, worked out by hand; the runs that opened and closed a row are its last."""
SOME = [
    "after committing to logs/menu in run 2",
    "after entering the verdicts on bills in run 2",
    "before noting completed of run 2",
]
"""Left to a retry: the quarantine and all that follows; what is held, and the view; the end of the run alone."""


@pytest.mark.long
@pytest.mark.ci
def test_runs_that_die_are_finished_by_retries(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """The second, three times: while a topic, a view and the journal are written. At every boundary: below."""
    seen: list[str] = []

    def fail(place: str) -> None:
        if place in SOME and place not in seen:
            seen.append(place)
            raise CrashError(place)

    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        prepare(p, 1, STORY[0])
        p.run("run 1")
        prepare(p, 2, STORY[1])
        with pytest.MonkeyPatch.context() as patch:
            watched(fail, patch.setattr)
            _until_done(p, "run 2")
        assert seen == SOME
        found = told(p)
        held = found.pop("held")
        assert found == TWO_RUNS
        assert [(entry, key, row.partition("amount")[2][2:7], run) for entry, key, row, run in held] == [
            ("held", '{"customer":"candace"}', amount, 2) for amount in ("24.00", "27.00")
        ]
        once = {name: version for name, version in p.versions().items() if version is not None}
        assert once == dict.fromkeys(once, 2) | {"failing": 1}, "made, and a commit in each run"


def _until_done(p: Pipeline, run_id: str) -> None:
    """Runs and retries until the run is completed, which is the last of its boundaries."""
    for _ in range(60):
        try:
            p.run(run_id)
            break
        except CrashError as crash:
            if str(crash).startswith("after noting completed"):
                break


@pytest.mark.long
def test_the_story_has_something_to_lose(undisturbed: Pipeline) -> None:
    rows = told(undisturbed)
    assert all(rows[name] for name in crashes.TABLES)
    assert [row[2] for row in rows["quarantine"]] == ["malformed", "null_key", "expired"]
    assert {row[-1] for row in rows["bills"]} == {None, 3}, "an answer is corrected"
    assert {row[0] for row in rows["held"]} == {"held", "mended"}
    assert [row[1:] for row in rows["anew"]] == [("expired", "accepted", 3)]


@pytest.mark.long
def test_a_run_that_fails_at_every_boundary_tells_the_same_in_the_end(
    undisturbed: Pipeline, spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    seen: list[str] = []

    def fail(place: str) -> None:
        if place not in seen:
            seen.append(place)
            raise CrashError(place)

    with pipeline(spark, broker, tmp_path, CONTRACT) as p, pytest.MonkeyPatch.context() as patch:
        watched(fail, patch.setattr)
        for number, brought in enumerate(STORY, 1):
            prepare(p, number, brought)
            _until_done(p, f"run {number}")
        assert told(p) == told(undisturbed)
        assert p.versions() == undisturbed.versions()
        assert seen == [*boundaries(1), *boundaries(2), *boundaries(3)]


@pytest.mark.long
def test_a_process_that_is_killed_is_finished_by_a_retry(
    undisturbed: Pipeline, spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        places = {1: "after committing to logs/menu in run 1", 3: "before committing to bills in run 3"}
        for number, brought in enumerate(STORY, 1):
            prepare(p, number, brought)
            if place := places.get(number):
                seen = tmp_path / "seen"
                seen.write_text("\n".join([*boundaries(number), ""]).replace(f"{place}\n", ""))
                assert killed(started(p, f"run {number}", seen))
                assert seen.read_text().splitlines()[-1] == place
            p.run(f"run {number}")
        assert told(p) == told(undisturbed)


@pytest.mark.long
def test_processes_killed_at_every_boundary(undisturbed: Pipeline, broker: str, tmp_path: Path) -> None:
    kills = 0
    with pipeline(None, broker, tmp_path, CONTRACT) as p:
        seen = tmp_path / "seen"
        seen.touch()
        for number, brought in enumerate(STORY, 1):
            prepare(p, number, brought)
            while killed(started(p, f"run {number}", seen)):
                kills += 1
        assert told(p) == told(undisturbed)
        assert p.versions() == undisturbed.versions()
    assert seen.read_text().splitlines() == [*boundaries(1), *boundaries(2), *boundaries(3)]
    assert kills == len(seen.read_text().splitlines()) >= 40


@pytest.mark.long
def test_processes_killed_at_random_moments(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("HINDCAST_TEST_SEED") or time.time_ns() % 2**31)
    print(f"HINDCAST_TEST_SEED={seed}")
    chance = random.Random(seed)  # noqa: S311
    story = [*STORY, *(brought(chance, n) for n in range(2, 6))]
    (tmp_path / "calm").mkdir()
    with pipeline(spark, broker, tmp_path / "calm", CONTRACT) as calm:
        took = 0.0
        for number, records in enumerate(story, 1):
            prepare(calm, number, records)
            begun = time.monotonic()
            calm.run(f"run {number}")
            took = max(took, time.monotonic() - begun)
        expected = told(calm)
    with pipeline(None, broker, tmp_path, CONTRACT) as p:
        kills = 0
        for number, records in enumerate(story, 1):
            prepare(p, number, records)
            for _ in range(7):
                if not killed_within(p, f"run {number}", chance.uniform(0, took), chance.random() < 0.3):
                    break
                kills += 1
            assert not killed(started(p, f"run {number}"))
        assert told(p) == expected
    assert kills >= 28, "with those at every boundary, more than 60"


def brought(chance: random.Random, n: int) -> dict[str, list[Any]]:
    """Prices and orders of a further run, most of them late."""
    dishes = ("curry", "soup", "cake")
    prices = [(chance.choice(dishes), {"price": chance.randint(1, 9)}, 25 + chance.randint(0, 5 + n)) for _ in range(4)]
    orders = [(f"guest{n}", {"item": chance.choice(dishes), "quantity": 1}, chance.randint(1, 35)) for _ in range(3)]
    return {"menu": [*prices, ("cake", b"{", 30)], "orders": orders}


def killed_within(p: Pipeline, run_id: str, seconds: float, alone: bool) -> bool:
    """Starts a run and kills it so long after Spark is up: all of it, or Python `alone`, whose JVM ends as it can."""
    process = started(p, run_id)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    time.sleep(seconds)
    if process.poll() is None:
        (os.kill if alone else os.killpg)(process.pid, signal.SIGKILL)
    return killed(process)
