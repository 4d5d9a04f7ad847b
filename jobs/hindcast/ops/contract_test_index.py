"""An index of rows that finds an equal one in about constant time, although equal numbers may differ a little."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import product

from hindcast.common.column_values import ColumnValue

_CELLS, _OFFSET, _MARGIN = 1e6, 0.37, 2e-3
"""Numbers with a fraction share a cell if they differ by less than about a millionth of them. The offset keeps round
numbers off the borders of cells; numbers that differ by a billionth are less than the margin apart, in cells.
"""

_MOST_LOOKUPS = 1_000
"""A row with numbers near the borders of their cells is looked up in each combination of the cells beside them, and
compared with every row if there are more combinations than this.
"""

_Row = Sequence[ColumnValue]
_Key = tuple[Hashable, tuple[int, ...]]


class RowIndex:
    """Rows by what equal ones have in common; `rows` are those that were not taken, by their position."""

    def __init__(self, rows: Sequence[_Row], is_equal: Callable[[_Row, _Row], bool]) -> None:
        self.rows = dict(enumerate(rows))
        self._is_equal = is_equal
        self._positions: dict[_Key, deque[int]] = {}
        for position, row in self.rows.items():
            self._positions.setdefault(_choose_key(row), deque()).append(position)

    def take_equal(self, row: _Row) -> _Row | None:
        """Return the first row that equals this one, and remove it; None if there is none."""
        keys = _list_keys(row)
        groups = [self.rows] if keys is None else [self._positions.get(key, ()) for key in keys]
        found = [self._find_first(group, row) for group in groups]
        position = min((position for position in found if position is not None), default=None)
        if position is None:
            return None
        taken = self.rows.pop(position)
        self._positions[_choose_key(taken)].remove(position)
        return taken

    def _find_first(self, positions: Iterable[int], row: _Row) -> int | None:
        return next((position for position in positions if self._is_equal(row, self.rows[position])), None)


def _choose_key(row: _Row) -> _Key:
    numbers: list[float] = []
    form = _canonicalize(row, numbers)
    return form, tuple(_list_cells(number, 0.0)[0] for number in numbers)


def _list_keys(row: _Row) -> list[_Key] | None:
    """Return the keys that rows equal to this one can have; None if there are too many."""
    numbers: list[float] = []
    form = _canonicalize(row, numbers)
    choices = [_list_cells(number, _MARGIN) for number in numbers]
    if math.prod(map(len, choices)) > _MOST_LOOKUPS:
        return None
    return [(form, cells) for cells in product(*choices)]


def _canonicalize(value: ColumnValue, numbers: list[float]) -> Hashable:
    """Return what equal values have in common, without their numbers with a fraction, which are added to `numbers`."""
    match value:
        case float() if math.isnan(value):
            return "nan"
        case float():
            numbers.append(value)
            return "number"
        case Mapping():
            return tuple((name, _canonicalize(value[name], numbers)) for name in sorted(value))
        case list() | tuple():
            return tuple(_canonicalize(part, numbers) for part in value)
        case _:
            return value


def _list_cells(number: float, margin: float) -> list[int]:
    """Return the cells of the numbers that are at most a margin away, each once."""
    if number == 0 or math.isinf(number):
        return [0 if number == 0 else int(math.copysign(1, number))]
    place, side = math.log(abs(number)) * _CELLS + _OFFSET, 2 if number > 0 else 3
    return sorted({(math.floor(edge) << 2) + side for edge in (place - margin, place + margin)})
