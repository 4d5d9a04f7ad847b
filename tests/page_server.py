"""The pages of Airflow's UI served without Airflow, for tests in a browser."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount

from hindcast.airflow.pages import PREFIX
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast_local import ports


@contextmanager
def serve_pages(pipeline: str, routes: Sequence[BaseRoute] = ()) -> Iterator[str]:
    """Serve the pages of the settings in force to whoever asks; yield the server's address, without `PREFIX`.

    Everybody may read the pipeline, and no other. `routes`: further ones of the same server.
    """

    def readable() -> frozenset[str]:
        return frozenset({pipeline})

    pages = build_app(PageAccess(lambda: None, lambda: None, readable))
    port = ports.find_free_port()
    app = Starlette(routes=[Mount(PREFIX, pages), *routes])
    server = uvicorn.Server(uvicorn.Config(app, ports.HOST, port, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://{ports.HOST}:{port}"
    finally:
        server.should_exit = True
        thread.join()
