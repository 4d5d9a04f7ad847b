"""Great Expectations' Data Docs in the look of our pages: light or dark, with what needs no script.

They load their own look, and the script that fills the list of their first page, from other hosts: our policy for them
(`rendering.DATA_DOCS_POLICY`) lets neither in. So the page that is sent has a style of ours, and a list of its own.
"""

from __future__ import annotations

import re
from html import escape
from itertools import islice
from pathlib import Path
from urllib.parse import quote

THEMES = ("dark", "light")
MAX_BYTES = 8 << 20
"""Larger pages are sent as they are."""
MAX_LINKS = 1_000


def dress_page(path: Path, static: str, theme: str | None) -> bytes | None:
    """Return a page of Data Docs with our style, and with the theme, if it is one; None if it is too large.

    `static`: the address of our styles. Links to other pages keep the theme.
    """
    if path.stat().st_size > MAX_BYTES:
        return None
    text = path.read_bytes()
    styles = "".join(f'<link rel="stylesheet" href="{static}/{name}">' for name in ("page.css", "data_docs.css"))
    text = text.replace(b"</head>", f"{styles}</head>".encode(), 1)
    if path.name == "index.html":
        text = text.replace(b"<footer>", f"{_list_validations(path.parent)}<footer>".encode("utf-8", "replace"), 1)
    if theme not in THEMES:
        return text
    text = text.replace(b"<html>", f'<html data-theme="{theme}">'.encode(), 1)
    return _LINK.sub(lambda it: b'%s?theme=%s"' % (it[1], theme.encode()), text)


_LINK = re.compile(rb'(<a\b[^>]*\shref="(?![a-zA-Z]+:|#)[^"?#]+\.html)"')


def _list_validations(folder: Path) -> str:
    """Return links to the results of each table, as HTML."""
    pages = sorted(islice(folder.glob("validations/**/*.html"), MAX_LINKS))
    items = [
        f'<li><a href="{escape(quote(page.relative_to(folder).as_posix()))}">{escape(page.stem)}</a></li>'
        for page in pages
    ]
    return f'<nav class="validations" aria-label="Results by table"><ul>{"".join(items)}</ul></nav>'
