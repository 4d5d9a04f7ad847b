"""Numbers and moments as positions in a drawing: sparklines, waterfalls, axes, ticks. Pure.

templates/plane.html draws a plane, closes.html waterfalls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

WIDTH, HEIGHT, MARGIN = 120, 26, 4
"""The size of a sparkline, in pixels."""


def sparkline(values: Sequence[float]) -> dict[str, str | float | None]:
    """Return a sparkline: the SVG path of its line, the position of the last value, and that value.

    Equal values are a line in the middle; the last value is on the right.

        sparkline([1, 3]) -> {"path": "M4.0 22.0L116.0 4.0", "x": 116.0, "y": 4.0, "last": 3}
    """
    if not values:
        return {"path": "", "x": None, "y": None, "last": None}
    low, high = min(values), max(values)
    step = (WIDTH - 2 * MARGIN) / max(len(values) - 1, 1)
    first = WIDTH - MARGIN - step * (len(values) - 1)
    room = HEIGHT - 2 * MARGIN

    def place(n: int, value: float) -> tuple[float, float]:
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5  # halved: it stays finite
        return first + step * n, HEIGHT - MARGIN - room * share

    points = [place(n, value) for n, value in enumerate(values)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    x, y = points[-1]
    return {"path": f"M{path}" + ("h0" if len(points) == 1 else ""), "x": x, "y": y, "last": values[-1]}


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


@dataclass(frozen=True)
class Axis:
    """A map from moments to positions from 0 to 1, linear between its knots; the outer two are beyond what is drawn."""

    knots: tuple[tuple[float, datetime], ...]

    def place(self, moment: datetime | None) -> float:
        """Return the position of a moment; None (no end), or a moment beyond the knots, is at the border."""
        if moment is None:
            return 1.0
        for (left, start), (right, end) in pairwise(self.knots):
            if moment < end:
                return max(0.0, left + (right - left) * ((moment - start) / (end - start)))
        return 1.0

    @property
    def ticks(self) -> list[tuple[float, datetime]]:
        """The knots to label: not the outer two, and not more than fit."""
        inner = self.knots[1:-1]
        every = -(-len(inner) // MAX_LABELS)
        return [*inner[::every]] if inner else []


def build_axis(moments: Iterable[datetime], *, even: bool) -> Axis:
    """Return an axis of these moments (at least one): in `even` steps, or true to time.

    At the sides there is room for what began before and what has not ended.
    """
    inner = sorted(set(moments))
    length = inner[-1] - inner[0]
    last = max(len(inner) - 1, 1)
    room = max((1 - SIDE_ROOM) / (last + 1), SIDE_ROOM) if even else 2 * SIDE_ROOM
    shares = [n / last if even else (moment - inner[0]) / (length or _HOUR) for n, moment in enumerate(inner)]
    places = [SIDE_ROOM + (1 - SIDE_ROOM - room) * share for share in shares]
    step = (length / last if even else length * room / (1 - SIDE_ROOM - room)) or _HOUR
    before, after = _shift_moment(inner[0], -step), _shift_moment(inner[-1], step)
    return Axis(((0.0, before), *zip(places, inner, strict=True), (1.0, after)))


SIDE_ROOM = 0.05
MAX_LABELS = 8
_HOUR = timedelta(hours=1)


def _shift_moment(moment: datetime, by: timedelta) -> datetime:
    """Return a moment that is `by` later, limited to what Python can represent."""
    try:
        return moment + by
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if by > timedelta(0) else datetime.min.replace(tzinfo=UTC)
