"""Kafka's credentials from an Airflow connection, in the process of a task only: never where DAGs are parsed.

HINDCAST_KAFKA_CONN_ID names the connection. Its host and port are the brokers, its login and password are the user's,
and its extra has librdkafka's names, like a connection of Airflow's Kafka provider:

| extra | as |
| --- | --- |
| bootstrap.servers | HINDCAST_KAFKA |
| security.protocol | HINDCAST_KAFKA_SECURITY |
| sasl.mechanism, sasl.mechanisms | HINDCAST_KAFKA_MECHANISM |
| sasl.username, sasl.oauthbearer.client.id | HINDCAST_KAFKA_USERNAME |
| sasl.password, sasl.oauthbearer.client.secret | HINDCAST_KAFKA_PASSWORD |
| sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.scope | HINDCAST_KAFKA_TOKEN_URL, HINDCAST_KAFKA_SCOPE |
| ssl.ca.location | HINDCAST_KAFKA_CA |
| ssl.certificate.location, ssl.key.location, ssl.key.password | HINDCAST_KAFKA_CERT, _KEY, _KEY_PASSWORD |

Other options of security are refused, and options of anything else are ignored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hindcast.common.errors import SettingsError, suggest_nearest
from hindcast.common.login_forms import list_login_forms
from hindcast.common.settings import read_settings
from hindcast.kafka.security import CONNECTION_USED, PREFIX, VARIABLES, parse_addresses, read_security

if TYPE_CHECKING:
    from airflow.sdk import Connection

CONN_ID = f"{PREFIX}CONN_ID"


def apply_connection() -> None:
    """Set the Kafka variables of this process, and of those that it starts, from the connection, if one is named.

    They replace all others but HINDCAST_KAFKA_HANDOVER. Secrets from anywhere are masked in the task's log.
    SettingsError if the connection is missing or invalid.
    """
    conn_id = os.environ.get(CONN_ID)
    if conn_id and os.environ.get(CONNECTION_USED) != conn_id:
        variables = connection_variables(_read_connection(conn_id), conn_id)
        if read_settings().spark == "connect":
            variables[_HANDOVER] = "file"  # the shared server was started without these variables
        if handover := os.environ.get(_HANDOVER):
            variables[_HANDOVER] = handover  # a connection does not say how Spark gets the credentials
        for name in VARIABLES:
            if name != CONN_ID:
                os.environ.pop(name, None)
        os.environ.update({**variables, CONNECTION_USED: conn_id})
    _mask_secrets()


def connection_variables(connection: Connection, conn_id: str) -> dict[str, str]:
    """Return a connection as the variables of security.py (and HINDCAST_KAFKA); SettingsError if it is invalid.

    >>> connection_variables(Connection(host="b1", port=9093, login="ann", extra='{"security.protocol": ...'), "k")
    {'HINDCAST_KAFKA': 'b1:9093', 'HINDCAST_KAFKA_SECURITY': 'sasl_ssl', 'HINDCAST_KAFKA_USERNAME': 'ann', ...}
    """
    extra = {str(name): value for name, value in connection.extra_dejson.items()}
    where = f"connection {conn_id}, extra"
    for name in extra:
        if name.startswith(_SECURITY_PREFIXES) and name not in (*_VARIABLES_BY_OPTION, _OAUTH_METHOD):
            fix = f"leave it out; {suggest_nearest(name, _VARIABLES_BY_OPTION)}"
            raise SettingsError(f"'{name}' is not a supported option", where=where, fix=fix)
    if extra.get(_OAUTH_METHOD, "oidc") != "oidc":
        fix = "set it to oidc, with the address of the token endpoint"
        raise SettingsError(f"{_OAUTH_METHOD} is '{extra[_OAUTH_METHOD]}'", where=where, fix=fix)
    host = connection.host or ""
    values = {
        "": f"{host}:{connection.port}" if host and connection.port else host,
        "USERNAME": connection.login or "",
        "PASSWORD": connection.password or "",
    }
    values |= {suffix: str(extra[name]) for name, suffix in _VARIABLES_BY_OPTION.items() if extra.get(name)}
    values["SECURITY"] = values.get("SECURITY", "").lower() or ("sasl_ssl" if values["USERNAME"] else "plaintext")
    if not values[""]:
        fix = "give it the brokers: host and port, or bootstrap.servers in its extra"
        raise SettingsError("has no brokers", where=f"connection {conn_id}", fix=fix)
    parse_addresses(values[""], f"connection {conn_id}")
    return {(f"{PREFIX}{suffix}" if suffix else PREFIX.rstrip("_")): text for suffix, text in values.items() if text}


def _read_connection(conn_id: str) -> Connection:
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

    try:
        connection: Connection = Connection.get(conn_id)
    except (AirflowNotFoundException, AirflowException):
        raise SettingsError(
            f"{CONN_ID} is '{conn_id}', but Airflow has no such connection",
            fix=f"create it (airflow connections add, or AIRFLOW_CONN_{conn_id.upper()}), or unset {CONN_ID}",
        ) from None
    return connection


def _mask_secrets() -> None:
    from airflow.sdk.log import mask_secret

    security = read_security(read_settings().kafka)
    registry = [os.environ.get(f"HINDCAST_SCHEMA_REGISTRY_{name}") or "" for name in ("USER", "PASSWORD")]
    for user, secret in [*((security.username, secret) for secret in security.secrets), registry]:
        for form in list_login_forms(user, secret):
            mask_secret(form)


_HANDOVER = f"{PREFIX}HANDOVER"
_SECURITY_PREFIXES = ("security.", "sasl.", "ssl.", "enable.ssl", "enable.sasl")
_OAUTH_METHOD = "sasl.oauthbearer.method"
_VARIABLES_BY_OPTION = {
    "bootstrap.servers": "",
    "security.protocol": "SECURITY",
    "sasl.mechanism": "MECHANISM",
    "sasl.mechanisms": "MECHANISM",
    "sasl.username": "USERNAME",
    "sasl.password": "PASSWORD",
    "sasl.oauthbearer.client.id": "USERNAME",
    "sasl.oauthbearer.client.secret": "PASSWORD",
    "sasl.oauthbearer.token.endpoint.url": "TOKEN_URL",
    "sasl.oauthbearer.scope": "SCOPE",
    "ssl.ca.location": "CA",
    "ssl.certificate.location": "CERT",
    "ssl.key.location": "KEY",
    "ssl.key.password": "KEY_PASSWORD",
}
"""The suffix of our variable for each of librdkafka's names."""
