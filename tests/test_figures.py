"""The figures of a period: exact sums of what is known at two moments, and of what runs have done between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest

from hindcast.cli.main import main
from hindcast.common.settings import Settings
from hindcast.contract import Contract, load
from hindcast.plan import closes
from hindcast.plan.closes import Close
from hindcast.query import figures
from hindcast.query.changes import ChangeQuestion
from hindcast.query.figures import Measure
from warehouses import RUNS, T0, at, fill, place, row, shop

TILL = """
pipeline: till
start: 2026-01-01
topics:
  sales:
    read: stream
    key: {id: string}
    value: {n: int, big: bigint, small: "decimal(8,2)", fine: "decimal(38,18)", wide: "decimal(38,0)", x: double}
"""
NINES, FINE = Decimal("9" * 38), Decimal("98765432109.123456789012345678")


def sale(since: int, until: int | None, offset: int, **values: Any) -> dict[str, Any]:
    fields = {"n": 1, "big": 2**62, "small": Decimal("1.10"), "fine": FINE, "wide": NINES, "x": 0.1, **values}
    return row(since, until, id=f"s{offset}", **fields, timestamp=at(1), **place(offset))


ROWS = [
    sale(1, 2, 0, x=1e17, n=5),
    sale(2, None, 0, x=5.0, n=-7, fine=FINE.copy_negate()),
    *(sale(1, None, n) for n in range(1, 5)),
    sale(1, 2, 6, x=0.3),
    sale(2, None, 6, x=0.3, wide=NINES.copy_negate()),
    sale(2, None, 7, x=None, wide=None, small=None),
]


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop"), TILL) as found:
        fill(found, "till", "sales", ROWS)
        closes.add_close(found.warehouse, "till", Close("Q1", T0, at(60), RUNS[0], RUNS[1], "eva"))
        yield found


@pytest.fixture
def contract(settings: Settings) -> Contract:
    return load(settings.schemas / "till.yaml")


def add(column: str, rows: list[dict[str, Any]]) -> Any:
    with localcontext(prec=100):
        return sum(it[column] for it in rows if it[column] is not None)


def test_sums_are_exact_also_beyond_38_digits(settings: Settings, contract: Contract) -> None:
    asked = ChangeQuestion(*RUNS, period=(T0, at(60)))
    found = figures.sum_figures(settings.warehouse, contract, "sales", asked)
    first, second = RUNS
    then = [it for it in ROWS if it["systemFrom"] == first]
    now = [it for it in ROWS if it["systemTo"] is None]
    opened, closed = [it for it in now if it["systemFrom"] == second], [it for it in then if it["systemTo"] is not None]
    assert (found.earlier[Measure(figures.ROWS, None)], found.later[Measure(figures.ROWS, None)]) == (
        len(then),
        len(now),
    )
    assert found.steps[second][Measure(figures.ROWS, None)] == 1
    for column in ("n", "big", "small", "fine", "wide"):
        step = [
            *opened,
            *(
                {**it, column: it[column] and (it[column] * -1 if column in ("n", "big") else it[column].copy_negate())}
                for it in closed
            ),
        ]
        sums = (
            found.earlier[Measure(column, None)],
            found.steps[second][Measure(column, None)],
            found.later[Measure(column, None)],
        )
        assert sums == (add(column, then), add(column, step), add(column, now)), column
        assert {type(it) for it in sums} == {int if column in ("n", "big") else type(sums[0])}


def test_what_is_known_now_is_no_difference_of_large_doubles(settings: Settings, contract: Contract) -> None:
    asked = ChangeQuestion(*RUNS, period=(T0, at(60)))
    found = figures.sum_figures(settings.warehouse, contract, "sales", asked)
    assert found.earlier[Measure("x", None)] == pytest.approx(1e17)
    assert found.later[Measure("x", None)] == pytest.approx(5.7)
    assert found.steps[RUNS[1]][Measure("x", None)] == pytest.approx(-1e17)


def test_the_command_shows_all_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["restate", "till", "Q1"]) == 0
    lines = {line.split()[1]: line.split()[2:] for line in capsys.readouterr().out.splitlines() if "sales" in line}
    with localcontext(prec=100):
        # Of six one was corrected to minus, and another came.
        assert lines["fine"] == [str(6 * FINE), str(-FINE), str(5 * FINE)]
        assert lines["wide"] == [str(6 * NINES), str(-2 * NINES), str(4 * NINES)]


@pytest.mark.parametrize(
    ("then", "now", "sums"),
    [
        ([1e308, 1e308, -1e308], [1e308, 1e308, -1e308, 1.0], (1e308, 1e308)),
        ([1e308], [1e308, 1e308, 1.7e308], (1e308, math.inf)),
        ([-1e308, -1e308], [5.0], (-math.inf, 5.0)),
        ([math.inf, 1.0], [math.inf, 1.0, 1e308, 1e308], (math.inf, math.inf)),
    ],
)
def test_a_sum_of_doubles_may_be_too_large_on_the_way(
    tmp_path: Path, then: list[float], now: list[float], sums: tuple[float, float]
) -> None:
    with shop(tmp_path, TILL) as settings:
        sides = [(1, 2, number) for number in then] + [(2, None, number) for number in now]
        sales = [sale(since, until, n, x=number) for n, (since, until, number) in enumerate(sides)]
        fill(settings, "till", "sales", sales)
        asked = ChangeQuestion(*RUNS, period=(T0, at(60)))
        contract = load(settings.schemas / "till.yaml")
        found = figures.sum_figures(settings.warehouse, contract, "sales", asked)
        assert (found.earlier[Measure("x", None)], found.later[Measure("x", None)]) == sums
