"""How Kafka is spoken to: TLS and SASL, from the environment, for both clients that we use.

| variable                     | default        | meaning                                                          |
| ---------------------------- | -------------- | ---------------------------------------------------------------- |
| HINDCAST_KAFKA_SECURITY      | plaintext      | `plaintext`, `ssl`, `sasl_ssl` or `sasl_plaintext`               |
| HINDCAST_KAFKA_CA            | this machine's | PEM file of the authorities that sign the brokers' certificates  |
| HINDCAST_KAFKA_CERT          | none           | for mutual TLS: PEM file of our certificate and its chain        |
| HINDCAST_KAFKA_KEY           | none           | PEM file of its key (PKCS#8)                                     |
| HINDCAST_KAFKA_KEY_PASSWORD  | none           | what that key is encrypted with                                  |
| HINDCAST_KAFKA_MECHANISM     | SCRAM-SHA-512  | SASL: `SCRAM-SHA-512`, `SCRAM-SHA-256`, `PLAIN` or `OAUTHBEARER` |
| HINDCAST_KAFKA_USERNAME      | none           | SASL: who we are; OAUTHBEARER: the client's id                   |
| HINDCAST_KAFKA_PASSWORD      | none           | SASL: the password; OAUTHBEARER: the client's secret             |
| HINDCAST_KAFKA_PASSWORD_FILE | none           | a file that holds the password, instead                          |
| HINDCAST_KAFKA_TOKEN_URL     | none           | OAUTHBEARER: where tokens are had                                |
| HINDCAST_KAFKA_SCOPE         | none           | OAUTHBEARER: the scope that is asked for                         |
| HINDCAST_KAFKA_HANDOVER      | environment    | how Spark's JVMs learn secrets: `environment` or `file`          |
| HINDCAST_KAFKA_CONN_ID       | none           | the Airflow connection that gives all of this to tasks           |

Nothing here stands in a contract, and no secret is shown: not by `repr`, nor in errors.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hindcast.errors import SettingsError, nearest

PROTOCOLS = ("plaintext", "ssl", "sasl_ssl", "sasl_plaintext")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
HANDOVERS = ("environment", "file")

PREFIX = "HINDCAST_KAFKA_"
VARIABLES = tuple(
    f"{PREFIX}{name}"
    for name in (
        *("SECURITY", "CA", "CERT", "KEY", "KEY_PASSWORD", "MECHANISM", "USERNAME", "PASSWORD", "PASSWORD_FILE"),
        *("TOKEN_URL", "SCOPE", "HANDOVER", "CONN_ID"),
    )
)
"""The variables above, in their order."""

USED = f"{PREFIX}CONN_USED"
"""What a task of Airflow's notes for itself: the connection that its environment is from."""


@dataclass(frozen=True)
class Security:
    """One reading of the environment. `password` and `key_password` are not in its `repr`.

    `mechanism` is empty without SASL.
    """

    protocol: str = "plaintext"
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    key_password: str = field(default="", repr=False)
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    token_url: str = ""
    scope: str = ""
    handover: str = "environment"

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in ("ssl", "sasl_ssl")

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be shown nowhere."""
        return tuple(it for it in (self.password, self.key_password) if it)

    def librdkafka(self) -> dict[str, str]:
        """The properties of librdkafka's clients (confluent-kafka) beside the brokers' addresses."""
        if self.protocol == "plaintext":
            return {}
        told = {
            "security.protocol": self.protocol,
            "ssl.ca.location": str(self.ca or ""),
            "ssl.certificate.location": str(self.cert or ""),
            "ssl.key.location": str(self.key or ""),
            "ssl.key.password": self.key_password,
            "sasl.mechanism": self.mechanism,
        }
        if self.mechanism == "OAUTHBEARER":
            told |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
                "sasl.oauthbearer.client.id": self.username,
                "sasl.oauthbearer.client.secret": self.password,
                "sasl.oauthbearer.scope": self.scope,
            }
        else:
            told |= {"sasl.username": self.username, "sasl.password": self.password}
        return {name: value for name, value in told.items() if value}


PLAINTEXT = Security()
"""Neither encrypted nor authenticated: the broker that `make up` starts."""


def security(servers: str, environ: Mapping[str, str] | None = None) -> Security:
    """How the brokers at `servers` are spoken to, as the environment has it at this moment.

    Reads the password file, if one is named. SettingsError for what makes no sense, would be without effect, or would
    let others read a secret.
    """
    env = os.environ if environ is None else environ
    addresses(servers, "HINDCAST_KAFKA")
    _refuse_unknown(env)
    told = {name.removeprefix(PREFIX).lower(): env.get(name) or "" for name in VARIABLES}
    protocol = _one_of("SECURITY", told["security"].lower() or "plaintext", PROTOCOLS)
    handover = _one_of("HANDOVER", told["handover"] or "environment", HANDOVERS)
    _refuse_useless(protocol, told)
    if protocol == "plaintext":
        return PLAINTEXT
    if bool(told["cert"]) != bool(told["key"]):
        one, other = ("CERT", "KEY") if told["cert"] else ("KEY", "CERT")
        raise SettingsError(f"{PREFIX}{one} is set and {PREFIX}{other} is not", mend="mutual TLS takes both files")
    ca, cert, key = (_file(name, told[name.lower()]) for name in ("CA", "CERT", "KEY"))
    made = Security(protocol, ca, cert, key, told["key_password"], handover=handover)
    if protocol.startswith("sasl"):
        made = _with_sasl(made, told)
    _refuse_readable(servers, made)
    return made


def addresses(servers: str, where: str) -> list[tuple[str, int]]:
    """Brokers as host and port each; SettingsError, with `where` they stand, for one that is not `host:port`.

    >>> addresses("b1:9092, SASL_SSL://[::1]:9093", "HINDCAST_KAFKA")
    [('b1', 9092), ('::1', 9093)]
    """
    found = []
    for server in servers.split(","):
        match = _ADDRESS.fullmatch(server.strip())
        if match is None or not 0 < int(match[2]) < _PORTS:
            mend = "write each broker as host:port with commas between, as b1.example.org:9092,b2.example.org:9092"
            raise SettingsError(f"'{server.strip()}' is not the host:port of a broker", where=where, mend=mend)
        found.append((match[1].strip("[]"), int(match[2])))
    return found


def client(servers: str, how: Security) -> dict[str, Any]:
    """What every client of librdkafka's is made with: the brokers, how they are spoken to, and no log of its own."""
    return {"bootstrap.servers": servers, "log_level": 0, **how.librdkafka()}


def forget() -> None:
    """Takes all of this out of the environment of this process, for one that has a broker of its own."""
    for name in VARIABLES:
        os.environ.pop(name, None)


def own_broker(environ: Mapping[str, str] | None = None) -> None:
    """SettingsError if the environment asks for security of the broker that `make up` starts, which has none."""
    env = os.environ if environ is None else environ
    if (asked := env.get(f"{PREFIX}SECURITY") or "plaintext").lower() != "plaintext":
        raise SettingsError(
            f"{PREFIX}SECURITY is '{asked}', and the broker that `make up` starts speaks plaintext",
            mend="set HINDCAST_KAFKA to your brokers' host:port, or leave HINDCAST_KAFKA_SECURITY out",
        )


def is_here(host: str) -> bool:
    """Whether a host is this machine's loopback."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def pem(variable: str, text: str) -> Path | None:
    """The PEM file that a variable names, None if it names none; SettingsError if it cannot be read or is no PEM."""
    if not text:
        return None
    path = Path(text).expanduser().absolute()
    if "-----BEGIN " not in _read(variable, text):
        raise SettingsError(f"{variable} is no PEM file", where=str(path), mend=PEM)
    return path


def _with_sasl(made: Security, told: Mapping[str, str]) -> Security:
    mechanism = _one_of("MECHANISM", (told["mechanism"] or "SCRAM-SHA-512").upper(), MECHANISMS)
    if told["password"] and told["password_file"]:
        raise SettingsError(f"{PREFIX}PASSWORD and {PREFIX}PASSWORD_FILE are both set", mend="set one of them")
    password = told["password"] or _read(f"{PREFIX}PASSWORD_FILE", told["password_file"])
    wanted = {"USERNAME": told["username"], "PASSWORD": password}
    if mechanism == "OAUTHBEARER":
        wanted |= {"TOKEN_URL": told["token_url"]}
        _refuse_open_token_url(told["token_url"])
    elif given := [name for name in ("TOKEN_URL", "SCOPE") if told[name.lower()]]:
        found = f"{PREFIX}{given[0]} is set and {PREFIX}MECHANISM is {mechanism}"
        raise SettingsError(found, mend=f"set {PREFIX}MECHANISM to OAUTHBEARER, or leave {PREFIX}{given[0]} out")
    if missing := [f"{PREFIX}{name}" for name, value in wanted.items() if not value]:
        raise SettingsError(
            f"SASL with {mechanism} is asked for, and {' and '.join(missing)} {_is(missing)} not set",
            mend="set them in the environment of whoever talks to Kafka (docs/security.md)",
        )
    return replace(
        made,
        mechanism=mechanism,
        username=told["username"],
        password=password,
        token_url=told["token_url"],
        scope=told["scope"],
    )


def _refuse_unknown(env: Mapping[str, str]) -> None:
    """SettingsError for a variable that begins as ours do and is none of them: it would be passed over.

    Kubernetes has some of its own for a service that is called hindcast-kafka.
    """
    known = (*VARIABLES, f"{PREFIX}PORT")
    ours = (name for name in env if name.startswith(PREFIX) and not _OF_KUBERNETES.fullmatch(name))
    if odd := sorted(name for name in ours if name not in (*known, USED)):
        raise SettingsError(f"{odd[0]} is set, and there is no such variable", mend=nearest(odd[0], known))


def _refuse_useless(protocol: str, told: Mapping[str, str]) -> None:
    """SettingsError for what is set and would have no effect: whoever set a password believes that it is asked for."""
    tls, sasl = ("ca", "cert", "key", "key_password"), ("mechanism", "username", "password", "password_file")
    useless = {
        "plaintext": (*tls, *sasl, "token_url", "scope"),
        "ssl": (*sasl, "token_url", "scope"),
        "sasl_plaintext": tls,
    }.get(protocol, ())
    if given := [f"{PREFIX}{name.upper()}" for name in useless if told[name]]:
        raise SettingsError(
            f"{' and '.join(given)} {_is(given)} set, and with {PREFIX}SECURITY {protocol} nothing would come of it",
            mend=f"set {PREFIX}SECURITY to {'sasl_ssl' if protocol != 'sasl_plaintext' else 'sasl_ssl or ssl'}, "
            "or leave them out",
        )


def _refuse_readable(servers: str, made: Security) -> None:
    """PLAIN sends the password as it is, and OAUTHBEARER a token that is as good: not over an open network."""
    if made.tls or made.mechanism not in ("PLAIN", "OAUTHBEARER"):
        return
    if away := [server for server in servers.split(",") if not is_here(server.strip().rpartition(":")[0])]:
        raise SettingsError(
            f"{made.mechanism} without TLS would send its secret readable over the network",
            where=away[0].strip(),
            mend=f"set {PREFIX}SECURITY to sasl_ssl, or use SCRAM; without TLS only brokers on this machine's loopback",
        )


def _refuse_open_token_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.username or parts.password:
        found = f"{PREFIX}TOKEN_URL has credentials in it"
        raise SettingsError(found, mend=f"give them as {PREFIX}USERNAME and {PREFIX}PASSWORD")
    if url and parts.scheme != "https" and not (parts.scheme == "http" and is_here(parts.hostname or "")):
        raise SettingsError(
            f"{PREFIX}TOKEN_URL is '{url}': the client's secret would go readable over the network",
            mend="set an https:// address",
        )


def _file(name: str, text: str) -> Path | None:
    variable = f"{PREFIX}{name}"
    path = pem(variable, text)
    if path and name == "KEY" and not re.search(r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----", _read(variable, text)):
        raise SettingsError(f"{variable} is not a key in PKCS#8, which Java reads", where=str(path), mend=_PKCS8)
    return path


def _read(variable: str, text: str) -> str:
    """The text of the file that a variable names, without the line's end that editors add."""
    if not text:
        return ""
    path = Path(text).expanduser().absolute()
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(
            f"{variable} cannot be read: {told}", where=str(path), mend="check path and rights"
        ) from None


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise SettingsError(f"{PREFIX}{name} is '{value}'", mend=nearest(value, known))
    return value


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


_ADDRESS = re.compile(r"(?:\w+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:,/\[\]]+):(\d{1,5})", re.ASCII)
_OF_KUBERNETES = re.compile(rf"{PREFIX}(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)")
_PORTS = 65536
PEM = "give a file with -----BEGIN CERTIFICATE----- (from a Java keystore: keytool -exportcert -rfc)"
_PKCS8 = "openssl pkcs8 -topk8 -in OLD.pem -out NEW.pem makes one of it"
