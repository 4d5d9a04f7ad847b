"""The time machine: what its plane draws, lists of keys, the planes of inputs; that all hide what is hidden."""

from __future__ import annotations

import re
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from fastapi.testclient import TestClient

from hindcast.airflow.pages import drawing, rendering, value_colours
from hindcast.airflow.pages.moment_labels import label_moments
from hindcast.airflow.pages.plane import Crosshair, PlaneSource, _find_free_side, build_plane
from hindcast.common.python_values import list_rows
from hindcast.common.settings import Settings
from hindcast.contract import find
from hindcast.plan import journal
from hindcast.plan.runs import Run
from hindcast.query import key_history, key_lists, near_keys
from hindcast.query.explain_limits import EngineLimitError
from hindcast.store import table_cache, tables
from test_pages import client, plane, twin
from warehouses import ANSWERS_OF_SHOP, RUNS, T0, answer_questions, at, fill, place, plan, shop, version, write

AIR = """
pipeline: air
start: 2026-01-01
topics:
  weather:
    read: table
    key: {airport: string, station: string}
    value: {temp: double, sky: string, note: string}
    sensitive: [note]
"""


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop"), AIR) as found:
        rows = [
            version(1, 2, 0, 5, airport="JFK", station="north", temp=14.960139999999999, sky="fog", note="n1"),
            version(2, None, 0, 5, airport="JFK", station="north", temp=15.0, sky="fog", note="n2"),
            version(1, None, 5, None, airport="JFK", station="north", temp=16.5, sky="rain", note="n3"),
            *(version(1, 2, n, n + 1, airport="Z", station="z", temp=1.0, sky="", note="") for n in range(2)),
            *(version(1, None, 0, None, airport=f"A{n}", station="x", temp=1.0, sky="", note="") for n in range(9)),
            version(2, None, 0, None, airport="B", station="x" * 1_001, temp=1.0, sky="", note=""),
        ]
        fill(found, "air", "weather", [{**it, **place(n)} for n, it in enumerate(rows)])
        yield found


@pytest.fixture
def web() -> TestClient:
    return client("shop", "air")


JFK = {"table": "weather", "key": '{"airport":"JFK","station":"north"}'}


# Labels


def test_a_label_has_whole_numbers_or_none() -> None:
    assert value_colours.fit_label(["12.50", "", None, "rain"], 500) == "12.50 · rain", "nothing for what is empty"
    assert value_colours.fit_label(["12.50", "a long note"], 80) == "12.50 · …"
    assert value_colours.fit_label(["12.50"], 45) == "12.50"
    assert value_colours.fit_label(["19"], 20) == value_colours.fit_label(["12.50"], 44) == "", "19 does not become 1"
    assert value_colours.fit_label([14.960139999999999], 100) == "14.96014"
    assert value_colours.fit_label(["x" * 50], 84) == f"{'x' * 9}…"
    assert value_colours.fit_label([None], 84) == value_colours.fit_label([], 84) == ""


def test_a_low_rectangle_has_no_label() -> None:
    rows = [{"price": 3, "validFrom": T0, "validTo": None, "systemFrom": known, "systemTo": None} for known in RUNS]
    source = PlaneSource("versions", rows, [{"values": {"price": 3}, "systemTo": None} for _ in rows], 2)
    for height, label in ((380.0, "3"), (20.0, "")):
        drawn: Any = build_plane(source, Crosshair(T0, RUNS[1]), height=height)
        assert drawn["rectangles"][1]["label"] == label


@pytest.mark.parametrize("even", [True, False])
def test_labels_of_an_axis_do_not_overlap(even: bool) -> None:
    moments = [at(n) for n in range(38)] + [at(5_000), at(10_000)]
    axis = drawing.build_axis(moments, even=even)
    places = [840 * at_ for at_, _ in axis.knots[1:-1]]
    chosen = drawing.choose_ticks(places, [60.0] * len(places), 10)
    assert all(places[left] + 70 <= places[right] for left, right in pairwise(chosen))
    assert chosen[-1] == len(places) - 1
    assert len(chosen) >= 3
    assert drawing.choose_ticks([], [], 1) == []


def test_what_moments_share_is_said_once() -> None:
    def label(*moments: Any, rounds: bool = False) -> tuple[str, list[str]]:
        common, labels = label_moments(moments, rounds=rounds)
        return common, [labels[moment] for moment in moments]

    assert label(T0, at(63)) == ("2026-01-01", ["00:00", "01:03"])
    assert label(T0, at(60 * 24 + 63)) == ("2026", ["1 Jan", "2 Jan 01:03"])
    assert label(T0, T0 - timedelta(days=1)) == ("", ["2026-01-01", "2025-12-31"])
    assert label(*RUNS) == ("2026", ["1 Feb 00:00:00.123456", "2 Feb 00:00:00.654321"])
    assert label(*RUNS, rounds=True) == ("2026", ["1 Feb", "2 Feb"])
    second = RUNS[0] + timedelta(seconds=1)
    assert label(RUNS[0], second, rounds=True) == ("2026-02-01", ["00:00", "00:00:01"]), "they differ"


# Colours


def test_rectangles_have_the_colour_of_their_value(web: TestClient) -> None:
    drawn = twin(web, "/machine/air", **JFK)["plane"]
    assert [it["colour"] for it in drawn["rectangles"]] == ["n0", "n0", "n4"]
    assert (drawn["colours"]["column"], drawn["colours"]["legend"][0]) == ("temp", ["n0", "14.96014"])
    assert drawn["colours"]["legend"][-1] == ["n4", "16.5"]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([1, 3, 2, None], ["n0", "n4", "n2", ""]),
        ([Decimal("2.50"), Decimal("3.00")], ["n0", "n4"]),
        ([1e308, -1e308, float("nan")], ["", "", ""]),
        ([5e-324, 0.0], ["n4", "n0"]),
        (["rain", "fog", "rain", None], ["c1", "c0", "c1", ""]),
        ([True, False], ["c1", "c0"]),
        ([*"abcdefg"], [""] * 7),
        ([10**400, 1], ["", ""]),
        ([2, 2], ["", ""]),
    ],
)
def test_numbers_have_shades_and_few_other_values_hues(values: list[Any], classes: list[str]) -> None:
    colouring = value_colours.colour_rows([{"x": value} for value in values], ["x"])
    assert colouring.classes == classes


def test_what_is_hidden_gives_no_colour() -> None:
    rows = [version(1, None, n, n + 1, temp=n, sky=str(n)) for n in range(3)]
    for hidden, colours in (
        (frozenset[str](), {"n0", "n2", "n4"}),
        ({"temp", "sky"}, {""}),
        ({"temp"}, {"c0", "c1", "c2"}),
    ):
        source = PlaneSource("versions", rows, [{"values": {}, "systemTo": None}] * 3, 3, hidden=hidden)
        drawn: Any = build_plane(source, Crosshair(T0, RUNS[1]))
        assert {it["colour"] for it in drawn["rectangles"]} == colours


# Cursors and differences


def test_cursors_say_where_they_are(web: TestClient) -> None:
    told = plane(web, "prices", "naan", comparedWith="run:1", asOf=at(1).isoformat())["plane"]
    assert told["flags"] == ["00:01", "run 2 · 2 Feb", "run 1 · 1 Feb"]
    assert (told["across"]["common"], told["up"]["common"]) == ("2026-01-01", "2026")
    assert [tick["label"] for tick in told["up"]["ticks"]] == ["run 1 · 1 Feb", "run 2 · 2 Feb"]
    assert told["up"]["knots"][1][3] == "run:1"
    assert plane(web, "prices", "naan", knownAt="2026-02-01T12:00")["plane"]["flags"][1] == "1 Feb 12:00"


def test_what_differs_is_shaded_in_the_plane(web: TestClient) -> None:
    for known, other in (("run:1", "run:2"), ("run:2", "run:1")):
        told = plane(web, "prices", "naan", knownAt=known, comparedWith=other)["plane"]
        assert [it["side"] for it in told["rectangles"]] == ["lost", "gained", "gained"]
        assert {it["colour"] for it in told["rectangles"]} == {""}
    shown = web.get("/machine/shop", params={"table": "prices", "key": "naan", "comparedWith": "run:1"}).text
    assert (shown.count('<rect class="gained"'), shown.count('<rect class="lost"')) == (2, 1)


def test_the_answer_and_its_rectangle_have_one_number(web: TestClient) -> None:
    told = plane(web, "prices", "naan", asOf=at(5).isoformat(), knownAt="run:1")
    assert [it["number"] for it in told["answer"]["rows"]] == [0]
    shown = web.get("/machine/shop", params={"table": "prices", "key": "naan", "knownAt": "run:1"}).text
    assert shown.count('data-row="0"') == 3, "the rectangle, the card and the row of the table"
    assert shown.count('data-row="1"') == 2


def test_a_short_version_can_be_seen() -> None:
    rows = [version(1, None, start, end, x=1) for start, end in ((0, 0.001), (0.001, 100_000), (100_000, None))]
    source = PlaneSource(
        "versions", rows, [{"values": {"x": 1}, "systemFrom": T0.isoformat(), "systemTo": None}] * 3, 3
    )
    drawn = build_plane(source, Crosshair(T0, RUNS[1]), even=False)
    template = rendering.load_templates().from_string(
        '{% from "plane.html" import rectangles %}{{ rectangles(plane) }}'
    )
    widths = re.findall(r'<svg [^>]*width="([\d.]+)"', template.render(plane=drawn))
    assert min(map(float, widths)) == 4


def test_a_page_of_300_rectangles_is_small(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        many = [version(1, None, n, n + 1, item="busy", price=n % 7, note="", **place(n)) for n in range(400)]
        write(settings, find(settings.schemas, "shop"), "prices", many)
        page = client("shop").get("/machine/shop", params={"table": "prices", "key": "busy"}).text
    assert page.count("<rect ") > 300
    assert len(page.partition('id="rectangles"')[0]) < 160_000


# Tables


def test_numbers_are_on_the_right_without_noise(web: TestClient) -> None:
    shown = web.get("/machine/air", params=JFK).text
    assert '<td class="value number" data-label="temp">14.96014</td>' in shown
    assert '<th scope="col" class="number">temp</th>' in shown
    assert '<td class="value" data-label="sky">fog</td>' in shown
    assert "14.960139999999999" not in re.sub(r'title="[^"]*"', "", shown)


def test_floats_that_differ_in_their_last_digits_are_shown_whole() -> None:
    cell = {"name": "temp", "before": 0.1 + 0.2, "after": 0.3, "differs": True}
    line = {"cells": [cell], "values": {}, "change": "changed", "corrected": False, "records": []}
    source = '{% from "change_lines.html" import line_table %}{{ line_table(lines, []) }}'
    told = rendering.load_templates().from_string(source).render(lines=[line])
    assert re.findall(r"<(?:del|ins)>(.*?)</", told) == ["0.30000000000000004", "0.3"]
    cell["after"] = 14.960139999999999
    told = rendering.load_templates().from_string(source).render(lines=[line])
    assert re.findall(r"<(?:del|ins)>(.*?)</", told) == ["0.3", "14.96014"]


def test_the_system_time_is_last_and_short(web: TestClient) -> None:
    shown = web.get("/machine/shop", params={"table": "prices", "key": "naan"}).text
    table = shown[shown.index('id="rectangles"') :]
    names = re.findall(r'<th scope="col"[^>]*>([\w ]+)</th>', table)
    assert names[-3:] == ["Record of the row", "systemFrom", "systemTo"]
    assert 'title="2026-02-01 00:00:00.123456 UTC">run 1 · 2026-02-01 00:00</time>' in table


def test_the_moments_of_a_column_have_one_form_and_what_is_not_there_is_null() -> None:
    rows = [
        {"values": {"note": None}, "validFrom": f"2026-01-01T{clock}+00:00", "validTo": f"2026-01-0{n}T00:00:00+00:00"}
        for n, clock in enumerate(("00:00:00", "00:04:00", "00:05:01"), 2)
    ]
    missing = {"records": [], "systemFrom": None, "systemTo": None, "openedBy": None, "closedBy": None}
    source = '{% from "rows.html" import table_of %}{{ table_of(rows) }}'
    told = rendering.load_templates().from_string(source).render(rows=[{**row, **missing} for row in rows])
    clocks = ("2026-01-01 00:00:00", "2026-01-01 00:04:00", "2026-01-01 00:05:01")
    days = ("2026-01-02", "2026-01-03", "2026-01-04")
    shown = re.findall(">([^<]+)</time>", told)
    assert (shown[::2], shown[1::2]) == ([*clocks], [*days])
    assert '<td class="value" data-label="note">null</td>' in told


def test_a_moment_of_the_address_is_short_also_where_there_is_no_answer(web: TestClient) -> None:
    asked = {"table": "prices", "key": "nothing", "asOf": "2026-01-01T00:02:00.000000Z"}
    assert '<input name="asOf" value="2026-01-01 00:02"' in web.get("/machine/shop", params=asked).text


# Keys


def test_a_table_begins_with_keys_to_look_at(web: TestClient) -> None:
    keys = twin(web, "/machine/air", table="weather")["keys"]
    assert (keys["total"], keys["run"], keys["changedTotal"]) == (11, 2, 2), "a key too long for a page is left out"
    assert [it["label"] for it in keys["changed"]] == ["Z · z", "JFK · north"]
    assert [(it["label"], it["corrections"]) for it in keys["corrected"]] == [("Z · z", 2), ("JFK · north", 1)]
    assert [it["label"] for it in keys["first"]] == [f"A{n} · x" for n in range(key_lists.MAX_KEYS)]
    shown = web.get("/machine/air", params={"table": "weather"}).text
    assert "<small>11 keys</small>" in shown
    assert ">JFK · north</a>" in shown
    assert "table=weather&amp;key=%7B%22airport%22%3A+%22JFK%22%2C+%22station%22%3A+%22north%22%7D" in shown
    assert ">JFK · north <small>in air.weather</small></h1>" in web.get("/machine/air", params=JFK).text


def test_keys_are_listed_once_for_each_version(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.locate_table(settings.warehouse, find(settings.schemas, "air"), "weather")
    found = key_lists.read_key_lists(table, RUNS[1])
    monkeypatch.setattr(key_lists, "open_limited_engine", None)
    assert key_lists.read_key_lists(table, RUNS[1]) is found


def test_a_restored_table_shows_nothing_of_a_lost_run(tmp_path: Path) -> None:
    """The run after the restore writes the version of the lost one anew."""
    with shop(tmp_path) as settings:
        contract = find(settings.schemas, "shop")
        table, copy = tables.locate_table(settings.warehouse, contract, "prices"), tmp_path / "copy"
        shutil.copytree(table.path, copy)
        in_store = set[object]()
        for note, item in (("of a lost run", "rice"), ("of the next run", "tea")):
            write(
                settings,
                contract,
                "prices",
                [version(2, None, 9, None, item=item, price=Decimal(4), note=note, **place(9))],
            )
            write(
                settings,
                contract,
                "prices",
                [version(2, None, 8, 9, item="naan", price=Decimal(4), note=note, **place(8))],
            )
            notes = [row["note"] for row in list_rows(key_history.read_history(table, ["naan"]).rows)]
            found = key_lists.read_key_lists(table, RUNS[1])
            assert found is not None
            assert (note in notes, (item,) in [key.values for key in found.first]) == (True, True)
            in_store.add(table_cache.identify_version("s3://warehouse/shop/prices", DeltaTable(table.path)))
            Path(table.path).rename(tmp_path / item)
            shutil.copytree(copy, table.path)
    assert len(in_store) == 2, "an object store has no state of a log"


def test_rows_of_a_run_under_way_are_not_shown(tmp_path: Path) -> None:
    with shop(tmp_path) as settings:
        contract, later = find(settings.schemas, "shop"), RUNS[1] + timedelta(days=1)
        journal.append_entry(settings.warehouse, Run(replace(plan(contract, 2), run=3, run_id="3", known_at=later)))
        new = version(2, None, 9, None, item="naan", price=Decimal(9), note="half", **place(9))
        rows = [{**new, "systemFrom": later}, {**new, "systemFrom": later, "item": "new"}]
        write(settings, contract, "prices", rows)
        table = tables.locate_table(settings.warehouse, contract, "prices")
        closed = DeltaTable(table.path)
        closed.update({"systemTo": f"'{later.isoformat()}'"}, predicate="price = 2.5")
        web = client("shop")
        shown = [it["values"]["note"] for it in plane(web, "prices", "naan")["plane"]["rectangles"]]
        assert shown == ["", "", "late"]
        assert plane(web, "prices", "naan")["plane"]["rectangles"][-1]["systemTo"] is None
        assert "new" not in twin(web, "/keys/shop", table="prices", beginning="n")["keys"]
        assert web.get("/machine/shop.json", params={"table": "prices", "key": "new"}).status_code == 404
        assert "new" not in str(near_keys.find_near_keys(table, "nee", RUNS[1]))


def test_a_table_whose_keys_take_long_is_shown_without_them(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def take_long(*_: object, **__: object) -> None:
        asked.append("once")
        raise EngineLimitError("this took long")

    monkeypatch.setattr(key_lists, "_CACHE", OrderedDict())
    monkeypatch.setattr(key_lists, "open_limited_engine", take_long)
    for _ in range(2):
        page = twin(web, "/machine/air", table="weather")
        assert (page["keys"], page["sample"]["total"]) == (None, 11)
    assert asked == ["once"]


def test_no_list_has_a_hidden_key(web: TestClient) -> None:
    answer = web.get("/machine/shop", params={"table": "secrets"})
    assert (answer.status_code, "s1" in answer.text) == (400, False)


# Inputs


def test_the_inputs_of_a_joined_row_are_planes_on_one_axis(web: TestClient) -> None:
    orders, prices = plane(web, "bills", "dave")["inputPlanes"]
    assert (orders["name"], orders["label"], prices["name"], prices["label"]) == ("orders", "dave", "prices", "naan")
    assert orders["plane"]["across"]["knots"] == prices["plane"]["across"]["knots"]
    assert orders["plane"]["asOf"] == prices["plane"]["asOf"] == orders["plane"]["rectangles"][0]["x"]
    assert [it["label"] for it in prices["plane"]["rectangles"]] == ["3.00", "3.00", "2.50 · late"]
    shown = web.get("/machine/shop", params={"table": "bills", "key": "dave"}).text
    assert shown.count('class="plane still"') == 2
    assert plane(web, "prices", "naan")["inputPlanes"] == []
    assert plane(web, "daily", "dave")["inputPlanes"] == [], "it is no join"


def test_planes_of_inputs_hide_what_is_hidden_and_whose_rows_may_not_be_read(tmp_path: Path) -> None:
    with shop(tmp_path, ANSWERS_OF_SHOP) as settings:
        answer_questions(settings)

        def ask(*readable: str) -> tuple[list[str], str]:
            answer = client(*readable).get("/machine/reader.json", params={"table": "answers", "key": "q1"})
            return [it["name"] for it in answer.json()["inputPlanes"]], answer.text

        names, text = ask("reader", "shop")
        assert (names, "***" in text, "Ann" in text) == (["questions", "folks"], True, False)
        planes = client("reader", "shop").get("/machine/reader.json", params={"table": "answers", "key": "q1"}).json()
        opened = [[it["openedBy"] for it in of["plane"]["rectangles"]] for of in planes["inputPlanes"]]
        assert opened == [[1], [None]], "a run of another pipeline has no number here"
        names, text = ask("reader")
        assert (names, "Ann" in text) == (["questions"], False)


@pytest.mark.parametrize(
    ("places", "at", "side"),
    [([0.1, 0.9], 0.5, -18), ([0.5, 0.53], 0.5, 1), ([0.47, 0.5, 0.53], 0.5, -18), ([], 1.0, 1), ([0.97], 1.0, 1)],
    ids=["free", "a run above", "runs on both sides", "at the top", "at the top, a run below"],
)
def test_the_flag_of_a_cursor_covers_no_line_of_another_run(places: list[float], at: float, side: float) -> None:
    moments = {place: RUNS[0] + timedelta(hours=n) for n, place in enumerate([*places, at])}
    knots = [(0.0, T0), *((place, moments[place]) for place in sorted(moments)), (1.0, T0)]
    axis = Mock(place=lambda _: at, knots=knots)
    assert _find_free_side(axis, moments[at], 380) == side
