"""Waterfalls: a total, what is added to it step by step, and the total that results, as bars. Pure.

waterfalls.html draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WaterfallBar:
    """A bar: its place in pixels from the left and the top, what it stands for, and where the line to the next is."""

    x: float
    y: float
    height: float
    kind: str
    name: str
    value: float
    level: float


@dataclass(frozen=True)
class Waterfall:
    """Bars side by side, in a drawing of a width; `is_cut` if those of the totals begin above 0."""

    bars: Sequence[WaterfallBar]
    width: float
    is_cut: bool


BAR, BAR_STEP, BAR_TOP, BAR_BOTTOM = 64, 104, 24, 144
"""The width of a waterfall's bar, the distance from one to the next, and its highest and lowest place, in pixels."""


def draw_waterfall(
    first: tuple[str, float], steps: Sequence[tuple[str, float]], last: tuple[str, float]
) -> Waterfall | None:
    """Return the bars of a total, of what is added to it step by step, and of the last total; None if they are not
    finite. Totals begin at 0, or near the lowest level where steps would be too small to see.

        draw_waterfall(("closed", 20), [("records", 4)], ("now", 24)) -> 0 to 20, 20 to 24, 0 to 24
    """
    levels = [first[1]]
    for _, value in steps:
        levels.append(levels[-1] + value)
    ends = [*levels, last[1]]
    if not all(map(math.isfinite, ends)):
        return None
    low, high = min(ends), max(ends)
    is_cut = (low > 0 or high < 0) and high - low < _LEAST_SHARE * max(abs(low), abs(high))
    if is_cut:
        space = (high - low or 1.0) / 2
        low, high = (low - space, high) if low > 0 else (low, high + space)
    else:
        low, high = min(low, 0.0), max(high, 0.0)
    base = min(max(0.0, low), high)
    spans = [("total", *first, base, first[1])]
    spans += [
        ("more" if value > 0 else "less", name, value, levels[n], levels[n + 1])
        for n, (name, value) in enumerate(steps)
    ]
    spans.append(("total", *last, base, last[1]))
    scale = (BAR_BOTTOM - BAR_TOP) / (high / 2 - low / 2 or 1.0) / 2

    def place(value: float) -> float:
        return BAR_BOTTOM - scale * (value - low)

    bars = [
        WaterfallBar(
            BAR_STEP * n + (BAR_STEP - BAR) / 2,
            min(place(start), place(end)),
            max(abs(place(end) - place(start)), 1.0),
            kind,
            name,
            value,
            place(end),
        )
        for n, (kind, name, value, start, end) in enumerate(spans)
    ]
    return Waterfall(bars, BAR_STEP * len(bars), is_cut)


_LEAST_SHARE = 0.1
"""The least share of the largest level that all steps together take, lest they be too small to see."""
