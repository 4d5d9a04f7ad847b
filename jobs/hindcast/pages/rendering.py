"""What a page is sent as: HTML from a template, the same as JSON, or a file of the reports' folder.

All text is escaped (Jinja's autoescape). Our pages run and load only what comes from here; a report brings a policy of
its own; Data Docs, which others write, run no script at all.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from hindcast import rights
from hindcast.errors import HindcastError, PlatformError, UnknownError
from hindcast.pages.drawing import label
from hindcast.reports.page import SIGNS, counted, moment
from hindcast.show import cell, plain

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
"""What the browser may do in a page of ours."""

DOCUMENT = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""In Data Docs."""

REPORT = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts allow-downloads"
)
"""In a report, whose own policy names its script and style by their hash; it is of no origin, so it can ask nothing."""

_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}


def html(request: Request, template: str, told: dict[str, Any], status: int = 200) -> Response:
    """A page: a template of this package, filled with what is told."""
    text = _templates().get_template(template).render(root=request.scope.get("root_path", ""), **told)
    headers = {**_HEADERS, "Content-Security-Policy": POLICY}
    return Response(text.encode("utf-8", "replace"), status, headers, "text/html; charset=utf-8")


def as_json(told: dict[str, Any], status: int = 200) -> Response:
    """The same as JSON (show.plain)."""
    text = json.dumps(plain(told), indent=1)
    return Response(text.encode("utf-8", "replace"), status, {**_HEADERS}, "application/json")


def refused(request: Request, error: HindcastError, status: int) -> Response:
    """An error as a page, or as JSON where that was asked for."""
    told = {"found": error.found, "where": error.where, "mend": error.mend}
    if request.url.path.endswith(".json"):
        return as_json({"error": told}, status)
    return html(request, "error.html", told, status)


def asset(name: str) -> Response:
    """A style or script of the pages; UnknownError if there is none of this name."""
    kind = _ASSETS.get(name)
    if kind is None:
        raise UnknownError(f"no file '{name}'")
    package, media = kind
    headers = {**_HEADERS, "Cache-Control": "private, max-age=300"}
    return Response(files(package).joinpath(name).read_bytes(), 200, headers, media)


def document(folder: Path, name: str) -> Response:
    """A file below a folder; UnknownError if there is none, or if the name leads out of it.

    PlatformError if it may not be read.
    """
    try:
        place = (folder / name).resolve(strict=True)
    except PermissionError as error:
        raise PlatformError(**rights.explain(error, folder / name)) from None
    except (OSError, ValueError, RuntimeError):
        place = folder
    if not place.is_file() or not place.is_relative_to(folder.resolve()):
        raise UnknownError(f"no file '{name}'", mend="see the runs of the pipeline: their reports are linked there")
    if not os.access(place, os.R_OK):
        raise PlatformError(**rights.explain(PermissionError(), place))
    policy = REPORT if place.parent == folder.resolve() else DOCUMENT
    return FileResponse(place, headers={**_HEADERS, "Content-Security-Policy": policy})


_ASSETS = {
    "page.css": ("hindcast.reports", "text/css"),
    "pages.css": ("hindcast.pages.static", "text/css"),
    "machine.js": ("hindcast.pages.static", "text/javascript"),
}


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("hindcast.pages"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters |= {"moment": moment, "counted": counted, "number": "{:,}".format, "cell": cell}
    made.filters["sign"] = lambda kind: SIGNS.get(kind, "!")
    made.filters["short"] = _short
    made.filters["query"] = lambda told: urlencode({name: text for name, text in told.items() if text is not None})
    return made


def _short(value: Any) -> str:
    """A value; a moment (ISO 8601) as short as it can be written."""
    try:
        return label(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return cell(value)
