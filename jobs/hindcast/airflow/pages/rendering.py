"""The responses: a page as HTML from a template or as JSON, or a file of the reports' folder.

All text is escaped (Jinja's autoescape). Our pages run and load only what this server serves; a report has a policy of
its own; Data Docs, which Great Expectations writes, run no script at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, Environment, FunctionLoader, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from hindcast.airflow.pages import PREFIX, data_docs
from hindcast.airflow.pages.value_colours import format_value
from hindcast.common import permissions
from hindcast.common.errors import HindcastError, PlatformError, UnknownError
from hindcast.common.json_values import JsonObject, JsonValue, list_objects, parse_object
from hindcast.common.plurals import format_count
from hindcast.query.show import format_moment, plain_value
from hindcast.report import page
from hindcast.report.run_report import RunReport
from hindcast.report.summaries import SIGNS, format_timestamp

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
"""What the browser may do in our pages."""

DATA_DOCS_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""What it may do in Data Docs."""

REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts allow-downloads"
)
"""What it may do in a report, whose own policy names its script and style by hash; without an origin, it can request
nothing.
"""

_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}


def render_page(request: Request, template: str, fields: JsonObject, status: int = 200) -> Response:
    """Return a page: a template of this package, filled with the fields."""
    root = request.scope.get("root_path", "")
    text = load_templates().get_template(template).render(root=root, airflow=root.removesuffix(PREFIX), **fields)
    headers = {**_HEADERS, "Content-Security-Policy": PAGE_POLICY}
    return Response(text.encode("utf-8", "replace"), status, headers, "text/html; charset=utf-8")


def as_json(fields: JsonObject, status: int = 200) -> Response:
    """Return the fields as JSON (`show.plain_value`)."""
    text = json.dumps(plain_value(fields), indent=1)
    return Response(text.encode("utf-8", "replace"), status, {**_HEADERS}, "application/json")


def as_csv(text: str, name: str) -> Response:
    """Return CSV as a file to be saved under this name."""
    headers = {**_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.encode("utf-8", "replace"), 200, headers, "text/csv; charset=utf-8")


def render_error(request: Request, error: HindcastError, status: int) -> Response:
    """Return an error as a page, or as JSON if the request was for JSON."""
    fields = {"found": error.found, "where": error.where, "mend": error.fix}
    if request.url.path.endswith(".json"):
        return as_json({"error": fields}, status)
    return render_page(request, "error.html", fields, status)


def serve_asset(name: str) -> Response:
    """Return a style or script of the pages; UnknownError if there is none of this name."""
    if name not in _ASSETS:
        raise UnknownError(f"no file '{name}'")
    package, media = _ASSETS[name]
    headers = {**_HEADERS, "Cache-Control": "private, max-age=300"}
    return Response(files(package).joinpath(name).read_bytes(), 200, headers, media)


def read_plane_style() -> str:
    """Return the style of what `templates/plane.html` draws, without that of the page around it."""
    style = files("hindcast.airflow.pages.static").joinpath("pages.css").read_text("utf-8")
    return style.partition("/* The plane")[2].partition("*/")[2].partition("/* The page of a plane */")[0].strip()


def serve_report(
    request: Request,
    report: RunReport,
    name: str,
    failing_rows: Sequence[JsonObject] = (),
    release: JsonObject | None = None,
    near: JsonObject | None = None,
) -> Response:
    """Return a report as the page or the JSON of this name; UnknownError for a file of Data Docs: it is not masked."""
    if name.endswith(".json"):
        return as_json(report.as_json())
    if "/" in name:
        found, fix = "what these Data Docs show is sensitive by now", "open the run's report, which hides it"
        raise UnknownError(found, fix=fix)
    headers = {**_HEADERS, "Content-Security-Policy": REPORT_POLICY}
    text = page.render_page(report, failing_rows, request.scope.get("root_path", ""), release, near)
    return Response(text.encode("utf-8", "replace"), 200, headers, "text/html; charset=utf-8")


def serve_document(request: Request, folder: Path, name: str) -> Response:
    """Return a file below a folder, a page of Data Docs in our look.

    Raise UnknownError if there is none or it lies outside, and PlatformError if it is unreadable.
    """
    page.refuse_linked_folder(folder)
    try:
        path = (folder / name).resolve(strict=True)
    except PermissionError as error:
        raise PlatformError(**permissions.explain_error(error, folder / name)) from None
    except (OSError, ValueError, RuntimeError):
        path = folder
    if not path.is_file() or not path.is_relative_to(folder.resolve()):
        raise UnknownError(f"no file '{name}'", fix="open a report from the list of the pipeline's runs")
    if not os.access(path, os.R_OK):
        raise PlatformError(**permissions.explain_error(PermissionError(), path))
    if path.parent == folder.resolve():
        return FileResponse(path, headers={**_HEADERS, "Content-Security-Policy": REPORT_POLICY})
    headers = {**_HEADERS, "Content-Security-Policy": DATA_DOCS_POLICY}
    static = f"{request.scope.get('root_path', '')}/static"
    if path.suffix == ".html" and (text := data_docs.dress_page(path, static, request.query_params.get("theme"))):
        return Response(text, 200, headers, "text/html; charset=utf-8")
    return FileResponse(path, headers=headers)


_ASSETS = {
    "page.css": ("hindcast.report", "text/css"),
    "waterfalls.css": ("hindcast.report", "text/css"),
    "pages.css": ("hindcast.airflow.pages.static", "text/css"),
    "machine.js": ("hindcast.airflow.pages.static", "text/javascript"),
    "rectangle_keys.js": ("hindcast.airflow.pages.static", "text/javascript"),
    "data_docs.css": ("hindcast.airflow.pages.static", "text/css"),
    "shell.js": ("hindcast.airflow.pages.static", "text/javascript"),
}


@cache
def load_templates() -> Environment:
    """Return what renders the templates of the pages."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("hindcast.airflow.pages"), FunctionLoader(page.read_source)]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "moment": format_timestamp,
        "second": lambda iso: format_timestamp(re.sub(r"\.\d+", "", iso)),
        "counted": format_count,
        "number": "{:,}".format,
        "cell": format_value,
        "value": _format_cell,
        "moment_widths": find_moment_widths,
        "minute": _format_minute,
        "cell_of": lambda row, name: _format_cell(parse_object(row["values"]).get(name)) if row else "no row",
        "number_columns": find_number_columns,
        "number_cells": lambda lines: find_number_columns([_list_cells(line) for line in lines]),
    }
    environment.filters["sign"] = lambda kind: SIGNS.get(kind, "!")
    environment.filters["short"] = _format_value
    environment.filters["query"] = lambda state: urlencode(
        {name: text for name, text in state.items() if text is not None}
    )
    return environment


def _format_value(value: JsonValue, width: int = 0) -> str:
    """Return a value as text; a moment, which is in UTC, in its shortest form, of at least this many characters."""
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        with suppress(ValueError):
            moment = datetime.fromisoformat(value)
            text = format_moment(moment)
            return text if text == "unknown" or len(text) >= width else moment.isoformat(" ", "microseconds")[:width]
    return _format_cell(value)


def _format_cell(value: JsonValue) -> str:
    """Return a value as text on one line."""
    return "null" if value is None else format_value(value)


def find_moment_widths(rows: Sequence[JsonObject]) -> dict[str, int]:
    """Return how many characters the moments of each column of some rows need, so that all have one form."""
    widths: dict[str, int] = {}
    for row in rows:
        for name, value in {**row, **parse_object(row["values"])}.items():
            if isinstance(value, str) and _MOMENT.fullmatch(value):
                widths[name] = max(widths.get(name, 0), len(_format_value(value)))
    return widths


def _format_minute(iso: str) -> str:
    """Return a moment to the minute: `2026-02-04 15:03`."""
    return format_timestamp(iso)[:16]


def find_number_columns(rows: Sequence[JsonObject]) -> frozenset[str]:
    """Return the columns whose `values` are all numbers, or texts that decimals are shown as; nulls aside."""
    names = {name for row in rows for name in parse_object(row["values"])}

    def list_values(name: str) -> list[JsonValue]:
        found = (parse_object(row["values"]).get(name) for row in rows)
        return [value for value in found if value is not None]

    return frozenset(name for name in names if list_values(name) and all(map(_is_number, list_values(name))))


def _is_number(value: JsonValue) -> bool:
    if isinstance(value, str):
        return _DECIMAL.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list_cells(line: JsonObject) -> JsonObject:
    """Return a line of changes with its new values, else the old ones, as a row has them."""
    cells = list_objects(line["cells"])
    return {"values": {str(it["name"]): it["before"] if it["after"] is None else it["after"] for it in cells}}


_DECIMAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)")
