"""The results as a picture: an SVG with a bar for each peer, in the colours and with the axes of the pages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import floor, log10

from svg import INK, MUTED, document, text

from bench.speed.names import OURS
from bench.speed.table import Row
from hindcast.airflow.pages import drawing

TITLES = {
    "a": "a  stream-table join",
    "b": "b  stream-table join, one hot key",
    "c": "c  table-table join",
    "d": "d  aggregate of a table over time",
    "e": "e  replay of JSON records",
    "i": "i  replay of other records",
    "f": "f  a run of 100,000 records",
    "g": "g  a small run",
    "h": "h  as-of queries without Spark",
    "j": "j  aggregates in windows",
    "k": "k  join of two streams",
}
WIDTH, LEFT, RIGHT, BAR, GAP, HEAD, FOOT = 800, 250, 180, 14, 6, 28, 36
TEXT, LABEL = 'font-size="12"', f'font-size="10.5" fill="{MUTED}"'
OWN, OTHER = 'fill="var(--blue)"', f'fill="var(--wash)" stroke="{MUTED}"'


def svg(every: Sequence[Row]) -> str:
    """Groups of bars, one group for an operation on some data, each to its own scale; whiskers from least to most.

    What has nothing beside it is left out.
    """
    shapes, top = list[str](), 8
    measured = [row for row in every if row["seconds"] is not None and not row["peer"].startswith(f"{OURS}: ")]
    for (operation, data), group in groupby(measured, key=lambda row: (row["operation"], row["data"])):
        bars = sorted(group, key=lambda row: row["seconds"] / row.get("share", 1))
        if len(bars) == 1:
            continue
        most = max(row["range"][1] / row.get("share", 1) for row in bars)
        bottom = top + HEAD + len(bars) * (BAR + GAP)
        shapes.append(text(8, top + 16, f"{TITLES[operation]}, {data}", 'font-size="13" font-weight="bold"'))
        shapes += _axis(top + HEAD - GAP, bottom, most)
        for n, row in enumerate(bars):
            shapes += _bar(row, top + HEAD + n * (BAR + GAP), most)
        top = bottom + FOOT
    title = "Seconds of each operation, in Hindcast and in its peers"
    return document(title, WIDTH, top, [], shapes)


def _axis(top: int, bottom: int, most: float) -> list[str]:
    """Seconds, from 0 to the most: lines at round numbers, with as many labels as fit."""
    step = next(it for it in (10.0 ** floor(log10(most)) * part for part in (0.1, 0.2, 0.5, 1)) if most / it <= 10)
    ticks = [step * n for n in range(1 + floor(most / step))]
    labels = [f"{tick:.3g} s" if tick else "0" for tick in ticks]
    places = [LEFT + (WIDTH - LEFT - RIGHT) * tick / most for tick in ticks]
    grid = "".join(f"M{x:.1f} {top}V{bottom + 4}" for x in places)
    chosen = drawing.choose_ticks(places, [6.0 * len(label) for label in labels], 16)
    return [
        f'<path d="{grid}" stroke="var(--line)"/>',
        f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="{MUTED}"/>',
        *(text(round(places[n], 1), bottom + 16, labels[n], f'text-anchor="middle" {LABEL}') for n in chosen),
    ]


def _bar(row: Row, top: int, most: float) -> list[str]:
    share = row.get("share", 1)
    values = [value / share for value in (row["seconds"], *row["range"])]
    (wide, low, high), middle = drawing.scale_lengths(values, WIDTH - LEFT - RIGHT, most), top + BAR / 2
    seconds = f"{float(f'{values[0]:.3g}'):g} s" + ("" if share == 1 else " (from a part)")
    is_own = row["peer"] == OURS
    weight = ' font-weight="bold"' if is_own else ""
    return [
        text(LEFT - 8, top + BAR - 3, row["peer"], f'text-anchor="end" {TEXT}{weight}'),
        f'<rect x="{LEFT}" y="{top}" width="{wide}" height="{BAR}" {OWN if is_own else OTHER}/>',
        f'<path d="M{LEFT + low} {middle}h{high - low:.1f}m0 -3v6m{low - high:.1f} 0v-6" fill="none" stroke="{INK}"/>',
        text(round(LEFT + high + 8, 1), top + BAR - 3, seconds, f"{TEXT}{weight}"),
    ]
