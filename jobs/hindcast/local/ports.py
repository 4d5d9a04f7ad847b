"""Ports of this machine: is one free, who has it, does it answer."""

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

from hindcast.errors import PlatformError
from hindcast.local.process import Process, is_running, tail

HOST = "127.0.0.1"
_SERVERS = range(20_000, 32_768)
"""Below what Linux (from 32768) and others (from 49152) give to outgoing connections."""


def _in_any_order() -> Iterator[int]:
    """By the system's randomness: processes that seed their own alike must not choose alike."""
    yield from random.SystemRandom().sample(_SERVERS, len(_SERVERS))


_SHUFFLED = _in_any_order()  # once one is asked for


def require_free(port: int, what: str, variable: str) -> None:
    """PlatformError when something listens on `port`: it names the port, its holder, and the variable to change."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PlatformError(
                f"port {port}, for {what}, cannot be had: {error.strerror}{_holder(port)}",
                mend=f"stop that, or choose another port: {variable}={port + 1}",
            ) from None


def free() -> int:
    """A port that nobody has at this moment, and that this process has not been given before.

    It is none of those that systems give to outgoing connections by themselves: of these a client on this machine could
    have it before the server that is told of it listens.
    """
    for port in _SHUFFLED:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise PlatformError(
        f"none of the ports {_SERVERS.start} to {_SERVERS.stop - 1} can be had", mend="end what has them"
    )


def listens(port: int) -> bool:
    """Does something accept connections on `port`?"""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def wait(process: Process, ready: Callable[[], bool], seconds: float) -> None:
    """Return when `ready`; PlatformError, with the end of its log, when the process ends before or takes too long.

    What is ready may be another's server, which has the port of a process that has ended: that counts as ended.
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
        raise PlatformError(f"{found}; its log ends with\n{tail(process)}", mend=f"read its log: {process.log}")


def answer(url: str, token: str = "") -> dict[str, Any]:
    """The JSON object that a server of this machine answers with; empty while it does not."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310  # http, to this machine
            found = json.load(response)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _holder(port: int) -> str:
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    continue
                return f" by process {connection.pid} ({' '.join(psutil.Process(connection.pid).cmdline())[:80]})"
    return ""
