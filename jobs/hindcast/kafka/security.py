"""Security of connections to Kafka: TLS and SASL, from the environment.

| variable                     | default        | meaning                                                          |
| ---------------------------- | -------------- | ---------------------------------------------------------------- |
| HINDCAST_KAFKA_SECURITY      | plaintext      | `plaintext`, `ssl`, `sasl_ssl` or `sasl_plaintext`               |
| HINDCAST_KAFKA_CA            | this machine's | PEM file of the authorities that sign the brokers' certificates  |
| HINDCAST_KAFKA_CERT          | none           | for mutual TLS: PEM file of our certificate and its chain        |
| HINDCAST_KAFKA_KEY           | none           | PEM file of its key                                              |
| HINDCAST_KAFKA_KEY_PASSWORD  | none           | what that key is encrypted with                                  |
| HINDCAST_KAFKA_MECHANISM     | SCRAM-SHA-512  | SASL: `SCRAM-SHA-512`, `SCRAM-SHA-256`, `PLAIN` or `OAUTHBEARER` |
| HINDCAST_KAFKA_USERNAME      | none           | SASL: who we are; OAUTHBEARER: the client's id                   |
| HINDCAST_KAFKA_PASSWORD      | none           | SASL: the password; OAUTHBEARER: the client's secret             |
| HINDCAST_KAFKA_PASSWORD_FILE | none           | a file that holds the password, instead                          |
| HINDCAST_KAFKA_TOKEN_URL     | none           | OAUTHBEARER: where tokens are had                                |
| HINDCAST_KAFKA_SCOPE         | none           | OAUTHBEARER: the scope that is asked for                         |
| HINDCAST_KAFKA_HANDOVER      | environment    | how tasks of Spark learn all this: `environment` or `file`       |
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
from urllib.parse import urlsplit

from hindcast.common.environment import refuse_credentials
from hindcast.common.errors import SettingsError, suggest_nearest
from hindcast.kafka.credential_files import find_pem_file, read_password_file

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

CONNECTION_USED = f"{PREFIX}CONN_USED"
"""The variable in which an Airflow task notes the connection that its environment is from."""


@dataclass(frozen=True)
class Security:
    """The security settings of one reading of the environment. `password` and `key_password` are not in its `repr`.

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
        """The values that must never be shown."""
        return tuple(secret for secret in (self.password, self.key_password) if secret)

    def librdkafka_config(self) -> dict[str, str]:
        """Return the properties of librdkafka's clients (confluent-kafka) except the brokers' addresses."""
        if self.protocol == "plaintext":
            return {}
        properties = {
            "security.protocol": self.protocol,
            "ssl.ca.location": str(self.ca or ""),
            "ssl.certificate.location": str(self.cert or ""),
            "ssl.key.location": str(self.key or ""),
            "ssl.key.password": self.key_password,
            "sasl.mechanism": self.mechanism,
        }
        if self.mechanism == "OAUTHBEARER":
            properties |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
                "sasl.oauthbearer.client.id": self.username,
                "sasl.oauthbearer.client.secret": self.password,
                "sasl.oauthbearer.scope": self.scope,
            }
        else:
            properties |= {"sasl.username": self.username, "sasl.password": self.password}
        return {name: value for name, value in properties.items() if value}


PLAINTEXT = Security()
"""Neither encrypted nor authenticated: the broker that `make up` starts."""


def read_security(servers: str, environ: Mapping[str, str] | None = None) -> Security:
    """Return how to connect to the brokers at `servers`, as the environment says at this moment.

    Reads the password file, if one is named. Raises SettingsError for settings that make no sense, would have no
    effect, or would let others read a secret.
    """
    env = os.environ if environ is None else environ
    parse_addresses(servers, "HINDCAST_KAFKA")
    _refuse_unknown(env)
    values = {name.removeprefix(PREFIX).lower(): env.get(name) or "" for name in VARIABLES}
    protocol = _refuse_unknown_value("SECURITY", values["security"].lower() or "plaintext", PROTOCOLS)
    handover = _refuse_unknown_value("HANDOVER", values["handover"] or "environment", HANDOVERS)
    _refuse_useless(protocol, values)
    if protocol == "plaintext":
        return PLAINTEXT
    if bool(values["cert"]) != bool(values["key"]):
        one, other = ("CERT", "KEY") if values["cert"] else ("KEY", "CERT")
        raise SettingsError(f"{PREFIX}{one} is set but {PREFIX}{other} is not", fix="mutual TLS takes both files")
    ca, cert, key = (find_pem_file(f"{PREFIX}{name}", values[name.lower()]) for name in ("CA", "CERT", "KEY"))
    security = Security(protocol, ca, cert, key, values["key_password"], handover=handover)
    if protocol.startswith("sasl"):
        security = _add_sasl(security, values)
    _refuse_readable(servers, security)
    return security


def parse_addresses(servers: str, where: str) -> list[tuple[str, int]]:
    """Return host and port of each broker; SettingsError, with `where` they are set, for one that is not `host:port`.

    >>> parse_addresses("b1:9092, SASL_SSL://[::1]:9093", "HINDCAST_KAFKA")
    [('b1', 9092), ('::1', 9093)]
    """
    refuse_credentials(servers, where)
    addresses = []
    for server in servers.split(","):
        match = _ADDRESS.fullmatch(server.strip())
        if match is None or not 0 < int(match[2]) < _PORTS:
            fix = "write each broker as host:port with commas between, as b1.example.org:9092,b2.example.org:9092"
            raise SettingsError(f"'{server.strip()}' is not the host:port of a broker", where=where, fix=fix)
        addresses.append((match[1].strip("[]"), int(match[2])))
    return addresses


def client_config(servers: str, how: Security) -> dict[str, str | int]:
    """Return the properties of every librdkafka client: the brokers, their security, and no log of its own."""
    return {"bootstrap.servers": servers, "log_level": 0, **how.librdkafka_config()}


def clear_environment() -> None:
    """Remove all these variables from the environment of this process, for one that has its own broker."""
    for name in VARIABLES:
        os.environ.pop(name, None)


def refuse_security_of_own_broker(environ: Mapping[str, str] | None = None) -> None:
    """Raise SettingsError if the environment wants security of the broker that `make up` starts, which has none."""
    env = os.environ if environ is None else environ
    if (protocol := env.get(f"{PREFIX}SECURITY") or "plaintext").lower() != "plaintext":
        raise SettingsError(
            f"{PREFIX}SECURITY is '{protocol}', and the broker that `make up` starts speaks plaintext",
            fix="set HINDCAST_KAFKA to your brokers' host:port, or leave HINDCAST_KAFKA_SECURITY out",
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _add_sasl(security: Security, values: Mapping[str, str]) -> Security:
    mechanism = _refuse_unknown_value("MECHANISM", (values["mechanism"] or "SCRAM-SHA-512").upper(), MECHANISMS)
    if values["password"] and values["password_file"]:
        raise SettingsError(f"{PREFIX}PASSWORD and {PREFIX}PASSWORD_FILE are both set", fix="set one of them")
    password = values["password"] or read_password_file(f"{PREFIX}PASSWORD_FILE", values["password_file"])
    required = {"USERNAME": values["username"], "PASSWORD": password}
    if mechanism == "OAUTHBEARER":
        required |= {"TOKEN_URL": values["token_url"]}
        _refuse_open_token_url(values["token_url"])
    elif given := [name for name in ("TOKEN_URL", "SCOPE") if values[name.lower()]]:
        problem = f"{PREFIX}{given[0]} is set and {PREFIX}MECHANISM is {mechanism}"
        raise SettingsError(problem, fix=f"set {PREFIX}MECHANISM to OAUTHBEARER, or leave {PREFIX}{given[0]} out")
    if missing := [f"{PREFIX}{name}" for name, value in required.items() if not value]:
        raise SettingsError(
            f"SASL with {mechanism} is requested, but {' and '.join(missing)} {_is_or_are(missing)} not set",
            fix="set them in the environment of whoever talks to Kafka (docs/security.md)",
        )
    return replace(
        security,
        mechanism=mechanism,
        username=values["username"],
        password=password,
        token_url=values["token_url"],
        scope=values["scope"],
    )


def _refuse_unknown(env: Mapping[str, str]) -> None:
    """Raise SettingsError for a variable that begins as ours do and is none of them: it would be ignored.

    Kubernetes sets some of its own for a service that is called hindcast-kafka.
    """
    known = (*VARIABLES, f"{PREFIX}PORT")
    ours = (name for name in env if name.startswith(PREFIX) and not _OF_KUBERNETES.fullmatch(name))
    if odd := sorted(name for name in ours if name not in (*known, CONNECTION_USED)):
        raise SettingsError(f"{odd[0]} is set, but Hindcast has no such variable", fix=suggest_nearest(odd[0], known))


def _refuse_useless(protocol: str, values: Mapping[str, str]) -> None:
    """Raise SettingsError for settings without effect: whoever sets a password believes that it is needed."""
    tls, sasl = ("ca", "cert", "key", "key_password"), ("mechanism", "username", "password", "password_file")
    useless = {
        "plaintext": (*tls, *sasl, "token_url", "scope"),
        "ssl": (*sasl, "token_url", "scope"),
        "sasl_plaintext": tls,
    }.get(protocol, ())
    if given := [f"{PREFIX}{name.upper()}" for name in useless if values[name]]:
        raise SettingsError(
            f"{' and '.join(given)} {_is_or_are(given)} set, which has no effect with {PREFIX}SECURITY {protocol}",
            fix=f"set {PREFIX}SECURITY to {'sasl_ssl' if protocol != 'sasl_plaintext' else 'sasl_ssl or ssl'}, "
            "or leave them out",
        )


def _refuse_readable(servers: str, security: Security) -> None:
    """Raise SettingsError if a password (PLAIN) or token (OAUTHBEARER) would cross an open network unencrypted."""
    if security.tls or security.mechanism not in ("PLAIN", "OAUTHBEARER"):
        return
    if remote := [server for server in servers.split(",") if not is_loopback(server.strip().rpartition(":")[0])]:
        raise SettingsError(
            f"{security.mechanism} without TLS would send its secret unencrypted over the network",
            where=remote[0].strip(),
            fix=f"set {PREFIX}SECURITY to sasl_ssl, or use SCRAM; without TLS only brokers on this machine's loopback",
        )


def _refuse_open_token_url(url: str) -> None:
    """Raise SettingsError, which does not show the address, if it has credentials or lacks TLS."""
    try:
        parts = urlsplit(url)
        scheme, host, login = parts.scheme, parts.hostname or "", parts.username or parts.password
    except ValueError:
        scheme, host, login = "", "", None
    if login or _SECRET_IN_QUERY.search(url):
        problem = f"{PREFIX}TOKEN_URL has credentials in it"
        raise SettingsError(problem, fix=f"give them as {PREFIX}USERNAME and {PREFIX}PASSWORD")
    if url and not (host and (scheme == "https" or (scheme == "http" and is_loopback(host)))):
        problem = f"{PREFIX}TOKEN_URL is not https: the client's secret would go over the network unencrypted"
        raise SettingsError(problem, fix="set an https:// address")


def _refuse_unknown_value(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise SettingsError(f"{PREFIX}{name} is '{value}'", fix=suggest_nearest(value, known))
    return value


def _is_or_are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


_ADDRESS = re.compile(r"(?:\w+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:,/\[\]]+):(\d{1,5})", re.ASCII)
_SECRET_IN_QUERY = re.compile(r"[?&;][^=&;]*(secret|passw|assertion)[^=&;]*=", re.IGNORECASE)
_OF_KUBERNETES = re.compile(rf"{PREFIX}(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)")
_PORTS = 65536
