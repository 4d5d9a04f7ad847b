"""Numbers and moments as places in a drawing: small plots, axes, ticks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT, MARGIN = 120, 26, 4
"""Of a small plot."""


def spark(values: Sequence[float]) -> dict[str, Any]:
    """A small plot: the path of its line (SVG), the place of the last value, and the value.

    All values equal are a line in the middle; the last one is on the right.

        spark([1, 3]) -> {"path": "M4.0 22.0L116.0 4.0", "x": 116.0, "y": 4.0, "last": 3}
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
