"""The page of closes: which figures of a closed period were restated, drawn as waterfalls."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from fastapi.testclient import TestClient

from hindcast.airflow.pages import changes_page
from hindcast.cli.main import main
from hindcast.common.json_values import list_objects
from hindcast.common.settings import Settings
from hindcast.contract import find
from hindcast.plan import closes
from hindcast.plan.closes import Close
from hindcast.query.restatements import Figure, Restatement
from hindcast.report import restatement_page, waterfalls
from test_pages import Text, client, text, twin
from warehouses import RUNS, T0, at, fill, place, row, shop

TILL = """
pipeline: till
start: 2026-01-01
topics:
  sales:
    read: stream
    key: {id: string}
    value: {quantity: int, price: "decimal(8,2)", rows: int}
    sensitive: [price, rows]
"""
SALES = [
    row(1, id="a", quantity=2000, price=Decimal(9), rows=9, timestamp=at(1), **place(0)),
    row(1, 2, id="b", quantity=10, price=Decimal(9), rows=9, timestamp=at(2), **place(1)),
    row(2, id="b", quantity=7, price=Decimal(8), rows=8, timestamp=at(2), **place(1)),
    row(2, id="c", quantity=1, price=Decimal(1), rows=1, timestamp=at(90), **place(2)),
]


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop"), TILL) as found:
        fill(found, "till", "sales", SALES)
        kept = Close("2026-Q1", T0, at(60), RUNS[0], RUNS[1], "<b>eva</b>")
        for pipeline in ("shop", "till"):
            closes.add_close(found.warehouse, pipeline, kept)
        closes.add_close(found.warehouse, "shop", replace(kept, name="dropped"))
        closes.drop_close(found.warehouse, "shop", "dropped", "ann", "a mistake")
        yield found


@pytest.fixture
def web() -> TestClient:
    return client("shop", "till")


def test_the_latest_close_is_shown_with_each_figure_that_changed(web: TestClient) -> None:
    found = twin(web, "/closes/shop")
    assert [close["name"] for close in found["closes"]] == ["2026-Q1"]
    figures = {(it["table"], it["name"]): it for it in found["figures"]}
    assert {
        place: (it["closed"], it["differences"], it["now"], it["waterfall"] is None) for place, it in figures.items()
    } == {
        ("prices", "changed periods"): (None, {"records": "+1"}, None, True),
        ("bills", "amount"): ("6.00", {"records": "-1.00"}, "5.00", False),
    }
    assert [(bar["kind"], bar["name"], bar["value"]) for bar in figures["bills", "amount"]["waterfall"]["bars"]] == [
        ("total", "as closed", 6),
        ("less", "later records", -1),
        ("total", "now", 5),
    ]
    page = text(web, "/closes/shop")
    assert "2 figures of shop changed since." in page
    assert "amount of bills 6.00 as closed -1.00 later records 5.00 now" in page
    assert "changed periods of prices 1 by later records" in page
    assert "dropped" not in page


def test_a_table_leads_to_the_rows_that_changed(web: TestClient) -> None:
    (link,) = re.findall(r'href="(/changes/shop[?]table=bills[^"]*)"', web.get("/closes/shop").text)
    assert "6.00 → 5.00" in str(Text(web.get(html.unescape(link)).text))


def test_sums_of_sensitive_columns_are_not_shown(web: TestClient) -> None:
    assert [(it["name"], it["closed"], it["now"]) for it in twin(web, "/closes/till")["figures"]] == [
        ("quantity", "2,010", "2,007")
    ]
    assert "2 figures of sensitive columns are not shown." in text(web, "/closes/till")


def test_as_it_was_closed_nothing_has_changed(web: TestClient) -> None:
    assert "Nothing changed since, in 9 tables." in text(web, "/closes/shop", knownAt="run:1")
    assert "Nothing changed since" in text(web, "/closes/shop", close="close:2026-Q1", knownAt="close:2026-Q1")


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"close": "nope"}, 404, "nope"),
        ({"close": "<script>"}, 404, "<script>"),
        ({"close": "dropped"}, 400, "was dropped"),
        ({"knownAt": "yesterday"}, 400, "yesterday"),
    ],
)
def test_what_cannot_be_answered_is_said_beside_the_form(
    web: TestClient, asked: dict[str, str], status: int, words: str
) -> None:
    found = text(web, "/closes/shop", status, **asked)
    assert words in found
    assert "Closes of shop" in found
    assert "<script>" not in web.get("/closes/shop", params=asked).text
    assert web.get("/closes/shop.json", params=asked).status_code == status


def test_comparing_has_so_many_seconds(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_page, "SECONDS", 0)
    found = text(web, "/closes/shop", 400)
    assert "Comparing the two states took longer than 0 s" in found
    assert "indcast restate shop 2026-Q1 has no limit" in found


def test_a_restatement_is_written_as_a_page_that_loads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "restated.html"
    assert main(["restate", "shop", "2026-Q1", "--page", str(path)]) == 0
    assert "amount" in capsys.readouterr().out
    page = path.read_text(encoding="utf-8")
    assert "amount of bills 6.00 as closed -1.00 later records 5.00 now" in str(Text(page))
    assert "What was restated of 2026-Q1" in str(Text(page))
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", page)
    assert main(["restate", "shop", "2026-Q1", "--page", str(tmp_path / "no" / "x.html")]) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_restatement_is_written_as_a_table_of_its_own(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, asked = tmp_path / "restated", ["restate", "shop", "2026-Q1", "--into"]
    for _ in range(2):
        assert main([*asked, str(folder)]) == 0
    written = DeltaTable(folder)
    rows = written.to_pyarrow_table().to_pylist()
    (amount,) = (row for row in rows if (row["table"], row["figure"], row["cause"]) == ("bills", "amount", "records"))
    assert (amount["close"], amount["knownAt"]) == ("2026-Q1", RUNS[1])
    assert [Decimal(amount[name]) for name in ("closed", "difference", "now")] == [6, -1, 5]
    assert written.version() == 1, "a new version of the same table"
    capsys.readouterr()
    write_deltalake(tmp_path / "other", pa.table({"x": [1]}))
    (tmp_path / "x").write_text("")
    damaged = tmp_path / "damaged"
    write_deltalake(damaged, pa.table({"x": [1]}))
    (damaged / "_delta_log" / f"{0:020}.json").write_text("{")
    odd = {
        str(damaged): "Truncated record whilst reading object\n  what to do: repeat this",
        str(tmp_path / "other"): "it has a table with other columns: x",
        str(tmp_path): "it has files of something else",
        f"{settings.warehouse}/shop/restated": "it is in the warehouse",
        str(tmp_path / "x" / "y"): "cannot be written",
    }
    for other, found in odd.items():
        assert main([*asked, other]) == 1
        assert found in capsys.readouterr().err


def test_a_written_page_has_no_sums_of_sensitive_columns(tmp_path: Path) -> None:
    path = tmp_path / "restated.html"
    assert main(["restate", "till", "2026-Q1", "--page", str(path)]) == 0
    page = str(Text(path.read_text(encoding="utf-8")))
    assert "2 figures of sensitive columns are not shown." in page
    assert "price" not in page


def test_the_group_of_nulls_is_not_taken_for_the_whole_and_a_long_value_is_cut(settings: Settings) -> None:
    close = Close("2026-Q1", T0, at(60), RUNS[0], RUNS[1], "eva")
    groups = ("a", None, "x" * 1_000_000)
    figures = [Figure("sales", "quantity", "quantity", 1, {"records": 2}, 3, group) for group in groups]
    found = Restatement(close, RUNS[1], figures, 1, group_by="id")
    contract = find(settings.schemas, "till")
    described = restatement_page.describe_restatement(settings, contract, found)["figures"]
    names = [str(it["name"]) for it in list_objects(described)]
    assert names[:2] == ["quantity of a", "quantity of null"]
    assert names[2].startswith("quantity of xxx")
    assert len(names[2]) < 2_000


def test_without_a_close_the_page_says_how_to_make_one(web: TestClient, settings: Settings) -> None:
    closes.drop_close(settings.warehouse, "till", "2026-Q1", "ann", "a mistake")
    shown = text(web, "/closes/till")
    assert "A close keeps what was reported of a period, so that you can later ask what has changed since." in shown
    assert "hindcast close till 2026-Q3 --from" in shown


@pytest.mark.parametrize(
    ("first", "steps", "last", "is_cut", "bottoms"),
    [
        (20, [4], 24, False, (44.0, 24.0, 24.0)),
        (2, [4], 6, False, (104.0, 24.0, 24.0)),
        (-1, [2], 1, False, (84.0, 24.0, 24.0)),
        (-1000, [-1], -1001, True, (24.0, 64.0, 24.0)),
        (0, [], 0, False, (144.0, 144.0)),
        (5, [1, -1], 5, False, (44.0, 24.0, 24.0, 44.0)),
    ],
)
def test_waterfalls(first: float, steps: list[float], last: float, bottoms: tuple[float, ...], *, is_cut: bool) -> None:
    """The tops of bars, between 24 and 144 pixels."""
    named = [("step", step) for step in steps]
    found = waterfalls.draw_waterfall(("closed", first), named, ("now", last))
    assert found is not None
    assert (found.is_cut, tuple(round(bar.y, 1) for bar in found.bars)) == (is_cut, bottoms)
    assert all(bar.y >= 24 and bar.y + bar.height <= 145 and bar.height >= 1 for bar in found.bars)
    assert [bar.x for bar in found.bars] == [20 + 104 * n for n in range(len(found.bars))]


@pytest.mark.parametrize("odd", [math.inf, math.nan, 1e308])
def test_numbers_that_are_not_finite_are_not_drawn(odd: float) -> None:
    assert waterfalls.draw_waterfall(("closed", odd), [("step", odd)], ("now", 1)) is None
