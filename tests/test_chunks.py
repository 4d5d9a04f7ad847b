"""Topics that are claimed in chunks: what each takes, and that it does not matter where a run ends."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crashes
from hindcast.airflow.pages import ledger_page
from hindcast.common.errors import RecordError, RunError, SettingsError
from hindcast.common.settings import read_settings
from hindcast.ingest import ingest_commits, ledger, stream_times
from hindcast.kafka.topic_patterns import MemberPartition
from hindcast.kafka.topics import OffsetRange, split_ranges
from hindcast.ops import journal_rebuild
from hindcast.plan import journal, planner
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.runs import run_steps
from hindcast.store import commit_history, tables
from hindcast.store.commit_notes import NOTE_ERRORS, IdlePartition, LogNote
from hindcast.store.tables import Table
from pipelines import Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect


class CrashError(Exception):
    """What a step fails with here."""


RANGES = st.dictionaries(
    st.integers(0, 300), st.tuples(st.integers(0, 9), st.integers(1, 500)).map(lambda it: OffsetRange(it[0], sum(it)))
)


@given(RANGES, st.integers(1, 700))
def test_pieces_are_the_ranges_in_order_and_of_about_one_size(ranges: dict[int, OffsetRange], size: int) -> None:
    pieces = split_ranges(ranges, size)
    for partition, offsets_ in ranges.items():
        own = [piece[partition] for piece in pieces if partition in piece]
        assert [own[0].start, *(r.end for r in own)] == [*(r.start for r in own), offsets_.end]
        assert own[0].start == offsets_.start
        assert all(r.end > r.start for r in own)
    sizes = [sum(r.end - r.start for r in piece.values()) for piece in pieces]
    assert all(0 < n <= size + len(ranges) for n in sizes)
    assert len(pieces) <= -(-sum(sizes) // size)


def test_many_partitions_of_few_offsets_take_turns() -> None:
    pieces = split_ranges({p: OffsetRange(0, 3) for p in range(200)}, 50)
    assert [sum(r.end - r.start for r in piece.values()) for piece in pieces] == [50] * 12


def share() -> TopicPlan:
    ranges, earlier = {0: OffsetRange(4, 10), 1: OffsetRange(0, 2)}, {0: OffsetRange(0, 2)}
    return TopicPlan("id", 0, 4, {0: 0, 1: 0}, ranges, earlier, chunk=4)


@pytest.mark.parametrize(
    ("chunks", "ranges", "earlier", "left"),
    [
        (0, {0: (4, 4), 1: (0, 0)}, {0: (0, 0)}, {0: (0, 2)}),
        (1, {0: (4, 4), 1: (0, 0)}, {0: (0, 2)}, {}),
        (2, {0: (4, 7), 1: (0, 1)}, {0: (0, 2)}, {}),
        (3, {0: (4, 10), 1: (0, 2)}, {0: (0, 2)}, {}),
    ],
)
def test_what_a_run_has_taken_that_was_given_up_after_some_chunks(
    chunks: int, ranges: dict[int, Any], earlier: dict[int, Any], left: dict[int, Any]
) -> None:
    assert share().chunks == [[{0: (0, 2)}], [{0: (4, 7), 1: (0, 1)}], [{0: (7, 10), 1: (1, 2)}]]
    taken = share().cut_after_chunks(chunks)
    assert (taken.ranges, taken.earlier, taken.abandoned_ranges) == (ranges, earlier, left)
    assert TopicPlan.from_json(taken.as_json()) == taken


def test_a_plan_takes_a_number_for_each_commit_to_a_log() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    plan = Plan("p", 7, "seven", now, None, "c0ffee", {"menu": share()}, numbers=3)
    assert plan.first_number == 5
    assert Plan.from_json(plan.as_json()) == plan
    alone = dataclasses.replace(plan, numbers=1, topics={"menu": dataclasses.replace(share(), chunk=0)})
    assert not {"numbers", "chunk"} & {*alone.as_json(), *alone.as_json()["topics"]["menu"]}


def test_the_note_of_a_commit_has_the_partitions_of_which_the_log_has_nothing_for_a_rebuilt_journal() -> None:
    member = ("menu-eu", 0, "id")
    ranges = {0: OffsetRange(4, 10), 1: OffsetRange(2, 4), 2: OffsetRange(7, 7), 3: OffsetRange(6, 6)}
    planned = TopicPlan("", 0, 4, {0: 0, 1: 2, 2: 7}, ranges, {}, chunk=4, members={2: MemberPartition(*member)})
    assert [{*piece} for [piece] in planned.chunks] == [{0, 1}, {0, 1}]
    idle = ingest_commits.list_idle_partitions(planned, 1)
    assert idle == (IdlePartition(2, 7, 7, member), IdlePartition(3, None, 6))
    note = LogNote(5, "five", 0, None, idle=idle)
    assert LogNote.from_json(json.loads(json.dumps(note.as_json()))) == note
    with pytest.raises(NOTE_ERRORS):
        LogNote.from_json({**note.as_json(), "idle": [[2, "7", 7]]})
    of_log = TopicPlan("", 0, 4, {0: 0, 1: 2}, {0: OffsetRange(10, 10), 1: OffsetRange(4, 4)}, {})
    rebuilt = journal_rebuild._add_idle_partitions(of_log, [*idle, IdlePartition(1, 0, 0)])
    assert rebuilt.start_offsets == {0: 0, 1: 2, 2: 7}
    assert rebuilt.ranges == {**of_log.ranges, 2: OffsetRange(7, 7), 3: OffsetRange(6, 6)}
    assert rebuilt.members == planned.members


PRICES = """
pipeline: chunks
start: 2026-01-01
topics:
  prices:
    read: table
    key: {item: string}
    value: {price: int}
    history_retention: 60 seconds
    max_malformed: 2
"""
ORDERS = """
  orders:
    read: stream
    key: {item: string}
    value: {n: int}
"""
BILLS = """
views:
  bills:
    stream: orders
    join: {table: prices}
    select: {amount: n * price}
"""
STORY = ((0, 130), (130, 40), (170, 0))
"""Which records each run brings of either topic: the first two take three chunks of 50 or one, the last brings none."""
EVERY = [
    f"{when} committing to {place}"
    for place in (
        *(f"logs/prices in run {n}" for n in (1, 2, 3)),
        *(f"logs/orders in run {n}" for n in (2, 3)),
        *(f"logs/{name} in run 4" for name in ("prices", "orders")),
    )
    for when in ("before", "after")
]
"""The boundaries of the story's commits to logs."""
SOME = [EVERY[place] for place in (0, 3)]


def brought(first: int, count: int) -> list[Any]:
    """Prices, with late ones, expired ones, tombstones and one that is malformed."""
    told: list[Any] = []
    for n in range(first, first + count):
        late = 100 if n % 17 == 3 else 5 if n % 7 == 1 else 0
        value = b"{" if n == first + 33 else None if n % 23 == 5 else {"price": n, "n": n}
        told.append((f"item{n % 9}", value, max(n - late, 0)))
    return told


def tell(p: Pipeline, first: int, count: int) -> None:
    p.send("prices", *brought(first, count))
    if "orders" in p.contract.topics:
        p.send("orders", *((key, value, at) for key, value, at in brought(first, count // 2) if value != b"{"))


@contextmanager
def chunked(spark: SparkSession, broker: str, folder: Path, chunk: int, text: str) -> Iterator[Pipeline]:
    with pipeline(spark, broker, folder, text, partitions=2) as p, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HINDCAST_CHUNK", str(chunk))
        yield p


def told(p: Pipeline) -> dict[str, Any]:
    """What all tables say, with the place of a run among the runs in place of its number."""
    places = {run.number: n for n, run in enumerate(journal.read_runs(p.warehouse, p.name), 1)}
    histories = {
        name: sorted(((*row[:-2], *map(places.get, row[-2:])) for row in p.history(name)), key=str)
        for name in (*p.contract.topics, *p.contract.views)
    }
    logs = {
        f"log of {name}": sorted(
            (row["partition"], row["offset"], row["fate"], places[row["run"]], str(row["streamTime"]))
            for row in p.raw(f"logs/{name}")
        )
        for name in p.contract.topics
    }
    refused = sorted((row["partition"], row["offset"], row["fate"], places[row["run"]]) for row in p.raw("quarantine"))
    reports = [run.detail["topics"] for run in journal.read_completed_runs(p.warehouse, p.name)]
    for topic in (topic for report in reports for topic in report.values()):
        topic["topic"] = topic["topic"].split(".")[1]
    return {**histories, **logs, "refused": refused, "reports": reports}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "story", "crashing", "kept"),
    [
        (PRICES, STORY[:1], SOME, ingest_commits.MAX_KEPT_BYTES),
        (PRICES, STORY[:1], [], 0),
        pytest.param(PRICES + ORDERS + BILLS, STORY, EVERY, ingest_commits.MAX_KEPT_BYTES, marks=pytest.mark.long),
    ],
    ids=["some", "decoded twice", "every"],
)
def test_a_run_in_chunks_that_fails_at_a_commit_tells_what_one_commit_does(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
    text: str,
    story: Sequence[tuple[int, int]],
    crashing: list[str],
    kept: int,
) -> None:
    with chunked(spark, broker, tmp_path / "whole", 10_000, text) as whole:
        for number, (first, count) in enumerate(story, 1):
            tell(whole, first, count)
            whole.run(f"run {number}")
        expected = told(whole)
        assert {fate for _, _, fate, _, _ in expected["log of prices"]} == {"accepted", "expired", "malformed"}
    failed: list[str] = []

    def fail(place: str) -> None:
        if place in crashing and place not in failed:
            failed.append(place)
            raise CrashError(place)

    with chunked(spark, broker, tmp_path / "chunks", 50, text) as p, pytest.MonkeyPatch.context() as patch:
        crashes.watched(fail, patch.setattr)
        patch.setattr(ingest_commits, "MAX_KEPT_BYTES", kept)
        for number, (first, count) in enumerate(story, 1):
            tell(p, first, count)
            while True:
                try:
                    p.run(f"run {number}")
                    break
                except CrashError:
                    pass
        assert told(p) == expected
        assert [number for number, _ in p.states()] == [3, 4, 5][: len(story)]
        assert failed == crashing
        log = tables.log_table(p.warehouse, p.name, "prices")
        assert [
            note.malformed for run, note in commit_history.read_notes(log, LogNote.from_json).items() if run == 3
        ] == [1]


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_a_run_given_up_amid_its_chunks_is_gone_on_with_from_where_the_log_ends(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    text = PRICES.replace("max_malformed: 2", "max_malformed: 1")
    with chunked(spark, broker, tmp_path, 50, text) as p:
        p.send("prices", *brought(0, 100), ("item1", b"[", 100), *brought(101, 20))
        with pytest.raises(RecordError, match="2 of the run's records do not decode, and the limit is 1") as refused:
            p.run("first")
        assert "2 of its 3 chunks are in the log and stay" in refused.value.fix
        assert p.raw("prices") == []
        first = journal.read_active_run(p.warehouse, p.name, 3)
        there = sum(row["offsets"] for row in p.raw("logs/prices"))
        assert there in (80, 81)
        shown = ledger_page.list_run_offsets(p.warehouse, first, "prices")
        assert sum(it.end - it.start for it in shown) == 121
        assert sum(it.end - it.start for it in shown if it.fates) == there
        p.write(text.replace("max_malformed: 1", "max_malformed: 3"))
        planner.abandon_run(p.warehouse, first, "by a test")
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == []
        with pytest.raises(RunError, match="run 3 is abandoned"):
            ingest_commits.ingest_topic(spark, p.contract, first.plan, "prices")  # the process of run 3 is still there
        run_steps.plan_run(read_settings(), p.name, "second")
        second = journal.read_active_run(p.warehouse, p.name, 4).plan
        assert sum(second.topics["prices"].planned_counts.values()) == 121 - there
        p.run("second")
        log = tables.log_table(p.warehouse, p.name, "prices")
        pieces = [(it.partition, it.run, it.start, it.end) for it in ledger.read_ingested_ranges(log)]
        for partition in (0, 1):
            (_, _, start, cut_), (_, _, again, _) = [it for it in pieces if it[0] == partition]
            assert (start, again) == (0, cut_)
        assert (
            len({(row["partition"], row["offset"]) for row in p.raw("logs/prices")}) == 121 == len(p.raw("logs/prices"))
        )
        assert sorted(row["run"] for row in p.raw("quarantine") if row["fate"] == "malformed") == [3, 4]
        Path(Table(p.warehouse, p.name, "runs", "runs").path).rename(tmp_path / "lost")
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [3, 4]
        p.send("prices", ("item1", {"price": 1}, 130))
        run_steps.plan_run(read_settings(), p.name, "third")
        third = journal.read_active_run(p.warehouse, p.name, 5).plan
        assert sum(third.topics["prices"].planned_counts.values()) == 1


MOVED = """
pipeline: moved
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {item: string}
    value: {n: int}
    from: 2026-01-01T00:00:40
"""


@pytest.mark.long
@pytest.mark.parametrize("lost", [True, False])
def test_offsets_before_the_anchor_are_gone_on_with_too(
    spark: SparkSession, broker: str, tmp_path: Path, lost: bool
) -> None:
    with chunked(spark, broker, tmp_path, 20, MOVED) as p, pytest.MonkeyPatch.context() as patch:
        p.send("orders", *((f"item{n}", {"n": n}, n) for n in range(50)))
        p.run("first")
        assert sorted(row["n"] for row in p.raw("orders")) == list(range(40, 50))

        def fail(place: str) -> None:
            if place == "after committing to logs/orders in run 2":
                raise CrashError(place)

        for run_id, moment in (("second", "00:00:10"), ("third", "00:00:00")):
            p.write(MOVED.replace("00:00:40", moment))
            crashes.watched(fail, patch.setattr)
            with pytest.raises(CrashError) if run_id == "second" else nullcontext():
                p.run(run_id)
            patch.undo()
            for run in journal.read_runs(p.warehouse, p.name):
                if not run.is_finished:
                    planner.abandon_run(p.warehouse, run, "by a test")
            if lost and run_id == "second":
                Path(Table(p.warehouse, p.name, "runs", "runs").path).rename(tmp_path / "lost")
                assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [1, 3]
                assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == []
        assert sorted(row["n"] for row in p.raw("orders")) == list(range(10, 50))
        fourth = journal.read_active_run(
            p.warehouse, p.name, run_steps.plan_run(read_settings(), p.name, "fourth")
        ).plan
        assert sum(fourth.topics["orders"].planned_counts.values()) == 10
        assert len(p.raw("logs/orders")) == 40


def test_a_chunk_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HINDCAST_CHUNK", "many")
    with pytest.raises(SettingsError, match="HINDCAST_CHUNK is 'many', not a number of offsets"):
        read_settings()


def test_a_commit_goes_on_from_the_stream_time_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read once for a partition, and again only where a range does not continue the last one."""
    asked: list[dict[int, OffsetRange]] = []

    def read(*given: Any) -> dict[int, int]:
        asked.append(dict(given[-1]))
        return dict.fromkeys(given[-1], 5)

    monkeypatch.setattr(stream_times, "read_stream_times", read)
    reached = stream_times.ReachedOffsets()

    def ingest(latest: dict[int, int], **ranges: OffsetRange) -> dict[int, int]:
        own = {int(name[1:]): offsets for name, offsets in ranges.items()}
        before = reached.read_stream_times(None, None, "", own)  # type: ignore[arg-type]
        reached.advance(own, before, latest)
        return before

    assert ingest({0: 9}, p0=OffsetRange(0, 3), p1=OffsetRange(2, 4)) == {0: 5, 1: 5}
    assert ingest({0: 7}, p0=OffsetRange(3, 6), p1=OffsetRange(4, 6)) == {0: 9, 1: 5}
    assert ingest({}, p0=OffsetRange(6, 7), p1=OffsetRange(7, 8)) == {0: 9, 1: 5}
    assert [[*ranges] for ranges in asked] == [[0, 1], [], [1]]


def test_a_run_in_chunks_reads_its_log_for_stream_time_once(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_CHUNK", "2")
    contract = (
        "pipeline: prices\nstart: 2026-01-01\ntopics:\n  menu: {read: table, key: {item: string}, value: {n: int},"
    )
    with pipeline(spark, broker, tmp_path, f"{contract} history_retention: 3 seconds}}\n") as p:
        p.send("menu", ("a", {"n": 1}, 9))
        p.run("first")
        times = (1, 8, 5, 10, 6, 20, 17, 16)  # 1, 6 and 16 come too late: of the log, of a chunk, of the same one
        p.send("menu", *(("a", {"n": n}, second) for n, second in enumerate(times, 2)))
        reads = []
        latest = stream_times._find_latest_in_files
        monkeypatch.setattr(stream_times, "_find_latest_in_files", lambda *args: reads.append(1) or latest(*args))
        p.run("second")
        log = tables.open_table(tables.log_table(p.warehouse, p.name, "menu"))
        assert log is not None
        fates = sorted((row["offset"], row["fate"]) for row in log.to_pyarrow_table().to_pylist())
        late = [offset for offset, fate in fates if fate == "expired"]
        assert (late, reads, len(fates)) == ([1, 3, 5, 8], [1], 9)


def test_a_chunk_of_which_nothing_is_accepted_comes_before_others(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_CHUNK", "3")
    topic = "{read: table, key: {k: string}, value: {n: int}, max_malformed: 9}"
    text = f"pipeline: x\nstart: 2026-01-01\ntopics: {{t: {topic}}}"
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("t", ("a", {"n": 1}, 0))
        p.run()
        p.send("t", *(("a", b"{", n) for n in range(1, 4)), ("b", {"n": 2}, 4))
        p.run()
        assert [row[:2] for row in p.believed("t")] == [("a", 1), ("b", 2)]
