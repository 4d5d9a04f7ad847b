"""The aggregate in hopping windows by kernels, slice by slice, beside a loop over events."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from hindcast.bitemporal.intervals import LAST_MICROS
from hindcast.engine import late_events, slice_reader, window_operator
from hindcast.engine.operators import slice_bounds
from hindcast.engine.session_operator import aggregate_sessions
from hindcast.engine.spec import EventSpec, KernelInput, KernelOutput, SessionSpec, SlidingSpec, TimeSlice, WindowSpec
from hindcast.engine.window_operator import aggregate_windows

MOMENT = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MEASURES = {"many": "count", "spent": "sum", "mean": "avg", "least": "min", "most": "max"}
OUTPUT = KernelOutput(
    "",
    "events",
    pa.schema(
        [
            ("k", pa.string()),
            ("many", pa.int64()),
            ("spent", pa.decimal128(18, 2)),
            ("mean", pa.float64()),
            ("least", pa.string()),
            ("most", pa.int32()),
            ("windowStart", MOMENT),
            ("windowEnd", MOMENT),
        ]
    ),
    EPOCH,
)
SIDE = KernelInput("", 0, "events", ("k",), (), None)
Event = tuple[str | None, int, dict[str, Any]]


def _alike(**given: Any) -> dict[str, Any]:
    its = {"side": SIDE, "key": ("k",), "whole": True, "measures": {"many": "count"}, "projection": None, "grace": 0}
    return {**its, "late": late_events.NO_LATE_EVENTS, "output": OUTPUT, **given}


def window_spec(size: int, advance: int, **given: Any) -> WindowSpec:
    """An aggregate in hopping windows that counts, with what is given."""
    return WindowSpec(size=size, advance=advance, **_alike(**given))


def sliding_spec(difference: int, **given: Any) -> SlidingSpec:
    """An aggregate in sliding windows that counts, with what is given; the clock ticks each microsecond."""
    return SlidingSpec(difference=difference, tick=1, **_alike(**given))


def session_spec(gap: int, **given: Any) -> SessionSpec:
    """An aggregate in sessions that counts, with what is given."""
    return SessionSpec(gap=gap, **_alike(**given))


def build_rows(keys: dict[str, list[str | None]], at: int) -> pa.Table:
    """Events at one time that count."""
    count = len(next(iter(keys.values())))
    values = {
        "many": [1] * count,
        "timestamp": pa.array([at] * count, MOMENT),
        "_partition": pa.array([0] * count, pa.int32()),
        "_offset": [*range(count)],
    }
    return pa.table({**{name: pa.array(key, pa.string()) for name, key in keys.items()}, **values})


def draw_events(dice: random.Random, count: int) -> list[Event]:
    """Keys, times in microseconds, some before 1970, and arguments."""

    def draw_values() -> dict[str, Any]:
        if dice.random() < 0.1:
            return dict.fromkeys(MEASURES)
        return {
            "many": dice.choice([1, None]),
            "spent": dice.choice([None, Decimal("-1.50"), Decimal("99999999.99")]),
            "mean": dice.choice([None, 3, -(2**31)]),
            "least": dice.choice([None, "", "ä", "b"]),
            "most": dice.choice([None, 5, -5]),
        }

    return [(dice.choice(["a", "b", None]), dice.randrange(-20, 100), draw_values()) for _ in range(count)]


def draw_slices(dice: random.Random) -> list[TimeSlice]:
    """One to four slices that tile all time."""
    cuts = sorted({EPOCH + timedelta(microseconds=dice.randrange(-5, 90)) for _ in range(dice.randrange(4))})
    return [TimeSlice(*pair) for pair in zip([None, *cuts], [*cuts, None], strict=True)]


def aggregate_one_by_one(
    events: list[Event], size: int, advance: int, late: dict[int, int | None]
) -> tuple[list[Any], list[int]]:
    """The rows of windows, and how many events have no key, no value, and no window."""
    windows, left_out = defaultdict[tuple[str, int], list[dict[str, Any]]](list), [0, 0, 0]
    for number, (key, at, values) in enumerate(events):
        starts = [start for start in range(0, 101, advance) if start <= at < start + size]
        if number in late:
            first = late[number]
            starts = [] if first is None else [start for start in starts if start >= first]
        if key is None or all(value is None for value in values.values()):
            left_out[0 if key is None else 1] += 1
            continue
        left_out[2] += not starts
        for start in starts:
            windows[key, start].append(values)
    rows = []
    for (key, start), members in windows.items():
        own = {name: [values[name] for values in members if values[name] is not None] for name in MEASURES}
        row = {
            "k": key,
            "many": len(own["many"]),
            "spent": sum(own["spent"]) if own["spent"] else None,
            "mean": sum(own["mean"]) / len(own["mean"]) if own["mean"] else None,
            "least": min(own["least"], default=None),
            "most": max(own["most"], default=None),
            "windowStart": EPOCH + timedelta(microseconds=start),
            "windowEnd": EPOCH + timedelta(microseconds=start + size),
        }
        rows.append(row)
    return sorted(rows, key=str), left_out


@pytest.mark.parametrize("seed", range(40))
def test_windows_in_any_slices_are_those_of_a_loop(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311
    events = draw_events(dice, dice.choice([0, 1, 60]))
    advance = dice.choice([1, 4, 10])
    size = advance * dice.choice([1, 1, 3]) + dice.choice([0, 2])
    late: dict[int, int | None] = {}
    for number, (key, at, _) in enumerate(events):
        if key is not None and at >= 0 and dice.random() < 0.3:
            late[number] = dice.choice([None, max(at // advance * advance, 0)])
    rows = pa.table(
        {
            "k": pa.array([key for key, *_ in events], pa.string()),
            "spent": pa.array([values["spent"] for *_, values in events], pa.decimal128(10, 2)),
            **{
                name: pa.array([values[name] for *_, values in events], kind)
                for name, kind in (
                    ("many", pa.int32()),
                    ("mean", pa.int32()),
                    ("least", pa.string()),
                    ("most", pa.int32()),
                )
            },
            "timestamp": pa.array([at for _, at, _ in events], MOMENT),
            "_partition": pa.array([number % 3 for number in range(len(events))], pa.int32()),
            "_offset": pa.array(range(len(events)), pa.int64()),
        }
    )
    table = pa.table(
        {
            "partition": pa.array([number % 3 for number in late], pa.int32()),
            "offset": pa.array([*late], pa.int64()),
            "first": pa.array([*late.values()], pa.int64()),
        }
    )
    form = window_spec(size, advance, late=late_events.sort_by_place(table), measures=MEASURES)
    spans = draw_slices(dice)
    found, left_out, reached = [], [0, 0, 0], dict[int, int]()
    for span in spans:
        since, until = slice_bounds(slice_reader.widen_slice(span, 0, size))
        its = aggregate_windows(
            form, span, rows.filter(pa.array([since <= at < until for _, at, _ in events], pa.bool_()))
        )
        found += its.rows.select(OUTPUT.types.names).to_pylist()
        left_out = [n + own for n, own in zip(left_out, (its.no_key, its.no_value, its.too_late), strict=True)]
        reached |= {p: max(at, reached.get(p, at)) for p, at in (its.reached or {}).items()}
        starts = its.rows.column("windowStart").to_pylist()
        assert starts == sorted(starts)
    expected = aggregate_one_by_one(events, size, advance, late)
    assert (sorted(found, key=str), left_out) == expected
    counted = [
        (n % 3, at) for n, (key, at, values) in enumerate(events) if key and any(v is not None for v in values.values())
    ]
    assert reached == {p: max(at for q, at in counted if q == p) for p, _ in counted}


def test_a_task_whose_events_are_in_too_many_windows_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_operator, "MAX_MEMBERS", 9)
    rows = build_rows({"k": ["a"]}, 20)
    for size, windows in ((10, "10"), (2**62, "21")):
        form = window_spec(size, 1)
        with pytest.raises(OverflowError, match=f"in {windows} windows"):
            aggregate_windows(form, TimeSlice(), rows)
    monkeypatch.setattr(window_operator, "MAX_MEMBERS_HERE", 4)
    with pytest.raises(OverflowError, match="in 5 windows"):
        aggregate_windows(window_spec(5, 1), TimeSlice(), rows, is_here=True)
    many, late = pa.concat_tables([rows] * 100), 2**57
    every = many.set_column(2, "timestamp", pa.array([late] * 100, MOMENT))
    form = window_spec(2**58, 1)
    with pytest.raises(OverflowError, match="windows"):
        aggregate_windows(form, TimeSlice(), every)


def find_late_one_by_one(events: dict[tuple[int, int], tuple[str | None, int]], form: WindowSpec) -> dict[Any, Any]:
    """By partition and offset, the first window that takes a late event, or None."""
    late, reached = {}, dict[int, int]()
    for (partition, offset), (key, at) in sorted(events.items()):
        if key is None:
            continue
        now = reached[partition] = max(at, reached.get(partition, at))
        every = [start for start in range(0, max(at, 0) + 1, form.advance) if start <= at < start + form.size]
        taken = [start for start in every if now < start + form.size + form.grace]
        begun = max(-(-(at - form.size + 1) // form.advance) * form.advance, 0)
        if now >= begun + form.size + form.grace:
            late[partition, offset] = taken[0] if taken else None
    return late


def draw_places(dice: random.Random) -> dict[tuple[int, int], tuple[str | None, int]]:
    """By partition and offset, keys and times that are up to 30 microseconds late."""
    places = [(partition, offset) for partition in range(3) for offset in range(0, 60, dice.choice([1, 3]))]
    times = (max(2 * offset + dice.randrange(-30, 10), -9) for _, offset in places)
    return {place: (dice.choice(["a", "b", "c", None]), at) for place, at in zip(places, times, strict=True)}


def list_rows(events: dict[tuple[int, int], tuple[str | None, int]]) -> pa.Table:
    """The events in the order of their times."""
    mixed = sorted(events.items(), key=lambda event: event[1][1])
    return pa.table(
        {
            "k": pa.array([key for _, (key, _) in mixed], pa.string()),
            "many": [1] * len(mixed),
            "timestamp": pa.array([at for _, (_, at) in mixed], MOMENT),
            "_partition": pa.array([partition for (partition, _), _ in mixed], pa.int32()),
            "_offset": pa.array([offset for (_, offset), _ in mixed], pa.int64()),
        }
    )


def list_late_events(form: EventSpec, rows: pa.Table, cut: datetime) -> pa.Table:
    """Those that the tasks of two slices find."""
    slices = [TimeSlice(None, cut), TimeSlice(cut, None)]
    every = pa.concat_tables([late_events.summarize_blocks(form, span, rows) for span in slices])
    blocks = late_events.find_doubtful_blocks(form, every)
    picked = [late_events.pick_doubtful_events(form, span, rows, blocks) for span in slices]
    doubtful = late_events.sort_by_place(pa.concat_tables(picked))
    latest = pa.concat_tables([late_events.find_latest_before(form, span, rows, doubtful) for span in slices])
    return late_events.judge_doubtful_events(form, doubtful, latest)


@pytest.mark.parametrize("seed", range(30))
def test_late_events_are_those_of_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)  # noqa: S311
    monkeypatch.setattr(late_events, "OFFSETS_PER_BLOCK", 5)
    advance = dice.choice([1, 4, 10])
    size, grace = advance * dice.choice([1, 1, 3]) + dice.choice([0, 2]), dice.choice([0, 3, 20])
    events = draw_places(dice)
    rows = list_rows(events)
    form = window_spec(size, advance, grace=grace)
    cut = EPOCH + timedelta(microseconds=dice.randrange(-5, 90))
    found = list_late_events(form, rows, cut).to_pylist()
    expected = find_late_one_by_one(events, form)
    assert {(row["partition"], row["offset"]): row["first"] for row in found} == expected


def find_sessions_one_by_one(
    events: dict[tuple[int, int], tuple[str | None, int]], gap: int, grace: int
) -> tuple[list[tuple[str, int, int, int]], int]:
    """Key, first and last event and number of events of each session, and how many events are refused."""
    reached: dict[int, int] = {}
    judged: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    taken: dict[str, list[int]] = defaultdict(list)
    refused = 0
    for (partition, _), (key, at) in sorted(events.items()):
        if key is None:
            continue
        reached[partition] = max(at, reached.get(partition, at))
        met = [it for it in judged[key, partition] if it[0] - gap <= at <= it[1] + gap]
        low, high = min([at, *(it[0] for it in met)]), max([at, *(it[1] for it in met)])
        if high < reached[partition] - grace - gap:
            refused += 1
            continue
        judged[key, partition] = [*(it for it in judged[key, partition] if it not in met), (low, high)]
        taken[key].append(at)
    sessions = []
    for key, times in taken.items():
        runs: list[list[int]] = []
        for at in sorted(times):
            if runs and at - runs[-1][-1] <= gap:
                runs[-1].append(at)
            else:
                runs.append([at])
        sessions += [(key, run[0], run[-1], len(run)) for run in runs]
    return sorted(sessions), refused


@pytest.mark.parametrize("seed", range(40))
def test_sessions_are_those_of_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)  # noqa: S311
    monkeypatch.setattr(late_events, "OFFSETS_PER_BLOCK", 5)
    gap, grace = dice.choice([0, 1, 4]), dice.choice([0, 3, 20])
    events = draw_places(dice)
    rows = list_rows(events)
    form = session_spec(gap, grace=grace)
    late = list_late_events(form, rows, EPOCH + timedelta(microseconds=dice.randrange(-5, 90)))
    found = aggregate_sessions(replace(form, late=late), rows.take(dice.sample(range(len(rows)), len(rows))))
    micros = [found.rows.column(name).cast(pa.int64()).to_pylist() for name in ("windowStart", "windowEnd")]
    sessions = zip(found.rows.column("k").to_pylist(), *micros, found.rows.column("many").to_pylist(), strict=True)
    expected, refused = find_sessions_one_by_one(events, gap, grace)
    assert (sorted(sessions), found.too_late) == (expected, refused)
    assert found.no_key == sum(key is None for key, _ in events.values())


def find_sliding_one_by_one(
    events: dict[tuple[int, int], tuple[str | None, int]], difference: int, grace: int
) -> tuple[list[tuple[str, int, int, int]], int]:
    """Key, start, end and number of events of each sliding window, and how many events are refused."""
    reached: dict[int, int] = {}
    taken: dict[str, list[int]] = defaultdict(list)
    refused = 0
    for (partition, _), (key, at) in sorted(events.items()):
        if key is None:
            continue
        reached[partition] = max(at, reached.get(partition, at))
        if at + difference < reached[partition] - grace:
            refused += 1
            continue
        taken[key].append(at)
    found = []
    for key, times in taken.items():
        for start in sorted({max(at - difference, 0) for at in times} | {at + 1 for at in times}):
            count = sum(start <= at <= start + difference for at in times)
            found += [(key, start, start + difference, count)] if count else []
    return sorted(found), refused


@pytest.mark.parametrize("seed", range(40))
def test_sliding_windows_in_any_slices_are_those_of_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)  # noqa: S311
    monkeypatch.setattr(late_events, "OFFSETS_PER_BLOCK", 5)
    difference, grace = dice.choice([0, 1, 4]), dice.choice([0, 3, 20])
    events = draw_places(dice)
    rows = list_rows(events)
    form = sliding_spec(difference, grace=grace)
    spans = draw_slices(dice)
    form = replace(form, late=list_late_events(form, rows, spans[0].end or EPOCH))
    at, found, too_late = rows.column("timestamp").cast(pa.int64()).to_pylist(), [], 0
    for span in spans:
        since, until = slice_bounds(slice_reader.widen_slice(span, *form.reach))
        its = aggregate_windows(form, span, rows.filter(pa.array([since <= t < until for t in at], pa.bool_())))
        micros = [its.rows.column(name).cast(pa.int64()).to_pylist() for name in ("windowStart", "windowEnd")]
        assert micros[0] == sorted(micros[0])
        found += zip(its.rows.column("k").to_pylist(), *micros, its.rows.column("many").to_pylist(), strict=True)
        too_late += its.too_late
    assert (sorted(found), too_late) == find_sliding_one_by_one(events, difference, grace)


def test_of_a_block_only_the_events_that_may_be_late_are_given() -> None:
    rows = build_rows({"k": ["a"] * 4}, 20)
    rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", pa.array([1, 12, 30, 29], MOMENT))
    form = window_spec(10, 10)
    blocks = late_events.find_doubtful_blocks(form, late_events.summarize_blocks(form, TimeSlice(), rows))
    picked = late_events.pick_doubtful_events(form, TimeSlice(), rows, blocks)
    assert (blocks.num_rows, picked.column("at").to_pylist()) == (1, [1, 12, 29])
    latest = late_events.find_latest_before(form, TimeSlice(), rows, late_events.sort_by_place(picked))
    assert latest.sort_by("number").column("latest").to_pylist() == [1, 12, 30]
    late = late_events.judge_doubtful_events(form, late_events.sort_by_place(picked), latest)
    assert (late.column("offset").to_pylist(), late.column("reached").to_pylist()) == ([3], [30])


def test_the_offsets_of_blocks_without_late_events_are_not_given() -> None:
    rows = build_rows({"k": ["a", "a"]}, 20)
    form = window_spec(10, 10)
    blocks = late_events.summarize_blocks(form, TimeSlice(), rows)
    assert (blocks.num_rows, late_events.find_doubtful_blocks(form, blocks).num_rows) == (1, 0)


@pytest.mark.parametrize(("whole", "groups", "left_out"), [(True, 1, 2), (False, 2, 1)])
def test_of_a_group_with_a_null_in_it_the_view_decides(whole: bool, groups: int, left_out: int) -> None:
    rows = build_rows({"k": ["a", None, None], "j": ["b", "b", None]}, 20)
    form = window_spec(10, 10, key=("k", "j"), whole=whole)
    found = aggregate_windows(form, TimeSlice(), rows)
    assert (found.rows.num_rows, found.no_key) == (groups, left_out)


def test_a_window_ends_with_all_time_at_the_latest() -> None:
    week = 7 * 86_400_000_000
    found = aggregate_windows(window_spec(week, week), TimeSlice(), build_rows({"k": ["a"]}, LAST_MICROS)).rows
    periods = [found.column(name).cast(pa.int64()).to_pylist() for name in ("windowStart", "windowEnd")]
    assert periods == [[LAST_MICROS - LAST_MICROS % week], [LAST_MICROS]]


def test_a_slice_at_the_end_of_time_is_read_without_an_end() -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)
    assert slice_reader.widen_slice(TimeSlice(start, end), 0, 3_600_000_000) == TimeSlice(start, None)
    assert slice_reader.widen_slice(TimeSlice(start, start), 0, 1) == TimeSlice(
        start, start + timedelta(microseconds=1)
    )
