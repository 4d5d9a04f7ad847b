"""Where metrics and lineage can be sent to in tests: real sockets on this machine, and what has come to them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def http() -> Iterator[tuple[str, list[bytes]]]:
    """The URL of a server that takes whatever is posted, and the bodies that have come."""
    came: list[bytes] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...  # type: ignore[override]

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server, ThreadPoolExecutor(1) as beside:
        beside.submit(server.serve_forever, 0.05)
        try:
            yield f"http://127.0.0.1:{server.server_port}", came
        finally:
            server.shutdown()


@contextmanager
def udp() -> Iterator[tuple[int, list[str]]]:
    """The port of a listener for datagrams, and those that have come; complete when the block has ended."""
    came: list[str] = []

    def listen() -> None:
        while (told := listener.recv(65536)) != b"end":
            came.append(told.decode())

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener, ThreadPoolExecutor(1) as beside:
        listener.bind(("127.0.0.1", 0))
        heard = beside.submit(listen)
        try:
            yield listener.getsockname()[1], came
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"end", listener.getsockname())
            heard.result(timeout=10)
