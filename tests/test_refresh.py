"""What a change of its inputs makes of a view, whatever the change: the same as deriving it whole (invariant 1).

Hundreds of cases a Spark job: `c` is part of every key and tells the cases apart. HINDCAST_SEED chooses others.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.bitemporal import derivation, incremental_views, plane
from hindcast.bitemporal.affected_periods import ChangedInput
from hindcast.common.session import SMALL_STEP_SETTINGS, override_conf
from hindcast.contract import Contract, list_shapes, load
from hindcast.store.tables import Table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SEED = int(os.environ.get("HINDCAST_SEED", "1"))
T0 = datetime(2026, 1, 1, tzinfo=UTC)
CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {c: int, item: string}, value: {price: int, dish: string}}
  dishes: {read: table, key: {c: int, dish: string}, value: {name: string}}
  stock: {read: table, key: {c: int, product: string}, value: {n: int}}
  orders: {read: stream, key: {c: int, customer: string}, value: {item: string, quantity: int}}
  payments: {read: stream, key: {c: int, customer: string}, value: {paid: int}}
views:
  cheap: {table: menu, where: price < 5, select: {twice: price * 2}}
  renamed: {table: menu, key: {dish: dish, item: item, c: c}, select: {price: price}}
  small: {stream: orders, where: quantity < 5, key: {c: c, item: item}}
  dues: {stream: orders, join: {table: menu, on: [c, item]}, select: {due: quantity * price, item: orders.item}}
  tickets: {stream: orders, join: {table: menu, on: [c, item], how: left}, select: {price: price}, where: quantity > 2}
  stocked: {table: menu, join: {table: stock}, select: {price: price, n: n}}
  maybe: {table: menu, join: {table: stock, how: left}, select: {price: price, n: n}, key: {i: item, c: menu.c}}
  unstocked: {table: menu, join: {table: stock, how: left}, select: {price: price}, where: n IS NULL}
  any: {table: menu, join: {table: stock, how: outer}, select: {price: price, n: n}}
  named: {table: menu, join: {table: dishes, on: [c, dish]}, select: {price: price, name: name}}
  maybe_named: {table: menu, join: {table: dishes, on: [c, dish], how: left}, select: {price: price, name: name}}
  groups: {table: menu, aggregate: {n: count(*), sum: sum(price), most: max(price)}, group_by: {c: c, dish: dish}}
  counted: {table: menu, aggregate: {n: count(*)}, group_by: {c: c}, where: price > 2}
  totals: {stream: orders, aggregate: {n: count(*), sum: sum(quantity)}}
  of_dues: {stream: dues, aggregate: {n: count(*), sum: sum(due)}, group_by: {c: c, item: item}}
  tumbling: {stream: orders, aggregate: {n: count(*)}, group_by: {c: c, i: item}, window: {tumbling: 4 ms, grace: 3 ms}}
  hopping: {stream: orders, aggregate: {n: count(*)}, window: {hopping: 5 ms, advance: 2 ms, grace: 3 ms}}
  sliding: {stream: orders, aggregate: {n: sum(quantity)}, window: {sliding: 4 ms, grace: 2 ms}}
  sessions: {stream: orders, aggregate: {n: count(*)}, window: {session: 2 ms, grace: 2 ms}}
  rows_of_small: {stream: small, aggregate: {n: count(*)}, window: {session: 3 ms, grace: 4 ms}}
  hopping_dues: {stream: dues, aggregate: {n: sum(due)}, window: {hopping: 5 ms, advance: 2 ms, grace: 3 ms}}
  sliding_dues: {stream: dues, aggregate: {n: count(*)}, window: {sliding: 4 ms, grace: 2 ms}}
  session_dues: {stream: dues, aggregate: {n: count(*)}, window: {session: 2 ms, grace: 2 ms}, where: due > 10}
  paid: {stream: orders, join: {stream: payments, before: 2 ms, after: 3 ms}, select: {paid: paid, item: item}}
  maybe_paid: {stream: orders, join: {stream: payments, after: 3 ms, how: left}, select: {paid: paid}}
  all_paid: {stream: orders, join: {stream: payments, before: 4 ms, how: outer}, where: paid IS NULL}
  paid_dues: {stream: dues, join: {stream: payments, before: 1 ms, after: 3 ms, how: outer}, select: {d: due, p: paid}}
"""
VIEWS = [line.split(":")[0].strip() for line in CONTRACT.partition("views:\n")[2].splitlines()]
SAMPLE = ["renamed", "dues", "maybe", "any", "maybe_named", "groups", "totals", "hopping", "session_dues", "all_paid"]
KINDS = {
    "versions": "validFrom timestamp, validTo timestamp",
    "events": "timestamp timestamp, _partition int, _offset bigint",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    path: Path = tmp_path_factory.mktemp("shop") / "shop.yaml"
    path.write_text(CONTRACT.lstrip(), encoding="utf-8")
    return load(path)


@pytest.fixture(autouse=True)
def interpreted(spark: SparkSession) -> Iterator[None]:
    with override_conf(spark, SMALL_STEP_SETTINGS):
        yield


@pytest.mark.long
@pytest.mark.parametrize("view", SAMPLE)
def test_a_changed_view_equals_the_view_of_what_changed(spark: SparkSession, shop: Contract, view: str) -> None:
    wrong = differences(spark, shop, view, SEED, 150)
    assert not wrong, f"HINDCAST_SEED={SEED}, {view}, {len(wrong)} cases; of one:\n{shown(wrong)}"


@pytest.mark.long
@pytest.mark.parametrize("view", VIEWS)
def test_many_changed_views_equal_the_views_of_what_changed(spark: SparkSession, shop: Contract, view: str) -> None:
    wrong = differences(spark, shop, view, SEED + 1, 2_000)
    assert not wrong, f"HINDCAST_SEED={SEED + 1}, {view}, {len(wrong)} cases; of one:\n{shown(wrong)}"


Rows = list[tuple[Any, ...]]
Case = dict[str, Any]


def differences(spark: SparkSession, contract: Contract, view: str, seed: int, count: int) -> dict[int, Case]:
    """Of the cases in which the changed view is not the view of what changed: inputs, and what differs."""
    known, it = list_shapes(contract), contract.views[view]
    table = Table("", "shop", view, known[view].kind, tuple(known[view].key))
    dice = random.Random(f"{seed}/{view}")  # noqa: S311 - cases, not secrets
    drawn = {name: [_MADE[name](dice, case) for case in range(count)] for name in it.inputs}
    columns = {name: f"{_COLUMNS[name]}, {KINDS[known[name].kind]}" for name in it.inputs}
    before, after = (
        {
            name: spark.createDataFrame(
                [row for sides in cases for row in sides[side]], columns[name]
            ).localCheckpoint()
            for name, cases in drawn.items()
        }
        for side in (0, 1)
    )
    was, wanted = (derivation.derive_view(contract, view, inputs) for inputs in (before, after))
    content = [name for name in was.columns if name not in table.identity and not name.startswith("_")]
    sources = {}
    for name in it.inputs:
        source = Table("", "shop", name, known[name].kind, tuple(known[name].key))
        own = [c for c in before[name].columns if c not in source.identity and not c.startswith("_")]
        change = plane.diff_rows(before[name], after[name], source.identity, own)
        sources[name] = ChangedInput(change, lambda _, name=name: after[name])
    found = incremental_views.refresh_view(contract, view, sources, lambda _: was)
    assert found is not None
    made = _applied(
        was, plane.diff_rows(found.current, found.derived, table.identity, content), [*table.identity, *content]
    )
    told = {"was": was, "wanted": wanted, "made": made}
    rows = {side: _by_case(part.select(*dict.fromkeys((*table.identity, *content)))) for side, part in told.items()}
    wrong = [case for case in rows["wanted"].keys() | rows["made"].keys() if rows["wanted"][case] != rows["made"][case]]
    return {
        case: {
            **{
                f"{name} {side}": drawn[name][case or 0][n]
                for name in it.inputs
                for n, side in enumerate(("before", "after"))
            },
            **{side: rows[side][case] for side in rows},
        }
        for case in wrong
    }


def shown(wrong: dict[int, Case]) -> str:
    """The case with the fewest rows."""
    case = min(wrong, key=lambda case: len(str(wrong[case])))
    return "\n".join(f"{name}: {_plain(rows)}" for name, rows in wrong[case].items())


def _applied(was: DataFrame, changes: DataFrame, identity: list[str]) -> DataFrame:
    columns = dict.fromkeys(identity)
    closed = changes.where("_change = 'close'").select(*columns)
    return was.select(*columns).exceptAll(closed).unionAll(changes.where("_change = 'open'").select(*columns))


def _by_case(rows: DataFrame) -> dict[Any, list[str]]:
    found: dict[Any, list[str]] = defaultdict(list)
    for row in rows.collect():
        found[row.asDict().get("c")].append(str(_plain([tuple(row)])[0]))
    return defaultdict(list, {case: sorted(texts) for case, texts in found.items()})


def _plain(rows: Any) -> list[tuple[Any, ...]]:
    def told(value: Any) -> Any:
        if isinstance(value, datetime):
            return (value.replace(tzinfo=UTC) - T0) // timedelta(milliseconds=1)
        return value

    return [tuple(map(told, row)) if isinstance(row, tuple) else row for row in rows]


# --- cases: what a table holds before and after ----------------------------------------------------------------------


def _versions(
    key: str, value: Callable[[random.Random], tuple[Any, ...]]
) -> Callable[[random.Random, int], tuple[Rows, Rows]]:
    """A table of versions, of which some records are learnt, others corrected or forgotten."""

    def made(dice: random.Random, case: int) -> tuple[Rows, Rows]:
        horizon = dice.choice([5, 12])
        before: dict[tuple[str, int], Any] = {}
        for _ in range(dice.randint(0, 8)):
            before[dice.choice(key), dice.randint(0, horizon)] = None if dice.random() < 0.25 else value(dice)
        after = dict(before)
        for _ in range(dice.choice([0, 1, 1, 2, 4])):
            after[dice.choice(key), dice.randint(0, horizon)] = None if dice.random() < 0.3 else value(dice)
        for place in list(after):
            if dice.random() < 0.1:
                del after[place]
        return _tiled(case, before), _tiled(case, after)

    return made


def _tiled(case: int, records: dict[tuple[str, int], Any]) -> Rows:
    rows = []
    for (key, start), value in records.items():
        end = min((t for k, t in records if k == key and t > start), default=None)
        if value is not None:
            rows.append((case, key, *value, _at(start), None if end is None else _at(end)))
    return rows


def _events(
    value: Callable[[random.Random], tuple[Any, ...]], *, appended: bool
) -> Callable[[random.Random, int], tuple[Rows, Rows]]:
    """A table of events, of which some are learnt; others corrected or forgotten unless it is `appended` to only."""

    def made(dice: random.Random, case: int) -> tuple[Rows, Rows]:
        horizon = dice.choice([5, 15])
        count = dice.randint(0, 8)
        all_ = [_event(dice, case, value, offset, horizon) for offset in range(count + dice.choice([0, 1, 1, 3]))]
        if appended:
            return all_[:count], all_
        before = [event for event in all_ if dice.random() < 0.7]
        kept = [event for event in all_ if dice.random() < 0.8]
        return before, [(*e[:2], *value(dice), *e[-3:]) if dice.random() < 0.15 else e for e in kept]

    return made


def _event(dice: random.Random, case: int, value: Any, offset: int, horizon: int) -> tuple[Any, ...]:
    key = (None, None) if dice.random() < 0.05 else (case, dice.choice("ab"))
    return (*key, *value(dice), _at(dice.randint(0, horizon)), 2 * case + dice.randrange(2), offset)


def _at(millisecond: int) -> datetime:
    return T0 + timedelta(milliseconds=millisecond)


def _order(dice: random.Random) -> tuple[Any, ...]:
    return dice.choice(["curry", "naan", None]), dice.randint(1, 9)


_COLUMNS = {
    "menu": "c int, item string, price int, dish string",
    "dishes": "c int, dish string, name string",
    "stock": "c int, product string, n int",
    "orders": "c int, customer string, item string, quantity int",
    "small": "c int, item string, customer string, quantity int",
    "payments": "c int, customer string, paid int",
    "dues": "c int, customer string, due int, item string",
}
_MADE: dict[str, Callable[[random.Random, int], tuple[Rows, Rows]]] = {
    "menu": _versions(["curry", "naan"], lambda d: (d.randint(1, 9), d.choice(["x", "y", None]))),  # type: ignore[arg-type]
    "dishes": _versions(["x", "y"], lambda d: (d.choice("abc"),)),  # type: ignore[arg-type]
    "stock": _versions(["curry", "naan"], lambda d: (d.randint(1, 9),)),  # type: ignore[arg-type]
    "orders": _events(_order, appended=True),
    "small": _events(lambda d: (d.choice("xy"), d.randint(1, 4)), appended=True),
    "payments": _events(lambda d: (d.randint(1, 3),), appended=True),
    "dues": _events(lambda d: (d.randint(1, 40), d.choice(["curry", "naan"])), appended=False),
}
