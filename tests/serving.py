"""HTTP servers for tests, in this process."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hindcast_local import ports


class Handler(BaseHTTPRequestHandler):
    """Answers `get` and `post` in JSON, and says nothing on the console."""

    def get(self) -> None:
        """Answers GET."""
        self.answer(b"", 405)

    def post(self) -> None:
        """Answers POST."""
        self.answer(b"", 405)

    def do_GET(self) -> None:
        """What the server calls."""
        self.get()

    def do_POST(self) -> None:
        """What the server calls."""
        self.post()

    def answer(self, told: Any, status: int = 200, kind: str = "application/json") -> None:
        """Sends JSON, or bytes as they are."""
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is told."""


@contextmanager
def serving(handler: type[Handler], context: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a server of these answers, as long as the context lasts; with TLS if it has a `context`."""
    with ThreadingHTTPServer((ports.HOST, 0), handler) as server:
        server.daemon_threads = True
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http{'s' if context else ''}://{ports.HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
