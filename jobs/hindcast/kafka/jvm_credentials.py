"""Kafka credentials for Spark's JVMs, without a secret in options, plans, UI, event log or command line.

Options hold references, which Kafka's own config providers (KIP-297, KIP-421) resolve where a consumer is made, in the
driver and in executors:

| HINDCAST_KAFKA_HANDOVER | a secret is | where JVMs run there must be |
| --- | --- | --- |
| environment | `${env:HINDCAST_KAFKA_PASSWORD}` (KIP-887) | the same variables; the key's file |
| file | `${file:<HINDCAST_VAR>/secrets/kafka-....properties:sasl}` | the folder HINDCAST_VAR |

A task that reads with Kafka's own client (timestamp_overflow.py) finds the variables themselves, with a copy of each
PEM file, in the same folder; with `environment` they must be set there too.

The file is ours (mode 0600), and is deleted when this process ends; that of a killed process a day later, when the next
is written. It is also used if a password is not in the environment (HINDCAST_KAFKA_PASSWORD_FILE), or has characters
that are special in Java's login configuration.
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

from hindcast.common.errors import PlatformError, SettingsError
from hindcast.common.settings import Settings
from hindcast.kafka.security import PREFIX, Security, read_security

LOGIN_MODULES = {
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
"""The login modules by SASL mechanism."""

STALE_SECONDS = 24 * 3600
"""The age at which a file of secrets is unused: a step takes 12 hours at most."""


def kafka_options(settings: Settings) -> dict[str, str]:
    """Return the options of Spark's Kafka source that name the brokers and their security, without a secret."""
    how, folder = read_security(settings.kafka), _secrets_folder(settings)
    options = {"bootstrap.servers": settings.kafka}
    if how.protocol != "plaintext":
        options |= _tls_options(how, folder) | _sasl_options(how, folder) | _provider_options(how, folder)
    return {f"kafka.{name}": value for name, value in options.items()}


def needs_secrets_file(how: Security) -> bool:
    """Return whether JVMs read secrets from a file of ours."""
    if how.handover == "file":
        return True
    values = {"USERNAME": how.username, "PASSWORD": how.password, "SCOPE": how.scope}
    differs = any(value != os.environ.get(f"{PREFIX}{name}", "") for name, value in values.items())
    return differs or any(map(_has_special_characters, values.values()))


def write_task_security(settings: Settings) -> str | None:
    """Write the brokers' security settings for a task and return the file; None if its environment has them."""
    how, folder = read_security(settings.kafka), _secrets_folder(settings)
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


def load_task_security(servers: str, file: str | None) -> Security:
    """Return the security settings that `write_task_security` wrote, for a task that reads from these brokers."""
    return read_security(servers, json.loads(Path(file).read_text(encoding="utf-8")) if file else None)


def _tls_options(how: Security, folder: Path) -> dict[str, str]:
    """Return the options for TLS. Certificates are public, and are passed as text: executors need no file of them."""
    options = {"security.protocol": how.protocol.upper()}
    if how.ca:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": how.ca.read_text(encoding="utf-8")}
    if how.cert and how.key:
        key, password = f"${{dir:{_referable_path(how.key.parent)}:{how.key.name}}}", f"${{env:{PREFIX}KEY_PASSWORD}}"
        if needs_secrets_file(how):
            key, password = _file_reference(how, folder, "key"), _file_reference(how, folder, "key_password")
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": how.cert.read_text(encoding="utf-8"),
            "ssl.keystore.key": key,
            **({"ssl.key.password": password} if how.key_password else {}),
        }
    return options


def _sasl_options(how: Security, folder: Path) -> dict[str, str]:
    if not how.mechanism:
        return {}
    options = {"sasl.mechanism": how.mechanism}
    if how.mechanism == "OAUTHBEARER":
        options["sasl.oauthbearer.token.endpoint.url"] = how.token_url
        options["sasl.login.callback.handler.class"] = f"{LOGIN_MODULES['OAUTHBEARER'].rpartition('.')[0]}.{_OIDC}"
    references = {name: f"${{env:{PREFIX}{name}}}" for name in ("USERNAME", "PASSWORD", "SCOPE")}
    jaas = _file_reference(how, folder, "sasl") if needs_secrets_file(how) else _jaas_config(how, references)
    return {**options, "sasl.jaas.config": jaas}


def _jaas_config(how: Security, values: Mapping[str, str]) -> str:
    """Return Java's login configuration, with these values of USERNAME, PASSWORD and SCOPE unchanged."""
    names = _OIDC_NAMES if how.mechanism == "OAUTHBEARER" else _NAMES
    given = [variable for variable in names if variable != "SCOPE" or how.scope]
    attributes = " ".join(f'{names[variable]}="{values[variable]}"' for variable in given)
    return f"{LOGIN_MODULES[how.mechanism]} required {attributes};"


def _provider_options(how: Security, folder: Path) -> dict[str, str]:
    """Return the config providers that resolve references, limited to our part of a JVM's environment or files."""
    package = "org.apache.kafka.common.config.provider"
    if needs_secrets_file(how):
        providers = {"file": ("File", "allowed.paths", str(folder))}
    else:
        providers = {"env": ("EnvVar", "allowlist.pattern", f"{PREFIX}.*")}
        if how.key:
            providers["dir"] = ("Directory", "allowed.paths", str(how.key.parent))
    options = {"config.providers": ",".join(providers)}
    for name, (kind, limit, value) in providers.items():
        options[f"config.providers.{name}.class"] = f"{package}.{kind}ConfigProvider"
        options[f"config.providers.{name}.param.{limit}"] = value
    return options


def _file_reference(how: Security, folder: Path, name: str) -> str:
    return f"${{file:{_referable_path(_ensure_secrets_file(how, folder))}:{name}}}"


def _ensure_secrets_file(how: Security, folder: Path) -> Path:
    """Return the file of secrets for JVMs, written if needed."""
    values = {"USERNAME": how.username, "PASSWORD": how.password, "SCOPE": how.scope}
    properties = {
        "sasl": _jaas_config(how, {name: _quote_jaas_value(value) for name, value in values.items()})
        if how.mechanism
        else "",
        "key": how.key.read_text(encoding="utf-8") if how.key else "",
        "key_password": how.key_password,
    }
    text = "".join(f"{name}={_escape_property(value)}\n" for name, value in properties.items() if value)
    return _ensure_file(folder, text, "properties")


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
    return path


def _secrets_folder(settings: Settings) -> Path:
    return settings.var / "secrets"


def _referable_path(path: Path) -> Path:
    if re.search("[:}]", str(path)):
        problem = "a path with ':' or '}' cannot be referred to from Kafka's options"
        raise SettingsError(problem, where=str(path), fix="move HINDCAST_VAR or the key file to another path")
    return path


def _has_special_characters(value: str) -> bool:
    """Return whether Java's login configuration would misread a value within quotes."""
    return re.search(r'["\\\x00-\x1f\x7f]', value) is not None


def _quote_jaas_value(value: str) -> str:
    """Return a value escaped for quotes in Java's login configuration."""
    quoted = re.sub(r'["\\]', lambda match: f"\\{match[0]}", value)
    return quoted.replace("\n", r"\n").replace("\r", r"\r")


def _escape_property(value: str) -> str:
    """Return a value for a Java properties file: all but letters and digits as UTF-16 escapes."""

    def numbers(char: str) -> str:
        units = char.encode("utf-16-be")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

    return "".join(char if char.isascii() and char.isalnum() else numbers(char) for char in value)


_written_files: dict[tuple[int, str, str], Path] = {}
_NAMES = {"USERNAME": "username", "PASSWORD": "password"}
_OIDC_NAMES = {"USERNAME": "clientId", "PASSWORD": "clientSecret", "SCOPE": "scope"}
_OIDC = "OAuthBearerLoginCallbackHandler"
