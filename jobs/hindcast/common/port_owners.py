"""Port owners: the users who receive what is sent to a port of this machine, from Linux's /proc/net."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SOCKET_FILES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN_STATE = "0A"


class _Socket(NamedTuple):
    """A socket of this machine: its end and its peer's, its state, and the user who owns it."""

    local: tuple[Address, int]
    peer: tuple[Address, int]
    state: str
    uid: int


def find_owners(host: str, port: int) -> set[int]:
    """Return the uids of the users who listen at this port of `host`, or have the server's end of a connection to it.

    Connections count because their server may have stopped listening since. The result is empty if nobody listens, or
    if the system has no /proc/net.
    """
    sockets = _list_sockets()
    listening = [s for s in sockets if s.state == _LISTEN_STATE and s.local[1] == port]
    everywhere = [s for s in listening if s.local[0].is_unspecified]
    servers: list[_Socket] = []
    for address in _resolve(host):
        servers += [s for s in listening if s.local[0] == address] or everywhere
        clients = {s.local for s in sockets if s.peer == (address, port)}
        servers += [s for s in sockets if s.local == (address, port) and s.peer in clients]
    return {server.uid for server in servers}


def find_others(host: str, port: int) -> set[int]:
    """Return the owners of a port (`find_owners`) other than us and root: they can read what is sent there."""
    return find_owners(host, port) - {os.geteuid(), 0}


def list_own_connections() -> frozenset[str]:
    """Return what names each socket of this process: one that is opened later has another name, whatever its ends are.

    Empty if the system has no /proc.
    """
    found = set()
    with suppress(OSError):
        for descriptor in os.scandir("/proc/self/fd"):
            with suppress(OSError):  # closed meanwhile
                found.add(str(Path(descriptor.path).readlink()))
    return frozenset(name for name in found if name.startswith("socket:"))


def is_loopback(host: str) -> bool:
    """Return whether a name or address, which may be in brackets, is a loopback address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _resolve(host: str) -> set[Address]:
    with suppress(ValueError):
        return {ipaddress.ip_address(host)}
    with suppress(OSError):
        return {ipaddress.ip_address(info[4][0]) for info in socket.getaddrinfo(host, None)}
    return set()


def _list_sockets() -> list[_Socket]:
    sockets = []
    for table in _SOCKET_FILES:
        with suppress(OSError):
            for line in table.read_text(encoding="utf-8").splitlines()[1:]:
                _, local, peer, state, _, _, _, uid, *_ = line.split()
                sockets.append(_Socket(_parse_end(local), _parse_end(peer), state, int(uid)))
    return sockets


def _parse_end(text: str) -> tuple[Address, int]:
    """Return the address and port that a text like `0100007F:1F90` means: hex words in the machine's byte order."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    return getattr(address, "ipv4_mapped", None) or address, int(port, 16)
