"""`make bench`: no time counts whose result differs, and the table of goals says of the results what they are."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from bench.speed import data, goals, plot, quick, small, table
from bench.speed.engines import by_duckdb
from bench.speed.goals import Goal
from bench.speed.measuring import Contestant, Measured, Operation, measure
from bench.speed.names import OURS

ROOT = Path(__file__).resolve().parent.parent
SQL = "SELECT * FROM (VALUES {}) AS rows(k, v)"


def contestant(name: str, rows: str) -> Contestant:
    return Contestant(name, by_duckdb(SQL.format(rows)))


@pytest.mark.long
@pytest.mark.ci
def test_a_time_counts_only_beside_the_same_rows_in_any_order(tmp_path: Path) -> None:
    contestants = [
        contestant(OURS, "(1, 'a'), (2, 'b'), (2, 'b')"),
        contestant("other order", "(2, 'b'), (1, 'a'), (2, 'b')"),
        contestant("a row less", "(1, 'a'), (2, 'b')"),
        contestant("another row twice", "(1, 'a'), (1, 'a'), (2, 'b')"),
        contestant("another value", "(1, 'a'), (2, 'b'), (2, NULL)"),
        Contestant("fails", lambda output: output.read_text()),
    ]
    operation = Operation("a", "few", "rows", ["k", "v"], contestants, {"absent": "not to be had"})
    found = {it.peer: it for it in measure(operation, 3, tmp_path, say=lambda _: None)}
    assert {peer: len(it.seconds) for peer, it in found.items() if it.seconds} == {OURS: 3, "other order": 3}
    why = {peer: (it.why or "").partition(":")[0] for peer, it in found.items() if not it.seconds}
    different = dict.fromkeys(("a row less", "another row twice", "another value"), "another result")
    assert why == different | {"fails": "failed", "absent": "not to be had"}
    assert found["a row less"].why == "another result: 2 rows instead of 3"


def rows(*measured: Measured, asked: tuple[Goal, ...] = goals.GOALS) -> dict[str, table.Row]:
    return {row["peer"]: row for row in table.rows(measured, "few", "2026-01-01", asked)}


def test_a_ratio_is_of_medians_for_as_much_input() -> None:
    told = rows(
        Measured("a", "uniform", OURS, [9, 2, 3]),
        Measured("a", "uniform", "whole", [6, 7, 1]),
        Measured("a", "uniform", "part", [6], share=0.1),
        Measured("a", "uniform", "absent", why="not to be had"),
    )
    assert {peer: row["ratio"] for peer, row in told.items()} == {OURS: 1, "whole": 0.5, "part": 0.05, "absent": None}
    assert (told[OURS]["seconds"], told[OURS]["range"]) == (3, [2, 9])
    assert told["absent"]["why"] == "not to be had"


@pytest.mark.parametrize(("ours", "met"), [(5, False), (3, True), (None, None)])
def test_a_goal_is_met_not_met_or_not_measured(ours: int | None, met: bool | None) -> None:
    asked = Goal("x", "all", "peer", 0.6), Goal("x", "all", OURS, 4)
    told = table.rows(
        [Measured("x", "all", OURS, [ours] if ours else []), Measured("x", "all", "peer", [5])], "few", "now", asked
    )
    assert [row["met"] for row in told] == [met, met]
    how = {True: "met", False: "NOT MET", None: "not measured"}[met]
    assert [line for line in table.told(told, asked) if line.endswith(f"  {how}")] == table.told(told, asked)[-2:]


def test_one_hot_key_is_compared_with_uniform_ones_of_the_same_run() -> None:
    name = goals.ACROSS["b", "hot"][2]
    told = rows(Measured("a", "uniform", OURS, [4]), Measured("b", "hot", OURS, [7]))
    assert (told[name]["ratio"], told[name]["met"]) == (1.75, False)
    assert name not in rows(Measured("b", "hot", OURS, [7]))


def test_what_is_measured_again_takes_the_place_of_what_was() -> None:
    old = table.rows([Measured("a", "zipf", OURS, [4]), Measured("a", "zipf", "gone", [5])], "few", "before")
    old += table.rows([Measured("a", "uniform", OURS, [3])], "few", "before")
    new = table.rows([Measured("a", "zipf", OURS, [2])], "few", "now")
    merged = [(row["data"], row["peer"], row["seconds"]) for row in table.merged(old, new)]
    assert merged == [("uniform", OURS, 3), ("zipf", OURS, 2)]


@pytest.mark.parametrize(
    ("before", "now", "times"),
    [([1, 2, 3], [3, 4, 5], None), ([1, 2, 3], [4, 4, 5], 2), ([4, 5, 6], [1, 2, 3], 0.4)],
)
def test_a_slow_down_is_told_where_ranges_do_not_meet(before: list[int], now: list[int], times: float | None) -> None:
    assert quick.changed(before, now) == times
    told = quick.told({"a": before}, {"a": now, "new": [1]})
    how = "as before" if times is None else "SLOWER: 2.00 times" if times > 1 else "faster: 0.40 times"
    assert told[1].endswith(how)
    assert told[2].endswith("new")


def test_the_picture_has_a_bar_for_each_peer_that_was_measured() -> None:
    told = table.rows(
        [
            Measured("a", "uniform", OURS, [4, 8]),
            Measured("a", "uniform", "a < b", [2], share=0.5),
            Measured("a", "uniform", "absent", why="not to be had"),
        ],
        "few",
        "now",
    )
    drawn = ET.fromstring(plot.svg(told))  # noqa: S314  # our own
    bars = [float(it.attrib["width"]) for it in drawn.iter("{http://www.w3.org/2000/svg}rect") if "y" in it.attrib]
    assert bars[0] / bars[1] == pytest.approx(4 / 6), "4 s, of half the input, beside a median of 6"
    texts = [it.text for it in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [label for label in ("0", "2 s", "8 s") if label not in texts] == [], "an axis of seconds"


def test_the_picture_has_the_colours_of_the_pages_and_is_the_one_of_the_stored_results() -> None:
    stored = json.loads((ROOT / "bench" / "results" / "speed.json").read_text(encoding="utf-8"))
    drawn = plot.svg(stored)
    assert drawn == (ROOT / "docs" / "pictures" / "speed.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in drawn
    without_palette = re.sub(r"<style>.*?</style>", "", drawn, flags=re.DOTALL)
    assert re.findall(r"#[0-9a-f]{3,8}", without_palette) == []


def test_keys_come_as_often_as_their_kind_says() -> None:
    drawn = {kind: Counter(data.keys(np.random.default_rng(1), kind, 100_000, 100).tolist()) for kind in data.KINDS}
    most = {kind: round(counts.most_common(1)[0][1] / 100_000, 2) for kind, counts in drawn.items()}
    assert most == {
        "uniform": 0.01,
        "zipf": 0.19,
        "hot": 0.11,
    }  # of Zipf's law 1 by the sum of 1/k; a tenth and its own
    assert all(counts.keys() == set(range(100)) for counts in drawn.values())


def test_records_are_the_same_each_time_and_one_in_a_hundred_is_late() -> None:
    sizes = data.Sizes(events=20_000, versions=5_000, keys=50)
    one, again = (data.records(sizes, "uniform", "events") for _ in range(2))
    assert one.equals(again)
    times = np.asarray(one["timestamp"].cast("int64"))
    late = times[1:] < np.maximum.accumulate(times)[:-1]
    assert 0.008 < late.mean() < 0.012
    assert 0.005 < data.records(sizes, "uniform", "prices")["price"].null_count / 5_000 < 0.015


def test_every_goal_is_of_an_operation_that_has_a_title() -> None:
    assert {goal.operation for goal in goals.GOALS} == set(plot.TITLES)
    assert re.fullmatch(r"at most 0\.6x .*", goals.GOALS[0].text)


def test_what_spark_submit_is_given_is_there() -> None:
    assert small.REPLAY_SCRIPT.is_file()
