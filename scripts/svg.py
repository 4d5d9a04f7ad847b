"""What the pictures of the docs share: the frame of an SVG, its texts, and the colours of the pages, light or dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files

INK, MUTED = "var(--ink)", "var(--soft)"


def palette() -> str:
    """The colours of the pages (page.css) as CSS that an image understands: dark where its reader's page is."""
    style = files("hindcast.report").joinpath("page.css").read_text("utf-8")
    colours = re.findall(r"(--[\w-]+): light-dark\((#\w+), (#\w+)\)", style)
    light, dark = ("; ".join(f"{it[0]}: {it[shade]}" for it in colours) for shade in (1, 2))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def document(title: str, width: int, height: int, defs: Sequence[str], shapes: Sequence[str]) -> str:
    """An SVG of this size, in the colours of the pages, with a title for those who do not see it."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="16" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f"<style>{palette()}</style>",
        *defs,
        f'<rect width="{width}" height="{height}" fill="var(--paper)"/>',
        *shapes,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def text(x: float, y: float, words: str, style: str) -> str:
    """A line of text at a place, with attributes."""
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'
