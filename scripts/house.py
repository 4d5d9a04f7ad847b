"""The picture of docs/architecture.md, an SVG: the rooms of jobs/hindcast that a record goes through, step by step.

Pure. scripts/docs.py writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from svg import INK, MUTED, document, text


class Box(NamedTuple):
    """A room, or a table: its name, a line of what it does, where it is, how wide, and how it is filled."""

    name: str
    does: str
    x: int
    y: int
    width: int
    fill: str


WIDTH, HEIGHT, TALL = 1000, 640, 54
ROOM, MEANING, TABLE, OUTSIDE = (
    f"color-mix(in srgb, {colour} 22%, var(--paper))" for colour in ("var(--blue)", "#009e73", "#e69f00", "var(--soft)")
)

BOXES = (
    Box("Airflow", "airflow/dag_factory.py", 250, 16, 200, OUTSIDE),
    Box("you", "a shell, a notebook", 550, 16, 200, OUTSIDE),
    Box("airflow", "steps as tasks", 250, 96, 200, ROOM),
    Box("cli", "hindcast run, query ...", 550, 96, 200, ROOM),
    Box(
        "runs",
        "the steps, each safe to repeat:  plan,  replay each topic,  build each view,  finish",
        20,
        176,
        960,
        ROOM,
    ),
    Box("plan", "offsets, known-at", 20, 266, 150, ROOM),
    Box("kafka", "records of these offsets", 190, 266, 190, ROOM),
    Box("formats", "bytes to keys and values", 190, 340, 190, MEANING),
    Box("ingest", "fates; each offset once", 190, 414, 190, ROOM),
    Box("runs", "what changes in a table", 400, 266, 400, ROOM),
    Box("bitemporal", "joins, the plane", 400, 340, 126, MEANING),
    Box("streams", "kafka reading", 537, 340, 126, MEANING),
    Box("engine", "file to file", 674, 340, 126, MEANING),
    Box("quality", "gates; what they hold back of it", 400, 414, 400, ROOM),
    Box("report", "what the run did", 820, 266, 160, ROOM),
    Box("journal", "what runs did", 20, 500, 150, TABLE),
    Box("logs, quarantine", "every offset has a fate", 190, 500, 190, TABLE),
    Box("tables", "rectangles: true from, to; believed from, to", 400, 500, 400, TABLE),
    Box("reports", "JSON, a page", 820, 500, 160, TABLE),
    Box("store", "tables; commits, each made once", 20, 570, 360, ROOM),
    Box("query", "as of, known at: Spark SQL, Python, the time machine", 400, 570, 400, ROOM),
    Box("ops", "verify, trim, forget", 820, 570, 160, ROOM),
)
"""Rooms by their names in jobs/hindcast; green is what records mean, yellow what is written."""

ARROWS = (
    ((350, 70), (350, 96)),
    ((650, 70), (650, 96)),
    ((350, 150), (350, 176)),
    ((650, 150), (650, 176)),
    ((95, 230), (95, 266)),
    ((285, 230), (285, 266)),
    ((600, 230), (600, 266)),
    ((900, 230), (900, 266)),
    ((285, 320), (285, 340)),
    ((285, 394), (285, 414)),
    ((600, 320), (600, 340)),
    ((600, 394), (600, 414)),
    ((95, 320), (95, 500)),
    ((285, 468), (285, 500)),
    ((600, 468), (600, 500)),
    ((900, 320), (900, 500)),
    ((380, 527), (400, 527)),
)


def svg() -> str:
    """The picture."""
    defs = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">',
        f'<path d="M0 0L8 4L0 8z" fill="{MUTED}"/></marker></defs>',
    ]
    shapes = [*(_arrow(*ends) for ends in ARROWS), *(part for box in BOXES for part in _box(box))]
    return document("The rooms that a record goes through", WIDTH, HEIGHT, defs, shapes)


def _arrow(start: Sequence[int], end: Sequence[int]) -> str:
    (x, y), (u, v) = start, end
    return f'<path d="M{x} {y}L{u} {v}" stroke="{MUTED}" stroke-width="2" marker-end="url(#tip)"/>'


def _box(box: Box) -> list[str]:
    size, middle = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{TALL}"', box.x + box.width // 2
    return [
        f'<rect {size} rx="4" fill="{box.fill}" stroke="{INK}" stroke-width="1.2"/>',
        text(middle, box.y + 23, box.name, 'text-anchor="middle" font-weight="bold"'),
        text(middle, box.y + 42, box.does, f'text-anchor="middle" font-size="13" fill="{MUTED}"'),
    ]
