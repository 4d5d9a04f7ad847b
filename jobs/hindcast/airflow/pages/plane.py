"""The plane of a key: rows as rectangles, valid time across, system time up. templates/plane.html draws it, for the
pages and for the pictures of the docs; the colours are value_colours.py and static/pages.css.

Positions are 0 to 1 from the lower left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hindcast.airflow.pages import drawing, value_colours
from hindcast.airflow.pages.drawing import Axis
from hindcast.airflow.pages.moment_labels import label_moments
from hindcast.common.column_values import Row
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract.shapes import PERIODS
from hindcast.plan.closes import Close
from hindcast.query.key_history import find_cell, read_moment
from hindcast.query.show import plain_value

WIDTH, HEIGHT = 840.0, 380.0
"""The size of the plane in units of the drawing, without its axes (templates/plane.html)."""

CHARACTER, LINE, GAP = 6.0, 13.0, 10.0
"""The width and the height of a label on an axis, and what is left free between two, in these units."""

MIN_HEIGHT = 18.0
"""How high a rectangle with a label is, at least."""


@dataclass(frozen=True)
class Crosshair:
    """What is asked: as of a moment, as known at another; `compared_with` is a second known-at."""

    as_of: datetime
    known_at: datetime
    compared_with: datetime | None = None

    @property
    def known_ats(self) -> list[datetime]:
        """The moments of knowledge, the first one first."""
        return [moment for moment in (self.known_at, self.compared_with) if moment is not None]

    def find_side(self, row: Row) -> str:
        """Return `gained` for a row that is current at the later known-at only, `lost` for the reverse, else ""."""
        earlier, later = (_is_current(row, moment) for moment in (min(self.known_ats), max(self.known_ats)))
        return "" if earlier == later else "gained" if later else "lost"


def _is_current(row: Row, moment: datetime) -> bool:
    ended = find_cell(row, "systemTo", datetime)
    return read_moment(row, "systemFrom") <= moment and (ended is None or moment < ended)


@dataclass(frozen=True)
class PlaneSource:
    """Rows of one key in a table of a `kind`: as they are, and as the page shows them; `total`: how many it has in all.

    `runs`: the numbers of runs by their known-ats. `key`: its columns. `hidden`: the sensitive ones.
    """

    kind: str
    rows: Sequence[Row]
    shown: Sequence[JsonObject]
    total: int
    runs: Mapping[datetime, int] = field(default_factory=dict)
    key: Collection[str] = ()
    hidden: Collection[str] = ()

    @property
    def periods(self) -> tuple[str, str]:
        """The columns in which rows begin to be true, and end."""
        return PERIODS[self.kind][0], PERIODS[self.kind][-1]

    @property
    def valid_moments(self) -> list[datetime]:
        """The moments at which rows begin or end to be true."""
        return _list_moments(self.rows, *self.periods)

    @property
    def system_moments(self) -> list[datetime]:
        """The moments at which rows became current, or ended to be."""
        return _list_moments(self.rows, "systemFrom", "systemTo")


def build_plane(
    source: PlaneSource,
    crosshair: Crosshair,
    closes: Sequence[Close] = (),
    *,
    even: bool = True,
    width: float = WIDTH,
    height: float = HEIGHT,
    axes: tuple[Axis, Axis] | None = None,
) -> JsonObject:
    """Return rows as rectangles, closes as lines, the cursors and the axes; in a `width` and `height`.

    `axes`: those of valid and system time, if they are not of these rows alone.
    """
    across, up = axes or (
        drawing.build_axis(source.valid_moments, even=even),
        drawing.build_axis(source.system_moments, even=even),
    )
    is_compared = crosshair.compared_with is not None
    values = [name for name in source.rows[0] if not name.startswith("_") and name not in _PERIOD_COLUMNS]
    columns = [name for name in values if name not in source.key and name not in source.hidden]
    colouring = value_colours.colour_rows(source.rows, () if is_compared else columns)
    start, end = source.periods
    rectangles: list[JsonValue] = []
    for row, shown, colour in zip(source.rows, source.shown, colouring.classes, strict=True):
        left, right = (across.place(find_cell(row, name, datetime)) for name in (start, end))
        bottom, top = (up.place(find_cell(row, name, datetime)) for name in ("systemFrom", "systemTo"))
        rectangle = {"x": left, "y": bottom, "width": right - left, "height": top - bottom}
        is_point = row[start] == row[end]
        room = 0 if height * (top - bottom) < MIN_HEIGHT else _POINT_ROOM if is_point else width * (right - left)
        texts = shown["values"]
        assert isinstance(texts, dict)  # noqa: S101  # as RowFormatter makes it
        label = value_colours.fit_label([text for name, text in texts.items() if name not in source.key], room)
        look = {"label": label, "colour": colour, "side": crosshair.find_side(row)}
        rectangles.append(
            {**rectangle, "start": plain_value(row[start]), "end": plain_value(row[end]), **look, **shown}
        )
    valid_axis, (as_of,) = _format_across(across, crosshair.as_of, width)
    system_axis, flags = _format_up(up, crosshair.known_ats, source.runs, height)
    return {
        "width": width,
        "height": height,
        "rectangles": rectangles,
        "total": source.total,
        "across": valid_axis,
        "up": system_axis,
        "asOf": across.place(crosshair.as_of),
        "knownAt": [up.place(moment) for moment in crosshair.known_ats],
        "flags": [as_of, *flags],
        "flagSides": [_find_free_side(up, moment, height) for moment in crosshair.known_ats],
        "closes": [_place_close(close, across, up) for close in closes],
        "colours": {"column": colouring.column, "legend": [[*entry] for entry in colouring.legend]},
    }


_PERIOD_COLUMNS = {name for names in PERIODS.values() for name in names} | {"systemFrom", "systemTo"}
_POINT_ROOM = 160.0
"""How wide the label beside an event may be."""


def _format_across(axis: Axis, as_of: datetime, width: float) -> tuple[JsonObject, list[str]]:
    """Return the valid axis as JSON, and what the flag of its cursor says."""
    common, labels = label_moments([*axis.moments, as_of])
    places = [width * place for place, _ in axis.knots[1:-1]]
    texts = [labels[moment] for moment in axis.moments]
    chosen = drawing.choose_ticks(places, [CHARACTER * len(text) for text in texts], GAP)
    return _format_axis(axis, common, texts, chosen, {}), [labels[as_of]]


def _format_up(
    axis: Axis, known_ats: Sequence[datetime], runs: Mapping[datetime, int], height: float
) -> tuple[JsonObject, list[str]]:
    """Return the system axis as JSON, and what the flags of its cursors say: the run, and its time."""
    common, labels = label_moments([*axis.moments, *known_ats], rounds=True)

    def name_moment(moment: datetime) -> str:
        return f"run {runs[moment]} · {labels[moment]}" if moment in runs else labels[moment]

    places = [height * place for place, _ in axis.knots[1:-1]]
    chosen = drawing.choose_ticks(places, [LINE] * len(places), 0)
    texts = [name_moment(moment) for moment in axis.moments]
    return _format_axis(axis, common, texts, chosen, runs), [name_moment(moment) for moment in known_ats]


def _format_axis(
    axis: Axis, common: str, labels: Sequence[str], chosen: Sequence[int], runs: Mapping[datetime, int]
) -> JsonObject:
    """Return an axis as JSON: labelled ticks, and the knots by which a position becomes a moment again.

    A knot is a place, a moment, its label, and how an address asks for its run, if it is that of one.
    """
    ticks: list[JsonValue] = [{"at": axis.knots[n + 1][0], "label": labels[n]} for n in chosen]
    knots: list[JsonValue] = []
    for (place, moment), label in zip(axis.knots, ["", *labels, ""], strict=True):
        run = [f"run:{runs[moment]}"] if moment in runs else []
        knots.append([round(place, 5), moment.isoformat(), label, *run])
    return {"common": common, "ticks": ticks, "knots": knots}


def _find_free_side(up: Axis, moment: datetime, height: float) -> float:
    """Return how far above (negative) or below its line the flag of a known-at begins, so that it covers no other run's
    line; above, if it must cover one anyway and there is room.
    """
    at = up.place(moment)
    gaps = [height * (place - at) for place, _ in up.knots[1:-1]]
    has_room = height * (1 - at) > FLAG - _HEADROOM
    is_free_above = all(not 0 < gap < FLAG for gap in gaps)
    is_free_below = all(not -FLAG < gap < 0 for gap in gaps) and height * at > FLAG
    return -FLAG if has_room and (is_free_above or not is_free_below) else 1.0


FLAG = 18.0
"""How high the flag of a cursor is, with its distance from the line."""
_HEADROOM = 12.0
"""How far above the plane a flag may reach."""


def _place_close(close: Close, across: Axis, up: Axis) -> JsonObject:
    """Return a close as a line: over its period, at the height of its known-at."""
    left, right = across.place(close.start), across.place(close.end)
    period = {"start": close.start.isoformat(), "end": close.end.isoformat()}
    line = {"x": left, "width": right - left, "y": up.place(close.known_at)}
    return {"name": close.name, **period, "knownAt": close.known_at.isoformat(), **line}


def _list_moments(rows: Sequence[Row], start: str, end: str) -> list[datetime]:
    moments = (find_cell(row, name, datetime) for row in rows for name in (start, end))
    return [moment for moment in moments if moment is not None]
