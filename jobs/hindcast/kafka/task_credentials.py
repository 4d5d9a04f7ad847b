"""Kafka credentials for tasks of Spark, without a secret in options, plans, UI, event log or command line.

| HINDCAST_KAFKA_HANDOVER | a task finds the settings in | where Spark's workers run there must be |
| --- | --- | --- |
| environment | its environment | the same variables, and the PEM files |
| file | a file in `<HINDCAST_VAR>/secrets`, with a copy of each PEM file | the folder HINDCAST_VAR |

The files are ours (mode 0600), and are deleted when this process ends; those of a killed process a day later, when the
next are written. They are also used if a password is not in the environment (HINDCAST_KAFKA_PASSWORD_FILE).
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path

from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings
from hindcast.kafka.security import PREFIX, Security, read_security

STALE_SECONDS, REFRESH_SECONDS = 24 * 3600, 3600.0
"""The age at which a file of secrets is unused: its process sets its time again each hour, on whichever machine."""


def needs_secrets_file(how: Security) -> bool:
    """Return whether tasks read secrets from a file of ours."""
    values = {"USERNAME": how.username, "PASSWORD": how.password, "SCOPE": how.scope}
    differs = any(value != os.environ.get(f"{PREFIX}{name}", "") for name, value in values.items())
    return how.handover == "file" or differs


def write_security(settings: Settings) -> str | None:
    """Write the brokers' security settings for tasks and return the file; None if their environment has them."""
    how, folder = read_security(settings.kafka), settings.var / "secrets"
    if how.protocol == "plaintext" or not needs_secrets_file(how):
        return None
    pems = {"CA": how.ca, "CERT": how.cert, "KEY": how.key}
    texts = {name: path.read_text(encoding="utf-8") for name, path in pems.items() if path}
    variables = {name: str(_ensure_file(folder, text, "pem")) for name, text in texts.items()}
    variables |= {"SECURITY": how.protocol, "KEY_PASSWORD": how.key_password, "MECHANISM": how.mechanism}
    variables |= {"USERNAME": how.username, "PASSWORD": how.password, "TOKEN_URL": how.token_url, "SCOPE": how.scope}
    return str(
        _ensure_file(folder, json.dumps({f"{PREFIX}{name}": value for name, value in variables.items()}), "json")
    )


def load_security(servers: str, file: str | None) -> Security:
    """Return the security settings that `write_security` wrote, for a task that reads from these brokers.

    Raises PlatformError if the file cannot be read where the task runs.
    """
    if file is None:
        return read_security(servers)
    try:
        return read_security(servers, json.loads(Path(file).read_text(encoding="utf-8")))
    except OSError as error:
        raise PlatformError(
            f"the task cannot read Kafka's credentials: {error.strerror}",
            where=file,
            fix="HINDCAST_VAR must be a folder that Spark's workers share with its driver; or give them the "
            f"credentials in their environment, with {PREFIX}HANDOVER environment (docs/security.md)",
        ) from None


def _ensure_file(folder: Path, text: str, kind: str) -> Path:
    """Return this process's file with a text, written if there is none."""
    known = os.getpid(), str(folder), text
    if known not in _written_files or not _written_files[known].exists():
        _written_files[known] = _write_file(folder, text, kind)
    return _written_files[known]


def _write_file(folder: Path, text: str, kind: str) -> Path:
    path = folder / f"kafka-{os.getpid()}-{secrets.token_hex(8)}.{kind}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in folder.glob("kafka-*.*"):
            with suppress(FileNotFoundError):  # its own process may delete it meanwhile
                if time.time() - other.stat().st_mtime > STALE_SECONDS:
                    other.unlink()
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise PlatformError(
            f"the file that hands secrets to Spark cannot be written: {error.strerror}",
            where=str(folder),
            fix=f"check the disk and the permissions, or set {PREFIX}HANDOVER to environment",
        ) from None
    atexit.register(path.unlink, missing_ok=True)  # also in an Airflow task, which runs what was registered in it
    threading.Thread(target=_refresh_file, args=(path,), name=f"refresh {path.name}", daemon=True).start()
    return path


def _refresh_file(path: Path) -> None:
    """Set the time of a file to now again and again, until it is deleted."""
    while True:
        time.sleep(REFRESH_SECONDS)
        try:
            os.utime(path)
        except FileNotFoundError:
            return
        except OSError:  # a shared folder that is away for a while
            continue


_written_files: dict[tuple[int, str, str], Path] = {}
