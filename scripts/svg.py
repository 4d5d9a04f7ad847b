"""What the pictures of the docs share: the frame of an SVG, its colours, its texts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

INK, MUTED = "#1b1f24", "#57606a"


def document(title: str, width: int, height: int, defs: Sequence[str], shapes: Sequence[str]) -> str:
    """An SVG of this size, white, with a title for those who do not see it."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="16" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        *defs,
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *shapes,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def text(x: float, y: float, words: str, style: str) -> str:
    """A line of text at a place, with attributes."""
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'
