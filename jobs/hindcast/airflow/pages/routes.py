"""The routes of the pages. All belong to one of two routers, which ask Airflow whether the user may see them.

Each page has a twin: the same address with `.json` at the end of its path returns what the page shows, as JSON. All
state is in the address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Literal, ParamSpec
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hindcast.airflow.pages import (
    PREFIX,
    catalog,
    changes_page,
    closes_page,
    failing_page,
    ledger_page,
    marks,
    preview_page,
    quality,
    reading_limits,
    rendering,
    run_reports,
    time_machine,
    warned_rows,
)
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.changes_page import ChangesRequest
from hindcast.airflow.pages.closes_page import ClosesRequest
from hindcast.airflow.pages.time_machine import MachineRequest, QuestionError
from hindcast.common.errors import HindcastError, QueryError, UnknownError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import Settings, read_settings
from hindcast.contract import Contract
from hindcast.contract.names import PREVIEW, RELEASE, name_preview
from hindcast.plan import former_marks_cache, journal
from hindcast.plan.parsed_journals import JournalLimits
from hindcast.plan.purposes import Release
from hindcast.report import preview_files

PageName = Literal["quality", "machine", "changes", "closes", "ledger"]
RunPageName = Literal[PageName, "report"]
P = ParamSpec("P")


def build_app(access: PageAccess) -> FastAPI:
    """Return the application; `access` says who may read what. What it reads is limited (reading_limits.py)."""
    journal.limit_reading(
        JournalLimits(
            reading_limits.JOURNAL_MEMORY,
            reading_limits.KEPT_MEMORY,
            reading_limits.watch_journal,
            reading_limits.WAIT_SECONDS,
        )
    )
    may = Depends(access.readable)
    of_machine, of_changes, of_closes = Depends(MachineRequest), Depends(ChangesRequest), Depends(ClosesRequest)
    anyone = APIRouter(dependencies=[Depends(access.website)])
    pipeline = APIRouter(dependencies=[Depends(access.website), Depends(access.pipeline)])

    @anyone.get("/")
    def start(request: Request) -> Response:
        return _redirect_to(request, "quality")

    @anyone.get("/static/{name}")
    def static(name: str) -> Response:
        return rendering.serve_asset(name)

    @_add_page(anyone, "/quality", "quality.html")
    def all_quality(readable: frozenset[str] = may) -> JsonObject:
        return quality.build_overview(read_settings(), readable)

    @_add_page(pipeline, "/quality/{dag_id}", "pipeline_quality.html")
    def one_quality(dag_id: str, before: int | None = None, readable: frozenset[str] = may) -> JsonObject:
        settings = read_settings()
        contract = marks.load_marked_contract(settings, dag_id, readable)
        return quality.build_pipeline_page(settings, contract, before)

    @_add_page(anyone, "/failing", "failing_rows.html")
    def all_failing(readable: frozenset[str] = may) -> JsonObject:
        return failing_page.build_page(read_settings(), readable)

    @_add_page(anyone, "/machine", "pipelines.html")
    def all_machines(readable: frozenset[str] = may) -> JsonObject:
        return {"page": "machine", "pipelines": catalog.list_pipelines(read_settings(), readable)}

    @_add_page(pipeline, "/machine/{dag_id}", "machine.html")
    def one_machine(dag_id: str, asked: MachineRequest = of_machine, readable: frozenset[str] = may) -> JsonObject:
        settings = read_settings()
        contract = marks.load_marked_contract(settings, dag_id, readable)
        return time_machine.build_page(settings, contract, readable, asked)

    @pipeline.get("/keys/{dag_id}.json")
    def keys(dag_id: str, table: str, beginning: str = "", readable: frozenset[str] = may) -> Response:
        settings = read_settings()
        contract = marks.load_marked_contract(settings, dag_id, readable)
        return rendering.as_json(time_machine.suggest_keys(settings, contract, table, beginning))

    @_add_page(anyone, "/changes", "pipelines.html")
    def all_changes(readable: frozenset[str] = may) -> JsonObject:
        return {"page": "changes", "pipelines": catalog.list_pipelines(read_settings(), readable)}

    @pipeline.get("/changes/{dag_id}.csv")
    def changes_csv(dag_id: str, asked: ChangesRequest = of_changes, readable: frozenset[str] = may) -> Response:
        settings = read_settings()
        contract = marks.load_marked_contract(settings, dag_id, readable)
        return rendering.as_csv(
            changes_page.build_csv(settings, contract, asked), f"changes-of-{contract.pipeline}.csv"
        )

    @_add_page(pipeline, "/changes/{dag_id}", "changes.html")
    def one_changes(dag_id: str, asked: ChangesRequest = of_changes, readable: frozenset[str] = may) -> JsonObject:
        settings = read_settings()
        contract = marks.load_marked_contract(settings, dag_id, readable)
        return changes_page.build_page(settings, contract, readable, asked)

    @_add_page(anyone, "/closes", "pipelines.html")
    def all_closes(readable: frozenset[str] = may) -> JsonObject:
        return {"page": "closes", "pipelines": catalog.list_pipelines(read_settings(), readable)}

    @_add_page(pipeline, "/closes/{dag_id}", "closes.html")
    def one_closes(dag_id: str, asked: ClosesRequest = of_closes, readable: frozenset[str] = may) -> JsonObject:
        settings = read_settings()
        contract = marks.load_marked_contract(settings, dag_id, readable)
        return closes_page.build_page(settings, contract, asked)

    @_add_page(anyone, "/ledger", "pipelines.html")
    def all_ledgers(readable: frozenset[str] = may) -> JsonObject:
        return {"page": "ledger", "pipelines": catalog.list_pipelines(read_settings(), readable)}

    @_add_page(pipeline, "/ledger/{dag_id}", "ledger.html")
    def one_ledger(dag_id: str, before: int | None = None, readable: frozenset[str] = may) -> JsonObject:
        settings = read_settings()
        contract = marks.load_marked_contract(settings, dag_id, readable)
        return ledger_page.build_page(settings, contract, readable, before)

    @pipeline.get("/reports/{dag_id}/{name:path}")
    def report(request: Request, dag_id: str, name: str, readable: frozenset[str] = may) -> Response:
        settings = read_settings()
        contract = marks.load_marked_contract(settings, dag_id, readable)
        masked = run_reports.find_masked_report(settings, contract, name)
        shown = masked or run_reports.read_written_report(settings, contract, name)
        failing = quality.list_failing_gates(settings, contract, shown) if shown and name.endswith(".html") else []
        release = run_reports.find_release(settings, contract, shown.run) if shown else None
        if shown is not None:
            past = journal.read_runs(settings.warehouse, contract.pipeline)
            warned = warned_rows.list_warned_rows(settings, contract, [run for run in past if run.number <= shown.run])
            neighbours = run_reports.find_neighbours((run for run in past if run.has_report), shown.run)
            near = {**neighbours, "warned": [*warned]}
            return rendering.serve_report(request, shown, name, failing, release, near)
        return rendering.serve_document(request, settings.reports / contract.pipeline, name)

    @pipeline.get("/dag/{dag_id}/{page}.json")
    def of_dag_json(request: Request, dag_id: str, page: PageName) -> Response:
        return _redirect_to(request, f"{page}/{catalog.pipeline_of_dag(read_settings(), dag_id)}.json")

    @pipeline.get("/dag/{dag_id}/{page}")
    def of_dag(request: Request, dag_id: str, page: PageName) -> Response:
        return _redirect_to(request, f"{page}/{catalog.pipeline_of_dag(read_settings(), dag_id)}")

    @pipeline.get("/dag/{dag_id}/run/{run_id}/{page}")
    def of_run(
        request: Request, dag_id: str, run_id: str, page: RunPageName, readable: frozenset[str] = may
    ) -> Response:
        settings = read_settings()
        name = catalog.pipeline_of_dag(settings, dag_id)
        runs = []
        if name in readable:  # the DAG of the address may be one beside the pipeline's own
            contract = marks.load_marked_contract(settings, name, readable)
            past = journal.read_runs(settings.warehouse, name)
            runs = [run for run in past if run.run_id == run_id]
            # A run of the other DAG can have the same id.
            is_release = dag_id == f"{name}{RELEASE}"
            runs = [run for run in runs if isinstance(run.plan.purpose, Release) == is_release] or runs
            if dag_id == f"{name}{PREVIEW}":
                if page == "report":
                    return _show_preview(request, settings, contract, run_id)
                if not runs:
                    return of_dag(request, dag_id, page)
            if not runs and page == "report":
                preview = name_preview(run_id)
                if preview_files.read_preview(settings, contract, preview):
                    return _show_preview(request, settings, contract, preview)
        if not runs:
            raise UnknownError(
                f"'{run_id}' has no plan yet", where=name, fix="wait for its first task, which plans the run"
            )
        last = quality.build_run_entry(settings, runs[-1], quality.build_mark_check(settings, contract, past))
        if page != "report":
            return _redirect_to(request, f"{page}/{name}", knownAt=f"run:{last.run.number}")
        if not last.report:
            return _redirect_to(request, f"quality/{name}")
        return rendering.render_page(request, "open_report.html", {"pipeline": name, "report": last.report})

    app = FastAPI(title="Hindcast", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_PageLimit)
    app.include_router(anyone)
    app.include_router(pipeline)
    app.add_exception_handler(HindcastError, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_invalid_request)
    app.add_exception_handler(Exception, _handle_unforeseen_error)
    return app


class _PageLimit:
    """Limits what each request reads, in whichever thread it is handled."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        with reading_limits.limit_page(reading_limits.PAGE_SECONDS), former_marks_cache.limit_page():
            await self._app(scope, receive, send)


def _add_page(
    router: APIRouter, path: str, template: str
) -> Callable[[Callable[P, JsonObject]], Callable[P, JsonObject]]:
    """Return a decorator that serves a function's fields as a page at `path`, and as JSON at `path`.json."""

    def decorate(build: Callable[P, JsonObject]) -> Callable[P, JsonObject]:
        @wraps(build)
        def prepare(*args: P.args, **kwargs: P.kwargs) -> Callable[[Request], Response]:
            fields = build(*args, **kwargs)
            return lambda request: rendering.render_page(request, template, fields)

        @wraps(build)
        def serve_json(*args: P.args, **kwargs: P.kwargs) -> Response:
            return rendering.as_json(build(*args, **kwargs))

        prepared = Depends(prepare)

        def serve_page(request: Request, render: Callable[[Request], Response] = prepared) -> Response:
            return render(request)

        router.add_api_route(f"{path}.json", serve_json, name=f"{build.__name__}_json", response_model=None)
        router.add_api_route(path, serve_page, name=build.__name__, response_model=None)
        return build

    return decorate


def _show_preview(request: Request, settings: Settings, contract: Contract, run_id: str) -> Response:
    """Return the page of a preview's run: its answer, and a link to its log."""
    airflow = request.scope.get("root_path", "").removesuffix(PREFIX)
    log = f"{airflow}/dags/{quote(contract.pipeline + PREVIEW)}/runs/{quote(run_id, safe='')}/tasks/preview"
    answer = preview_files.read_preview(settings, contract, run_id)
    return rendering.render_page(request, "preview.html", {**preview_page.build_page(contract, answer), "log": log})


def _redirect_to(request: Request, page: str, **parameters: str) -> Response:
    """Return a redirect to another page, with the query of this request added to the parameters."""
    query = urlencode({**parameters, **request.query_params}, safe=":")
    return RedirectResponse(f"{request.scope.get('root_path', '')}/{page}{'?' if query else ''}{query}")


def _handle_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HindcastError)  # noqa: S101  # registered for this class only
    is_unknown = error.is_unknown if isinstance(error, QuestionError) else isinstance(error, UnknownError)
    status = 404 if is_unknown else 400 if isinstance(error, QueryError) else 500
    if isinstance(error, QuestionError) and not request.url.path.endswith(".json"):
        fields = {**error.fields, "problem": error.found, "advice": error.fix, "odd": error.field}
        return rendering.render_page(request, error.template, fields, status)
    return rendering.render_error(request, error, status)


def _handle_unforeseen_error(request: Request, error: Exception) -> Response:
    """Return a page that names the kind of error only: its text may have values. The server logs it whole."""
    found = f"this page cannot be shown: {type(error).__name__}"
    verify = f"hindcast verify {request.path_params.get('dag_id', 'PIPELINE')} --quick"
    fix = f"{verify}, if a table was changed by hand; else report it with the API server's log"
    return rendering.render_error(request, HindcastError(found, fix=fix), 500)


def _handle_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # registered for this class only
    first = error.errors()[0]
    found = f"{first['loc'][-1]}: {first['msg']}, found '{first.get('input')}'"
    return rendering.render_error(request, QueryError(found, fix="correct the address"), 400)
