"""Paths in a table's log: those of files in the table's folder, whoever reads them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from urllib.parse import unquote


def leads_out(path: str) -> bool:
    """Return whether a path of a log is absolute, a URI, or goes up; as it is written, or as a reader may decode it."""
    return goes_up(path) or _CONTROLS.search(path) is not None


def goes_up(path: str) -> bool:
    """Return whether a path leads out (`leads_out`), which may have the control characters of a partition's value."""
    forms = [path]
    while "%" in forms[-1] and len(forms) < _DECODED:
        forms.append(unquote(forms[-1]))
    return any(_ABSOLUTE.match(it) or (".." in it and ".." in re.split(r"[/\\]", it)) for it in forms)


_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z][A-Za-z0-9+.-]*:")
"""How an absolute path or a URI begins. A relative path that does so is none of a table: writers escape the colon."""
_CONTROLS = re.compile(r"[\x00-\x1f]")
"""What readers of URIs leave out; writers escape it."""
_DECODED = 4
"""In so many forms a path is looked at: Delta's log has it escaped, and some readers decode it again."""


def is_plain_name(name: str) -> bool:
    """Return whether a text is the name of a file, without a folder and without anything to decode."""
    return _PLAIN.fullmatch(name) is not None


def find_odd_path(paths: Collection[str]) -> str | None:
    """Return a path that another one, spelled otherwise, may lead to as well; None without one.

    That is one that is there twice, or has a part that is empty or a dot. `paths`: those of a table's files, unescaped.
    """
    seen = {*paths}
    if len(seen) < len(paths):
        return next(path for path, count in Counter(paths).items() if count > 1)
    return next((path for path in paths if "//" in f"/{path}/" or "/./" in f"/{path}/"), None)


_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
