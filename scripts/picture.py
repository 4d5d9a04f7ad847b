"""Pictures of the plane, as SVG: the price of naan in three runs, two with a late record (docs/concepts.md); and that
of a route, rehearsed month by month (docs/hindsight.md).

Pure: records in, rectangles out, and these drawn. scripts/docs.py writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from svg import INK, MUTED, document, text


class Price(NamedTuple):
    """A record: since when the price is true, in units of the valid axis, and the run that brought it."""

    price: str
    since: float
    run: int


class Plane(NamedTuple):
    """What a picture shows: the `records` of one key; the `marks` of the valid axis by their places; a name for each
    run; and an `event` at a place, with the answers about it by run.
    """

    title: str
    records: Sequence[Price]
    marks: Mapping[float, str]
    runs: Sequence[str]
    place: float
    event: str
    answers: Mapping[int, str]


class Rectangle(NamedTuple):
    """A row: true from one moment to another, believed from one run to another; None: without an end."""

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


NAAN = Plane(
    "The price of naan on the plane of valid time and system time",
    (Price("3.00", 0, 1), Price("2.50", 1, 2), Price("2.75", 0.5, 3)),
    {0: "00:00", 0.5: "00:00:30", 1: "00:01", 2: "00:02", 3: "00:03"},
    ("run 1", "run 2", "run 3"),
    2,
    "Dave orders two",
    {1: "known at run 1: 6.00", 2: "known at run 2: 5.00", 3: "known at run 3: 5.00"},
)
"""What the menu says of naan: the first late record is the tutorial's."""

ROUTE = Plane(
    "The price of a route, rehearsed month by month",
    (Price("20", 0, 1), Price("24", 1.32, 3)),
    {0: "1 Jan", 1: "1 Feb", 1.32: "10 Feb", 2: "1 Mar", 3: "1 Apr"},
    ("1 Feb", "1 Mar", "1 Apr"),
    1.46,
    "a trip on 14 February",
    {2: "known in March: 20", 3: "known in April: 24"},
)
"""The prices of docs/hindsight.md."""

WIDTH, LEFT, TOP, UNIT, RUN = 860, 120, 92, 210, 128
UNTIL = 3.4
"""Where the valid axis ends."""

ACCENT = "#b3261e"
FILLS = {"open": "#bfe3c6", "past": "#d3e2f8", "superseded": "url(#closed)"}


def rectangles(records: Sequence[Price]) -> list[Rectangle]:
    """The rows of one key: each run closes what it knows better and opens what it knows.

    3.00 @0 in run 1, 2.50 @1 in run 2  ->  3.00 [0, -) [1, 2), 3.00 [0, 1) [2, -), 2.50 [1, -) [2, -)
    """
    rows: list[Rectangle] = []
    for run in sorted({record.run for record in records}):
        known = sorted((record for record in records if record.run <= run), key=lambda record: record.since)
        ends = [record.since for record in known[1:]]
        right = {(r.price, r.since, end) for r, end in zip(known, [*ends, None], strict=True)}
        kept = {row[:3] for row in rows if row.system_to is None} & right
        rows = [
            row if row.system_to is not None or row[:3] in kept else row._replace(system_to=run) for row in rows
        ] + [Rectangle(*row, run, None) for row in sorted(right - kept, key=lambda row: row[1])]
    return rows


def svg(plane: Plane) -> str:
    """The picture."""
    height = TOP + len(plane.runs) * RUN + 60
    defs = [
        '<defs><pattern id="closed" width="8" height="8" patternTransform="rotate(45)" patternUnits="userSpaceOnUse">',
        '<rect width="8" height="8" fill="#f2f2f2"/><path d="M0 0V8" stroke="#c9c9c9" stroke-width="3"/>',
        "</pattern></defs>",
    ]
    end = len(plane.runs) + 1
    rows = [part for row in rectangles(plane.records) for part in _row(row, end)]
    return document(plane.title, WIDTH, height, defs, [*_axes(plane), *rows, *_event(plane, end)])


def _axes(plane: Plane) -> list[str]:
    down = f'transform="translate(26 {TOP}) rotate(90)" font-weight="bold"'
    parts = [
        text(LEFT, 26, "valid time: when it is true in the world  \N{RIGHTWARDS ARROW}", 'font-weight="bold"'),
        f"<text {down}>system time: when it was believed  \N{RIGHTWARDS ARROW}</text>",
    ]
    for place, label in plane.marks.items():
        parts.append(text(_x(place), TOP - 12, label, f'text-anchor="middle" font-size="15" fill="{MUTED}"'))
    return parts + [
        text(LEFT - 12, _y(run) + 22, name, f'text-anchor="end" fill="{MUTED}"')
        for run, name in enumerate(plane.runs, 1)
    ]


def _row(row: Rectangle, end: int) -> list[str]:
    """A row; `end`: the run after the last."""
    left, top = _x(row.valid_from), _y(row.system_from)
    right = _x(UNTIL if row.valid_to is None else row.valid_to)
    bottom = _y(end if row.system_to is None else row.system_to) + (24 if row.system_to is None else 0)
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


def _event(plane: Plane, end: int) -> list[str]:
    """The event, and what is answered about it as known at each run."""
    at, bottom = _x(plane.place), _y(end) + 24
    parts = [
        f'<path d="M{at} {TOP - 6}V{bottom}" stroke="{ACCENT}" stroke-width="2" stroke-dasharray="6 5"/>',
        text(at, TOP - 42, plane.event, f'text-anchor="middle" fill="{ACCENT}" font-weight="bold"'),
    ]
    for run, answer in plane.answers.items():
        middle = _y(run) + RUN - 30
        parts.append(f'<circle cx="{at}" cy="{middle}" r="6" fill="{ACCENT}"/>')
        parts.append(text(at + 14, middle + 5, answer, f'fill="{ACCENT}"'))
    return parts


def _x(place: float) -> float:
    return LEFT + place * UNIT


def _y(run: int) -> float:
    return TOP + (run - 1) * RUN
