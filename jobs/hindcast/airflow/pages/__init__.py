"""The pages in Airflow's UI: quality, changes, time machine, closes, ledger. airflow/plugins.py registers them.

Every process of Airflow loads its plugins, but only one serves pages: what they need is imported at the first request.
"""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/hindcast"
"""The path at which Airflow's API server serves the pages."""

VIEWS = [
    {"name": name, "href": f"{PREFIX}/{page}", "destination": destination, "url_route": f"hindcast-{route}"}
    for name, page, destination, route in (
        ("Hindcast", "quality", "nav", "quality"),
        ("Quality", "dag/{DAG_ID}/quality", "dag", "dag-quality"),
        ("Changes", "dag/{DAG_ID}/changes", "dag", "dag-changes"),
        ("Time machine", "dag/{DAG_ID}/machine", "dag", "dag-machine"),
        ("Closes", "dag/{DAG_ID}/closes", "dag", "dag-closes"),
        ("Ledger", "dag/{DAG_ID}/ledger", "dag", "dag-ledger"),
        ("Report", "dag/{DAG_ID}/run/{RUN_ID}/report", "dag_run", "run-report"),
        ("Changes", "dag/{DAG_ID}/run/{RUN_ID}/changes", "dag_run", "run-changes"),
        ("Time machine", "dag/{DAG_ID}/run/{RUN_ID}/machine", "dag_run", "run-machine"),
        ("Report", "dag/{DAG_ID}/run/{RUN_ID}/report", "task_instance", "task-report"),
    )
]
"""The pages as Airflow's UI lists them (external_views); it fills in the ids of DAG and run."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the pages behind Airflow's login, as an ASGI application."""
    from starlette.concurrency import run_in_threadpool

    await (await run_in_threadpool(_load_app))(scope, receive, send)


def _load_app() -> ASGIApp:
    with _BUILD_LOCK:
        return _build_app()


@cache
def _build_app() -> ASGIApp:
    from hindcast.airflow.pages import access
    from hindcast.airflow.pages.routes import build_app

    return build_app(access.airflow_access())


_BUILD_LOCK = Lock()
