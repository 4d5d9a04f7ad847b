"""The pages in Airflow's UI: quality, time machine, ledger. plugins/hindcast_pages.py hands them to Airflow.

Every process of Airflow loads its plugins, one of them serves pages: what pages need is imported at the first request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from threading import Lock
from typing import Any

PREFIX = "/hindcast"
"""Where Airflow's API server has the pages."""

VIEWS = [
    {"name": name, "href": f"{PREFIX}/{page}", "destination": destination, "url_route": f"hindcast-{route}"}
    for name, page, destination, route in (
        ("Hindcast", "quality", "nav", "quality"),
        ("Quality", "dag/{DAG_ID}/quality", "dag", "dag-quality"),
        ("Time machine", "dag/{DAG_ID}/machine", "dag", "dag-machine"),
        ("Ledger", "dag/{DAG_ID}/ledger", "dag", "dag-ledger"),
        ("Report", "dag/{DAG_ID}/run/{RUN_ID}/report", "dag_run", "run-report"),
        ("Time machine", "dag/{DAG_ID}/run/{RUN_ID}/machine", "dag_run", "run-machine"),
        ("Report", "dag/{DAG_ID}/run/{RUN_ID}/report", "task_instance", "task-report"),
    )
]
"""The pages as Airflow's UI lists them (external_views); it puts the names of DAG and run into their addresses."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The pages behind Airflow's login, as an ASGI application."""
    from starlette.concurrency import run_in_threadpool

    await (await run_in_threadpool(_served))(scope, receive, send)


def _served() -> Any:
    with _ONE:
        return _made()


@cache
def _made() -> Any:
    from hindcast.pages import access
    from hindcast.pages.app import made

    return made(access.airflow())


_ONE = Lock()
