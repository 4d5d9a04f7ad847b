"""The files of credentials that settings name: PEM files, and the file of a password.

People put the key or the password itself where its file belongs: an error never shows a value that may be one.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from hindcast.common.bounded_files import ExcessError, read_linked_text
from hindcast.common.environment import make_absolute
from hindcast.common.errors import SettingsError

PEM = "give a file with -----BEGIN CERTIFICATE----- (from a Java keystore: keytool -exportcert -rfc)"


def find_pem_file(variable: str, text: str) -> Path | None:
    """Return the PEM file that a variable names, None if none; SettingsError if it cannot be read or is not PEM."""
    if not text:
        return None
    if _BEGIN in text or len(text.splitlines()) > 1:
        fix = f"write it into a file that only its user can read, and set {variable} to the file's path"
        raise SettingsError(f"{variable} has the key or certificate itself, not the path of its file", fix=fix)
    where = str(_find_path(variable, text)) if _PATH.fullmatch(text) and len(text) <= _LONGEST_PATH else ""
    if _BEGIN not in _read_file(variable, text, where):
        raise SettingsError(f"{variable} is not a PEM file", where=where, fix=PEM)
    return _find_path(variable, text)


def read_password_file(variable: str, text: str) -> str:
    """Return the text of the file that a variable names, without what editors add: a newline at its end, and a byte
    order mark; "" if it names none.

    SettingsError, which does not show the path, if it cannot be read or is empty: many a password could be a path.
    """
    if not text:
        return ""
    password = _read_file(variable, text, "").removeprefix("\ufeff").rstrip("\r\n")
    if not password:
        raise SettingsError(f"the file that {variable} names is empty", fix="write the password into it")
    return password


def _read_file(variable: str, text: str, where: str) -> str:
    try:
        return read_linked_text(_find_path(variable, text), _MAX_BYTES)  # those that Kubernetes mounts are links
    except ExcessError as error:
        fix = f"set it to the path of a regular file of at most {_MAX_BYTES >> 20} MiB"
        raise SettingsError(f"{variable} cannot be read: it {error.found}", where=where, fix=fix) from None
    except (OSError, ValueError) as error:  # a NUL is a ValueError too
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else "no file can have this name"
        if isinstance(error, OSError):
            reason = str(error.strerror)
        fix = "check the path and its permissions" if where else "set it to the path of a file that can be read"
        raise SettingsError(f"{variable} cannot be read: {reason}", where=where, fix=fix) from None


def _find_path(variable: str, text: str) -> Path:
    path = Path(text)
    with suppress(RuntimeError):  # of a user that this machine does not have
        path = path.expanduser()
    return make_absolute(path, variable)


_BEGIN = "-----BEGIN "
_MAX_BYTES = 1 << 20
"""No list of authorities has so many: that of an operating system has a quarter."""

_LONGEST_PATH = 300
_PATH = re.compile(r"[/~.].*|.*\.[A-Za-z0-9]{1,8}")
"""What is surely a path, so that errors may show it: the Base64 of a key begins with M and has no full stop."""
