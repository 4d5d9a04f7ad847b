"""Pictures of the plane, as SVG: the price of naan in three runs, two with a late record (docs/concepts.md); and that
of a route, rehearsed month by month (docs/hindsight.md).

Pure. What draws the plane of the time machine draws them, in its colours. scripts/docs.py writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import escape
from typing import NamedTuple

from svg import palette

from hindcast.airflow.pages import drawing, rendering
from hindcast.airflow.pages.drawing import Axis
from hindcast.airflow.pages.plane import Crosshair, PlaneSource, build_plane
from hindcast.query.show import plain_value


class Price(NamedTuple):
    """A record: since when the price is true, in units of the valid axis, and the run that brought it."""

    price: str
    since: float
    run: int


class Plane(NamedTuple):
    """What a picture shows: the `records` of one key, by the `unit` of the valid axis; the known-at of each run, and if
    the axis names them; and an `event` at a place, with the answers about it by run.
    """

    title: str
    records: Sequence[Price]
    unit: timedelta
    runs: Sequence[datetime]
    has_names: bool
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


START = datetime(2026, 1, 1, tzinfo=UTC)
"""Where the valid axis begins."""

NAAN = Plane(
    "The price of naan on the plane of valid time and system time",
    (Price("3.00", 0, 1), Price("2.50", 1, 2), Price("2.75", 0.5, 3)),
    timedelta(minutes=1),
    [START + timedelta(hours=hours) for hours in (6, 7, 8)],
    True,
    2,
    "Dave orders two",
    {1: "known at run 1: 6.00", 2: "known at run 2: 5.00", 3: "known at run 3: 5.00"},
)
"""What the menu says of naan: the first late record is the tutorial's."""

ROUTE = Plane(
    "The price of a route, rehearsed month by month",
    (Price("20", 0, 1), Price("24", 40, 3)),
    timedelta(days=1),
    [datetime(2026, month, 1, tzinfo=UTC) for month in (2, 3, 4)],
    False,
    44,
    "a trip on 14 February",
    {2: "known in March: 20", 3: "known in April: 24"},
)
"""The prices of docs/hindsight.md."""

WIDTH, HEIGHT, LEFT, TOP = 560.0, 300.0, 150, 34
"""The size of the plane, and where it is in a drawing (templates/plane.html)."""


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
    across, up = _axes(plane)
    drawn = build_plane(
        _source(plane),
        Crosshair(_moment(plane, plane.place), plane.runs[-1]),
        width=WIDTH,
        height=HEIGHT,
        axes=(across, up),
    )
    macros = rendering.load_templates().get_template("plane.html").module
    parts = [getattr(macros, name)(drawn) for name in ("axes", "rectangles")]
    x = LEFT + WIDTH * across.place(_moment(plane, plane.place))
    ends = f'<path class="line" d="M{x:.1f} {TOP - 6}V{TOP + HEIGHT:g}"/>'
    flag = macros.flag(plane.event, x, TOP - 23)  # type: ignore[attr-defined]
    shapes = [macros.defs(), *parts, ends, f'<g transform="translate({x:.1f} 0)">{flag}</g>', *_answers(plane, x, up)]  # type: ignore[attr-defined]
    size = f'viewBox="0 0 {LEFT + WIDTH + 10:g} {TOP + HEIGHT + 44:g}"'
    style = f"{palette()}\nsvg {{ font-family: sans-serif; }}\n{rendering.read_plane_style()}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="plane" {size}><title>{escape(plane.title)}</title>'
    paper = '<path fill="var(--paper)" d="M0 0H2000V2000H0z"/>'
    lines = "\n".join([head, f"<style>{style}</style>", paper, *shapes, "</svg>"]).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


def _moment(plane: Plane, place: float) -> datetime:
    return START + place * plane.unit


def _axes(plane: Plane) -> tuple[Axis, Axis]:
    """The valid axis, with the event, and the system axis, with runs that changed nothing too."""
    places = {plane.place} | {at for row in rectangles(plane.records) for at in row[1:3] if isinstance(at, int | float)}
    across = drawing.build_axis([_moment(plane, place) for place in places], even=True)
    return across, drawing.build_axis(plane.runs, even=True)


def _source(plane: Plane) -> PlaneSource:
    """The rows, as the time machine has them."""
    rows, shown = [], []
    for row in rectangles(plane.records):
        times = {
            "validFrom": _moment(plane, row.valid_from),
            "validTo": None if row.valid_to is None else _moment(plane, row.valid_to),
            "systemFrom": plane.runs[row.system_from - 1],
            "systemTo": None if row.system_to is None else plane.runs[row.system_to - 1],
        }
        rows.append({"price": Decimal(row.price), **times})
        values = {"price": row.price, "kind": f"{row.region}: {row.belief}"}
        shown.append({"values": values, **{name: plain_value(at) for name, at in times.items()}})
    runs = {at: number for number, at in enumerate(plane.runs, 1)} if plane.has_names else {}
    return PlaneSource("versions", rows, shown, len(rows), runs)


def _answers(plane: Plane, x: float, up: Axis) -> list[str]:
    """What is answered about the event as known at each run."""
    parts = []
    for run, answer in plane.answers.items():
        y = TOP + HEIGHT * (1 - up.place(plane.runs[run - 1])) - 30
        parts.append(f'<circle class="spot" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(f'<text class="said" x="{x + 11:.1f}" y="{y + 4:.1f}">{escape(answer)}</text>')
    return parts
