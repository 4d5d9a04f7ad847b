"""The results as a picture: an SVG with a bar for each peer, drawn by hand. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from bench.speed.names import OURS
from bench.speed.table import Row

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
WIDTH, LEFT, BAR, GAP, HEAD = 760, 250, 14, 4, 26
OWN, OTHER = "#1f6feb", "#8b949e"


def svg(every: Sequence[Row]) -> str:
    """Groups of bars, one group for an operation on some data, each to its own scale; whiskers from least to most.

    What has nothing beside it is left out.
    """
    parts, top = [], 8
    measured = [row for row in every if row["seconds"] is not None and not row["peer"].startswith(f"{OURS}: ")]
    for (operation, data), group in groupby(measured, key=lambda row: (row["operation"], row["data"])):
        bars = sorted(group, key=lambda row: row["seconds"] / row.get("share", 1))
        if len(bars) == 1:
            continue
        most = max(row["range"][1] / row.get("share", 1) for row in bars)
        parts.append(
            f'<text x="8" y="{top + 16}" font-weight="bold">{escape(TITLES[operation])}, {escape(data)}</text>'
        )
        top += HEAD
        for row in bars:
            parts += _bar(row, top, (WIDTH - LEFT - 160) / most)
            top += BAR + GAP
        top += 10
    style = 'font-family="sans-serif" font-size="12" fill="#24292f"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" {style}>'
    ground = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def _bar(row: Row, top: int, scale: float) -> list[str]:
    share = row.get("share", 1)
    seconds, low, high = (value / share for value in (row["seconds"], *row["range"]))
    middle, end = top + BAR / 2, LEFT + high * scale
    told = f"{float(f'{seconds:.3g}'):g} s" + ("" if share == 1 else " (from a part)")
    colour = OWN if row["peer"] == OURS else OTHER
    return [
        f'<text x="{LEFT - 6}" y="{top + BAR - 3}" text-anchor="end">{escape(row["peer"])}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{seconds * scale:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<path d="M{LEFT + low * scale:.1f} {middle}H{end:.1f}" stroke="#24292f"/>',
        f'<text x="{end + 6:.1f}" y="{top + BAR - 3}">{told}</text>',
    ]
