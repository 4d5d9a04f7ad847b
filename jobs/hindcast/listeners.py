"""Who has a port of this machine: the users to whom what is sent there goes, as Linux lists them in /proc/net."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN = "0A"


class _Socket(NamedTuple):
    """A socket of this machine: its end and its peer's, its state, and the user who owns it."""

    local: tuple[Address, int]
    peer: tuple[Address, int]
    state: str
    uid: int


def find_owners(host: str, port: int) -> set[int]:
    """Return the uids of those who listen at this port of `host`, or have the other end of connections to it.

    The other ends count because one who has accepted a connection may have stopped to listen since. Nothing is returned
    where nobody listens, and where the system has no /proc/net.
    """
    sockets = _sockets()
    listening = [one for one in sockets if one.state == _LISTEN and one.local[1] == port]
    everywhere = [one for one in listening if one.local[0].is_unspecified]
    found: list[_Socket] = []
    for address in _resolve(host):
        found += [one for one in listening if one.local[0] == address] or everywhere
        clients = {one.local for one in sockets if one.peer == (address, port)}
        found += [one for one in sockets if one.local == (address, port) and one.peer in clients]
    return {one.uid for one in found}


def find_others(host: str, port: int) -> set[int]:
    """Return those of the `find_owners` who are neither us nor root: what is sent there, they can read."""
    return find_owners(host, port) - {os.geteuid(), 0}


def is_loopback(host: str) -> bool:
    """Return whether this name or address, which may stand in brackets, is that of this machine alone."""
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _resolve(host: str) -> set[Address]:
    with suppress(ValueError):
        return {ipaddress.ip_address(host)}
    with suppress(OSError):
        return {ipaddress.ip_address(found[4][0]) for found in socket.getaddrinfo(host, None)}
    return set()


def _sockets() -> list[_Socket]:
    found = []
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text(encoding="utf-8").splitlines()[1:]:
                _, local, peer, state, _, _, _, uid, *_ = line.split()
                found.append(_Socket(_end(local), _end(peer), state, int(uid)))
    return found


def _end(text: str) -> tuple[Address, int]:
    """Return the address and port that `0100007F:1F90` stands for: words in the machine's order of bytes."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    return getattr(address, "ipv4_mapped", None) or address, int(port, 16)
