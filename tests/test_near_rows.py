"""What increments read of tables: islands of what has changed, and the keys that a file can hold in its time."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from hindcast.engine import hulls, slice_reader
from hindcast.engine.hulls import Periods
from hindcast.engine.increment_rows import Needs, list_among
from hindcast.engine.spec import KernelInput
from hindcast.engine.sweeps import FOREVER
from hindcast.store import arrow_reader, duckdb_reader, file_listing
from hindcast.store.tables import ARROW_TIMESTAMP
from pipelines import T0

SEED = int(os.environ.get("HINDCAST_SEED", "1"))

Plain = list[tuple[int, int, int]]
"""Key, start and end of periods."""


def periods(plain: Plain) -> Periods:
    return Periods(*(np.array([period[n] for period in plain], np.int64) for n in range(3)))


def join_periods(plain: Plain) -> Plain:
    """The islands of periods, one after the other."""
    found: Plain = []
    for key, start, end in sorted(period for period in plain if period[0] >= 0):
        if found and found[-1][0] == key and start <= found[-1][2]:
            found[-1] = (key, found[-1][1], max(found[-1][2], end))
        else:
            found.append((key, start, end))
    return found


def draw(dice: random.Random) -> Plain:
    """Up to eight periods of a few keys, or of none."""
    found = []
    for _ in range(dice.randint(0, 8)):
        start = dice.randint(-5, 20)
        found.append((dice.randint(-1, 3), start, dice.choice([FOREVER, start, start + dice.randint(0, 6)])))
    return found


def test_islands_are_periods_that_touch() -> None:
    for seed in range(1_000):
        dice = random.Random(f"{SEED} {seed}")  # noqa: S311 - any order does
        changed, rows = draw(dice), draw(dice)
        islands, expected = hulls.build_islands(periods(changed)), join_periods(changed)
        assert list(zip(*(part.tolist() for part in islands), strict=True)) == expected, seed
        pairs = set(zip(*(part.tolist() for part in islands.find_touching(periods(rows))), strict=True))
        assert pairs == {
            (row, island)
            for row, (key, start, end) in enumerate(rows)
            for island, (of, low, high) in enumerate(expected)
            if key == of and start <= high and end >= low
        }, seed
        touching = [rows[row] for row in sorted({row for row, _ in pairs})]
        grown, places = islands.include_periods(periods(touching))
        assert list(zip(*(part.tolist() for part in grown), strict=True)) == join_periods([*expected, *touching]), seed
        for island, place in zip(expected, places.tolist(), strict=True):
            assert grown.key[place] == island[0], seed
            assert grown.low[place] <= island[1], seed
            assert grown.high[place] >= island[2], seed


def test_islands_that_too_many_rows_touch_are_hulls(monkeypatch: pytest.MonkeyPatch) -> None:
    islands = hulls.build_islands(periods([(0, 1, 2), (0, 5, 6), (0, 9, 9), (2, 3, 4)]))
    rows = periods([(0, 0, 10), (0, 5, 9), (2, 0, 1)])
    monkeypatch.setattr(hulls, "MAX_PAIRS", 5)
    assert len(islands.find_touching(rows)[0]) == 5, "three pairs and two"
    monkeypatch.setattr(hulls, "MAX_PAIRS", 4)
    with pytest.raises(hulls.CrowdedError):
        islands.find_touching(rows)
    joined = islands.join_by_key()
    assert [part.tolist() for part in joined] == [[0, 2], [1, 3], [9, 4]]
    monkeypatch.setattr(hulls, "MAX_PAIRS", 0)
    assert len(joined.find_touching(rows)[0]) == 2, "a hull is touched once by a row"
    assert [part.tolist() for part in hulls.build_islands(periods([])).join_by_key()] == [[], [], []]


def test_a_column_may_stand_for_several() -> None:
    rows = pa.table({"a": [1, 2], "b": [3, None]})
    among = list_among(("k", "k"), Needs(rows, ("a", "b"), np.array([0, 5]), np.array([4, 9])))
    found = among.list_values(4, 5)
    assert found is not None
    assert [(name, values.to_pylist()) for name, values in found] == [("k", [1, 2]), ("k", [3, None])]
    assert among.rename_columns(("x", "y")).select_columns({"y"}).columns == ("y",)
    assert not among.has_values(10, 20)
    twice = list_among(("k", "n"), Needs(rows, ("a", "a"), np.array([0, 5]), np.array([4, 9])))
    assert [values.to_pylist() for values in twice.values] == [[1, 2], [1, 2]]


def micros(second: int) -> int:
    return (T0 + timedelta(seconds=second) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Four files: the keys 0 to 9 in each hundred seconds, and what is valid from 300 on."""
    kind = pa.schema(
        [("k", pa.int64()), *((name, ARROW_TIMESTAMP) for name in ("validFrom", "validTo", "systemFrom", "systemTo"))]
    )
    for part in range(4):
        at = T0 + timedelta(seconds=100 * part)
        end = None if part == 3 else at + timedelta(seconds=99)
        rows = [{"k": key, "validFrom": at, "validTo": end, "systemFrom": T0, "systemTo": None} for key in range(10)]
        write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist(rows, kind), mode="append")
    return DeltaTable(str(tmp_path / "t"))


def test_of_each_file_only_the_keys_that_matter_in_its_time_are_read(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    open_file = arrow_reader.open_file

    def note_path(*given: Any) -> Any:
        opened.append(given[1])
        return open_file(*given)

    monkeypatch.setattr(arrow_reader, "open_file", note_path)
    side = KernelInput(table.table_uri, table.version(), "versions", ("k",), (), None)
    spans = duckdb_reader.read_time_spans(table, "validFrom", "validTo")
    assert sorted(first for first, _ in spans.values() if first is not None) == [micros(100 * n) for n in range(4)]
    assert sum(last is None for _, last in spans.values()) == 1
    keys = pa.table({"k": [1, 7, 7]})
    low, high = ([*map(micros, seconds)] for seconds in ((20, 310, 320), (30, 315, 330)))
    needed = list_among(("k",), Needs(keys, ("k",), np.array(low), np.array(high)))
    read = slice_reader.read_near(side, (micros(20), micros(330)), needed)
    seconds = [(row["k"], (row["validFrom"] - T0).total_seconds()) for row in read.to_pylist()]
    assert sorted(seconds) == [(1, 0), (7, 300)]
    assert len(opened) == 2, "no key matters in the other two files"


@pytest.mark.parametrize(
    ("module", "limit", "refused"),
    [
        (slice_reader, None, False),
        (slice_reader, "MAX_ROWS_HERE", True),
        (slice_reader, "MAX_BYTES_HERE", True),
        (file_listing, "MAX_ROWS_HERE", True),
        (slice_reader, "MAX_ROWS", False),
    ],
)
def test_this_process_reads_little_and_opens_a_table_once(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str | None, refused: bool
) -> None:
    if limit is not None:
        monkeypatch.setattr(module, limit, 9)
    side = KernelInput(table.table_uri, table.version(), "versions", ("k",), (), None)
    opened: dict[tuple[str, int], DeltaTable] = {}
    read = partial(slice_reader.read_near, side, (micros(20), micros(30)), here=opened)
    if refused:
        with pytest.raises(slice_reader.TooManyRowsError):
            read()
    else:
        assert [read().num_rows for _ in range(2)] == [10, 10]
    assert [*opened] == [(table.table_uri, table.version())]
