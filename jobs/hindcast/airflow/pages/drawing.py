"""Numbers and moments as positions in a drawing: sparklines, axes, ticks. Pure."""

from __future__ import annotations

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
        return first + step * n, HEIGHT - MARGIN - room * find_share(value, low, high)

    points = [place(n, value) for n, value in enumerate(values)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    x, y = points[-1]
    return {"path": f"M{path}" + ("h0" if len(points) == 1 else ""), "x": x, "y": y, "last": values[-1]}


def find_share(value: float, low: float, high: float) -> float:
    """Return where a value lies between the least and the greatest, from 0 to 1; 0.5 where these are equal."""
    span = high / 2 - low / 2  # halved: it stays finite
    if span > 0:
        return (value / 2 - low / 2) / span
    return (value - low) / (high - low) if high > low else 0.5


def scale_lengths(values: Sequence[float], longest: float, most: float | None = None) -> list[float]:
    """Return the lengths of bars, of which that of `most` (by default the greatest value) is the longest.

    Whatever is not 0 is at least 1 long, so that it is seen.
    """
    most = max(values, default=0) if most is None else most
    return [round(max(longest * value / most, 1), 1) if value else 0.0 for value in values]


def place_labels(texts: Sequence[str]) -> list[dict[str, str | float]]:
    """Return labels of columns, at their middles: as many as fit."""
    places = [COLUMN * (n + 0.5) for n in range(len(texts))]
    chosen = choose_ticks(places, [7.0 * len(text) for text in texts], 6)
    return [{"x": places[n], "text": texts[n]} for n in chosen]


COLUMN = 22
"""How wide the column of a run is in pictures of several runs, in pixels."""

BAR_HEIGHT = 22
"""How high the highest bar of such a picture is, in pixels."""


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
    def moments(self) -> list[datetime]:
        """The moments of the knots, without the outer two."""
        return [moment for _, moment in self.knots[1:-1]]


def choose_ticks(places: Sequence[float], lengths: Sequence[float], gap: float) -> list[int]:
    """Return which of these ascending places have a label: as many as fit, each of a length, with a gap between.

    A label lies around its place. The last place has one; the others are as evenly spread as they can be.
    """
    for every in range(1, MAX_SKIPPED + 2):
        chosen = [*range(len(places) - 1, -1, -every)][::-1]
        ends = [(places[n] - lengths[n] / 2, places[n] + lengths[n] / 2) for n in chosen]
        if all(right + gap <= left for (_, right), (left, _) in pairwise(ends)):
            return chosen
    chosen = []
    for n in reversed(range(len(places))):
        if not chosen or places[n] + lengths[n] / 2 + gap <= places[chosen[-1]] - lengths[chosen[-1]] / 2:
            chosen.append(n)
    return chosen[::-1]


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
MAX_SKIPPED = 8
"""How many places in a row have no label, at most, if all rows of them are alike."""
_HOUR = timedelta(hours=1)


def _shift_moment(moment: datetime, by: timedelta) -> datetime:
    """Return a moment that is `by` later, limited to what Python can represent."""
    try:
        return moment + by
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if by > timedelta(0) else datetime.min.replace(tzinfo=UTC)
