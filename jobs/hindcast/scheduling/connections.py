"""Kafka's credentials from an Airflow connection, in the process of a task only: never where DAGs are parsed.

HINDCAST_KAFKA_CONN_ID names the connection. Its host and port are the brokers, its login and password who we are, and
its extra, as that of a connection of Airflow's Kafka provider, has names of librdkafka's:

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

What else it says of security is refused; what it says of other things is not for us.
"""

from __future__ import annotations

import os
from typing import Any

from hindcast.errors import SettingsError, nearest
from hindcast.kafka.security import PREFIX, USED, VARIABLES, addresses, security
from hindcast.settings import settings

CONN_ID = f"{PREFIX}CONN_ID"


def use() -> None:
    """Lets a task of Airflow's, and what it starts, speak to Kafka as the connection says, if one is named.

    Its environment then has what the connection has, and nothing of another but HINDCAST_KAFKA_HANDOVER. Secrets,
    wherever they are from, are masked in the task's log. SettingsError for a connection that makes no sense.
    """
    conn_id = os.environ.get(CONN_ID)
    if conn_id and os.environ.get(USED) != conn_id:
        found = variables(_connection(conn_id), conn_id)
        if settings().spark == "connect":
            found[_HANDOVER] = "file"  # the shared server was started without it
        if handover := os.environ.get(_HANDOVER):
            found[_HANDOVER] = handover  # no connection says how Spark learns it
        for name in VARIABLES:
            if name != CONN_ID:
                os.environ.pop(name, None)
        os.environ.update({**found, USED: conn_id})
    _mask()


def variables(connection: Any, conn_id: str) -> dict[str, str]:
    """A connection as the variables of security.py (and HINDCAST_KAFKA).

    >>> variables(Connection(host="b1", port=9093, login="ann", password="...", extra='{"security.protocol": ...'), "k")
    {'HINDCAST_KAFKA': 'b1:9093', 'HINDCAST_KAFKA_SECURITY': 'sasl_ssl', 'HINDCAST_KAFKA_USERNAME': 'ann', ...}
    """
    extra = {str(name): value for name, value in connection.extra_dejson.items()}
    if unknown := [name for name in extra if name.startswith(_OF_SECURITY) and name not in (*_NAMES, _METHOD)]:
        where, mend = f"connection {conn_id}, extra", f"leave it out; {nearest(unknown[0], _NAMES)}"
        raise SettingsError(f"'{unknown[0]}' is not a name that we know", where=where, mend=mend)
    if extra.get(_METHOD, "oidc") != "oidc":
        where, mend = f"connection {conn_id}, extra", "set it to oidc, with the address of the token endpoint"
        raise SettingsError(f"{_METHOD} is '{extra[_METHOD]}'", where=where, mend=mend)
    host = connection.host or ""
    told = {
        "": f"{host}:{connection.port}" if host and connection.port else host,
        "USERNAME": connection.login or "",
        "PASSWORD": connection.password or "",
    }
    told |= {to: str(extra[name]) for name, to in _NAMES.items() if extra.get(name)}
    told["SECURITY"] = told.get("SECURITY", "").lower() or ("sasl_ssl" if told["USERNAME"] else "plaintext")
    if not told[""]:
        mend = "give it the brokers: host and port, or bootstrap.servers in its extra"
        raise SettingsError("has no brokers", where=f"connection {conn_id}", mend=mend)
    addresses(told[""], f"connection {conn_id}")
    names = {to: f"{PREFIX}{to}" if to else PREFIX.rstrip("_") for to in told}
    return {names[to]: value for to, value in told.items() if value}


def _connection(conn_id: str) -> Any:
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

    try:
        return Connection.get(conn_id)
    except (AirflowNotFoundException, AirflowException):
        raise SettingsError(
            f"{CONN_ID} is '{conn_id}', and Airflow has no such connection",
            mend=f"make it (airflow connections add, or AIRFLOW_CONN_{conn_id.upper()}), or leave {CONN_ID} out",
        ) from None


def _mask() -> None:
    from airflow.sdk.log import mask_secret

    registry = os.environ.get("HINDCAST_SCHEMA_REGISTRY_PASSWORD")
    for secret in (*security(settings().kafka).secrets, *([registry] if registry else [])):
        mask_secret(secret)


_HANDOVER = f"{PREFIX}HANDOVER"
_OF_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl", "enable.sasl")
_METHOD = "sasl.oauthbearer.method"
_NAMES = {
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
"""Of each name of librdkafka's our variable."""
