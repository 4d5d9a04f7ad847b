"""The routes of the pages. Every one asks Airflow whether the user may see it: there is none outside the two routers.

Each page has a twin: the same address with `.json` at the end of its path has what the page shows, as JSON. All state
is in the address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import RedirectResponse, Response

from hindcast.errors import HindcastError, QueryError, UnknownError
from hindcast.pages import catalog, machine, offsets, quality, rendering
from hindcast.pages.access import Access
from hindcast.planning import journal
from hindcast.settings import settings

Told = dict[str, Any]
Page = Literal["quality", "machine", "ledger", "report"]


def made(access: Access) -> FastAPI:
    """The application. `access` says who may read what."""
    may: Any = Depends(access.readable)
    of_machine: Any = Depends(machine.Asked)
    anyone = APIRouter(dependencies=[Depends(access.website)])
    pipeline = APIRouter(dependencies=[Depends(access.website), Depends(access.pipeline)])

    @anyone.get("/")
    def start(request: Request) -> Response:
        return _to(request, "quality")

    @anyone.get("/static/{name}")
    def static(name: str) -> Response:
        return rendering.asset(name)

    @_twins(anyone, "/quality", "quality.html")
    def all_quality(readable: frozenset[str] = may) -> Told:
        return quality.overview(settings(), readable)

    @_twins(pipeline, "/quality/{dag_id}", "runs.html")
    def one_quality(dag_id: str, before: int | None = None, readable: frozenset[str] = may) -> Told:
        return quality.of_pipeline(settings(), catalog.contract(dag_id, readable), before)

    @_twins(anyone, "/machine", "pipelines.html")
    def all_machines(readable: frozenset[str] = may) -> Told:
        return {"page": "machine", "pipelines": catalog.listed(readable)}

    @_twins(pipeline, "/machine/{dag_id}", "machine.html")
    def one_machine(dag_id: str, asked: Any = of_machine, readable: frozenset[str] = may) -> Told:
        return machine.page(settings(), catalog.contract(dag_id, readable), readable, asked)

    @pipeline.get("/keys/{dag_id}.json")
    def keys(dag_id: str, table: str, beginning: str = "", readable: frozenset[str] = may) -> Response:
        return rendering.as_json(machine.keys(settings(), catalog.contract(dag_id, readable), table, beginning))

    @_twins(anyone, "/ledger", "pipelines.html")
    def all_ledgers(readable: frozenset[str] = may) -> Told:
        return {"page": "ledger", "pipelines": catalog.listed(readable)}

    @_twins(pipeline, "/ledger/{dag_id}", "ledger.html")
    def one_ledger(dag_id: str, before: int | None = None, readable: frozenset[str] = may) -> Told:
        return offsets.page(settings(), catalog.contract(dag_id, readable), readable, before)

    @pipeline.get("/reports/{dag_id}/{name:path}")
    def report(dag_id: str, name: str, readable: frozenset[str] = may) -> Response:
        return rendering.document(settings().reports / catalog.contract(dag_id, readable).pipeline, name)

    @pipeline.get("/dag/{dag_id}/{page}.json")
    def of_dag_json(request: Request, dag_id: str, page: Page) -> Response:
        return _to(request, f"{page}/{catalog.pipeline_of(dag_id)}.json")

    @pipeline.get("/dag/{dag_id}/{page}")
    def of_dag(request: Request, dag_id: str, page: Page) -> Response:
        return _to(request, f"{page}/{catalog.pipeline_of(dag_id)}")

    @pipeline.get("/dag/{dag_id}/run/{run_id}/{page}")
    def of_run(request: Request, dag_id: str, run_id: str, page: Page) -> Response:
        name = catalog.pipeline_of(dag_id)
        runs = [run for run in journal.runs(settings().warehouse, name) if run.run_id == run_id]
        if not runs:
            raise UnknownError(f"'{run_id}' has planned nothing", where=name, mend="its first task plans the run")
        last = quality.of_run(settings(), runs[-1])
        if page != "report":
            return _to(request, f"{page}/{name}", knownAt=f"run:{last['run']}")
        return _to(request, f"reports/{name}/{last['report']}" if last["report"] else f"quality/{name}")

    app = FastAPI(title="Hindcast", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(anyone)
    app.include_router(pipeline)
    app.add_exception_handler(HindcastError, _refused)
    app.add_exception_handler(RequestValidationError, _not_asked_right)
    return app


def _twins(router: APIRouter, path: str, template: str) -> Callable[[Callable[..., Told]], Callable[..., Told]]:
    """A page at `path`, and the same as JSON at `path`.json."""

    def both(tell: Callable[..., Told]) -> Callable[..., Told]:
        @wraps(tell)
        def page(**asked: Any) -> Callable[[Request], Response]:
            told = tell(**asked)
            return lambda request: rendering.html(request, template, told)

        @wraps(tell)
        def twin(**asked: Any) -> Response:
            return rendering.as_json(tell(**asked))

        filled: Any = Depends(page)

        def shown(request: Request, made: Callable[[Request], Response] = filled) -> Response:
            return made(request)

        router.add_api_route(f"{path}.json", twin, name=f"{tell.__name__}_json", response_model=None)
        router.add_api_route(path, shown, name=tell.__name__, response_model=None)
        return tell

    return both


def _to(request: Request, page: str, **asked: str) -> Response:
    """Another page, asked the same, and what is `asked` besides."""
    query = urlencode({**asked, **request.query_params}, safe=":")
    return RedirectResponse(f"{request.scope.get('root_path', '')}/{page}{'?' if query else ''}{query}")


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HindcastError)  # noqa: S101  # it is registered for these
    status = 404 if isinstance(error, UnknownError) else 400 if isinstance(error, QueryError) else 500
    return rendering.refused(request, error, status)


def _not_asked_right(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101  # it is registered for these
    first = error.errors()[0]
    found = f"{first['loc'][-1]}: {first['msg']}, found '{first.get('input')}'"
    return rendering.refused(request, QueryError(found, mend="mend the address"), 400)
