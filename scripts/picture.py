"""The picture of the plane in docs/concepts.md, an SVG: the price of naan in three runs, two with a late record.

Pure: records in, rectangles out, and these drawn. scripts/docs.py writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from svg import INK, MUTED, document, text


class Price(NamedTuple):
    """A record of the menu: since which minute the price is true, and the run that brought it."""

    price: str
    minute: float
    run: int


class Rectangle(NamedTuple):
    """A row: true from one minute to another, believed from one run to another; None: without an end."""

    price: str
    valid_from: float
    valid_to: float | None
    system_from: int
    system_to: int | None

    @property
    def belief(self) -> str:
        """What the column `_belief` says of such a row."""
        if self.system_to is not None:
            return "superseded"
        return "open" if self.valid_to is None else "past"

    @property
    def region(self) -> int:
        """The number that docs/concepts.md gives the rows that are closed, or not, on either axis."""
        return 1 + (self.valid_to is not None) + 2 * (self.system_to is not None)


NAAN = (Price("3.00", 0, 1), Price("2.50", 1, 2), Price("2.75", 0.5, 3))
"""What the menu says of naan: the first late record is the tutorial's."""

RUNS = 3
WIDTH, LEFT, TOP, MINUTE, RUN = 860, 120, 92, 210, 128
UNTIL = 3.4
"""The minute at which the picture ends."""

ACCENT = "#b3261e"
FILLS = {"open": "#bfe3c6", "past": "#d3e2f8", "superseded": "url(#closed)"}


def rectangles(records: Sequence[Price]) -> list[Rectangle]:
    """The rows of one key: each run closes what it knows better and opens what it knows.

    3.00 @0 in run 1, 2.50 @1 in run 2  ->  3.00 [0, -) [1, 2), 3.00 [0, 1) [2, -), 2.50 [1, -) [2, -)
    """
    rows: list[Rectangle] = []
    for run in sorted({record.run for record in records}):
        known = sorted((record for record in records if record.run <= run), key=lambda record: record.minute)
        ends = [record.minute for record in known[1:]]
        right = {(r.price, r.minute, end) for r, end in zip(known, [*ends, None], strict=True)}
        kept = {row[:3] for row in rows if row.system_to is None} & right
        rows = [
            row if row.system_to is not None or row[:3] in kept else row._replace(system_to=run) for row in rows
        ] + [Rectangle(*row, run, None) for row in sorted(right - kept, key=lambda row: row[1])]
    return rows


def svg() -> str:
    """The picture."""
    height = TOP + RUNS * RUN + 60
    title = "The price of naan on the plane of valid time and system time"
    defs = [
        '<defs><pattern id="closed" width="8" height="8" patternTransform="rotate(45)" patternUnits="userSpaceOnUse">',
        '<rect width="8" height="8" fill="#f2f2f2"/><path d="M0 0V8" stroke="#c9c9c9" stroke-width="3"/>',
        "</pattern></defs>",
    ]
    rows = [part for row in rectangles(NAAN) for part in _row(row)]
    return document(title, WIDTH, height, defs, [*_axes(), *rows, *_dave()])


def _axes() -> list[str]:
    down = f'transform="translate(26 {TOP}) rotate(90)" font-weight="bold"'
    parts = [
        text(LEFT, 26, "valid time: when it is true in the world  \N{RIGHTWARDS ARROW}", 'font-weight="bold"'),
        f"<text {down}>system time: when it was believed  \N{RIGHTWARDS ARROW}</text>",
    ]
    for minute in (0, 0.5, 1, 2, 3):
        label = f"00:{int(minute):02d}" + (":30" if minute % 1 else "")
        parts.append(text(_x(minute), TOP - 12, label, f'text-anchor="middle" font-size="15" fill="{MUTED}"'))
    runs = range(1, RUNS + 1)
    return parts + [text(LEFT - 12, _y(run) + 22, f"run {run}", f'text-anchor="end" fill="{MUTED}"') for run in runs]


def _row(row: Rectangle) -> list[str]:
    left, top = _x(row.valid_from), _y(row.system_from)
    right = _x(UNTIL if row.valid_to is None else row.valid_to)
    bottom = _y(RUNS + 1 if row.system_to is None else row.system_to) + (24 if row.system_to is None else 0)
    size = f'x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"'
    parts = [f'<rect {size} fill="{FILLS[row.belief]}" stroke="{INK}" stroke-width="1.5"/>']
    if row.valid_to is None:  # no end: the border is open there
        parts.append(
            f'<path d="M{right} {top + 1}V{bottom - 1}" stroke="white" stroke-width="4" stroke-dasharray="9 7"/>'
        )
    if row.system_to is None:
        parts.append(
            f'<path d="M{left + 1} {bottom}H{right - 1}" stroke="white" stroke-width="4" stroke-dasharray="9 7"/>'
        )
    middle, line = (left + right) / 2, top + (50 if right - left < 150 else 44)
    if right - left > 300:
        middle = left + 105
    parts.append(text(middle, line, row.price, 'text-anchor="middle" font-size="24" font-weight="bold"'))
    parts.append(
        text(middle, line + 26, f"{row.region}: {row.belief}", f'text-anchor="middle" font-size="15" fill="{MUTED}"')
    )
    return parts


def _dave() -> list[str]:
    """Dave's order at 00:02, and what is answered as known at each run."""
    at, bottom = _x(2), _y(RUNS + 1) + 24
    parts = [
        f'<path d="M{at} {TOP - 6}V{bottom}" stroke="{ACCENT}" stroke-width="2" stroke-dasharray="6 5"/>',
        text(at, TOP - 42, "Dave orders two", f'text-anchor="middle" fill="{ACCENT}" font-weight="bold"'),
    ]
    for run, told in ((1, "known at run 1: 6.00"), (2, "known at run 2: 5.00"), (3, "known at run 3: 5.00")):
        middle = _y(run) + RUN / 2 + 10
        parts.append(f'<circle cx="{at}" cy="{middle}" r="6" fill="{ACCENT}"/>')
        parts.append(text(at + 14, middle + 5, told, f'fill="{ACCENT}"'))
    return parts


def _x(minute: float) -> float:
    return LEFT + minute * MINUTE


def _y(run: int) -> float:
    return TOP + (run - 1) * RUN
