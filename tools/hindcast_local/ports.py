"""Ports of this machine: which are free, who holds one, and whether a server answers."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from hindcast.common.errors import PlatformError
from hindcast_local.process import Process, is_running, read_log_tail

HOST = "127.0.0.1"
_SERVER_PORTS = range(20_000, 32_768)
"""Below the ports that Linux (from 32768) and others (from 49152) use for outgoing connections."""


def _shuffle_ports() -> Iterator[int]:
    """Yield all server ports in random order, by the system's randomness: equal seeds must not give equal ports."""
    yield from random.SystemRandom().sample(_SERVER_PORTS, len(_SERVER_PORTS))


_SHUFFLED_PORTS = _shuffle_ports()  # shuffled at the first use


def refuse_taken_port(port: int, what: str, variable: str) -> None:
    """Raise PlatformError if something listens on `port`; it names the port, its holder, and the variable to change."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PlatformError(
                f"port {port}, for {what}, is not available: {error.strerror}{_describe_holder(port)}",
                fix=f"stop that process, or choose another port: {variable}={port + 1}",
            ) from None


def find_free_port() -> int:
    """Return a port that is free now and that this process was not given before.

    It is not one that systems use for outgoing connections: a client on this machine could take such a port before the
    server listens on it.
    """
    for port in _SHUFFLED_PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    found = f"none of the ports {_SERVER_PORTS.start} to {_SERVER_PORTS.stop - 1} is available"
    raise PlatformError(found, fix="stop the processes that use them")


def is_listening(port: int) -> bool:
    """Return True if something accepts connections on `port`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def wait_until_ready(process: Process, ready: Callable[[], bool], seconds: float) -> None:
    """Return when `ready` is true; PlatformError with the end of the log if the process ends or takes too long.

    If the process has ended, it counts as such even if `ready`: another server may have its port.
    """
    end = time.monotonic() + seconds
    while True:
        is_ready = ready()
        if not is_running(process):
            found = f"{process.name} ended while it was starting"
        elif is_ready:
            return
        elif time.monotonic() > end:
            found = f"{process.name} is not ready after {seconds:.0f} s"
        else:
            time.sleep(0.1)
            continue
        raise PlatformError(f"{found}; its log ends with\n{read_log_tail(process)}", fix=f"read its log: {process.log}")


def read_json(url: str, token: str = "") -> dict[str, Any]:
    """Return the JSON object with which a server of this machine answers; empty while it does not."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    try:
        with open_directly(request, 5) as response:
            body = json.load(response)
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def open_directly(request: urllib.request.Request, seconds: float) -> Any:
    """Send a request to a server of this machine and return its response.

    It never goes through a proxy (HTTP_PROXY), which would read the password or token in it.
    """
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=seconds)


def _describe_holder(port: int) -> str:
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    continue
                return f" by process {connection.pid} ({' '.join(psutil.Process(connection.pid).cmdline())[:80]})"
    return ""
