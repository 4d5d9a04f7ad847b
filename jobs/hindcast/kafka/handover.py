"""How Spark's JVMs learn what Kafka asks of them, without a secret in options, plans, UI, event log or command line.

Options hold references, which Kafka's own config providers (KIP-297, KIP-421) resolve where a consumer is made, in the
driver and in executors:

| HINDCAST_KAFKA_HANDOVER | a secret is | and so has to be there where JVMs run |
| --- | --- | --- |
| environment | `${env:HINDCAST_KAFKA_PASSWORD}` (KIP-887) | the same variables; the key's file |
| file | `${file:<HINDCAST_VAR>/secrets/kafka-....properties:sasl}` | the folder HINDCAST_VAR |

Where a task reads by Kafka's own client (far.py), it finds the variables themselves, with a copy of each PEM file, in
the same folder; by environment they have to be there too.

The file is ours (mode 0600), and goes when this process ends; one of a process that was killed goes a day later, when
the next is written. It is also used where a password is not in the environment (HINDCAST_KAFKA_PASSWORD_FILE), or has
characters that a login configuration of Java's would read as its own.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hindcast.errors import PlatformError, SettingsError
from hindcast.kafka.security import PREFIX, Security, security
from hindcast.settings import settings

MODULES = {
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
"""What logs in, by the mechanism of SASL."""

STALE = 24 * 3600
"""So many seconds after it was written a file of secrets is of nobody any more: a step takes 12 hours at most."""


def options(servers: str) -> dict[str, str]:
    """The options of Spark's Kafka source that name the brokers and say how they are spoken to; no secret in them."""
    how = security(servers)
    told = {"bootstrap.servers": servers}
    if how.protocol != "plaintext":
        told |= _tls(how) | _sasl(how) | _providers(how)
    return {f"kafka.{name}": value for name, value in told.items()}


def by_file(how: Security) -> bool:
    """Whether JVMs learn secrets from a file of ours."""
    if how.handover == "file":
        return True
    told = {"USERNAME": how.username, "PASSWORD": how.password, "SCOPE": how.scope}
    return any(value != os.environ.get(f"{PREFIX}{name}", "") or _is_special(value) for name, value in told.items())


def of_task(servers: str) -> str | None:
    """The file in which a task finds how the brokers are spoken to (`security_of`); None: in its environment."""
    how = security(servers)
    if how.protocol == "plaintext" or not by_file(how):
        return None
    pems = {"CA": how.ca, "CERT": how.cert, "KEY": how.key}
    told = {name: str(_kept(path.read_text(encoding="utf-8"), "pem")) for name, path in pems.items() if path}
    told |= {"SECURITY": how.protocol, "KEY_PASSWORD": how.key_password, "MECHANISM": how.mechanism}
    told |= {"USERNAME": how.username, "PASSWORD": how.password, "TOKEN_URL": how.token_url, "SCOPE": how.scope}
    return str(_kept(json.dumps({f"{PREFIX}{name}": it for name, it in told.items()}), "json"))


def security_of(servers: str, file: str | None) -> Security:
    """What `of_task` has told a task that reads from these brokers."""
    return security(servers, json.loads(Path(file).read_text(encoding="utf-8")) if file else None)


def _tls(how: Security) -> dict[str, str]:
    """Certificates are public, and go as they are: executors need no file of them."""
    told = {"security.protocol": how.protocol.upper()}
    if how.ca:
        told |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": how.ca.read_text(encoding="utf-8")}
    if how.cert and how.key:
        key, password = f"${{dir:{_plain(how.key.parent)}:{how.key.name}}}", f"${{env:{PREFIX}KEY_PASSWORD}}"
        if by_file(how):
            key, password = _in_file(how, "key"), _in_file(how, "key_password")
        told |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": how.cert.read_text(encoding="utf-8"),
            "ssl.keystore.key": key,
            **({"ssl.key.password": password} if how.key_password else {}),
        }
    return told


def _sasl(how: Security) -> dict[str, str]:
    if not how.mechanism:
        return {}
    told = {"sasl.mechanism": how.mechanism}
    if how.mechanism == "OAUTHBEARER":
        told["sasl.oauthbearer.token.endpoint.url"] = how.token_url
        told["sasl.login.callback.handler.class"] = f"{MODULES['OAUTHBEARER'].rpartition('.')[0]}.{_OIDC}"
    referred = {name: f"${{env:{PREFIX}{name}}}" for name in ("USERNAME", "PASSWORD", "SCOPE")}
    jaas = _in_file(how, "sasl") if by_file(how) else _jaas(how, referred)
    return {**told, "sasl.jaas.config": jaas}


def _jaas(how: Security, values: Mapping[str, str]) -> str:
    """Java's login configuration, with these values of USERNAME, PASSWORD and SCOPE as they are."""
    names = _OIDC_NAMES if how.mechanism == "OAUTHBEARER" else _NAMES
    told = " ".join(f'{name}="{values[it]}"' for it, name in names.items() if it != "SCOPE" or how.scope)
    return f"{MODULES[how.mechanism]} required {told};"


def _providers(how: Security) -> dict[str, str]:
    """The providers that may resolve references, and of what: nothing else of a JVM's environment or files."""
    package = "org.apache.kafka.common.config.provider"
    if by_file(how):
        told = {"file": ("File", "allowed.paths", str(_folder()))}
    else:
        told = {"env": ("EnvVar", "allowlist.pattern", f"{PREFIX}.*")}
        if how.key:
            told["dir"] = ("Directory", "allowed.paths", str(how.key.parent))
    found = {"config.providers": ",".join(told)}
    for name, (kind, limit, to) in told.items():
        found[f"config.providers.{name}.class"] = f"{package}.{kind}ConfigProvider"
        found[f"config.providers.{name}.param.{limit}"] = to
    return found


def _in_file(how: Security, name: str) -> str:
    return f"${{file:{_plain(_file(how))}:{name}}}"


def _file(how: Security) -> Path:
    """The file of secrets for JVMs."""
    values = {"USERNAME": how.username, "PASSWORD": how.password, "SCOPE": how.scope}
    told = {
        "sasl": _jaas(how, {name: _quoted(value) for name, value in values.items()}) if how.mechanism else "",
        "key": how.key.read_text(encoding="utf-8") if how.key else "",
        "key_password": how.key_password,
    }
    text = "".join(f"{name}={_escaped(value)}\n" for name, value in told.items() if value)
    return _kept(text, "properties")


def _kept(text: str, kind: str) -> Path:
    """The file of this process that has a text, made if there is none."""
    known = os.getpid(), str(_folder()), text
    if known not in _written or not _written[known].exists():
        _written[known] = _write(_folder(), text, kind)
    return _written[known]


def _write(folder: Path, text: str, kind: str) -> Path:
    path = folder / f"kafka-{os.getpid()}-{secrets.token_hex(8)}.{kind}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in folder.glob("kafka-*.*"):
            with suppress(FileNotFoundError):  # its own process may take it away meanwhile
                if time.time() - other.stat().st_mtime > STALE:
                    other.unlink()
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise PlatformError(
            f"the file that hands secrets to Spark cannot be written: {error.strerror}",
            where=str(folder),
            mend=f"check disk and rights, or set {PREFIX}HANDOVER to environment",
        ) from None
    atexit.register(path.unlink, missing_ok=True)  # in a task of Airflow's too: it runs what was registered in it
    return path


def _folder() -> Path:
    return settings().var / "secrets"


def _plain(path: Path) -> Path:
    if re.search("[:}]", str(path)):
        found = "a path with ':' or '}' cannot be referred to from Kafka's options"
        raise SettingsError(found, where=str(path), mend="move it: HINDCAST_VAR, or the file of the key")
    return path


def _is_special(value: str) -> bool:
    """Whether a value within quotes would be read otherwise by Java's login configuration."""
    return re.search(r'["\\\x00-\x1f\x7f]', value) is not None


def _quoted(value: str) -> str:
    """A value as it has to stand within quotes there."""
    told = re.sub(r'["\\]', lambda it: f"\\{it[0]}", value)
    return told.replace("\n", r"\n").replace("\r", r"\r")


def _escaped(value: str) -> str:
    """A value as a file of Java's properties has it: all but letters and digits by their UTF-16 numbers."""

    def numbers(char: str) -> str:
        units = char.encode("utf-16-be")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

    return "".join(char if char.isascii() and char.isalnum() else numbers(char) for char in value)


_written: dict[tuple[int, str, str], Path] = {}
_NAMES = {"USERNAME": "username", "PASSWORD": "password"}
_OIDC_NAMES = {"USERNAME": "clientId", "PASSWORD": "clientSecret", "SCOPE": "scope"}
_OIDC = "OAuthBearerLoginCallbackHandler"
